//! Turns MIL programs into better MIL programs, and reports what was done.
//!
//! A [pattern](mod@thane_mil::pattern) is a shape of ops, and a [`rewrite`] what is written in its
//! place. A [`pass`] answers for a function, place by place, what it would change. The [`driver`]
//! applies the answers, verifies the program before and after, and counts. [`pipeline`] lists the
//! passes in their order: start reading there. [`fixes`] answer what rules of an audit find;
//! [`trial`] keeps those that are a gain and hold. [`cut`] copies some ops of a function into a
//! function of their own. What a caller gives: [`price`] chooses between two forms, and [`proof`]
//! says whether both compute the same.
//!
//! This crate knows ops and functions. It must not know chips, checkpoints, model families or
//! tokens; it runs nothing and does no I/O. Every pass here leaves each result as it is, bit for
//! bit, on any backend that computes in IEEE arithmetic; a fix says how equal it is.
//!
//! # Example
//!
//! ```
//! use thane_compile::Options;
//! use thane_mil::text::parse;
//!
//! let text = "program(1.3) {
//!   func main<ios18>(tensor<fp16, [4]> x) {
//!     tensor<fp16, [4]> a = relu(x = x)[name = string(\"a\")];
//!     tensor<fp16, [4]> b = relu(x = x)[name = string(\"b\")];
//!     tensor<fp16, [4]> y = add(x = a, y = b)[name = string(\"y\")];
//!   } -> (y);
//! }";
//! let program = parse(text, &|_, _, _| None)?;
//! let (program, report) = thane_compile::run(program, &Options::default())?;
//! assert_eq!(program.functions()[0].body().ops.len(), 2);
//! assert_eq!(report.functions[0].to_string(), "main: 2 ops of 3");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

pub mod compress;
pub mod compressed;
pub mod cut;
pub mod driver;
pub mod fixes;
pub mod graph;
pub mod ints;
pub mod pad_interface;
pub mod pass;
pub mod passes;
pub mod pipeline;
pub mod price;
pub mod proof;
mod report;
pub mod rewrite;
pub mod trial;
pub mod weights;

use thane_mil::program::Program;

pub use driver::{CompileError, Options};
pub use pass::{Outcome, Pass, Site};
pub use price::{Cost, Price};
pub use report::{FunctionReport, PassReport, Refusal, Report};

/// Run the whole pipeline over every function of a program.
pub fn run(program: Program, options: &Options) -> Result<(Program, Report), CompileError> {
    driver::run(program, pipeline::PASSES, options)
}

//! Programs to better programs, and a report of what was done.
//!
//! A pass looks at a function and says, place by place, what it would change; the [`driver`] does
//! it, checks the program before and after, and counts. [`pipeline`] is the list of passes in their
//! order. Start reading there.
//!
//! Beside the passes stand the planners ([`plan`]) and the numbers of chips that they reckon with
//! ([`target`]).
//!
//! This crate knows ops and functions. It knows nothing of checkpoints, model families or tokens,
//! runs nothing, and does no I/O. Every pass here leaves each result as it is, bit for bit, on any
//! backend that computes in IEEE arithmetic.
#![deny(missing_docs)]

pub mod audit;
pub mod driver;
mod graph;
pub mod nearest;
pub mod passes;
pub mod pipeline;
pub mod plan;
mod report;
pub mod target;
pub mod weight;

use thane_mil::program::Program;

pub use driver::{CompileError, Options, Outcome, Pass, Site};
pub use report::{FunctionReport, PassReport, Refusal, Report};

/// Run the whole pipeline over every function of a program.
pub fn run(program: Program, options: &Options) -> Result<(Program, Report), CompileError> {
    driver::run(program, pipeline::PASSES, options)
}

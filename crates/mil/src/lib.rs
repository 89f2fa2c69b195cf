//! The program representation: functions over shared constants, in the terms of Apple's MIL.
//!
//! A [`Program`](program::Program) is a set of functions. Each function is a list of ops from a
//! versioned [`opset`] over tensors of [`types`]; the bytes of constants are [`data`], usually
//! mapped from a checkpoint.
//!
//! Start reading at [`program`]. Then [`build`] makes programs, [`valid`] checks them,
//! [`mod@pattern`] finds shapes in them (over their [`graph`] of users and makers), [`edit`]
//! changes them, [`copy`] writes them anew, [`lower`] rewrites them for older opsets, [`text`]
//! prints and parses them, [`package`] reads and writes them on disk, [`backend`] defines the
//! traits for running them, [`evaluate`] those for computing one op at a time, and [`observe`] the
//! one for the numbers of a run.
//!
//! This crate knows nothing of checkpoints, model families, devices or tokens. Only [`package`]
//! does I/O.
//!
//! ```
//! use thane_mil::build::FunctionBuilder;
//! use thane_mil::opset::Opset;
//! use thane_mil::program::{Arg, Program};
//! use thane_mil::text::{Blobs, print};
//! use thane_mil::types::{DType, TensorType};
//!
//! let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
//! let x = b.input("x", TensorType::new(DType::Fp16, [2usize, 3]));
//! let y = b.op("relu", "relu", [("x", Arg::Value(x))])?;
//! let program = Program::new(vec![b.finish(&[("y", y)])]);
//! thane_mil::valid::check(&program).unwrap();
//! let text = print(&program, &mut Blobs::default());
//! assert!(text.contains("tensor<fp16, [2, 3]> y = relu(x = x)"));
//! # Ok::<(), thane_mil::build::BuildError>(())
//! ```
#![deny(missing_docs)]

pub mod backend;
pub mod budget;
pub mod build;
pub mod copy;
pub mod data;
pub mod edit;
pub mod evaluate;
pub mod footprint;
pub mod graph;
pub mod literal;
pub mod loops;
pub mod lower;
pub mod nearest;
pub mod observe;
pub mod opset;
pub mod package;
pub mod pattern;
pub mod program;
mod shorten;
pub mod text;
pub mod types;
pub mod valid;
mod watch;

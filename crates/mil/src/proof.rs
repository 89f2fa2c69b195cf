//! What is asked of somebody who says whether two forms of a function compute the same.
//!
//! Who rewrites programs cannot run them, and who runs them knows of no rewrites: both know this.

use crate::program::Function;

/// How equal the two forms are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// But for the order of sums and roundings.
    Same,
    /// But for numbers that are kept in fp16 where they were in fp32.
    Half,
    /// But for whole steps where roundings decide on which side of a step a number lies.
    Stepped,
}

/// What a prover found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Both compute the same; how that was seen, with its bounds.
    Equal(String),
    /// They do not; where and how far.
    Differs(String),
    /// It cannot be told; why.
    Unknown(String),
}

/// Runs two forms of a function and says whether they compute the same.
pub trait Prover {
    /// Compare. Both have the same inputs, outputs and states, though those of `after` may have longer rows: what is
    /// behind the old end of an input is anything, and of an output or state nothing that counts.
    fn prove(&mut self, before: &Function, after: &Function, numbers: Numbers) -> Proof;
}

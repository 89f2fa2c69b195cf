//! The interface between code that rewrites programs and code that can prove a rewrite correct.
//!
//! Passes cannot run programs, and backends know no rewrites. Both depend on this module: a pass
//! driver asks a [`Prover`] whether two versions of a function compute the same results.

use thane_mil::program::Function;

/// How closely a rewrite is meant to preserve results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Equal in real arithmetic; results differ by rounding only.
    Exact,
    /// Approximate, such as a lower precision or a narrower range of values.
    Lossy,
}

/// The result of a proof.
#[derive(Clone, Debug, PartialEq)]
pub enum Proof {
    /// Both versions agree up to rounding. Describes the evidence and its bounds.
    Equal(String),
    /// The versions differ by no more than the allowed error.
    Lossy {
        /// The largest difference of an output, relative to the output's largest magnitude.
        error: f64,
        /// The inputs that produced this error, and how many other inputs were run.
        how: String,
    },
    /// The versions differ by more than allowed. Describes where and by how much.
    Differs(String),
    /// The proof is inconclusive. Describes the reason.
    Unknown(String),
}

/// The versions of a function that a proof compares.
#[derive(Clone, Copy, Debug)]
pub struct Forms<'a> {
    /// The original function. All rewrites together are judged against this version.
    pub original: &'a Function,
    /// The function after all rewrites that were accepted so far.
    pub before: &'a Function,
    /// The function after one more rewrite.
    pub after: &'a Function,
    /// Whether an accepted rewrite is lossy, so that `before` no longer equals `original`.
    pub is_lossy: bool,
}

/// What is tried next, and how far the whole is.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// The function and the rewrite.
    pub what: &'a str,
    /// Trials that are done, or that a stage did not need.
    pub done: usize,
    /// All trials that there may be so far; a rewrite that is kept may make room for more.
    pub all: usize,
}

/// Runs versions of a function and decides whether they compute the same results.
pub trait Prover {
    /// Compares `after` with `before` and `original`.
    ///
    /// All versions have the same inputs, outputs and states, but rows of `after` may be longer.
    /// Input elements beyond the original row length can have any value; output and state elements
    /// beyond it are ignored.
    fn prove(&mut self, forms: &Forms<'_>, numbers: Numbers) -> Proof;

    /// Compares the original function with the final result of all rewrites. `is_lossy` says
    /// whether any accepted rewrite is lossy.
    fn confirm(&mut self, original: &Function, done: &Function, is_lossy: bool) -> Proof;

    /// Whether lossy rewrites should be tried.
    fn takes_lossy(&self) -> bool;

    /// Whether the time limit for proofs has passed.
    fn is_over(&self) -> bool;

    /// Receives what is tried next.
    fn announce(&mut self, _stage: Stage<'_>) {}
}

//! What is asked of somebody who says whether two forms of a function compute the same.
//!
//! Who rewrites programs cannot run them, and who runs them knows of no rewrites: both know this.

use crate::program::Function;

/// How equal the two forms are meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Equal in real arithmetic: only roundings part them.
    Exact,
    /// Another precision or range of values.
    Lossy,
}

/// What a prover found.
#[derive(Clone, Debug, PartialEq)]
pub enum Proof {
    /// Both compute the same but for roundings; how that was seen, with its bounds.
    Equal(String),
    /// They differ, by no more than was allowed.
    Lossy {
        /// The largest difference of an output, over its largest magnitude.
        error: f64,
        /// The inputs that gave it, and how many others were run.
        how: String,
    },
    /// They differ; where and how far.
    Differs(String),
    /// It cannot be told; why.
    Unknown(String),
}

/// Two forms of a function, and what they began as.
#[derive(Clone, Copy, Debug)]
pub struct Forms<'a> {
    /// The function as it was given: what all rewrites together are judged by.
    pub original: &'a Function,
    /// With what was kept so far.
    pub before: &'a Function,
    /// With one rewrite more.
    pub after: &'a Function,
    /// Whether something that was kept is lossy, so that `before` is not what `original` is.
    pub is_lossy: bool,
}

/// Runs forms of functions and says whether they compute the same.
pub trait Prover {
    /// Compare. All have the same inputs, outputs and states, though those of `after` may have
    /// longer rows: what is behind the old end of an input is anything, and of an output or state
    /// nothing that counts.
    fn prove(&mut self, forms: &Forms<'_>, numbers: Numbers) -> Proof;

    /// Compare a function with what is left of it when all is done. `is_lossy` says that something
    /// of it is.
    fn confirm(&mut self, original: &Function, done: &Function, is_lossy: bool) -> Proof;

    /// Whether lossy rewrites are to be tried.
    fn takes_lossy(&self) -> bool;

    /// Whether the time for proofs is over.
    fn is_over(&self) -> bool;

    /// Hears what is tried next.
    fn announce(&mut self, _what: &str) {}
}

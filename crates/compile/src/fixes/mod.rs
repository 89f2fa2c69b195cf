//! Fixes: what a rule of an audit asks for, written where a finding is.
//!
//! One file for each fix: a [`Pattern`] that holds the op of the finding, and a builder that writes
//! what stands in the place of its root, or says why it must not. A fix knows no chip: the ops, and
//! what of a target it has to know as numbers ([`Limits`]), are handed to it. Its result need not
//! be the same bit for bit, so [`trial`](crate::trial) keeps it only where a prover agrees.
//!
//! To add a fix, add a file whose doc has a program that it rewrites, its two lines below (`mod`
//! and [`FIXES`]), and `tests/fixes/<name>.mil`.

mod bound_masks;
mod double;
mod expand_argmax;
mod expand_cumsum;
mod expand_function;
mod expand_log_softmax;
mod expand_logic;
mod expand_mod;
mod expand_reduce;
mod expand_softmax;
mod expand_softplus;
mod expand_tile;
mod fold_integers;
mod fold_transpose;
mod fuse_rms_norm;
mod fuse_softmax;
mod group_heads;
mod lower_gather;
mod lower_matmul;
mod lower_reduce;
mod merge_batch_axes;
mod narrow_floats;
mod pad_channels;
mod raise_epsilon;
mod scale_rms_norm;
mod shift_pad;
mod split_contraction;
mod split_kernel;
mod split_outputs;
mod split_pool;
mod tile_attention;

use thane_mil::graph::{Graph, float, int, ints, wrap};
use thane_mil::pattern;
use thane_mil::pattern::Pattern::{self, Else, Number, Once, OneOf};

// The words that fixes are written in.
use crate::proof::Numbers;
use crate::rewrite::{Answer, IN_PLACE, Limits, Rewrite, Value, operand, result_shape};
use crate::weights::Constant;
use thane_mil::program::{OpId, ValueId};
use thane_mil::types::DType;

/// A fix.
#[derive(Clone, Copy, Debug)]
pub struct Fix {
    /// Name, such as `split_contraction`.
    pub name: &'static str,
    /// The rules that it answers.
    pub rules: &'static [&'static str],
    /// What it writes, in a line.
    pub what: &'static str,
    /// How equal that is.
    pub numbers: Numbers,
    /// What it replaces; the op of the finding is one of its ops.
    pub pattern: Pattern,
    /// Write what stands in its place.
    pub write: fn(&Rewrite<'_>) -> Answer,
}

/// Any op, for a builder that asks for itself.
const ANY_OP: Pattern = pattern!([]());

impl Fix {
    /// What it would do at an op that one of its rules found.
    pub fn answer(&self, graph: &Graph<'_>, limits: Limits, site: OpId) -> Answer {
        let found = self.pattern.find_around(graph, site)?;
        let found = found.ok_or("it is written otherwise")?;
        let mut rewrite = Rewrite::new(graph, found, self.name);
        rewrite.limits = limits;
        (self.write)(&rewrite)
    }
}

/// Every fix, in the order that they are tried: what folds and narrows first, then what changes the
/// form of ops, then sizes. Where two answer one rule at the same ops, the one that is predicted to
/// be faster is kept.
pub static FIXES: &[Fix] = &[
    fold_integers::FIX,
    bound_masks::FIX,
    raise_epsilon::FIX,
    narrow_floats::FIX,
    fuse_softmax::FIX,
    expand_log_softmax::FIX,
    scale_rms_norm::FIX,
    fuse_rms_norm::FIX,
    expand_function::FIX,
    expand_mod::FIX,
    expand_softplus::FIX,
    expand_logic::FIX,
    expand_cumsum::FIX,
    expand_argmax::FIX,
    lower_gather::FIX,
    shift_pad::FIX,
    group_heads::FIX,
    expand_tile::FIX,
    double::FIX,
    fold_transpose::FIX,
    expand_reduce::FIX,
    lower_reduce::FIX,
    merge_batch_axes::FIX,
    tile_attention::FIX,
    expand_softmax::FIX,
    split_contraction::FIX,
    split_outputs::FIX,
    split_kernel::FIX,
    split_pool::FIX,
    lower_matmul::FIX,
    pad_channels::FIX,
];

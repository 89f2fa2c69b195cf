//! The interface to the activations of a model: how much errors of weights count, and ranges.

use std::sync::Arc;

use thane_mil::program::{Function, OpId, ValueId};

/// How much errors of weights count.
pub trait Importance: Send + Sync {
    /// By input, for a product; `None` if that is not known.
    fn of(&self, product: &Product<'_>, n_inputs: usize) -> Option<Arc<[f32]>>;

    /// The greatest magnitude that is kept of what a product takes where that becomes 8-bit
    /// integers; `None` if that is not known.
    fn range(&self, _: &Product<'_>) -> Option<f32> {
        None
    }
}

/// A product that uses a weight.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The module of the checkpoint, which may have several products; empty in a program that was
    /// read from a package.
    pub module: &'a str,
    /// The name of the weight.
    pub weight: &'a str,
    /// The name of its result.
    pub result: &'a str,
}

/// All errors count the same.
impl Importance for () {
    fn of(&self, _: &Product<'_>, _: usize) -> Option<Arc<[f32]>> {
        None
    }
}

/// How an op is known to those who say how much errors count.
pub(super) fn product<'f>(f: &'f Function, weight: ValueId, user: OpId) -> Option<Product<'f>> {
    let op = f.op(user);
    Some(Product {
        module: &op.origin.place,
        weight: &f.value(weight).name,
        result: &f.value(*op.results.first()?).name,
    })
}

//! Rewrites of a function before it is planned: programs as they are shipped become the forms that
//! the [patterns](super::fuse) know.
//!
//! A rewrite makes a function with the inputs, states and outputs of the old one: nearly every
//! value changes its type or the order of its axes, which a patch cannot say, because it replaces
//! values by others of the same type. Where a rewrite meets what it does not know, it returns
//! `None`, and the function is planned as it is.

pub mod order;
mod widen;

use std::borrow::Cow;

use thane_mil::copy::{Copier, NamedArgs};
use thane_mil::edit::Patch;
use thane_mil::graph::unused;
use thane_mil::program::{BlockId, Function, OpId, ValueId};
use thane_mil::types::Type;

/// The function in the form that is planned.
pub fn rewrite(function: &Function) -> Cow<'_, Function> {
    let mut function = Cow::Borrowed(function);
    for pass in [widen::widen, order::order] {
        if let Some(new) = pass(&function) {
            function = Cow::Owned(without_unused(new));
        }
    }
    function
}

/// Without ops that a pass added and did not use.
fn without_unused(mut f: Function) -> Function {
    let mut patch = Patch::new();
    unused(&f).into_iter().for_each(|op| patch.remove(op));
    let whole = f.clone();
    patch.apply(&mut f).map_or(whole, |()| f)
}

/// Whether a new value has as many known sizes as the old one: what a program declares beyond what
/// follows from its ops is held against each result, which a rewrite would lose.
fn is_as_known(copy: &Copier<'_>, old: ValueId, new: ValueId) -> bool {
    let n_known = |ty: &Type| {
        let ty = ty.tensor();
        ty.map(|t| t.shape.iter().filter(|d| d.known().is_some()).count())
    };
    n_known(copy.ty(new)) >= n_known(&copy.f.value(old).ty)
}

/// Adds what an old op becomes, unless less is known of it.
fn add(copy: &mut Copier<'_>, id: OpId, args: NamedArgs, blocks: Vec<BlockId>) -> Option<()> {
    let results = copy.add(id, args, blocks).ok()?;
    let old = &copy.f.op(id).results;
    let mut pairs = old.iter().zip(&results);
    let is_known = pairs.all(|(old, new)| is_as_known(copy, *old, *new));
    (is_known && results.len() == old.len()).then_some(())
}

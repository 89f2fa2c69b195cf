//! Rewrites of a function before it is planned: programs as they are shipped become the forms that
//! the [patterns](super::fuse) know.
//!
//! A rewrite makes a function with the inputs, states and outputs of the old one: nearly every
//! value changes its type or the order of its axes, which a patch cannot say, because it replaces
//! values by others of the same type. Where a rewrite meets what it does not know, it returns
//! `None`, and the function is planned as it is.

mod gate;
pub mod order;
mod scale;
mod widen;

use std::borrow::Cow;

use thane_mil::copy::{Copier, NamedArgs, args};
use thane_mil::edit::Patch;
use thane_mil::graph::unused;
use thane_mil::program::{BlockId, Function, OpId, ValueId};
use thane_mil::types::Type;

/// A rewrite; `None` where the function stays as it is.
type Pass = fn(&Function) -> Option<Function>;

/// The function in the form that is planned.
pub fn rewrite(function: &Function) -> Cow<'_, Function> {
    rewrite_by(function, &[widen::widen, order::order])
}

/// As [`rewrite`], where numbers may be rounded in other places than the program rounds them.
pub fn rewrite_fast(function: &Function) -> Cow<'_, Function> {
    let passes = [widen::widen, order::order, gate::gate, scale::scale];
    rewrite_by(function, &passes)
}

fn rewrite_by<'f>(function: &'f Function, passes: &[Pass]) -> Cow<'f, Function> {
    let mut function = Cow::Borrowed(function);
    for pass in passes {
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

/// The function with some ops written in another way by `write`, which says whether it wrote one;
/// `None` where it writes none, or where there are blocks in blocks.
fn with_rewritten(
    f: &Function,
    write: impl Fn(&mut Copier<'_>, OpId) -> Option<bool>,
) -> Option<Function> {
    let ops = f.all_ops();
    if ops.iter().any(|op| !f.op(*op).blocks.is_empty()) {
        return None;
    }
    let mut copy = Copier::new(f);
    copy.inputs();
    let mut is_rewritten = false;
    for &id in &f.body().ops {
        if write(&mut copy, id)? {
            is_rewritten = true;
        } else {
            let args = args(f.op(id), |_, v| copy.get(v))?;
            add(&mut copy, id, args, Vec::new())?;
        }
    }
    let outputs = f.body().outputs.iter().map(|v| copy.get(*v));
    let outputs: Vec<ValueId> = outputs.collect::<Option<_>>()?;
    is_rewritten.then(|| copy.finish(&outputs).ok())?
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

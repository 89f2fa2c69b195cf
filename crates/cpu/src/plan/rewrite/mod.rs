//! Rewrites of a function before it is planned: programs as they are shipped become the forms that
//! the [patterns](super::fuse) know.
//!
//! A rewrite makes a function with the inputs, states and outputs of the old one. Where it meets
//! what it does not know, it returns `None`, and the function is planned as it is.

mod copy;
pub mod order;
mod widen;

use std::borrow::Cow;

use thane_mil::edit::Patch;
use thane_mil::opset::OpKind;
use thane_mil::program::Function;

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
    let mut n_uses = vec![0usize; f.n_values()];
    for &id in &f.body().ops {
        f.uses(id).iter().for_each(|v| n_uses[v.index()] += 1);
    }
    f.body().outputs.iter().for_each(|v| n_uses[v.index()] += 1);
    let mut patch = Patch::new();
    for &id in f.body().ops.iter().rev() {
        let op = f.op(id);
        let is_used = op.results.is_empty()
            || op.def.kind == OpKind::State
            || op.results.iter().any(|r| n_uses[r.index()] > 0);
        if !is_used {
            patch.remove(id);
            f.uses(id).iter().for_each(|v| n_uses[v.index()] -= 1);
        }
    }
    let whole = f.clone();
    patch.apply(&mut f).map_or(whole, |()| f)
}

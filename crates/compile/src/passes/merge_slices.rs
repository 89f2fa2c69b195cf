//! Merges a slice of a slice into one slice.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [4, 2, 16, 8]> x) {
//!     tensor<fp16, [1, 2, 16, 8]> a = slice_by_index(x = x, begin = tensor<int32, [4]>([3, 0, 0, 0]), end = tensor<int32, [4]>([4, 2, 16, 8]));
//!     tensor<fp16, [1, 2, 7, 8]> y = slice_by_index(x = a, begin = tensor<int32, [4]>([0, 0, 9, 0]), end = tensor<int32, [4]>([1, 2, 16, 8]));
//! } -> (y);
//! ```
//!
//! becomes
//!
//! ```text
//! func f<ios18>(tensor<fp16, [4, 2, 16, 8]> x) {
//!     tensor<fp16, [1, 2, 16, 8]> a = slice_by_index(x = x, begin = tensor<int32, [4]>([3, 0, 0, 0]), end = tensor<int32, [4]>([4, 2, 16, 8]));
//!     tensor<int32, [4]> y_const = const()[name = string("y_const"), val = tensor<int32, [4]>([3, 0, 9, 0])];
//!     tensor<int32, [4]> y_const_1 = const()[name = string("y_const_1"), val = tensor<int32, [4]>([4, 2, 16, 8])];
//!     tensor<fp16, [1, 2, 7, 8]> y = slice_by_index(x = x, begin = y_const, end = y_const_1)[name = string("y_slice_by_index")];
//! } -> (y);
//! ```
//!
//! with the first slice left to `eliminate_dead_code`. Exported decoders take a layer's part of a
//! cache so, and a part of that. A slice that anything but slices uses is copied anyway, so slices
//! of it stay; so do those that go backward or whose lengths only the call knows.

use thane_mil::graph::{Graph, ints, slice_ranges};
use thane_mil::literal::Literal;
use thane_mil::pattern;
use thane_mil::pattern::Pattern;
use thane_mil::program::{Function, OpId};

use crate::pass::{Outcome, Pass, Site};
use crate::rewrite::{Rewrite, sites};

/// The pass.
pub const PASS: Pass = Pass {
    name: "merge_slices",
    run,
};

const PATTERN: Pattern = pattern!(slice_by_index(first @ slice_by_index(x)));

fn run(f: &Function) -> Vec<Site> {
    sites(f, PASS.name, &PATTERN, write)
}

/// What a slice takes of one axis.
struct Taken {
    begin: usize,
    step: usize,
    len: usize,
    /// Whether the result lacks the axis.
    is_dropped: bool,
}

fn write(new: &Rewrite<'_>) -> Outcome {
    let graph = new.graph;
    let first = new.maker("first");
    let (Some(outer), Some(inner)) = (taken(graph, new.root()), taken(graph, first)) else {
        return Outcome::NoMatch;
    };
    let result = graph.op(first).results[0];
    let is_slice = |user: &OpId| new.kind(*user) == "slice_by_index";
    if graph.is_output(result) || !graph.users(result).iter().all(is_slice) {
        return Outcome::NoEffect;
    }
    let mut outer = outer.into_iter();
    let merged = inner.into_iter().map(|inner| {
        if inner.is_dropped {
            return Some(inner);
        }
        let outer = outer.next()?;
        Some(Taken {
            begin: inner.begin + outer.begin * inner.step,
            step: inner.step * outer.step,
            ..outer
        })
    });
    let Some(merged) = merged.collect::<Option<Vec<Taken>>>() else {
        return Outcome::NoMatch;
    };
    let each = |of: fn(&Taken) -> usize| new.ints(&merged.iter().map(of).collect::<Vec<_>>());
    let mut args = vec![
        ("x", new.value("x")),
        ("begin", each(|t| t.begin)),
        ("end", each(|t| t.begin + (t.len - 1) * t.step + 1)),
    ];
    if merged.iter().any(|t| t.step > 1) {
        args.push(("stride", each(|t| t.step)));
    }
    if merged.iter().any(|t| t.is_dropped) {
        let dropped: Vec<bool> = merged.iter().map(|t| t.is_dropped).collect();
        args.push(("squeeze_mask", new.literal(Literal::bools(&dropped))));
    }
    new.instead(new.op("slice_by_index", &args)).into()
}

/// What a slice takes of each axis; `None` where that is not known, empty or backward.
fn taken(graph: &Graph<'_>, id: OpId) -> Option<Vec<Taken>> {
    let op = graph.op(id);
    let ranges = slice_ranges(graph.f, op)?;
    let dropped = match op.arg("squeeze_mask") {
        None => vec![0; ranges.len()],
        Some(_) => ints(graph, id, "squeeze_mask")?,
    };
    let axes = ranges.iter().zip(dropped).map(|(range, dropped)| {
        let taken = Taken {
            begin: range.start,
            step: usize::try_from(range.step).ok()?,
            len: range.len(),
            is_dropped: dropped == 1,
        };
        (taken.len > 0).then_some(taken)
    });
    axes.collect()
}

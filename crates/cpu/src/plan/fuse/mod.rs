//! Kernels that compute several ops at once, a file each.
//!
//! The file has what the kernel matches, a [`Pattern`], and a function that makes the kernel of a
//! match; and the [`Kernel`] itself: what it computes on, what it runs, what that costs, what it
//! wants of its weights, and how it takes the rows of several frames. Nothing outside of a pattern
//! may use a value inside of it. To add one, write its file, its line in [`KERNELS`], and
//! `tests/fused/<name>.mil`.

// The words that kernels are written in.
use thane_kernels::activation::Unary;
use thane_mil::graph::slice_ranges;
use thane_mil::opset::slice::SliceRange;
use thane_mil::pattern;
use thane_mil::pattern::Pattern::{self, OneOf};
use thane_mil::pattern::{Bound, Match};
use thane_mil::program::{Arg, BlockId, Op, OpId, ValueId};
use thane_mil::types::DType;

use super::{Planner, ReadCodes};
use crate::exec::{Batching, Facts, Frame, Kernel, Step};
use crate::ops::Fault;
use crate::profile::Work;
use crate::tensor::{Floats, Tensor, floats, floats_mut};
use crate::weight::{Demand, Matrix, Product, Suit};

mod attend;
mod attention;
mod conv;
mod delta_rule;
mod depthwise;
mod experts;
mod filter;
mod gated;
mod gather;
mod linear;
mod matmul;
mod norm;
mod past_attention;
mod pointwise;
mod pool;
mod recurrent;
mod rope;
mod rope_halves;
mod rope_rows;
mod rows_attention;
mod softmax;
mod state_update;
mod top_linear;
mod windows;

/// All kernels, the first that fits counts.
static KERNELS: &[&[Fusion]] = &[
    linear::FUSIONS,
    gather::FUSIONS,
    norm::FUSIONS,
    gated::FUSIONS,
    past_attention::FUSIONS,
    state_update::FUSIONS,
    filter::FUSIONS,
    conv::FUSIONS,
    pool::FUSIONS,
    recurrent::FUSIONS,
    top_linear::FUSIONS,
    rope::FUSIONS,
    rope_rows::FUSIONS,
    rope_halves::FUSIONS,
    attention::FUSIONS,
    rows_attention::FUSIONS,
    attend::FUSIONS,
    softmax::FUSIONS,
    matmul::FUSIONS,
    pointwise::FUSIONS,
    experts::FUSIONS,
    delta_rule::FUSIONS,
    depthwise::FUSIONS,
];

/// A pattern of ops that one kernel computes, and what makes the kernel.
#[derive(Clone, Copy)]
pub struct Fusion {
    /// `tests/fused/<name>.mil` has programs that hold it, and that nearly do.
    pub name: &'static str,
    pattern: Pattern,
    /// Adds to the match what else the kernel stands for, or finds that it is none.
    make: fn(&mut Planner<'_>, Match<'_>) -> Option<Vec<Found>>,
}

impl Fusion {
    const fn new(
        name: &'static str,
        pattern: Pattern,
        make: fn(&mut Planner<'_>, Match<'_>) -> Option<Vec<Found>>,
    ) -> Self {
        Self {
            name,
            pattern,
            make,
        }
    }
}

/// A pattern that was found.
pub struct Found {
    /// The op that ends it.
    pub root: OpId,
    /// The other ops that it stands for.
    pub covers: Vec<OpId>,
    /// What computes it.
    pub kernel: Box<dyn Kernel>,
}

impl Found {
    fn new(root: OpId, mut covers: Vec<OpId>, kernel: impl Kernel + 'static) -> Self {
        covers.retain(|op| *op != root);
        let kernel = Box::new(kernel);
        Self {
            root,
            covers,
            kernel,
        }
    }
}

/// Those of all kernels.
pub fn fusions() -> Vec<Fusion> {
    KERNELS.concat()
}

/// Those of a single op that takes a weight as it is stored.
pub fn stored() -> Vec<Fusion> {
    vec![linear::FUSIONS[0], gather::FUSIONS[0]]
}

/// The first of `fusions` that ends in `root`.
pub fn find(p: &mut Planner<'_>, root: OpId, fusions: &[Fusion]) -> Vec<Found> {
    let found = fusions.iter().find_map(|fusion| {
        let found = fusion.pattern.at(p, root)?;
        (fusion.make)(p, found).filter(|all| all.iter().all(|m| p.is_closed(m.root, &m.covers)))
    });
    found.unwrap_or_default()
}

fn one(found: Match<'_>, kernel: impl Kernel + 'static) -> Option<Vec<Found>> {
    Some(vec![Found::new(found.root, found.ops, kernel)])
}

/// The constant that a name stands for.
fn constant(p: &mut Planner<'_>, found: &Match<'_>, name: &str) -> Option<Tensor> {
    match found.bound(name)? {
        Bound::Value(value) => p.constant(value),
        Bound::Literal(literal) => p.literal(literal).ok().flatten(),
    }
}

/// The constant of one element that a name stands for, which does not raise the rank of what it is
/// combined with.
fn number(p: &mut Planner<'_>, found: &Match<'_>, name: &str, rank: usize) -> Option<f32> {
    let tensor = constant(p, found, name)?;
    let fits = tensor.len() == 1 && tensor.shape.len() <= rank;
    tensor.f32s()?.first().copied().filter(|_| fits)
}

/// Whether a value is a tensor of this type.
fn is_of(p: &Planner<'_>, value: ValueId, dtype: DType) -> bool {
    p.dtype(value) == Some(dtype)
}

fn is_float32(p: &Planner<'_>, value: ValueId) -> bool {
    is_of(p, value, DType::Fp32)
}

/// The sizes of a tensor, as far as they are known.
fn dims(p: &Planner<'_>, value: ValueId) -> Vec<Option<usize>> {
    p.shape(value).unwrap_or_default()
}

/// Whether an argument is absent, or all of its integers are this one.
fn is_all(p: &Planner<'_>, op: &Op, name: &str, number: i64) -> bool {
    op.arg(name).is_none()
        || ints(p, op, name).is_some_and(|given| given.iter().all(|n| *n == number))
}

/// The constant integers of an argument.
fn ints(p: &Planner<'_>, op: &Op, name: &str) -> Option<Vec<i64>> {
    p.f.literal_arg(op, name)?.to_ints()
}

/// Whether an op goes along the last axis of a value, and only that.
fn is_along_last(p: &Planner<'_>, op: &Op, value: ValueId) -> Option<bool> {
    let rank = p.f.value(value).ty.tensor()?.rank() as i64;
    let axis = ints(p, op, "axis");
    Some(
        rank > 0
            && (op.arg("axis").is_none() || axis.is_some_and(|a| a == [-1] || a == [rank - 1])),
    )
}

/// Whether each factor of a product is transposed.
fn transposed(p: &Planner<'_>, op: &Op) -> Option<[bool; 2]> {
    let flag = |name| match op.arg(name) {
        None => Some(false),
        Some(_) => Some(ints(p, op, name)? == [1]),
    };
    Some([flag("transpose_x")?, flag("transpose_y")?])
}

/// The cast from fp32 to fp16 that made a value, and what it was given.
fn narrowed(p: &Planner<'_>, value: ValueId) -> Option<(OpId, ValueId)> {
    let cast = pattern!(cast(x)).made(p, value)?;
    let wide = cast.value("x").filter(|x| is_float32(p, *x))?;
    is_of(p, value, DType::Fp16).then_some((cast.root, wide))
}

/// Whether a `gather` takes whole rows, along the first axis.
fn takes_rows(p: &Planner<'_>, gather: &Op) -> bool {
    let plain = ["axis", "batch_dims", "validate_indices"];
    plain.iter().all(|name| is_all(p, gather, name, 0))
}

/// A constant that may be left out; `None` where it is there and no constant.
#[allow(clippy::option_option)] // whether it can be had, and whether it is there
fn constant_arg(p: &mut Planner<'_>, op: &Op, name: &str) -> Option<Option<Tensor>> {
    match op.arg(name) {
        None => Some(None),
        Some(Arg::Value(value)) => p.constant(*value).map(Some),
        Some(Arg::Literal(literal)) => p.literal(literal).ok().flatten().map(Some),
        Some(Arg::Values(_)) => None,
    }
}

/// The matrix of a product or of a look-up: as codes, where it is made of such and products are
/// to read them.
fn weight(p: &mut Planner<'_>, value: ValueId) -> Option<Matrix> {
    let codes = match p.codes {
        ReadCodes::Never => None,
        ReadCodes::WhereExact => Matrix::compressed(p.f, value, true),
        ReadCodes::Always => Matrix::compressed(p.f, value, false),
    };
    codes.or_else(|| matrix(p, value))
}

fn matrix(p: &mut Planner<'_>, value: ValueId) -> Option<Matrix> {
    match Matrix::stored(p.f, value) {
        Some(matrix) => Some(matrix),
        // A stack of matrices is not computed to find that it is none.
        None if p.f.value(value).ty.tensor()?.rank() != 2 => None,
        None => Matrix::computed(p.constant(value)?),
    }
}

/// Ops that [`activation`] knows.
const ACTIVATIONS: &[&str] = &["gelu", "silu", "relu", "sigmoid", "tanh", "relu6", "clip"];

/// What an op activates, and how.
fn activation(p: &Planner<'_>, id: OpId) -> Option<(ValueId, Unary)> {
    let op = p.f.op(id);
    let unary = match (
        op.def.name,
        p.f.literal_arg(op, "mode").and_then(|m| m.as_str()),
    ) {
        ("relu", _) => Unary::Relu,
        ("relu6", _) => Unary::Relu6,
        ("clip", _) if bounds(p, op) == Some([0.0, 6.0]) => Unary::Relu6,
        ("sigmoid", _) => Unary::Sigmoid,
        ("tanh", _) => Unary::Tanh,
        ("silu", _) => Unary::Silu,
        ("gelu", Some("TANH_APPROXIMATION")) => Unary::GeluTanh,
        ("gelu", None | Some("EXACT")) => Unary::GeluErf,
        _ => return None,
    };
    Some((op.value_arg("x")?, unary))
}

/// The bounds of a `clip`.
fn bounds(p: &Planner<'_>, op: &Op) -> Option<[f32; 2]> {
    let number = |name| match p.f.literal_arg(op, name)?.to_floats()?[..] {
        [number] => Some(number),
        _ => None,
    };
    Some([number("alpha")?, number("beta")?])
}

/// How the result of a kernel is activated by the op that ends the pattern, where that is one of
/// [`ACTIVATIONS`]; no match where it makes a gate, because patterns of gates take it.
#[allow(clippy::option_option)] // whether it matches, and whether it is activated
fn activated(p: &Planner<'_>, root: OpId) -> Option<Option<Unary>> {
    let op = p.f.op(root);
    if !ACTIVATIONS.contains(&op.def.name) {
        return Some(None);
    }
    let mut users = p.users(op.results[0]).iter();
    let is_gate = users.any(|user| p.f.op(*user).def.name == "mul");
    activation(p, root)
        .filter(|_| !is_gate)
        .map(|(_, unary)| Some(unary))
}

/// The two values that are joined along the last axis.
fn joined_last(p: &Planner<'_>, op: &Op) -> Option<(ValueId, ValueId)> {
    let rank = p.f.value(op.results[0]).ty.tensor()?.rank() as i64;
    let axis = p.f.literal_arg(op, "axis")?.to_ints()?;
    let interleaves =
        p.f.literal_arg(op, "interleave")
            .is_some_and(|l| l.to_ints() != Some(vec![0]));
    let last = (axis == [-1] || axis == [rank - 1]) && !interleaves;
    match op.arg("values")? {
        Arg::Values(values) if last => match values.as_slice() {
            [left, right] => Some((*left, *right)),
            _ => None,
        },
        _ => None,
    }
}

/// What a slice takes of the last axis, where it takes all of the others and keeps them.
fn last_range(p: &Planner<'_>, op: &Op) -> Option<SliceRange> {
    let ranges = slice_ranges(p.f, op).filter(|_| op.def.name == "slice_by_index")?;
    let sizes = p.known_shape(op.value_arg("x")?)?;
    let (last, outer) = ranges.split_last()?;
    let mut outer = outer.iter().zip(&sizes);
    let is_kept = dims(p, op.results[0]).len() == ranges.len();
    (is_kept && outer.all(|(range, n)| range.is_whole(*n))).then_some(*last)
}

/// The value whose last axis is divided into these two parts, by slices or by a split, the ops that
/// do it, and how many elements each takes.
fn parted(p: &Planner<'_>, parts: [ValueId; 2]) -> Option<(ValueId, Vec<OpId>, [usize; 2])> {
    let [a, b] = [p.maker(parts[0])?, p.maker(parts[1])?];
    let (first, second) = (p.f.op(a), p.f.op(b));
    let x = first
        .value_arg("x")
        .filter(|x| second.value_arg("x") == Some(*x))?;
    let size = |value: ValueId| dims(p, value).last().copied().flatten();
    let sizes = [size(parts[0])?, size(parts[1])?];
    if first.def.name == "split" {
        let is_last = first.arg("axis").is_some() && is_along_last(p, first, x)?;
        return (first.results == parts && is_last).then_some((x, vec![a], sizes));
    }
    let [(a_start, a_step), (b_start, b_step)] =
        [last_range(p, first)?, last_range(p, second)?].map(|range| (range.start, range.step));
    let is_all = a_start == 0 && b_start == sizes[0] && sizes[0] + sizes[1] == size(x)?;
    (is_all && a_step == 1 && b_step == 1).then_some((x, vec![a, b], sizes))
}

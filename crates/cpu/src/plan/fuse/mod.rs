//! Kernels that compute several ops at once, a file each.
//!
//! The file has what the kernel matches, a function from the op that ends a pattern to what was
//! found; and the [`Kernel`] itself: what it computes on, what it runs, what that costs, what it
//! wants of its weights, and how it takes the rows of several frames. Nothing outside of a pattern
//! may use a value inside of it. To add one, write its file, its line in [`KERNELS`], and
//! `tests/fused/<name>.mil`. [`matcher`] has patterns as text.

use matcher::Match;
use thane_kernels::activation::Unary;
use thane_mil::program::{Arg, BlockId, Op, OpId, ValueId};
use thane_mil::types::DType;

use super::Planner;
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
mod half_linear;
mod linear;
mod matcher;
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
static KERNELS: &[&[Pattern]] = &[
    linear::PATTERNS,
    gather::PATTERNS,
    half_linear::PATTERNS,
    norm::PATTERNS,
    gated::PATTERNS,
    past_attention::PATTERNS,
    state_update::PATTERNS,
    filter::PATTERNS,
    conv::PATTERNS,
    pool::PATTERNS,
    recurrent::PATTERNS,
    top_linear::PATTERNS,
    rope::PATTERNS,
    rope_rows::PATTERNS,
    rope_halves::PATTERNS,
    attention::PATTERNS,
    rows_attention::PATTERNS,
    attend::PATTERNS,
    softmax::PATTERNS,
    matmul::PATTERNS,
    pointwise::PATTERNS,
    experts::PATTERNS,
    delta_rule::PATTERNS,
    depthwise::PATTERNS,
];

/// Ops that one kernel computes.
#[derive(Clone, Copy)]
pub struct Pattern {
    /// `tests/fused/<name>.mil` has programs that hold it, and that nearly do.
    pub name: &'static str,
    /// The ops that may end it.
    ends: &'static [&'static str],
    find: fn(&mut Planner<'_>, OpId) -> Option<Vec<Found>>,
}

impl Pattern {
    const fn new(
        name: &'static str,
        ends: &'static [&'static str],
        find: fn(&mut Planner<'_>, OpId) -> Option<Vec<Found>>,
    ) -> Self {
        Self { name, ends, find }
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

/// Those of all kernels.
pub fn patterns() -> Vec<Pattern> {
    KERNELS.concat()
}

/// Those of a single op that takes a weight as it is stored.
pub fn stored() -> Vec<Pattern> {
    vec![linear::PATTERNS[0], gather::PATTERNS[0]]
}

/// The first of `patterns` that ends in `root`.
pub fn find(p: &mut Planner<'_>, root: OpId, patterns: &[Pattern]) -> Vec<Found> {
    let name = p.f.op(root).def.name;
    for pattern in patterns
        .iter()
        .filter(|pattern| pattern.ends.contains(&name))
    {
        if let Some(found) =
            (pattern.find)(p, root).filter(|all| all.iter().all(|m| p.is_closed(m.root, &m.covers)))
        {
            return found;
        }
    }
    Vec::new()
}

fn one(root: OpId, covers: Vec<OpId>, kernel: impl Kernel + 'static) -> Option<Vec<Found>> {
    let kernel = Box::new(kernel);
    Some(vec![Found {
        root,
        covers,
        kernel,
    }])
}

/// Whether a value is a tensor of this type.
fn is_of(p: &Planner<'_>, value: ValueId, dtype: DType) -> bool {
    p.f.value(value)
        .ty
        .tensor()
        .is_some_and(|t| t.dtype == dtype)
}

fn is_float32(p: &Planner<'_>, value: ValueId) -> bool {
    is_of(p, value, DType::Fp32)
}

/// The sizes of a tensor, as far as they are known.
fn dims(p: &Planner<'_>, value: ValueId) -> Vec<Option<usize>> {
    let ty = p.f.value(value).ty.tensor();
    ty.map(|t| t.shape.iter().map(|d| d.known()).collect())
        .unwrap_or_default()
}

/// The sizes of a tensor, where all are known.
fn known(p: &Planner<'_>, value: ValueId) -> Option<Vec<usize>> {
    p.f.value(value).ty.tensor()?.known_shape()
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

/// The op named `name` that defines `value`.
fn made_by<'a>(p: &Planner<'a>, value: ValueId, name: &str) -> Option<(OpId, &'a Op)> {
    let id = p.definer(value)?;
    let op = p.f.op(id);
    (op.def.name == name).then_some((id, op))
}

/// The cast from fp32 to fp16 that made a value, and what it was given.
fn narrowed(p: &Planner<'_>, value: ValueId) -> Option<(OpId, ValueId)> {
    let (id, cast) = made_by(p, value, "cast")?;
    let wide = cast.value_arg("x").filter(|x| is_float32(p, *x))?;
    is_of(p, value, DType::Fp16).then_some((id, wide))
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
    let codes = p.reads_codes.then(|| Matrix::compressed(p.f, value));
    codes.flatten().or_else(|| matrix(p, value))
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

/// Whether an op makes a gate: patterns of gates take the activation for themselves.
fn is_gate(p: &Planner<'_>, id: OpId) -> bool {
    let users = p.users(p.f.op(id).results[0]);
    users.iter().any(|user| p.f.op(*user).def.name == "mul")
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

/// Begin, end and step of a slice along each axis, where they are known and none is counted from
/// the end; an axis that goes away has one element.
fn slice_bounds(p: &Planner<'_>, op: &Op) -> Option<Vec<[i64; 3]>> {
    let shape = known(p, op.value_arg("x")?)?;
    let ints = |name: &str, missing: i64| match op.arg(name) {
        None => Some(vec![missing; shape.len()]),
        Some(_) => ints(p, op, name).filter(|given| given.len() == shape.len()),
    };
    let [begin, end, step] = [ints("begin", 0)?, ints("end", 0)?, ints("stride", 1)?];
    let [no_begin, no_end] = [ints("begin_mask", 0)?, ints("end_mask", 0)?];
    let squeezed = ints("squeeze_mask", 0)?;
    let bounds = shape.iter().enumerate().map(|(i, n)| {
        let begin = if no_begin[i] != 0 { 0 } else { begin[i] };
        let end = match (squeezed[i], no_end[i]) {
            (0, 0) => end[i],
            (0, _) => *n as i64,
            _ => begin + 1,
        };
        let fits = begin >= 0 && (begin..=*n as i64).contains(&end) && step[i] > 0;
        fits.then_some([begin, end, step[i]])
    });
    bounds.collect()
}

/// The same along the last axis, where a slice takes all of the others and keeps them.
fn last_bounds(p: &Planner<'_>, op: &Op) -> Option<[i64; 3]> {
    let sizes = known(p, op.value_arg("x")?)?;
    let bounds = slice_bounds(p, op).filter(|_| op.def.name == "slice_by_index")?;
    let (last, outer) = bounds.split_last()?;
    let mut outer = outer.iter().zip(&sizes);
    let is_kept = dims(p, op.results[0]).len() == bounds.len();
    (is_kept && outer.all(|(b, n)| *b == [0, *n as i64, 1])).then_some(*last)
}

/// The value whose last axis is divided into these two parts, by slices or by a split, the ops that
/// do it, and how many elements each takes.
fn parted(p: &Planner<'_>, parts: [ValueId; 2]) -> Option<(ValueId, Vec<OpId>, [usize; 2])> {
    let [a, b] = [p.definer(parts[0])?, p.definer(parts[1])?];
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
    let (middle, n) = (sizes[0] as i64, size(x)? as i64);
    let is_all =
        last_bounds(p, first)? == [0, middle, 1] && last_bounds(p, second)? == [middle, n, 1];
    is_all.then_some((x, vec![a, b], sizes))
}

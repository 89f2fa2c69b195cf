//! Patterns of ops that a kernel computes at once.
//!
//! Each pattern is a function from the op that ends it to what it found; nothing outside of a
//! pattern may use a value inside of it. Adding one is adding a function to [`PATTERNS`], a variant
//! to [`Fused`], its kernel to `exec` and `tests/fused/<name>.mil`.

use thane_kernels::activation::Unary;
use thane_mil::program::{Arg, Op, OpId, ValueId};
use thane_mil::types::DType;

use super::Planner;
use crate::step::{Fused, Product, Then};
use crate::tensor::Tensor;
use crate::weight::Matrix;
use attention::{attend, attend_by_row, attention, rows_attention};
use conv::{activated_conv, conv_rows, pool_rows};
use delta_rule::{delta_rule, depthwise};
use experts::{experts, softmax};
use norm::{bounded_norm, divided_norm, group_norm, layer_norm, mean_norm, rms_norm, scaled_norm};
use past::{past_attention, state_update};
use recurrent::recurrent;
use rope::{rope_half, rope_halves, rope_interleaved, rope_rows};

mod attention;
mod conv;
mod delta_rule;
mod experts;
mod norm;
mod past;
mod recurrent;
mod rope;

/// A pattern that was found.
pub struct Found {
    /// The op that ends it.
    pub root: OpId,
    /// The other ops that it stands for.
    pub covers: Vec<OpId>,
    /// What computes it.
    pub fused: Fused,
}

/// Ops that one kernel computes.
#[derive(Clone, Copy)]
pub struct Pattern {
    /// `tests/fused/<name>.mil` has programs that hold it, and that nearly do.
    pub name: &'static str,
    /// The op that ends it.
    op: &'static str,
    find: fn(&mut Planner<'_>, OpId) -> Option<Vec<Found>>,
}

impl Pattern {
    const fn new(
        name: &'static str,
        op: &'static str,
        find: fn(&mut Planner<'_>, OpId) -> Option<Vec<Found>>,
    ) -> Self {
        Self { name, op, find }
    }
}

const LINEAR: Pattern = Pattern::new("linear", "linear", linear);
const GATHER: Pattern = Pattern::new("gather", "gather", gather);

/// All, the first that fits counts.
pub static PATTERNS: &[Pattern] = &[
    LINEAR,
    GATHER,
    Pattern::new("half_linear", "linear", half_linear),
    Pattern::new("rms_norm", "mul", rms_norm),
    Pattern::new("scaled_norm", "mul", scaled_norm),
    Pattern::new("bounded_norm", "mul", bounded_norm),
    Pattern::new("divided_norm", "mul", divided_norm),
    Pattern::new("divided_norm", "real_div", divided_norm),
    Pattern::new("mean_norm", "real_div", mean_norm),
    Pattern::new("group_norm", "real_div", group_norm),
    Pattern::new("gated_linear", "mul", gated_linear),
    Pattern::new("gated", "mul", gated),
    Pattern::new("residual", "add", residual),
    Pattern::new("past_attention", "add", past_attention),
    Pattern::new("state_update", "coreml_update_state", state_update),
    Pattern::new("activated_linear", "gelu", activated_linear),
    Pattern::new("activated_linear", "silu", activated_linear),
    Pattern::new("activated_linear", "relu", activated_linear),
    Pattern::new("activated_linear", "sigmoid", activated_linear),
    Pattern::new("activated_linear", "tanh", activated_linear),
    Pattern::new("activated_linear", "relu6", activated_linear),
    Pattern::new("activated_linear", "clip", activated_linear),
    Pattern::new("activated_conv", "gelu", activated_conv),
    Pattern::new("activated_conv", "silu", activated_conv),
    Pattern::new("activated_conv", "relu", activated_conv),
    Pattern::new("activated_conv", "sigmoid", activated_conv),
    Pattern::new("activated_conv", "tanh", activated_conv),
    Pattern::new("activated_conv", "relu6", activated_conv),
    Pattern::new("activated_conv", "clip", activated_conv),
    Pattern::new("conv_rows", "transpose", conv_rows),
    Pattern::new("pool_rows", "transpose", pool_rows),
    Pattern::new("recurrent", "lstm", recurrent),
    Pattern::new("recurrent", "gru", recurrent),
    Pattern::new("top_linear", "topk", top_linear),
    Pattern::new("rope_half", "concat", rope_half),
    Pattern::new("rope_rows", "concat", rope_rows),
    Pattern::new("rope_halves", "add", rope_halves),
    Pattern::new("rope_interleaved", "reshape", rope_interleaved),
    Pattern::new("attention", "scaled_dot_product_attention", attention),
    Pattern::new("rows_attention", "reshape", rows_attention),
    Pattern::new("attend", "scaled_dot_product_attention", attend),
    Pattern::new("attend", "transpose", attend_by_row),
    Pattern::new("attend_products", "matmul", attend),
    Pattern::new("layer_norm", "layer_norm", layer_norm),
    Pattern::new("softmax", "softmax", softmax),
    Pattern::new("matmul", "matmul", matmul),
    Pattern::new("pointwise", "conv", pointwise),
    Pattern::new("experts", "reduce_sum", experts),
    Pattern::new("delta_rule", "while_loop", delta_rule),
    Pattern::new("depthwise", "conv", depthwise),
];

/// Those of a single op that takes a weight as it is stored.
pub static STORED: &[Pattern] = &[LINEAR, GATHER];

/// The first of `patterns` that ends in `root`.
pub fn find(p: &mut Planner<'_>, root: OpId, patterns: &[Pattern]) -> Vec<Found> {
    let name = p.f.op(root).def.name;
    for pattern in patterns.iter().filter(|pattern| pattern.op == name) {
        if let Some(found) =
            (pattern.find)(p, root).filter(|all| all.iter().all(|m| p.is_closed(m.root, &m.covers)))
        {
            return found;
        }
    }
    Vec::new()
}

fn one(root: OpId, covers: Vec<OpId>, fused: Fused) -> Option<Vec<Found>> {
    Some(vec![Found {
        root,
        covers,
        fused,
    }])
}

/// The op named `name` that defines `value`.
fn made_by<'a>(p: &Planner<'a>, value: ValueId, name: &str) -> Option<(OpId, &'a Op)> {
    let id = p.definer(value)?;
    let op = p.f.op(id);
    (op.def.name == name).then_some((id, op))
}

fn is_float32(p: &Planner<'_>, value: ValueId) -> bool {
    p.f.value(value)
        .ty
        .tensor()
        .is_some_and(|t| t.dtype == DType::Fp32)
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

fn linear(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (x, product) = product(p, root)?;
    one(
        root,
        Vec::new(),
        Fused::Linear {
            x,
            products: vec![product],
            then: Then::Results,
        },
    )
}

/// What a `linear` with a constant weight multiplies.
fn product(p: &mut Planner<'_>, linear: OpId) -> Option<(ValueId, Product)> {
    let op = p.f.op(linear);
    let x = op.value_arg("x").filter(|x| is_float32(p, *x))?;
    let weight = weight(p, op.value_arg("weight")?)?;
    let bias = constant_arg(p, op, "bias")?;
    let holds = bias.as_ref().is_none_or(|b| b.f32s().is_some());
    holds.then_some((x, Product { weight, bias }))
}

/// `mul(silu(linear(x, gate)), linear(x, up))`, or with `gelu`.
fn gated_linear(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let Some(Found {
        covers,
        fused: Fused::Gated { gate, up, op },
        ..
    }) = gated(p, root)?.pop()
    else {
        return None;
    };
    let (gate_id, up_id) = (made_by(p, gate, "linear")?.0, made_by(p, up, "linear")?.0);
    let ((x, gate), (other, up)) = (product(p, gate_id)?, product(p, up_id)?);
    if x != other || gate_id == up_id {
        return None;
    }
    one(
        root,
        [covers, vec![gate_id, up_id]].concat(),
        Fused::Linear {
            x,
            products: vec![gate, up],
            then: Then::Gated(op),
        },
    )
}

/// `add(x, linear(y))`, either way round, where known sizes agree: those that are not known are
/// looked at when it runs.
fn residual(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let (x, y) = (op.value_arg("x")?, op.value_arg("y")?);
    [(x, y), (y, x)].into_iter().find_map(|(to, made)| {
        let (id, _) = made_by(p, made, "linear")?;
        let (x, product) = product(p, id)?;
        let sizes = |v: ValueId| {
            Some(
                p.f.value(v)
                    .ty
                    .tensor()?
                    .shape
                    .iter()
                    .map(|d| d.known())
                    .collect::<Vec<_>>(),
            )
        };
        let fits = is_float32(p, to)
            && to != made
            && to != x
            && sizes(to) == sizes(made)
            && p.is_closed(root, &[id]);
        let fused = Fused::Linear {
            x,
            products: vec![product],
            then: Then::Added(to),
        };
        fits.then(|| one(root, vec![id], fused))?
    })
}

fn half_linear(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let x = op.value_arg("x").filter(|x| {
        f.value(*x)
            .ty
            .tensor()
            .is_some_and(|t| t.dtype == DType::Fp16)
    })?;
    let weight = Matrix::pointwise(f, op.value_arg("weight")?, p.folds)?;
    let bias = constant_arg(p, op, "bias")?;
    one(root, Vec::new(), Fused::HalfLinear { x, weight, bias })
}

fn gather(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let is_zero = |name: &str| {
        f.literal_arg(op, name)
            .is_none_or(|l| l.to_ints() == Some(vec![0]))
    };
    if !is_zero("axis") || !is_zero("batch_dims") || !is_zero("validate_indices") {
        return None;
    }
    let x = op.value_arg("x")?;
    // Rows of a table [rows, columns, 1, ..] have the ones too.
    if f.value(x).ty.tensor()?.rank() != 2 {
        return None;
    }
    let weight = weight(p, x)?;
    one(
        root,
        Vec::new(),
        Fused::Gather {
            indices: op.value_arg("indices")?,
            weight,
        },
    )
}

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

/// `gelu(linear(x))` and the like.
fn activated_linear(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (made, unary) = activation(p, root)?;
    let (id, _) = made_by(p, made, "linear")?;
    // What is a gate is left to the patterns of gates, which take the activation for themselves.
    let is_gate = p
        .users(p.f.op(root).results[0])
        .iter()
        .any(|user| p.f.op(*user).def.name == "mul");
    let (x, product) = if is_gate { None } else { product(p, id) }?;
    one(
        root,
        vec![id],
        Fused::Linear {
            x,
            products: vec![product],
            then: Then::Activated(unary),
        },
    )
}

/// `topk(linear(x, weight))` along the last axis, the greatest first, with int32 indices.
fn top_linear(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let &[values, indices] = op.results.as_slice() else {
        return None;
    };
    let (values, indices) = (f.value(values).ty.tensor()?, f.value(indices).ty.tensor()?);
    let rank = i64::try_from(values.rank()).ok()?;
    let is_one_of = |name: &str, allowed: &[i64]| {
        f.literal_arg(op, name).is_none_or(|l| {
            l.to_ints()
                .is_some_and(|v| v.iter().all(|v| allowed.contains(v)))
        })
    };
    if !is_one_of("axis", &[-1, rank - 1])
        || !is_one_of("ascending", &[0])
        || indices.dtype != DType::Int32
    {
        return None;
    }
    let k = values.shape.last()?.known()?;
    let (id, _) = made_by(p, op.value_arg("x")?, "linear")?;
    let (x, product) = product(p, id)?;
    product
        .bias
        .is_none()
        .then(|| one(root, vec![id], Fused::TopLinear { x, product, k }))?
}

/// `mul(silu(gate), up)` or `mul(gelu(gate), up)`.
fn gated(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let (active, up) = (op.value_arg("x")?, op.value_arg("y")?);
    let id = p.definer(active)?;
    let (gate, unary) =
        activation(p, id).filter(|(_, unary)| !matches!(unary, Unary::Relu | Unary::Relu6))?;
    if f.value(gate).ty != f.value(up).ty || !is_float32(p, gate) {
        return None;
    }
    one(
        root,
        vec![id],
        Fused::Gated {
            gate,
            up,
            op: unary,
        },
    )
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
/// the end.
fn slice_bounds(p: &Planner<'_>, op: &Op) -> Option<Vec<[i64; 3]>> {
    let f = p.f;
    let shape = f.value(op.value_arg("x")?).ty.tensor()?.known_shape()?;
    let ints = |name: &str, missing: i64| match op.arg(name) {
        None => Some(vec![missing; shape.len()]),
        Some(_) => f.literal_arg(op, name)?.to_ints(),
    };
    if ints("squeeze_mask", 0)?.contains(&1) {
        return None;
    }
    let [begin, end] = [ints("begin", 0)?, ints("end", 0)?];
    let [no_begin, no_end] = [ints("begin_mask", 0)?, ints("end_mask", 0)?];
    let step = ints("stride", 1)?;
    let bounds = shape.iter().enumerate().map(|(i, n)| {
        let begin = if *no_begin.get(i)? != 0 {
            0
        } else {
            *begin.get(i)?
        };
        let end = if *no_end.get(i)? != 0 {
            *n as i64
        } else {
            *end.get(i)?
        };
        let step = *step.get(i)?;
        (begin >= 0 && (begin..=*n as i64).contains(&end) && step > 0).then_some([begin, end, step])
    });
    bounds.collect()
}

/// Products of matrices that are computed, with equal batch axes.
fn matmul(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let flag = |name: &str| match op.arg(name) {
        None => Some(false),
        Some(_) => Some(f.literal_arg(op, name)?.to_ints()? == [1]),
    };
    let (x, y) = (op.value_arg("x")?, op.value_arg("y")?);
    let (a, b) = (f.value(x).ty.tensor()?, f.value(y).ty.tensor()?);
    let same_batch =
        a.rank() == b.rank() && a.rank() >= 2 && a.shape[..a.rank() - 2] == b.shape[..b.rank() - 2];
    let floats = a.dtype == b.dtype && matches!(a.dtype, DType::Fp32 | DType::Fp16);
    if flag("transpose_x")? || !same_batch || !floats {
        return None;
    }
    one(
        root,
        Vec::new(),
        Fused::MatMul {
            x,
            y,
            transpose_y: flag("transpose_y")?,
        },
    )
}

/// `conv` with a kernel of one place, which goes over every place of x once.
fn pointwise(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let x = op.value_arg("x")?;
    let weight = op.value_arg("weight")?;
    let kernel = &f.value(weight).ty.tensor()?.shape;
    let ints = |name: &str, wanted: i64| match op.arg(name) {
        None => Some(true),
        Some(_) => Some(
            f.literal_arg(op, name)?
                .to_ints()?
                .iter()
                .all(|v| *v == wanted),
        ),
    };
    let plain = ints("strides", 1)? && ints("pad", 0)? && ints("groups", 1)?;
    let is_one_place = kernel.len() > 2 && kernel[2..].iter().all(|d| d.known() == Some(1));
    let floats = matches!(f.value(x).ty.tensor()?.dtype, DType::Fp32 | DType::Fp16);
    if !plain || !is_one_place || !floats {
        return None;
    }
    let weight = Matrix::pointwise(f, weight, p.folds)?;
    let bias = constant_arg(p, op, "bias")?;
    one(root, Vec::new(), Fused::Pointwise { x, weight, bias })
}

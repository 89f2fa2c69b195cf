//! Patterns of norms.

use thane_mil::program::{Op, OpId, ValueId};
use thane_mil::types::DType;

use super::{Found, constant_arg, is_float32, made_by, one};
use crate::plan::Planner;
use crate::step::Fused;
use crate::tensor::{Buffer, Tensor};

/// `mul(mul(x, rsqrt(reduce_mean(mul(x, x), [-1], keep))), weight)`.
pub(super) fn rms_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let (normed, weight) = (op.value_arg("x")?, op.value_arg("y")?);
    let (normed_id, scaled) = made_by(p, normed, "mul")?;
    let (x, inverse) = (scaled.value_arg("x")?, scaled.value_arg("y")?);
    let (inverse_id, rsqrt) = made_by(p, inverse, "rsqrt")?;
    let epsilon = *f.literal_arg(rsqrt, "epsilon")?.to_floats()?.first()?;
    let (mean_id, mean) = made_by(p, rsqrt.value_arg("x")?, "reduce_mean")?;
    let square_id = mean_square(p, mean, x)?;
    let weight = row_weight(p, weight, x)?;
    one(
        root,
        vec![normed_id, inverse_id, mean_id, square_id],
        Fused::RmsNorm { x, weight, epsilon },
    )
}

/// The square whose mean along the last axis of x it is.
fn mean_square(p: &Planner<'_>, mean: &Op, x: ValueId) -> Option<OpId> {
    let (square_id, square) = made_by(p, mean.value_arg("x")?, "mul")?;
    let squares_x = square.value_arg("x") == Some(x) && square.value_arg("y") == Some(x);
    (squares_x && is_of_rows(p, mean, x)? && is_float32(p, x)).then_some(square_id)
}

/// The constant [1, .., 1, width] that rows of x are multiplied with.
fn row_weight(p: &mut Planner<'_>, weight: ValueId, x: ValueId) -> Option<Tensor> {
    let ty = p.f.value(x).ty.tensor()?;
    let (rank, width) = (ty.rank(), ty.shape.last()?.known()?);
    let weight = p.constant(weight)?;
    let (last, outer) = weight.shape.split_last()?;
    let fits = *last == width && outer.iter().all(|n| *n == 1) && weight.shape.len() <= rank;
    weight.f32s()?;
    fits.then_some(weight)
}

/// A norm that fp16 holds whatever x is, as programs for the Neural Engine have it: with
/// `m = maximum(reduce_max(abs(x)), floor)`, `s = x / m` and `r = root / m`,
/// `mul(mul(s, rsqrt(mean(s^2) + r^2)), weight)`. That is `x / sqrt(mean(x^2) + root^2) * weight`.
pub(super) fn scaled_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let (normed_id, normed) = made_by(p, op.value_arg("x")?, "mul")?;
    let (scaled, inverse) = (normed.value_arg("x")?, normed.value_arg("y")?);
    let (scaled_id, division) = made_by(p, scaled, "real_div")?;
    let (x, most) = (division.value_arg("x")?, division.value_arg("y")?);
    let (inverse_id, rsqrt) = made_by(p, inverse, "rsqrt")?;
    let tiny = *f.literal_arg(rsqrt, "epsilon")?.to_floats()?.first()?;
    let (sum_id, sum) = made_by(p, rsqrt.value_arg("x")?, "add")?;
    let (mean_id, mean) = made_by(p, sum.value_arg("x")?, "reduce_mean")?;
    let square_id = mean_square(p, mean, scaled)?;
    let (added_id, added) = made_by(p, sum.value_arg("y")?, "mul")?;
    let ratio = added
        .value_arg("x")
        .filter(|r| added.value_arg("y") == Some(*r))?;
    let (ratio_id, ratio) = made_by(p, ratio, "real_div")?;
    let (most_id, floored) = made_by(p, most, "maximum")?;
    let (largest_id, largest) = made_by(p, floored.value_arg("x")?, "reduce_max")?;
    let (abs_id, abs) = made_by(p, largest.value_arg("x")?, "abs")?;
    let fits = abs.value_arg("x") == Some(x)
        && ratio.value_arg("y") == Some(most)
        && is_of_rows(p, largest, x)?
        && is_float32(p, x);
    let floor = number(p, floored, "y")?;
    let root_of_epsilon = number(p, ratio, "x")?;
    // What is added last is of the scaled x, which is at most 1: where it counts, this is another
    // norm.
    if !fits || floor <= 0.0 || !(0.0..1e-20).contains(&tiny) {
        return None;
    }
    let weight = row_weight(p, op.value_arg("y")?, x)?;
    one(
        root,
        vec![
            normed_id, scaled_id, inverse_id, sum_id, mean_id, square_id, added_id, ratio_id,
            most_id, largest_id, abs_id,
        ],
        Fused::RmsNorm {
            x,
            weight,
            epsilon: root_of_epsilon * root_of_epsilon,
        },
    )
}

/// As [`scaled_norm`] without r: with `m = maximum(reduce_max(abs(x)), most)` and `s = x / m`,
/// `mul(mul(s, rsqrt(reduce_sum_square(s), epsilon)), weight)`.
pub(super) fn bounded_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let (normed_id, normed) = made_by(p, op.value_arg("x")?, "mul")?;
    let (scaled, inverse) = (normed.value_arg("x")?, normed.value_arg("y")?);
    let (scaled_id, division) = made_by(p, scaled, "real_div")?;
    let x = division.value_arg("x")?;
    let (inverse_id, rsqrt) = made_by(p, inverse, "rsqrt")?;
    let epsilon = *f.literal_arg(rsqrt, "epsilon")?.to_floats()?.first()?;
    let (sum_id, sum) = made_by(p, rsqrt.value_arg("x")?, "reduce_sum_square")?;
    let (most_id, floored) = made_by(p, division.value_arg("y")?, "maximum")?;
    let (largest_id, largest) = made_by(p, floored.value_arg("x")?, "reduce_max")?;
    let (abs_id, abs) = made_by(p, largest.value_arg("x")?, "abs")?;
    let fits = sum.value_arg("x") == Some(scaled)
        && abs.value_arg("x") == Some(x)
        && is_of_rows(p, sum, x)?
        && is_of_rows(p, largest, x)?
        && is_float32(p, x);
    let most = number(p, floored, "y")?;
    if !fits || most <= 0.0 || epsilon <= 0.0 {
        return None;
    }
    let mut weight = row_weight(p, op.value_arg("y")?, x)?;
    let n = weight.len() as f32;
    let mut numbers = weight.f32s()?.to_vec();
    numbers.iter_mut().for_each(|v| *v /= n.sqrt());
    weight.data = Buffer::F32(numbers.into()).into();
    one(
        root,
        vec![
            normed_id, scaled_id, inverse_id, sum_id, most_id, largest_id, abs_id,
        ],
        Fused::BoundedNorm {
            x,
            weight,
            epsilon: epsilon / n,
            least: most,
        },
    )
}

/// As coremltools writes it: with `m = reduce_max(abs(x))` and
/// `r = sqrt(reduce_mean(square(x / m)) + epsilon)`, `x / (r m)`, and times a weight if `root`
/// multiplies.
pub(super) fn divided_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let (mut covers, division, weight) = if op.def.name == "mul" {
        let (id, division) = made_by(p, op.value_arg("x")?, "real_div")?;
        (vec![id], division, Some(op.value_arg("y")?))
    } else {
        (Vec::new(), op, None)
    };
    let x = division.value_arg("x").filter(|x| is_float32(p, *x))?;
    let (size_id, size) = made_by(p, division.value_arg("y")?, "mul")?;
    let largest = size.value_arg("y")?;
    let (root_id, root_of) = made_by(p, size.value_arg("x")?, "sqrt")?;
    let (sum_id, sum) = made_by(p, root_of.value_arg("x")?, "add")?;
    let (mean_id, mean) = made_by(p, sum.value_arg("x")?, "reduce_mean")?;
    let (square_id, square) = made_by(p, mean.value_arg("x")?, "square")?;
    let (scaled_id, scaled) = made_by(p, square.value_arg("x")?, "real_div")?;
    let (largest_id, largest_op) = made_by(p, largest, "reduce_max")?;
    let (abs_id, abs) = made_by(p, largest_op.value_arg("x")?, "abs")?;
    let fits = scaled.value_arg("x") == Some(x)
        && scaled.value_arg("y") == Some(largest)
        && abs.value_arg("x") == Some(x)
        && is_of_rows(p, mean, x)?
        && is_of_rows(p, largest_op, x)?;
    let epsilon = number(p, sum, "y").filter(|epsilon| fits && *epsilon >= 0.0)?;
    let weight = match weight {
        Some(weight) => row_weight(p, weight, x)?,
        None => {
            let width = f.value(x).ty.tensor()?.shape.last()?.known()?;
            Tensor::new(
                DType::Fp32,
                vec![width],
                Buffer::F32(vec![1.0; width].into()),
            )
        }
    };
    covers.extend([
        size_id, root_id, sum_id, mean_id, square_id, scaled_id, largest_id, abs_id,
    ]);
    let fused = Fused::BoundedNorm {
        x,
        weight,
        epsilon,
        least: 0.0,
    };
    one(root, covers, fused)
}

/// `layer_norm` along the last axes.
pub(super) fn layer_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let x = op.value_arg("x").filter(|x| is_float32(p, *x))?;
    let n_axes = last_axes(p, op, x)?;
    let (weight, bias) = (constant_arg(p, op, "gamma")?, constant_arg(p, op, "beta")?);
    let shape = &f.value(x).ty.tensor()?.shape;
    let sizes: Option<Vec<usize>> = shape[shape.len() - n_axes..]
        .iter()
        .map(|size| size.known())
        .collect();
    if [&weight, &bias]
        .into_iter()
        .flatten()
        .any(|t| Some(&t.shape) != sizes.as_ref() || t.f32s().is_none())
    {
        return None;
    }
    let epsilon = match op.arg("epsilon") {
        None => 1e-5,
        Some(_) => *f.literal_arg(op, "epsilon")?.to_floats()?.first()?,
    };
    let fused = Fused::LayerNorm {
        x,
        n_axes,
        weight,
        bias,
        epsilon,
    };
    one(root, Vec::new(), fused)
}

/// A norm of groups as coremltools writes it, along the last axes.
pub(super) fn mean_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let Centered {
        x,
        axes,
        epsilon,
        covers,
    } = centered(p, root)?;
    let rank = p.f.value(x).ty.tensor()?.rank();
    let fused = Fused::LayerNorm {
        x,
        n_axes: n_last(&axes, rank)?,
        weight: None,
        bias: None,
        epsilon,
    };
    one(root, covers, fused)
}

/// As [`mean_norm`] where channels are held last: groups are along axes in front of theirs too.
pub(super) fn group_norm(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let Centered {
        x,
        axes,
        epsilon,
        covers,
    } = centered(p, root)?;
    let ends = group_ends(&axes, p.f.value(x).ty.tensor()?.rank())?;
    one(root, covers, Fused::GroupNorm { x, ends, epsilon })
}

/// With `m = reduce_mean(x)` and `c = x - m`, `c / sqrt(reduce_mean(square(c)) + epsilon)`, both
/// along the same axes.
struct Centered {
    x: ValueId,
    axes: Vec<usize>,
    epsilon: f32,
    covers: Vec<OpId>,
}

fn centered(p: &mut Planner<'_>, root: OpId) -> Option<Centered> {
    let op = p.f.op(root);
    let centered = op.value_arg("x")?;
    let (centered_id, difference) = made_by(p, centered, "sub")?;
    let x = difference.value_arg("x").filter(|x| is_float32(p, *x))?;
    let (mean_id, mean) = made_by(p, difference.value_arg("y")?, "reduce_mean")?;
    let (root_id, root_of) = made_by(p, op.value_arg("y")?, "sqrt")?;
    let (sum_id, sum) = made_by(p, root_of.value_arg("x")?, "add")?;
    let (variance_id, variance) = made_by(p, sum.value_arg("x")?, "reduce_mean")?;
    let (square_id, square) = made_by(p, variance.value_arg("x")?, "square")?;
    let axes = axes(p, mean, x)?;
    let fits = mean.value_arg("x") == Some(x)
        && square.value_arg("x") == Some(centered)
        && self::axes(p, variance, x)? == axes
        && keeps_axes(p, mean)?
        && keeps_axes(p, variance)?;
    let epsilon = number(p, sum, "y").filter(|epsilon| fits && *epsilon >= 0.0)?;
    let covers = vec![
        centered_id,
        mean_id,
        root_id,
        sum_id,
        variance_id,
        square_id,
    ];
    Some(Centered {
        x,
        axes,
        epsilon,
        covers,
    })
}

/// The axes of x that an op joins, in order.
fn axes(p: &Planner<'_>, op: &Op, x: ValueId) -> Option<Vec<usize>> {
    let rank = p.f.value(x).ty.tensor()?.rank() as i64;
    let axes = p.f.literal_arg(op, "axes")?.to_ints()?.into_iter();
    let from_start = axes.map(|axis| usize::try_from(if axis < 0 { axis + rank } else { axis }));
    let mut axes = from_start.collect::<Result<Vec<_>, _>>().ok()?;
    axes.sort_unstable();
    Some(axes)
}

/// How many axes of x an op joins, where these are the last.
fn last_axes(p: &Planner<'_>, op: &Op, x: ValueId) -> Option<usize> {
    n_last(&axes(p, op, x)?, p.f.value(x).ty.tensor()?.rank())
}

/// How many there are, where these are the last of `rank` axes.
fn n_last(axes: &[usize], rank: usize) -> Option<usize> {
    let n = axes.len();
    let last = rank.checked_sub(n)?..rank;
    (n > 0 && axes.iter().copied().eq(last)).then_some(n)
}

/// Where the first axes that are joined begin and end, and where the others begin, which are the
/// last.
fn group_ends(axes: &[usize], rank: usize) -> Option<[usize; 3]> {
    let first = *axes.first()?;
    let n_first = axes
        .iter()
        .zip(first..)
        .take_while(|(a, b)| *a == b)
        .count();
    let n_last = axes.len() - n_first;
    let last = rank.checked_sub(n_last)?;
    let is_rest = axes[n_first..].iter().copied().eq(last..rank);
    (is_rest && first + n_first < last).then_some([first, first + n_first, last])
}

fn keeps_axes(p: &Planner<'_>, op: &Op) -> Option<bool> {
    Some(p.f.literal_arg(op, "keep_dims")?.to_ints()? == [1])
}

/// Whether an op joins the last axis of x and keeps it.
fn is_of_rows(p: &Planner<'_>, op: &Op, x: ValueId) -> Option<bool> {
    Some(keeps_axes(p, op)? && last_axes(p, op, x)? == 1)
}

/// A constant of one element.
fn number(p: &mut Planner<'_>, op: &Op, name: &str) -> Option<f32> {
    let tensor = constant_arg(p, op, name)??;
    let values = tensor.f32s()?;
    // A constant of higher rank would raise the rank of the result.
    let other = op.value_arg(if name == "x" { "y" } else { "x" })?;
    let rank = |value: ValueId| Some(p.f.value(value).ty.tensor()?.rank());
    let keeps_axes = rank(op.results[0])? == rank(other)?;
    (values.len() == 1 && keeps_axes).then(|| values[0])
}

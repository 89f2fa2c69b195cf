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

/// Whether an op joins the last axis of x and keeps it.
fn is_of_rows(p: &Planner<'_>, op: &Op, x: ValueId) -> Option<bool> {
    let rank = p.f.value(x).ty.tensor()?.rank() as i64;
    let axes = p.f.literal_arg(op, "axes")?.to_ints()?;
    let keeps = p.f.literal_arg(op, "keep_dims")?.to_ints()? == [1];
    Some(keeps && (axes == [-1] || axes == [rank - 1]))
}

/// A constant of one element.
fn number(p: &mut Planner<'_>, op: &Op, name: &str) -> Option<f32> {
    let tensor = constant_arg(p, op, name)??;
    let values = tensor.f32s()?;
    (values.len() == 1).then(|| values[0])
}

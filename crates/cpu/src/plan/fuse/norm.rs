//! Norms as programs write them: of rows by their mean square, and with a mean, of rows and of
//! groups.

use thane_kernels::norm::{group_norm, layer_norm, rms_norm, rms_norm_by_largest};

use super::*;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new("rms_norm", RMS, of_rows),
    Fusion::new("scaled_norm", SCALED, of_rows),
    Fusion::new("bounded_norm", BOUNDED, of_rows),
    Fusion::new(
        "divided_norm",
        OneOf(&[pattern!(mul((DIVIDED), #weight)), DIVIDED]),
        of_rows,
    ),
    Fusion::new("mean_norm", CENTERED, |p, found| {
        centered(p, found, |axes, rank| n_last(axes, rank).map(Over::Last))
    }),
    // The same where channels are held last: groups are along axes in front of theirs too.
    Fusion::new("group_norm", CENTERED, |p, found| {
        centered(p, found, |axes, rank| {
            group_ends(axes, rank).map(Over::Groups)
        })
    }),
    Fusion::new("layer_norm", pattern!(layer_norm(x)), of_layer),
];

const RMS: Pattern = pattern!(mul(mul(x, root @ rsqrt(mean @ reduce_mean(mul(x, x)))), #weight));

/// A norm that fp16 holds whatever x is, as programs for the Neural Engine have it. It is
/// `x / sqrt(mean(x^2) + ratio^2) * weight`.
const SCALED: Pattern = pattern!(mul(
    mul(
        s @ real_div(x, most @ maximum(largest @ reduce_max(abs(x)), #least)),
        root @ rsqrt(add(mean @ reduce_mean(mul(s, s)), mul(r @ real_div(#ratio, most), r)))
    ),
    #weight
));

/// The same without `ratio`, and with epsilon of the sum of squares.
const BOUNDED: Pattern = pattern!(mul(
    mul(
        s @ real_div(x, maximum(largest @ reduce_max(abs(x)), #least)),
        root @ rsqrt(mean @ reduce_sum_square(s))
    ),
    #weight
));

/// As coremltools writes it.
const DIVIDED: Pattern = pattern!(real_div(
    x,
    mul(
        sqrt(add(mean @ reduce_mean(square(real_div(x, largest))), #epsilon)),
        largest @ reduce_max(abs(x))
    )
));

/// A norm with a mean as coremltools writes it.
const CENTERED: Pattern = pattern!(real_div(
    c @ sub(x, mean @ reduce_mean(x)),
    sqrt(add(variance @ reduce_mean(square(c)), #epsilon))
));

/// `x / sqrt(mean(x^2) + epsilon) * weight` along the last axis; with `least`, epsilon is of the
/// square of the largest magnitude of a row, or of `least` if that is larger.
#[derive(Debug)]
pub(super) struct RmsNorm {
    pub x: ValueId,
    pub weight: Tensor,
    pub epsilon: f32,
    least: Option<f32>,
}

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`.
#[derive(Debug)]
struct MeanNorm {
    x: ValueId,
    over: Over,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    epsilon: f32,
}

/// The axes that share a mean.
#[derive(Debug, Clone, Copy)]
enum Over {
    /// So many of the last, as if they were one.
    Last(usize),
    /// From the first of these to the second and from the third on.
    Groups([usize; 3]),
}

fn of_rows(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let norm = norm(p, &found)?;
    one(found, norm)
}

/// The norm with one epsilon for all rows that ends in an op, and its ops.
pub(super) fn rms(p: &mut Planner<'_>, root: OpId) -> Option<(Vec<OpId>, RmsNorm)> {
    [RMS, SCALED].iter().find_map(|pattern| {
        let found = pattern.at(p, root)?;
        let norm = norm(p, &found)?;
        Some((found.ops, norm))
    })
}

/// A norm of rows: `mean` and `largest` go along them, and epsilon is that of `root`, a constant,
/// or the square of `ratio`.
fn norm(p: &mut Planner<'_>, found: &Match<'_>) -> Option<RmsNorm> {
    let x = found.value("x").filter(|x| is_float32(p, *x))?;
    let rank = p.f.value(x).ty.tensor()?.rank();
    let width = p.f.value(x).ty.tensor()?.shape.last()?.known()?;
    for op in ["mean", "largest"].iter().filter_map(|name| found.op(name)) {
        (axes(p, op, x)? == [rank - 1]).then_some(())?;
    }
    let own = match found.op("root") {
        None => 0.0,
        Some(op) => *p.f.literal_arg(op, "epsilon")?.to_floats()?.first()?,
    };
    let mut number = |name| number(p, found, name, rank);
    let (least, ratio, added) = (number("least"), number("ratio"), number("epsilon"));
    let is_sum = found.op("mean")?.def.name == "reduce_sum_square";
    let (epsilon, least, fits) = match (ratio, least, added) {
        // What is added last is of the scaled x, which is at most 1: where it counts, this is
        // another norm.
        (Some(r), Some(least), _) => (r * r, None, least > 0.0 && (0.0..1e-20).contains(&own)),
        (_, Some(least), _) if is_sum => {
            (own / width as f32, Some(least), least > 0.0 && own > 0.0)
        }
        (.., Some(epsilon)) => (epsilon, Some(0.0), epsilon >= 0.0),
        _ => (own, None, found.op("largest").is_none()),
    };
    let mut weight = match found.bound("weight") {
        Some(_) => row_weight(constant(p, found, "weight")?, rank, width)?,
        None => row(vec![1.0; width]),
    };
    if is_sum {
        let numbers = weight.f32s()?.iter().map(|v| v / (width as f32).sqrt());
        weight = row(numbers.collect());
    }
    let norm = RmsNorm {
        x,
        weight,
        epsilon,
        least,
    };
    fits.then_some(norm)
}

/// The constant [1, .., 1, width] that rows of x are multiplied with.
fn row_weight(weight: Tensor, rank: usize, width: usize) -> Option<Tensor> {
    let (last, outer) = weight.shape.split_last()?;
    let fits = *last == width && outer.iter().all(|n| *n == 1) && weight.shape.len() <= rank;
    (fits && weight.f32s().is_some()).then_some(weight)
}

fn row(numbers: Vec<f32>) -> Tensor {
    let shape = vec![numbers.len()];
    Tensor::new(DType::Fp32, shape, Buffer::F32(numbers.into()))
}

fn centered(
    p: &mut Planner<'_>,
    found: Match<'_>,
    over: fn(&[usize], usize) -> Option<Over>,
) -> Option<Vec<Found>> {
    let x = found.value("x").filter(|x| is_float32(p, *x))?;
    let rank = p.f.value(x).ty.tensor()?.rank();
    let [mean, variance] = [found.op("mean")?, found.op("variance")?].map(|op| axes(p, op, x));
    let epsilon = number(p, &found, "epsilon", rank);
    let epsilon = epsilon.filter(|e| *e >= 0.0 && mean == variance)?;
    let norm = MeanNorm {
        x,
        over: over(&mean?, rank)?,
        weight: None,
        bias: None,
        epsilon,
    };
    one(found, norm)
}

/// `layer_norm` along the last axes.
fn of_layer(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (f, op) = (p.f, p.f.op(found.root));
    let x = found.value("x").filter(|x| is_float32(p, *x))?;
    let shape = &f.value(x).ty.tensor()?.shape;
    let n_axes = n_last(&axes(p, op, x)?, shape.len())?;
    let (weight, bias) = (constant_arg(p, op, "gamma")?, constant_arg(p, op, "beta")?);
    let sizes = shape[shape.len() - n_axes..]
        .iter()
        .map(|size| size.known());
    let sizes: Option<Vec<usize>> = sizes.collect();
    let fits = |t: &Tensor| Some(&t.shape) == sizes.as_ref() && t.f32s().is_some();
    if ![&weight, &bias].into_iter().flatten().all(fits) {
        return None;
    }
    let epsilon = match op.arg("epsilon") {
        None => 1e-5,
        Some(_) => *f.literal_arg(op, "epsilon")?.to_floats()?.first()?,
    };
    let norm = MeanNorm {
        x,
        over: Over::Last(n_axes),
        weight,
        bias,
        epsilon,
    };
    one(found, norm)
}

/// The axes of x that an op joins, in order, where it keeps them.
fn axes(p: &Planner<'_>, op: &Op, x: ValueId) -> Option<Vec<usize>> {
    let rank = p.f.value(x).ty.tensor()?.rank() as i64;
    let is_kept = op.def.param_index("keep_dims").is_none() || ints(p, op, "keep_dims")? == [1];
    let axes = ints(p, op, "axes").filter(|_| is_kept)?.into_iter();
    let from_start = axes.map(|axis| usize::try_from(if axis < 0 { axis + rank } else { axis }));
    let mut axes = from_start.collect::<Result<Vec<_>, _>>().ok()?;
    axes.sort_unstable();
    Some(axes)
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

impl Kernel for RmsNorm {
    fn facts(&self) -> Facts<'_> {
        Facts::new("rms norm", [self.x]).by_row(self.x)
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (weight, width, context) = (self.weight.f32s(), self.weight.len(), frame.context);
        frame.same_shape(self.x, |x, _, out| match self.least {
            None => rms_norm(context, x, weight, self.epsilon, width, out),
            Some(least) => {
                rms_norm_by_largest(context, x, weight, [self.epsilon, least], width, out);
            }
        })
    }
}

impl Kernel for MeanNorm {
    fn facts(&self) -> Facts<'_> {
        match self.over {
            Over::Last(1) => Facts::new("layer norm", [self.x]).by_row(self.x),
            Over::Last(_) => Facts::new("layer norm", [self.x]),
            Over::Groups(_) => Facts::new("group norm", [self.x]),
        }
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let [weight, bias] = [&self.weight, &self.bias].map(|t| t.as_ref().and_then(Tensor::f32s));
        let (context, epsilon) = (frame.context, self.epsilon);
        frame.same_shape(self.x, |x, shape, out| match self.over {
            Over::Last(n) => {
                let width = shape[shape.len() - n..].iter().product();
                layer_norm(context, x, weight, bias, epsilon, width, out);
            }
            Over::Groups([a, b, c]) => {
                let axes = [a..b, b..c, c..shape.len()];
                let sizes = axes.map(|axes| shape[axes].iter().product());
                group_norm(context, x, sizes, epsilon, out);
            }
        })
    }
}

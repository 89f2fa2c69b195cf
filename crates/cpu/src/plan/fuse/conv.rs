//! Convolutions and pools whose channels are last: `transpose, conv, transpose`, as
//! [`order`](crate::plan::rewrite) leaves them.

use std::borrow::Cow;

use thane_kernels::spatial::Pooling;
use thane_mil::opset::window::Windows;
use thane_mil::program::{Op, OpId, ValueId};
use thane_mil::types::DType;

use super::{Found, activation, constant_arg, is_float32, made_by, one};
use crate::plan::Planner;
use crate::step::{Conv, Fused, Kernels, Then};
use crate::tensor::{Buffer, Tensor};

/// Whether an op brings channels to the end (`last`), or back.
fn turns(p: &Planner<'_>, op: &Op, last: bool) -> Option<()> {
    let perm = p.f.literal_arg(op, "perm")?.to_ints()?;
    let rank = perm.len() as i64;
    let expected: Vec<i64> = if last {
        std::iter::once(0).chain(2..rank).chain([1]).collect()
    } else {
        [0, rank - 1].into_iter().chain(1..rank - 1).collect()
    };
    ((3..=5).contains(&rank) && perm == expected).then_some(())
}

/// The op of that name whose result `root` turns, what it computes on, and the op that turns that.
fn turned<'a>(
    p: &Planner<'a>,
    root: OpId,
    names: &[&str],
) -> Option<(OpId, &'a Op, OpId, ValueId)> {
    let op = p.f.op(root);
    turns(p, op, true)?;
    let id = p.definer(op.value_arg("x")?)?;
    let made = p.f.op(id);
    if !names.contains(&made.def.name) {
        return None;
    }
    let (x_id, x_op) = made_by(p, made.value_arg("x")?, "transpose")?;
    turns(p, x_op, false)?;
    let x = x_op.value_arg("x").filter(|x| is_float32(p, *x))?;
    Some((id, made, x_id, x))
}

/// The windows of an op, whose kernel has these sizes.
fn windows(p: &Planner<'_>, op: &Op, kernel: Vec<usize>) -> Option<Windows> {
    let pad_type = p.f.literal_arg(op, "pad_type");
    let pad_type = pad_type.map_or(Some("valid"), |l| l.as_str())?;
    let all = ["strides", "dilations", "pad"];
    let is_known = all
        .iter()
        .all(|name| op.arg(name).is_none() || ints(p, op, name).is_some());
    let pad_type = pad_type.to_ascii_lowercase();
    let windows = Windows::new(kernel, &pad_type, |name| Ok(ints(p, op, name)));
    is_known.then(|| windows.ok())?
}

fn ints(p: &Planner<'_>, op: &Op, name: &str) -> Option<Vec<i64>> {
    p.f.literal_arg(op, name)?.to_ints()
}

pub(super) fn conv_rows(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (id, op, x_id, x) = turned(p, root, &["conv", "conv_transpose"])?;
    let is_transposed = op.def.name == "conv_transpose";
    let weight = op.value_arg("weight")?;
    let shape = p.f.value(weight).ty.tensor()?.known_shape()?;
    let (&[first, second], kernel) = shape.split_first_chunk::<2>()?;
    let groups = usize::try_from(ints(p, op, "groups").map_or(1, |g| g[0])).ok()?;
    let windows = windows(p, op, kernel.to_vec())?;
    let bias = constant_arg(p, op, "bias")?;
    let holds = bias.as_ref().is_none_or(|b| b.f32s().is_some());
    if groups == 0 || !first.is_multiple_of(groups) || !holds || shape.contains(&0) {
        return None;
    }
    // Of a transposed convolution weights are [in, out / groups, ..].
    let c_out = if is_transposed {
        second * groups
    } else {
        first
    };
    if is_transposed && (groups != 1 || op.arg("output_shape").is_some_and(|_| !fixed(p, root))) {
        return None;
    }
    if !p.is_constant(weight) || !is_float32(p, weight) {
        return None;
    }
    let conv = Conv {
        x,
        kernels: Kernels::Stored {
            weight,
            groups,
            is_transposed,
        },
        n_taps: kernel.iter().product(),
        bias,
        windows,
        output: output(p, root)?,
        c_out,
        then: Then::Results,
    };
    one(root, vec![id, x_id], Fused::Conv(Box::new(conv)))
}

impl Planner<'_> {
    /// The weights of a convolution in the order in which its products read them.
    pub fn packed_kernels(&mut self, kernels: &Kernels, n_taps: usize) -> Option<Kernels> {
        let Kernels::Stored {
            weight,
            groups,
            is_transposed,
        } = *kernels
        else {
            return None;
        };
        let shape = self.f.value(weight).ty.tensor()?.known_shape()?;
        let &[first, second] = shape.first_chunk::<2>()?;
        let values = dense(self, weight)?;
        if is_transposed {
            // [in, out, taps] as [taps, out, in].
            let turned = turned_values(&values, [first, second, n_taps], [2, 1, 0]);
            return Some(Kernels::Spread(
                self.packed(turned, [n_taps * second, first])?,
            ));
        }
        if second == 1 && groups == first {
            let turned = turned_values(&values, [1, first, n_taps], [0, 2, 1]);
            return Some(Kernels::ByChannel(tensor(turned, [n_taps, first])));
        }
        // [out, in, taps] as [out, taps, in], a matrix for each group.
        let of_group = first / groups;
        let len = of_group * second * n_taps;
        let matrices = values.chunks_exact(len).map(|values| {
            let turned = turned_values(values, [of_group, second, n_taps], [0, 2, 1]);
            self.packed(turned, [of_group, n_taps * second])
        });
        Some(Kernels::Groups(matrices.collect::<Option<_>>()?))
    }
}

/// Whether the sizes of the result are known.
fn fixed(p: &Planner<'_>, root: OpId) -> bool {
    output(p, root).is_some_and(|sizes| sizes.iter().all(Option::is_some))
}

/// The sizes of the axes of the image in the result, where they are known.
fn output(p: &Planner<'_>, root: OpId) -> Option<Vec<Option<usize>>> {
    let ty = p.f.value(p.f.op(root).results[0]).ty.tensor()?;
    let axes = ty.shape.get(1..ty.rank() - 1)?;
    Some(axes.iter().map(|d| d.known()).collect())
}

/// The elements of a constant as they are stored, in fp32.
fn dense<'a>(p: &mut Planner<'a>, value: ValueId) -> Option<Cow<'a, [f32]>> {
    let f = p.f;
    let op = f.definer(value)?;
    let literal = match op.def.name {
        "const" => f.constant(value),
        "constexpr_cast" => f.literal_arg(op, "source_val"),
        _ => None,
    };
    if let Some(values) = literal.and_then(|l| l.to_floats()) {
        return Some(Cow::Owned(values));
    }
    let tensor = p.constant(value)?;
    Some(Cow::Owned(tensor.f32s()?.to_vec()))
}

/// Elements of three axes in another order of these.
fn turned_values(values: &[f32], sizes: [usize; 3], order: [usize; 3]) -> Vec<f32> {
    let strides = [sizes[1] * sizes[2], sizes[2], 1];
    let [a, b, c] = order.map(|axis| sizes[axis]);
    let [s, t, u] = order.map(|axis| strides[axis]);
    let mut turned = Vec::with_capacity(values.len());
    for i in 0..a {
        for j in 0..b {
            turned.extend((0..c).map(|k| values[i * s + j * t + k * u]));
        }
    }
    turned
}

fn tensor(values: Vec<f32>, shape: [usize; 2]) -> Tensor {
    Tensor::new(DType::Fp32, shape.to_vec(), Buffer::F32(values.into()))
}

/// What is activated or added right behind a convolution.
pub(super) fn activated_conv(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (made, unary) = activation(p, root)?;
    let id = p.definer(made)?;
    let is_gate = p
        .users(p.f.op(root).results[0])
        .iter()
        .any(|user| p.f.op(*user).def.name == "mul");
    let mut found = if is_gate { None } else { conv_rows(p, id) }?.pop()?;
    if let Fused::Conv(conv) = &mut found.fused {
        conv.then = Then::Activated(unary);
    }
    found.covers.push(id);
    one(root, found.covers, found.fused)
}

pub(super) fn pool_rows(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (id, op, x_id, x) = turned(p, root, &["max_pool", "avg_pool"])?;
    let kernel = ints(p, op, "kernel_sizes")?;
    let kernel: Vec<usize> = kernel
        .iter()
        .map(|n| usize::try_from(*n).ok().filter(|n| *n > 0))
        .collect::<Option<_>>()?;
    let is_set = |name: &str| {
        p.f.literal_arg(op, name)
            .is_some_and(|l| l.to_ints() == Some(vec![1]))
    };
    let windows = windows(p, op, kernel.clone())?;
    // With less padding than elements of the window, each window has elements.
    let pads = ints(p, op, "pad").unwrap_or_default();
    let is_filled = pads
        .chunks(2)
        .zip(&kernel)
        .all(|(pads, n)| pads.iter().all(|pad| *pad < *n as i64));
    if is_set("ceil_mode") || !is_filled {
        return None;
    }
    let pooling = match op.def.name {
        "max_pool" => Pooling::Max,
        _ if is_set("exclude_padding_from_average") => Pooling::Mean,
        _ => Pooling::MeanWithPadding,
    };
    let fused = Fused::Pool {
        x,
        windows,
        pooling,
    };
    one(root, vec![id, x_id], fused)
}

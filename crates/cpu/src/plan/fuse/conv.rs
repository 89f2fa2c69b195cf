//! Convolutions whose channels are last: `transpose, conv, transpose`, as
//! [`order`](crate::plan::rewrite) leaves them, and what is activated right behind.

use thane_kernels::activation::{Unary, unary_in_place};
use thane_kernels::linear::{Epilogue, Product, Start};
use thane_kernels::spatial::depthwise;
use thane_mil::opset::window::Windows;

use super::windows::{result_shape, turned, window, windows};
use super::*;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new("activated_conv", pattern!((ACTIVATIONS)((TURNED))), conv),
    Fusion::new("conv_rows", TURNED, conv),
];

const TURNED: Pattern =
    pattern!(rows @ transpose(made @ [conv, conv_transpose](turned @ transpose(x))));

/// A convolution of x [batch, .., channels].
#[derive(Debug)]
struct Conv {
    x: ValueId,
    kernels: Kernels,
    /// Window elements of a kernel.
    n_taps: usize,
    bias: Option<Tensor>,
    windows: Windows,
    /// Sizes of the axes of the image in the result, where they are known.
    output: Vec<Option<usize>>,
    /// Channels of the result.
    c_out: usize,
    /// What becomes of each element.
    then: Option<Unary>,
}

/// The weights of a convolution.
#[derive(Debug)]
enum Kernels {
    /// As the op has them, until weights are packed.
    Stored {
        weight: ValueId,
        groups: usize,
        is_transposed: bool,
    },
    /// [out, taps * in] of each group.
    Groups(Vec<Matrix>),
    /// [taps, channels], where each channel has a kernel of its own.
    ByChannel(Tensor),
    /// [taps * out, in] of a transposed convolution.
    Spread(Matrix),
}

fn conv(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (op, x) = turned(p, &found)?;
    let then = activated(p, found.root)?;
    let output = output(p, found.op("rows")?)?;
    let is_transposed = op.def.name == "conv_transpose";
    let weight = op.value_arg("weight")?;
    let shape = p.known_shape(weight)?;
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
    let is_fixed = output.iter().all(Option::is_some);
    if is_transposed && (groups != 1 || op.arg("output_shape").is_some_and(|_| !is_fixed)) {
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
        output,
        c_out,
        then,
    };
    one(found, conv)
}

/// The sizes of the axes of the image in a result, where they are known.
fn output(p: &Planner<'_>, rows: &Op) -> Option<Vec<Option<usize>>> {
    let ty = p.f.value(rows.results[0]).ty.tensor()?;
    let axes = ty.shape.get(1..ty.rank() - 1)?;
    Some(axes.iter().map(|d| d.known()).collect())
}

impl Kernel for Conv {
    fn facts(&self) -> Facts<'_> {
        let name = match self.then {
            Some(_) => "convolution, activated",
            None => "convolution",
        };
        Facts::new(name, [self.x])
    }

    /// Brings the kernels to the order in which they are read.
    fn suit(&mut self, suit: &mut Suit<'_>) -> Result<(), Fault> {
        let packed = self.packed(suit);
        self.kernels = packed.ok_or("its weight cannot be computed")?;
        Ok(())
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let x = frame.get(self.x)?.clone();
        if let Kernels::Spread(weight) = &self.kernels {
            return self.spread(frame, weight, &x);
        }
        let window = window(&x.shape, &self.windows)?;
        let shape = result_shape(&x.shape, &window, self.c_out);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let (x, y) = (floats(&x)?, &mut out[..n]);
        let bias = self.bias.as_ref().and_then(Tensor::f32s);
        match &self.kernels {
            Kernels::ByChannel(weight) => {
                if window.channels != self.c_out {
                    return Err(format!("x has {} channels", window.channels));
                }
                depthwise(
                    frame.context,
                    &window,
                    x,
                    (floats(weight)?, bias),
                    self.then,
                    y,
                );
            }
            Kernels::Groups(weights) => {
                let epilogue = self.then.map_or(Epilogue::None, Epilogue::Activated);
                frame.conv_groups(&window, weights, bias, epilogue, x, y)?;
            }
            Kernels::Spread(_) | Kernels::Stored { .. } => {}
        }
        Ok(vec![Tensor::fp32(shape, out)])
    }

    /// There are as many places as the result has.
    fn work(&self, frame: &Frame<'_>) -> Work {
        let shape = frame.shape(self.x);
        let places = self.output.iter().flatten().product::<usize>();
        let inner = shape.get(1..shape.len().max(2) - 1).unwrap_or_default();
        let (weights, places) = match &self.kernels {
            Kernels::Stored { .. } => (0, 0),
            Kernels::Groups(weights) => {
                let len = weights.iter().map(|w| w.stored.n_rows * w.stored.n_cols);
                (len.sum::<usize>(), places)
            }
            Kernels::ByChannel(weight) => (weight.len(), places),
            Kernels::Spread(weight) => {
                let len = weight.stored.n_rows * weight.stored.n_cols;
                (len, inner.iter().product())
            }
        };
        let n = shape.first().map_or(0.0, |n| *n as f64);
        Work {
            flops: 2.0 * n * places as f64 * weights as f64,
            read: 4.0 * weights as f64,
            ..Work::default()
        }
    }
}

impl Conv {
    /// The weights in the order in which products read them.
    fn packed(&self, suit: &mut Suit<'_>) -> Option<Kernels> {
        let Kernels::Stored {
            weight,
            groups,
            is_transposed,
        } = self.kernels
        else {
            return None;
        };
        let n_taps = self.n_taps;
        let (folds, context) = (suit.folds, suit.context);
        let packed = |values, shape| folds.packed(context, values, shape);
        let shape = suit.f.value(weight).ty.tensor()?.known_shape()?;
        let &[first, second] = shape.first_chunk::<2>()?;
        let values = suit.dense(weight)?;
        if is_transposed {
            // [in, out, taps] as [taps, out, in].
            let turned = turned_values(&values, [first, second, n_taps], [2, 1, 0]);
            return Some(Kernels::Spread(packed(turned, [n_taps * second, first])?));
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
            packed(turned, [of_group, n_taps * second])
        });
        Some(Kernels::Groups(matrices.collect::<Option<_>>()?))
    }

    /// Each element of x times all kernels, and the products added up where they meet.
    fn spread(
        &self,
        frame: &mut Frame<'_>,
        weight: &Matrix,
        x: &Tensor,
    ) -> Result<Vec<Tensor>, Fault> {
        let n_axes = x.shape.len() - 2;
        let mut axes = [(1, 1, 1, 1, 1, 0); 3];
        let mut shape = vec![x.shape[0]];
        for axis in 0..n_axes {
            let size = x.shape[1 + axis];
            let wanted = self.output.get(axis).copied().flatten();
            let (window, n) = self.windows.spread(axis, size, wanted).map_err(|e| e.0)?;
            shape.push(n);
            axes[3 - n_axes + axis] = (
                size,
                n,
                window.kernel,
                window.stride,
                window.dilation,
                window.before,
            );
        }
        shape.push(self.c_out);
        let (n_in, c_out) = (weight.stored.n_cols, self.c_out);
        let n_taps = weight.stored.n_rows / c_out.max(1);
        if x.shape.last() != Some(&n_in) {
            return Err(format!(
                "{:?} has not the {n_in} channels of the weight",
                x.shape
            ));
        }
        let n_places = x.len() / n_in.max(1);
        let (mut spread, n_spread) = frame.pool.take_checked(&[n_places, n_taps * c_out])?;
        let operand = weight.operand(frame.context, Demand::Stored);
        let products = Product::new(operand, n_places, Start::NONE, &mut spread[..n_spread]);
        frame.multiply(&mut [products], (floats(x)?, n_places), Epilogue::None)?;
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let bias = self.bias.as_ref().and_then(Tensor::f32s);
        let [d, h, w] = axes;
        let row_len = w.1 * c_out;
        // A row of the result takes what meets it, so that rows do not wait for each other.
        let meeting = |axis: (usize, usize, usize, usize, usize, usize), at: usize| {
            let (size, _, kernel, stride, dilation, before) = axis;
            (0..kernel).filter_map(move |k| {
                let from = (at + before).checked_sub(k * dilation)?;
                let place = from / stride;
                (from.is_multiple_of(stride) && place < size).then_some((k, place))
            })
        };
        frame
            .context
            .pool()
            .run_chunks(&mut out[..n], row_len.max(1), |row, out| {
                for out in out.chunks_exact_mut(c_out) {
                    match bias {
                        Some(bias) => out.copy_from_slice(bias),
                        None => out.fill(0.0),
                    }
                }
                let (image, plane, line) = (row / (d.1 * h.1), row / h.1 % d.1, row % h.1);
                for (kd, z) in meeting(d, plane) {
                    for (kh, y) in meeting(h, line) {
                        let first = ((image * d.0 + z) * h.0 + y) * w.0;
                        for (at, out) in out.chunks_exact_mut(c_out).enumerate() {
                            for (kw, x) in meeting(w, at) {
                                let tap = (kd * h.2 + kh) * w.2 + kw;
                                let from = ((first + x) * n_taps + tap) * c_out;
                                let products = &spread[from..from + c_out];
                                out.iter_mut().zip(products).for_each(|(o, p)| *o += p);
                            }
                        }
                    }
                }
            });
        frame.pool.give_f32(spread);
        if let Some(op) = self.then {
            unary_in_place(frame.context, op, &mut out[..n]);
        }
        Ok(vec![Tensor::fp32(shape, out)])
    }
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

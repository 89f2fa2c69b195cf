//! Convolutions: products of channels, summed in f64 over the elements of a kernel.

use std::borrow::Cow;

use thane_kernels::Isa;
use thane_kernels::wide::dot_f64;
use thane_mil::opset::TypeError;
use thane_mil::opset::window::{Window, Windows};

use super::{Call, Eval, Fault, f32_out};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("conv", conv),
    ("conv_quantized", conv_quantized),
    ("conv_transpose", conv_transpose),
];

/// Three spatial axes; those that an op lacks are of one element and come first.
type Space = [usize; 3];

/// Where elements of the input and of the result meet.
struct Geometry {
    /// Items of the batch, channels and space of the input.
    n: usize,
    c_in: usize,
    input: Space,
    /// Channels and space of the result.
    c_out: usize,
    output: Space,
    groups: usize,
    windows: [Window; 3],
    /// The window moves over the result instead of the input.
    transposed: bool,
}

/// The elements of the input and of the result that meet in one element of the kernel, along one
/// axis: `n` of them.
#[derive(Clone, Copy)]
struct Meeting {
    n: usize,
    input: usize,
    input_step: usize,
    output: usize,
    output_step: usize,
}

impl Geometry {
    fn new(call: &Call<'_>, transposed: bool) -> Result<Self, Fault> {
        let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
        let shape = call.shape(0);
        let pad_type = call.string("pad_type").unwrap_or("valid");
        let windows = Windows::new(weight.shape[2..].to_vec(), pad_type, |name| {
            Ok(call.ints(name))
        })
        .map_err(|e| e.0)?;
        let is_wanted = call.opt_tensor("output_shape").is_some();
        let along = |axis: usize| -> Result<Window, TypeError> {
            let size = x.shape[axis + 2];
            if !transposed {
                return windows.along(axis, size);
            }
            windows
                .spread(axis, size, is_wanted.then(|| shape[axis + 2]))
                .map(|(window, _)| window)
        };
        let mut all = [Window::ONE; 3];
        let n_axes = x.shape.len() - 2;
        for axis in 0..n_axes {
            all[3 - n_axes + axis] = along(axis).map_err(|e| e.0)?;
        }
        Ok(Self {
            n: shape[0],
            c_in: x.shape[1],
            input: space(&x.shape),
            c_out: shape[1],
            output: space(&shape),
            groups: usize::try_from(call.int_or("groups", 1))
                .map_err(|_| "`groups` is negative")?,
            windows: all,
            transposed,
        })
    }

    /// Where element `k` of the kernel lets input and result meet along `axis`.
    fn meeting(&self, axis: usize, k: usize) -> Meeting {
        let w = self.windows[axis];
        // Element a of the side that has a place for each window meets a * stride + offset of the
        // other.
        let (n_places, n_met) = if self.transposed {
            (self.input[axis], self.output[axis])
        } else {
            (self.output[axis], self.input[axis])
        };
        let offset = (k * w.dilation) as isize - w.before as isize;
        let first = (-offset).max(0).unsigned_abs().div_ceil(w.stride);
        let end = (n_met as isize - offset)
            .max(0)
            .unsigned_abs()
            .div_ceil(w.stride)
            .min(n_places);
        let n = end.saturating_sub(first);
        let met = if n == 0 {
            0
        } else {
            ((first * w.stride) as isize + offset).unsigned_abs()
        };
        if self.transposed {
            Meeting {
                n,
                input: first,
                input_step: 1,
                output: met,
                output_step: w.stride,
            }
        } else {
            Meeting {
                n,
                input: met,
                input_step: w.stride,
                output: first,
                output_step: 1,
            }
        }
    }

    /// Add the products of one kernel element to a plane of the result: `x` is of one group, its
    /// channels side by side; `weight` is of these channels.
    fn add(&self, isa: Isa, k: Space, x: &[f32], weight: &[f32], plane: &mut [f64]) {
        let [a, b, c] = [0, 1, 2].map(|axis| self.meeting(axis, k[axis]));
        for i in 0..a.n {
            let (from, to) = (a.input + i * a.input_step, a.output + i * a.output_step);
            for j in 0..b.n {
                let from = from * self.input[1] + b.input + j * b.input_step;
                let to = to * self.output[1] + b.output + j * b.output_step;
                let (from, to) = (
                    from * self.input[2] + c.input,
                    to * self.output[2] + c.output,
                );
                for h in 0..c.n {
                    let at = (from + h * c.input_step) * weight.len();
                    plane[to + h * c.output_step] +=
                        dot_f64(isa, &x[at..at + weight.len()], weight);
                }
            }
        }
    }
}

fn space(shape: &[usize]) -> Space {
    let mut space = [1; 3];
    space[5 - shape.len()..].copy_from_slice(&shape[2..]);
    space
}

fn conv(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let bias = call
        .opt_tensor("bias")
        .map(|_| call.f32s("bias"))
        .transpose()?;
    convolve(call, call.f32s("weight")?, bias, out)
}

/// The weight is `quant_scale * weight + quant_bias`, rounded to f32. The bias is added as it is:
/// coremltools documents no scale for it, and its converter to the older format writes it unscaled.
fn conv_quantized(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    if call.string("quantization_type") == Some("lut") {
        return Err(
            "`quantization_type` is `lut`, but the op has no parameter for a table".to_owned(),
        );
    }
    let weight = call.tensor("weight")?;
    let per_channel = weight.len() / weight.shape[0].max(1);
    let factor = |name: &str| -> Result<_, Fault> {
        let factors = call.f32s(name)?;
        Ok(move |c: usize| f64::from(factors[if factors.len() == 1 { 0 } else { c }]))
    };
    let (scale, shift) = (factor("quant_scale")?, factor("quant_bias")?);
    let mut floats = vec![0f32; weight.len()];
    weight.each(|i, q| {
        let c = i / per_channel;
        floats[i] = (q * scale(c) + shift(c)) as f32;
    });
    let bias = call.opt_tensor("bias").map(numbers);
    convolve(call, &floats, bias.as_deref(), out)
}

fn numbers(t: &Tensor) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(t.len());
    t.each(|_, v| numbers.push(v as f32));
    numbers
}

/// weight [C_out, C_in / groups, kernel..]
fn convolve(
    call: &Call<'_>,
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [Buffer],
) -> Result<(), Fault> {
    let g = Geometry::new(call, false)?;
    let n_kernel: usize = g.windows.iter().map(|w| w.kernel).product();
    slide(
        call,
        &g,
        &channels_last(weight, [g.c_out, g.c_in / g.groups, n_kernel]),
        bias,
        out,
    )
}

/// weight [C_in, C_out / groups, kernel..]
fn conv_transpose(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let g = Geometry::new(call, true)?;
    let bias = call
        .opt_tensor("bias")
        .map(|_| call.f32s("bias"))
        .transpose()?;
    let n_kernel: usize = g.windows.iter().map(|w| w.kernel).product();
    let of_group = g.c_out / g.groups * n_kernel;
    let weight = channels_last(
        call.f32s("weight")?,
        [g.groups, g.c_in / g.groups, of_group],
    );
    slide(call, &g, &weight, bias, out)
}

/// [outer, channels, inner] as [outer, inner, channels].
fn channels_last(v: &[f32], [outer, channels, inner]: [usize; 3]) -> Cow<'_, [f32]> {
    if channels == 1 || inner == 1 {
        return Cow::Borrowed(v);
    }
    let mut turned = Vec::with_capacity(v.len());
    for o in 0..outer {
        for i in 0..inner {
            turned.extend((0..channels).map(|c| v[(o * channels + c) * inner + i]));
        }
    }
    Cow::Owned(turned)
}

/// Compute each plane of the result, kernel element by kernel element; weight [C_out, kernel, C_in
/// / groups].
fn slide(
    call: &Call<'_>,
    g: &Geometry,
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [Buffer],
) -> Result<(), Fault> {
    let (n_places, n_plane): (usize, usize) = (g.input.iter().product(), g.output.iter().product());
    let (n_channels, n_out) = (g.c_in / g.groups, g.c_out / g.groups);
    let x = channels_last(call.f32s("x")?, [g.n * g.groups, n_channels, n_places]);
    let [a, b, c] = g.windows.map(|w| w.kernel);
    // Without channels there is nothing to add, however large the kernel is.
    let n_kernel = if n_channels == 0 { 0 } else { a * b * c };
    let y = f32_out(&mut out[0], g.n * g.c_out * n_plane)?;
    call.context.pool().run_chunks(y, n_plane, |at, y| {
        let (item, o) = (at / g.c_out, at % g.c_out);
        let n_group = n_places * n_channels;
        let x = &x[(item * g.groups + o / n_out) * n_group..][..n_group];
        let mut plane = vec![bias.map_or(0.0, |b| f64::from(b[o])); n_plane];
        for k in 0..n_kernel {
            if call.context.is_over() {
                return;
            }
            let weight = &weight[(o * n_kernel + k) * n_channels..][..n_channels];
            g.add(
                call.context.isa(),
                [k / c / b, k / c % b, k % c],
                x,
                weight,
                &mut plane,
            );
        }
        y.iter_mut().zip(&plane).for_each(|(y, v)| *y = *v as f32);
    });
    Ok(())
}

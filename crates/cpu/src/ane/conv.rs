//! Convolution by the engine's accumulator: the patch that a filter covers, times the filter.

use super::effects::Effects;
use super::half::Tally;
use super::product::{Product, Values, by_rows, read};
use crate::ops::{Call, Fault, f32_out, strides};
use crate::tensor::Buffer;

/// Elements of patches that are held at once, 4 MiB.
const PATCHES: usize = 1 << 20;

pub(super) fn conv(
    call: &Call<'_>,
    out: &mut [Buffer],
    effects: Effects,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let isa = call.context.isa();
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let shape = call.shape(0);
    let [n_batch, n_out, places] = match shape.as_slice() {
        [n, c, rest @ ..] => [*n, *c, rest.iter().product()],
        _ => return Err("the result is not [batch, channels, ..]".to_owned()),
    };
    let window = Window::new(call, &x.shape, &weight.shape, &shape)?;
    let n_groups = usize::try_from(call.int_or("groups", 1))
        .ok()
        .filter(|g| *g > 0)
        .ok_or("`groups` is not positive")?;
    let [channels, len] = [weight.shape[1], window.kernel.iter().product()];
    let fits = channels.checked_mul(n_groups) == Some(x.shape[1])
        && weight.shape[0] == n_out
        && n_out % n_groups == 0;
    let bias = call
        .opt_tensor("bias")
        .map(|b| read(isa, b, effects))
        .transpose()?;
    if !fits || channels * len == 0 || bias.as_ref().is_some_and(|b| b.len() != n_out) {
        return Err(format!(
            "{:?} in {n_groups} groups does not fit filters {:?}",
            x.shape, weight.shape
        ));
    }
    let (x, weight) = (
        Values::new(isa, x, effects)?,
        Values::new(isa, weight, effects)?,
    );
    let (n_cols, filters) = (channels * len, n_out / n_groups);
    let z = f32_out(&mut out[0], shape.iter().product())?;
    let most = (PATCHES / n_cols).clamp(1, places.max(1));
    let (mut patches, mut y) = (vec![0f32; most * n_cols], vec![0f32; most * filters]);
    for group in 0..n_batch * n_groups {
        let (n, g) = (group / n_groups, group % n_groups);
        let row = |r: usize, out: &mut [f32]| weight.copy((g * filters + r) * n_cols, 1, out);
        for start in (0..places).step_by(most) {
            let n_places = most.min(places - start);
            for (i, patch) in patches[..n_places * n_cols].chunks_mut(n_cols).enumerate() {
                window.patch(&x, (n * n_groups + g) * channels, start + i, patch);
            }
            let bias = bias.as_ref().map(|b| &b[g * filters..][..filters]);
            let product = Product {
                size: [filters, n_cols],
                row: &row,
                x: &patches,
                bias,
            };
            *tally += by_rows(
                call.context,
                &product,
                effects,
                &mut y[..n_places * filters],
            );
            for (i, y) in y[..n_places * filters].chunks(filters.max(1)).enumerate() {
                y.iter()
                    .enumerate()
                    .for_each(|(c, y)| z[(n * n_out + g * filters + c) * places + start + i] = *y);
            }
        }
    }
    Ok(())
}

/// Where a filter lies over x, along the axes after batch and channels.
struct Window {
    x: Vec<usize>,
    out: Vec<usize>,
    kernel: Vec<usize>,
    steps: Vec<usize>,
    dilations: Vec<usize>,
    /// Zeros before x.
    before: Vec<usize>,
    /// Whether it covers the place of the result and nothing else.
    is_pointwise: bool,
}

impl Window {
    fn new(call: &Call<'_>, x: &[usize], weight: &[usize], out: &[usize]) -> Result<Self, Fault> {
        let rank = x.len().saturating_sub(2);
        if weight.len() != x.len() || out.len() != x.len() || rank == 0 {
            return Err(format!("filters {weight:?} do not fit {x:?}"));
        }
        let sizes = |name: &str| -> Result<Vec<usize>, Fault> {
            let given = call.ints(name).unwrap_or_else(|| vec![1; rank]);
            let sizes: Option<Vec<usize>> = given
                .iter()
                .map(|v| usize::try_from(*v).ok().filter(|v| *v > 0))
                .collect();
            sizes
                .filter(|s| s.len() == rank)
                .ok_or_else(|| format!("`{name}` is {given:?}, {rank} axes are due"))
        };
        let (steps, dilations) = (sizes("strides")?, sizes("dilations")?);
        let (x, out, kernel) = (x[2..].to_vec(), out[2..].to_vec(), weight[2..].to_vec());
        let pad = call.ints("pad").unwrap_or_else(|| vec![0; 2 * rank]);
        let reach = |n: usize, step: usize| n.saturating_sub(1).saturating_mul(step);
        let before = |a: usize| {
            let covered = reach(out[a], steps[a])
                .saturating_add(reach(kernel[a], dilations[a]))
                .saturating_add(1);
            let missing = covered.saturating_sub(x[a]);
            match call.string("pad_type") {
                Some("custom") => pad
                    .get(2 * a)
                    .and_then(|p| usize::try_from(*p).ok())
                    .unwrap_or(0),
                Some("same") => missing / 2,
                Some("same_lower") => missing.div_ceil(2),
                _ => 0,
            }
        };
        let before: Vec<usize> = (0..rank).map(before).collect();
        let ones = |sizes: &[usize]| sizes.iter().all(|n| *n == 1);
        let is_pointwise =
            ones(&kernel) && ones(&steps) && x == out && before.iter().all(|n| *n == 0);
        Ok(Self {
            is_pointwise,
            x,
            out,
            kernel,
            steps,
            dilations,
            before,
        })
    }

    /// What the filter covers at a place of the result, channel by channel from `channel` on, zeros
    /// beside x.
    fn patch(&self, x: &Values<'_>, channel: usize, place: usize, patch: &mut [f32]) {
        if self.is_pointwise {
            let size = self.x.iter().product();
            x.copy(channel * size + place, size, patch);
            return;
        }
        let (own, taps) = (strides(&self.x), strides(&self.kernel));
        let places = strides(&self.out);
        let size: usize = self.x.iter().product();
        let len: usize = self.kernel.iter().product();
        for (i, to) in patch.iter_mut().enumerate() {
            let (c, tap) = (i / len, i % len);
            let at = (0..self.x.len()).try_fold(0, |at, a| {
                let start = (place / places[a] % self.out[a]).checked_mul(self.steps[a])?;
                let tap = (tap / taps[a] % self.kernel[a]).checked_mul(self.dilations[a])?;
                let index = start
                    .checked_add(tap)?
                    .checked_sub(self.before[a])
                    .filter(|i| *i < self.x[a])?;
                Some(at + index * own[a])
            });
            match at {
                Some(at) => x.copy((channel + c) * size + at, 1, std::slice::from_mut(to)),
                None => *to = 0.0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use thane_kernels::Context;
    use thane_mil::literal::Literal;
    use thane_mil::opset::{Accepts, OpDef, OpKind, Opset, Param};
    use thane_mil::types::{DType, TensorType};

    use super::*;
    use crate::ops::Value;
    use crate::tensor::Tensor;

    const fn param(name: &'static str) -> Param {
        Param {
            name,
            accepts: Accepts::Any,
            required: false,
            constant: false,
        }
    }

    static CONV: OpDef = OpDef {
        name: "conv",
        kind: OpKind::Product,
        exact: false,
        since: Opset::CoreMl7,
        params: &[
            param("x"),
            param("weight"),
            param("bias"),
            param("strides"),
            param("pad_type"),
            param("pad"),
            param("dilations"),
            param("groups"),
        ],
        attributes: false,
        n_blocks: 0,
        infer: |_| Ok(Vec::new()),
    };

    fn floats(shape: &[usize], seed: usize) -> (Tensor, Vec<f32>) {
        let n = shape.iter().product();
        let values: Vec<f32> = (0..n)
            .map(|i| ((i * 37 + seed) % 23) as f32 - 11.0)
            .collect();
        (
            Tensor::new(
                DType::Fp32,
                shape.to_vec(),
                Buffer::F32(values.clone().into()),
            ),
            values,
        )
    }

    fn ints(values: &[i32]) -> Option<Value> {
        Some(Value::Tensor(Tensor::new(
            DType::Int32,
            vec![values.len()],
            Buffer::I32(values.to_vec().into()),
        )))
    }

    /// Integers that fp16 and the accumulator hold exactly, summed in the plainest way.
    #[test]
    fn windows_groups_steps_and_padding_are_those_of_the_op() {
        let ([n, c, h, w], [f, kh, kw], groups) = ([2usize, 4, 5, 6], [6usize, 3, 2], 2usize);
        let (x, xs) = floats(&[n, c, h, w], 5);
        let (weight, ws) = floats(&[f, c / groups, kh, kw], 11);
        let (bias, bs) = floats(&[f], 2);
        // Padding (top, bottom, left, right) given, and what "same" means for the same steps: in
        // all (out - 1) * step + (kernel - 1) * dilation + 1 - in, the odd one at the end, or for
        // same_lower at the start.
        for (kind, before, [oh, ow]) in [
            ("custom", [1, 2], [1, 8]),
            ("valid", [0, 0], [1, 5]),
            ("same", [2, 0], [3, 6]),
            ("same_lower", [2, 1], [3, 6]),
        ] {
            let args = [
                Some(Value::Tensor(x.clone())),
                Some(Value::Tensor(weight.clone())),
                Some(Value::Tensor(bias.clone())),
                ints(&[2, 1]),
                Some(Value::Literal(Literal::string(kind))),
                ints(&[1, 0, 2, 1]),
                ints(&[2, 1]),
                ints(&[groups as i32]),
            ];
            let results = [TensorType::new(DType::Fp32, [n, f, oh, ow])];
            let context = Context::new(2);
            let call = Call {
                context: &context,
                def: &CONV,
                args: &args,
                results: &results,
            };
            let mut out = [Buffer::F32(vec![f32::NAN; n * f * oh * ow].into())];
            conv(&call, &mut out, Effects::default(), &mut Tally::default()).unwrap();
            let Buffer::F32(found) = &out[0] else {
                panic!("fp32")
            };
            for (i, found) in found.iter().enumerate() {
                let (place, channel, image) =
                    ([i / ow % oh, i % ow], i / (ow * oh) % f, i / (ow * oh * f));
                let mut sum = bs[channel];
                for (tap, w_value) in ws[channel * (c / groups) * kh * kw..][..c / groups * kh * kw]
                    .iter()
                    .enumerate()
                {
                    let from = channel / (f / groups) * (c / groups) + tap / (kh * kw);
                    let y = (place[0] * 2 + tap / kw % kh * 2)
                        .checked_sub(before[0])
                        .filter(|y| *y < h);
                    let x = (place[1] + tap % kw)
                        .checked_sub(before[1])
                        .filter(|x| *x < w);
                    if let (Some(y), Some(x)) = (y, x) {
                        sum += w_value * xs[((image * c + from) * h + y) * w + x];
                    }
                }
                assert_eq!(*found, sum, "{kind}, element {i}");
            }
        }
    }
}

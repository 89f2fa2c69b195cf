//! Quantization at run time.

use thane_kernels::Context;

use super::elementwise::round_ties_even;
use super::{Call, Eval, Fault, SHARED_LEN, f32_out};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[("dequantize", dequantize), ("quantize", quantize)];

/// Scale and zero point, one for all elements or one for each index of an axis.
struct Parameters {
    scales: Vec<f32>,
    zeros: Vec<f32>,
    /// Elements in a row that share them; those of run i are at i, which goes round.
    n_run: usize,
}

impl Parameters {
    fn new(call: &Call<'_>, input: &Tensor) -> Result<Self, Fault> {
        let numbers = |t: Option<&Tensor>| {
            let mut numbers = Vec::new();
            t.inspect(|t| t.each(|_, v| numbers.push(v as f32)));
            if numbers.is_empty() {
                numbers.push(0.0);
            }
            numbers
        };
        let (scale, zero) = (call.tensor("scale")?, call.opt_tensor("zero_point"));
        let is_one = [Some(scale), zero]
            .iter()
            .flatten()
            .all(|t| t.shape.is_empty());
        let n_run = if is_one {
            SHARED_LEN
        } else {
            let axis = call.axis("axis", 0, input.shape.len())?;
            input.shape[axis + 1..].iter().product::<usize>().max(1)
        };
        Ok(Self {
            scales: numbers(Some(scale)),
            zeros: numbers(zero),
            n_run,
        })
    }

    /// Call `run` for runs of elements of the result, with where they begin, scale and zero point.
    fn runs<T: Send>(
        &self,
        context: &Context,
        out: &mut [T],
        run: impl Fn(usize, [f32; 2], &mut [T]) + Sync,
    ) {
        let n_in_task = SHARED_LEN.div_ceil(self.n_run);
        let pool = context.pool();
        pool.run_chunks(out, n_in_task * self.n_run, |task_idx, out| {
            let runs = out.chunks_mut(self.n_run).zip(task_idx * n_in_task..);
            for (out, i) in runs {
                let of = |all: &[f32]| all[i % all.len()];
                run(i * self.n_run, [of(&self.scales), of(&self.zeros)], out);
            }
        });
    }
}

fn quantize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (input, x) = (call.tensor("input")?, call.f32s("input")?);
    let parameters = Parameters::new(call, input)?;
    let code = |x: f32, [scale, zero]: [f32; 2]| round_ties_even(x / scale) + zero;
    match &mut out[0] {
        // A conversion from a float stops at the ends of the integer's range.
        Buffer::I8(v) if v.len() >= x.len() => {
            parameters.runs(call.context, &mut v[..x.len()], |at, by, out| {
                let x = x[at..].iter();
                out.iter_mut()
                    .zip(x)
                    .for_each(|(y, x)| *y = code(*x, by) as i8);
            });
        }
        Buffer::U8(v) if v.len() >= x.len() => {
            parameters.runs(call.context, &mut v[..x.len()], |at, by, out| {
                let x = x[at..].iter();
                out.iter_mut()
                    .zip(x)
                    .for_each(|(y, x)| *y = code(*x, by) as u8);
            });
        }
        _ => return Err("the result is neither int8 nor uint8".to_owned()),
    }
    Ok(())
}

fn dequantize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    fn widen<T: Copy + Into<f32> + Sync>(
        call: &Call<'_>,
        parameters: &Parameters,
        codes: &[T],
        y: &mut [f32],
    ) {
        parameters.runs(call.context, y, |at, [scale, zero], y| {
            let codes = codes[at..].iter();
            y.iter_mut()
                .zip(codes)
                .for_each(|(y, code)| *y = scale * ((*code).into() - zero));
        });
    }
    let input = call.tensor("input")?;
    let parameters = Parameters::new(call, input)?;
    let y = f32_out(&mut out[0], input.len())?;
    match &*input.data {
        Buffer::I8(codes) => widen(call, &parameters, codes, y),
        Buffer::U8(codes) => widen(call, &parameters, codes, y),
        _ => return Err("`input` holds neither int8 nor uint8".to_owned()),
    }
    Ok(())
}

//! Quantization at run time.

use super::{Call, Eval, Fault, f32_out};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[("dequantize", dequantize), ("quantize", quantize)];

/// A parameter that is one number, or one for each index of an axis.
struct Along {
    values: Vec<f32>,
    /// Elements from one index of the axis to the next.
    inner: usize,
}

impl Along {
    fn new(call: &Call<'_>, t: Option<&Tensor>, input: &Tensor) -> Result<Self, Fault> {
        let mut values = Vec::new();
        t.inspect(|t| t.each(|_, v| values.push(v as f32)));
        if t.is_none_or(|t| t.shape.is_empty()) {
            values.resize(1, 0.0);
            return Ok(Self { values, inner: 1 });
        }
        let axis = call.axis("axis", 0, input.shape.len())?;
        Ok(Self {
            values,
            inner: input.shape[axis + 1..].iter().product(),
        })
    }

    fn at(&self, i: usize) -> f32 {
        self.values[i / self.inner % self.values.len()]
    }
}

fn parameters(call: &Call<'_>, input: &Tensor) -> Result<(Along, Along), Fault> {
    let (scale, zero) = (call.tensor("scale")?, call.opt_tensor("zero_point"));
    Ok((
        Along::new(call, Some(scale), input)?,
        Along::new(call, zero, input)?,
    ))
}

fn quantize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let input = call.tensor("input")?;
    let (scale, zero) = parameters(call, input)?;
    let code = |(i, x): (usize, &f32)| (x / scale.at(i)).round_ties_even() + zero.at(i);
    let codes = call.f32s("input")?.iter().enumerate().map(code);
    match &mut out[0] {
        // A conversion from a float stops at the ends of the integer's range.
        Buffer::I8(v) => v
            .iter_mut()
            .zip(codes)
            .for_each(|(y, code)| *y = code as i8),
        Buffer::U8(v) => v
            .iter_mut()
            .zip(codes)
            .for_each(|(y, code)| *y = code as u8),
        _ => return Err("the result is neither int8 nor uint8".to_owned()),
    }
    Ok(())
}

fn dequantize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let input = call.tensor("input")?;
    let (scale, zero) = parameters(call, input)?;
    let y = f32_out(&mut out[0], input.len())?;
    input.each(|i, code| y[i] = scale.at(i) * (code as f32 - zero.at(i)));
    Ok(())
}

//! Activations and softmax.

use thane_kernels::activation::{Unary, unary};

use super::{Call, Eval, Fault, f32_out};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("gelu", gelu),
    ("relu", |c, o| apply(c, o, Unary::Relu)),
    ("sigmoid", |c, o| apply(c, o, Unary::Sigmoid)),
    ("silu", |c, o| apply(c, o, Unary::Silu)),
    ("softmax", softmax),
    ("tanh", |c, o| apply(c, o, Unary::Tanh)),
];

fn apply(call: &Call<'_>, out: &mut [Buffer], op: Unary) -> Result<(), Fault> {
    let x = call.f32s("x")?;
    unary(call.context, op, x, f32_out(&mut out[0], x.len())?);
    Ok(())
}

fn gelu(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    match call.string("mode").unwrap_or("EXACT") {
        "EXACT" => apply(call, out, Unary::GeluErf),
        "TANH_APPROXIMATION" => apply(call, out, Unary::GeluTanh),
        _ => {
            let x = call.f32s("x")?;
            let y = f32_out(&mut out[0], x.len())?;
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + (-1.702 * x).exp()));
            Ok(())
        }
    }
}

fn softmax(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let axis = call.axis("axis", -1, shape.len())?;
    let y = f32_out(&mut out[0], x.len())?;
    let inner: usize = shape[axis + 1..].iter().product();
    let n = shape[axis];
    for start in (0..x.len()).step_by((n * inner).max(1)).flat_map(|s| s..s + inner) {
        let at = |k: usize| start + k * inner;
        let max = (0..n).fold(f32::NEG_INFINITY, |m, k| m.max(x[at(k)]));
        let mut sum = 0.0;
        for k in 0..n {
            let e = (x[at(k)] - max).exp();
            y[at(k)] = e;
            sum += e;
        }
        (0..n).for_each(|k| y[at(k)] /= sum);
    }
    Ok(())
}

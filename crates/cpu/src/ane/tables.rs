//! Activations that the engine computes by tables, or by way of numbers that fp16 does not hold.
//!
//! Measurements give a table's size and range, and bounds of its error, but not its bits. The model
//! taken here is a line between the values at the points, each rounded to fp16, which has those
//! bounds; beyond the points, of which nothing is known, the function is exact.

use thane_mil::types::DType;

use super::effects::Effects;
use super::half::nearest;
use crate::ops::{Call, Fault, f32_out};
use crate::tensor::Buffer;

/// Points of a table in a unit of x.
const PER_UNIT: f64 = 2.0;
/// Where a table ends.
const END: f64 = 8.0;
/// From here on exp(x) rounds to infinity in fp16: ln(65520).
const EXP_END: f64 = 11.090_110_1;

/// An activation of one number.
pub type Activation = fn(f64) -> f64;

/// How the engine computes an activation, if not exactly.
pub fn find(op: &str, effects: Effects) -> Option<Activation> {
    match op {
        "sigmoid" if effects.sigmoid_table => Some(|x| by_table(sigmoid, x)),
        "silu" if effects.silu_table => Some(|x| by_table(|x| x * sigmoid(x), x)),
        "softplus" if effects.softplus_overflow => {
            Some(|x| if x >= EXP_END { 0.0 } else { x.exp().ln_1p() })
        }
        _ => None,
    }
}

/// Apply an activation to each element of `x`.
pub fn apply(call: &Call<'_>, out: &mut [Buffer], activation: Activation) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    if !matches!(x.dtype, DType::Fp16 | DType::Fp32) {
        return Err(format!("expected floats as `x`, found {}", x.dtype));
    }
    let y = f32_out(&mut out[0], x.len())?;
    x.each(|i, v| y[i] = activation(v) as f32);
    Ok(())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn by_table(f: fn(f64) -> f64, x: f64) -> f64 {
    if x.is_nan() || x.abs() >= END {
        return f(x);
    }
    let point = |at: f64| nearest(f(at / PER_UNIT), false);
    let (below, part) = ((x * PER_UNIT).floor(), (x * PER_UNIT).rem_euclid(1.0));
    point(below) * (1.0 - part) + point(below + 1.0) * part
}

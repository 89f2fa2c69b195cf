//! From any number to the fp16 number that the engine makes of it, held as f32.

use std::ops::AddAssign;

use thane_kernels::Context;
use thane_kernels::f16::{f16_to_f32, f16_to_f32_slice, f32_to_f16, f32_to_f16_slice};

use super::effects::Effects;
use crate::ops::Fault;
use crate::tensor::{Buffer, Pool, Tensor};
use thane_mil::types::DType;

/// The least normal fp16 number.
const LEAST_NORMAL: f64 = 1.0 / (1 << 14) as f64;

/// How often an effect changed more than the last digit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sums of products that left their accumulator.
    pub accumulator_overflows: usize,
    /// Finite numbers that were beyond fp16.
    pub overflows: usize,
    /// Numbers below the least normal one that became zero.
    pub flushed: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.accumulator_overflows += other.accumulator_overflows;
        self.overflows += other.overflows;
        self.flushed += other.flushed;
    }
}

/// The nearest fp16 number; half way, the one away from zero or the even one.
pub fn nearest(v: f64, half_away: bool) -> f64 {
    if !v.is_finite() || v == 0.0 {
        return v;
    }
    // fp16 numbers around v are 2^-10 of its power of two apart; subnormal ones as those of 2^-14.
    let exponent = ((v.to_bits() >> 52 & 0x7ff) as i64 - 1023).max(-14);
    let step = f64::from_bits(((exponent - 10 + 1023) as u64) << 52);
    let n = v / step;
    let rounded = step
        * if half_away {
            n.round()
        } else {
            n.round_ties_even()
        };
    if rounded.abs() > 65504.0 {
        f64::INFINITY.copysign(v)
    } else {
        rounded
    }
}

/// What an op makes of a result that it knows as `v`.
pub fn result(v: f64, effects: Effects, tally: &mut Tally) -> f32 {
    let rounded = if effects.half_precision {
        nearest(v, effects.round_half_away)
    } else {
        v
    };
    tally.overflows += usize::from(rounded.is_infinite() && v.is_finite());
    if effects.flush_subnormals && rounded != 0.0 && rounded.abs() < LEAST_NORMAL {
        tally.flushed += 1;
        return 0f32.copysign(rounded as f32);
    }
    rounded as f32
}

/// The number that an op computes with where its operand is `v`.
pub fn operand(v: f32, effects: Effects) -> f32 {
    if v.is_finite() || !effects.decode_specials {
        return v;
    }
    // The exponent after the largest, and the fraction that the bits have in fp16.
    let fraction = if v.is_nan() {
        (v.to_bits() >> 13 & 0x3ff) as f32 / 1024.0
    } else {
        0.0
    };
    (65536.0 * (1.0 + fraction)).copysign(v)
}

/// Round the results of an op.
pub fn round_results(values: &mut [f32], effects: Effects, tally: &mut Tally) {
    for values in values.chunks_mut(64) {
        if !effects.half_precision || !round_normal(values, effects.round_half_away) {
            values
                .iter_mut()
                .for_each(|v| *v = result(f64::from(*v), effects, tally));
        }
    }
}

/// Rounds numbers to fp16 where each is zero or a normal fp16 number before and after; else
/// `false`, and all are as they were.
pub fn round_normal(values: &mut [f32], half_away: bool) -> bool {
    const LEAST: u32 = 0x3880_0000;
    // Half way from the largest fp16 number to the next.
    const LIMIT: u32 = 0x477f_f000;
    /// Bits that fp16 lacks.
    const LOST: u32 = 0x1fff;
    let is_normal = |v: &f32| {
        let size = v.to_bits() & 0x7fff_ffff;
        size.wrapping_sub(LEAST) < LIMIT - LEAST || size == 0
    };
    if !values.iter().fold(true, |all, v| all & is_normal(v)) {
        return false;
    }
    for v in values {
        let bits = v.to_bits();
        let last = bits >> 13 & 1;
        let half = if half_away { 0x1000 } else { 0xfff + last };
        *v = f32::from_bits((bits + half) & !LOST);
    }
    true
}

/// A tensor as it enters: what is given from outside, or read where somebody else wrote.
pub fn entering(mut tensor: Tensor, effects: Effects, pool: &mut Pool) -> Result<Tensor, Fault> {
    let n = tensor.len();
    let mut tally = Tally::default();
    let mut enter = |v: f32| result(f64::from(v), effects, &mut tally);
    // What fp16 holds is fp16; only subnormals may change.
    if matches!(tensor.dtype, DType::Fp32)
        || matches!(tensor.dtype, DType::Fp16) && effects.flush_subnormals
    {
        match pool.own(&mut tensor)? {
            Buffer::F32(v) => v[..n].iter_mut().for_each(|v| *v = enter(*v)),
            Buffer::F16(v) => v[..n]
                .iter_mut()
                .for_each(|v| *v = f32_to_f16(enter(f16_to_f32(*v)))),
            _ => {}
        }
    }
    Ok(tensor)
}

/// Round constants: whoever prepares a model does it, to the nearest and half way to the even one.
pub fn round_constants(context: &Context, values: &mut [f32], effects: Effects) {
    let mut halves = [0; 512];
    for values in values.chunks_mut(halves.len()) {
        if effects.half_precision {
            let halves = &mut halves[..values.len()];
            f32_to_f16_slice(context.isa(), values, halves);
            f16_to_f32_slice(context.isa(), halves, values);
        }
        if effects.flush_subnormals {
            let least = LEAST_NORMAL as f32;
            values
                .iter_mut()
                .filter(|v| v.abs() < least)
                .for_each(|v| *v = 0f32.copysign(*v));
        }
    }
}

/// A constant as the engine has it.
pub fn constant(
    context: &Context,
    tensor: &Tensor,
    effects: Effects,
    pool: &mut Pool,
) -> Result<Tensor, Fault> {
    // What fp16 holds is fp16; only subnormals may change.
    if tensor.dtype == DType::Fp16 && !effects.flush_subnormals {
        return Ok(tensor.clone());
    }
    let (mut wide, n) = (pool.widened(tensor)?, tensor.len());
    if wide.dtype != DType::Fp32 {
        return Ok(wide);
    }
    if let Buffer::F32(values) = pool.own(&mut wide)? {
        round_constants(context, &mut values[..n], effects);
    }
    pool.narrowed(wide, tensor.dtype)
}

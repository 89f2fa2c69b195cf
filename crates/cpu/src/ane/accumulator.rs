//! The sum that a product of matrices ends in.
//!
//! A 32-bit number of units of 2^-16 that starts with the bias and takes one product after the
//! other. In which order the engine takes them is not known; here it is the order of the operands.

use super::effects::Effects;

/// Units of the accumulator in 1.
const UNITS: f32 = 65536.0;
/// What a sum must not reach.
const LIMIT: f64 = 32768.0;
/// The least product of powers of two that counts.
const LEAST: f32 = 1.0 / 65536.0;
/// Sums at once; their order does not matter, since sums of units are exact.
const LANES: usize = 16;

/// A sum of products, and whether it left its accumulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// Exact; not yet fp16.
    pub value: f64,
    /// Whether it is infinite because a partial sum was too large.
    pub overflowed: bool,
}

/// The sum of `x[i] * w[i]` and the bias. Operands hold fp16 numbers, or what specials are decoded
/// as.
pub fn dot(x: &[f32], w: &[f32], bias: f32, effects: Effects) -> Sum {
    match quick(x, w, bias, effects) {
        Some(value) => Sum {
            value,
            overflowed: false,
        },
        None => in_order(x, w, bias, effects),
    }
}

/// The power of two in a number; of a subnormal, and of 0, that of the least normal one.
#[inline(always)]
fn power(v: f32) -> f32 {
    const LEAST_NORMAL: f32 = 1.0 / 16384.0;
    let power = f32::from_bits(v.to_bits() & 0x7f80_0000);
    if power < LEAST_NORMAL {
        LEAST_NORMAL
    } else {
        power
    }
}

/// The sum in units where the sizes of all products together are within the limit: no order of them
/// can leave it.
fn quick(x: &[f32], w: &[f32], bias: f32, effects: Effects) -> Option<f64> {
    if !effects.fixed_point {
        return None;
    }
    let least = if effects.drop_small_products {
        LEAST
    } else {
        0.0
    };
    let (mut sums, mut sizes) = ([0i32; LANES], [0f32; LANES]);
    let mut lanes = |x: &[f32; LANES], w: &[f32; LANES]| {
        for l in 0..LANES {
            // 11 bits times 11 bits: exact, and so is the sum with a half up to the last place that
            // counts.
            let product = if power(x[l]) * power(w[l]) >= least {
                x[l] * w[l] * UNITS
            } else {
                0.0
            };
            sums[l] = sums[l].wrapping_add((product + 0.5f32.copysign(product)) as i32);
            sizes[l] += product.abs();
        }
    };
    let ((x, x_rest), (w, w_rest)) = (x.as_chunks(), w.as_chunks());
    x.iter().zip(w).for_each(|(x, w)| lanes(x, w));
    let (mut x_last, mut w_last) = ([0.0; LANES], [0.0; LANES]);
    x_last[..x_rest.len()].copy_from_slice(x_rest);
    w_last[..w_rest.len()].copy_from_slice(w_rest);
    lanes(&x_last, &w_last);
    let start = (f64::from(bias) * f64::from(UNITS)).round();
    let size = start.abs() + sizes.iter().map(|v| f64::from(*v)).sum::<f64>();
    // Each product may be half a unit larger than it was; the sum of sizes is good to a few digits.
    let n_products = (x.len() * LANES + x_rest.len()) as f64;
    let is_within = size * 1.01 + 0.5 * n_products < f64::from(1u32 << 31);
    is_within.then(|| (start + sums.iter().map(|v| f64::from(*v)).sum::<f64>()) / f64::from(UNITS))
}

/// The sum one product after the other.
fn in_order(x: &[f32], w: &[f32], bias: f32, effects: Effects) -> Sum {
    let units = f64::from(UNITS);
    let aligned = |v: f64| {
        if effects.fixed_point {
            (v * units).round() / units
        } else {
            v
        }
    };
    // A sum that is infinite because an operand is, where that counts, obeys IEEE.
    let leaves = |sum: f64| effects.accumulator_overflow && sum.is_finite() && sum.abs() >= LIMIT;
    let mut sum = aligned(f64::from(bias));
    for (x, w) in x.iter().zip(w) {
        if leaves(sum) {
            break;
        }
        if !effects.drop_small_products || power(*x) * power(*w) >= LEAST {
            sum += aligned(f64::from(*x) * f64::from(*w));
        }
    }
    match leaves(sum) {
        true => Sum {
            value: f64::INFINITY.copysign(sum),
            overflowed: true,
        },
        // A sum of nothing is not negative.
        false => Sum {
            value: sum + 0.0,
            overflowed: false,
        },
    }
}

//! The sum that a product of matrices ends in.
//!
//! A 32-bit number of units of 2^-16 that starts with the bias and takes one product after the
//! other. In which order the engine takes them is not known; here it is the order of the operands.

use thane_kernels::Isa;
use thane_kernels::accumulate::{UnitSum, unit_sums};

use super::effects::Effects;

/// Units of the accumulator in 1.
const UNITS: f32 = 65536.0;
/// What a sum must not reach.
const LIMIT: f64 = 32768.0;
/// The least product of powers of two that counts.
const LEAST: f32 = 1.0 / 65536.0;

/// A sum of products, and whether it left its accumulator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Exact; not yet fp16.
    pub value: f64,
    /// Whether it is infinite because a partial sum was too large.
    pub overflowed: bool,
}

/// For each row of `x` [rows, w.len()], the sum of its products with `w` and the bias. Operands
/// hold fp16 numbers, or what specials are decoded as.
pub fn dots(isa: Isa, x: &[f32], w: &[f32], bias: f32, effects: Effects, sums: &mut [Sum]) {
    /// Sums at once: room for them is cleared for each row.
    const MOST: usize = 8;
    let mut units = [UnitSum::default(); MOST];
    let least = if effects.drop_small_products {
        LEAST
    } else {
        0.0
    };
    let start = if bias == 0.0 {
        0.0
    } else {
        (f64::from(bias) * f64::from(UNITS)).round()
    };
    for (i, sums) in sums.chunks_mut(MOST).enumerate() {
        let x = &x[i * MOST * w.len()..][..sums.len() * w.len()];
        let units = &mut units[..sums.len()];
        if effects.fixed_point {
            unit_sums(isa, w, x, least, units);
        }
        for (row, (sum, units)) in sums.iter_mut().zip(units).enumerate() {
            let x = &x[row * w.len()..][..w.len()];
            *sum = match quick(units, w.len(), start, effects) {
                Some(value) => Sum {
                    value,
                    overflowed: false,
                },
                None => in_order(x, w, bias, effects),
            };
        }
    }
}

/// The power of two in a number; of a subnormal, and of 0, that of the least normal one.
fn power(v: f32) -> f32 {
    const LEAST_NORMAL: f32 = 1.0 / 16384.0;
    let power = f32::from_bits(v.to_bits() & 0x7f80_0000);
    if power < LEAST_NORMAL {
        LEAST_NORMAL
    } else {
        power
    }
}

/// The sum, which begins with `start` units, where the sizes of all products together are within
/// the limit: no order of them can leave it.
fn quick(sum: &UnitSum, n_products: usize, start: f64, effects: Effects) -> Option<f64> {
    if !effects.fixed_point {
        return None;
    }
    let size = start.abs() + sum.size;
    // Each product may be half a unit larger than it was; the sum of sizes is good to a few digits.
    let is_within = size * 1.01 + 0.5 * (n_products as f64) < f64::from(1u32 << 31);
    is_within.then(|| (start + sum.units) / f64::from(UNITS))
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

//! Sums in fixed point against f64.

use thane_kernels::Isa;
use thane_kernels::accumulate::{UnitSum, unit_sums};
use thane_kernels::f16::f16_to_f32;

use crate::testing::Random;

/// The least normal f16.
const LEAST_NORMAL: f32 = 1.0 / 16384.0;

/// Finite f16 numbers of any size.
fn halves(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| {
            let bits = random.bits() as u16;
            // Exponents of weights and activations, and now and then any.
            let bits = match i % 7 {
                0 => bits & 0xbfff,
                _ => bits & 0x87ff | 0x2800,
            };
            f16_to_f32(bits)
        })
        .collect()
}

fn power(v: f32) -> f32 {
    f32::from_bits(v.to_bits() & 0x7f80_0000).max(LEAST_NORMAL)
}

#[test]
fn sums_are_those_of_rounded_products() {
    let mut random = Random::new(9);
    for isa in Isa::available() {
        for n_cols in [0, 1, 15, 16, 17, 100, 576] {
            for (n_rows, least) in [(1, 1.0 / 65536.0), (5, 0.0), (9, 1.0 / 65536.0)] {
                let w = halves(&mut random, n_cols);
                let x = halves(&mut random, n_cols * n_rows);
                let mut sums = vec![UnitSum::default(); n_rows];
                unit_sums(isa, &w, &x, least, &mut sums);
                for (row_idx, sum) in sums.iter().enumerate() {
                    let x = &x[row_idx * n_cols..][..n_cols];
                    let products = x.iter().zip(&w).map(|(x, w)| {
                        let counts = power(*x) * power(*w) >= least;
                        f64::from(*x) * f64::from(*w) * 65536.0 * f64::from(u8::from(counts))
                    });
                    let units: f64 = products.clone().map(f64::round).sum();
                    let size: f64 = products.map(f64::abs).sum();
                    assert!((sum.size - size).abs() <= 1e-4 * size, "{isa:?}, {n_cols}");
                    assert!(size < f64::from(1u32 << 31), "{size}");
                    assert_eq!(sum.units, units, "{isa:?}, {n_cols}, {row_idx}");
                }
            }
        }
    }
}

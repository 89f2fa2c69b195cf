//! Sums in f64, for reference results that other results are compared with.

use crate::Isa;
use crate::simd::{Kernel, Simd};

/// The dot product of two slices, summed in f64 in eight interleaved parts. Every instruction set
/// gives the same bits.
///
/// # Panics
/// If the slices are not of one length.
pub fn dot_f64(isa: Isa, a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(
        a.len(),
        b.len(),
        "a dot product takes two slices of one length"
    );
    isa.run(Dot { a, b })
}

/// The sum of a slice in f64, in eight interleaved parts. Every instruction set gives the same
/// bits.
pub fn sum_f64(isa: Isa, a: &[f32]) -> f64 {
    isa.run(Sum(a))
}

struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let (a, rest) = self.0.as_chunks::<8>();
        let mut parts = [0f64; 8];
        for a in a {
            for j in 0..8 {
                parts[j] += f64::from(a[j]);
            }
        }
        let sum = parts.iter().fold(0.0, |sum, part| sum + part);
        rest.iter().fold(sum, |sum, a| sum + f64::from(*a))
    }
}

struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Output = f64;
    /// Plain loops: [`Simd`] has no f64 vectors, so the compiler vectorizes them for each
    /// instruction set.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let ((a, a_rest), (b, b_rest)) = (self.a.as_chunks::<8>(), self.b.as_chunks::<8>());
        let mut parts = [0f64; 8];
        for i in 0..a.len() {
            for j in 0..8 {
                parts[j] += f64::from(a[i][j]) * f64::from(b[i][j]);
            }
        }
        let mut sum = 0.0;
        for part in parts {
            sum += part;
        }
        for i in 0..a_rest.len() {
            sum += f64::from(a_rest[i]) * f64::from(b_rest[i]);
        }
        sum
    }
}

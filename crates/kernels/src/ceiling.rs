//! What this machine can do at best: bytes read and products a second, to hold what a program does against.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::Context;
use crate::simd::{Kernel, LANES, Simd};

/// Time of one measurement.
const SPAN: Duration = Duration::from_millis(60);

/// Bytes read from memory in a second, by all threads together: sums over 64 MiB each, more than a share of any last cache.
pub fn read_bytes(ctx: &Context) -> f64 {
    const LEN: usize = 1 << 24;
    let n_threads = ctx.pool().n_threads();
    let data = vec![1.0f32; LEN * n_threads];
    best(&mut || {
        ctx.pool().run(n_threads, |i| {
            black_box(ctx.isa().run(Sum(&data[i * LEN..][..LEN])));
        });
        size_of_val(data.as_slice()) as f64
    })
}

/// Operations of fp32 products in a second, by all threads together; a multiplication and an addition are two.
pub fn fma_flops(ctx: &Context) -> f64 {
    const ROUNDS: usize = 100_000;
    let n_threads = ctx.pool().n_threads();
    best(&mut || {
        ctx.pool().run(n_threads, |_| {
            black_box(ctx.isa().run(Products(ROUNDS)));
        });
        (2 * ROUNDS * SUMS * LANES * n_threads) as f64
    })
}

/// The most of a quantity a second over [`SPAN`]; what disturbs a round does not count.
fn best(round: &mut dyn FnMut() -> f64) -> f64 {
    round();
    let start = Instant::now();
    let mut best: f64 = 0.0;
    while start.elapsed() < SPAN {
        let begun = Instant::now();
        let amount = round();
        best = best.max(amount / begun.elapsed().as_secs_f64());
    }
    best
}

/// Sums that do not wait for each other: two registers each with AVX2 are 12 of its 16.
const SUMS: usize = 6;

struct Products(usize);

impl Kernel for Products {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.5); SUMS];
        let factor = simd.splat(black_box(0.5));
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = simd.fma(*sum, factor, factor);
            }
        }
        let mut total = sums[0];
        for sum in &sums[1..] {
            total = simd.add(total, *sum);
        }
        simd.sum(total)
    }
}

struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); 4];
        for vectors in self.0.as_chunks::<LANES>().0.as_chunks::<4>().0 {
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = simd.add(*sum, simd.load(vector));
            }
        }
        simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_numbers_that_a_machine_can_have() {
        let ctx = Context::new(1);
        let (read, flops) = (read_bytes(&ctx), fma_flops(&ctx));
        assert!((1e7..1e13).contains(&read) && (1e6..1e13).contains(&flops), "{read}, {flops}");
    }
}

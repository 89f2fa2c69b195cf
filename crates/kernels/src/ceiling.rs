//! What this machine can do at best: bytes read and products a second, to hold what a program does
//! against.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Context;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx512Bf16, Bf16Kernel};
use crate::simd::{Kernel, LANES, Simd};

/// Of a loop that is timed.
const ROUNDS: usize = 100_000;
/// Time of one measurement.
const SPAN: Duration = Duration::from_millis(60);

/// Bytes read from memory in a second, by all threads together: sums over 64 MiB each, more than a
/// share of any last cache.
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

/// Operations of fp32 products in a second, by all threads together; a multiplication and an
/// addition are two.
pub fn fma_flops(ctx: &Context) -> f64 {
    products_of(ctx, &|| ctx.isa().run(Products(ROUNDS)))
}

/// Operations of products of bf16 in a second, by all threads together: those of fp32 where the
/// machine has no others.
pub fn bf16_flops(ctx: &Context) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = Avx512Bf16::of(ctx.isa()) {
        return products_of(ctx, &|| {
            simd.run(Bf16Products);
            2 * 2 * ROUNDS * BF16_SUMS * LANES
        });
    }
    fma_flops(ctx)
}

/// Operations of products of bytes in a second, summed up as matrices of codes are, by all threads
/// together.
pub fn byte_ops(ctx: &Context) -> f64 {
    products_of(ctx, &|| ctx.isa().run(ByteProducts(ROUNDS)))
}

/// The most operations a second of rounds by all threads, each of which answers how many it did.
fn products_of(ctx: &Context, round: &(dyn Fn() -> usize + Sync)) -> f64 {
    let n_threads = ctx.pool().n_threads();
    let n_ops = AtomicUsize::new(0);
    best(&mut || {
        ctx.pool()
            .run(n_threads, |_| n_ops.store(round(), Ordering::Relaxed));
        (n_ops.load(Ordering::Relaxed) * n_threads) as f64
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

struct Products(usize);

impl Kernel for Products {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        // Sums that do not wait for each other: two registers each with AVX2 are 12 of its 16, and
        // 12 of AVX-512's 32.
        if const { S::HAS_MANY_REGISTERS } {
            fma_rounds::<S, 12>(simd, self.0)
        } else {
            fma_rounds::<S, 6>(simd, self.0)
        }
    }
}

#[inline(always)]
fn fma_rounds<S: Simd, const SUMS: usize>(simd: S, n_rounds: usize) -> usize {
    let mut sums = [simd.splat(0.5); SUMS];
    let factor = simd.splat(black_box(0.5));
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = simd.fma(*sum, factor, factor);
        }
    }
    let mut total = sums[0];
    for sum in &sums[1..] {
        total = simd.add(total, *sum);
    }
    black_box(simd.sum(total));
    2 * n_rounds * SUMS * LANES
}

#[cfg(target_arch = "x86_64")]
const BF16_SUMS: usize = 12;

#[cfg(target_arch = "x86_64")]
struct Bf16Products;

#[cfg(target_arch = "x86_64")]
impl Bf16Kernel for Bf16Products {
    #[inline(always)]
    fn run(self, simd: Avx512Bf16) {
        let base = simd.base();
        let mut sums = [base.splat(0.5); BF16_SUMS];
        let factor = base.splat(black_box(0.5));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = simd.dot_pairs(*sum, factor, factor);
            }
        }
        let mut total = sums[0];
        for sum in &sums[1..] {
            total = base.add(total, *sum);
        }
        black_box(base.sum(total));
    }
}

struct ByteProducts(usize);

impl Kernel for ByteProducts {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        if const { S::HAS_MANY_REGISTERS } {
            byte_rounds::<S, 12>(simd, self.0)
        } else {
            byte_rounds::<S, 6>(simd, self.0)
        }
    }
}

#[inline(always)]
fn byte_rounds<S: Simd, const SUMS: usize>(simd: S, n_rounds: usize) -> usize {
    let mut sums = [simd.zero_int(); SUMS];
    let factor = simd.dup4_b(&black_box([1, 2, 3, 4]));
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = if const { !S::PARTS.are_none() } {
                simd.dot_part(*sum, factor, factor)
            } else {
                simd.dot_wide(*sum, factor, factor)
            };
        }
    }
    let mut total = simd.splat(0.0);
    for sum in &sums {
        total = simd.add(total, simd.int_values(*sum));
    }
    black_box(simd.sum(total));
    2 * n_rounds * SUMS * 4 * LANES
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

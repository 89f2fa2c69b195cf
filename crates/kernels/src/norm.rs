//! Normalization of rows.

use crate::Context;
use crate::simd::{Kernel, Simd};

/// Elements below which a call is not worth handing to other threads.
const MIN_TASK_LEN: usize = 16_384;

/// `out = x / sqrt(mean(x^2) + eps) * weight`, for each row of `n_cols`.
///
/// # Panics
/// If `x` is not whole rows, `out` has another length, or `weight` is not of length `n_cols`.
pub fn rms_norm(
    ctx: &Context,
    x: &[f32],
    weight: Option<&[f32]>,
    eps: f32,
    n_cols: usize,
    out: &mut [f32],
) {
    norm_rows(
        ctx,
        x,
        Norm {
            weight,
            bias: None,
            eps,
            with_mean: false,
        },
        n_cols,
        out,
    );
}

/// `out = (x - mean) / sqrt(variance + eps) * weight + bias`, for each row of `n_cols`; the
/// variance is that of the population.
///
/// # Panics
/// If `x` is not whole rows, `out` has another length, or `weight` or `bias` is not of length
/// `n_cols`.
pub fn layer_norm(
    ctx: &Context,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    n_cols: usize,
    out: &mut [f32],
) {
    norm_rows(
        ctx,
        x,
        Norm {
            weight,
            bias,
            eps,
            with_mean: true,
        },
        n_cols,
        out,
    );
}

#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
    with_mean: bool,
}

fn norm_rows(ctx: &Context, x: &[f32], norm: Norm, n_cols: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one output per input");
    assert!(
        norm.weight.is_none_or(|weight| weight.len() == n_cols),
        "one weight per column"
    );
    assert!(
        norm.bias.is_none_or(|bias| bias.len() == n_cols),
        "one bias per column"
    );
    if x.is_empty() {
        return;
    }
    assert!(
        x.len().is_multiple_of(n_cols),
        "{} elements are not rows of {n_cols}",
        x.len()
    );
    let task_len = MIN_TASK_LEN.div_ceil(n_cols) * n_cols;
    ctx.pool().run_chunks(out, task_len, |task_idx, out| {
        let x = &x[task_idx * task_len..][..out.len()];
        for (x, out) in x.chunks_exact(n_cols).zip(out.chunks_exact_mut(n_cols)) {
            ctx.isa().run(NormRow { norm, x, out });
        }
    });
}

struct NormRow<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Norm {
            weight,
            bias,
            eps,
            with_mean,
        } = self.norm;
        let n = self.x.len() as f64;
        // The mean in two parts: elements may be so close to it that its rounding to f32 would
        // show.
        let exact_mean = if with_mean {
            sum(simd, self.x) / n
        } else {
            0.0
        };
        let mean = exact_mean as f32;
        let rest = exact_mean - f64::from(mean);
        let variance = sum_squares(simd, self.x, mean) / n - rest * rest;
        // Rounding may have taken it below 0; NaN stays.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = (x - mean - rest as f32) * factor;
        }
        if let Some(weight) = weight {
            self.out
                .iter_mut()
                .zip(weight)
                .for_each(|(out, weight)| *out *= weight);
        }
        if let Some(bias) = bias {
            self.out
                .iter_mut()
                .zip(bias)
                .for_each(|(out, bias)| *out += bias);
        }
    }
}

/// Vectors that are added up in f32 before the sum goes on in f64: bounds the rounding error to
/// that of 32 additions.
const N_F32_ADDITIONS: usize = 32;

#[inline(always)]
fn sum<S: Simd>(simd: S, x: &[f32]) -> f64 {
    let (vectors, rest) = x.as_chunks::<16>();
    let mut total: f64 = rest.iter().map(|x| f64::from(*x)).sum();
    for vectors in vectors.chunks(N_F32_ADDITIONS) {
        let mut acc = simd.splat(0.0);
        for vector in vectors {
            acc = simd.add(acc, simd.load(vector));
        }
        total += lanes_sum(simd, acc);
    }
    total
}

/// The sum of the squares of the distances from `center`.
#[inline(always)]
fn sum_squares<S: Simd>(simd: S, x: &[f32], center: f32) -> f64 {
    let (vectors, rest) = x.as_chunks::<16>();
    let mut total: f64 = rest
        .iter()
        .map(|x| f64::from(x - center) * f64::from(x - center))
        .sum();
    let center = simd.splat(center);
    for vectors in vectors.chunks(N_F32_ADDITIONS) {
        let mut acc = simd.splat(0.0);
        for vector in vectors {
            let distance = simd.sub(simd.load(vector), center);
            acc = simd.fma(distance, distance, acc);
        }
        total += lanes_sum(simd, acc);
    }
    total
}

#[inline(always)]
fn lanes_sum<S: Simd>(simd: S, v: S::F) -> f64 {
    let mut lanes = [0.0; 16];
    simd.store(v, &mut lanes);
    lanes.iter().map(|lane| f64::from(*lane)).sum()
}

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
    let norm = Norm {
        weight,
        bias: None,
        eps,
        about: About::Zero,
    };
    norm_rows(ctx, x, norm, n_cols, out);
}

/// `out = x / sqrt(mean(x^2) + eps m^2) * weight`, for each row of `n_cols`, where m is the largest
/// magnitude of the row, or `least_size` if that is larger: the norm of `x / m`, which no square
/// overflows in. A row of zeros is not a number without `least_size`.
///
/// # Panics
/// If `x` is not whole rows, `out` has another length, or `weight` is not of length `n_cols`.
pub fn rms_norm_by_largest(
    ctx: &Context,
    x: &[f32],
    weight: Option<&[f32]>,
    [eps, least_size]: [f32; 2],
    n_cols: usize,
    out: &mut [f32],
) {
    let norm = Norm {
        weight,
        bias: None,
        eps,
        about: About::Largest(least_size),
    };
    norm_rows(ctx, x, norm, n_cols, out);
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
    let norm = Norm {
        weight,
        bias,
        eps,
        about: About::Mean,
    };
    norm_rows(ctx, x, norm, n_cols, out);
}

/// `out = (x - mean) / sqrt(variance + eps)` of matrices `[rows, groups, elements]`, where each
/// group of each matrix has a mean and a variance over its rows and elements.
///
/// # Panics
/// If `x` is not whole matrices, or `out` has another length.
pub fn group_norm(ctx: &Context, x: &[f32], sizes: [usize; 3], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one output per input");
    if x.is_empty() {
        return;
    }
    let [_, n_groups, n_elements] = sizes;
    let (n_cols, matrix_len) = (n_groups * n_elements, sizes.iter().product::<usize>());
    assert!(
        x.len().is_multiple_of(matrix_len),
        "{} elements are not matrices {sizes:?}",
        x.len()
    );
    let task_len = MIN_TASK_LEN.div_ceil(n_cols) * n_cols;
    let count = (matrix_len / n_groups) as f64;
    let matrices = x.chunks_exact(matrix_len);
    for (x, out) in matrices.zip(out.chunks_exact_mut(matrix_len)) {
        let near: Vec<f64> = (0..n_cols)
            .map(|col| f64::from(x[col / n_elements * n_elements]))
            .collect();
        let n_tasks = matrix_len.div_ceil(task_len);
        let mut sums = vec![0f64; n_tasks * 2 * n_cols];
        ctx.pool().run_chunks(&mut sums, 2 * n_cols, |i, sums| {
            let x = &x[i * task_len..][..task_len.min(x.len() - i * task_len)];
            let near = near.as_slice();
            ctx.isa().run(ColumnSums { x, near, sums });
        });
        let [mut means, mut rests, mut factors] = [(); 3].map(|()| Vec::with_capacity(n_cols));
        for group in 0..n_groups {
            let cols = group * n_elements..(group + 1) * n_elements;
            let total = |first: usize| {
                let parts = sums.chunks_exact(2 * n_cols);
                let parts = parts.flat_map(|part| &part[first..][cols.clone()]);
                parts.sum::<f64>() / count
            };
            let distance = total(0);
            let variance = total(n_cols) - distance * distance;
            let variance = if variance < 0.0 { 0.0 } else { variance };
            let exact = near[cols.start] + distance;
            let mean = exact as f32;
            let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
            for (all, value) in [
                (&mut means, mean),
                (&mut rests, (exact - f64::from(mean)) as f32),
                (&mut factors, factor),
            ] {
                all.resize(cols.end, value);
            }
        }
        ctx.pool().run_chunks(out, task_len, |i, out| {
            let x = x[i * task_len..].chunks_exact(n_cols);
            for (x, out) in x.zip(out.chunks_exact_mut(n_cols)) {
                let by = means.iter().zip(&rests).zip(&factors);
                for ((out, x), ((mean, rest), factor)) in out.iter_mut().zip(x).zip(by) {
                    *out = (x - mean - rest) * factor;
                }
            }
        });
    }
}

/// For each column of a matrix, the sum of the distances from `near`, and behind these the sums of
/// their squares: squares of numbers far from 0 would leave nothing of their differences.
struct ColumnSums<'a> {
    x: &'a [f32],
    near: &'a [f64],
    sums: &'a mut [f64],
}

impl Kernel for ColumnSums<'_> {
    type Output = ();
    /// Plain loops: [`Simd`] has no f64 vectors, so the compiler vectorizes them for each
    /// instruction set.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let n_cols = self.near.len();
        let (sums, squares) = self.sums.split_at_mut(n_cols);
        for row in self.x.chunks_exact(n_cols) {
            for col in 0..n_cols {
                let distance = f64::from(row[col]) - self.near[col];
                sums[col] += distance;
                squares[col] += distance * distance;
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
    about: About,
}

/// What the squares of a row are taken about, and what `eps` is of.
#[derive(Clone, Copy)]
enum About {
    Zero,
    Mean,
    /// Zero, with `eps` of the square of the largest magnitude or of this.
    Largest(f32),
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
            about,
        } = self.norm;
        match about {
            About::Largest(least) => normalize_by_largest(simd, self.x, [eps, least], self.out),
            About::Zero => normalize(simd, self.x, 0.0, eps, self.out),
            About::Mean => {
                let mean = sum(simd, self.x) / self.x.len() as f64;
                normalize(simd, self.x, mean, eps, self.out);
            }
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

/// `(x - mean) / sqrt(variance + eps)`.
#[inline(always)]
fn normalize<S: Simd>(simd: S, x: &[f32], exact_mean: f64, eps: f32, out: &mut [f32]) {
    // The mean in two parts: elements may be so close to it that its rounding to f32 would show.
    let mean = exact_mean as f32;
    let rest = exact_mean - f64::from(mean);
    let variance = sum_squares(simd, x, mean) / x.len() as f64 - rest * rest;
    // Rounding may have taken it below 0; NaN stays.
    let variance = if variance < 0.0 { 0.0 } else { variance };
    let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x - mean - rest as f32) * factor;
    }
}

/// [`rms_norm_by_largest`] without a weight.
#[inline(always)]
fn normalize_by_largest<S: Simd>(simd: S, x: &[f32], [eps, least]: [f32; 2], out: &mut [f32]) {
    /// Sizes whose squares f32 holds, with all places of those that count beside them.
    const HELD: std::ops::Range<f32> = 1e-12..1e15;
    let largest = largest(x).max(least);
    let n = x.len() as f64;
    if HELD.contains(&largest) {
        let added = f64::from(eps) * f64::from(largest) * f64::from(largest);
        let factor = (1.0 / (sum_squares(simd, x, 0.0) / n + added).sqrt()) as f32;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
        return;
    }
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out = x / largest);
    let variance = sum_squares(simd, out, 0.0) / n;
    let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
    out.iter_mut().for_each(|out| *out *= factor);
}

/// The largest magnitude; what is not a number does not count.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    let larger = |most: f32, x: &f32| if x.abs() > most { x.abs() } else { most };
    let (vectors, rest) = x.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for vector in vectors {
        for (lane, x) in lanes.iter_mut().zip(vector) {
            *lane = larger(*lane, x);
        }
    }
    lanes.iter().chain(rest).fold(0.0, larger)
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

//! Normalization of rows.

use std::iter::repeat_n;

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
    let [n_rows, n_groups, n_elements] = sizes;
    let (n_cols, matrix_len) = (n_groups * n_elements, sizes.iter().product::<usize>());
    assert!(
        x.len().is_multiple_of(matrix_len),
        "{} elements are not matrices {sizes:?}",
        x.len()
    );
    let matrices = x.chunks_exact(matrix_len);
    for (x, out) in matrices.zip(out.chunks_exact_mut(matrix_len)) {
        let groups = Groups {
            x,
            n_rows,
            n_cols,
            n_elements,
        };
        // What is held for columns stays small however many there are.
        let n_at_once = (MOST_COLUMNS / n_elements).clamp(1, n_groups);
        let mut scales = vec![Scale::default(); n_groups.min(n_at_once)];
        for first in (0..n_groups).step_by(n_at_once) {
            let scales = &mut scales[..n_at_once.min(n_groups - first)];
            groups.scales(ctx, first, eps, scales);
            groups.apply(ctx, first, scales, out);
        }
    }
}

/// Columns of a matrix that are gone over together.
const MOST_COLUMNS: usize = 1 << 14;

/// What makes an element of a group: `(x - mean - rest) * factor`.
#[derive(Clone, Copy, Debug, Default)]
struct Scale {
    mean: f32,
    rest: f32,
    factor: f32,
}

/// Groups of columns of a matrix.
struct Groups<'a> {
    x: &'a [f32],
    n_rows: usize,
    n_cols: usize,
    n_elements: usize,
}

impl Groups<'_> {
    /// The scales of groups from `first` on.
    fn scales(&self, ctx: &Context, first: usize, eps: f32, scales: &mut [Scale]) {
        /// Rows of a task, so that its sums take little beside them.
        const LEAST_ROWS: usize = 8;
        let n_elements = self.n_elements;
        let start = first * n_elements;
        let near = |group: usize| f64::from(self.x[start + group * n_elements]);
        // Elements of one long group are summed up in parts that share columns.
        let width = (scales.len() * n_elements).min(MOST_COLUMNS);
        let near_of: Vec<f64> = (0..width).map(|col| near(col / n_elements)).collect();
        let parts = (scales.len() * n_elements).div_ceil(width);
        let rows_in_task = MIN_TASK_LEN.div_ceil(width * parts).max(LEAST_ROWS);
        let n_tasks = self.n_rows.div_ceil(rows_in_task);
        let mut sums = vec![0f64; n_tasks * 2 * width];
        ctx.pool().run_chunks(&mut sums, 2 * width, |task, sums| {
            let rows = task * rows_in_task..((task + 1) * rows_in_task).min(self.n_rows);
            for row in rows {
                let row = &self.x[row * self.n_cols + start..][..scales.len() * n_elements];
                for x in row.chunks(width) {
                    let near = &near_of[..x.len()];
                    ctx.isa().run(ColumnSums { x, near, sums });
                }
            }
        });
        let count = (self.n_rows * n_elements) as f64;
        for (group, scale) in scales.iter_mut().enumerate() {
            let cols = group * n_elements..((group + 1) * n_elements).min(width);
            let total = |first: usize| {
                let tasks = sums.chunks_exact(2 * width);
                let all = tasks.flat_map(|sums| &sums[first..][cols.clone()]);
                all.sum::<f64>() / count
            };
            let distance = total(0);
            let variance = total(width) - distance * distance;
            let variance = if variance < 0.0 { 0.0 } else { variance };
            let exact = near(group) + distance;
            let mean = exact as f32;
            *scale = Scale {
                mean,
                rest: (exact - f64::from(mean)) as f32,
                factor: (1.0 / (variance + f64::from(eps)).sqrt()) as f32,
            };
        }
    }

    /// Writes the groups from `first` on.
    fn apply(&self, ctx: &Context, first: usize, scales: &[Scale], out: &mut [f32]) {
        /// Elements of a group that are worth a loop of their own.
        const MANY: usize = 64;
        let (n_cols, n_elements) = (self.n_cols, self.n_elements);
        let cols = first * n_elements..(first + scales.len()) * n_elements;
        let by_column = |of: fn(&Scale) -> f32| -> Vec<f32> {
            let n = if n_elements < MANY { n_elements } else { 0 };
            let columns = scales.iter().flat_map(|scale| repeat_n(of(scale), n));
            columns.collect()
        };
        let (means, rests) = (by_column(|s| s.mean), by_column(|s| s.rest));
        let factors = by_column(|s| s.factor);
        let rows_in_task = MIN_TASK_LEN.div_ceil(cols.len());
        let pool = ctx.pool();
        pool.run_chunks(out, rows_in_task * n_cols, |task, out| {
            let x = self.x[task * rows_in_task * n_cols..].chunks_exact(n_cols);
            for (x, out) in x.zip(out.chunks_exact_mut(n_cols)) {
                let (x, out) = (&x[cols.clone()], &mut out[cols.clone()]);
                let by = means.iter().zip(&rests).zip(&factors);
                for ((out, x), ((mean, rest), factor)) in out.iter_mut().zip(x).zip(by) {
                    *out = (x - mean - rest) * factor;
                }
                let groups = x.chunks_exact(n_elements);
                let groups = groups.zip(out.chunks_exact_mut(n_elements));
                for ((x, out), scale) in groups.zip(scales).take_while(|_| n_elements >= MANY) {
                    let Scale { mean, rest, factor } = *scale;
                    out.iter_mut()
                        .zip(x)
                        .for_each(|(out, x)| *out = (x - mean - rest) * factor);
                }
            }
        });
    }
}

/// Adds to `sums` the distance of each element of a row from `near`, and behind these the squares
/// of the distances: squares of numbers far from 0 would leave nothing of their differences.
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
        let half = self.sums.len() / 2;
        let (sums, squares) = self.sums.split_at_mut(half);
        let to = sums.iter_mut().zip(squares);
        for ((x, near), (sum, square)) in self.x.iter().zip(self.near).zip(to) {
            let distance = f64::from(*x) - near;
            *sum += distance;
            *square += distance * distance;
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
            About::Zero => normalize(simd, self.x, None, eps, self.out),
            About::Mean => {
                let mean = (sum(simd, self.x) / self.x.len() as f64) as f32;
                // A sum beyond f32 is no mean: then distances are from 0.
                let near = if mean.is_finite() { mean } else { 0.0 };
                normalize(simd, self.x, Some(near), eps, self.out);
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

/// `(x - mean) / sqrt(variance + eps)`, where the mean is near `near`; without one, 0 is the mean.
#[inline(always)]
fn normalize<S: Simd>(simd: S, x: &[f32], near: Option<f32>, eps: f32, out: &mut [f32]) {
    /// Variances below and above which f32 does not hold all squares that count.
    const HELD: std::ops::Range<f64> = 1e-25..1e30;
    let n = x.len() as f64;
    let center = near.unwrap_or(0.0);
    // Sums of what elements are far from a mean are small: they keep what a sum of the elements
    // loses.
    let [distance, squares] = sums(simd, x, center);
    let mut rest = near.map_or(0.0, |_| distance / n);
    let mut variance = squares / n - rest * rest;
    if !HELD.contains(&variance) {
        [rest, variance] = in_f64(x, near);
    }
    let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x - center - rest as f32) * factor;
    }
}

/// How far the mean is from `near`, and the variance, of numbers of any size; without `near` of a
/// mean of 0.
fn in_f64(x: &[f32], near: Option<f32>) -> [f64; 2] {
    let n = x.len() as f64;
    let distance = |v: &f32| f64::from(*v) - f64::from(near.unwrap_or(0.0));
    let rest = near.map_or(0.0, |_| x.iter().map(distance).sum::<f64>() / n);
    let squares = x.iter().map(|v| (distance(v) - rest).powi(2));
    [rest, squares.sum::<f64>() / n]
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
        let factor = (1.0 / (sums(simd, x, 0.0)[1] / n + added).sqrt()) as f32;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
        return;
    }
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out = x / largest);
    let variance = sums(simd, out, 0.0)[1] / n;
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

/// The sums of the distances from `center` and of their squares.
#[inline(always)]
fn sums<S: Simd>(simd: S, x: &[f32], center: f32) -> [f64; 2] {
    let (vectors, rest) = x.as_chunks::<16>();
    let distances = rest.iter().map(|x| f64::from(x - center));
    let mut total = distances.fold([0.0; 2], |[sum, squares], d| [sum + d, squares + d * d]);
    let center = simd.splat(center);
    for vectors in vectors.chunks(N_F32_ADDITIONS) {
        let mut acc = [simd.splat(0.0); 2];
        for vector in vectors {
            let distance = simd.sub(simd.load(vector), center);
            acc[0] = simd.add(acc[0], distance);
            acc[1] = simd.fma(distance, distance, acc[1]);
        }
        total[0] += lanes_sum(simd, acc[0]);
        total[1] += lanes_sum(simd, acc[1]);
    }
    total
}

#[inline(always)]
fn lanes_sum<S: Simd>(simd: S, v: S::F) -> f64 {
    let mut lanes = [0.0; 16];
    simd.store(v, &mut lanes);
    lanes.iter().map(|lane| f64::from(*lane)).sum()
}

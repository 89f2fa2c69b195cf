//! The places of a window: sums of products by channel, and pools.

use super::{Pooling, Window};
use crate::Isa;
use crate::activation::{self, Unary};
use crate::math::{self, Each};
use crate::simd::{Kernel, LANES, Simd};

#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    Products {
        weight: &'a [f32],
        bias: Option<&'a [f32]>,
        op: Option<Unary>,
    },
    Pool(Pooling),
}

/// Some places of a window.
pub(super) struct Places<'a> {
    pub(super) isa: Isa,
    pub(super) window: &'a Window,
    pub(super) x: &'a [f32],
    pub(super) first: usize,
    pub(super) work: Work<'a>,
    pub(super) out: &'a mut [f32],
}

/// Window elements of one place that are looked up before channels are gone over.
pub(super) const MOST_TAPS: usize = 64;

/// Places side by side of which sums are made together, in registers.
const SIDE: usize = 4;

/// Places side by side for which weights are read once: their elements stay in the first cache.
const STRIP: usize = 4 * SIDE;

impl Kernel for Places<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (isa, channels) = (self.isa, self.window.channels);
        if let Work::Pool(pooling @ (Pooling::Mean | Pooling::MeanWithPadding)) = self.work {
            return self.means(pooling);
        }
        let mut taps = [(0, 0); MOST_TAPS];
        let n_places = self.out.len() / channels;
        let mut i = 0;
        while i < n_places {
            let place = self.first + i;
            let left = (n_places - i).min(self.window.n_like(place));
            if let Work::Products { weight, bias, op } = self.work
                && left >= SIDE
                && self.window.kernel_len() <= MOST_TAPS
            {
                let mut n = 0;
                self.window.runs(place, |tap, n_run, at| {
                    for j in 0..n_run {
                        taps[n] = (tap + j, at + j * channels);
                        n += 1;
                    }
                });
                let step = self.window.axes[2].stride * channels;
                // A strip takes the few places that are left behind it.
                let n_side = if left < STRIP + SIDE { left } else { STRIP };
                let out = &mut self.out[i * channels..][..n_side * channels];
                let given = (weight, bias, op);
                // Weights of windows of 3 by 3 stay in registers; at the first and last row, six
                // elements of such a window are inside.
                if let Ok(taps) = <&[_; 9]>::try_from(&taps[..n]) {
                    add_places(simd, given, (self.x, step), taps, channels, out);
                } else if let Ok(taps) = <&[_; 6]>::try_from(&taps[..n]) {
                    add_places(simd, given, (self.x, step), taps, channels, out);
                } else {
                    add_any_places(simd, given, (self.x, step), &taps[..n], channels, out);
                }
                if !is_clamp(op) {
                    finish(isa, op, out);
                }
                i += n_side;
                continue;
            }
            let (mut n, mut is_begun) = (0, false);
            let out = &mut self.out[i * channels..][..channels];
            // In parts of as many as there is room for.
            self.window.runs(place, |tap, n_run, at| {
                for j in 0..n_run {
                    if n == MOST_TAPS {
                        add_taps(simd, &self.work, self.x, &taps[..n], is_begun, out);
                        (n, is_begun) = (0, true);
                    }
                    taps[n] = (tap + j, at + j * channels);
                    n += 1;
                }
            });
            add_taps(simd, &self.work, self.x, &taps[..n], is_begun, out);
            if let Work::Products { op, .. } = self.work {
                finish(isa, op, out);
            }
            i += 1;
        }
    }
}

impl Places<'_> {
    /// Means, whose sums are f64.
    fn means(self, pooling: Pooling) {
        const CHANNELS: usize = 64;
        let channels = self.window.channels;
        for (i, out) in self.out.chunks_exact_mut(channels).enumerate() {
            for (part, out) in out.chunks_mut(CHANNELS).enumerate() {
                let (mut sums, mut n_inside) = ([0.0; CHANNELS], 0);
                self.window.runs(self.first + i, |_, n, at| {
                    n_inside += n;
                    for j in 0..n {
                        let x = &self.x[at + j * channels + part * CHANNELS..][..out.len()];
                        let sums = sums.iter_mut().zip(x);
                        sums.for_each(|(sum, x)| *sum += f64::from(*x));
                    }
                });
                let n = match pooling {
                    Pooling::MeanWithPadding => self.window.kernel_len(),
                    Pooling::Max | Pooling::Mean => n_inside,
                };
                let means = out.iter_mut().zip(&sums);
                means.for_each(|(out, sum)| *out = (sum / n as f64) as f32);
            }
        }
    }
}

/// What becomes of the sums of places.
fn finish(isa: Isa, op: Option<Unary>, out: &mut [f32]) {
    if let Some(op) = op {
        activation::apply(isa, op, out);
    }
}

/// The first places of groups of [`SIDE`] that cover `n`, which is at least that many: the last two
/// groups may share places.
fn groups(n: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(SIDE).map(move |first| first.min(n - SIDE))
}

/// The sums of places side by side, whose elements of the `N` taps are `step` apart.
#[inline(always)]
fn add_places<S: Simd, const N: usize>(
    simd: S,
    (weight, bias, op): (&[f32], Option<&[f32]>, Option<Unary>),
    (x, step): (&[f32], usize),
    taps: &[(usize, usize); N],
    channels: usize,
    out: &mut [f32],
) {
    let n_whole = channels / LANES * LANES;
    for at in (0..n_whole).step_by(LANES) {
        let begin = bias.map_or(simd.splat(0.0), |bias| simd.load(vector(bias, at)));
        let weights = taps.map(|(tap, _)| simd.load(vector(weight, tap * channels + at)));
        for first in groups(out.len() / channels) {
            let mut acc = [begin; SIDE];
            for (weight, (_, from)) in weights.into_iter().zip(taps) {
                let x = &x[from + first * step + at..][..(SIDE - 1) * step + LANES];
                for (side, acc) in acc.iter_mut().enumerate() {
                    *acc = simd.fma(simd.load(vector(x, side * step)), weight, *acc);
                }
            }
            for (side, acc) in clamped(simd, op, acc).into_iter().enumerate() {
                let to = out[(first + side) * channels + at..].first_chunk_mut();
                simd.store(acc, to.expect("whole vectors"));
            }
        }
    }
    add_rest((weight, bias, op), (x, step), taps, n_whole, channels, out);
}

/// [`add_places`] for any number of taps.
#[inline(always)]
fn add_any_places<S: Simd>(
    simd: S,
    (weight, bias, op): (&[f32], Option<&[f32]>, Option<Unary>),
    (x, step): (&[f32], usize),
    taps: &[(usize, usize)],
    channels: usize,
    out: &mut [f32],
) {
    let n_whole = channels / LANES * LANES;
    for first in groups(out.len() / channels) {
        for at in (0..n_whole).step_by(LANES) {
            let begin = bias.map_or(simd.splat(0.0), |bias| simd.load(vector(bias, at)));
            let mut acc = [begin; SIDE];
            for (tap, from) in taps {
                let weight = simd.load(vector(weight, tap * channels + at));
                let x = &x[from + first * step + at..][..(SIDE - 1) * step + LANES];
                for (side, acc) in acc.iter_mut().enumerate() {
                    *acc = simd.fma(simd.load(vector(x, side * step)), weight, *acc);
                }
            }
            for (side, acc) in clamped(simd, op, acc).into_iter().enumerate() {
                let to = out[(first + side) * channels + at..].first_chunk_mut();
                simd.store(acc, to.expect("whole vectors"));
            }
        }
    }
    add_rest((weight, bias, op), (x, step), taps, n_whole, channels, out);
}

/// The sums of the channels from `n_whole` on, which fill no vector.
fn add_rest(
    (weight, bias, op): (&[f32], Option<&[f32]>, Option<Unary>),
    (x, step): (&[f32], usize),
    taps: &[(usize, usize)],
    n_whole: usize,
    channels: usize,
    out: &mut [f32],
) {
    for at in n_whole..channels {
        for (side, out) in out.chunks_exact_mut(channels).enumerate() {
            let products = taps
                .iter()
                .map(|(tap, from)| (x[from + side * step + at], weight[tap * channels + at]));
            let begin = bias.map_or(0.0, |bias| bias[at]);
            let sum = products.fold(begin, |sum, (x, weight)| sum + x * weight);
            out[at] = match op {
                // `f32::max` would lose NaN.
                Some(Unary::Relu | Unary::Relu6) if sum < 0.0 => 0.0,
                Some(Unary::Relu6) if sum > 6.0 => 6.0,
                _ => sum,
            };
        }
    }
}

/// Whether an op takes few instructions, so that sums go through it in registers.
fn is_clamp(op: Option<Unary>) -> bool {
    matches!(op, Some(Unary::Relu | Unary::Relu6))
}

/// The sums, through the op if it [`is_clamp`].
#[inline(always)]
fn clamped<S: Simd>(simd: S, op: Option<Unary>, sums: [S::F; SIDE]) -> [S::F; SIDE] {
    match op {
        Some(Unary::Relu) => math::relu(Each(simd), sums),
        Some(Unary::Relu6) => math::relu6(Each(simd), sums),
        _ => sums,
    }
}

/// Goes over the channels of some window elements; `is_begun` says whether others came before.
#[inline(always)]
fn add_taps<S: Simd>(
    simd: S,
    work: &Work,
    x: &[f32],
    taps: &[(usize, usize)],
    is_begun: bool,
    out: &mut [f32],
) {
    const WIDE: usize = 4;
    let n_wide = out.len() / (WIDE * LANES) * (WIDE * LANES);
    for at in (0..n_wide).step_by(WIDE * LANES) {
        add_vectors::<S, WIDE>(simd, work, x, taps, is_begun, at, out);
    }
    let n_whole = out.len() / LANES * LANES;
    for at in (n_wide..n_whole).step_by(LANES) {
        add_vectors::<S, 1>(simd, work, x, taps, is_begun, at, out);
    }
    let channels = out.len();
    for at in n_whole..channels {
        let mut sum = match (work, is_begun) {
            (_, true) => out[at],
            (Work::Products { bias, .. }, false) => bias.map_or(0.0, |bias| bias[at]),
            (Work::Pool(_), false) => f32::NEG_INFINITY,
        };
        for (tap, from) in taps {
            let value = x[from + at];
            sum = match work {
                Work::Products { weight, .. } => sum + value * weight[tap * channels + at],
                Work::Pool(_) if value > sum || value.is_nan() => value,
                Work::Pool(_) => sum,
            };
        }
        out[at] = sum;
    }
}

/// `V` vectors of channels, from `at` on.
#[inline(always)]
fn add_vectors<S: Simd, const V: usize>(
    simd: S,
    work: &Work,
    x: &[f32],
    taps: &[(usize, usize)],
    is_begun: bool,
    at: usize,
    out: &mut [f32],
) {
    let channels = out.len();
    let mut acc = [simd.splat(0.0); V];
    for v in 0..V {
        acc[v] = match (work, is_begun) {
            (_, true) => simd.load(vector(out, at + v * LANES)),
            (Work::Products { bias: Some(b), .. }, false) => simd.load(vector(b, at + v * LANES)),
            (Work::Pool(_), false) => simd.splat(f32::NEG_INFINITY),
            _ => simd.splat(0.0),
        };
    }
    match work {
        Work::Products { weight, .. } => {
            for (tap, from) in taps {
                for v in 0..V {
                    let value = simd.load(vector(x, from + at + v * LANES));
                    let weight = simd.load(vector(weight, tap * channels + at + v * LANES));
                    acc[v] = simd.fma(value, weight, acc[v]);
                }
            }
        }
        Work::Pool(_) => {
            for (_, from) in taps {
                for v in 0..V {
                    let value = simd.load(vector(x, from + at + v * LANES));
                    acc[v] = larger(simd, acc[v], value);
                }
            }
        }
    }
    for v in 0..V {
        let to = out[at + v * LANES..].first_chunk_mut();
        simd.store(acc[v], to.expect("whole vectors"));
    }
}

/// The larger of each lane; NaN where either is.
#[inline(always)]
fn larger<S: Simd>(simd: S, a: S::F, b: S::F) -> S::F {
    let most = simd.select_lt(b, a, a, b);
    // Of a that is infinite or NaN: neither becomes another by what is added, but for NaN.
    let endless = simd.add(a, simd.abs(b));
    simd.select_lt(a, simd.splat(f32::INFINITY), most, endless)
}

#[inline(always)]
fn vector(x: &[f32], at: usize) -> &[f32; LANES] {
    x[at..].first_chunk().expect("whole vectors")
}

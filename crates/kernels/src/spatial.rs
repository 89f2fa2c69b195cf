//! Windows over images whose channels are last: patches for convolutions, convolutions by channel,
//! and pools.
//!
//! Images are [n, depth, height, width, channels]; axes that an image lacks have one element. A
//! window takes the elements of an axis that are `stride` apart from place to place and `dilation`
//! apart inside; elements outside of the image are zeros, or none for pools.

use crate::activation::{self, Unary};
use crate::simd::{Kernel, LANES, Simd};
use crate::{Context, Isa};

/// A window along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Elements of the axis in the image.
    pub size: usize,
    /// Places of the window.
    pub n_places: usize,
    /// Elements of the window.
    pub kernel: usize,
    /// From place to place.
    pub stride: usize,
    /// From element to element of the window.
    pub dilation: usize,
    /// Padding before the axis.
    pub before: usize,
}

impl Axis {
    /// The elements of the window at a place that are in the image: the first, the end, and where
    /// the first lies in the image.
    fn inside(&self, place: usize) -> (usize, usize, usize) {
        let start = place * self.stride;
        let first = self.before.saturating_sub(start).div_ceil(self.dilation);
        let end = (self.size + self.before)
            .saturating_sub(start)
            .div_ceil(self.dilation)
            .min(self.kernel);
        let at = (start + first * self.dilation).saturating_sub(self.before);
        (first.min(end), end, at)
    }
}

/// A window over images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Images.
    pub n: usize,
    /// Channels of the images.
    pub channels: usize,
    /// Depth, height and width.
    pub axes: [Axis; 3],
}

impl Window {
    /// Elements of an image.
    fn image_len(&self) -> usize {
        self.axes.iter().map(|a| a.size).product::<usize>() * self.channels
    }

    /// Places of the window in all images.
    pub fn n_places(&self) -> usize {
        self.n * self.axes.iter().map(|a| a.n_places).product::<usize>()
    }

    /// Elements of the window, of one channel.
    pub fn kernel_len(&self) -> usize {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// The image and the places along the axes of a place.
    fn place(&self, place: usize) -> (usize, [usize; 3]) {
        let [d, h, w] = self.axes.map(|a| a.n_places);
        (
            place / (d * h * w),
            [place / (h * w) % d, place / w % h, place % w],
        )
    }

    /// How many places from this one on lie side by side, each with all columns of the window in
    /// the image: their window elements are as far apart as they are.
    fn n_like(&self, place: usize) -> usize {
        let width = self.axes[2];
        let first = place % width.n_places;
        let reach = (width.kernel - 1) * width.dilation;
        if first * width.stride < width.before {
            return 0;
        }
        let last = (width.size + width.before).checked_sub(reach + 1);
        last.map_or(0, |last| last / width.stride + 1)
            .min(width.n_places)
            .saturating_sub(first)
    }

    /// Calls `visit` with each run of window elements of a place that lie side by side in the
    /// image: the first element of the window, how many, and the first channel of the first in the
    /// images.
    #[inline(always)]
    fn runs(&self, place: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let (image, [d, h, w]) = self.place(place);
        let [depth, height, width] = self.axes;
        let (first_d, end_d, at_d) = depth.inside(d);
        let (first_h, end_h, at_h) = height.inside(h);
        let (first_w, end_w, at_w) = width.inside(w);
        let image = image * self.image_len();
        for k in first_d..end_d {
            let plane = at_d + (k - first_d) * depth.dilation;
            for i in first_h..end_h {
                let row = plane * height.size + at_h + (i - first_h) * height.dilation;
                let tap = (k * height.kernel + i) * width.kernel;
                let at = image + (row * width.size + at_w) * self.channels;
                if width.dilation == 1 {
                    if first_w < end_w {
                        visit(tap + first_w, end_w - first_w, at);
                    }
                } else {
                    for j in first_w..end_w {
                        let at = at + (j - first_w) * width.dilation * self.channels;
                        visit(tap + j, 1, at);
                    }
                }
            }
        }
    }

    fn check(&self, x: &[f32], out: &[f32]) {
        assert_eq!(x.len(), self.n * self.image_len(), "images");
        assert_eq!(out.len(), self.n_places() * self.channels, "outputs");
        assert!(
            self.axes.iter().all(|a| a.stride > 0 && a.dilation > 0),
            "steps of windows"
        );
    }
}

/// Elements that a task should have.
const TASK_LEN: usize = 1 << 14;

/// Products or comparisons that a task should have: some places side by side of many channels.
const TASK_PRODUCTS: usize = 1 << 16;

/// The windows from `first_place` on as rows [kernel_len, channels] of the channels from
/// `first_channel` on, as many as `out` has, zeros where a window is outside of the image.
///
/// # Panics
/// If a size does not fit.
pub fn patches(
    ctx: &Context,
    window: &Window,
    x: &[f32],
    first_place: usize,
    [first_channel, n_channels]: [usize; 2],
    out: &mut [f32],
) {
    let row_len = window.kernel_len() * n_channels;
    if out.is_empty() {
        return;
    }
    assert_eq!(x.len(), window.n * window.image_len(), "images");
    assert!(
        first_channel + n_channels <= window.channels
            && out.len().is_multiple_of(row_len)
            && first_place + out.len() / row_len <= window.n_places(),
        "rows of patches"
    );
    let n_in_task = TASK_LEN.div_ceil(row_len);
    ctx.pool()
        .run_chunks(out, n_in_task * row_len, |task_idx, out| {
            for (i, row) in out.chunks_exact_mut(row_len).enumerate() {
                let place = first_place + task_idx * n_in_task + i;
                let mut end = 0;
                window.runs(place, |tap, n, at| {
                    let to = tap * n_channels;
                    row[end..to].fill(0.0);
                    end = to + n * n_channels;
                    if n_channels == window.channels {
                        row[to..end].copy_from_slice(&x[at..at + n * n_channels]);
                        return;
                    }
                    for (j, to) in row[to..end].chunks_exact_mut(n_channels).enumerate() {
                        let at = at + j * window.channels + first_channel;
                        to.copy_from_slice(&x[at..at + n_channels]);
                    }
                });
                row[end..].fill(0.0);
            }
        });
}

/// `out[p, c] = op(bias[c] + sum over k of x[p, k, c] * weight[k, c])`: a convolution in which each
/// channel has a kernel of its own.
///
/// # Panics
/// If a size does not fit.
pub fn depthwise(
    ctx: &Context,
    window: &Window,
    x: &[f32],
    (weight, bias): (&[f32], Option<&[f32]>),
    op: Option<Unary>,
    out: &mut [f32],
) {
    window.check(x, out);
    let channels = window.channels;
    assert_eq!(weight.len(), window.kernel_len() * channels, "weights");
    assert!(
        bias.is_none_or(|bias| bias.len() == channels),
        "one bias per channel"
    );
    let work = Work::Products { weight, bias, op };
    run(ctx, window, x, work, out);
}

/// How a pool joins the elements of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The largest; NaN counts as the largest.
    Max,
    /// The mean of those inside of the image.
    Mean,
    /// The sum over the number of elements of the window.
    MeanWithPadding,
}

/// Each channel of each window as one number. A window without elements inside of the image gives
/// NaN, or minus infinity for the largest.
///
/// # Panics
/// If a size does not fit.
pub fn pool(ctx: &Context, window: &Window, pooling: Pooling, x: &[f32], out: &mut [f32]) {
    window.check(x, out);
    run(ctx, window, x, Work::Pool(pooling), out);
}

fn run(ctx: &Context, window: &Window, x: &[f32], work: Work, out: &mut [f32]) {
    let channels = window.channels;
    if out.is_empty() {
        return;
    }
    let n_in_task = TASK_PRODUCTS.div_ceil(channels * window.kernel_len().max(1));
    ctx.pool()
        .run_chunks(out, n_in_task * channels, |task_idx, out| {
            ctx.isa().run(Places {
                isa: ctx.isa(),
                window,
                x,
                first: task_idx * n_in_task,
                work,
                out,
            });
        });
}

#[derive(Clone, Copy)]
enum Work<'a> {
    Products {
        weight: &'a [f32],
        bias: Option<&'a [f32]>,
        op: Option<Unary>,
    },
    Pool(Pooling),
}

/// Some places of a window.
struct Places<'a> {
    isa: Isa,
    window: &'a Window,
    x: &'a [f32],
    first: usize,
    work: Work<'a>,
    out: &'a mut [f32],
}

/// Window elements of one place that are looked up before channels are gone over.
const MOST_TAPS: usize = 64;

/// Places side by side of which sums are made together: each weight is then read once for all.
const SIDE: usize = 4;

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
                let out = &mut self.out[i * channels..][..left / SIDE * SIDE * channels];
                for (side, out) in out.chunks_exact_mut(SIDE * channels).enumerate() {
                    let x = &self.x[side * SIDE * step..];
                    add_places(simd, (weight, bias), x, step, &taps[..n], out);
                    finish(isa, op, out);
                }
                i += left / SIDE * SIDE;
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

/// The sums of [`SIDE`] places, the window elements of which are `step` apart.
#[inline(always)]
fn add_places<S: Simd>(
    simd: S,
    (weight, bias): (&[f32], Option<&[f32]>),
    x: &[f32],
    step: usize,
    taps: &[(usize, usize)],
    out: &mut [f32],
) {
    let channels = out.len() / SIDE;
    let n_whole = channels / LANES * LANES;
    for at in (0..n_whole).step_by(LANES) {
        let begin = bias.map_or(simd.splat(0.0), |bias| simd.load(vector(bias, at)));
        let mut acc = [begin; SIDE];
        for (tap, from) in taps {
            let weight = simd.load(vector(weight, tap * channels + at));
            let x = &x[from + at..][..(SIDE - 1) * step + LANES];
            for (side, acc) in acc.iter_mut().enumerate() {
                *acc = simd.fma(simd.load(vector(x, side * step)), weight, *acc);
            }
        }
        for (acc, out) in acc.into_iter().zip(out.chunks_exact_mut(channels)) {
            let to = out[at..].first_chunk_mut();
            simd.store(acc, to.expect("whole vectors"));
        }
    }
    for at in n_whole..channels {
        for (side, out) in out.chunks_exact_mut(channels).enumerate() {
            let products = taps
                .iter()
                .map(|(tap, from)| (x[from + side * step + at], weight[tap * channels + at]));
            let begin = bias.map_or(0.0, |bias| bias[at]);
            out[at] = products.fold(begin, |sum, (x, weight)| sum + x * weight);
        }
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

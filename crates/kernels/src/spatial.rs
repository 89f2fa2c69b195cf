//! Windows over images whose channels are last: patches for convolutions, convolutions by channel,
//! and pools.
//!
//! Images are [n, depth, height, width, channels]; axes that an image lacks have one element. A
//! window takes the elements of an axis that are `stride` apart from place to place and `dilation`
//! apart inside; elements outside of the image are zeros, or none for pools.

mod places;

use self::places::{MOST_TAPS, Places, Work};
use crate::Context;
use crate::activation::Unary;
use crate::simd::LANES;

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

    /// Where the runs of a place begin in the images, and how many they are, if they have equal
    /// lengths and all elements of the window are inside of the image.
    fn whole_runs(&self, place: usize, begins: &mut [usize; MOST_TAPS]) -> Option<usize> {
        let (mut n_runs, mut n_inside) = (0, 0);
        self.runs(place, |_, n, at| {
            if let Some(begin) = begins.get_mut(n_runs) {
                *begin = at;
            }
            (n_runs, n_inside) = (n_runs + 1, n_inside + n);
        });
        (n_inside == self.kernel_len() && n_runs <= MOST_TAPS).then_some(n_runs)
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
            let first = first_place + task_idx * n_in_task;
            patches_of(window, x, first, [first_channel, n_channels], out);
        });
}

/// The rows of a task of [`patches`].
fn patches_of(
    window: &Window,
    x: &[f32],
    first_place: usize,
    [first_channel, n_channels]: [usize; 2],
    out: &mut [f32],
) {
    let row_len = window.kernel_len() * n_channels;
    let (mut i, n_rows) = (0, out.len() / row_len);
    while i < n_rows {
        let place = first_place + i;
        let n_like = (n_rows - i).min(window.n_like(place));
        let mut runs = [0; MOST_TAPS];
        if n_channels == window.channels
            && n_like > 1
            && let Some(n) = window.whole_runs(place, &mut runs)
        {
            let step = window.axes[2].stride * n_channels;
            for side in 0..n_like {
                let rest = &mut out[(i + side) * row_len..];
                copy_runs(x, side * step, &runs[..n], row_len / n, rest);
            }
            i += n_like;
            continue;
        }
        let row = &mut out[i * row_len..][..row_len];
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
        i += 1;
    }
}

/// Copies runs of `x`, which begin at `runs` plus `offset` and have `len` elements each, one after
/// the other to the begin of `rest`. Elements of `rest` behind them may change.
fn copy_runs(x: &[f32], offset: usize, runs: &[usize], len: usize, rest: &mut [f32]) {
    for (i, at) in runs.iter().enumerate() {
        let (from, to) = (&x[at + offset..], &mut rest[i * len..]);
        // A copy of a known length is a few instructions, which short runs are worth.
        match (from.first_chunk::<LANES>(), to.first_chunk_mut::<LANES>()) {
            (Some(from), Some(to)) if len <= LANES => *to = *from,
            _ => to[..len].copy_from_slice(&from[..len]),
        }
    }
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
    // Whole rows, of which few places are at an edge.
    let n_in_task = n_in_task.next_multiple_of(window.axes[2].n_places);
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

//! Windows, patches and pooling against their definitions.

use thane_kernels::Context;
use thane_kernels::activation::Unary;
use thane_kernels::spatial::{Axis, Pooling, Window, depthwise, patches, pool};

use crate::testing::{Random, instruction_sets};

fn window(random: &mut Random) -> Window {
    // Rows of up to 30 places more than fit, so that some have several strips.
    let axis = |random: &mut Random, more: usize| {
        let mut below = |n| random.below(n);
        let (kernel, stride, dilation) = (1 + below(4), 1 + below(3), 1 + below(2));
        let reach = (kernel - 1) * dilation + 1;
        let before = below(reach.min(3));
        let size = reach + below(more);
        Axis {
            size,
            n_places: (size + 2 * before - reach) / stride + 1,
            kernel,
            stride,
            dilation,
            before,
        }
    };
    let axes = [axis(random, 5), axis(random, 9), axis(random, 30)];
    Window {
        n: 1 + random.below(2),
        channels: [1, 5, 16, 37, 64, 83][random.below(6)],
        axes,
    }
}

/// Elements of an image.
fn image_len(window: &Window) -> usize {
    window.axes.iter().map(|a| a.size).product::<usize>() * window.channels
}

/// The elements of a window: the tap and the place in x of its first channel, by definition.
fn taps(window: &Window, place: usize) -> Vec<(usize, usize)> {
    let [d, h, w] = window.axes.map(|a| a.n_places);
    let (image, places) = (
        place / (d * h * w),
        [place / (h * w) % d, place / w % h, place % w],
    );
    let mut taps = Vec::new();
    for tap in 0..window.kernel_len() {
        let [_, h, w] = window.axes.map(|a| a.kernel);
        let k = [tap / (h * w), tap / w % h, tap % w];
        let at: Vec<Option<usize>> = (0..3)
            .map(|i| {
                let a = window.axes[i];
                let at = (places[i] * a.stride + k[i] * a.dilation).checked_sub(a.before)?;
                (at < a.size).then_some(at)
            })
            .collect();
        if let [Some(d), Some(h), Some(w)] = at[..] {
            let [_, height, width] = window.axes.map(|a| a.size);
            let element = (d * height + h) * width + w;
            taps.push((tap, image * image_len(window) + element * window.channels));
        }
    }
    taps
}

#[test]
fn windows_are_as_defined() {
    let mut random = Random::new(11);
    for isa in instruction_sets() {
        let ctx = Context::with_isa(2, isa);
        for _ in 0..60 {
            let window = window(&mut random);
            let (channels, n_kernel) = (window.channels, window.kernel_len());
            let x = random.f32s(window.n * image_len(&window));
            let (weight, bias) = (random.f32s(n_kernel * channels), random.f32s(channels));
            let n = window.n_places();
            let mut out = vec![0.0; n * channels];
            let op = [None, Some(Unary::Relu), Some(Unary::Relu6)][random.below(3)];
            let bounds = match op {
                None => [f64::MIN, f64::MAX],
                Some(Unary::Relu) => [0.0, f64::MAX],
                Some(_) => [0.0, 6.0],
            };
            depthwise(&ctx, &window, &x, (&weight, Some(&bias)), op, &mut out);
            for place in 0..n {
                for c in 0..channels {
                    let products = taps(&window, place).into_iter().map(|(tap, at)| {
                        f64::from(x[at + c]) * f64::from(weight[tap * channels + c])
                    });
                    let sum = f64::from(bias[c]) + products.sum::<f64>();
                    let sum = sum.clamp(bounds[0], bounds[1]);
                    let found = f64::from(out[place * channels + c]);
                    assert!((sum - found).abs() < 1e-4, "{window:?}: {sum} {found}");
                }
            }
            let mut rows = vec![f32::NAN; n * n_kernel * channels];
            patches(&ctx, &window, &x, 0, [0, channels], &mut rows);
            for (place, row) in rows.chunks_exact(n_kernel * channels).enumerate() {
                let mut expected = vec![0.0; row.len()];
                for (tap, at) in taps(&window, place) {
                    expected[tap * channels..][..channels].copy_from_slice(&x[at..at + channels]);
                }
                assert_eq!(row, expected, "{window:?}");
            }
            for pooling in [Pooling::Max, Pooling::Mean, Pooling::MeanWithPadding] {
                pool(&ctx, &window, pooling, &x, &mut out);
                for place in 0..n {
                    let taps = taps(&window, place);
                    for c in 0..channels {
                        let values = taps.iter().map(|(_, at)| f64::from(x[at + c]));
                        let expected = match pooling {
                            Pooling::Max => values.fold(f64::NEG_INFINITY, f64::max),
                            Pooling::Mean => values.sum::<f64>() / taps.len() as f64,
                            Pooling::MeanWithPadding => values.sum::<f64>() / n_kernel as f64,
                        };
                        let found = f64::from(out[place * channels + c]);
                        let is_same = (expected - found).abs() < 1e-5
                            || expected.is_nan() && found.is_nan()
                            || expected == found;
                        assert!(is_same, "{window:?}: {expected} {found}");
                    }
                }
            }
        }
    }
}

#[test]
fn parts_of_channels_are_those_of_the_window() {
    let mut random = Random::new(5);
    let ctx = Context::new(2);
    let window = Window {
        channels: 12,
        ..window(&mut random)
    };
    let x = random.f32s(window.n * image_len(&window));
    let n_kernel = window.kernel_len();
    let n = window.n_places();
    let mut all = vec![0.0; n * n_kernel * 12];
    patches(&ctx, &window, &x, 0, [0, 12], &mut all);
    let mut part = vec![0.0; (n - 1) * n_kernel * 5];
    patches(&ctx, &window, &x, 1, [4, 5], &mut part);
    for (i, channels) in part.chunks_exact(5).enumerate() {
        assert_eq!(channels, &all[(n_kernel + i) * 12 + 4..][..5]);
    }
}

#[test]
fn the_largest_is_nan_where_one_is() {
    let axis = |size, kernel| Axis {
        size,
        n_places: 1,
        kernel,
        stride: 1,
        dilation: 1,
        before: 0,
    };
    let window = Window {
        n: 1,
        channels: 17,
        axes: [axis(1, 1), axis(1, 1), axis(3, 3)],
    };
    for at in 0..3 {
        let mut x = vec![1.0; 3 * 17];
        x[at * 17..][..17].fill(f32::NAN);
        let mut out = vec![0.0; 17];
        pool(&Context::new(1), &window, Pooling::Max, &x, &mut out);
        assert!(out.iter().all(|v| v.is_nan()), "{at}: {out:?}");
    }
}

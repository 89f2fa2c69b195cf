//! Norms against their definitions in f64.

use thane_kernels::Context;
use thane_kernels::norm::{group_norm, layer_norm, rms_norm, rms_norm_by_largest};

use crate::testing::{Random, instruction_sets, relative_error};

/// A norm by its definition.
struct Norm<'a> {
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
    with_mean: bool,
}

fn exact(x: &[f32], norm: Norm, n_cols: usize) -> Vec<f64> {
    let row = |x: &[f32]| -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let n = n_cols as f64;
        let mean = if norm.with_mean {
            x.iter().sum::<f64>() / n
        } else {
            0.0
        };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let at = |values: Option<&[f32]>, i: usize, default: f64| {
            values.map_or(default, |values| f64::from(values[i]))
        };
        let scaled = |i: usize| (x[i] - mean) / (variance + f64::from(norm.eps)).sqrt();
        (0..n_cols)
            .map(|i| scaled(i) * at(norm.weight, i, 1.0) + at(norm.bias, i, 0.0))
            .collect()
    };
    x.chunks_exact(n_cols).flat_map(row).collect()
}

#[test]
fn rows_of_every_length() {
    let mut random = Random::new(11);
    for isa in instruction_sets() {
        for n_threads in [1, 3] {
            let ctx = Context::with_isa(n_threads, isa);
            for n_cols in [1, 2, 15, 16, 17, 64, 577, 3000] {
                for n_rows in [0, 1, 3, 40] {
                    let x: Vec<f32> = random
                        .f32s(n_rows * n_cols)
                        .into_iter()
                        .map(|x| x * 3.0 + 5.0)
                        .collect();
                    let (weight, bias) = (random.f32s(n_cols), random.f32s(n_cols));
                    let mut out = vec![f32::NAN; x.len()];
                    for weight in [None, Some(&weight[..])] {
                        rms_norm(&ctx, &x, weight, 1e-5, n_cols, &mut out);
                        let expected = exact(
                            &x,
                            Norm {
                                weight,
                                bias: None,
                                eps: 1e-5,
                                with_mean: false,
                            },
                            n_cols,
                        );
                        assert!(
                            relative_error(&out, &expected) < 2e-7,
                            "rms {n_rows} {n_cols} {}",
                            isa.name()
                        );
                        layer_norm(&ctx, &x, weight, Some(&bias), 1e-3, n_cols, &mut out);
                        let expected = exact(
                            &x,
                            Norm {
                                weight,
                                bias: Some(&bias),
                                eps: 1e-3,
                                with_mean: true,
                            },
                            n_cols,
                        );
                        assert!(
                            relative_error(&out, &expected) < 1e-6,
                            "layer {n_rows} {n_cols} {}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

/// Groups of columns of matrices are rows of what is turned.
#[test]
fn groups_of_columns() {
    let mut random = Random::new(12);
    for isa in instruction_sets() {
        for (n_threads, n_matrices, sizes) in [
            (1, 1, [1, 1, 1]),
            (3, 2, [5, 3, 7]),
            (1, 3, [4, 17, 1]),
            (3, 2, [700, 6, 33]),
            (2, 1, [33_000, 1, 2]),
            // More columns than are gone over together: of one group, and of several.
            (3, 1, [3, 2, 20_011]),
            (2, 1, [5, 331, 70]),
            (3, 2, [2, 30_011, 1]),
        ] {
            let [n_rows, n_groups, n_elements] = sizes;
            let ctx = Context::with_isa(n_threads, isa);
            // Groups that lie apart, and far from 0.
            let number = |(i, x): (usize, f32)| x * 3.0 + (i / n_elements % n_groups * 100) as f32;
            let n = n_matrices * n_rows * n_groups * n_elements;
            let x: Vec<f32> = random.f32s(n).into_iter().enumerate().map(number).collect();
            let place = |matrix: usize, group: usize, row: usize| {
                ((matrix * n_rows + row) * n_groups + group) * n_elements
            };
            let rows: Vec<usize> = (0..n_matrices * n_groups)
                .flat_map(|g| (0..n_rows).map(move |row| (g / n_groups, g % n_groups, row)))
                .map(|(matrix, group, row)| place(matrix, group, row))
                .collect();
            let turned = |x: &[f32]| -> Vec<f32> {
                let rows = rows.iter().flat_map(|at| &x[*at..at + n_elements]);
                rows.copied().collect()
            };
            let norm = Norm {
                weight: None,
                bias: None,
                eps: 1e-3,
                with_mean: true,
            };
            let expected = exact(&turned(&x), norm, n_rows * n_elements);
            let mut out = vec![f32::NAN; n];
            group_norm(&ctx, &x, sizes, 1e-3, &mut out);
            let error = relative_error(&turned(&out), &expected);
            assert!(error < 3e-6, "{sizes:?} {}: {error:e}", isa.name());
        }
    }
}

/// What sums of the elements lose is kept, and what f32 has no square of.
#[test]
fn rows_far_from_zero_and_of_any_size() {
    let mut random = Random::new(13);
    for isa in instruction_sets() {
        let ctx = Context::with_isa(1, isa);
        for n_cols in [5, 64, 577, 4800] {
            for (mean, size) in [
                (1e2f32, 1.0f32),
                (1e4, 1.0),
                (1e4, 0.1),
                (1e5, 1.0),
                (0.0, 1e25),
                (0.0, 1e37),
                (0.0, 1e-25),
            ] {
                let random = random.f32s(n_cols).into_iter();
                let x: Vec<f32> = random.map(|x| mean + size * x).collect();
                let mut out = vec![f32::NAN; n_cols];
                let eps = 0.0;
                for with_mean in [true, false] {
                    let norm = Norm {
                        weight: None,
                        bias: None,
                        eps,
                        with_mean,
                    };
                    if with_mean {
                        layer_norm(&ctx, &x, None, None, eps, n_cols, &mut out);
                    } else {
                        rms_norm(&ctx, &x, None, eps, n_cols, &mut out);
                    }
                    let error = relative_error(&out, &exact(&x, norm, n_cols));
                    assert!(
                        error < 1e-6,
                        "{n_cols} {mean} {size} {with_mean} {}: {error:e}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn zeros_tiny_and_not_a_number() {
    for isa in instruction_sets() {
        let ctx = Context::with_isa(1, isa);
        let mut out = [f32::NAN; 20];
        rms_norm(&ctx, &[0.0; 20], None, 1e-6, 20, &mut out);
        assert_eq!(out, [0.0; 20]);
        rms_norm(&ctx, &[1e-40; 20], None, 1e-6, 20, &mut out);
        assert!(
            out.iter().all(|out| (out / 1e-37 - 1.0).abs() < 1e-2),
            "{out:?}"
        );
        let mut x = [1.0; 20];
        x[19] = f32::NAN;
        rms_norm(&ctx, &x, None, 1e-6, 20, &mut out);
        assert!(out.iter().all(|out| out.is_nan()));
    }
}

/// By its definition: the norm of a row over its largest magnitude.
#[test]
fn rows_by_their_largest() {
    let mut random = Random::new(12);
    for isa in instruction_sets() {
        for n_threads in [1, 3] {
            let ctx = Context::with_isa(n_threads, isa);
            for n_cols in [1, 2, 15, 16, 17, 64, 577] {
                // Squares of the last overflow f32 or vanish in it.
                for scale in [1.0, 3e-4, 2e30, 3e-30] {
                    for least in [0.0, 2.0 * scale, 0.01 * scale] {
                        let x: Vec<f32> = random
                            .f32s(5 * n_cols)
                            .into_iter()
                            .map(|x| x * scale)
                            .collect();
                        let weight = random.f32s(n_cols);
                        let mut out = vec![f32::NAN; x.len()];
                        let how = [0.1, least];
                        rms_norm_by_largest(&ctx, &x, Some(&weight), how, n_cols, &mut out);
                        let row = |x: &[f32]| -> Vec<f64> {
                            let largest = x.iter().fold(least, |most, v| most.max(v.abs()));
                            let x = x.iter().map(|v| f64::from(*v) / f64::from(largest));
                            let x: Vec<f64> = x.collect();
                            let mean = x.iter().map(|v| v * v).sum::<f64>() / n_cols as f64;
                            let size = (mean + f64::from(0.1f32)).sqrt();
                            let scaled = x.iter().zip(&weight);
                            scaled.map(|(x, w)| x / size * f64::from(*w)).collect()
                        };
                        let expected: Vec<f64> = x.chunks_exact(n_cols).flat_map(row).collect();
                        let error = relative_error(&out, &expected);
                        assert!(
                            error < 4e-7,
                            "{n_cols} {scale} {least} {}: {error}",
                            isa.name()
                        );
                    }
                }
            }
            let mut out = [0.0; 3];
            rms_norm_by_largest(&ctx, &[0.0; 3], None, [1e-5, 0.0], 3, &mut out);
            assert!(out.iter().all(|v| v.is_nan()), "0 / 0: {out:?}");
            rms_norm_by_largest(&ctx, &[0.0; 3], None, [1e-5, 0.5], 3, &mut out);
            assert_eq!(out, [0.0; 3]);
            rms_norm_by_largest(&ctx, &[1.0, f32::NAN, 2.0], None, [1e-5, 0.0], 3, &mut out);
            assert!(out.iter().all(|v| v.is_nan()), "{out:?}");
        }
    }
}

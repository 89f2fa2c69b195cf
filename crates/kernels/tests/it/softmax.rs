//! Softmax against its definition.

use thane_kernels::Context;
use thane_kernels::softmax::softmax;

use crate::testing::{Random, instruction_sets, relative_error};

#[test]
fn rows_of_every_length() {
    let mut random = Random::new(21);
    for isa in instruction_sets() {
        for n_threads in [1, 3] {
            let ctx = Context::with_isa(n_threads, isa);
            for n_cols in [1, 2, 15, 16, 17, 100, 5000] {
                let x: Vec<f32> = random
                    .f32s(3 * n_cols)
                    .into_iter()
                    .map(|x| x * 20.0 + 300.0)
                    .collect();
                let expected: Vec<f64> = x
                    .chunks_exact(n_cols)
                    .flat_map(|row| {
                        let sum: f64 = row.iter().map(|x| (f64::from(*x) - 300.0).exp()).sum();
                        row.iter().map(move |x| (f64::from(*x) - 300.0).exp() / sum)
                    })
                    .collect();
                let mut out = x;
                softmax(&ctx, &mut out, n_cols);
                assert!(
                    relative_error(&out, &expected) < 1e-6,
                    "{n_cols} {}",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn infinities_and_nan() {
    for isa in instruction_sets() {
        let ctx = Context::with_isa(1, isa);
        for len in [3, 20] {
            let mut x = vec![f32::NEG_INFINITY; len];
            x[1] = 7.0;
            softmax(&ctx, &mut x, len);
            assert!(
                x.iter()
                    .enumerate()
                    .all(|(i, x)| *x == if i == 1 { 1.0 } else { 0.0 }),
                "{x:?}"
            );
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = vec![0.5; len];
                x[2] = bad;
                softmax(&ctx, &mut x, len);
                assert!(x[2].is_nan(), "{x:?}");
            }
            let mut x = vec![f32::NEG_INFINITY; len];
            softmax(&ctx, &mut x, len);
            assert!(x.iter().all(|x| x.is_nan()));
        }
    }
    softmax(&Context::new(1), &mut [], 0);
}

//! The delta rule against its formula in f64.

use thane_kernels::Context;
use thane_kernels::delta::{DeltaRows, DeltaShape, delta_rule};

use crate::testing::{Random, instruction_sets, relative_error};

/// The formula in f64, of a head.
fn scalar(shape: DeltaShape, rows: DeltaRows<'_>, head: usize, memory: &mut [f64]) -> Vec<f64> {
    let (n, m) = (shape.key_len, shape.value_len);
    let mut out = Vec::new();
    for token in 0..shape.n_tokens {
        let row = token * shape.n_heads + head;
        let wide = |x: &[f32], len: usize| -> Vec<f64> {
            x[row * len..][..len]
                .iter()
                .map(|v| f64::from(*v))
                .collect()
        };
        let (query, key, value) = (wide(rows.query, n), wide(rows.key, n), wide(rows.value, m));
        let (decay, beta) = (wide(rows.decay, 1)[0], wide(rows.beta, 1)[0]);
        memory.iter_mut().for_each(|v| *v *= decay);
        for j in 0..m {
            let known: f64 = (0..n).map(|i| key[i] * memory[i * m + j]).sum();
            let new = beta * (value[j] - known);
            (0..n).for_each(|i| memory[i * m + j] += key[i] * new);
            out.push((0..n).map(|i| query[i] * memory[i * m + j]).sum());
        }
    }
    out
}

#[test]
fn heads_of_every_size() {
    let mut random = Random::new(31);
    for (n_tokens, n_heads, key_len, value_len) in [
        (1, 2, 8, 10),
        (5, 3, 7, 16),
        (40, 1, 24, 83),
        (3, 2, 128, 128),
        (0, 1, 4, 4),
    ] {
        let shape = DeltaShape {
            n_tokens,
            n_heads,
            key_len,
            value_len,
        };
        let n = n_tokens * n_heads;
        let mut scaled = |n: usize, factor: f32| -> Vec<f32> {
            random.f32s(n).into_iter().map(|x| x * factor).collect()
        };
        let (query, key) = (
            scaled(n * key_len, 1.0),
            scaled(n * key_len, (key_len as f32).sqrt().recip()),
        );
        let value = scaled(n * value_len, 1.0);
        let decay: Vec<f32> = scaled(n, 1.0).iter().map(|x| 1.0 / (1.0 + x * x)).collect();
        let beta: Vec<f32> = decay.iter().rev().copied().collect();
        let initial = scaled(n_heads * key_len * value_len, 1.0);
        let rows = DeltaRows {
            query: &query,
            key: &key,
            value: &value,
            decay: &decay,
            beta: &beta,
        };
        let memories = initial.chunks_exact(key_len * value_len);
        let due: Vec<f64> = memories
            .clone()
            .enumerate()
            .flat_map(|(head, memory)| {
                let mut memory: Vec<f64> = memory.iter().map(|v| f64::from(*v)).collect();
                let out = scalar(shape, rows, head, &mut memory);
                [memory, out].concat()
            })
            .collect();
        for isa in instruction_sets() {
            for n_threads in [1, 3] {
                let ctx = Context::with_isa(n_threads, isa);
                let mut heads: Vec<f32> = memories
                    .clone()
                    .flat_map(|memory| [memory, &vec![0.0; n_tokens * value_len]].concat())
                    .collect();
                delta_rule(&ctx, shape, rows, &mut heads);
                let error = relative_error(&heads, &due);
                assert!(error < 2e-6, "{shape:?}, {}: {error:e}", isa.name());
            }
        }
    }
}

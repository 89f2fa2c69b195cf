//! The fast forms of every quantized type against the values of the `gguf` Python package, which
//! `crates/blocks/tests/make_blocks.py` recorded.
#![allow(clippy::unwrap_used)]

#[path = "../../blocks/tests/goldens/mod.rs"]
mod goldens;

use goldens::{Golden, goldens};
use thane_kernels::linear::{
    Epilogue, Precision, Product, Start, dequantize_rows_gather, linear, linear_scratch_len,
};
use thane_kernels::{Context, Isa, Weight};

#[test]
fn every_value_is_that_of_the_gguf_package() {
    for Golden { ty, bytes, values } in goldens() {
        for isa in Isa::available() {
            let weight = Weight::new(ty, &bytes, 1, values.len()).unwrap();
            let mut out = vec![f32::NAN; values.len()];
            dequantize_rows_gather(&Context::with_isa(1, isa), &weight, &[0], &mut out);
            assert_eq!(bits(&out), bits(&values), "{ty:?} {}", isa.name());
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn products_with_unit_vectors_are_the_values() {
    // A unit vector has the code 127 and the scale 1/127, so each output is one value of the
    // weight, to the rounding of the scales; where AVX-512 fits the codes of many tokens' weights
    // to 8 bits, to less than one of these.
    for Golden { ty, bytes, values } in goldens() {
        let block_len = ty.block_len();
        let n_rows = values.len() / block_len;
        let weight = Weight::new(ty, &bytes, n_rows, block_len).unwrap();
        for isa in Isa::available() {
            let ctx = Context::with_isa(1, isa);
            let mut x = vec![0.0; block_len * block_len];
            (0..block_len).for_each(|i| x[i * block_len + i] = 1.0);
            // All at once, and one by one: the two forms of the product.
            for n_tokens in [block_len, 1] {
                for (batch_idx, x) in x.chunks_exact(n_tokens * block_len).enumerate() {
                    let mut y = vec![f32::NAN; n_tokens * n_rows];
                    let products = &mut [Product::new(weight, n_tokens, Start::NONE, &mut y)];
                    let (fast, none) = (Precision::Fast, Epilogue::None);
                    let len = linear_scratch_len(&ctx, fast, products, n_tokens, none);
                    linear(&ctx, fast, products, x, n_tokens, none, &mut vec![0.0; len]);
                    for (i, y) in y.iter().enumerate() {
                        let (col_idx, row_idx) = (batch_idx * n_tokens + i / n_rows, i % n_rows);
                        let row = &values[row_idx * block_len..][..block_len];
                        let largest = row.iter().fold(0.0f32, |max, value| max.max(value.abs()));
                        let error = (y - row[col_idx]).abs();
                        let bound = if isa.has_wide_sums() && n_tokens > 1 {
                            1.0 / 127.0
                        } else {
                            2e-6
                        };
                        assert!(
                            error <= bound * largest,
                            "{ty:?} {} row {row_idx} column {col_idx}: {y}, not {}",
                            isa.name(),
                            row[col_idx]
                        );
                    }
                }
            }
        }
    }
}

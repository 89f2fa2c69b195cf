//! The values of blocks against those of the `gguf` Python package, recorded by `make_blocks.py`.
#![allow(clippy::unwrap_used)]

use thane_kernels::linear::{Start, dequantize_rows_gather, linear_fast, linear_fast_scratch_len};
use thane_kernels::quant::dequantize_row;
use thane_kernels::{BlockType, Context, Isa, Weight};

struct Golden {
    ty: BlockType,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

fn type_named(name: &str) -> BlockType {
    match name {
        "Q4_0" => BlockType::Q4_0,
        "Q4_1" => BlockType::Q4_1,
        "Q5_0" => BlockType::Q5_0,
        "Q5_1" => BlockType::Q5_1,
        "Q8_0" => BlockType::Q8_0,
        "Q2_K" => BlockType::Q2K,
        "Q3_K" => BlockType::Q3K,
        "Q4_K" => BlockType::Q4K,
        "Q5_K" => BlockType::Q5K,
        "Q6_K" => BlockType::Q6K,
        "IQ4_NL" => BlockType::Iq4Nl,
        "IQ4_XS" => BlockType::Iq4Xs,
        _ => panic!("blocks.bin has a type {name}"),
    }
}

fn goldens() -> Vec<Golden> {
    let mut file: &[u8] = include_bytes!("blocks.bin");
    let mut take = |len: usize| -> Option<&[u8]> {
        let (head, rest) = file.split_at_checked(len)?;
        file = rest;
        Some(head)
    };
    let mut goldens = Vec::new();
    while let Some(name) = take(8) {
        let ty = type_named(std::str::from_utf8(name).unwrap().trim_end_matches('\0'));
        let mut number = || u32::from_le_bytes(take(4).unwrap().try_into().unwrap()) as usize;
        let (n_blocks, block_bytes, block_len) = (number(), number(), number());
        assert_eq!(
            (block_bytes, block_len),
            (ty.block_bytes(), ty.block_len()),
            "{ty:?}"
        );
        let bytes = take(n_blocks * block_bytes).unwrap().to_vec();
        let values = take(n_blocks * block_len * 4)
            .unwrap()
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        goldens.push(Golden { ty, bytes, values });
    }
    assert_eq!(goldens.len(), 12, "every quantised type");
    goldens
}

#[test]
fn every_value_is_that_of_the_gguf_package() {
    for Golden { ty, bytes, values } in goldens() {
        let mut out = vec![f32::NAN; values.len()];
        dequantize_row(ty, &bytes, &mut out);
        assert_eq!(bits(&out), bits(&values), "{ty:?}");
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
                let mut scratch = vec![0.0; linear_fast_scratch_len(&ctx, &weight, n_tokens)];
                for (batch_idx, x) in x.chunks_exact(n_tokens * block_len).enumerate() {
                    let mut y = vec![f32::NAN; n_tokens * n_rows];
                    linear_fast(
                        &ctx,
                        &weight,
                        x,
                        n_tokens,
                        Start::NONE,
                        &mut y,
                        &mut scratch,
                    );
                    for (i, y) in y.iter().enumerate() {
                        let (col_idx, row_idx) = (batch_idx * n_tokens + i / n_rows, i % n_rows);
                        let row = &values[row_idx * block_len..][..block_len];
                        let largest = row.iter().fold(0.0f32, |max, value| max.max(value.abs()));
                        let error = (y - row[col_idx]).abs();
                        let bound = if isa.name() == "avx512" && n_tokens > 1 {
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

//! Vocabularies whose codes are split: the whole product, and that of the best rows.

use super::*;

/// Rows about the panel's 16, columns with and without half a pair of blocks, and more rows than 16
/// for each of them.
const SHAPES: [(usize, usize); 4] = [(577, 32), (1100, 64), (1571, 96), (2320, 128)];

fn packed<'a>(bytes: &'a [u8], n_rows: usize, n_cols: usize) -> PackedCodes<'a> {
    let packed = PackedCodes {
        ty: BlockType::Q8_0,
        bytes,
        n_rows,
        n_cols,
    };
    assert!(packed.is_split());
    packed
}

/// The outputs and the bytes read.
fn best(ctx: &Context, packed: &PackedCodes, n_best: usize, x: &[f32]) -> (Vec<f32>, usize) {
    let mut y = vec![f32::NAN; packed.n_rows];
    let mut scratch = vec![f32::NAN; linear_codes_best_scratch_len(packed, n_best)];
    let n_bytes = linear_codes_best(ctx, packed, n_best, x, &mut y, &mut scratch);
    (y, n_bytes)
}

fn whole(ctx: &Context, packed: &PackedCodes, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; packed.n_rows];
    by_linear(ctx, *packed, (x, 1), Start::NONE, Epilogue::None, &mut y);
    y
}

/// Each output is the one due or minus infinity, and the so many greatest are there, with the
/// equals of the last, and NaN.
fn assert_best(y: &[f32], due: &[f32], n_best: usize, what: &str) {
    let mut sorted = due.to_vec();
    sorted.retain(|y| !y.is_nan());
    sorted.sort_by(|a, b| b.total_cmp(a));
    let least = sorted[n_best.min(sorted.len()) - 1];
    for (i, (y, due)) in y.iter().zip(due).enumerate() {
        let is_there = y.to_bits() == due.to_bits();
        assert!(
            is_there || *y == f32::NEG_INFINITY,
            "{what}: {y} is not {due} at {i}"
        );
        assert!(is_there || *due < least, "{what}: {due} is missing at {i}");
    }
}

#[test]
fn products_are_those_of_the_codes() {
    let mut random = Random::new(21);
    for (n_rows, n_cols) in SHAPES {
        for n_tokens in [1, 2, 3, 5, 6, 8, 9, 29] {
            let Case {
                bytes,
                values,
                x,
                bias,
            } = case(&mut random, BlockType::Q8_0, (n_tokens, n_rows, n_cols));
            let weight = Weight::new(BlockType::Q8_0, &bytes, n_rows, n_cols).unwrap();
            let starts = starts(
                &mut random,
                &bias,
                product(&values, &quantized(&x, n_cols), n_cols, &bias),
            );
            for ctx in contexts() {
                for (start, before, expected) in &starts {
                    for y in by_codes(&ctx, &weight, &x, n_tokens, *start, before) {
                        let error = worst_error(&y, expected);
                        assert!(
                            error < 1e-6,
                            "{n_tokens} x {n_rows} x {n_cols} {}: {error}",
                            ctx.isa().name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rows_packed_in_parts_are_those_packed_at_once() {
    let (n_rows, n_cols) = (1571, 96);
    let bytes = Random::new(22).weight_bytes(BlockType::Q8_0, n_rows, n_cols);
    let weight = Weight::new(BlockType::Q8_0, &bytes, n_rows, n_cols).unwrap();
    for ctx in contexts() {
        let at_once = packed_codes(&ctx, &weight).unwrap();
        let mut parts = vec![0x5a; at_once.len()];
        let mut scratch = vec![f32::NAN; pack_codes_scratch_len(&ctx, n_cols)];
        for rows in [512..1571, 0..496, 496..512] {
            pack_codes(&ctx, &weight, rows, &mut parts, &mut scratch);
        }
        assert!(parts == at_once, "{}", ctx.isa().name());
    }
}

#[test]
fn the_best_outputs_are_those_of_the_whole_product() {
    let mut random = Random::new(23);
    for (n_rows, n_cols) in SHAPES {
        for round in 0..6 {
            let mut bytes = random.weight_bytes(BlockType::Q8_0, n_rows, n_cols);
            // Some rows twice, so that there are equals.
            let row_bytes = bytes.len() / n_rows;
            for _ in 0..200 {
                let [from, to] = [(); 2].map(|()| random.below(n_rows) * row_bytes);
                bytes.copy_within(from..from + row_bytes, to);
            }
            let weight = Weight::new(BlockType::Q8_0, &bytes, n_rows, n_cols).unwrap();
            let x: Vec<f32> = random
                .f32s(n_cols)
                .iter()
                .map(|x| x * 10f32.powi(round - 2))
                .collect();
            for ctx in contexts() {
                let bytes = packed_codes(&ctx, &weight).unwrap();
                let packed = packed(&bytes, n_rows, n_cols);
                let due = whole(&ctx, &packed, &x);
                for n_best in [1, 2, 17, 400, n_rows, 2 * n_rows] {
                    let (y, n_bytes) = best(&ctx, &packed, n_best, &x);
                    let what = format!("{n_best} of {n_rows} x {n_cols} {}", ctx.isa().name());
                    assert_best(&y, &due, n_best, &what);
                    let n_missing = y.iter().filter(|y| **y == f32::NEG_INFINITY).count();
                    assert!(
                        n_best > 2 || n_missing > n_rows / 2,
                        "{what}: {n_missing} are ruled out"
                    );
                    assert!(
                        n_bytes <= packed.bytes.len() * 17 / 10,
                        "{what}: {n_bytes} bytes read"
                    );
                    let full = n_rows.div_ceil(LANES) - n_missing / LANES;
                    assert!(
                        n_bytes > full * row_bytes * LANES,
                        "{what}: {n_bytes} bytes read for {full} panels"
                    );
                }
            }
        }
    }
}

/// All rows have the same upper bits, and the lower ones are as far from the middle as can be, with
/// the activations or against them.
#[test]
fn the_bound_holds_where_it_is_met() {
    let mut random = Random::new(24);
    let (n_rows, n_cols) = (1100, 64);
    for size in [1.0, 1e-30, 1e20] {
        let x: Vec<f32> = (0..n_cols)
            .map(|_| if random.below(2) == 0 { size } else { -size })
            .collect();
        let upper: Vec<u8> = (0..n_cols)
            .map(|_| (random.below(32) as u8) << 3 ^ 0x80)
            .collect();
        let n_with: Vec<usize> = (0..n_rows).map(|_| random.below(n_cols + 1)).collect();
        let mut bytes = Vec::new();
        for n_with in &n_with {
            for block in 0..n_cols / 32 {
                bytes.extend(0x2c00u16.to_le_bytes());
                bytes.extend((32 * block..32 * block + 32).map(|at| {
                    let is_with = random.below(n_cols) < *n_with;
                    upper[at] | if (x[at] > 0.0) == is_with { 7 } else { 0 }
                }));
            }
        }
        let weight = Weight::new(BlockType::Q8_0, &bytes, n_rows, n_cols).unwrap();
        for ctx in contexts() {
            let bytes = packed_codes(&ctx, &weight).unwrap();
            let packed = packed(&bytes, n_rows, n_cols);
            for n_best in [1, 5] {
                let (y, _) = best(&ctx, &packed, n_best, &x);
                assert_best(&y, &whole(&ctx, &packed, &x), n_best, ctx.isa().name());
            }
        }
    }
}

#[test]
fn what_is_no_number_shows() {
    let mut random = Random::new(25);
    let (n_rows, n_cols) = (1100, 64);
    let good = random.weight_bytes(BlockType::Q8_0, n_rows, n_cols);
    let row_bytes = good.len() / n_rows;
    for bad in [0x7e00u16, 0xfe00, 0x7c00, 0xfc00] {
        let mut bytes = good.clone();
        for row in [3, 700, 1000] {
            bytes[row * row_bytes..][..2].copy_from_slice(&bad.to_le_bytes());
        }
        let weight = Weight::new(BlockType::Q8_0, &bytes, n_rows, n_cols).unwrap();
        for ctx in contexts() {
            let bytes = packed_codes(&ctx, &weight).unwrap();
            let packed = packed(&bytes, n_rows, n_cols);
            let x = random.f32s(n_cols);
            let due = whole(&ctx, &packed, &x);
            assert!(!due[700].is_finite());
            for n_best in [1, 9] {
                let (y, _) = best(&ctx, &packed, n_best, &x);
                let what = format!("{n_best}, {bad:#x} {}", ctx.isa().name());
                assert_eq!(y[700].to_bits(), due[700].to_bits(), "{what}");
                assert_best(&y, &due, n_best, &what);
            }
            let mut x = x;
            x[37] = f32::from_bits(u32::from(bad) << 16 | 0x7f80_0000);
            let (y, _) = best(&ctx, &packed, 1, &x);
            assert!(y.iter().all(|y| y.is_nan()), "{}", ctx.isa().name());
        }
    }
}

#[test]
fn of_zeros_all_are_the_best() {
    let (n_rows, n_cols) = (577, 32);
    let weight_bytes = Random::new(26).weight_bytes(BlockType::Q8_0, n_rows, n_cols);
    let weight = Weight::new(BlockType::Q8_0, &weight_bytes, n_rows, n_cols).unwrap();
    for ctx in contexts() {
        let bytes = packed_codes(&ctx, &weight).unwrap();
        let (y, _) = best(&ctx, &packed(&bytes, n_rows, n_cols), 1, &vec![0.0; n_cols]);
        assert!(y.iter().all(|y| *y == 0.0), "{}", ctx.isa().name());
    }
}

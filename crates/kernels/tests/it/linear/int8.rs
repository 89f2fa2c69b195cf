//! Products of integers, and quantized codes fitted to 8 bits, against f64.

use thane_kernels::activation::{Unary, unary};
use thane_kernels::linear::internals::{requantize, rescaled, rotated};
use thane_kernels::linear::{
    Epilogue, Int8Block, Int8Weight, Start, int8_len, pack_codes_scratch_len, pack_int8,
};
use thane_kernels::quant::has_format;
use thane_kernels::{BlockType, Context, Isa, Weight};

use super::{by_linear, contexts};
use crate::testing::{LANES, Random, instruction_sets, relative_error};

/// Columns of a block, which share a scale.
const BLOCK_LEN: usize = 256;
/// Columns that are rotated together.
const GROUP_LEN: usize = 64;
/// Below this the inverse of a scale would be close to overflow: all codes are 0.
const LEAST: f32 = 1e-36;

/// What the codes of an instruction set say, with an error of none but f64. Of two such rows the
/// product is 64 times as great.
fn rounded(isa: Isa, row: &[f32]) -> Vec<f64> {
    let max_code = if isa.has_wide_sums() { 127.0 } else { 63.0 };
    let block = |block: &[f32]| {
        let block = block
            .chunks(GROUP_LEN)
            .flat_map(rotated_one_by_one)
            .collect::<Vec<f32>>();
        let max = block.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let inverse = if max < LEAST { 0.0 } else { max_code / max };
        let value =
            |v: &f32| f64::from((v * inverse).round_ties_even()) * f64::from(max / max_code);
        block.iter().map(value).collect::<Vec<_>>()
    };
    row.chunks(BLOCK_LEN).flat_map(block).collect()
}

/// 64 values rotated, those behind the last zeros, rounded as the kernel rounds on the way.
fn rotated_one_by_one(values: &[f32]) -> Vec<f32> {
    let mut all = [values, &[0.0; GROUP_LEN][values.len()..]].concat();
    for stride in [16, 32, 8, 4, 2, 1] {
        for i in (0..GROUP_LEN).filter(|i| i & stride == 0) {
            (all[i], all[i + stride]) = (all[i] + all[i + stride], all[i] - all[i + stride]);
        }
    }
    all
}

#[test]
fn rotations_are_those_of_a_hadamard_matrix() {
    let x: [f32; GROUP_LEN] = Random::new(5).f32s(GROUP_LEN).try_into().unwrap();
    let sign = |i: usize, j: usize| {
        if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    let due: Vec<f64> = (0..64)
        .map(|i| (0..64).map(|j| sign(i, j) * f64::from(x[j])).sum())
        .collect();
    for isa in instruction_sets() {
        let y = rotated(isa, &x);
        assert!(relative_error(&y, &due) < 1e-6, "{}", isa.name());
        assert_eq!(y[..], rotated_one_by_one(&x), "{}", isa.name());
    }
}

/// The values of a quantized matrix where its codes are fitted to 8 bits: those of its own where no
/// instruction set does it.
pub(super) fn refitted(weight: &Weight, values: &[f32]) -> Vec<f32> {
    let Weight {
        ty, n_rows, n_cols, ..
    } = *weight;
    let Some(ctx) = contexts().into_iter().find(|ctx| ctx.isa().has_wide_sums()) else {
        return values.to_vec();
    };
    let mut out = vec![f32::NAN; n_rows * n_cols];
    for first_row in (0..n_rows).step_by(LANES) {
        let mut scratch = vec![f32::NAN; pack_codes_scratch_len(&ctx, n_cols)];
        let mut blocks = vec![Int8Block::ZERO; n_cols.div_ceil(BLOCK_LEN)];
        requantize(&ctx, weight, first_row, &mut blocks, &mut scratch);
        for (row_idx, col) in (first_row..n_rows.min(first_row + LANES))
            .flat_map(|row| (0..n_cols).map(move |c| (row, c)))
        {
            let (block, lane, at) = (
                &blocks[col / BLOCK_LEN],
                row_idx - first_row,
                col % BLOCK_LEN,
            );
            let code = |at: usize| block.codes[at / 4][4 * lane + at % 4].cast_signed();
            let sum: i32 = (at / 32 * 32..)
                .take(32)
                .map(|at| i32::from(code(at)))
                .sum();
            assert_eq!(
                block.offsets[at / 32][lane],
                -128 * sum,
                "{ty:?} {row_idx} {col}"
            );
            out[row_idx * n_cols + col] = f32::from(code(at)) * block.scales[lane];
        }
    }
    out
}

#[test]
fn codes_are_rescaled_as_one_by_one() {
    let mut random = Random::new(8);
    for isa in instruction_sets()
        .into_iter()
        .filter(|isa| isa.has_wide_sums())
    {
        for (bits, first) in
            (2..=8u32).flat_map(|bits| (0..1 << bits).map(move |first| (bits, first)))
        {
            // Of a panel: 64ths of 127 codes at most, between the factor of the greatest code and
            // what is added.
            let factor: [i32; LANES] = std::array::from_fn(|_| (random.f32s(1)[0] * 8000.0) as i32);
            let added: [i32; LANES] = std::array::from_fn(|_| (random.f32s(1)[0] * 4000.0) as i32);
            let codes: [u8; 64] = std::array::from_fn(|i| ((first + 37 * i) % (1 << bits)) as u8);
            let found = rescaled(isa, &codes, bits, &factor, &added);
            for (i, code) in codes.into_iter().enumerate() {
                let product =
                    (((i32::from(code) * factor[i / 4]) << (15 - bits)) + (1 << 14)) >> 15;
                let sum = product + added[i / 4] - i32::from(i % 4 < 2);
                assert_eq!(
                    found[i],
                    (sum >> 6) as u8,
                    "{bits} bits, {code} times {}",
                    factor[i / 4]
                );
            }
        }
    }
}

#[test]
fn refitted_codes_are_the_nearest() {
    let mut random = Random::new(4);
    for ty in BlockType::ALL.into_iter().filter(|ty| has_format(*ty)) {
        let (n_rows, n_cols) = (37, if ty.block_len() == 32 { 352 } else { 768 });
        let bytes = random.weight_bytes(ty, n_rows, n_cols);
        let mut values = vec![0.0; n_rows * n_cols];
        ty.decode(&bytes, &mut values);
        let refitted = refitted(&Weight::new(ty, &bytes, n_rows, n_cols).unwrap(), &values);
        if refitted == values {
            return;
        }
        let (mut sum, mut n) = (0.0, 0);
        for (values, refitted) in values.chunks(n_cols).zip(refitted.chunks(n_cols)) {
            for (values, refitted) in values.chunks(256).zip(refitted.chunks(256)) {
                let most = values
                    .iter()
                    .fold(0.0f32, |most, value| most.max(value.abs()));
                for (value, refitted) in values.iter().zip(refitted) {
                    // The greatest that there can be is some more than the greatest that there is.
                    let error = f64::from(value - refitted) / f64::from(most / 127.0);
                    assert!(
                        error.abs() < 0.9,
                        "{ty:?}: {value} is {refitted}, {error} of a code"
                    );
                    (sum, n) = (sum + error, n + 1);
                }
            }
        }
        // As often above as below: a hundredth of a code is what rounding all halves up would make.
        assert!(
            (sum / f64::from(n)).abs() < 4e-3,
            "{ty:?}: {} on average",
            sum / f64::from(n)
        );
    }
}

fn product(ctx: &Context, weight: &Weight, x: &[f32], n_tokens: usize, bias: &[f32]) -> Vec<f32> {
    let Weight { n_rows, n_cols, .. } = *weight;
    let unfilled = Int8Block {
        codes: [[0xa5; 64]; BLOCK_LEN / 4],
        scales: [f32::NAN; LANES],
        offsets: [[7; LANES]],
    };
    let mut blocks = vec![unfilled; int8_len(n_rows, n_cols).unwrap()];
    pack_int8(ctx, weight, &mut blocks);
    let packed = Int8Weight {
        blocks: &blocks,
        n_rows,
        n_cols,
    };
    let x = (x, n_tokens);
    let mut y = vec![f32::NAN; n_tokens * n_rows];
    by_linear(ctx, packed, x, Start::bias(bias), Epilogue::None, &mut y);
    let mut twice = y.clone();
    let start = Start {
        bias: None,
        accumulates: true,
    };
    by_linear(ctx, packed, x, start, Epilogue::None, &mut twice);
    let (mut activated, mut due) = (vec![f32::NAN; y.len()], vec![f32::NAN; y.len()]);
    let epilogue = Epilogue::Activated(Unary::GeluErf);
    by_linear(ctx, packed, x, Start::bias(bias), epilogue, &mut activated);
    unary(ctx, Unary::GeluErf, &y, &mut due);
    assert!(
        activated
            .iter()
            .zip(&due)
            .all(|(a, b)| a.to_bits() == b.to_bits()),
        "activated"
    );
    for ((twice, y), bias) in twice.iter().zip(&y).zip(bias.iter().cycle()) {
        let error = (twice - (2.0 * y - bias)).abs();
        assert!(
            error < 1e-4 || y.is_nan() && twice.is_nan(),
            "{y} {bias} {twice}"
        );
    }
    y
}

#[test]
fn products_are_those_of_the_codes() {
    let mut random = Random::new(1);
    let contexts = contexts();
    for ty in [BlockType::F32, BlockType::F16, BlockType::Bf16] {
        for n_cols in [1, 15, 33, 64, 65, 300, 576, 1100] {
            for (n_rows, n_tokens) in [
                (1, 0),
                (1, 1),
                (16, 2),
                (37, 3),
                (57, 7),
                (48, 8),
                (96, 3),
                (5, 101),
            ] {
                let bytes = random.weight_bytes(ty, n_rows, n_cols);
                let mut values = vec![0.0; n_rows * n_cols];
                ty.decode(&bytes, &mut values);
                let (x, bias) = (random.f32s(n_tokens * n_cols), random.f32s(n_rows));
                let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
                let mut first: Option<Vec<f32>> = None;
                for ctx in &contexts {
                    let y = product(ctx, &weight, &x, n_tokens, &bias);
                    let rows: Vec<Vec<f64>> = values
                        .chunks(n_cols)
                        .map(|row| rounded(ctx.isa(), row))
                        .collect();
                    for (x, y) in x
                        .chunks(n_cols)
                        .map(|x| rounded(ctx.isa(), x))
                        .zip(y.chunks(n_rows))
                    {
                        for ((row, bias), y) in rows.iter().zip(&bias).zip(y) {
                            let due: f64 = row.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>()
                                / 64.0
                                + f64::from(*bias);
                            let size: f64 = x.iter().map(|x| x.abs()).sum::<f64>() + 1.0;
                            let error = (f64::from(*y) - due).abs() / size;
                            assert!(
                                error < 4e-7,
                                "{ty:?} {n_tokens}x{n_rows}x{n_cols} {}: {error}",
                                ctx.isa().name()
                            );
                        }
                    }
                    let is_alike = ctx.isa() != Isa::Portable && !ctx.isa().has_wide_sums();
                    if is_alike && *first.get_or_insert_with(|| y.clone()) != y {
                        panic!("{} differs from another instruction set", ctx.isa().name());
                    }
                }
            }
        }
    }
}

#[test]
fn seven_bits_lose_about_two_percent_and_eight_one_with_outliers_too() {
    let mut random = Random::new(2);
    let (n_tokens, n_rows, n_cols) = (6, 64, 768);
    let bytes = random.weight_bytes(BlockType::F32, n_rows, n_cols);
    let mut values = vec![0.0; n_rows * n_cols];
    BlockType::F32.decode(&bytes, &mut values);
    let weight = Weight::new(BlockType::F32, &bytes, n_rows, n_cols).unwrap();
    let dot = |row: &[f32], x: &[f32]| {
        row.iter()
            .zip(x)
            .map(|(w, x)| f64::from(*w) * f64::from(*x))
            .sum::<f64>()
    };
    // As of a model: two columns of each token are twenty times as great as others. Not rotated,
    // they would leave others no codes.
    for outlier in [1.0, 20.0] {
        let mut x = random.f32s(n_tokens * n_cols);
        x.chunks_mut(n_cols)
            .for_each(|x| [100, 631].into_iter().for_each(|col| x[col] *= outlier));
        let due: Vec<f64> = x
            .chunks(n_cols)
            .flat_map(|x| values.chunks(n_cols).map(move |row| dot(row, x)))
            .collect();
        for ctx in contexts() {
            let error = relative_error(
                &product(&ctx, &weight, &x, n_tokens, &vec![0.0; n_rows]),
                &due,
            );
            let range = if ctx.isa().has_wide_sums() {
                0.005..0.014
            } else {
                0.012..0.028
            };
            assert!(
                range.contains(&error),
                "{} {outlier} {error}",
                ctx.isa().name()
            );
        }
    }
}

#[test]
fn the_ends_of_the_range_do_not_overflow() {
    for ctx in contexts() {
        for (w, x) in [(1.0f32, 1.0f32), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)] {
            let bytes: Vec<u8> = [w; 128].iter().flat_map(|w| w.to_le_bytes()).collect();
            let weight = Weight::new(BlockType::F32, &bytes, 1, 128).unwrap();
            for n_tokens in [1, 2, 5, 13] {
                let y = product(&ctx, &weight, &vec![x; n_tokens * 128], n_tokens, &[0.0]);
                assert!(
                    y.iter().all(|y| (y - w * x * 128.0).abs() < 1e-3),
                    "{} {w} {x}: {y:?}",
                    ctx.isa().name()
                );
            }
        }
    }
}

#[test]
fn of_no_columns_there_is_the_bias() {
    let bias: Vec<f32> = (0..53u8).map(f32::from).collect();
    for ctx in contexts() {
        let weight = Weight::new(BlockType::F32, &[], 53, 0).unwrap();
        assert_eq!(
            product(&ctx, &weight, &[], 2, &bias),
            [bias.as_slice(), &bias].concat()
        );
    }
}

#[test]
fn what_is_no_number_shows() {
    let mut random = Random::new(3);
    let (n_rows, n_cols) = (18, 80);
    for ctx in contexts() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 40, 79] {
                let bytes = random.weight_bytes(BlockType::F32, n_rows, n_cols);
                let weight = Weight::new(BlockType::F32, &bytes, n_rows, n_cols).unwrap();
                let mut x = random.f32s(3 * n_cols);
                x[n_cols + at] = bad;
                let y = product(&ctx, &weight, &x, 3, &vec![0.0; n_rows]);
                let is_bad = |i: usize| (n_rows..2 * n_rows).contains(&i);
                assert!(
                    y.iter().enumerate().all(|(i, y)| y.is_nan() == is_bad(i)),
                    "{bad} at {at} of x"
                );
                let mut bytes = bytes.clone();
                bytes[(n_cols + at) * 4..][..4].copy_from_slice(&bad.to_le_bytes());
                let weight = Weight::new(BlockType::F32, &bytes, n_rows, n_cols).unwrap();
                let y = product(&ctx, &weight, &random.f32s(n_cols), 1, &vec![0.0; n_rows]);
                assert!(
                    y.iter().enumerate().all(|(i, y)| y.is_nan() == (i == 1)),
                    "{bad} at {at} of a row"
                );
            }
        }
    }
}

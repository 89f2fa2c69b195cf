//! Weights of codes with tables and scales: every width, against values read bit by bit.

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_kernels::linear::{
    Coding, Compressed, Epilogue, Operand, Precision, Product, Start, decompress_rows, linear,
    linear_scratch_len,
};

use super::{contexts, product};
use crate::testing::Random;

const N_ROWS: usize = 37;

/// Codes of a matrix, a bit after the other.
pub(super) fn codes(random: &mut Random, n_bits: usize, n: usize) -> (Vec<u8>, Vec<u8>) {
    let codes: Vec<u8> = (0..n)
        .map(|_| (random.bits() >> 40) as u8 & ((1 << n_bits) - 1) as u8)
        .collect();
    let mut bytes = vec![0u8; n * n_bits / 8];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..n_bits {
            let at = i * n_bits + bit;
            bytes[at / 8] |= (code >> bit & 1) << (at % 8);
        }
    }
    (codes, bytes)
}

/// The codes row after row, and in order where they can be put in order.
fn check(weight: &Compressed, values: &[f32], is_orderable: bool, random: &mut Random) {
    check_product(weight, values, random);
    let len = weight.ordered_len();
    assert_eq!(len.is_some(), is_orderable);
    for ctx in contexts().into_iter().filter(|_| is_orderable) {
        // As if something else had been there.
        let mut bytes = vec![0xa5; len.unwrap_or(0)];
        weight.write_ordered(&ctx, &mut bytes);
        let scaling = weight.ordered_scaling();
        check_product(&weight.ordered(&bytes, &scaling), values, random);
    }
}

fn check_rows(weight: &Compressed, values: &[f32]) {
    let n_cols = weight.n_cols();
    for ctx in contexts() {
        let mut rows = vec![0.0; 3 * n_cols];
        decompress_rows(&ctx, weight, &[5, 36, 0], &mut rows);
        let due = [5, 36, 0].map(|row| &values[row * n_cols..][..n_cols]);
        assert_eq!(rows, due.concat(), "{:?}", ctx.isa());
    }
}

pub(super) fn check_product(weight: &Compressed, values: &[f32], random: &mut Random) {
    let n_cols = weight.n_cols();
    let n_rows = weight.n_rows();
    let bias: Vec<f32> = (0..n_rows).map(|_| random.f32()).collect();
    for ctx in contexts() {
        for n_tokens in [1, 2, 3, 29] {
            let x: Vec<f32> = (0..n_tokens * n_cols).map(|_| random.f32()).collect();
            let mut y = vec![f32::NAN; n_tokens * n_rows];
            let mut products = [Product::new(
                Operand::Compressed(*weight),
                n_tokens,
                Start::from(Some(bias.as_slice())),
                &mut y,
            )];
            let none = Epilogue::None;
            let len = linear_scratch_len(&ctx, Precision::Fast, &products, n_tokens, none);
            let mut scratch = vec![f32::NAN; len];
            linear(
                &ctx,
                Precision::Fast,
                &mut products,
                &x,
                n_tokens,
                none,
                &mut scratch,
            );
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for (y, (due, size)) in y.iter().zip(product(values, &wide, n_cols, &bias)) {
                let error = (f64::from(*y) - due).abs();
                assert!(
                    error <= 1e-6 * size,
                    "{:?}, {n_tokens}: {y}, {due}",
                    ctx.isa()
                );
            }
        }
    }
}

#[test]
fn codes_of_every_width_go_through_their_tables() {
    let mut random = Random::new(3);
    for (n_bits, n_cols) in [
        (1, 40),
        (2, 300),
        (3, 536),
        (4, 34),
        (4, 1030),
        (6, 276),
        (8, 77),
    ] {
        for group_rows in [N_ROWS, 16, 8] {
            let (codes, bytes) = codes(&mut random, n_bits, N_ROWS * n_cols);
            let n_entries = N_ROWS.div_ceil(group_rows) << n_bits;
            let entries: Vec<f32> = (0..n_entries).map(|_| random.f32()).collect();
            let row_scales: Vec<f32> = (0..N_ROWS).map(|_| random.f32()).collect();
            for scales in [&[][..], &row_scales] {
                let coding = Coding::Table {
                    entries: &entries,
                    group_rows,
                    width: 1,
                    scales,
                };
                let weight = Compressed::new(n_bits, &bytes, coding, [N_ROWS, n_cols]).unwrap();
                let value = |(i, code): (usize, &u8)| {
                    let row = i / n_cols;
                    let entry = entries[((row / group_rows) << n_bits) + usize::from(*code)];
                    entry * scales.get(row).copied().unwrap_or(1.0)
                };
                let values: Vec<f32> = codes.iter().enumerate().map(value).collect();
                check_rows(&weight, &values);
                check(&weight, &values, group_rows != 8, &mut random);
                let rounded: Vec<f32> = values.iter().map(|v| f16_to_f32(f32_to_f16(*v))).collect();
                check_rows(&weight.rounded(), &rounded);
            }
        }
    }
}

#[test]
fn rows_share_codes_of_entries_with_several_numbers() {
    let mut random = Random::new(5);
    let n_rows = 36;
    for (n_bits, width, group_rows) in [(4, 2, n_rows), (3, 4, 12), (8, 12, n_rows), (2, 3, 6)] {
        let n_cols = 104;
        let (codes, bytes) = codes(&mut random, n_bits, n_rows / width * n_cols);
        let n_entries = (n_rows / group_rows) << n_bits;
        let entries: Vec<f32> = (0..n_entries * width).map(|_| random.f32()).collect();
        let coding = Coding::Table {
            entries: &entries,
            group_rows,
            width,
            scales: &[],
        };
        let weight = Compressed::new(n_bits, &bytes, coding, [n_rows, n_cols]).unwrap();
        assert_eq!(weight.ordered_len(), None);
        assert_eq!(weight.table_codes_len(), None);
        let value = |i: usize| {
            let (row, col) = (i / n_cols, i % n_cols);
            let code = usize::from(codes[row / width * n_cols + col]);
            let entry = ((row / group_rows) << n_bits) + code;
            entries[entry * width + row % width]
        };
        let values: Vec<f32> = (0..n_rows * n_cols).map(value).collect();
        check_product(&weight, &values, &mut random);
        let mut rows = vec![0.0; 2 * n_cols];
        for ctx in contexts() {
            decompress_rows(&ctx, &weight, &[n_rows - 1, 4], &mut rows);
            let due = [n_rows - 1, 4].map(|row| &values[row * n_cols..][..n_cols]);
            assert_eq!(rows, due.concat(), "{:?}", ctx.isa());
        }
    }
}

#[test]
fn codes_of_every_width_are_scaled_by_their_groups() {
    let mut random = Random::new(4);
    let cases = [
        (4, 96, [1, 32], true, false),
        (4, 96, [10, 96], false, true),
        (8, 77, [1, 77], true, false),
        (8, 330, [1, 110], true, true),
        (3, 24, [5, 12], true, true),
        (2, 520, [37, 520], false, true),
    ];
    for (n_bits, n_cols, group, is_signed, has_offsets) in cases {
        let (codes, bytes) = codes(&mut random, n_bits, N_ROWS * n_cols);
        let n_groups = N_ROWS.div_ceil(group[0]) * (n_cols / group[1]);
        let scales: Vec<f32> = (0..n_groups).map(|_| random.f32()).collect();
        let offsets: Vec<f32> = (0..if has_offsets { n_groups } else { 0 })
            .map(|i| (i % 7) as f32 * 0.37 - 1.001)
            .collect();
        let coding = Coding::Scale {
            is_signed,
            scales: &scales,
            offsets: &offsets,
            group,
        };
        let weight = Compressed::new(n_bits, &bytes, coding, [N_ROWS, n_cols]).unwrap();
        let value = |(i, code): (usize, &u8)| {
            let mut number = i32::from(*code);
            if is_signed && number >= 1 << (n_bits - 1) {
                number -= 1 << n_bits;
            }
            let at = i / n_cols / group[0] * (n_cols / group[1]) + i % n_cols / group[1];
            scales[at] * (number as f32 - offsets.get(at).copied().unwrap_or(0.0))
        };
        let values: Vec<f32> = codes.iter().enumerate().map(value).collect();
        check_rows(&weight, &values);
        let is_orderable = group[1].is_multiple_of(16) || group[1] == n_cols;
        check(&weight, &values, is_orderable, &mut random);
    }
}

#[test]
fn sizes_that_do_not_fit_are_no_weight() {
    let table = Coding::Table {
        entries: &[0.5; 16],
        group_rows: 3,
        width: 1,
        scales: &[],
    };
    let is_weight = |n_bits, n_bytes: usize, coding, shape| {
        Compressed::new(n_bits, &vec![0; n_bytes], coding, shape).is_some()
    };
    assert!(is_weight(4, 12, table, [3, 8]));
    assert!(!is_weight(4, 11, table, [3, 8]));
    // A row that ends within a byte.
    assert!(!is_weight(4, 10, table, [4, 5]));
    assert!(!is_weight(4, 16, table, [4, 8]));
    assert!(!is_weight(3, 9, table, [3, 8]));
    assert!(!is_weight(0, 0, table, [3, 8]));
    assert!(!is_weight(4, 12, table, [3, usize::MAX]));
    let scale = |group| Coding::Scale {
        is_signed: true,
        scales: &[1.0; 6],
        offsets: &[],
        group,
    };
    assert!(is_weight(8, 24, scale([1, 4]), [3, 8]));
    assert!(!is_weight(8, 24, scale([1, 3]), [3, 8]));
    assert!(!is_weight(8, 24, scale([0, 4]), [3, 8]));
}

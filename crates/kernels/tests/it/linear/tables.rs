//! Codes with tables multiplied by activations in 8 bits, against the f64 product of the entries as
//! they are rounded.

use thane_kernels::linear::{
    Coding, Compressed, Epilogue, Operand, Precision, Product, Start, TableCodes, linear,
    linear_scratch_len,
};
use thane_kernels::{Context, activation::Unary};

use super::compressed::codes;
use super::{contexts, product, quantized, worst_error};
use crate::testing::Random;

/// Tokens up to which entries have 16 bits.
const MOST_FINE: usize = 8;

struct Case {
    n_bits: usize,
    shape: [usize; 2],
    bytes: Vec<u8>,
    codes: Vec<u8>,
    entries: Vec<f32>,
    group_rows: usize,
    scales: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, n_bits: usize, shape: [usize; 2], group_rows: usize) -> Self {
        let (codes, bytes) = codes(random, n_bits, shape[0] * shape[1]);
        let n_entries = shape[0].div_ceil(group_rows) << n_bits;
        let n_scales = if shape[1].is_multiple_of(3) {
            shape[0]
        } else {
            0
        };
        Self {
            n_bits,
            shape,
            bytes,
            codes,
            entries: random.f32s(n_entries),
            group_rows,
            scales: random.f32s(n_scales),
        }
    }

    fn weight(&self) -> Compressed<'_> {
        let coding = Coding::Table {
            entries: &self.entries,
            group_rows: self.group_rows,
            width: 1,
            scales: &self.scales,
        };
        Compressed::new(self.n_bits, &self.bytes, coding, self.shape).unwrap()
    }

    /// The values, of entries that are integers of 16 bits, or their upper bytes to nearest.
    fn values(&self, is_fine: bool) -> Vec<f32> {
        let n = 1 << self.n_bits;
        let rounded = self.entries.chunks_exact(n).flat_map(|table| {
            let most = table.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            table.iter().map(move |v| {
                let number = (v * (32512.0 / most)).round_ties_even();
                let high = ((number + 128.0) / 256.0).floor();
                let number = if is_fine { number } else { 256.0 * high };
                number * (most / 32512.0)
            })
        });
        let rounded: Vec<f32> = rounded.collect();
        let value = |(i, code): (usize, &u8)| {
            let row = i / self.shape[1];
            let scale = self.scales.get(row).copied().unwrap_or(1.0);
            scale * rounded[row / self.group_rows * n + usize::from(*code)]
        };
        self.codes.iter().enumerate().map(value).collect()
    }
}

/// The product with the bias, and `relu` of it times the same product without, in one go.
fn multiply(ctx: &Context, weight: TableCodes, x: &[f32], bias: &[f32]) -> [Vec<f32>; 2] {
    let n_tokens = x.len() / weight.n_cols();
    let weight = Operand::Tables(weight);
    let gated = Epilogue::Gated {
        op: Unary::Relu,
        up: weight,
        bias: None,
    };
    [Epilogue::None, gated].map(|epilogue| {
        let mut y = vec![f32::NAN; n_tokens * weight.n_rows()];
        let start = Start::from(Some(bias));
        let mut products = [Product::new(weight, n_tokens, start, &mut y)];
        let len = linear_scratch_len(ctx, Precision::Fast, &products, n_tokens, epilogue);
        let mut scratch = vec![f32::NAN; len];
        linear(
            ctx,
            Precision::Fast,
            &mut products,
            x,
            n_tokens,
            epilogue,
            &mut scratch,
        );
        y
    })
}

fn check(random: &mut Random, case: &Case) {
    let [n_rows, n_cols] = case.shape;
    let bias = random.f32s(n_rows);
    let (tables, factors) = case.weight().table_bytes();
    for ctx in contexts() {
        // As if something else had been there.
        let mut packed = vec![0xa5; case.weight().table_codes_len().unwrap()];
        case.weight().write_table_codes(&ctx, &mut packed);
        let tables = (tables.as_slice(), factors.as_slice());
        let weight = TableCodes::new(case.n_bits, &packed, tables, case.shape).unwrap();
        for n_tokens in [1, 2, 3, MOST_FINE, MOST_FINE + 1, 29] {
            let x = random.f32s(n_tokens * n_cols);
            let values = case.values(n_tokens <= MOST_FINE);
            let due = product(&values, &quantized(&x, n_cols), n_cols, &bias);
            let [y, gated] = multiply(&ctx, weight, &x, &bias);
            let (shape, isa) = (case.shape, ctx.isa());
            let error = worst_error(&y, &due);
            assert!(error < 2e-6, "{shape:?}, {n_tokens}, {isa:?}: {error}");
            let both = y.iter().zip(bias.iter().cycle());
            let due: Vec<(f64, f64)> = both
                .zip(&due)
                .map(|((y, bias), (_, size))| {
                    let value = f64::from(y.max(0.0)) * f64::from(y - bias);
                    (value, size * size + 1e-30)
                })
                .collect();
            let error = worst_error(&gated, &due);
            assert!(
                error < 2e-6,
                "gated {shape:?}, {n_tokens}, {isa:?}: {error}"
            );
        }
    }
}

#[test]
fn entries_have_16_bits_for_few_tokens_and_8_for_many() {
    let mut random = Random::new(8);
    for (n_bits, n_cols) in [(1, 48), (2, 300), (3, 536), (4, 34), (4, 96), (4, 1030)] {
        for group_rows in [37, 16, 8, 4] {
            let case = Case::new(&mut random, n_bits, [37, n_cols], group_rows);
            check(&mut random, &case);
        }
    }
    // As of a vocabulary.
    let case = Case::new(&mut random, 4, [200, 8], 200);
    check(&mut random, &case);
}

#[test]
fn tables_that_rows_do_not_share_are_not_packed() {
    let mut random = Random::new(9);
    let is_packed = |n_bits, group_rows, random: &mut Random| {
        let case = Case::new(random, n_bits, [12, 40], group_rows);
        case.weight().table_codes_len().is_some()
    };
    assert!(is_packed(4, 4, &mut random));
    assert!(!is_packed(4, 2, &mut random));
    assert!(!is_packed(6, 12, &mut random));
    let mut case = Case::new(&mut random, 4, [12, 40], 12);
    case.entries[3] = f32::INFINITY;
    assert_eq!(case.weight().table_codes_len(), None);
}

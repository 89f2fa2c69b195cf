//! Products of every block type against f64, on every instruction set of the machine.

use thane_kernels::activation::{Unary, unary_in_place};
use thane_kernels::f16::{bf16_to_f32, f32_to_bf16};
use thane_kernels::linear::{
    Codes, Epilogue, Operand, Packed, PackedCodes, PackedColumn, Precision, Product, Start,
    dequantize_rows_gather, linear, linear_codes_best, linear_codes_best_scratch_len,
    linear_scratch_len, pack, pack_codes, pack_codes_scratch_len, packed_codes_len, packed_len,
};
use thane_kernels::quant::has_format;
use thane_kernels::{BlockType, Context, Weight};

use self::int8::refitted;
use crate::testing::{self, LANES, Random, relative_error};

mod compressed;
mod halves;
mod int8;
mod screen;
mod sparse;
mod tables;
mod tasks;

/// Every instruction set, with one thread and with several.
fn contexts() -> Vec<Context> {
    testing::contexts(3)
}

/// Sizes: rows about the panel's 16, tokens about each tile, columns with and without half a pair
/// of blocks.
fn shapes(ty: BlockType) -> Vec<(usize, usize, usize)> {
    let unit = ty.block_len();
    let n_cols: Vec<usize> = match unit {
        1 => vec![1, 15, 33, 256, 300],
        32 => vec![32, 64, 96, 576],
        _ => vec![256, 768],
    };
    let mut shapes = Vec::new();
    for n_cols in n_cols {
        for n_rows in [1, 16, 37] {
            for n_tokens in [0, 1, 2, 3, 4, 7, 8, 29] {
                shapes.push((n_tokens, n_rows, n_cols));
            }
        }
    }
    shapes
}

/// The product in f64 of f32 values, and the sum of the magnitudes that it is made of.
fn product(w: &[f32], x: &[f64], n_cols: usize, bias: &[f32]) -> Vec<(f64, f64)> {
    let dot = |w: &[f32], x: &[f64], bias: f32| {
        let terms = || {
            w.iter()
                .zip(x)
                .map(|(w, x)| f64::from(*w) * x)
                .chain([f64::from(bias)])
        };
        (terms().sum(), terms().map(f64::abs).sum())
    };
    let rows = |x| {
        w.chunks_exact(n_cols)
            .zip(bias)
            .map(move |(w, b)| dot(w, x, *b))
    };
    x.chunks_exact(n_cols).flat_map(rows).collect()
}

/// The largest error in units of the magnitudes that the output is made of.
fn worst_error(y: &[f32], expected: &[(f64, f64)]) -> f64 {
    assert_eq!(y.len(), expected.len());
    let errors = y
        .iter()
        .zip(expected)
        .map(|(y, (value, size))| (f64::from(*y) - value).abs() / size);
    errors.fold(
        0.0,
        |worst, error| if error <= worst { worst } else { error },
    )
}

/// What the 8-bit codes say, independently of how they are packed.
fn quantized(x: &[f32], n_cols: usize) -> Vec<f64> {
    x.chunks_exact(n_cols)
        .flat_map(|row| row.chunks(32))
        .flat_map(|block| {
            let max = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let inverse = if max < 1e-36 { 0.0 } else { 127.0 / max };
            block
                .iter()
                .map(move |x| f64::from((x * inverse).round_ties_even()) * f64::from(max / 127.0))
        })
        .collect()
}

/// Tokens above which products of stored codes refit them, and those of packed codes.
const MOST: [usize; 2] = [2, 8];

struct Case {
    bytes: Vec<u8>,
    values: Vec<f32>,
    x: Vec<f32>,
    bias: Vec<f32>,
}

fn case(
    random: &mut Random,
    ty: BlockType,
    (n_tokens, n_rows, n_cols): (usize, usize, usize),
) -> Case {
    let bytes = random.weight_bytes(ty, n_rows, n_cols);
    let mut values = vec![0.0; n_rows * n_cols];
    ty.decode(&bytes, &mut values);
    Case {
        bytes,
        values,
        x: random.f32s(n_tokens * n_cols),
        bias: random.f32s(n_rows),
    }
}

/// What a product starts with, the outputs before it, and what is due.
type Begun<'a> = (Start<'a>, Vec<f32>, Vec<(f64, f64)>);

/// With the bias alone, and added to what is there.
fn starts<'a>(random: &mut Random, bias: &'a [f32], expected: Vec<(f64, f64)>) -> [Begun<'a>; 2] {
    let before = random.f32s(expected.len());
    let add = |((value, size), y): (&(f64, f64), &f32)| {
        (value + f64::from(*y), size + f64::from(y.abs()))
    };
    let more = expected.iter().zip(&before).map(add).collect();
    let start = |accumulates| Start {
        bias: Some(bias),
        accumulates,
    };
    [
        (start(false), vec![f32::NAN; expected.len()], expected),
        (start(true), before, more),
    ]
}

#[test]
fn f32_product_of_every_type_and_shape() {
    let contexts = contexts();
    let mut random = Random::new(1);
    for ty in BlockType::ALL {
        // More tokens than a task takes of so many columns.
        for shape @ (n_tokens, n_rows, n_cols) in shapes(ty).into_iter().chain([(101, 37, 2816)]) {
            let Case {
                bytes,
                values,
                x,
                bias,
            } = case(&mut random, ty, shape);
            let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
            let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let starts = starts(&mut random, &bias, product(&values, &exact, n_cols, &bias));
            for (ctx, (start, before, expected)) in contexts
                .iter()
                .flat_map(|ctx| starts.iter().map(move |s| (ctx, s)))
            {
                let mut y = before.clone();
                by_linear_as(
                    ctx,
                    Precision::Exact,
                    weight,
                    (&x, n_tokens),
                    *start,
                    Epilogue::None,
                    &mut y,
                );
                let error = worst_error(&y, expected);
                assert!(
                    error < 1e-6,
                    "{ty:?} {shape:?} {}: {error}",
                    ctx.isa().name()
                );
                if ty != BlockType::F32 {
                    continue;
                }
                y.copy_from_slice(before);
                assert!(
                    by_panels(ctx, &weight, &x, n_tokens, *start, None, &mut y),
                    "f32 is packed"
                );
                let error = worst_error(&y, expected);
                assert!(
                    error < 1e-6,
                    "packed {shape:?} {}: {error}",
                    ctx.isa().name()
                );
                let mut activated = before.clone();
                by_panels(
                    ctx,
                    &weight,
                    &x,
                    n_tokens,
                    *start,
                    Some(Unary::GeluErf),
                    &mut activated,
                );
                unary_in_place(ctx, Unary::GeluErf, &mut y);
                assert!(
                    activated
                        .iter()
                        .zip(&y)
                        .all(|(a, b)| a.to_bits() == b.to_bits()),
                    "activated {shape:?}"
                );
            }
        }
    }
}

#[test]
fn q8_product_of_every_type_and_shape() {
    let contexts = contexts();
    let mut random = Random::new(2);
    for ty in BlockType::ALL.into_iter().filter(|ty| has_format(*ty)) {
        for shape @ (n_tokens, n_rows, n_cols) in shapes(ty) {
            let Case {
                bytes,
                values,
                x,
                bias,
            } = case(&mut random, ty, shape);
            let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
            let refitted = refitted(&weight, &values);
            let x8 = quantized(&x, n_cols);
            let [own, refitted] = [&values, &refitted].map(|w| product(w, &x8, n_cols, &bias));
            let starts = [own, refitted].map(|due| starts(&mut random, &bias, due));
            for (ctx, i) in contexts.iter().flat_map(|ctx| [(ctx, 0), (ctx, 1)]) {
                let due = MOST.map(|most| {
                    &starts[usize::from(ctx.isa().has_wide_sums() && n_tokens > most)][i]
                });
                let (start, before, expected) = due[0];
                let mut y = before.clone();
                by_linear(ctx, weight, (&x, n_tokens), *start, Epilogue::None, &mut y);
                let error = worst_error(&y, expected);
                assert!(
                    error < 1e-6,
                    "{ty:?} {shape:?} {}: {error}",
                    ctx.isa().name()
                );
                let (start, before, expected) = due[1];
                for y in by_codes(ctx, &weight, &x, n_tokens, *start, before) {
                    let error = worst_error(&y, expected);
                    assert!(
                        error < 1e-6,
                        "packed {ty:?} {shape:?} {}: {error}",
                        ctx.isa().name()
                    );
                }
            }
        }
    }
}

/// The codes of a weight, packed, where its type is.
fn packed_codes(ctx: &Context, weight: &Weight) -> Option<Vec<u8>> {
    let Weight {
        ty, n_rows, n_cols, ..
    } = *weight;
    let mut bytes = vec![0xa5; packed_codes_len(ty, n_rows, n_cols)?];
    let mut scratch = vec![f32::NAN; pack_codes_scratch_len(ctx, n_cols)];
    pack_codes(ctx, weight, 0..n_rows, &mut bytes, &mut scratch);
    Some(bytes)
}

/// The product with the codes as they are stored, and packed, where their type is.
fn by_codes(
    ctx: &Context,
    weight: &Weight,
    x: &[f32],
    n_tokens: usize,
    start: Start,
    before: &[f32],
) -> Vec<Vec<f32>> {
    let Weight {
        ty, n_rows, n_cols, ..
    } = *weight;
    let bytes = packed_codes(ctx, weight);
    let packed = bytes.as_deref().map(|bytes| {
        Codes::Packed(PackedCodes {
            ty,
            bytes,
            n_rows,
            n_cols,
        })
    });
    let product = |codes: Codes| {
        let mut y = before.to_vec();
        by_linear(ctx, codes, (x, n_tokens), start, Epilogue::None, &mut y);
        y
    };
    // Fewer are multiplied by themselves.
    let stored = (n_tokens > MOST[1]).then_some(Codes::Stored(*weight));
    stored.into_iter().chain(packed).map(product).collect()
}

/// The product with one operand, by [`linear`].
fn by_linear<'a>(
    ctx: &Context,
    weight: impl Into<Operand<'a>>,
    x: (&[f32], usize),
    start: Start<'a>,
    epilogue: Epilogue<'a>,
    y: &'a mut [f32],
) {
    by_linear_as(ctx, Precision::Fast, weight, x, start, epilogue, y);
}

fn by_linear_as<'a>(
    ctx: &Context,
    precision: Precision,
    weight: impl Into<Operand<'a>>,
    (x, n_tokens): (&[f32], usize),
    start: Start<'a>,
    epilogue: Epilogue<'a>,
    y: &'a mut [f32],
) {
    let mut product = [Product::new(weight, n_tokens, start, y)];
    let len = linear_scratch_len(ctx, precision, &product, n_tokens, epilogue);
    let mut scratch = vec![f32::NAN; len];
    let (product, scratch) = (&mut product, &mut scratch);
    linear(ctx, precision, product, x, n_tokens, epilogue, scratch);
}

/// Outputs are SiLU of the first product times the second, of those that are due with all biases.
fn assert_gated(
    y: &[f32],
    due: [&Vec<(f64, f64)>; 2],
    cases: [&Case; 2],
    biases: [Option<&[f32]>; 2],
    what: &str,
) {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    for (i, y) in y.iter().enumerate() {
        let bias = |at: usize| {
            let all = &cases[at].bias;
            biases[at].map_or(f64::from(all[i % all.len()]), |_| 0.0)
        };
        let ((gate, gate_size), (up, up_size)) = (due[0][i], due[1][i]);
        let (gate, up) = (gate - bias(0), up - bias(1));
        let size = (gate_size + 1.0) * (up_size + 1.0);
        let error = (f64::from(*y) - silu(gate) * up).abs() / size;
        assert!(error < 1e-6, "{what} at {i}: {error}");
    }
}

/// Tokens, rows and columns: 2304 columns are several parts, and 911 tokens of them several blocks.
const GATED_SHAPES: [(usize, usize, usize); 7] = [
    (0, 5, 256),
    (1, 37, 512),
    (2, 16, 256),
    (7, 37, 512),
    (29, 37, 768),
    (101, 53, 2304),
    (911, 21, 2304),
];

/// In `f64`: what an activation gives of one product, times another.
#[test]
fn gated_products_are_the_activation_of_one_times_the_other() {
    let mut random = Random::new(11);
    let contexts = contexts();
    let types = [
        BlockType::Q4_1,
        BlockType::Q4_0,
        BlockType::Q8_0,
        BlockType::Q6K,
    ];
    for (ty, other) in types
        .into_iter()
        .map(|ty| (ty, ty))
        .chain([(BlockType::Q4_1, BlockType::Q8_0)])
    {
        for shape @ (n_tokens, n_rows, n_cols) in GATED_SHAPES {
            // How tokens fill several tiles is the same for all types, and sums in f64 are slow.
            if n_tokens > 500 && other != BlockType::Q8_0 {
                continue;
            }
            let cases = [
                case(&mut random, ty, shape),
                case(&mut random, other, shape),
            ];
            // So large that the activation bends, so small that it does not cut.
            let x: Vec<f32> = cases[0]
                .x
                .iter()
                .map(|x| x * 2.0 / (n_cols as f32).sqrt())
                .collect();
            let x8 = quantized(&x, n_cols);
            let due = [0, 1].map(|i| {
                let case = &cases[i];
                let weight = Weight::new([ty, other][i], &case.bytes, n_rows, n_cols).unwrap();
                [&case.values, &refitted(&weight, &case.values)]
                    .map(|w| product(w, &x8, n_cols, &case.bias))
            });
            for ctx in &contexts {
                let weights: Vec<Vec<u8>> = [ty, other]
                    .iter()
                    .zip(&cases)
                    .map(|(ty, case)| {
                        packed_codes(ctx, &Weight::new(*ty, &case.bytes, n_rows, n_cols).unwrap())
                            .unwrap()
                    })
                    .collect();
                let packed = |i: usize, ty| {
                    Codes::Packed(PackedCodes {
                        ty,
                        bytes: &weights[i],
                        n_rows,
                        n_cols,
                    })
                };
                let stored = |i: usize, ty| {
                    Codes::Stored(Weight::new(ty, &cases[i].bytes, n_rows, n_cols).unwrap())
                };
                let biases = [Some(cases[0].bias.as_slice()), Some(&cases[1].bias)];
                for (weights, biases) in [
                    ([packed(0, ty), packed(1, other)], biases),
                    ([packed(0, ty), packed(1, other)], [None, None]),
                    ([stored(0, ty), stored(1, other)], biases),
                    ([packed(0, ty), stored(1, other)], biases),
                ] {
                    let gated = Epilogue::Gated {
                        op: Unary::Silu,
                        up: weights[1].into(),
                        bias: biases[1],
                    };
                    let mut y = vec![f32::NAN; n_tokens * n_rows];
                    let start = biases[0].into();
                    by_linear(ctx, weights[0], (&x, n_tokens), start, gated, &mut y);
                    let due = [0, 1].map(|at| {
                        let is_stored = matches!(weights[at], Codes::Stored(_));
                        let most = MOST[usize::from(!is_stored)];
                        &due[at][usize::from(ctx.isa().has_wide_sums() && n_tokens > most)]
                    });
                    let what = format!("{ty:?} {other:?} {shape:?} {}", ctx.isa().name());
                    assert_gated(&y, due, [&cases[0], &cases[1]], biases, &what);
                }
            }
        }
    }
}

#[test]
fn eight_types_are_packed() {
    let packed = BlockType::ALL
        .into_iter()
        .filter(|ty| packed_codes_len(*ty, 33, 512).is_some());
    use BlockType::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    assert_eq!(
        packed.collect::<Vec<_>>(),
        [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K]
    );
    assert_eq!(packed_codes_len(Q8_0, usize::MAX, 1 << 20), None);
}

#[test]
fn q8_loses_less_than_a_percent() {
    let mut random = Random::new(3);
    let shape @ (n_tokens, n_rows, n_cols) = (6, 64, 768);
    for ty in BlockType::ALL.into_iter().filter(|ty| has_format(*ty)) {
        let Case {
            bytes,
            values,
            x,
            bias,
        } = case(&mut random, ty, shape);
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let expected: Vec<f64> = product(&values, &exact, n_cols, &bias)
            .into_iter()
            .map(|(value, _)| value)
            .collect();
        let ctx = Context::new(1);
        let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
        let mut y = vec![0.0; n_tokens * n_rows];
        by_linear(
            &ctx,
            weight,
            (&x, n_tokens),
            Start::bias(&bias),
            Epilogue::None,
            &mut y,
        );
        let error = relative_error(&y, &expected);
        assert!(error < 0.01, "{ty:?}: {error}");
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    // All weights and activations at the ends of their ranges, with equal and with opposite signs.
    let blocks: [(BlockType, u8); 10] = [
        (BlockType::Q4_0, 0xff),
        (BlockType::Q4_0, 0),
        (BlockType::Q8_0, 0x80),
        (BlockType::Q8_0, 0x7f),
        (BlockType::Q6K, 0xff),
        (BlockType::Q5K, 0xff),
        (BlockType::Q4K, 0xff),
        (BlockType::Q5_1, 0xff),
        (BlockType::Iq4Nl, 0),
        (BlockType::Iq4Nl, 0xff),
    ];
    for ctx in contexts() {
        for (ty, fill) in blocks {
            for sign in [1.0, -1.0] {
                for n_tokens in [1, 13] {
                    let (n_rows, n_cols) = (16, 256);
                    let mut bytes = vec![fill; n_rows * ty.byte_len(n_cols).unwrap()];
                    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                        if matches!(ty, BlockType::Q4K | BlockType::Q5K) {
                            block[2..4].copy_from_slice(&0x3400u16.to_le_bytes());
                        }
                        let at = if ty == BlockType::Q6K { 208 } else { 0 };
                        block[at..at + 2].copy_from_slice(&0x3c00u16.to_le_bytes());
                        if ty == BlockType::Q5_1 {
                            block[2..4].fill(0);
                        }
                    }
                    let mut values = vec![0.0; n_rows * n_cols];
                    ty.decode(&bytes, &mut values);
                    let x = vec![sign; n_tokens * n_cols];
                    let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
                    if ctx.isa().has_wide_sums() && n_tokens > MOST[0] {
                        values = refitted(&weight, &values);
                    }
                    let expected = product(&values, &quantized(&x, n_cols), n_cols, &[0.0; 16]);
                    let mut y = vec![0.0; n_tokens * n_rows];
                    by_linear(
                        &ctx,
                        weight,
                        (&x, n_tokens),
                        Start::NONE,
                        Epilogue::None,
                        &mut y,
                    );
                    let error = worst_error(&y, &expected);
                    assert!(
                        error < 1e-6,
                        "{ty:?} {fill:#x} {sign} {n_tokens} {}: {error}",
                        ctx.isa().name()
                    );
                    for y in by_codes(&ctx, &weight, &x, n_tokens, Start::default(), &y) {
                        let error = worst_error(&y, &expected);
                        assert!(
                            error < 1e-6,
                            "packed {ty:?} {fill:#x} {sign} {n_tokens}: {error}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn activations_that_are_not_numbers_show() {
    let mut random = Random::new(4);
    let (n_rows, n_cols) = (3, 64);
    let bytes = random.weight_bytes(BlockType::Q4_1, n_rows, n_cols);
    let weight = Weight::new(BlockType::Q4_1, &bytes, n_rows, n_cols).unwrap();
    for ctx in contexts() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for n_tokens in [1, 6] {
                for at in [0, 17, 40, 63] {
                    let mut x = random.f32s(n_tokens * n_cols);
                    x[at] = bad;
                    let mut y = vec![0.0; n_tokens * n_rows];
                    by_linear(
                        &ctx,
                        weight,
                        (&x, n_tokens),
                        Start::NONE,
                        Epilogue::None,
                        &mut y,
                    );
                    assert!(
                        y[..n_rows].iter().all(|y| y.is_nan()),
                        "{} {bad} at {at}",
                        ctx.isa().name()
                    );
                    assert!(
                        y[n_rows..].iter().all(|y| y.is_finite()),
                        "{} {bad} at {at}",
                        ctx.isa().name()
                    );
                }
            }
        }
    }
}

#[test]
fn of_no_columns_there_is_the_bias() {
    let bias: Vec<f32> = (0..53u8).map(f32::from).collect();
    for ctx in contexts() {
        for ty in BlockType::ALL {
            for n_tokens in [1, 3, 9, 20] {
                let due = bias.repeat(n_tokens);
                let weight = Weight::new(ty, &[], 53, 0).unwrap();
                let mut y = vec![f32::NAN; due.len()];
                by_linear(
                    &ctx,
                    weight,
                    (&[], n_tokens),
                    Start::bias(&bias),
                    Epilogue::None,
                    &mut y,
                );
                assert_eq!(y, due, "{ty:?} {n_tokens} {}", ctx.isa().name());
                for y in by_codes(
                    &ctx,
                    &weight,
                    &[],
                    n_tokens,
                    Some(bias.as_slice()).into(),
                    &y,
                ) {
                    assert_eq!(y, due, "packed {ty:?} {n_tokens} {}", ctx.isa().name());
                }
                if ty == BlockType::F32 {
                    y.fill(f32::NAN);
                    by_panels(
                        &ctx,
                        &weight,
                        &[],
                        n_tokens,
                        Some(bias.as_slice()).into(),
                        None,
                        &mut y,
                    );
                    assert_eq!(y, due, "panels {n_tokens} {}", ctx.isa().name());
                }
            }
        }
    }
}

#[test]
fn tiny_and_zero_activations() {
    let mut random = Random::new(5);
    let bytes = random.weight_bytes(BlockType::Q8_0, 2, 64);
    let weight = Weight::new(BlockType::Q8_0, &bytes, 2, 64).unwrap();
    for ctx in contexts() {
        for size in [0.0, 1e-45, 1e-38, 9e-37, 1e-35, 1e30] {
            let x = vec![size; 64];
            let mut y = vec![f32::NAN; 2];
            by_linear(&ctx, weight, (&x, 1), Start::NONE, Epilogue::None, &mut y);
            assert!(
                y.iter()
                    .all(|y| y.is_finite()
                        && (size < 1e-36 && *y == 0.0 || size >= 1e-36 && *y != 0.0)),
                "{size}: {y:?}"
            );
        }
    }
}

/// The product with the weight in panels; false where it is not packed.
fn by_panels(
    ctx: &Context,
    weight: &Weight,
    x: &[f32],
    n_tokens: usize,
    start: Start,
    then: Option<Unary>,
    y: &mut [f32],
) -> bool {
    let Weight {
        ty, n_rows, n_cols, ..
    } = *weight;
    let Some(len) = packed_len(ctx.isa(), ty, n_rows, n_cols) else {
        return false;
    };
    let mut panels = vec![PackedColumn([f32::NAN; LANES]); len];
    pack(ctx, weight, &mut panels);
    let packed = Packed {
        ty,
        panels: &panels,
        n_rows,
        n_cols,
    };
    let epilogue = then.map_or(Epilogue::None, Epilogue::Activated);
    by_linear(ctx, packed, (x, n_tokens), start, epilogue, y);
    true
}

/// Rows about the tiles of 4 and 32, columns about the steps of 32 and the panels of 768 and 1024,
/// tokens about the tiles of 4 and 12 of both forms.
fn bf16_shapes() -> Vec<(usize, usize, usize)> {
    let mut shapes = Vec::new();
    for n_cols in [0, 1, 2, 31, 32, 33, 63, 100, 225, 300, 576, 1061, 2050] {
        for n_rows in [0, 1, 4, 37, 70] {
            for n_tokens in [0, 1, 2, 3, 4, 7, 32, 33, 67] {
                shapes.push((n_tokens, n_rows, n_cols));
            }
        }
    }
    shapes
}

fn fast(
    ctx: &Context,
    weight: &Weight,
    x: &[f32],
    n_tokens: usize,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let mut y = vec![f32::NAN; n_tokens * weight.n_rows];
    by_linear(
        ctx,
        *weight,
        (x, n_tokens),
        bias.into(),
        Epilogue::None,
        &mut y,
    );
    y
}

#[test]
fn bf16_product_of_every_shape() {
    let contexts = contexts();
    let mut random = Random::new(7);
    for shape @ (n_tokens, n_rows, n_cols) in bf16_shapes() {
        let Case {
            bytes,
            values,
            x,
            bias,
        } = case(&mut random, BlockType::Bf16, shape);
        let weight = Weight::new(BlockType::Bf16, &bytes, n_rows, n_cols).unwrap();
        let rounded: Vec<f64> = x
            .iter()
            .map(|x| f64::from(bf16_to_f32(f32_to_bf16(*x))))
            .collect();
        let expected = if n_cols == 0 {
            let row = bias
                .iter()
                .map(|bias| (f64::from(*bias), f64::from(bias.abs())));
            row.cycle().take(n_tokens * n_rows).collect()
        } else {
            product(&values, &rounded, n_cols, &bias)
        };
        for ctx in &contexts {
            let y = fast(ctx, &weight, &x, n_tokens, Some(&bias));
            if ctx.isa().has_bf16() {
                let error = worst_error(&y, &expected);
                assert!(error < 1e-6, "{shape:?} {}: {error}", ctx.isa().name());
                let mut y = vec![f32::NAN; y.len()];
                let is_packed = by_panels(
                    ctx,
                    &weight,
                    &x,
                    n_tokens,
                    Some(bias.as_slice()).into(),
                    None,
                    &mut y,
                );
                assert_eq!(is_packed, n_cols % 2 == 0, "{shape:?}");
                let error = if is_packed {
                    worst_error(&y, &expected)
                } else {
                    0.0
                };
                assert!(
                    error < 1e-6,
                    "packed {shape:?} {}: {error}",
                    ctx.isa().name()
                );
            } else {
                let mut reference = vec![f32::NAN; y.len()];
                by_linear_as(
                    ctx,
                    Precision::Exact,
                    weight,
                    (&x, n_tokens),
                    Start::bias(&bias),
                    Epilogue::None,
                    &mut reference,
                );
                assert_eq!(y, reference, "{shape:?} {}", ctx.isa().name());
            }
        }
    }
}

#[test]
fn bf16_loses_less_than_a_percent() {
    let mut random = Random::new(8);
    for n_tokens in [1, 67] {
        let shape @ (_, n_rows, n_cols) = (n_tokens, 64, 2048);
        let Case {
            bytes,
            values,
            x,
            bias,
        } = case(&mut random, BlockType::Bf16, shape);
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let expected: Vec<f64> = product(&values, &exact, n_cols, &bias)
            .into_iter()
            .map(|(value, _)| value)
            .collect();
        let weight = Weight::new(BlockType::Bf16, &bytes, n_rows, n_cols).unwrap();
        let error = relative_error(
            &fast(&Context::new(1), &weight, &x, n_tokens, Some(&bias)),
            &expected,
        );
        assert!(error < 0.01, "{n_tokens}: {error}");
    }
}

#[test]
fn bf16_values_that_are_not_numbers_stay_where_they_are() {
    let mut random = Random::new(9);
    let (n_rows, n_cols) = (37, 45);
    let bytes = random.weight_bytes(BlockType::Bf16, n_rows, n_cols);
    for ctx in contexts() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for n_tokens in [1, 2, 5, 67] {
                for at in [0, 31, 32, 44] {
                    // In the activations of the first token.
                    let weight = Weight::new(BlockType::Bf16, &bytes, n_rows, n_cols).unwrap();
                    let mut x = random.f32s(n_tokens * n_cols);
                    x[at] = bad;
                    let y = fast(&ctx, &weight, &x, n_tokens, None);
                    let name = ctx.isa().name();
                    assert!(
                        y[..n_rows]
                            .iter()
                            .all(|y| !y.is_finite() && y.is_nan() == bad.is_nan()),
                        "{name} {bad} {at}"
                    );
                    assert!(
                        y[n_rows..].iter().all(|y| y.is_finite()),
                        "{name} {bad} {at}"
                    );
                    // In the weights of the second row.
                    x[at] = 1.0;
                    let mut bytes = bytes.clone();
                    bytes[2 * (n_cols + at)..][..2]
                        .copy_from_slice(&f32_to_bf16(bad).to_le_bytes());
                    let weight = Weight {
                        bytes: &bytes,
                        ..weight
                    };
                    let y = fast(&ctx, &weight, &x, n_tokens, None);
                    let is_right = |(i, y): (usize, &f32)| y.is_finite() == (i % n_rows != 1);
                    assert!(
                        y.iter().enumerate().all(is_right),
                        "{name} {bad} {at}: {y:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn bf16_subnormals_are_zeros_and_ties_go_to_even() {
    let one = f32_to_bf16(1.0).to_le_bytes();
    let bytes = one.repeat(40);
    let weight = Weight::new(BlockType::Bf16, &bytes, 1, 40).unwrap();
    for ctx in contexts().into_iter().filter(|ctx| ctx.isa().has_bf16()) {
        for n_tokens in [1, 67] {
            // Alone in a token of zeros: a value, and what is left of it.
            for (value, expected) in [
                (1e-39, 0.0),
                (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
                (f32::MAX, f32::INFINITY),
                (f32::from_bits(0x3f80_8000), 1.0),
                (f32::from_bits(0x3f80_8001), 1.0 + 1.0 / 128.0),
                (f32::from_bits(0x3f81_8000), 1.0 + 2.0 / 128.0),
            ] {
                let mut x = vec![0.0; n_tokens * 40];
                x.chunks_exact_mut(40).for_each(|x| x[33] = value);
                assert_eq!(
                    fast(&ctx, &weight, &x, n_tokens, None),
                    vec![expected; n_tokens],
                    "{value}"
                );
            }
        }
    }
}

#[test]
fn gather_is_the_scalar_form() {
    let mut random = Random::new(6);
    for ty in BlockType::ALL {
        let (n_rows, n_cols) = (9, 768);
        let bytes = random.weight_bytes(ty, n_rows, n_cols);
        let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
        let row_bytes = ty.byte_len(n_cols).unwrap();
        let indices = [8, 0, 3, 3];
        let mut expected = vec![0.0; indices.len() * n_cols];
        for (out, row_idx) in expected.chunks_exact_mut(n_cols).zip(indices) {
            ty.decode(&bytes[row_idx * row_bytes..][..row_bytes], out);
        }
        for ctx in contexts() {
            let mut out = vec![f32::NAN; indices.len() * n_cols];
            dequantize_rows_gather(&ctx, &weight, &indices, &mut out);
            assert_eq!(out, expected, "{ty:?} {}", ctx.isa().name());
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    assert_eq!(
        Weight::new(BlockType::Q4K, &[], 1, 128)
            .unwrap_err()
            .to_string(),
        "a row of 128 values is not a whole number of Q4K blocks of 256"
    );
    assert_eq!(
        Weight::new(BlockType::Q8_0, &[0; 33], 1, 32)
            .unwrap_err()
            .to_string(),
        "the weight needs 34 bytes and has 33"
    );
    assert!(Weight::new(BlockType::F32, &[], usize::MAX, 1 << 20).is_err());
    assert!(Weight::new(BlockType::F32, &[], 0, 5).is_ok());
}

/// All codes and all activations the largest or the least: no sum on the way is further from zero.
#[test]
fn sums_of_the_largest_codes_do_not_overflow() {
    use BlockType::{Q4_0, Q4_1, Q5_0, Q5_1, Q6K, Q8_0};
    let mut random = Random::new(17);
    for (ty, codes) in [
        (Q4_0, 2..18),
        (Q4_1, 4..20),
        (Q5_0, 2..22),
        (Q5_1, 4..24),
        (Q8_0, 2..34),
        (Q6K, 0..192),
    ] {
        for (byte, x) in [
            (0xff, 1.0),
            (0xff, -1.0),
            (0, 1.0),
            (0, -1.0),
            (0x80, 1.0),
            (0x7f, -1.0),
        ] {
            let (n_tokens, n_rows, n_cols) = (29, 37, 256);
            let mut case = case(&mut random, ty, (n_tokens, n_rows, n_cols));
            for block in case.bytes.chunks_exact_mut(ty.block_bytes()) {
                block[codes.clone()].fill(byte);
            }
            ty.decode(&case.bytes, &mut case.values);
            let x = vec![x; n_tokens * n_cols];
            let weight = Weight::new(ty, &case.bytes, n_rows, n_cols).unwrap();
            let refitted = refitted(&weight, &case.values);
            for ctx in contexts() {
                let values = if ctx.isa().has_wide_sums() {
                    &refitted
                } else {
                    &case.values
                };
                let expected = product(values, &quantized(&x, n_cols), n_cols, &case.bias);
                let mut y = vec![f32::NAN; n_tokens * n_rows];
                by_linear(
                    &ctx,
                    weight,
                    (&x, n_tokens),
                    Start::bias(&case.bias),
                    Epilogue::None,
                    &mut y,
                );
                let error = worst_error(&y, &expected);
                assert!(
                    error < 2e-6,
                    "{ty:?}, codes {byte:#x}, {}: {error}",
                    ctx.isa().name()
                );
            }
        }
    }
}

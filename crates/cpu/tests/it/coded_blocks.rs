//! Constants that were made of blocks become blocks of the same numbers; others are refused.

use std::ops::Range;

use thane_cpu::internals::{Coding, Compressed};
use thane_cpu::{Cpu, Numerics};
use thane_kernels::f16::f16_to_f32;
use thane_kernels::{BlockType, Context};
use thane_mil::backend::{Backend, Instance};
use thane_mil::build::FunctionBuilder;
use thane_mil::data::{Bytes, Data};
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Program, ValueId};
use thane_mil::types::{DType, TensorType, Type};
use thane_models::checkpoint::TensorType as StoredType;
use thane_models::quant;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20
    }

    fn half(&mut self) -> u16 {
        let value = self.next() % 4000 + 1;
        f64_to_f16(value as f64 / 1e5)
    }
}

/// Blocks of noise whose f16 numbers are like those of weights; every fifth block has none.
fn noise(random: &mut Random, ty: BlockType, n_blocks: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..n_blocks * ty.block_bytes())
        .map(|_| random.next() as u8)
        .collect();
    for (i, block) in bytes.chunks_mut(ty.block_bytes()).enumerate() {
        for at in ty.codes().unwrap().f16_offsets() {
            let half = if i % 5 == 3 && at == 0 {
                0
            } else {
                random.half()
            };
            block[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}

fn floats(data: &Data) -> Vec<f32> {
    let bytes = data.to_vec();
    let (floats, _) = bytes.as_chunks();
    floats.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// What a package has of blocks.
fn constants(ty: BlockType, blocks: &[u8], shape: [usize; 2]) -> Compressed {
    let blocks = Bytes::new(blocks.to_vec());
    let parts = quant::parts(StoredType::Block(ty), &blocks).unwrap();
    Compressed {
        n_bits: parts.code_type.bits(),
        codes: Bytes::new(parts.codes.to_vec()),
        coding: Coding::Scale {
            is_signed: matches!(parts.code_type, DType::Int4 | DType::Int8),
            scales: floats(&parts.scales),
            offsets: parts.offsets.as_ref().map(floats).unwrap_or_default(),
            group: [1, parts.group_len],
        },
        mask: None,
        is_rounded: false,
        shape,
    }
}

fn context() -> Context {
    Context::new(2)
}

/// The numbers that rows have as blocks of a type; none where they are no such blocks.
fn decoded(codes: &Compressed, ty: BlockType, rows: Range<usize>) -> Option<Vec<f32>> {
    let n = rows.len() * codes.shape[1];
    let mut blocks = vec![0; ty.byte_len(n)?];
    let mut values = vec![0.0; n];
    codes
        .write_blocks(&context(), ty, rows, &mut blocks)
        .then(|| ty.decode(&blocks, &mut values))?;
    Some(values)
}

#[test]
fn constants_of_blocks_are_those_blocks() {
    let mut random = Random(11);
    let found = [
        (BlockType::Q4_0, BlockType::Q4_0),
        (BlockType::Q4_1, BlockType::Q4_1),
        (BlockType::Q5_0, BlockType::Q5_0),
        (BlockType::Q5_1, BlockType::Q5_1),
        (BlockType::Q8_0, BlockType::Q8_0),
        (BlockType::Q4K, BlockType::Q4K),
        (BlockType::Q5K, BlockType::Q5K),
        (BlockType::Q6K, BlockType::Q6K),
        // Codes of three bits with scales of six fit those of six bits with scales of eight.
        (BlockType::Q3K, BlockType::Q6K),
    ];
    for (ty, expected) in found {
        let shape = [7, 768];
        let blocks = noise(&mut random, ty, 7 * 768 / ty.block_len());
        let mut due = vec![0.0; 7 * 768];
        ty.decode(&blocks, &mut due);
        let codes = constants(ty, &blocks, shape);
        assert_eq!(codes.block_type(), Some(expected), "{ty:?}");
        let values = decoded(&codes, expected, 0..7).unwrap();
        assert!(values == due, "{ty:?}");
        let values = decoded(&codes, expected, 3..5).unwrap();
        assert!(values == due[3 * 768..5 * 768], "{ty:?}");
    }
}

/// Codes of so many bits with scales in f16 that groups of rows and columns share.
fn scaled(n_bits: usize, is_signed: bool, group: [usize; 2], offset: Option<f32>) -> Compressed {
    let (mut random, shape) = (Random(5), [6, 256]);
    let n_groups = shape[0] / group[0] * (shape[1] / group[1]);
    let scales = (0..n_groups).map(|_| f16_to_f32(random.half())).collect();
    let codes: Vec<u8> = (0..shape[0] * shape[1] * n_bits / 8)
        .map(|_| random.next() as u8)
        .collect();
    Compressed {
        n_bits,
        codes: Bytes::new(codes),
        coding: Coding::Scale {
            is_signed,
            scales,
            offsets: offset.map(|o| vec![o; n_groups]).unwrap_or_default(),
            group,
        },
        mask: None,
        is_rounded: false,
        shape,
    }
}

#[test]
fn codes_of_other_writers_are_blocks_where_they_fit() {
    let cases = [
        (scaled(4, true, [1, 32], None), Some(BlockType::Q4_0)),
        (scaled(4, true, [2, 64], None), Some(BlockType::Q4_0)),
        (scaled(4, false, [1, 128], Some(8.0)), Some(BlockType::Q4_0)),
        // A scale for each channel is one of super-blocks, with its multiple as minimum.
        (scaled(4, false, [1, 256], Some(3.0)), Some(BlockType::Q4K)),
        (scaled(4, false, [1, 32], Some(3.0)), Some(BlockType::Q5_0)),
        (scaled(2, false, [1, 64], Some(2.0)), Some(BlockType::Q4_0)),
        (scaled(8, true, [1, 256], None), Some(BlockType::Q8_0)),
        (
            scaled(8, false, [6, 256], Some(128.0)),
            Some(BlockType::Q8_0),
        ),
        (scaled(8, false, [1, 32], Some(3.0)), None),
        (scaled(4, true, [1, 16], None), None),
        (scaled(4, false, [1, 32], Some(0.3)), None),
    ];
    for (i, (codes, ty)) in cases.iter().enumerate() {
        assert_eq!(codes.block_type(), *ty, "{i}");
        let Some(ty) = *ty else { continue };
        let weight = codes.weight();
        let rows: Vec<usize> = (0..6).collect();
        let mut due = vec![0.0; 6 * 256];
        thane_kernels::linear::decompress_rows(&context(), &weight, &rows, &mut due);
        let values = decoded(codes, ty, 0..6).unwrap();
        let is_same = |(a, b): (&f32, &f32)| (a - b).abs() <= 4e-7 * b.abs().max(1e-3);
        assert!(values.iter().zip(&due).all(is_same), "{i}");
    }
}

#[test]
fn a_scale_that_no_block_holds_is_found() {
    let mut codes = scaled(4, true, [1, 32], None);
    let Coding::Scale { scales, .. } = &mut codes.coding else {
        panic!("codes with scales");
    };
    scales[21] += f32::EPSILON * scales[21];
    assert_eq!(
        decoded(&codes, BlockType::Q4_0, 0..2).map(|v| v.len()),
        Some(512)
    );
    assert!(decoded(&codes, BlockType::Q4_0, 0..6).is_none());
    assert_eq!(codes.block_type(), None);
}

fn tensor(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Arg {
    let ty = TensorType::new(dtype, shape.iter().copied());
    Arg::Literal(Literal::Tensor(ty, Data::owned(bytes)))
}

/// What a function with a state gives, whose products are packed when they are wanted again and
/// again: of the plain ops, and of four calls of the plan.
fn calls(
    random: &mut Random,
    [n_tokens, cols]: [usize; 2],
    weight: impl FnOnce(&mut Random, &mut FunctionBuilder) -> ValueId,
) -> [Vec<f32>; 5] {
    let mut to = FunctionBuilder::new("main", Opset::CoreMl8);
    let x = to.input("x", TensorType::new(DType::Fp32, [n_tokens, cols]));
    let state = to.input("memory", Type::State(TensorType::new(DType::Fp16, [1, 4])));
    let read = to
        .op("read_state", "old", [("input", Arg::Value(state))])
        .unwrap();
    let weight = weight(random, &mut to);
    let args = [("x", Arg::Value(x)), ("weight", Arg::Value(weight))];
    let y = to.op("linear", "y", args).unwrap();
    let f = to.finish(&[("y", y), ("old", read)]);
    let values: Vec<u8> = (0..n_tokens * cols)
        .flat_map(|_| (random.next() as u8 as f32 / 255.0 - 0.5).to_le_bytes())
        .collect();
    let run = |instance: &mut dyn Instance| {
        let to = instance.input("x", &[n_tokens, cols]).unwrap();
        to.copy_from_slice(&values);
        instance.run("main").unwrap();
        let name = &f.value(f.body().outputs[0]).name;
        let y = instance.output(name).unwrap();
        let (floats, _) = y.bytes.as_chunks();
        floats
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect::<Vec<_>>()
    };
    let [mut plain, mut planned] = [Numerics::F32, Numerics::Fast].map(|numerics| {
        let loaded = Cpu::new(numerics, 2).load(&Program::new(vec![f.clone()]));
        loaded.unwrap().instantiate().unwrap()
    });
    std::array::from_fn(|i| run(if i == 0 { &mut *plain } else { &mut *planned }))
}

/// The largest difference, of the largest output.
fn error(due: &[f32], found: &[f32]) -> f32 {
    let most = due.iter().fold(0.0, |most: f32, d| most.max(d.abs()));
    let pairs = due.iter().zip(found);
    pairs.fold(0.0, |most: f32, (d, f)| most.max((d - f).abs())) / most
}

#[test]
fn products_of_few_rows_multiply_the_blocks() {
    let (rows, cols) = (40, 96);
    let [due, first, rest @ ..] = calls(&mut Random(3), [1, cols], |random, to| {
        let codes = (0..rows * cols / 2).map(|_| random.next() as u8).collect();
        let scales = (0..rows * cols / 32).flat_map(|_| f16_to_f32(random.half()).to_le_bytes());
        let args = [
            ("data", tensor(DType::Int4, &[rows, cols], codes)),
            (
                "scale",
                tensor(DType::Fp32, &[rows, cols / 32], scales.collect()),
            ),
        ];
        to.op("constexpr_blockwise_shift_scale", "w", args).unwrap()
    });
    // First in f32, then by codes, with activations of eight bits.
    assert!(error(&due, &first) < 1e-5);
    let [.., last] = rest.map(|found| error(&due, &found));
    assert!(last < 0.02, "{last}");
    assert!(last > 1e-6, "activations are rounded: {last}");
}

#[test]
fn products_of_16_bit_floats_are_the_same_in_panels() {
    let (rows, cols) = (40, 301);
    for n_tokens in [1, 2, 5, 40, 130] {
        let [due, calls @ ..] = calls(&mut Random(5), [n_tokens, cols], |random, to| {
            let values = (0..rows * cols).flat_map(|_| random.half().to_le_bytes());
            let args = [
                (
                    "source_val",
                    tensor(DType::Fp16, &[rows, cols], values.collect()),
                ),
                ("output_dtype", Arg::Literal(Literal::String("fp32".into()))),
            ];
            to.op("constexpr_cast", "w", args).unwrap()
        });
        for found in &calls {
            let error = error(&due, found);
            assert!(error < 1e-5, "{n_tokens}: {error}");
        }
        // The sum of a row goes over other columns first.
        let is_packed = calls[0] != calls[3];
        assert_eq!(is_packed, n_tokens <= 2, "{n_tokens}");
    }
}

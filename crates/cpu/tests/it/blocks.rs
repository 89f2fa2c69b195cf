//! Quantized constants of `thane_models` on the CPU backend: what kernels make of the stored blocks
//! is what the constexpr ops say of them, type by type.

use std::sync::Arc;

use thane_cpu::{Cpu, Numerics, Profile};
use thane_kernels::quant::has_format;
use thane_kernels::{BlockType, Isa};
use thane_mil::backend::{Backend, Instance};
use thane_mil::build::FunctionBuilder;
use thane_mil::data::{Bytes, Data};
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Program, ValueId};
use thane_mil::types::{DType, Dim, TensorType, Type};
use thane_mil::valid;
use thane_models::checkpoint::TensorType as Stored;
use thane_models::quant::{QuantizedConstants, parts};

use crate::golden::{instance, on_each_isa, relative_error};

const ROWS: usize = 37;
const COLS: usize = 512;

/// A pseudo-random sequence: the upper bits of a 64-bit linear congruential generator.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        // Multiplier and increment of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// From -1 to 1.
    fn real(&mut self) -> f32 {
        f64::from(self.bits()).mul_add(2.0 / f64::from(u32::MAX), -1.0) as f32
    }
}

/// A quantized matrix: random codes, scales from 2^-10 to 2^-6 of either sign.
struct Matrix {
    ty: BlockType,
    shape: [usize; 2],
    parts: QuantizedConstants,
}

impl Matrix {
    fn new(ty: BlockType, shape: [usize; 2], random: &mut Random) -> Self {
        Self::of_bytes(ty, shape, Self::random_bytes(ty, shape, random))
    }

    /// Random blocks, drawn until their values are of a common size.
    fn random_bytes(ty: BlockType, [n_rows, n_cols]: [usize; 2], random: &mut Random) -> Vec<u8> {
        let n_bytes = ty.byte_len(n_rows * n_cols).unwrap();
        let mut bytes = vec![0; n_bytes];
        for block in bytes.chunks_mut(ty.block_bytes()) {
            loop {
                block.fill_with(|| random.bits() as u8);
                if (0.1..4.0).contains(&ty.magnitude_bound(block)) {
                    break;
                }
            }
        }
        bytes
    }

    fn of_bytes(ty: BlockType, shape: [usize; 2], bytes: Vec<u8>) -> Self {
        let parts = parts(Stored::Block(ty), &Bytes::new(bytes)).unwrap();
        Self { ty, shape, parts }
    }

    /// The same constants as plain bytes, which hide the blocks from the backend.
    fn copied(&self) -> Self {
        let copy = |data: &Data| Data::owned(data.to_vec());
        let QuantizedConstants {
            codes,
            scales,
            offsets,
            ..
        } = &self.parts;
        let parts = QuantizedConstants {
            codes: copy(codes),
            scales: copy(scales),
            offsets: offsets.as_ref().map(copy),
            ..self.parts
        };
        Self { parts, ..*self }
    }

    /// What the constexpr ops say, in f64.
    fn values(&self) -> Vec<f64> {
        let floats = |data: &Data| -> Vec<f64> {
            data.to_vec()
                .as_chunks()
                .0
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect()
        };
        let bytes = self.parts.codes.to_vec();
        let code = |i: usize| match self.parts.code_type {
            DType::Int8 => f64::from(bytes[i].cast_signed()),
            DType::Uint8 => f64::from(bytes[i]),
            nibble => {
                let bits = bytes[i / 2] >> (i % 2 * 4) & 15;
                match (nibble, self.parts.table) {
                    (DType::Int4, _) => f64::from((bits << 4).cast_signed() >> 4),
                    (_, Some(table)) => f64::from(table[usize::from(bits)]),
                    _ => f64::from(bits),
                }
            }
        };
        let (scales, offsets) = (
            floats(&self.parts.scales),
            self.parts.offsets.as_ref().map(floats),
        );
        let value = |i: usize| {
            let group = i / self.parts.group_len;
            scales[group] * (code(i) - offsets.as_ref().map_or(0.0, |offsets| offsets[group]))
        };
        (0..self.shape.iter().product()).map(value).collect()
    }

    fn constexpr(&self, b: &mut FunctionBuilder) -> ValueId {
        let mut constant = |name: &str, dtype, shape: &[usize], data: &Data| {
            let ty = TensorType::new(dtype, shape.iter().copied());
            b.constant(name, Literal::Tensor(ty, data.clone())).unwrap()
        };
        let groups = [self.shape[0], self.shape[1] / self.parts.group_len];
        let codes = constant(
            "codes",
            self.parts.code_type,
            &self.shape,
            &self.parts.codes,
        );
        let scale = constant("scale", DType::Fp32, &groups, &self.parts.scales);
        let offset = self
            .parts
            .offsets
            .as_ref()
            .map(|data| constant("offset", DType::Fp32, &groups, data));
        let data = if let Some(table) = self.parts.table {
            let table = Data::owned(table.map(i8::cast_unsigned).to_vec());
            let lut = constant("lut", DType::Int8, &[1, 1, 16, 1], &table);
            b.op(
                "constexpr_lut_to_dense",
                "levels",
                [("indices", Arg::Value(codes)), ("lut", Arg::Value(lut))],
            )
            .unwrap()
        } else {
            codes
        };
        let args = [("data", Arg::Value(data)), ("scale", Arg::Value(scale))];
        let op = "constexpr_blockwise_shift_scale";
        match offset {
            None => b.op(op, "matrix", args).unwrap(),
            Some(offset) => {
                let [data, scale] = args;
                b.op(op, "matrix", [data, scale, ("offset", Arg::Value(offset))])
                    .unwrap()
            }
        }
    }

    /// `logits = x @ matrix^T`.
    fn linear(&self) -> Program {
        let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
        let y = self.product(&mut b);
        finish(b, y)
    }

    /// `values, indices = topk(x @ matrix^T, k)` with a state, as functions that decode have. With
    /// `logits` as an output too, no kernel computes both ops at once.
    fn top(&self, k: usize, has_logits: bool) -> Program {
        let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
        b.input("cache", Type::State(TensorType::new(DType::Fp16, [3])));
        let logits = self.product(&mut b);
        let k = b.constant("k", Literal::i32(k as i32)).unwrap();
        let args = [("x", Arg::Value(logits)), ("k", Arg::Value(k))];
        let results = b.op_results("topk", "top", args).unwrap();
        let outputs = [
            ("values", results[0]),
            ("indices", results[1]),
            ("logits", logits),
        ];
        let program = Program::new(vec![b.finish(&outputs[..2 + usize::from(has_logits)])]);
        valid::check(&program).unwrap();
        program
    }

    fn product(&self, b: &mut FunctionBuilder) -> ValueId {
        let tokens = b.symbol();
        let x = b.input(
            "x",
            TensorType::new(DType::Fp32, [tokens, Dim::Known(self.shape[1])]),
        );
        let matrix = self.constexpr(b);
        b.op(
            "linear",
            "product",
            [("x", Arg::Value(x)), ("weight", Arg::Value(matrix))],
        )
        .unwrap()
    }

    /// `logits = matrix[x]`.
    fn gather(&self) -> Program {
        let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
        let tokens = b.symbol();
        let x = b.input("x", TensorType::new(DType::Int32, [tokens]));
        let matrix = self.constexpr(&mut b);
        let axis = b.constant("axis", Literal::i32(0)).unwrap();
        let args = [
            ("x", Arg::Value(matrix)),
            ("indices", Arg::Value(x)),
            ("axis", Arg::Value(axis)),
        ];
        let y = b.op("gather", "rows", args).unwrap();
        finish(b, y)
    }
}

fn finish(b: FunctionBuilder, y: ValueId) -> Program {
    let program = Program::new(vec![b.finish(&[("logits", y)])]);
    valid::check(&program).unwrap();
    program
}

fn run(program: &Program, numerics: Numerics, shape: &[usize], x: &[u8]) -> Vec<f32> {
    let mut instance = instance(program, numerics, 2);
    instance.input("x", shape).unwrap().copy_from_slice(x);
    instance.run("main").unwrap();
    let view = instance.output("logits").unwrap();
    view.bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b))
        .collect()
}

fn matrices() -> Vec<Matrix> {
    let mut random = Random(20_261_203);
    let quantized = BlockType::ALL.into_iter().filter(|ty| !ty.is_float());
    quantized
        .map(|ty| Matrix::new(ty, [ROWS, COLS], &mut random))
        .collect()
}

fn product(values: &[f64], x: &[f32]) -> Vec<f32> {
    let dot = |row: &[f64], x: &[f32]| {
        row.iter()
            .zip(x)
            .map(|(w, x)| w * f64::from(*x))
            .sum::<f64>() as f32
    };
    x.chunks(COLS)
        .flat_map(|x| values.chunks(COLS).map(move |row| dot(row, x)))
        .collect()
}

/// One token, a few, and more than any tile.
#[test]
fn products_are_those_of_the_values() {
    let mut random = Random(7);
    for matrix in matrices() {
        let (values, stored, copied) = (matrix.values(), matrix.linear(), matrix.copied().linear());
        for n_tokens in [1, 3, 67] {
            let x: Vec<f32> = (0..n_tokens * COLS).map(|_| random.real()).collect();
            let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let expected = product(&values, &x);
            // 2e-6: sums of 512 fp32 products; 2e-2: activations of 8 bits, half a step of 1/127 of
            // a block's largest. Types that are multiplied by their values are as exact as in fp32.
            let (least, most) = match has_format(matrix.ty) {
                true => (1e-4, 2e-2),
                false => (0.0, 2e-6),
            };
            for (program, numerics, least, most) in [
                (&stored, Numerics::F32, 0.0, 2e-6),
                (&copied, Numerics::F32, 0.0, 2e-6),
                (&stored, Numerics::Fast, least, most),
            ] {
                let found = run(program, numerics, &[n_tokens, COLS], &bytes);
                let error = relative_error(&found, &expected);
                let (ty, range) = (matrix.ty, least..=most);
                assert!(
                    range.contains(&error),
                    "{ty:?}, {n_tokens} tokens, {numerics:?}: {error:e}"
                );
            }
        }
    }
}

/// Rows of an embedding are exact where the type has no offset, and one rounding of its terms away
/// where it has.
#[test]
fn gathered_rows_are_the_values() {
    let ids = [0i32, 36, 17, 17, -1, 5];
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    for matrix in matrices() {
        let values = matrix.values();
        let row = |id: &i32| {
            let at = id.rem_euclid(ROWS as i32) as usize * COLS;
            values[at..at + COLS].iter().map(|value| *value as f32)
        };
        let expected: Vec<f32> = ids.iter().flat_map(row).collect();
        for (form, program) in [
            ("stored", matrix.gather()),
            ("copied", matrix.copied().gather()),
        ] {
            for numerics in [Numerics::F32, Numerics::Fast] {
                let found = run(&program, numerics, &[ids.len()], &bytes);
                if matrix.parts.offsets.is_some() {
                    let error = relative_error(&found, &expected);
                    assert!(error <= 2e-7, "{:?} {form}: {error:e}", matrix.ty);
                } else {
                    assert_eq!(found, expected, "{:?} {form}", matrix.ty);
                }
            }
        }
    }
}

/// A head whose rows can be ruled out. Some rows are equal, and `scale` is that of some others.
fn head(shape @ [n_rows, _]: [usize; 2], scale: Option<f32>, random: &mut Random) -> Matrix {
    let mut bytes = Matrix::random_bytes(BlockType::Q8_0, shape, random);
    let row_len = bytes.len() / n_rows;
    for _ in 0..n_rows / 4 {
        let [from, to] = [(); 2].map(|()| random.bits() as usize % n_rows * row_len);
        bytes.copy_within(from..from + row_len, to);
    }
    for row in bytes.chunks_mut(row_len).skip(70).step_by(400) {
        if let Some(scale) = scale {
            row[..2].copy_from_slice(&f64_to_f16(scale.into()).to_ne_bytes());
        }
    }
    Matrix::of_bytes(BlockType::Q8_0, shape, bytes)
}

fn set(instance: &mut dyn Instance, x: &[f32], n_cols: usize) {
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
    instance
        .input("x", &[x.len() / n_cols, n_cols])
        .unwrap()
        .copy_from_slice(&bytes);
}

fn top_of(instance: &dyn Instance) -> [&[u8]; 2] {
    ["values", "indices"].map(|name| instance.output(name).unwrap().bytes)
}

/// With equal logits, logits that are no numbers, several rows, and a product that changes its form
/// when the matrix is packed, at the second call.
#[test]
fn the_top_of_a_product_is_that_of_its_elements() {
    let mut random = Random(9);
    let shape @ [_, n_cols] = [1111, 64];
    for scale in [None, Some(f32::NAN), Some(f32::INFINITY)] {
        let head = head(shape, scale, &mut random);
        for (k, numerics) in [1, 3, 40, 300, 1111]
            .into_iter()
            .flat_map(|k| [Numerics::Fast, Numerics::F32].map(|numerics| (k, numerics)))
        {
            let [whole, fused] = [true, false].map(|has_logits| head.top(k, has_logits));
            let instances = on_each_isa(&whole, numerics, 2).zip(on_each_isa(&fused, numerics, 2));
            for ((isa, mut whole), (_, mut fused)) in instances {
                for (round, n_tokens) in [1, 1, 1, 1, 3, 1, 20].into_iter().enumerate() {
                    let x: Vec<f32> = (0..n_tokens * n_cols).map(|_| random.real()).collect();
                    for instance in [&mut whole, &mut fused] {
                        set(instance.as_mut(), &x, n_cols);
                        instance.run("main").unwrap();
                    }
                    assert!(
                        top_of(fused.as_ref()) == top_of(whole.as_ref()),
                        "{scale:?}, {k}, {numerics:?}, {isa}, round {round}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_that_are_not_among_the_greatest_are_not_read() {
    let mut random = Random(10);
    let shape @ [_, n_cols] = [1111, 64];
    let head = head(shape, None, &mut random);
    let n_bytes = BlockType::Q8_0.byte_len(shape.iter().product()).unwrap() as f64;
    for isa in Isa::available() {
        for (n_tokens, step) in [(1, "linear, screened"), (2, "linear, top k")] {
            let profile = Arc::new(Profile::default());
            let cpu = Cpu::new(Numerics::Fast, 2).with_isa(Some(isa));
            let loaded = cpu
                .with_profile(Some(Arc::clone(&profile)))
                .load(&head.top(2, false));
            let mut instance = loaded.unwrap().instantiate().unwrap();
            for round in 0..7 {
                // The first two calls pack the matrix.
                if round == 2 {
                    profile.clear();
                }
                let x: Vec<f32> = (0..n_tokens * n_cols).map(|_| random.real()).collect();
                set(instance.as_mut(), &x, n_cols);
                instance.run("main").unwrap();
            }
            let rows = profile.rows();
            let [row] = rows.as_slice() else {
                panic!("{rows:?}");
            };
            assert_eq!((row.step, row.is_fused, row.calls), (step, true, 5));
            let read = row.bytes / 5.0 / n_bytes;
            let what = format!("{}, {n_tokens} tokens: {read}", isa.name());
            assert_eq!(read < 0.9, n_tokens == 1, "{what}");
        }
    }
}

#[test]
fn the_top_of_a_batch_is_that_of_each() {
    let mut random = Random(11);
    let shape @ [_, n_cols] = [1111, 64];
    let head = head(shape, None, &mut random);
    let [mut whole, mut fused] = [true, false].map(|has_logits| {
        let loaded = Cpu::new(Numerics::Fast, 2)
            .load(&head.top(5, has_logits))
            .unwrap();
        loaded.instantiate_batch(3).unwrap()
    });
    for n_tokens in [[1, 1, 1], [1, 1, 1], [1, 4, 2], [1, 1, 1]] {
        for (idx, n_tokens) in n_tokens.into_iter().enumerate() {
            let x: Vec<f32> = (0..n_tokens * n_cols).map(|_| random.real()).collect();
            for batch in [&mut whole, &mut fused] {
                set(batch.instance_mut(idx).unwrap(), &x, n_cols);
            }
        }
        for batch in [&mut whole, &mut fused] {
            batch.run("main", &[0, 1, 2]).unwrap();
        }
        for (idx, n_tokens) in n_tokens.into_iter().enumerate() {
            let [due, found] = [&whole, &fused].map(|batch| batch.instance(idx).unwrap());
            assert_eq!(
                top_of(found),
                top_of(due),
                "{n_tokens} tokens, sequence {idx}"
            );
            assert_eq!(found.output("indices").unwrap().shape, [n_tokens, 5]);
        }
    }
}

//! Random programs give what they give op by op, without rewrites and kernels.

use thane_cpu::internals::{Compressed, Planned, rewrite};
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance};
use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::{Literal, f16_to_f32, f64_to_f16};
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, Program, ValueId};
use thane_mil::types::{DType, TensorType};
use thane_mil::valid;

/// Ops of a program.
const N_OPS: usize = 50;
/// Elements of a value, at most.
const MOST: usize = 4000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -1..1.
    fn number(&mut self) -> f32 {
        (self.next() % (1 << 20)) as f32 / (1 << 19) as f32 - 1.0
    }
}

struct Maker {
    random: Random,
    to: FunctionBuilder,
    dtype: DType,
    values: Vec<ValueId>,
    n_made: usize,
}

impl Maker {
    fn new(seed: u64, dtype: DType) -> Self {
        let mut to = FunctionBuilder::new("main", Opset::CoreMl8);
        let shapes: [&[usize]; 3] = [&[2, 6, 4, 5], &[1, 4, 6], &[3, 8]];
        let values = shapes.iter().zip(["x", "y", "z"]);
        let values = values
            .map(|(shape, name)| to.input(name, TensorType::new(dtype, shape.iter().copied())));
        let values = values.collect();
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            to,
            dtype,
            values,
            n_made: 0,
        }
    }

    fn shape(&self, value: ValueId) -> Vec<usize> {
        let ty = self.to.function().value(value).ty.tensor();
        ty.and_then(TensorType::known_shape).unwrap()
    }

    fn floats(&mut self, shape: &[usize]) -> Literal {
        let n = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|_| self.random.number()).collect();
        let bytes = bytes(self.dtype, &values);
        Literal::Tensor(
            TensorType::new(self.dtype, shape.iter().copied()),
            Data::owned(bytes),
        )
    }

    fn constant(&mut self, shape: &[usize]) -> Arg {
        let literal = self.floats(shape);
        self.n_made += 1;
        let name = format!("c{}", self.n_made);
        Arg::Value(self.to.constant(&name, literal).unwrap())
    }

    fn op<const N: usize>(&mut self, op: &str, args: [(&'static str, Arg); N]) -> Option<ValueId> {
        self.n_made += 1;
        let name = format!("v{}", self.n_made);
        let results = self.to.op_results(op, &name, args).ok()?;
        let fits = |v: &ValueId| (1..=MOST).contains(&self.shape(*v).iter().product());
        let kept: Vec<ValueId> = results.iter().copied().filter(fits).collect();
        self.values.extend(&kept);
        kept.first().copied()
    }

    /// The op, and its result brought to -1..1.
    fn bounded<const N: usize>(&mut self, op: &str, args: [(&'static str, Arg); N]) {
        if let Some(made) = self.op(op, args) {
            self.op("tanh", [("x", Arg::Value(made))]);
        }
    }

    fn step(&mut self) {
        let n = self.values.len();
        // Mostly what was made last, so that programs are deep.
        let at = n - 1 - self.random.below(n.min(6));
        let x = self.values[at];
        let shape = self.shape(x);
        let axis = self.random.below(shape.len().max(1));
        let which = self.random.below(18);
        self.compute(which, x, &shape, axis);
        self.rearrange(which, x, &shape, axis);
    }

    fn compute(&mut self, which: usize, x: ValueId, shape: &[usize], axis: usize) {
        let (rank, arg) = (shape.len(), Arg::Value(x));
        let ints = |v: &[i32]| Arg::Literal(Literal::i32s(v));
        let int = |v: usize| Arg::Literal(Literal::i32(v as i32));
        match which {
            0..=2 => {
                let all = ["relu", "sigmoid", "silu", "abs", "gelu", "relu6"];
                let op = all[self.random.below(all.len())];
                self.op(op, [("x", arg)]);
            }
            3 | 4 => {
                let op = ["add", "mul", "sub", "maximum"][self.random.below(4)];
                let same = self.values.iter().filter(|v| self.shape(**v) == shape);
                let same: Vec<ValueId> = same.copied().collect();
                let y = Arg::Value(same[self.random.below(same.len())]);
                self.bounded(op, [("x", arg), ("y", y)]);
            }
            5 if rank > 1 => {
                // A number for each element of one axis.
                let mut along = vec![1; rank - axis];
                along[0] = shape[axis];
                let y = self.constant(&along);
                self.op("mul", [("x", arg), ("y", y)]);
            }
            9 | 10 if rank == 4 || rank == 3 => self.conv(x, shape),
            14 if rank > 0 => {
                let op = ["reduce_mean", "reduce_max", "reduce_sum"][self.random.below(3)];
                let keeps = Arg::Literal(Literal::bool(self.random.below(2) == 0));
                let axes = ints(&[axis as i32]);
                self.bounded(op, [("x", arg), ("axes", axes), ("keep_dims", keeps)]);
            }
            15 if rank > 0 => {
                self.op("softmax", [("x", arg), ("axis", int(axis))]);
            }
            16 if rank == 2 || rank == 3 => {
                let weight = self.constant(&[7, shape[rank - 1]]);
                self.bounded("linear", [("x", arg), ("weight", weight)]);
            }
            17 if rank > 1 => {
                let flag = |v| Arg::Literal(Literal::bool(v));
                self.bounded(
                    "matmul",
                    [
                        ("x", arg.clone()),
                        ("y", arg),
                        ("transpose_x", flag(false)),
                        ("transpose_y", flag(true)),
                    ],
                );
            }
            _ => {}
        }
    }

    fn rearrange(&mut self, which: usize, x: ValueId, shape: &[usize], axis: usize) {
        let (rank, arg) = (shape.len(), Arg::Value(x));
        let ints = |v: &[i32]| Arg::Literal(Literal::i32s(v));
        let int = |v: usize| Arg::Literal(Literal::i32(v as i32));
        match which {
            6 | 7 if rank > 1 => {
                let mut perm: Vec<i32> = (0..rank as i32).collect();
                for i in (1..rank).rev() {
                    perm.swap(i, self.random.below(i + 1));
                }
                self.op("transpose", [("x", arg), ("perm", ints(&perm))]);
            }
            8 => {
                let mut to: Vec<i32> = shape.iter().map(|n| *n as i32).collect();
                if rank > 1 && self.random.below(2) == 0 {
                    let joined = to.remove(axis.min(rank - 2));
                    to[axis.min(rank - 2)] *= joined;
                } else if rank < 5 && to.get(axis).is_some_and(|n| n % 2 == 0) {
                    to[axis] /= 2;
                    to.insert(axis, 2);
                }
                self.op("reshape", [("x", arg), ("shape", ints(&to))]);
            }
            12 if rank > 0 => {
                let values = Arg::Values(vec![x, x]);
                self.op("concat", [("values", values), ("axis", int(axis))]);
            }
            13 if rank > 0 && shape[axis] > 1 => {
                let (mut begin, mut step) = (vec![0; rank], vec![1; rank]);
                let end: Vec<i32> = shape.iter().map(|n| *n as i32).collect();
                begin[axis] = self.random.below(2) as i32;
                step[axis] = 1 + self.random.below(2) as i32;
                self.op(
                    "slice_by_index",
                    [
                        ("x", arg),
                        ("begin", ints(&begin)),
                        ("end", ints(&end)),
                        ("stride", ints(&step)),
                    ],
                );
            }
            11 if rank == 4 && shape[2] > 1 && shape[3] > 1 => {
                let op = ["max_pool", "avg_pool"][self.random.below(2)];
                let pad = ["valid", "same"][self.random.below(2)];
                self.op(
                    op,
                    [
                        ("x", arg),
                        ("kernel_sizes", ints(&[2, 2])),
                        ("strides", ints(&[1, 2])),
                        ("pad_type", Arg::Literal(Literal::string(pad))),
                    ],
                );
            }
            _ => {}
        }
    }

    fn conv(&mut self, x: ValueId, shape: &[usize]) {
        let (channels, n_axes) = (shape[1], shape.len() - 2);
        let kernel = [1, 1, 3, 2][self.random.below(4)];
        let by_channel = self.random.below(3) == 0;
        let (n_out, groups) = if by_channel {
            (channels, channels)
        } else {
            (6, 1)
        };
        let sizes = [vec![n_out, channels / groups], vec![kernel; n_axes]].concat();
        let (weight, bias) = (self.constant(&sizes), self.constant(&[n_out]));
        let stride = vec![1 + self.random.below(2) as i32; n_axes];
        let pad = ["valid", "same"][self.random.below(2)];
        self.bounded(
            "conv",
            [
                ("x", Arg::Value(x)),
                ("weight", weight),
                ("bias", bias),
                ("strides", Arg::Literal(Literal::i32s(&stride))),
                ("pad_type", Arg::Literal(Literal::string(pad))),
                ("groups", Arg::Literal(Literal::i32(groups as i32))),
            ],
        );
    }

    fn finish(self) -> Function {
        let outputs: Vec<ValueId> = self.values.iter().rev().take(4).copied().collect();
        let names = ["a", "b", "c", "d"];
        let named: Vec<(&str, ValueId)> = names.into_iter().zip(outputs).collect();
        self.to.finish(&named)
    }
}

fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    let half = |v: &f32| f64_to_f16(f64::from(*v)).to_le_bytes();
    match dtype {
        DType::Fp16 => values.iter().flat_map(half).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Op by op, without rewrites and kernels.
fn plain(cpu: &Cpu, f: &Function) -> Box<dyn Instance> {
    let planned = Planned::new(cpu, f, None).unwrap();
    planned.instantiate().unwrap()
}

fn loaded(cpu: &Cpu, f: &Function) -> Box<dyn Instance> {
    let executable = cpu.load(&Program::new(vec![f.clone()])).unwrap();
    executable.instantiate().unwrap()
}

/// The outputs of a function on noise.
fn outputs(mut instance: Box<dyn Instance>, f: &Function) -> Vec<Vec<f32>> {
    let mut random = Random(77);
    for v in &f.body().inputs {
        let value = f.value(*v);
        // States begin as zeros.
        let Some(ty) = value.ty.tensor() else {
            continue;
        };
        let values: Vec<f32> = (0..ty.n_elements().unwrap())
            .map(|_| random.number())
            .collect();
        let shape = ty.known_shape().unwrap();
        let to = instance.input(&value.name, &shape).unwrap();
        to.copy_from_slice(&bytes(ty.dtype, &values));
    }
    instance.run(&f.name).unwrap();
    let output = |v: &ValueId| {
        let view = instance.output(&f.value(*v).name).unwrap();
        let halves = |b: &[u8; 2]| f16_to_f32(u16::from_le_bytes(*b));
        match view.dtype {
            DType::Fp16 => view.bytes.as_chunks().0.iter().map(halves).collect(),
            _ => {
                let (floats, _) = view.bytes.as_chunks();
                floats.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
        }
    };
    f.body().outputs.iter().map(output).collect()
}

#[test]
fn random_programs_give_what_their_ops_do() {
    let cpu = Cpu::new(Numerics::F32, 2);
    for seed in 1..=300 {
        let dtype = if seed % 3 == 0 {
            DType::Fp16
        } else {
            DType::Fp32
        };
        let mut maker = Maker::new(seed, dtype);
        (0..N_OPS).for_each(|_| maker.step());
        let f = maker.finish();
        valid::check(&Program::new(vec![f.clone()])).unwrap_or_else(|e| panic!("{seed}: {e:?}"));
        let (due, found) = (outputs(plain(&cpu, &f), &f), outputs(loaded(&cpu, &f), &f));
        // fp16 is rounded after each op, or not at all.
        let bound = if dtype == DType::Fp16 { 0.03 } else { 2e-4 };
        for (name, (due, found)) in ["a", "b", "c", "d"].iter().zip(due.iter().zip(&found)) {
            assert_eq!(due.len(), found.len(), "{seed}, {name}");
            let difference = due.iter().zip(found).map(|(d, f)| (d - f).abs());
            let worst = difference.fold(0.0, f32::max);
            let most = due.iter().fold(0.1, |most: f32, d| most.max(d.abs()));
            assert!(worst <= bound * most, "{seed}, {name}: {worst} of {most}");
        }
    }
}

/// As coremltools writes a state where the compute precision is fp32.
const FP32_STATE: &str = "program(1.3) {
    func main<ios18>(tensor<fp32, [1, 5, 8]> part, state<tensor<fp16, [3, 64, 8]>> cache) {
        tensor<fp16, [3, 64, 8]> old = read_state(input = cache);
        tensor<fp32, [3, 64, 8]> wide = cast(x = old, dtype = string(\"fp32\"));
        tensor<fp32, [3, 64, 8]> new = slice_update(x = wide, update = part,
            begin = tensor<int32, [3]>([1, 7, 0]), end = tensor<int32, [3]>([2, 12, 8]));
        tensor<fp16, [3, 64, 8]> narrow = cast(x = new, dtype = string(\"fp16\"));
        tensor<fp16, [3, 64, 8]> stored = coreml_update_state(state = cache, value = narrow);
        tensor<fp32, [3, 64, 8]> again = cast(x = stored, dtype = string(\"fp32\"));
        tensor<fp32, [1, 64, 8]> part_of_it = slice_by_size(x = again,
            begin = tensor<int32, [3]>([1, 0, 0]), size = tensor<int32, [3]>([1, 64, 8]));
        tensor<fp32, [1, 64, 8]> y = exp(x = part_of_it);
    } -> (y);
}";

#[test]
fn a_state_that_is_widened_is_moved_as_it_is_stored() {
    // Where what was written is also read before it is rounded, it has to be fp32.
    let unrounded = FP32_STATE.replace(
        "    } -> (y);",
        "        tensor<fp32, [3, 64, 8]> z = mul(x = new, y = fp32(0x1.8p+0));\n    } -> (y, z);",
    );
    for (text, is_moved_as_stored) in [(FP32_STATE, true), (&unrounded, false)] {
        let program = thane_mil::text::parse(text, &|_, _, _| None).unwrap();
        let f = &program.functions()[0];
        let rewritten = rewrite(f);
        let updates_half = rewritten.all_ops().into_iter().any(|id| {
            let op = rewritten.op(id);
            let ty = op
                .results
                .first()
                .and_then(|v| rewritten.value(*v).ty.tensor());
            op.def.name == "slice_update" && ty.unwrap().dtype == DType::Fp16
        });
        assert_eq!(updates_half, is_moved_as_stored);
        let cpu = Cpu::new(Numerics::F32, 2);
        assert_eq!(outputs(plain(&cpu, f), f), outputs(loaded(&cpu, f), f));
    }
}

/// Bytes without a pattern.
fn noise(n: usize) -> Data {
    let mut random = Random(0x1234_5677);
    Data::owned((0..n).map(|_| random.next() as u8).collect())
}

fn tensor(dtype: DType, shape: &[usize], data: Data) -> Arg {
    let ty = TensorType::new(dtype, shape.iter().copied());
    Arg::Literal(Literal::Tensor(ty, data))
}

/// Small fp16 numbers that all differ.
fn halves(shape: &[usize]) -> Arg {
    let mut random = Random(0x77);
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|_| 0.02 * random.number()).collect();
    tensor(DType::Fp16, shape, Data::owned(bytes(DType::Fp16, &values)))
}

/// A compressed constant of `shape`, in each form that products read.
fn compressed(to: &mut FunctionBuilder, form: usize, shape: [usize; 2]) -> ValueId {
    let [rows, cols] = shape;
    let codes = |dtype: DType| tensor(dtype, &shape, noise(rows * cols * dtype.bits() / 8));
    let mut table = |dtype: DType, groups: usize| {
        let lut = halves(&[groups, 1, 1 << dtype.bits(), 1]);
        let args = [("indices", codes(dtype)), ("lut", lut)];
        to.op("constexpr_lut_to_dense", "w", args)
    };
    let scaled = "constexpr_blockwise_shift_scale";
    let made = match form {
        0 => table(DType::Uint4, 1),
        1 => table(DType::Uint6, rows / 8),
        2 => table(DType::Uint8, 1),
        3 | 4 => {
            let (dtype, groups) = [(DType::Int8, 1), (DType::Int4, cols / 32)][form - 3];
            let scale = halves(&[rows, groups]);
            to.op(scaled, "w", [("data", codes(dtype)), ("scale", scale)])
        }
        _ => {
            let offset = tensor(DType::Uint4, &[rows, 1], noise(rows / 2));
            let (data, scale) = (codes(DType::Uint4), halves(&[rows, 1]));
            let args = [("data", data), ("scale", scale), ("offset", offset)];
            to.op(scaled, "w", args)
        }
    };
    made.unwrap()
}

#[test]
fn compressed_weights_give_what_their_values_do() {
    for form in 0..6 {
        let mut to = FunctionBuilder::new("main", Opset::CoreMl8);
        let x = to.input("x", TensorType::new(DType::Fp16, [2, 5, 96]));
        let w = compressed(&mut to, form, [40, 96]);
        let args = [("x", Arg::Value(x)), ("weight", Arg::Value(w))];
        let y = to.op("linear", "y", args).unwrap();
        let ids = || Arg::Literal(Literal::i32s(&[39, 0, 7]));
        let args = [("x", Arg::Value(w)), ("indices", ids())];
        let rows = to.op("gather", "rows", args).unwrap();
        // A table of more axes has rows of more axes.
        let shape = Arg::Literal(Literal::i32s(&[40, 96, 1]));
        let table = to.op("reshape", "table", [("x", Arg::Value(w)), ("shape", shape)]);
        let args = [("x", Arg::Value(table.unwrap())), ("indices", ids())];
        let deep = to.op("gather", "deep", args).unwrap();
        let f = to.finish(&[("y", y), ("rows", rows), ("deep", deep)]);
        valid::check(&Program::new(vec![f.clone()])).unwrap_or_else(|e| panic!("{form}: {e:?}"));
        let rewritten = rewrite(&f);
        let is_read = |id: thane_mil::program::OpId| {
            let weight = rewritten.op(id).value_arg("weight");
            weight.is_some_and(|w| Compressed::find(&rewritten, w).is_some())
        };
        assert!(rewritten.all_ops().into_iter().any(is_read), "{form}");
        let cpu = Cpu::new(Numerics::Fast, 2);
        let (due, found) = (outputs(plain(&cpu, &f), &f), outputs(loaded(&cpu, &f), &f));
        for (due, found) in due.iter().zip(&found) {
            let most = due.iter().fold(0.0, |most: f32, d| most.max(d.abs()));
            assert!(most > 0.0);
            for (due, found) in due.iter().zip(found) {
                // The ops round scaled values to fp16.
                assert!((due - found).abs() <= 2e-3 * most, "{form}: {due}, {found}");
            }
        }
    }
}

#[test]
fn what_a_program_declares_beyond_its_ops_is_kept() {
    let text = "program(1.3) {
    func main<ios18>(tensor<fp16, [2, 3]> x) {
        tensor<int32, [2, 2]> y = non_zero(x = x);
    } -> (y);
}";
    let program = thane_mil::text::parse(text, &|_, _, _| None).unwrap();
    let f = &program.functions()[0];
    let mut instance = loaded(&Cpu::new(Numerics::F32, 1), f);
    // Six elements that are not zero.
    instance.input("x", &[2, 3]).unwrap().fill(0x3c);
    let error = instance.run("main").unwrap_err().to_string();
    assert!(error.contains("declared"), "{error}");
}

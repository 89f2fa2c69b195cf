//! Placement and latency of small programs: the worked examples of Apple's segmenter, and programs
//! nobody would write.

use crate::processor_time;
use thane_audit::latency::{self, Bound, Latency};
use thane_audit::place::{Backend, Placement, place};
use thane_audit::plan::chunk;
use thane_audit::target::{Chip, Release, Route, Target, Units};
use thane_audit::{View, audit};
use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, Program, ValueId};
use thane_mil::types::{DType, TensorType};

fn target(chip: &str, units: Units, route: Route) -> Target {
    let chip = Chip::from_name(chip).unwrap_or_else(|| panic!("{chip}"));
    Target::new(chip, Release::newest(), units, route)
}

pub fn core_ml(chip: &str) -> Target {
    target(chip, Units::CpuAndNeuralEngine, Route::CoreMl)
}

pub fn placed(f: Function, target: &Target) -> Placement {
    let program = Program::new(vec![f]);
    place(&View::new(&program, &program.functions()[0], target), &[])
}

fn latency(f: Function, target: &Target) -> Latency {
    let program = Program::new(vec![f]);
    let view = View::new(&program, &program.functions()[0], target);
    latency::predict(&view, &place(&view, &[]))
}

struct Maker(FunctionBuilder);

impl Maker {
    fn new() -> Self {
        Self(FunctionBuilder::new("main", Opset::CoreMl8))
    }

    fn input(&mut self, shape: &[usize]) -> ValueId {
        self.0
            .input("x", TensorType::new(DType::Fp16, shape.iter().copied()))
    }

    fn weight(&mut self, shape: &[usize]) -> ValueId {
        let data = Data::owned(vec![0; 2 * shape.iter().product::<usize>()]);
        let literal = Literal::Tensor(TensorType::new(DType::Fp16, shape.iter().copied()), data);
        self.0.constant("w", literal).unwrap()
    }

    fn op<const N: usize>(&mut self, op: &str, args: [(&'static str, Arg); N]) -> ValueId {
        self.0.op(op, op, args).unwrap()
    }

    fn conv(&mut self, x: ValueId, weight: &[usize], stride: i32, groups: i32) -> ValueId {
        let weight = self.weight(weight);
        let args = [
            ("x", Arg::Value(x)),
            ("weight", Arg::Value(weight)),
            ("pad_type", Arg::Literal(Literal::string("same"))),
            ("strides", Arg::Literal(Literal::i32s(&[stride, stride]))),
            ("groups", Arg::Literal(Literal::i32(groups))),
        ];
        self.op("conv", args)
    }

    fn finish(self, y: ValueId) -> Function {
        self.0.finish(&[("y", y)])
    }
}

pub fn relu() -> Function {
    let mut m = Maker::new();
    let x = m.input(&[1, 64, 32, 32]);
    let y = m.op("relu", [("x", Arg::Value(x))]);
    m.finish(y)
}

pub fn conv(channels: usize, kernel: usize, stride: i32, groups: usize) -> Function {
    let mut m = Maker::new();
    let x = m.input(&[1, channels, 32, 32]);
    let y = m.conv(
        x,
        &[channels, channels / groups, kernel, kernel],
        stride,
        i32::try_from(groups).unwrap(),
    );
    m.finish(y)
}

pub fn product(op: &str) -> Function {
    let mut m = Maker::new();
    let x = m.input(&[1, 128, 256]);
    let y = if op == "linear" {
        let weight = m.weight(&[512, 256]);
        m.op(
            "linear",
            [("x", Arg::Value(x)), ("weight", Arg::Value(weight))],
        )
    } else {
        let weight = m.weight(&[256, 512]);
        m.op("matmul", [("x", Arg::Value(x)), ("y", Arg::Value(weight))])
    };
    m.finish(y)
}

pub fn along(op: &str, shape: &[usize], name: &'static str, axes: Literal) -> Function {
    let mut m = Maker::new();
    let x = m.input(shape);
    let y = m.op(op, [("x", Arg::Value(x)), (name, Arg::Literal(axes))]);
    m.finish(y)
}

pub fn attention() -> Function {
    let mut m = Maker::new();
    let parts = [(); 3].map(|()| m.input(&[1, 8, 128, 64]));
    let args = [
        ("query", Arg::Value(parts[0])),
        ("key", Arg::Value(parts[1])),
        ("value", Arg::Value(parts[2])),
    ];
    let y = m.op("scaled_dot_product_attention", args);
    m.finish(y)
}

/// Kernel and stride 2, to 64x64.
pub fn transposed() -> Function {
    let mut m = Maker::new();
    let (x, weight) = (m.input(&[1, 64, 32, 32]), m.weight(&[64, 64, 2, 2]));
    let strides = Arg::Literal(Literal::i32s(&[2, 2]));
    let y = m.op(
        "conv_transpose",
        [
            ("x", Arg::Value(x)),
            ("weight", Arg::Value(weight)),
            ("strides", strides),
        ],
    );
    m.finish(y)
}

/// To 64x64.
pub fn doubled() -> Function {
    let mut m = Maker::new();
    let x = m.input(&[1, 64, 32, 32]);
    let factor = || Arg::Literal(Literal::i32(2));
    let args = [
        ("x", Arg::Value(x)),
        ("scale_factor_height", factor()),
        ("scale_factor_width", factor()),
    ];
    let y = m.op("upsample_bilinear", args);
    m.finish(y)
}

/// Half of the columns, by constant indices.
pub fn gathered() -> Function {
    let mut m = Maker::new();
    let x = m.input(&[1, 64, 32, 32]);
    let indices = Literal::Tensor(
        TensorType::new(DType::Uint16, [16usize]),
        Data::owned(vec![0; 32]),
    );
    let args = [
        ("x", Arg::Value(x)),
        ("indices", Arg::Literal(indices)),
        ("axis", Arg::Literal(Literal::i32(3))),
    ];
    let y = m.op("gather", args);
    m.finish(y)
}

/// The 16 largest of 32,000.
pub fn largest() -> Function {
    let mut m = Maker::new();
    let x = m.input(&[1, 32_000]);
    let args = [
        ("x", Arg::Value(x)),
        ("k", Arg::Literal(Literal::i32(16))),
        ("axis", Arg::Literal(Literal::i32(1))),
    ];
    let y = m.0.op_results("topk", "topk", args).unwrap()[0];
    m.finish(y)
}

/// ANEForge finds a lone 3x3 convolution over 32x32 on the CPU with 128 channels and on the engine
/// with 256.
#[test]
fn a_lone_convolution_goes_to_the_engine_when_it_is_large() {
    for (channels, backend) in [(128, Backend::Bnns), (256, Backend::Ane)] {
        let found = placed(conv(channels, 3, 1, 1), &core_ml("m5-pro"));
        assert_eq!(found.ops[0].chosen, backend, "{channels}");
        assert_eq!(
            found.residency(),
            f64::from(u8::from(backend == Backend::Ane))
        );
    }
}

#[test]
fn units_say_what_competes() {
    let large = || conv(512, 3, 1, 1);
    for units in Units::ALL {
        let found = placed(large(), &target("m4", units, Route::CoreMl));
        let op = &found.ops[0];
        let engine = matches!(units, Units::CpuAndNeuralEngine | Units::All);
        assert_eq!(op.is_supported(Backend::Ane), engine, "{units:?}");
        assert_eq!(
            op.is_supported(Backend::MpsGraph),
            matches!(units, Units::All | Units::CpuAndGpu),
            "{units:?}"
        );
        assert!(op.is_supported(Backend::Bnns) && op.is_supported(Backend::ClassicCpu));
        assert!(op.is_supported(op.chosen));
    }
    let direct = placed(relu(), &target("m4", Units::CpuOnly, Route::Direct));
    assert_eq!(
        (direct.ops[0].chosen, direct.refused.len()),
        (Backend::Ane, 0)
    );
    // Through Core ML a lone relu stays on the CPU, whose estimate is the same.
    assert_ne!(placed(relu(), &core_ml("m4")).ops[0].chosen, Backend::Ane);
}

/// Where the engine's compiler fails, Core ML runs all of it elsewhere and says nothing (M6 study,
/// finding C9); what goes straight to the engine fails there.
#[test]
fn what_does_not_compile_leaves_the_engine_as_a_whole() {
    let program = |factor: f32| {
        let mut m = Maker::new();
        let x = m.input(&[1, 512, 64, 64]);
        let y = m.conv(x, &[512, 512, 3, 3], 1, 1);
        let axes = Arg::Literal(Literal::i32s(&[1]));
        let sum = m.op(
            "reduce_sum",
            [
                ("x", Arg::Value(y)),
                ("axes", axes),
                ("keep_dims", Arg::Literal(Literal::bool(true))),
            ],
        );
        let factor = Arg::Literal(Literal::Tensor(
            TensorType::new(DType::Fp16, [0usize; 0]),
            Data::owned(
                thane_mil::literal::f64_to_f16(f64::from(factor))
                    .to_le_bytes()
                    .to_vec(),
            ),
        ));
        let z = m.op("mul", [("x", Arg::Value(sum)), ("y", factor)]);
        Program::new(vec![m.finish(z)])
    };
    let residency = |factor, route| {
        audit(
            &program(factor),
            &target("m4", Units::CpuAndNeuralEngine, route),
        )
        .functions[0]
            .placement
            .residency()
    };
    assert!(residency(0.5, Route::CoreMl) > 0.3);
    assert_eq!(residency(0.0, Route::CoreMl), 0.0);
    assert_eq!(residency(0.0, Route::Direct), 1.0);
}

/// Whether scales of blocks take a program off the engine is disputed: its ops stay, and the rule
/// is named. That palettes in a grid do is not.
#[test]
fn what_is_disputed_leaves_ops_where_they_are() {
    let found = |compressed: &dyn Fn(&mut Maker, ValueId) -> ValueId| {
        let mut m = Maker::new();
        let x = m.input(&[1, 512, 64, 64]);
        let codes = TensorType::new(DType::Uint4, [512, 512, 3, 3]);
        let codes = Literal::Tensor(codes, Data::owned(vec![0; 512 * 512 * 9 / 2]));
        let codes = m.0.constant("codes", codes).unwrap();
        let weight = compressed(&mut m, codes);
        let y = m.op(
            "conv",
            [("x", Arg::Value(x)), ("weight", Arg::Value(weight))],
        );
        let audit = audit(&Program::new(vec![m.finish(y)]), &core_ml("m4"));
        let function = &audit.functions[0];
        let ids: Vec<&str> = function.findings.iter().map(|f| f.rule.id).collect();
        (
            function.placement.residency(),
            function.placement.may_leave.clone(),
            ids,
        )
    };
    let half = |m: &mut Maker, shape: &[usize]| {
        let bytes = vec![0; 2 * shape.iter().product::<usize>()];
        let ty = TensorType::new(DType::Fp16, shape.iter().copied());
        m.0.constant("half", Literal::Tensor(ty, Data::owned(bytes)))
            .unwrap()
    };
    let blocks = |m: &mut Maker, codes| {
        let scale = half(m, &[512, 8, 1, 1]);
        m.op(
            "constexpr_blockwise_shift_scale",
            [("data", Arg::Value(codes)), ("scale", Arg::Value(scale))],
        )
    };
    let grid = |m: &mut Maker, codes| {
        let lut = half(m, &[2, 2, 1, 1, 16, 1]);
        m.op(
            "constexpr_lut_to_dense",
            [("indices", Arg::Value(codes)), ("lut", Arg::Value(lut))],
        )
    };
    assert_eq!(found(&blocks), (1.0, vec!["ANE083"], vec!["ANE083"]));
    assert_eq!(found(&grid), (0.0, vec![], vec!["ANE088"]));
}

#[test]
fn nothing_on_the_engine_is_a_share_of_zero() {
    let placement = placed(relu(), &core_ml("m4"));
    assert!(placement.residency() == 0.0 && placement.residency().is_sign_positive());
}

#[test]
fn a_step_has_a_rate_and_a_bound() {
    let chain = |positions| {
        let mut m = Maker::new();
        let mut x = m.input(&[1, 1024, 1, positions]);
        for _ in 0..24 {
            x = m.conv(x, &[1024, 1024, 1, 1], 1, 1);
        }
        m.finish(x)
    };
    let step = |positions| latency(chain(positions), &core_ml("m4"));
    let width = |found: &Latency| {
        let (low, high) = found.energy.total().interval_mj;
        high - low
    };
    let decode = step(1);
    assert_eq!(decode.bound, Bound::Weights);
    assert!((decode.weight_bytes - 24.0 * 2.0 * 1024.0 * 1024.0).abs() < 1.0);
    assert!((decode.tokens_per_second.unwrap() * decode.ms - 1e3).abs() < 1e-6);
    let prefill = step(1024);
    assert!(prefill.tokens_per_second.is_none() && prefill.positions == 1024.0);
    assert!(
        prefill.weight_bytes > 3.9 * decode.weight_bytes,
        "read again for each 256 positions"
    );
    // 24 layers of 1024^2 products at 0.7 pJ for each position, 1.5 W through the call, bytes at 42
    // pJ, and 1.6 mJ of the host.
    for (found, positions) in [(decode, 1.0), (prefill, 1024.0)] {
        let products = 24.0 * 1024.0 * 1024.0 * positions * 0.7e-9;
        let bytes = (found.weight_bytes + found.activation_bytes) * 42e-9;
        let mj = products + 1.5 * found.ms + bytes + 1.6;
        let total = found.energy.total();
        assert!((total.mj - mj).abs() < 1e-6 * mj, "{} mJ, {mj}", total.mj);
        assert!(total.interval_mj.0 < mj && mj < total.interval_mj.1);
    }
    for found in [decode, prefill] {
        // Power takes as long as the call, whose interval is part of that of the energy.
        let (low, high) = found.interval_ms;
        assert!(width(&found) > 1.5 * (high - low));
        assert!(found.interval_ms.0 < found.ms && found.ms < found.interval_ms.1);
        assert!((found.parts.total() * 1e3 - found.ms).abs() < 1e-9);
        assert!(found.memory.peak_bytes >= 24.0 * 2.0 * 1024.0 * 1024.0);
    }
    // Nobody read any energy on M3.
    let inferred = latency(chain(1), &core_ml("m3"));
    let relative = |found: &Latency| width(found) / found.energy.total().mj;
    assert!(relative(&inferred) > 1.1 * relative(&decode));
}

/// Off the engine, what figures of the CPU or GPU leave open widens the interval: more on a chip
/// that has them from another, and as the figure that limits the op has it.
#[test]
fn a_chip_without_measurements_widens_the_interval() {
    let of = |chip| latency(conv(64, 3, 1, 1), &core_ml(chip));
    let (older, newer) = (of("a19-pro"), of("a20-pro"));
    assert_eq!(newer.ms, older.ms);
    assert!(newer.interval_ms.0 < older.interval_ms.0 / 1.5);
    assert!(newer.interval_ms.1 > older.interval_ms.1 * 1.5);
}

/// On a chip without a row of compressed weights, a call that reads them has a wider interval.
#[test]
fn unscored_compressed_weights_widen_the_interval() {
    let width = |chip: &str, is_compressed: bool| {
        let mut m = Maker::new();
        let mut x = m.input(&[1, 4096, 1, 1]);
        let constant = |m: &mut Maker, dtype: DType, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape.iter().copied());
            let n = dtype.byte_len(shape.iter().product()).unwrap();
            let literal = Literal::Tensor(ty, Data::owned(vec![0; n]));
            Arg::Value(m.0.constant("w", literal).unwrap())
        };
        for _ in 0..4 {
            let shape = [4096, 4096, 1, 1];
            let weight = match is_compressed {
                true => {
                    let indices = constant(&mut m, DType::Uint8, &shape);
                    let lut = constant(&mut m, DType::Fp16, &[1, 1, 1, 1, 256, 1]);
                    let args = [("indices", indices), ("lut", lut)];
                    Arg::Value(m.op("constexpr_lut_to_dense", args))
                }
                false => constant(&mut m, DType::Fp16, &shape),
            };
            x = m.op("conv", [("x", Arg::Value(x)), ("weight", weight)]);
        }
        let found = latency(m.finish(x), &core_ml(chip));
        assert_eq!(found.reads_compressed, is_compressed);
        found.interval_ms.1 / found.ms
    };
    let widened = |chip| width(chip, true) / width(chip, false);
    assert!(
        widened("m2-max") > widened("m2") * 1.1,
        "{} {}",
        widened("m2-max"),
        widened("m2")
    );
}

#[test]
fn what_is_open_of_the_cpu_and_gpu_widens_the_interval() {
    let width = |f: Function, chip: &str, units: Units| {
        let found = latency(f, &target(chip, units, Route::CoreMl));
        assert!(found.parts.host > 0.9 * found.parts.total(), "{chip}");
        (found.interval_ms.1 / found.interval_ms.0).ln()
    };
    let (cpu, gpu) = (Units::CpuOnly, Units::CpuAndGpu);
    // A convolution, on the CPUs of M1 and M1 Pro, and of M4, whose figure is a guess.
    let by = |chip| width(conv(512, 3, 1, 1), chip, cpu);
    assert!(by("m1") + 0.1 < by("m1-pro") && by("m1-pro") < by("m4"));
    // On the GPUs of M4 Pro and M4.
    let by = |chip| width(conv(512, 3, 1, 1), chip, gpu);
    assert!(by("m4-pro") + 0.1 < by("m4"));
    let chip = Chip::from_name("m4-pro").unwrap();
    let least = 0.9 * (0.5 + 0.5 * chip.host.gpu_core_gflops.spread());
    assert!(by("m4-pro") > 2.0 * least, "{} {least}", by("m4-pro"));
}

/// Programs that no model is, on every target: they end in numbers.
#[test]
fn odd_programs_are_audited() {
    let chain = |n: usize| {
        let mut m = Maker::new();
        let mut x = m.input(&[1, 8, 1, 32]);
        for _ in 0..n {
            x = m.op("relu", [("x", Arg::Value(x))]);
        }
        m.finish(x)
    };
    let shaped = |shape: Vec<usize>| {
        let mut m = Maker::new();
        let x = m.input(&shape);
        let y = m.op(
            "softmax",
            [
                ("x", Arg::Value(x)),
                ("axis", Arg::Literal(Literal::i32(-1))),
            ],
        );
        m.finish(y)
    };
    let scalar = {
        let mut m = Maker::new();
        let x = m.input(&[]);
        let y = m.op("add", [("x", Arg::Value(x)), ("y", Arg::Value(x))]);
        m.finish(y)
    };
    let unknown = {
        let mut m = Maker::new();
        let n = m.0.symbol();
        let x =
            m.0.input("x", TensorType::new(DType::Fp16, [n, 8.into(), n]));
        let y = m.op("relu", [("x", Arg::Value(x))]);
        m.finish(y)
    };
    let empty = {
        let mut m = Maker::new();
        let x = m.input(&[2]);
        m.finish(x)
    };
    let huge = usize::MAX;
    let functions = vec![
        chain(10_000),
        shaped(vec![0, 0]),
        shaped(vec![1, 0, 7]),
        shaped(vec![huge, huge, huge, huge, huge]),
        scalar,
        unknown,
        empty,
    ];
    let many: Vec<Function> = (0..100).map(|_| chain(3)).collect();
    for program in [Program::new(functions), Program::new(many)] {
        for (units, route) in [
            (Units::All, Route::CoreMl),
            (Units::CpuOnly, Route::CoreMl),
            (Units::All, Route::Direct),
        ] {
            let found = audit(&program, &target("m6", units, route));
            for f in &found.functions {
                let ms = f.latency.ms;
                assert!(ms.is_finite() && ms >= 0.0, "{}: {ms}", f.name);
                assert!(
                    f.latency.interval_ms.0.is_finite() && f.latency.interval_ms.1.is_finite(),
                    "{}",
                    f.name
                );
                assert!((0.0..=1.0).contains(&f.placement.residency()));
                let n: usize = f.placement.segments.iter().map(|s| s.n_ops).sum();
                assert_eq!(n, f.placement.ops.len());
            }
        }
    }
}

/// A chain of so many times three ops.
fn chain(n: usize) -> Program {
    let mut m = Maker::new();
    let mut x = m.input(&[1, 64, 1, 128]);
    let weight = m.weight(&[64, 64, 1, 1]);
    for _ in 0..n {
        let y = m.op(
            "conv",
            [("x", Arg::Value(x)), ("weight", Arg::Value(weight))],
        );
        let z = m.op(
            "softmax",
            [
                ("x", Arg::Value(y)),
                ("axis", Arg::Literal(Literal::i32(-1))),
            ],
        );
        x = m.op("add", [("x", Arg::Value(x)), ("y", Arg::Value(z))]);
    }
    Program::new(vec![m.finish(x)])
}

/// A function as large as a model's is audited at once: 200 ms in a release build.
#[test]
fn the_time_of_an_audit_grows_with_the_number_of_ops() {
    let time = |n: usize| {
        let program = chain(n);
        let (found, time) = processor_time::of(|| audit(&program, &core_ml("m4")));
        assert_eq!(found.functions[0].placement.ops.len(), 3 * n);
        time
    };
    let least = (0..3).map(|_| time(100)).min().unwrap();
    let most = time(1000);
    // Ten times the ops: a hundred times the time if each op looked at all.
    assert!(
        most < least * 40,
        "{least:?} for 300 ops, {most:?} for 3,000"
    );
}

#[test]
fn a_function_is_cut_where_little_goes_across() {
    let mut m = Maker::new();
    let mut x = m.input(&[1, 64, 1, 16]);
    for _ in 0..6 {
        let y = m.conv(x, &[128, 64, 1, 1], 1, 1);
        let z = m.conv(y, &[64, 128, 1, 1], 1, 1);
        x = m.op("add", [("x", Arg::Value(x)), ("y", Arg::Value(z))]);
    }
    let f = m.finish(x);
    let layers = chunk::layers(&f, 1);
    // The first block can also be cut within: what the residual needs there is an input.
    assert_eq!(layers.len(), 8);
    let weights: f64 = layers.iter().map(|(l, _)| l.weight_bytes).sum();
    assert_eq!(weights, 6.0 * 2.0 * 2.0 * 64.0 * 128.0);
    let block = 2.0 * 2.0 * 64.0 * 128.0;
    let limits = chunk::Limits {
        weight_bytes: 2.0 * block,
        n_ops: 100,
        n_io: 4,
    };
    let costs = chunk::Costs {
        call_ms: 0.3,
        byte_ms: 1e-6,
    };
    let only: Vec<chunk::Layer> = layers.iter().map(|(l, _)| *l).collect();
    let plan = chunk::plan(&only, &limits, &costs).unwrap();
    assert_eq!(plan.chunks.len(), 3);
    assert_eq!(layers.iter().map(|(_, ops)| ops.len()).sum::<usize>(), 18);
}

//! Every op of the opset on small inputs, against what coremltools gives (`tests/ops`, made by
//! `tests/oracle/make_ops.py`).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, View};
use thane_mil::opset::{self, Accepts, ArgType, Infer, Known, OpDef, Opset, TypeError};
use thane_mil::program::{Arg, Function, Op, Program, ValueId};
use thane_mil::text::parse;
use thane_mil::types::{DType, Dim, Symbol, TensorType, Type};
use thane_mil::valid;

/// Ops without a file, and why.
const WITHOUT_FILE: &[(&str, &str)] = &[
    (
        "const",
        "each file states its constants; coremltools has nothing to compute",
    ),
    (
        "cond",
        "coremltools evaluates no nested block: `tests/it/control.rs`",
    ),
    (
        "while_loop",
        "coremltools evaluates no nested block: `tests/it/control.rs`",
    ),
    (
        "classify",
        "coremltools evaluates no label: `tests/it/classify.rs`",
    ),
    (
        "make_list",
        "coremltools evaluates no list: `tests/it/lists.rs`",
    ),
    (
        "list_length",
        "coremltools evaluates no list: `tests/it/lists.rs`",
    ),
    (
        "list_write",
        "coremltools evaluates no list: `tests/it/lists.rs`",
    ),
    (
        "list_read",
        "coremltools evaluates no list: `tests/it/lists.rs`",
    ),
    (
        "list_gather",
        "coremltools evaluates no list: `tests/it/lists.rs`",
    ),
    (
        "list_scatter",
        "coremltools evaluates no list: `tests/it/lists.rs`",
    ),
    (
        "random_bernoulli",
        "numbers cannot be compared, their distribution is: `tests/it/random.rs`",
    ),
    (
        "random_categorical",
        "numbers cannot be compared, their distribution is: `tests/it/random.rs`",
    ),
    (
        "random_normal",
        "numbers cannot be compared, their distribution is: `tests/it/random.rs`",
    ),
    (
        "random_uniform",
        "numbers cannot be compared, their distribution is: `tests/it/random.rs`",
    ),
    (
        "read_state",
        "coremltools evaluates no state: `states_are_read_and_written_in_order`",
    ),
    (
        "coreml_update_state",
        "coremltools evaluates no state: `states_are_read_and_written_in_order`",
    ),
    (
        "write_state",
        "coremltools evaluates no state: `states_are_read_and_written_in_order`",
    ),
];

/// How far from the expected result one may be: what is relative to it, plus what is absolute.
/// Results in fp16 may be the next number in fp16 instead. An op that is not here is exact.
///
/// Expected values come from numpy in fp32, each step of a formula rounded, so that a bound is what
/// the kernel promises (`thane_kernels::activation`) plus the error of the reference: one unit in
/// the last place, 1.2e-7, for a function.
fn bound(op: &str) -> Option<(f64, f64)> {
    Some(match op {
        // The C library's and numpy's.
        "cos" | "sin" | "log" | "pow" => (3.6e-7, 0.0),
        // Rounded from fp64; numpy promises 4 units in the last place.
        "acos" | "asin" | "atan" | "atanh" | "cosh" | "exp2" | "sinh" | "tan" | "scaled_tanh" => {
            (4.8e-7, 0.0)
        }
        // exp(x) - 1 and ln(1 + exp(x)) cancel in the reference.
        "elu" | "softplus" | "softplus_parametric" => (5e-7, 5e-7),
        // Promised: 1.5, 2.5, 3 and 3.5 units in the last place.
        "exp" => (3e-7, 0.0),
        "tanh" => (4.2e-7, 0.0),
        "sigmoid" => (4.8e-7, 0.0),
        "silu" => (5.4e-7, 0.0),
        // Promised: 2.5 units in the last place below 1, 1.3e-7 above.
        "erf" => (4.2e-7, 1.3e-7),
        // Promised: 1.5e-7 times x, which is at most 5. 1 + erf(..) cancels in the reference too.
        "gelu" => (1.2e-6, 8e-7),
        "softmax" => (5e-7, 0.0),
        // Sums of at most 33 products of numbers up to 3; 9.6e-7 measured with AVX-512.
        "linear"
        | "matmul"
        | "einsum"
        | "scaled_dot_product_attention"
        | "reduce_sum"
        | "reduce_mean" => (5e-7, 2e-6),
        "reduce_l1_norm" | "reduce_l2_norm" | "reduce_sum_square" | "reduce_log_sum" => {
            (5e-7, 2e-6)
        }
        // The reference rounds each of 24 products.
        "reduce_prod" => (1.5e-6, 0.0),
        // Numbers up to 200, sums of exponentials of differences.
        "reduce_log_sum_exp" => (5e-7, 2e-6),
        // Computed in fp64, as the reference is.
        "gru" | "lstm" | "rnn" => (1.2e-7, 1e-7),
        "layer_norm" | "l2_norm" => (5e-7, 1e-6),
        // Computed in f64 on both sides and rounded once; next to 0 what is left of larger terms.
        "batch_norm" | "instance_norm" | "local_response_norm" => (1.2e-7, 1e-12),
        "conv" | "conv_quantized" | "conv_transpose" | "avg_pool" | "l2_pool" => (1.2e-7, 1e-12),
        "affine" | "crop_resize" | "resample" | "resize" | "resize_bilinear"
        | "upsample_bilinear" => (1.2e-7, 1e-12),
        _ => return None,
    })
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ops")
}

/// A file: its program, and the numbers by case and value.
struct File {
    op: &'static OpDef,
    program: Program,
    values: HashMap<(String, String), Vec<f64>>,
}

impl File {
    fn read(name: &str) -> Self {
        // `gather.ios16.mil` has the form that `gather` has in that opset.
        let (op, version) = name.split_once('.').unwrap_or((name, "ios18"));
        let row = Opset::from_name(version).and_then(|o| opset::find_in(op, o));
        let op = row.unwrap_or_else(|| panic!("{name}.mil is not named for an op"));
        let text = std::fs::read_to_string(folder().join(format!("{name}.mil"))).unwrap();
        let program = parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{name}.mil: {e}"));
        let mut values = HashMap::new();
        for line in text
            .lines()
            .filter_map(|l| l.trim().strip_prefix("// case_"))
        {
            let Some((place, numbers)) = line.split_once(" = ") else {
                continue;
            };
            let (case, value) = place.split_once(' ').unwrap();
            let numbers = numbers
                .trim_matches(['[', ']'])
                .split(", ")
                .filter(|n| !n.is_empty())
                .map(number)
                .collect();
            assert!(
                values
                    .insert((format!("case_{case}"), value.to_owned()), numbers)
                    .is_none(),
                "{name}: {place}"
            );
        }
        Self {
            op,
            program,
            values,
        }
    }

    fn all() -> Vec<Self> {
        let mut names: Vec<String> = std::fs::read_dir(folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".mil").map(str::to_owned))
            .collect();
        names.sort();
        names.iter().map(|name| Self::read(name)).collect()
    }

    fn numbers(&self, f: &Function, value: &str) -> &[f64] {
        let place = (f.name.clone(), value.to_owned());
        self.values
            .get(&place)
            .unwrap_or_else(|| panic!("{}: {place:?} is not in the file", self.op.name))
    }

    /// The op that a case is about.
    fn op<'a>(&self, f: &'a Function) -> &'a Op {
        f.body()
            .ops
            .iter()
            .map(|id| f.op(*id))
            .rfind(|op| op.def == self.op)
            .unwrap()
    }
}

fn number(text: &str) -> f64 {
    match text {
        "true" => 1.0,
        "false" => 0.0,
        _ => text
            .parse()
            .unwrap_or_else(|_| panic!("`{text}` is no number")),
    }
}

#[test]
fn ops_give_what_coremltools_gives() {
    let (mut n_cases, mut errors) = (0, Vec::new());
    for file in File::all() {
        valid::check(&file.program).unwrap_or_else(|e| panic!("{}: {e:?}", file.op.name));
        for f in file.program.functions() {
            // The engine's numbers without any of its effects are f32, op by op; with them they are
            // others of the same types.
            for numerics in [
                Numerics::F32,
                Numerics::Ane(Effects::NONE),
                Numerics::Ane(Effects::default()),
            ] {
                // What it gives is as long as its input has numbers that are not 0, which effects
                // change.
                if file.op.name == "non_zero" && numerics == Numerics::Ane(Effects::default()) {
                    continue;
                }
                let failed = run_case(&file, f, numerics).err();
                errors.extend(
                    failed.map(|e| format!("{}, {}, {numerics:?}: {e}", file.op.name, f.name)),
                );
            }
            n_cases += 1;
        }
    }
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(n_cases > 1500, "{n_cases} cases");
}

fn run_case(file: &File, f: &Function, numerics: Numerics) -> Result<(), String> {
    let cpu = Cpu::new(numerics, 1);
    let mut instance = cpu
        .load(&Program::new(vec![f.clone()]))
        .unwrap()
        .instantiate()
        .unwrap();
    for &input in &f.body().inputs {
        let value = f.value(input);
        let ty = value.ty.tensor().unwrap();
        fill(
            instance.as_mut(),
            &value.name,
            &ty.known_shape().unwrap(),
            ty.dtype,
            file.numbers(f, &value.name),
        );
    }
    instance.run(&f.name).map_err(|e| e.to_string())?;
    for &output in &f.body().outputs {
        let value = f.value(output);
        let view = instance.output(&value.name).map_err(|e| e.to_string())?;
        let ty = value.ty.tensor().unwrap();
        if (view.dtype, Some(view.shape.to_vec())) != (ty.dtype, ty.known_shape()) {
            return Err(format!(
                "`{}` is {:?} of {}, not {ty}",
                value.name, view.shape, view.dtype
            ));
        }
        if numerics == Numerics::Ane(Effects::default()) {
            continue;
        }
        let expected = decode_bytes(
            view.dtype,
            &encode(view.dtype, file.numbers(f, &value.name)),
        );
        let found = decode(view);
        assert_eq!(
            found.len(),
            expected.len(),
            "{}, {}: elements",
            file.op.name,
            f.name
        );
        let mut pairs = found.iter().zip(&expected);
        if pairs.any(|(found, expected)| !is_close(file.op.name, view.dtype, *found, *expected)) {
            return Err(format!("`{}` is {found:?}, not {expected:?}", value.name));
        }
    }
    Ok(())
}

fn load(program: &Program) -> Box<dyn Instance> {
    Cpu::new(Numerics::F32, 1)
        .load(program)
        .unwrap()
        .instantiate()
        .unwrap()
}

fn is_close(op: &str, dtype: DType, found: f64, expected: f64) -> bool {
    if found == expected || found.is_nan() && expected.is_nan() {
        return true;
    }
    match (bound(op), dtype) {
        (Some(_), DType::Fp16) => (half_step(found) - half_step(expected)).abs() <= 1,
        (Some((relative, absolute)), DType::Fp32) => {
            (found - expected).abs() <= relative * expected.abs() + absolute
        }
        _ => false,
    }
}

/// The place of an fp16 number among all of them, in order; one step is a unit in the last place.
fn half_step(v: f64) -> i32 {
    let bits = i32::from(thane_mil::literal::f64_to_f16(v.abs()));
    if v < 0.0 { -bits } else { bits }
}

fn encode(dtype: DType, numbers: &[f64]) -> Vec<u8> {
    let each = |f: fn(f64) -> Vec<u8>| numbers.iter().flat_map(|v| f(*v)).collect();
    match dtype {
        DType::Fp32 => each(|v| (v as f32).to_ne_bytes().to_vec()),
        DType::Fp16 => each(|v| thane_mil::literal::f64_to_f16(v).to_ne_bytes().to_vec()),
        DType::Int32 => each(|v| (v as i32).to_ne_bytes().to_vec()),
        DType::Int8 => each(|v| (v as i8).to_ne_bytes().to_vec()),
        DType::Uint32 => each(|v| (v as u32).to_ne_bytes().to_vec()),
        DType::Int16 => each(|v| (v as i16).to_ne_bytes().to_vec()),
        DType::Uint16 => each(|v| (v as u16).to_ne_bytes().to_vec()),
        DType::Uint8 | DType::Bool => each(|v| vec![v as u8]),
        other => panic!("no file has inputs of {other}"),
    }
}

fn decode(view: View<'_>) -> Vec<f64> {
    decode_bytes(view.dtype, view.bytes)
}

fn decode_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::Fp32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(f32::from_ne_bytes(*b)))
            .collect(),
        DType::Fp16 => {
            let half =
                |b: &[u8; 2]| f64::from(thane_mil::literal::f16_to_f32(u16::from_ne_bytes(*b)));
            bytes.as_chunks().0.iter().map(half).collect()
        }
        DType::Int32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(i32::from_ne_bytes(*b)))
            .collect(),
        DType::Uint32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(u32::from_ne_bytes(*b)))
            .collect(),
        DType::Int16 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(i16::from_ne_bytes(*b)))
            .collect(),
        DType::Uint16 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(u16::from_ne_bytes(*b)))
            .collect(),
        DType::Int8 => bytes.iter().map(|b| f64::from(b.cast_signed())).collect(),
        DType::Uint8 | DType::Bool => bytes.iter().map(|b| f64::from(*b)).collect(),
        other => panic!("no file has results of {other}"),
    }
}

/// The parser takes a declared type that is more precise than what is inferred; where nothing
/// depends on the values of inputs, both must be equal.
#[test]
fn result_types_are_those_of_coremltools() {
    /// Parameters that shapes follow from.
    const SHAPES: [&str; 9] = [
        "begin",
        "end",
        "one_hot_vector_size",
        "pad",
        "reps",
        "shape",
        "size",
        "start",
        "step",
    ];
    /// Ops whose sizes depend on all of their data.
    const SIZED: [&str; 1] = ["non_zero"];
    for file in File::all() {
        for f in file.program.functions() {
            let op = file.op(f);
            let inferred = infer(f, op, Type::clone).unwrap();
            let declared: Vec<Type> = op.results.iter().map(|r| f.value(*r).ty.clone()).collect();
            let open = SIZED.contains(&op.def.name)
                || SHAPES.iter().any(|name| op.value_arg(name).is_some());
            let agree = if open {
                inferred.iter().zip(&declared).all(|(a, b)| a.compatible(b))
            } else {
                inferred == declared
            };
            assert!(
                agree,
                "{}, {}: {inferred:?}, not {declared:?}",
                file.op.name, f.name
            );
        }
    }
}

/// Result types of an op whose operands have the types that `view` makes of their own.
fn infer(f: &Function, op: &Op, view: impl Fn(&Type) -> Type) -> Result<Vec<Type>, TypeError> {
    let types = |arg: &Option<Arg>| match arg {
        Some(Arg::Literal(l)) => vec![l.ty()],
        Some(Arg::Value(v)) => vec![view(&f.value(*v).ty)],
        Some(Arg::Values(vs)) => vs.iter().map(|v| view(&f.value(*v).ty)).collect(),
        None => Vec::new(),
    };
    let types: Vec<Vec<Type>> = op.args.iter().map(types).collect();
    let args: Vec<Option<ArgType<'_>>> = op
        .args
        .iter()
        .zip(&types)
        .map(|(arg, types)| match arg.as_ref()? {
            Arg::Value(_) => Some(ArgType::One(&types[0], Known::No)),
            Arg::Values(vs) => {
                let known = |v: &ValueId| f.constant(*v).map_or(Known::No, Known::Literal);
                Some(ArgType::Many(
                    types.iter().zip(vs).map(|(ty, v)| (ty, known(v))).collect(),
                ))
            }
            Arg::Literal(l) => Some(ArgType::One(&types[0], Known::Literal(l))),
        })
        .collect();
    Infer::new(op.def, &args, &mut 0).run()
}

/// Where no dimension of an operand is known, inference says what it must know, or succeeds and
/// claims nothing that one call belies.
#[test]
fn types_are_inferred_where_sizes_are_not_known() {
    let symbol = std::cell::Cell::new(1000);
    let open = |ty: &Type| match ty {
        Type::Tensor(t) => {
            let fresh = |_: &Dim| Dim::Symbol(Symbol(symbol.replace(symbol.get() + 1)));
            Type::Tensor(TensorType {
                dtype: t.dtype,
                shape: t.shape.iter().map(fresh).collect(),
            })
        }
        other => other.clone(),
    };
    let mut errors = Vec::new();
    // The size of a part follows from that of the whole.
    for file in File::all().iter().filter(|file| file.op.name != "split") {
        for f in file.program.functions() {
            let op = file.op(f);
            let declared: Vec<Type> = op.results.iter().map(|r| f.value(*r).ty.clone()).collect();
            let agrees = match &infer(f, op, open) {
                Ok(types) => {
                    types.len() == declared.len()
                        && types.iter().zip(&declared).all(|(a, b)| a.compatible(b))
                }
                Err(e) => e.0.contains("known") || e.0.contains("constant"),
            };
            if !agrees {
                errors.push(format!(
                    "{}, {}: {:?}",
                    file.op.name,
                    f.name,
                    infer(f, op, open)
                ));
            }
        }
    }
    assert!(errors.is_empty(), "{errors:#?}");
}

/// Adding a row to the opset without a file, or a parameter that no case binds, fails here.
#[test]
fn every_op_parameter_and_element_type_has_a_case() {
    let files: HashMap<(&str, Opset), File> = File::all()
        .into_iter()
        .map(|f| ((f.op.name, f.op.since), f))
        .collect();
    let mut missing = Vec::new();
    for def in opset::GROUPS.iter().flat_map(|g| g.iter()) {
        let reason = WITHOUT_FILE.iter().find(|(name, _)| *name == def.name);
        let Some(file) = files.get(&(def.name, def.since)) else {
            missing.extend(
                reason
                    .is_none()
                    .then(|| format!("a file of tests/ops for {} since {:?}", def.name, def.since)),
            );
            continue;
        };
        assert!(
            reason.is_none(),
            "{} has a file and a reason for having none",
            def.name
        );
        for (i, param) in def.params.iter().enumerate() {
            let bound: Vec<_> = file
                .program
                .functions()
                .iter()
                .filter_map(|f| file.op(f).args[i].as_ref())
                .collect();
            missing.extend(
                bound
                    .is_empty()
                    .then(|| format!("{}: `{}` is never bound", def.name, param.name)),
            );
        }
        let seen: HashSet<DType> = file
            .program
            .functions()
            .iter()
            .map(|f| first_dtype(f, file.op(f)))
            .collect();
        if let Accepts::Tensor(dtypes) = def.params[0].accepts {
            let unseen = dtypes.iter().filter(|d| !seen.contains(d));
            missing.extend(unseen.map(|d| format!("{}: no case for {d}", def.name)));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

fn first_dtype(f: &Function, op: &Op) -> DType {
    let ty = match op.args[0].as_ref().unwrap() {
        Arg::Value(v) => f.value(*v).ty.clone(),
        Arg::Values(vs) => f.value(vs[0]).ty.clone(),
        Arg::Literal(l) => l.ty(),
    };
    ty.tensor().unwrap().dtype
}

/// Inputs, statements and what is said of them: programs that coremltools refuses too.
const ILLEGAL: &[(&str, &str, &str)] = &[
    (
        "tensor<fp32, [3]> x",
        "tensor<fp32, [3]> y = clip(x = x, alpha = fp32(1), beta = fp32(1));",
        "`alpha`: expected a number below `beta` (1), found 1",
    ),
    (
        "tensor<int8, [3]> x",
        "tensor<int8, [6]> y = tile(x = x, reps = tensor<int32, [1]>([2]));",
        "`x`: expected fp16, fp32",
    ),
    (
        "tensor<fp32, [?, 3]> x",
        "tensor<fp32, [3]> y = squeeze(x = x);",
        "`axes`: expected axes of known size",
    ),
    (
        "tensor<fp32, [2, 3]> x",
        "tensor<fp32, [2, 3]> y = layer_norm(x = x, axes = tensor<int32, [1]>([1]), gamma = \
         tensor<fp32, [2]>([1, 2]));",
        "`gamma`: expected the normalized axes tensor<fp32, [3]>, found tensor<fp32, [2]>",
    ),
    (
        "tensor<fp32, [3]> x",
        "uint16 y = reduce_argmax(x = x, axis = int32(0), output_dtype = string(\"int8\"));",
        "`output_dtype`: expected `int32` or `uint16`, found `int8`",
    ),
    (
        "tensor<fp32, [4]> x, tensor<int32, [1]> i",
        "tensor<fp32, [2]> y = gather(x = x, indices = tensor<int32, [2]>([1, -1]), \
         validate_indices = bool(true));",
        "index -1 is out of bounds for an axis of size 4",
    ),
    (
        "tensor<fp32, [4, 3]> x, tensor<fp32, [2, 3]> u",
        "tensor<fp32, [4, 3]> y = scatter(data = x, indices = tensor<int32, [2]>([0, 1]), updates \
         = u, \
             mode = string(\"set\"));",
        "`max` or `min`, found `set`",
    ),
    (
        "tensor<fp32, [4, 3]> x",
        "tensor<fp32, [4, 7]> y = pad(x = x, pad = tensor<int32, [2]>([1, 3]), mode = \
         string(\"reflect\"));",
        "cannot reflect an axis of size 3",
    ),
    (
        "tensor<fp32, [3]> x",
        "tensor<fp32, [4]> y = topk(x = x, k = int32(4), return_indices = bool(false));",
        "`k`: expected 1 to the size of axis 0 of tensor<fp32, [3]>, found 4",
    ),
    (
        "tensor<fp32, [1, 6, 2, 2]> x",
        "tensor<fp32, [1, 1, 4, 4]> y = pixel_shuffle(x = x, upscale_factor = int32(2));",
        "expected a multiple of 4, found size 6",
    ),
    (
        "tensor<fp32, [5]> x",
        "tensor<fp32, [3]> y = slice_by_size(x = x, begin = tensor<int32, [1]>([3]), size = \
         tensor<int32, [1]>([3]));",
        "expected a range within an axis of 5 elements",
    ),
    (
        "tensor<fp32, [2, ?]> x",
        "int32 b = const()[val = int32(0)]; bool m = const()[val = bool(true)]; \
             tensor<fp32, [2, ?]> y = reshape_like(x = x, ref_tensors = (x), begins = (b), ends = \
             (b), end_masks = (m));",
        "expected a result of known size",
    ),
    (
        "tensor<fp32, [4]> x, tensor<fp32, [1]> u",
        "tensor<fp32, [1]> a = slice_by_index(x = x, begin = tensor<int32, [1]>([0]), end = \
         tensor<int32, [1]>([0]), \
             stride = tensor<int32, [1]>([0])); tensor<fp32, [4]> y = relu(x = x);",
        "nonzero `stride`",
    ),
    (
        "tensor<fp32, [2, 2, 3]> x",
        "tensor<fp32, [2, 2, 3]> y = prelu(x = x, alpha = tensor<fp32, [2]>([1, 2]));",
        "since `x` is not of rank 4 but tensor<fp32, [2, 2, 3]>",
    ),
    (
        "tensor<fp32, [2, 3]> x",
        "tensor<fp32, [2, 3]> y = elu(x = x, alpha = tensor<fp32, [2]>([1, 2]));",
        "`alpha`: expected one number, found tensor<fp32, [2]>",
    ),
    (
        "tensor<fp32, [2, 3]> x, tensor<fp16, [3, 4]> u",
        "tensor<fp32, [2, 4]> y = matmul(x = x, y = u);",
        "expected equal element types or one constant operand",
    ),
    (
        "tensor<fp32, [2, 3]> x, tensor<fp32, [3, 4]> u",
        "tensor<fp32, [2, 4]> y = einsum(values = (x, u), equation = string(\"ij,jk->ik\"));",
        "found `ij,jk->ik`",
    ),
    (
        "tensor<fp32, [4, 1, 2]> x, tensor<fp32, [1, 1]> h",
        "tensor<fp32, [1, 1, 1]> z, tensor<fp32, [1, 1]> y = rnn(x = x, initial_h = h, \
             weight_ih = tensor<fp32, [1, 2]>([[1, 2]]), weight_hh = tensor<fp32, [1, 1]>([[3]]), \
             activation = string(\"elu\"));",
        "`linear`, found `elu`",
    ),
    (
        "tensor<fp32, [4, 1, 2]> x, tensor<fp32, [1, 2]> h",
        "tensor<fp32, [1, 1, 2]> z, tensor<fp32, [1, 2]> y, tensor<fp32, [1, 2]> c = lstm(x = x, \
         initial_h = h, \
             initial_c = h, weight_ih = tensor<fp32, [4, 2]>([[1, 2], [3, 4], [5, 6], [7, 8]]), \
             weight_hh = tensor<fp32, [4, 1]>([[1], [2], [3], [4]]), direction = \
             string(\"bidirectional\"));",
        "`weight_ih_back` is missing",
    ),
    (
        "tensor<fp32, [4, 1, 2]> x, tensor<fp32, [2, 1]> h",
        "tensor<fp32, [1, 1, 1]> z, tensor<fp32, [1, 1]> y = gru(x = x, initial_h = h, \
             weight_ih = tensor<fp32, [3, 2]>([[1, 2], [3, 4], [5, 6]]), weight_hh = tensor<fp32, \
             [3, 1]>([[1], [2], [3]]));",
        "`initial_h`: expected [1, 1] for `x` tensor<fp32, [4, 1, 2]>, found tensor<fp32, [2, 1]>",
    ),
];

#[test]
fn what_is_not_legal_is_refused() {
    for (inputs, body, message) in ILLEGAL {
        let error = parse(&main_function(inputs, body), &|_, _, _| None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// What iOS 17 widened is refused in functions of older opsets.
#[test]
fn older_opsets_refuse_what_newer_ones_take() {
    for (body, message) in [
        (
            "tensor<fp32, [3]> y = elu(x = x, alpha = fp16(1));",
            "`alpha`: expected the element type of `x` (tensor<fp32, [3]>), found fp16",
        ),
        (
            "tensor<fp32, [3]> y = log(x = x, epsilon = fp16(1));",
            "`epsilon`: expected the element type of `x` (tensor<fp32, [3]>), found fp16",
        ),
        (
            "tensor<int8, [3]> y = cast(x = x, dtype = string(\"int8\"));",
            "`dtype`: cast to `int8` is not supported",
        ),
        (
            "int32 y = reduce_argmin(x = x, output_dtype = string(\"int32\"));",
            "no parameter `output_dtype`",
        ),
        (
            "tensor<fp32, [1]> y = linear(x = x, weight = tensor<fp16, [1, 3]>([[1, 2, 3]]));",
            "`weight`: expected the element type of `x` (tensor<fp32, [3]>), found tensor<fp16, \
             [1, 3]>",
        ),
    ] {
        let text = main_function("tensor<fp32, [3]> x", body);
        valid::check(&parse(&text, &|_, _, _| None).unwrap()).unwrap();
        let error = parse(&text.replace("ios18", "ios16"), &|_, _, _| None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Forms that came with a later opset than the function's.
#[test]
fn what_a_later_opset_brought_is_refused() {
    for (opset, inputs, body, message) in [
        (
            "ios16",
            "tensor<fp32, [2, 50]> x",
            "tensor<fp32, [1, 1, 2, 50]> y = reshape(x = x, shape = tensor<int32, [4]>([1, 0, -1, \
             0]));",
            "requires opset ios17",
        ),
        (
            "ios16",
            "tensor<int16, [2, 3]> x",
            "tensor<int16, [3, 2]> y = transpose(x = x, perm = tensor<int32, [2]>([1, 0]));",
            "`x`: expected fp16, fp32",
        ),
        (
            "ios15",
            "tensor<fp32, [3]> x",
            "tensor<fp32, [1]> y = topk(x = x, return_indices = bool(false));",
            "has no parameter",
        ),
        (
            "ios16",
            "tensor<fp32, [3]> x",
            "tensor<fp32, [3]> y = topk(x = x, k = int32(-1), return_indices = bool(false));",
            "found -1",
        ),
        (
            "ios15",
            "tensor<fp32, [3]> x",
            "tensor<fp32, [2]> y = gather(x = x, indices = tensor<uint16, [2]>([0, 1]));",
            "`indices`: expected int32, found tensor<uint16, [2]>",
        ),
        (
            "ios15",
            "tensor<fp32, [3]> x",
            "tensor<fp32, [3]> y = fill_like(ref_tensor = x);",
            "has no op",
        ),
    ] {
        let text = main_function(inputs, body).replace("ios18", opset);
        let error = parse(&text, &|_, _, _| None).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Legal ops that the backend cannot run are errors that say why, when a program is loaded or when
/// it runs.
#[test]
fn what_the_backend_cannot_run_is_refused() {
    for (inputs, body, message) in [
        (
            "tensor<fp32, [1]> x",
            "fp32 end = squeeze(x = x); tensor<fp32, [?]> y = range_1d(end = end, start = \
             fp32(0), step = fp32(1e-9));",
            "takes more than the 1073741824 bytes that one may",
        ),
        (
            "tensor<fp32, [1]> x",
            "fp32 a = squeeze(x = x); fp32 step = sub(x = a, y = a); \
             tensor<fp32, [?]> y = range_1d(end = fp32(2), start = fp32(0), step = step);",
            "cannot count the elements",
        ),
    ] {
        let program = parse(&main_function(inputs, body), &|_, _, _| None).unwrap();
        valid::check(&program).unwrap();
        let mut instance = load(&program);
        fill(instance.as_mut(), "x", &[1], DType::Fp32, &[3.0]);
        let error = instance.run("main").unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn elements_of_less_than_a_byte_are_no_output() {
    let body =
        "tensor<int4, [3]> y = constexpr_sparse_to_dense(nonzero_data = tensor<int4, [1]>([-5]),
        mask = tensor<uint1, [3]>([0, 1, 0]));";
    let program = parse(&main_function("tensor<fp32, [1]> x", body), &|_, _, _| None).unwrap();
    let error = Cpu::new(Numerics::F32, 1)
        .load(&program)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("its result tensor<int4, [3]> is an output"),
        "{error}"
    );
}

fn main_function(inputs: &str, body: &str) -> String {
    format!("program(1.3)\n{{\n func main<ios18>({inputs}) {{\n {body}\n }} -> (y);\n}}")
}

/// As coremltools documents: a dimension in `axes` that is not 1 stays. Its evaluation refuses it,
/// so no file has it.
#[test]
fn squeeze_leaves_what_is_not_1() {
    let text = "program(1.3) { func main<ios18>(tensor<fp32, [2, 1]> x) {
        tensor<fp32, [2]> y = squeeze(x = x, axes = tensor<int32, [2]>([0, 1])); } -> (y); }";
    let mut instance = load(&parse(text, &|_, _, _| None).unwrap());
    fill(instance.as_mut(), "x", &[2, 1], DType::Fp32, &[3.0, -4.0]);
    instance.run("main").unwrap();
    assert_eq!(decode(instance.output("y").unwrap()), [3.0, -4.0]);
}

fn fill(instance: &mut dyn Instance, name: &str, shape: &[usize], dtype: DType, numbers: &[f64]) {
    instance
        .input(name, shape)
        .unwrap()
        .copy_from_slice(&encode(dtype, numbers));
}

/// Reads see what was written before them in the order of the program, and keep it when the state
/// changes later.
#[test]
fn states_are_read_and_written_in_order() {
    let text = "program(1.3) {
    func main<ios18>(tensor<fp32, [2, 3]> x, state<tensor<fp32, [2, 3]>> s) {
        tensor<fp32, [2, 3]> before = read_state(input = s);
        tensor<fp32, [2, 3]> again = read_state(input = s);
        tensor<fp32, [2, 3]> sum = add(x = again, y = x);
        tensor<fp32, [2, 3]> kept = coreml_update_state(state = s, value = sum);
        tensor<fp32, [2, 3]> after = read_state(input = s);
        tensor<fp32, [2, 3]> twice = add(x = kept, y = kept);
        write_state(input = s, data = twice);
        tensor<fp32, [2, 3]> last = read_state(input = s);
        } -> (before, kept, after, last);
    func look<ios18>(state<tensor<fp32, [2, 3]>> s) {
        tensor<fp32, [2, 3]> now = read_state(input = s);
        tensor<fp32, [2, 3]> more = add(x = now, y = now);
        tensor<fp32, [2, 3]> still = read_state(input = s);
        } -> (more, still);
    }";
    let program = parse(text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    let mut instance = load(&program);
    let x = [1.0, -2.0, 3.0, 0.5, 8.0, -0.25];
    let times = |k: f64| x.map(|v| k * v).to_vec();
    // What the state holds is 2 (s + x), so 0, 2x, 6x, ..
    let mut held = 0.0;
    for _ in 0..3 {
        fill(instance.as_mut(), "x", &[2, 3], DType::Fp32, &x);
        instance.run("main").unwrap();
        for (name, expected) in [
            ("before", held),
            ("kept", held + 1.0),
            ("after", held + 1.0),
            ("last", 2.0 * (held + 1.0)),
        ] {
            assert_eq!(
                decode(instance.output(name).unwrap()),
                times(expected),
                "{name}"
            );
        }
        held = 2.0 * (held + 1.0);
        instance.run("look").unwrap();
        assert_eq!(decode(instance.output("more").unwrap()), times(2.0 * held));
        assert_eq!(decode(instance.output("still").unwrap()), times(held));
    }
    instance.reset();
    instance.run("look").unwrap();
    assert_eq!(decode(instance.output("still").unwrap()), times(0.0));
}

/// A cache that no pattern covers: written a slice at a time, read twice, beside a state that a
/// constant is written to.
#[test]
fn slices_of_a_state_are_written_without_a_kernel() {
    let text = "program(1.3) {
    func main<ios18>(tensor<fp16, [1, 2]> x, tensor<int32, [2]> begin, tensor<int32, [2]> end,
                     state<tensor<fp16, [3, 2]>> cache, state<tensor<int32, [2]>> mark) {
        tensor<fp16, [3, 2]> old = read_state(input = cache);
        tensor<fp16, [3, 2]> new = slice_update(x = old, update = x, begin = begin, end = end);
        tensor<fp16, [3, 2]> kept = coreml_update_state(state = cache, value = new);
        tensor<fp16, [3, 2]> both = add(x = old, y = kept);
        tensor<int32, [2]> marked = read_state(input = mark);
        tensor<int32, [2]> value = const()[val = tensor<int32, [2]>([7, -3])];
        tensor<int32, [2]> set = coreml_update_state(state = mark, value = value);
        } -> (old, both, marked, set);
    }";
    let program = parse(text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    let mut instance = load(&program);
    let mut expected = vec![0.0; 6];
    for (step, row) in [2, 0, 2].into_iter().enumerate() {
        let x = [step as f64 + 0.5, -1.0 - step as f64];
        fill(instance.as_mut(), "x", &[1, 2], DType::Fp16, &x);
        fill(
            instance.as_mut(),
            "begin",
            &[2],
            DType::Int32,
            &[row as f64, 0.0],
        );
        fill(
            instance.as_mut(),
            "end",
            &[2],
            DType::Int32,
            &[row as f64 + 1.0, 2.0],
        );
        instance.run("main").unwrap();
        assert_eq!(decode(instance.output("old").unwrap()), expected);
        let mut both = expected.clone();
        expected[2 * row..2 * row + 2].copy_from_slice(&x);
        both.iter_mut().zip(&expected).for_each(|(b, e)| *b += e);
        assert_eq!(decode(instance.output("both").unwrap()), both);
        let marked = if step == 0 { [0.0, 0.0] } else { [7.0, -3.0] };
        assert_eq!(decode(instance.output("marked").unwrap()), marked);
        assert_eq!(decode(instance.output("set").unwrap()), [7.0, -3.0]);
    }
    // One row beyond the end: nothing is written, and nothing is clamped in silence.
    fill(instance.as_mut(), "begin", &[2], DType::Int32, &[3.0, 0.0]);
    fill(instance.as_mut(), "end", &[2], DType::Int32, &[4.0, 2.0]);
    let error = instance.run("main").unwrap_err().to_string();
    assert!(error.contains("found tensor<fp16, [1, 2]>"), "{error}");
}

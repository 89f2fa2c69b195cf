//! Every op of the opset on small inputs, against what coremltools gives (`tests/ops`, made by `tests/oracle/make_ops.py`).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, View};
use thane_mil::opset::{self, Accepts, ArgType, Infer, Known, OpDef, Opset};
use thane_mil::program::{Arg, Function, Op, Program};
use thane_mil::text::parse;
use thane_mil::types::{DType, Type};
use thane_mil::valid;

/// Ops without a file, and why.
const WITHOUT_FILE: &[(&str, &str)] = &[
    ("const", "each file states its constants; coremltools has nothing to compute"),
    ("cond", "coremltools evaluates no nested block: `tests/it/control.rs`"),
    ("while_loop", "coremltools evaluates no nested block: `tests/it/control.rs`"),
    ("read_state", "coremltools evaluates no state: `states_are_read_and_written_in_order`"),
    ("coreml_update_state", "coremltools evaluates no state: `states_are_read_and_written_in_order`"),
    ("write_state", "coremltools evaluates no state: `states_are_read_and_written_in_order`"),
];

/// Element types that no tensor has on the CPU backend; ops on them are refused when a program is loaded or run.
const UNHELD: &[DType] = &[DType::Int16, DType::Uint16];

/// Ops that the CPU backend refuses for some element types, which `what_the_backend_cannot_run_is_refused` holds.
const UNRUN: &[(&str, DType)] = &[("range_1d", DType::Fp16), ("range_1d", DType::Fp32)];

/// How far from the expected result one may be: what is relative to it, plus what is absolute. Results in fp16 may be the
/// next number in fp16 instead. An op that is not here is exact.
///
/// Expected values come from numpy in fp32, each step of a formula rounded, so that a bound is what the kernel promises
/// (`thane_kernels::activation`) plus the error of the reference: one unit in the last place, 1.2e-7, for a function.
fn bound(op: &str) -> Option<(f64, f64)> {
    Some(match op {
        // The C library's and numpy's.
        "cos" | "sin" | "log" | "pow" => (3.6e-7, 0.0),
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
        "linear" | "matmul" | "scaled_dot_product_attention" | "reduce_sum" | "reduce_mean" => (5e-7, 2e-6),
        "layer_norm" => (5e-7, 1e-6),
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
        for line in text.lines().filter_map(|l| l.trim().strip_prefix("// case_")) {
            let Some((place, numbers)) = line.split_once(" = ") else { continue };
            let (case, value) = place.split_once(' ').unwrap();
            let numbers = numbers.trim_matches(['[', ']']).split(", ").filter(|n| !n.is_empty()).map(number).collect();
            assert!(values.insert((format!("case_{case}"), value.to_owned()), numbers).is_none(), "{name}: {place}");
        }
        Self { op, program, values }
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
        self.values.get(&place).unwrap_or_else(|| panic!("{}: {place:?} is not in the file", self.op.name))
    }

    /// The op that a case is about.
    fn op<'a>(&self, f: &'a Function) -> &'a Op {
        f.body().ops.iter().map(|id| f.op(*id)).rfind(|op| op.def == self.op).unwrap()
    }
}

fn number(text: &str) -> f64 {
    match text {
        "true" => 1.0,
        "false" => 0.0,
        _ => text.parse().unwrap_or_else(|_| panic!("`{text}` is no number")),
    }
}

#[test]
fn ops_give_what_coremltools_gives() {
    let (mut n_cases, mut errors) = (0, Vec::new());
    for file in File::all() {
        valid::check(&file.program).unwrap_or_else(|e| panic!("{}: {e:?}", file.op.name));
        for f in file.program.functions() {
            // The engine's numbers without any of its effects are f32, op by op; with them they are others of the same types.
            for numerics in [Numerics::F32, Numerics::Ane(Effects::NONE), Numerics::Ane(Effects::default())] {
                let failed = run_case(&file, f, numerics).err();
                errors.extend(failed.map(|e| format!("{}, {}, {numerics:?}: {e}", file.op.name, f.name)));
            }
            n_cases += 1;
        }
    }
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(n_cases > 300, "{n_cases} cases");
}

fn run_case(file: &File, f: &Function, numerics: Numerics) -> Result<(), String> {
    let cpu = Cpu { numerics, n_threads: 1 };
    let mut instance = cpu.load(&Program::new(vec![f.clone()])).unwrap().instantiate().unwrap();
    for &input in &f.body().inputs {
        let value = f.value(input);
        let ty = value.ty.tensor().unwrap();
        fill(instance.as_mut(), &value.name, &ty.known_shape().unwrap(), ty.dtype, file.numbers(f, &value.name));
    }
    instance.run(&f.name).map_err(|e| e.to_string())?;
    for &output in &f.body().outputs {
        let value = f.value(output);
        let view = instance.output(&value.name).map_err(|e| e.to_string())?;
        let ty = value.ty.tensor().unwrap();
        if (view.dtype, Some(view.shape.to_vec())) != (ty.dtype, ty.known_shape()) {
            return Err(format!("`{}` is {:?} of {}, not {ty}", value.name, view.shape, view.dtype));
        }
        if numerics == Numerics::Ane(Effects::default()) {
            continue;
        }
        let expected = decode_bytes(view.dtype, &encode(view.dtype, file.numbers(f, &value.name)));
        let found = decode(view);
        assert_eq!(found.len(), expected.len(), "{}, {}: elements", file.op.name, f.name);
        let mut pairs = found.iter().zip(&expected);
        if pairs.any(|(found, expected)| !is_close(file.op.name, view.dtype, *found, *expected)) {
            return Err(format!("`{}` is {found:?}, not {expected:?}", value.name));
        }
    }
    Ok(())
}

fn load(program: &Program) -> Box<dyn Instance> {
    Cpu { numerics: Numerics::F32, n_threads: 1 }.load(program).unwrap().instantiate().unwrap()
}

fn is_close(op: &str, dtype: DType, found: f64, expected: f64) -> bool {
    if found == expected || found.is_nan() && expected.is_nan() {
        return true;
    }
    match (bound(op), dtype) {
        (Some(_), DType::Fp16) => (half_step(found) - half_step(expected)).abs() <= 1,
        (Some((relative, absolute)), DType::Fp32) => (found - expected).abs() <= relative * expected.abs() + absolute,
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
        DType::Uint8 | DType::Bool => each(|v| vec![v as u8]),
        other => panic!("no file has inputs of {other}"),
    }
}

fn decode(view: View<'_>) -> Vec<f64> {
    decode_bytes(view.dtype, view.bytes)
}

fn decode_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::Fp32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_ne_bytes(*b))).collect(),
        DType::Fp16 => {
            let half = |b: &[u8; 2]| f64::from(thane_mil::literal::f16_to_f32(u16::from_ne_bytes(*b)));
            bytes.as_chunks().0.iter().map(half).collect()
        }
        DType::Int32 => bytes.as_chunks().0.iter().map(|b| f64::from(i32::from_ne_bytes(*b))).collect(),
        DType::Int8 => bytes.iter().map(|b| f64::from(b.cast_signed())).collect(),
        DType::Uint8 | DType::Bool => bytes.iter().map(|b| f64::from(*b)).collect(),
        other => panic!("no file has results of {other}"),
    }
}

/// The parser takes a declared type that is more precise than what is inferred; where nothing depends on the values of
/// inputs, both must be equal.
#[test]
fn result_types_are_those_of_coremltools() {
    /// Parameters that shapes follow from.
    const SHAPES: [&str; 6] = ["begin", "end", "reps", "shape", "start", "step"];
    for file in File::all() {
        for f in file.program.functions() {
            let op = file.op(f);
            let inferred = infer(f, op);
            let declared: Vec<Type> = op.results.iter().map(|r| f.value(*r).ty.clone()).collect();
            let open = SHAPES.iter().any(|name| op.value_arg(name).is_some());
            let agree =
                if open { inferred.iter().zip(&declared).all(|(a, b)| a.compatible(b)) } else { inferred == declared };
            assert!(agree, "{}, {}: {inferred:?}, not {declared:?}", file.op.name, f.name);
        }
    }
}

fn infer(f: &Function, op: &Op) -> Vec<Type> {
    let literals: Vec<Option<Type>> =
        op.args.iter().map(|arg| if let Some(Arg::Literal(l)) = arg { Some(l.ty()) } else { None }).collect();
    let args: Vec<Option<ArgType<'_>>> = op
        .args
        .iter()
        .zip(&literals)
        .map(|(arg, literal)| match arg.as_ref()? {
            Arg::Value(v) => Some(ArgType::One(&f.value(*v).ty, Known::No)),
            Arg::Values(vs) => Some(ArgType::Many(vs.iter().map(|v| (&f.value(*v).ty, Known::No)).collect())),
            Arg::Literal(l) => Some(ArgType::One(literal.as_ref()?, Known::Literal(l))),
        })
        .collect();
    Infer::new(op.def, &args, &mut 0).run().unwrap()
}

/// Adding a row to the opset without a file, or a parameter that no case binds, fails here.
#[test]
fn every_op_parameter_and_element_type_has_a_case() {
    let files: HashMap<(&str, Opset), File> = File::all().into_iter().map(|f| ((f.op.name, f.op.since), f)).collect();
    let mut missing = Vec::new();
    for def in opset::GROUPS.iter().flat_map(|g| g.iter()) {
        let reason = WITHOUT_FILE.iter().find(|(name, _)| *name == def.name);
        let Some(file) = files.get(&(def.name, def.since)) else {
            missing.extend(
                reason.is_none().then(|| format!("a file of tests/ops for {} since {:?}", def.name, def.since)),
            );
            continue;
        };
        assert!(reason.is_none(), "{} has a file and a reason for having none", def.name);
        for (i, param) in def.params.iter().enumerate() {
            let bound: Vec<_> = file.program.functions().iter().filter_map(|f| file.op(f).args[i].as_ref()).collect();
            missing.extend(bound.is_empty().then(|| format!("{}: `{}` is never bound", def.name, param.name)));
        }
        let seen: HashSet<DType> = file.program.functions().iter().map(|f| first_dtype(f, file.op(f))).collect();
        if let Accepts::Tensor(dtypes) = def.params[0].accepts {
            let refused = |d: &DType| UNHELD.contains(d) || UNRUN.contains(&(def.name, *d));
            let unseen = dtypes.iter().filter(|d| !refused(d) && !seen.contains(d));
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

/// Programs that coremltools refuses too.
#[test]
fn what_is_not_legal_is_refused() {
    for (inputs, body, message) in [
        (
            "tensor<fp32, [3]> x",
            "tensor<fp32, [3]> y = clip(x = x, alpha = fp32(1), beta = fp32(1));",
            "`alpha` is 1, `beta` is 1: it must be less",
        ),
        ("tensor<int8, [3]> x", "tensor<int8, [6]> y = tile(x = x, reps = tensor<int32, [1]>([2]));", "it takes fp16"),
        ("tensor<fp32, [?, 3]> x", "tensor<fp32, [3]> y = squeeze(x = x);", "the rank would follow from it"),
        (
            "tensor<fp32, [2, 3]> x",
            "tensor<fp32, [2, 3]> y = layer_norm(x = x, axes = tensor<int32, [1]>([1]), gamma = tensor<fp32, [2]>([1, 2]));",
            "`gamma` is tensor<fp32, [2]>",
        ),
        (
            "tensor<fp32, [3]> x",
            "uint16 y = reduce_argmax(x = x, axis = int32(0), output_dtype = string(\"int8\"));",
            "`output_dtype` is `int8`",
        ),
        (
            "tensor<fp32, [4]> x, tensor<fp32, [1]> u",
            "tensor<fp32, [1]> a = slice_by_index(x = x, begin = tensor<int32, [1]>([0]), end = tensor<int32, [1]>([0]), \
             stride = tensor<int32, [1]>([0])); tensor<fp32, [4]> y = relu(x = x);",
            "no stride of 0",
        ),
    ] {
        let error = parse(&main_function(inputs, body), &|_, _, _| None).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Legal ops that the backend cannot run are errors that say why, when a program is loaded or when it runs.
#[test]
fn what_the_backend_cannot_run_is_refused() {
    for (inputs, body, message) in [
        (
            "tensor<fp32, [1]> x",
            "fp32 end = squeeze(x = x); tensor<fp32, [?]> y = range_1d(end = end, start = fp32(0), step = fp32(1));",
            "the size of tensor<fp32, [?]> is not known",
        ),
        (
            "tensor<fp32, [1]> x",
            "uint16 y = reduce_argmax(x = x, output_dtype = string(\"uint16\"));",
            "of uint16 cannot be held here",
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

fn main_function(inputs: &str, body: &str) -> String {
    format!("program(1.3)\n{{\n func main<ios18>({inputs}) {{\n {body}\n }} -> (y);\n}}")
}

/// As coremltools documents: a dimension in `axes` that is not 1 stays. Its evaluation refuses it, so no file has it.
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
    instance.input(name, shape).unwrap().copy_from_slice(&encode(dtype, numbers));
}

/// Reads see what was written before them in the order of the program, and keep it when the state changes later.
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
        for (name, expected) in
            [("before", held), ("kept", held + 1.0), ("after", held + 1.0), ("last", 2.0 * (held + 1.0))]
        {
            assert_eq!(decode(instance.output(name).unwrap()), times(expected), "{name}");
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

/// A cache that no pattern covers: written a slice at a time, read twice, beside a state that a constant is written to.
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
        fill(instance.as_mut(), "begin", &[2], DType::Int32, &[row as f64, 0.0]);
        fill(instance.as_mut(), "end", &[2], DType::Int32, &[row as f64 + 1.0, 2.0]);
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
    assert!(error.contains("`update` is tensor<fp16, [1, 2]>"), "{error}");
}

//! Issue 30, 3.5: one budget counts what programs take together, and what does not fit is an error
//! before it is allocated.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, LoadError, RunError};
use thane_mil::budget::Budget;
use thane_mil::data::{Bytes, Data};
use thane_mil::program::Program;
use thane_mil::text::parse;
use thane_mil::valid;

const MIB: usize = 1 << 20;

fn read(statements: &str, inputs: &str, outputs: &str) -> Program {
    let text = format!(
        "program(1.3)\n{{\n func main<ios18>({inputs}) {{\n{statements}\n}} -> ({outputs});\n}}"
    );
    let program = parse(&text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    program
}

fn cpu(budget: &Budget) -> Cpu {
    Cpu::new(Numerics::F32, 1).with_budget(budget)
}

/// `n` values of 4 MiB each, all of them outputs.
fn many(n: usize) -> Program {
    let value = |i: usize| {
        format!(
            "tensor<fp32, [1048576]> y{i} = tile(x = x, reps = tensor<int32, [1]>([1024]))[name = string(\"y{i}\")];\n"
        )
    };
    let names: Vec<String> = (0..n).map(|i| format!("y{i}")).collect();
    read(
        &(0..n).map(value).collect::<String>(),
        "tensor<fp32, [1024]> x",
        &names.join(", "),
    )
}

fn run(instance: &mut dyn Instance) -> Result<(), RunError> {
    instance.input("x", &[1024])?.fill(0x3f);
    instance.run("main")
}

#[test]
fn the_values_of_a_run_are_bounded_together() {
    let budget = Budget::new(30 * MIB);
    let mut instance = cpu(&budget).load(&many(8)).unwrap().instantiate().unwrap();
    let error = run(instance.as_mut()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "main: op `tile` that makes `y7` does not fit in memory"
    );
    let RunError::OverBudget { source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        (source.what.as_str(), source.needed_bytes),
        ("a tensor [1048576] of fp32", 4 * MIB)
    );
    assert_eq!(source.limit_bytes, 30 * MIB);
    drop(instance);
    assert_eq!(budget.used_bytes(), 0);
    // Seven fit, and a second call takes what the first one took.
    let mut instance = cpu(&budget).load(&many(7)).unwrap().instantiate().unwrap();
    run(instance.as_mut()).unwrap();
    let used = budget.used_bytes();
    assert!((28 * MIB..30 * MIB).contains(&used), "{used}");
    run(instance.as_mut()).unwrap();
    assert_eq!(budget.used_bytes(), used);
}

/// What waits to be used again is given up for what is needed.
#[test]
fn buffers_that_wait_do_not_stand_in_the_way() {
    let program = read(
        "tensor<fp32, [4194304]> a = tile(x = x, reps = tensor<int32, [1]>([4096]));
         tensor<fp32, [1]> s = reduce_sum(x = a, axes = tensor<int32, [1]>([0]), keep_dims = bool(true));
         tensor<fp32, [6291456]> b = tile(x = x, reps = tensor<int32, [1]>([6144]));
         tensor<fp32, [1]> t = reduce_sum(x = b, axes = tensor<int32, [1]>([0]), keep_dims = bool(true));
         tensor<fp32, [1]> y = add(x = s, y = t);",
        "tensor<fp32, [1024]> x",
        "y",
    );
    // The second needs 24 MiB, and 48 to add up in f64; the first has left 16.
    let budget = Budget::new(76 * MIB);
    let mut instance = cpu(&budget).load(&program).unwrap().instantiate().unwrap();
    run(instance.as_mut()).unwrap();
    // What the last call has left is given up for others, too.
    assert!(budget.used_bytes() >= 16 * MIB);
    let others = budget.reserve(75 * MIB, String::new).unwrap();
    assert!(run(instance.as_mut()).is_err());
    drop(others);
    run(instance.as_mut()).unwrap();
}

#[test]
fn constants_that_are_computed_count() {
    let value = |i: usize| {
        format!(
            "tensor<fp32, [1048576]> y{i} = fill(shape = tensor<int32, [1]>([1048576]), value = fp32({i}));\n"
        )
    };
    let names: Vec<String> = (0..8).map(|i| format!("y{i}")).collect();
    let program = read(
        &(0..8).map(value).collect::<String>(),
        "tensor<fp32, [1024]> x",
        &names.join(", "),
    );
    let budget = Budget::new(30 * MIB);
    let error = cpu(&budget).load(&program).err().unwrap();
    assert!(
        matches!(&error, LoadError::OverBudget { source, .. } if source.limit_bytes == 30 * MIB),
        "{error}"
    );
    assert!(error.to_string().starts_with("main: op `fill`"), "{error}");
    assert_eq!(budget.used_bytes(), 0);
    cpu(&Budget::new(40 * MIB)).load(&program).unwrap();
}

/// A cache counts as what it takes when it is full, for each sequence.
#[test]
fn states_count_as_if_they_were_full() {
    let program = read(
        "tensor<fp16, [1, 1048576]> y = read_state(input = cache);",
        "state<tensor<fp16, [1, 1048576]>> cache",
        "y",
    );
    let budget = Budget::new(5 * MIB);
    let executable = cpu(&budget).load(&program).unwrap();
    let two: Vec<_> = (0..2).map(|_| executable.instantiate().unwrap()).collect();
    assert_eq!(budget.used_bytes(), 4 * MIB);
    let error = executable.instantiate().err().unwrap();
    assert_eq!(error.to_string(), "state `cache` does not fit in memory");
    assert!(matches!(
        executable.instantiate_batch(2).err().unwrap(),
        RunError::OverBudget { .. }
    ));
    let mut two = two;
    two[0].reset();
    assert_eq!(budget.used_bytes(), 4 * MIB);
    drop(two);
    drop(executable);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn inputs_count() {
    let program = read(
        "tensor<fp32, [?]> y = relu(x = x);",
        "tensor<fp32, [?]> x",
        "y",
    );
    let budget = Budget::new(MIB);
    let mut instance = cpu(&budget).load(&program).unwrap().instantiate().unwrap();
    let error = instance.input("x", &[1 << 18 | 1]).unwrap_err();
    assert_eq!(error.to_string(), "input `x` does not fit in memory");
    instance.input("x", &[1 << 10]).unwrap().fill(0);
    instance.run("main").unwrap();
}

/// Bytes that are held once functions with so many rows over one fp16 matrix of 8 MiB are loaded,
/// and after three calls of the last.
fn held_bytes(function_rows: &[usize]) -> [usize; 2] {
    let matrix = Data::Bytes(Bytes::new(vec![0u8; 8 * MIB]));
    let function = |n: &usize| {
        format!(
            "func rows_{n}<ios18>(tensor<fp16, [1, {n}, 1024]> x) {{
                tensor<fp16, [4096, 1024]> w = const()[val = tensor<fp16, [4096, 1024]>(BLOBFILE(path = string(\"w\"), offset = uint64(64)))];
                tensor<fp16, [1, {n}, 4096]> y = linear(x = x, weight = w);
            }} -> (y);"
        )
    };
    let functions: String = function_rows.iter().map(function).collect();
    let program = parse(&format!("program(1.3)\n{{{functions}}}"), &|_, _, _| {
        Some(matrix.clone())
    })
    .unwrap();
    valid::check(&program).unwrap();
    let budget = Budget::new(64 * MIB);
    let cpu = Cpu::new(Numerics::Fast, 1).with_budget(&budget);
    let executable = cpu.load(&program).unwrap();
    let loaded = budget.used_bytes();
    let mut instance = executable.instantiate().unwrap();
    let n = function_rows.last().unwrap();
    for _ in 0..3 {
        instance.input("x", &[1, *n, 1024]).unwrap().fill(0);
        instance.run(&format!("rows_{n}")).unwrap();
    }
    drop(instance);
    [loaded, budget.used_bytes()]
}

/// A decoder whose caches are inputs has no states, and reads its weights once for each token too:
/// how many rows the functions of a program multiply a matrix with decides its form.
#[test]
fn a_matrix_that_is_multiplied_with_one_row_stays_fp16_without_states() {
    assert_eq!(held_bytes(&[32, 1]), [0, 8 * MIB]);
    assert_eq!(held_bytes(&[1, 32]), [0, 8 * MIB]);
    // Of many rows it is read from panels of fp32, which are made at load.
    assert_eq!(held_bytes(&[32]), [16 * MIB; 2]);
}

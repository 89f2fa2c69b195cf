//! Nested blocks: branches and loops, what they see of the outside, and what their text is.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, Limits, LoadOptions};
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::valid;

const CPU: Cpu = Cpu::new(Numerics::F32, 1);

/// While i < n: (i, x) = (i + 1, i is odd ? x + y : 3x), where y stands outside.
const LOOP: &str = "program(1.3)
{
    func main<ios15>(tensor<int32, [1]> n, tensor<fp32, [2]> x, tensor<fp32, [2]> y) {
            tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
            tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
            tensor<int32, [1]> two = const()[val = tensor<int32, [1]>([2])];
            tensor<int32, [1]> end, tensor<fp32, [2]> last = while_loop(loop_vars = (zero, x))[name = string(\"loop\")] {
                block(tensor<int32, [1]> i, tensor<fp32, [2]> v) {
                    tensor<bool, [1]> less = less(x = i, y = n);
                    bool more = squeeze(axes = tensor<int32, [1]>([0]), x = less);
                } -> (more);
                block(tensor<int32, [1]> j, tensor<fp32, [2]> w) {
                    tensor<int32, [1]> next = add(x = j, y = one);
                    tensor<int32, [1]> rest = mod(x = j, y = two);
                    tensor<bool, [1]> odd = equal(x = rest, y = one);
                    bool is_odd = squeeze(axes = tensor<int32, [1]>([0]), x = odd);
                    tensor<fp32, [2]> new = cond(pred = is_odd) {
                        block() {
                            tensor<fp32, [2]> sum = add(x = w, y = y);
                        } -> (sum);
                        block() {
                            fp32 three = const()[val = fp32(0x1.8p+1)];
                            tensor<fp32, [2]> triple = mul(x = w, y = three);
                        } -> (triple);
                    };
                } -> (next, new);
            };
            tensor<fp32, [2]> z = sub(x = last, y = x);
        } -> (end, z);
}
";

fn read(text: &str) -> Program {
    let program = parse(text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    program
}

fn run(instance: &mut dyn Instance, n: i32) -> Vec<f32> {
    instance
        .input("n", &[1])
        .unwrap()
        .copy_from_slice(&n.to_ne_bytes());
    for (name, values) in [("x", [1.5f32, -2.0]), ("y", [0.25, 4.0])] {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        instance.input(name, &[2]).unwrap().copy_from_slice(&bytes);
    }
    instance.run("main").unwrap();
    assert_eq!(
        instance.output("end").unwrap().bytes,
        n.max(0).to_ne_bytes()
    );
    instance
        .output("z")
        .unwrap()
        .bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b))
        .collect()
}

#[test]
fn loops_and_branches_run() {
    let program = read(LOOP);
    let mut instance = CPU.load(&program).unwrap().instantiate().unwrap();
    for n in [0, 5, 1, 4] {
        let (mut v, y) = ([1.5f32, -2.0], [0.25, 4.0]);
        for i in 0..n {
            (0..2).for_each(|k| v[k] = if i % 2 == 1 { v[k] + y[k] } else { 3.0 * v[k] });
        }
        assert_eq!(
            run(instance.as_mut(), n),
            [v[0] - 1.5, v[1] + 2.0],
            "{n} rounds"
        );
    }
}

#[test]
fn nested_blocks_are_printed_and_read_back() {
    let program = read(LOOP);
    let text = print(&program, &mut Blobs::default());
    assert_eq!(text, LOOP);
    assert_eq!(difference(&program, &read(&text)), None);
}

/// Issue 30, 2.3: as coremltools writes the loops of torch's recurrent layers.
#[test]
fn a_condition_may_be_a_vector_of_one() {
    let squeezed = "bool more = squeeze(axes = tensor<int32, [1]>([0]), x = less);\n";
    assert!(LOOP.contains(squeezed));
    let program = read(
        &LOOP
            .replace(squeezed, "")
            .replace("} -> (more);", "} -> (less);"),
    );
    let load = |program: &Program| CPU.load(program).unwrap().instantiate().unwrap();
    let (mut vector, mut scalar) = (load(&program), load(&read(LOOP)));
    for n in [0, 1, 5] {
        assert_eq!(run(vector.as_mut(), n), run(scalar.as_mut(), n));
    }
}

#[test]
fn what_a_block_defines_stays_in_it() {
    for (old, new, message) in [
        (
            "} -> (end, z);",
            "} -> (end, sum);",
            "`sum` is used before it is defined",
        ),
        (
            "triple = mul(x = w",
            "sum = mul(x = w",
            "`sum` is defined twice",
        ),
        (
            "} -> (next, new);",
            "} -> (next);",
            "the second block returns (tensor<int32, [1]>)",
        ),
        (
            "block() {\n                            fp32",
            "block(fp32 q) {\n                            fp32",
            "expected blocks without inputs",
        ),
        (
            "} -> (more);",
            "} -> (i);",
            "the first block must return (bool), it returns (tensor<int32, [1]>)",
        ),
    ] {
        assert!(LOOP.contains(old), "{old}");
        let error = parse(&LOOP.replace(old, new), &|_, _, _| None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_loop_without_end_is_an_error() {
    let program = read(&LOOP.replace("next = add", "next = mul"));
    let limits = Limits {
        rounds: 1000,
        ..Limits::default()
    };
    let mut instance = CPU
        .load_with(&program, &LoadOptions::within(limits))
        .unwrap()
        .instantiate()
        .unwrap();
    for name in ["x", "y"] {
        instance.input(name, &[2]).unwrap();
    }
    instance
        .input("n", &[1])
        .unwrap()
        .copy_from_slice(&7i32.to_ne_bytes());
    let error = instance.run("main").unwrap_err().to_string();
    assert!(error.contains("does not end in 1000 rounds"), "{error}");
}

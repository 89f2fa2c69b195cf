//! Nested blocks: branches and loops, what they see of the outside, and what their text is.

use std::sync::Arc;

use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Executable, Instance, Limits, LoadOptions};
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

fn limited(program: &Program, numerics: Numerics, limits: Limits) -> Arc<dyn Executable> {
    let cpu = Cpu::new(numerics, 1);
    cpu.load_with(program, &LoadOptions::within(limits))
        .unwrap()
}

fn rounds(rounds: usize) -> Limits {
    Limits {
        rounds,
        ..Limits::default()
    }
}

#[test]
fn a_loop_without_end_is_an_error() {
    let program = read(&LOOP.replace("next = add", "next = mul"));
    let executable = limited(&program, Numerics::F32, rounds(1000));
    let mut instance = executable.instantiate().unwrap();
    for name in ["x", "y"] {
        instance.input(name, &[2]).unwrap();
    }
    instance
        .input("n", &[1])
        .unwrap()
        .copy_from_slice(&7i32.to_ne_bytes());
    let error = instance.run("main").unwrap_err().to_string();
    assert!(
        error.contains("expected at most 1000 rounds of all loops of a call"),
        "{error}"
    );
}

/// Loops of `n` rounds inside each other, around `body`, which makes NEW of OLD.
fn nested(depth: usize, n: usize, ty: &str, body: &str) -> Program {
    let value = |d: usize| match d {
        0 => "x".to_owned(),
        d => format!("old{d}"),
    };
    let mut text = body.replace("OLD", &value(depth));
    text = text.replace("NEW", &format!("new{depth}"));
    for d in (0..depth).rev() {
        let (outer, old, inner) = (value(d), value(d + 1), d + 1);
        text = format!(
            "tensor<int32, [1]> end{d}, {ty} new{d} = while_loop(loop_vars = (zero, {outer})) {{
                block(tensor<int32, [1]> i{d}, {ty} seen{d}) {{
                    tensor<bool, [1]> more{d} = less(x = i{d}, y = n); }} -> (more{d});
                block(tensor<int32, [1]> j{d}, {ty} {old}) {{
                    tensor<int32, [1]> next{d} = add(x = j{d}, y = one);
                    {text} }} -> (next{d}, new{inner}); }};"
        );
    }
    read(&format!(
        "program(1.3) {{ func main<ios18>({ty} x) {{
            tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
            tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
            tensor<int32, [1]> n = const()[val = tensor<int32, [1]>([{n}])];
            {text} }} -> (new0); }}"
    ))
}

/// Nested loops multiply, so a bound on each of them bounds nothing.
#[test]
fn rounds_of_nested_loops_count_together() {
    const VECTOR: &str = "tensor<fp32, [2]>";
    let program = nested(
        3,
        6,
        VECTOR,
        &format!("{VECTOR} NEW = add(x = OLD, y = x);"),
    );
    let n_rounds = 6 + 6 * 6 + 6 * 6 * 6;
    for numerics in [Numerics::F32, Numerics::Ane(Effects::default())] {
        let enough = limited(&program, numerics, rounds(n_rounds));
        let mut instance = enough.instantiate().unwrap();
        // Each call has a count of its own.
        for _ in 0..2 {
            let values = [1.5f32, -2.0].map(f32::to_ne_bytes).concat();
            instance.input("x", &[2]).unwrap().copy_from_slice(&values);
            instance.run("main").unwrap();
            let new = instance.output("new0").unwrap().bytes;
            let expected = [1.5f32, -2.0].map(|x| (x * 217.0).to_ne_bytes()).concat();
            assert_eq!(new, expected);
        }
        let few = limited(&program, numerics, rounds(n_rounds - 1));
        let mut instance = few.instantiate().unwrap();
        instance.input("x", &[2]).unwrap();
        let error = instance.run("main").unwrap_err().to_string();
        assert!(error.contains("expected at most 257 rounds"), "{error}");
    }
    // Sequences that run together have a count each, as if they ran alone.
    for (most, is_enough) in [(n_rounds, true), (n_rounds - 1, false)] {
        let executable = limited(&program, Numerics::F32, rounds(most));
        let mut batch = executable.instantiate_batch(3).unwrap();
        for idx in 0..3 {
            batch.instance_mut(idx).unwrap().input("x", &[2]).unwrap();
        }
        assert_eq!(batch.run("main", &[0, 1, 2]).is_ok(), is_enough);
    }
}

fn elements(loop_elements: u64) -> Limits {
    Limits {
        loop_elements,
        ..Limits::default()
    }
}

/// Whether the elements of loops are too many, the input `x` having `shape`.
fn fails(program: &Program, shape: &[usize], limits: Limits) -> bool {
    let executable = limited(program, Numerics::F32, limits);
    let mut instance = executable.instantiate().unwrap();
    instance.input("x", shape).unwrap();
    let error = instance.run("main").err().map(|e| e.to_string());
    assert!(
        error
            .as_ref()
            .is_none_or(|e| e.contains("expected loops that read and write at most")),
        "{error:?}"
    );
    error.is_some()
}

/// Recurrent layers and boxes take more than what they read and write, too.
#[test]
fn work_of_recurrent_layers_and_boxes_in_loops_is_bounded() {
    // 100 rounds of 500 steps with 1,056 weights each.
    let numbers = |n: usize| vec!["0x1p-5"; n].join(", ");
    let row = format!("[{}]", numbers(32));
    let recurrent = nested(
        2,
        10,
        "tensor<fp32, [1, 32]>",
        &format!(
            "tensor<fp32, [500, 1, 1]> xs = fill(shape = tensor<int32, [3]>([500, 1, 1]), \
                value = fp32(0x1p-1));
            tensor<fp32, [1, 1, 32]> last, tensor<fp32, [1, 32]> NEW = rnn(x = xs, \
                initial_h = OLD, weight_ih = tensor<fp32, [32, 1]>([{}]), \
                weight_hh = tensor<fp32, [32, 32]>([{}]), direction = string(\"forward\"), \
                output_sequence = bool(false), activation = string(\"tanh\"));",
            vec!["[0x1p-5]"; 32].join(", "),
            vec![row.as_str(); 32].join(", ")
        ),
    );
    assert!(fails(&recurrent, &[1, 32], elements(2_000_000)));
    assert!(!fails(&recurrent, &[1, 32], elements(5_000_000)));
    // 100 rounds that compare 1,000 boxes with up to 1,000 that are kept.
    let boxes = nested(
        2,
        10,
        "tensor<fp32, [1, 1, 1000]>",
        "tensor<fp32, [1, 4, 1000]> boxes = fill(shape = tensor<int32, [3]>([1, 4, 1000]), \
            value = fp32(0x1p-1));
        tensor<fp32, [1, 4, 1000]> kept, tensor<fp32, [1, 1, 1000]> NEW, \
            tensor<int32, [1, 1000]> indices = non_maximum_suppression(boxes = boxes, \
            scores = OLD, iou_threshold = fp32(0x1p+1), max_boxes = int32(1000), \
            per_class_suppression = bool(false));",
    );
    assert!(fails(&boxes, &[1, 1, 1000], elements(4_000_000)));
    assert!(!fails(&boxes, &[1, 1, 1000], elements(10_000_000)));
}

/// What a round takes is bounded too: with large tensors, few rounds take for ever.
#[test]
fn elements_of_loops_are_bounded() {
    let add = |n: usize| {
        let ty = format!("tensor<fp32, [{n}]>");
        nested(2, 10, &ty, &format!("{ty} NEW = add(x = OLD, y = x);"))
    };
    // 100 rounds of 3 times 10,000 elements, and what steps count as.
    assert!(!fails(&add(10_000), &[10_000], elements(4_000_000)));
    assert!(fails(&add(10_000), &[10_000], elements(3_000_000)));
    assert!(!fails(&add(10), &[10], elements(400_000)));
    assert!(fails(&add(10), &[10], elements(4_000)), "steps count");
    // 100 products of 8 million multiplications.
    let square = |body: &str| {
        let ty = "tensor<fp32, [200, 200]>";
        nested(2, 10, ty, &format!("{ty} NEW = {body};"))
    };
    let product = square("matmul(x = OLD, y = x)");
    let shape = [200, 200];
    assert!(fails(&product, &shape, elements(40_000_000)));
    assert!(!fails(&product, &shape, elements(80_000_000)));
    // 100 rounds of 81 multiplications for each of 40,000 elements.
    let windows = |op: &str, more: &str| {
        let ty = "tensor<fp32, [1, 1, 200, 200]>";
        let ints = |values: &str, n: usize| format!("tensor<int32, [{n}]>([{values}])");
        let (ones, pad) = (ints("1, 1", 2), ints("4, 4, 4, 4", 4));
        let body = format!(
            "{ty} NEW = {op}(x = OLD, strides = {ones}, pad_type = string(\"custom\"), \
             pad = {pad}, {more});"
        );
        nested(2, 10, ty, &body)
    };
    let pool = windows("max_pool", "kernel_sizes = tensor<int32, [2]>([9, 9])");
    let row = format!("[{}]", ["0x1p+0"; 9].join(", "));
    let ones = format!("[[[{}]]]", vec![row; 9].join(", "));
    let conv = windows(
        "conv",
        &format!(
            "weight = tensor<fp32, [1, 1, 9, 9]>({ones}), groups = int32(1), \
             dilations = tensor<int32, [2]>([1, 1])"
        ),
    );
    let codes = format!(
        "[[[{}]]]",
        vec![format!("[{}]", ["1"; 9].join(", ")); 9].join(", ")
    );
    let quantized = windows(
        "conv_quantized",
        &format!(
            "weight = tensor<uint8, [1, 1, 9, 9]>({codes}), groups = int32(1), \
             dilations = tensor<int32, [2]>([1, 1]), nbits = int32(8), \
             quantization_type = string(\"linear\"), quant_scale = fp32(0x1p+0), \
             quant_bias = fp32(0x0p+0)"
        ),
    );
    for program in [pool, conv, quantized] {
        let shape = [1, 1, 200, 200];
        assert!(fails(&program, &shape, elements(20_000_000)));
        assert!(!fails(&program, &shape, elements(40_000_000)));
    }
}

/// Attention, what keeps the best elements, and lists have work of their own.
#[test]
fn work_of_other_ops_of_loops_is_bounded() {
    let shape = [200, 200];
    // 100 rounds of 160,000 scores of two multiplications and an exponential each.
    let ty = "tensor<fp32, [1, 400, 1]>";
    let attention =
        format!("{ty} NEW = scaled_dot_product_attention(query = OLD, key = x, value = x);");
    let attention = nested(2, 10, ty, &attention);
    assert!(fails(&attention, &[1, 400, 1], elements(10_000_000)));
    assert!(!fails(&attention, &[1, 400, 1], elements(30_000_000)));
    // 100 rounds that each keep 100 of 100,000 elements in order while they read the rest.
    let ty = "tensor<fp32, [100000]>";
    let best = nested(
        2,
        10,
        ty,
        &format!(
            "tensor<fp32, [100]> best, tensor<int32, [100]> places = topk(x = OLD, k = int32(100), \
                axis = int32(0), ascending = bool(false));
            fp32 most = reduce_max(x = best);
            {ty} NEW = minimum(x = OLD, y = most);"
        ),
    );
    assert!(fails(&best, &[100_000], elements(90_000_000)));
    assert!(!fails(&best, &[100_000], elements(120_000_000)));
    let lists = nested(
        2,
        10,
        "tensor<fp32, [200, 200]>",
        "int32 size = const()[val = int32(200)];
        int32 at = const()[val = int32(0)];
        list<tensor<fp32, [200, 200]>, ?> empty = make_list(elem_shape = (size, size), \
            init_length = int32(10), dtype = string(\"fp32\"));
        list<tensor<fp32, [200, 200]>, ?> written = list_write(ls = empty, index = at, value = OLD);
        tensor<fp32, [200, 200]> NEW = list_read(ls = written, index = at);",
    );
    // 100 rounds of two lists of 10 tensors.
    assert!(fails(&lists, &shape, elements(80_000_000)));
    assert!(!fails(&lists, &shape, elements(100_000_000)));
    // Outside of loops, ops are not counted together.
    let ty = "tensor<fp32, [200, 200]>";
    let straight = nested(0, 1, ty, &format!("{ty} NEW = matmul(x = x, y = x);"));
    assert!(!fails(&straight, &shape, elements(1)));
}

/// An op that would take for ever is refused before it begins, at run time and where a constant is
/// folded.
#[test]
fn the_work_of_one_op_is_bounded() {
    let said = "expected an op that reads and writes at most";
    let ty = "tensor<fp32, [200, 200]>";
    let program = nested(0, 1, ty, &format!("{ty} NEW = matmul(x = x, y = x);"));
    for (op_elements, is_refused) in [(600_000, true), (700_000, false)] {
        let limits = Limits {
            op_elements,
            ..Limits::default()
        };
        let executable = limited(&program, Numerics::Ane(Effects::default()), limits);
        let mut instance = executable.instantiate().unwrap();
        instance.input("x", &[200, 200]).unwrap();
        let error = instance.run("main").err().map(|e| e.to_string());
        assert_eq!(error.is_some(), is_refused, "{error:?}");
        assert!(error.is_none_or(|e| e.contains(said)));
    }
    // 2e13 multiplications.
    let program = read(
        "program(1.3) { func main<ios15>(tensor<fp32, [1]> x) {
            tensor<fp32, [1, 1, 1500, 1500]> a = fill(value = fp32(0x1p-2), \
                shape = tensor<int32, [4]>([1, 1, 1500, 1500]));
            tensor<fp32, [1, 1, 3001, 3001]> w = fill(value = fp32(0x1p-2), \
                shape = tensor<int32, [4]>([1, 1, 3001, 3001]));
            tensor<fp32, [1, 1, 1500, 1500]> b = conv(x = a, weight = w, groups = int32(1), \
                strides = tensor<int32, [2]>([1, 1]), dilations = tensor<int32, [2]>([1, 1]), \
                pad_type = string(\"same\"), pad = tensor<int32, [4]>([0, 0, 0, 0]));
            tensor<fp32, [1, 1, 1500, 1500]> y = add(x = b, y = x); } -> (y); }",
    );
    let error = CPU.load(&program).err().unwrap().to_string();
    assert!(error.contains(&format!("conv `b`: {said}")), "{error}");
}

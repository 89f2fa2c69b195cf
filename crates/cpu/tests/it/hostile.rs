//! Programs that the validator accepts and that ask for more than there is, or are not what they
//! declare: each is an error with a reason, never a panic and never memory without bound.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance};
use thane_mil::text::parse;
use thane_mil::valid;

const CPU: Cpu = Cpu::new(Numerics::F32, 1);

fn loaded(functions: &str) -> Result<Box<dyn Instance>, String> {
    let program = parse(&format!("program(1.3)\n{{\n{functions}\n}}"), &|_, _, _| {
        None
    })
    .unwrap();
    valid::check(&program).unwrap();
    CPU.load(&program)
        .map_err(|e| e.to_string())?
        .instantiate()
        .map_err(|e| e.to_string())
}

/// `main` of these inputs and statements.
fn function(inputs: &str, body: &str, output: &str) -> String {
    format!("func main<ios18>({inputs}) {{\n{body}\n}} -> ({output});")
}

fn fill<T: Copy>(
    instance: &mut dyn Instance,
    name: &str,
    shape: &[usize],
    values: &[T],
    bytes: fn(T) -> Vec<u8>,
) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| bytes(*v)).collect();
    instance.input(name, shape).unwrap().copy_from_slice(&bytes);
}

fn ints(instance: &mut dyn Instance, name: &str, shape: &[usize], values: &[i32]) {
    fill(instance, name, shape, values, |v| v.to_ne_bytes().to_vec());
}

fn floats(instance: &mut dyn Instance, name: &str, shape: &[usize], values: &[f32]) {
    fill(instance, name, shape, values, |v| v.to_ne_bytes().to_vec());
}

fn output(instance: &dyn Instance, name: &str) -> (Vec<usize>, Vec<f32>) {
    let view = instance.output(name).unwrap();
    (
        view.shape.to_vec(),
        view.bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_ne_bytes(*b))
            .collect(),
    )
}

#[test]
fn constants_and_states_beyond_memory_are_refused_at_load() {
    let x = "tensor<fp32, [1]> x";
    let tile = "tensor<fp32, [1]> a = const()[val = tensor<fp32, [1]>([1])];
        tensor<fp32, [?]> b = tile(x = a, reps = tensor<int32, [1]>([2147483647]));
        tensor<fp32, [?]> y = add(x = x, y = b);";
    let range = "tensor<int32, [?]> y = range_1d(start = int32(0), end = int32(2147483647), step = int32(1));";
    let state = format!("{x}, state<tensor<fp32, [1073741824, 1073741824]>> s");
    for (inputs, body, message) in [
        (x, tile, "bytes that one may"),
        (x, range, "bytes that one may"),
        (
            &state,
            "tensor<fp32, [1]> y = relu(x = x);",
            "`s`: expected tensor<fp32, [1073741824, 1073741824]>",
        ),
    ] {
        let error = loaded(&function(inputs, body, "y"))
            .map(|_| ())
            .unwrap_err();
        assert!(error.contains(message), "{error:?} lacks {message:?}");
    }
}

#[test]
fn sizes_of_run_time_are_bounded() {
    let body = "int32 n = squeeze(x = i);
        tensor<int32, [?]> y = range_1d(start = int32(0), end = n, step = int32(1));";
    let mut instance = loaded(&function("tensor<int32, [1]> i", body, "y")).unwrap();
    ints(instance.as_mut(), "i", &[1], &[i32::MAX]);
    let error = instance.run("main").unwrap_err().to_string();
    assert!(
        error.contains("a tensor [2147483647] of int32 takes more than"),
        "{error}"
    );
    assert!(instance.input("i", &[usize::MAX]).is_err());
    assert!(instance.input("i", &[0, usize::MAX, usize::MAX]).is_err());
}

/// Found to be constant in time that doubled with each op, and folded by recursion.
#[test]
fn long_chains_of_constants_are_folded() {
    let mut body = "tensor<fp32, [1]> c0 = const()[val = tensor<fp32, [1]>([1])];\n".to_owned();
    for i in 1..=4000 {
        body += &format!(
            "tensor<fp32, [1]> c{i} = maximum(x = c{0}, y = c{0});\n",
            i - 1
        );
    }
    let body = body + "tensor<fp32, [1]> y = add(x = x, y = c4000);";
    let mut instance = loaded(&function("tensor<fp32, [1]> x", &body, "y")).unwrap();
    floats(instance.as_mut(), "x", &[1], &[1.5]);
    instance.run("main").unwrap();
    assert_eq!(output(instance.as_ref(), "y"), (vec![1], vec![2.5]));
}

#[test]
fn a_result_of_another_size_than_declared_is_an_error() {
    // Read as rows of 8, the five elements would be half a row.
    let body = "tensor<fp32, [1, 8]> r = reshape(x = x, shape = s);
        tensor<fp32, [1, 8]> sq = mul(x = r, y = r);
        tensor<fp32, [1, 1]> m = reduce_mean(x = sq, axes = tensor<int32, [1]>([-1]), keep_dims = bool(true));
        tensor<fp32, [1, 1]> i = rsqrt(x = m, epsilon = fp32(0x1p-10));
        tensor<fp32, [1, 8]> n = mul(x = r, y = i);
        tensor<fp32, [8]> w = const()[val = tensor<fp32, [8]>([1, 2, 3, 4, 5, 6, 7, 8])];
        tensor<fp32, [1, 8]> y = mul(x = n, y = w);";
    let mut instance = loaded(&function(
        "tensor<fp32, [?]> x, tensor<int32, [2]> s",
        body,
        "y",
    ))
    .unwrap();
    floats(instance.as_mut(), "x", &[5], &[0.5; 5]);
    ints(instance.as_mut(), "s", &[2], &[1, 5]);
    let error = instance.run("main").unwrap_err().to_string();
    assert!(
        error.contains("the result is [1, 5] of fp32, but is declared tensor<fp32, [1, 8]>"),
        "{error}"
    );
}

#[test]
fn states_keep_their_type() {
    let f = |name: &str, n: usize| {
        format!(
            "func {name}<ios18>(tensor<fp32, [?]> x, state<tensor<fp32, [{n}]>> s) {{
            write_state(input = s, data = x);
            tensor<fp32, [{n}]> y = read_state(input = s); }} -> (y);"
        )
    };
    let mut instance = loaded(&f("main", 3)).unwrap();
    floats(instance.as_mut(), "x", &[3], &[1.0, 2.0, 3.0]);
    instance.run("main").unwrap();
    floats(instance.as_mut(), "x", &[2], &[7.0, 8.0]);
    assert!(
        instance
            .run("main")
            .unwrap_err()
            .to_string()
            .contains("[2] does not fit a state [3]")
    );
    floats(instance.as_mut(), "x", &[3], &[4.0, 5.0, 6.0]);
    instance.run("main").unwrap();
    assert_eq!(
        output(instance.as_ref(), "y"),
        (vec![3], vec![4.0, 5.0, 6.0])
    );
    let error = loaded(&(f("main", 3) + &f("more", 4)))
        .map(|_| ())
        .unwrap_err();
    assert!(
        error.contains("the state `s` is of another type"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_no_truth_values_count_as_true() {
    let body = "tensor<bool, [3]> n = logical_not(x = b);
        tensor<bool, [3]> a = logical_and(x = b, y = c);
        tensor<bool, [3]> o = logical_or(x = n, y = a);";
    let mut instance = loaded(&function(
        "tensor<bool, [3]> b, tensor<bool, [3]> c",
        body,
        "n, a, o",
    ))
    .unwrap();
    instance
        .input("b", &[3])
        .unwrap()
        .copy_from_slice(&[0, 2, 255]);
    instance
        .input("c", &[3])
        .unwrap()
        .copy_from_slice(&[1, 1, 0]);
    instance.run("main").unwrap();
    for (name, expected) in [("n", [1, 0, 0]), ("a", [0, 1, 0]), ("o", [1, 1, 0])] {
        assert_eq!(instance.output(name).unwrap().bytes, expected, "{name}");
    }
}

#[test]
fn empty_sizes_give_empty_or_neutral_results() {
    let body = "tensor<fp32, [2, 0]> w = const()[val = tensor<fp32, [2, 0]>([[], []])];
        tensor<fp32, [2]> b = const()[val = tensor<fp32, [2]>([0.5, -3])];
        tensor<fp32, [5, 2]> y = linear(x = x, weight = w, bias = b);
        tensor<fp32, [0, 5]> t = transpose(x = x, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [5]> s = reduce_sum(x = x, axes = tensor<int32, [1]>([1]));
        tensor<fp32, [5, 0]> m = softmax(x = x);";
    let mut instance = loaded(&function("tensor<fp32, [5, 0]> x", body, "y, t, s, m")).unwrap();
    floats(instance.as_mut(), "x", &[5, 0], &[]);
    instance.run("main").unwrap();
    assert_eq!(
        output(instance.as_ref(), "y"),
        (vec![5, 2], [0.5, -3.0].repeat(5))
    );
    assert_eq!(output(instance.as_ref(), "t"), (vec![0, 5], vec![]));
    assert_eq!(output(instance.as_ref(), "s"), (vec![5], vec![0.0; 5]));
    assert_eq!(output(instance.as_ref(), "m"), (vec![5, 0], vec![]));
}

#[test]
fn a_norm_whose_factors_do_not_fit_is_an_error() {
    let body = "tensor<fp32, [2]> g = const()[val = tensor<fp32, [2]>([1, 2])];
        tensor<fp32, [1, ?]> y = layer_norm(x = x, axes = tensor<int32, [1]>([-1]), gamma = g);";
    let mut instance = loaded(&function("tensor<fp32, [1, ?]> x", body, "y")).unwrap();
    floats(instance.as_mut(), "x", &[1, 3], &[0.5, 0.25, 4.0]);
    assert!(instance.run("main").is_err());
    floats(instance.as_mut(), "x", &[1, 2], &[0.5, 0.25]);
    instance.run("main").unwrap();
}

/// Attention over a cache with a query that is a constant, or of more batches than the cache has.
#[test]
fn attention_over_a_cache_is_planned_whole_or_not_at_all() {
    let body = |query: &str| {
        let cache = |s: &str| {
            format!(
                "tensor<fp32, [1, 1, 4, 2]> {s}r = read_state(input = {s});
            tensor<fp32, [1, 1, 4, 2]> {s}u = slice_update(x = {s}r, update = x, begin = begin, end = end,
                begin_mask = most, end_mask = most);
            tensor<fp32, [1, 1, 4, 2]> {s}s = coreml_update_state(state = {s}, value = {s}u);
            tensor<fp32, [?, 1, ?, 2]> {s}p = slice_by_index(x = {s}s, begin = zeros, end = end,
                begin_mask = all, end_mask = most);"
            )
        };
        format!(
            "tensor<bool, [4]> most = const()[val = tensor<bool, [4]>([true, true, false, true])];
            tensor<bool, [4]> all = const()[val = tensor<bool, [4]>([true, true, true, true])];
            tensor<int32, [4]> zeros = const()[val = tensor<int32, [4]>([0, 0, 0, 0])];
            tensor<fp32, [1, 1, 1, 2]> c = const()[val = tensor<fp32, [1, 1, 1, 2]>([[[[1, -2]]]])];
            {}{}
            tensor<fp32, [?, 1, 1, 2]> y = scaled_dot_product_attention(query = {query}, key = kp, value = vp);",
            cache("k"),
            cache("v")
        )
    };
    let inputs = "tensor<fp32, [1, 1, ?, 2]> x, tensor<fp32, [?, 1, 1, 2]> q, tensor<int32, [4]> begin,
        tensor<int32, [4]> end, state<tensor<fp32, [1, 1, 4, 2]>> k, state<tensor<fp32, [1, 1, 4, 2]>> v";
    let mut given = loaded(&function(inputs, &body("q"), "y")).unwrap();
    let mut constant = loaded(&function(inputs, &body("c"), "y")).unwrap();
    for instance in [&mut given, &mut constant] {
        floats(
            instance.as_mut(),
            "x",
            &[1, 1, 2, 2],
            &[1.0, 0.5, -1.0, 2.0],
        );
        floats(instance.as_mut(), "q", &[1, 1, 1, 2], &[1.0, -2.0]);
        ints(instance.as_mut(), "begin", &[4], &[0, 0, 0, 0]);
        ints(instance.as_mut(), "end", &[4], &[0, 0, 2, 0]);
        instance.run("main").unwrap();
    }
    let (fused, plain) = (output(given.as_ref(), "y"), output(constant.as_ref(), "y"));
    assert_eq!(fused.0, plain.0);
    assert!(
        fused
            .1
            .iter()
            .zip(&plain.1)
            .all(|(a, b)| (a - b).abs() < 1e-5),
        "{fused:?} {plain:?}"
    );
    floats(given.as_mut(), "q", &[2, 1, 1, 2], &[1.0; 4]);
    assert!(given.run("main").is_err());
}

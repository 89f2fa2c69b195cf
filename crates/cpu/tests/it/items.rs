//! Ops on so much that threads share it give for each item of a batch what they give for the item
//! alone, which is too little to share.

use thane_cpu::internals::Planned;
use thane_cpu::{Cpu, Numerics};
use thane_mil::text::parse;
use thane_mil::valid;

/// The sizes of an item: less than threads share, and no divisor of it.
const ITEM: [usize; 3] = [7, 30, 41];

/// Ops on x, each of which makes `y` of the type in front of it.
const OPS: &[(&str, &str)] = &[
    (
        "fp32, [?, 7, 30, 41]",
        "batch_norm(x = x, mean = c, variance = d, gamma = d, beta = c)",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "instance_norm(x = x, gamma = d, beta = c)",
    ),
    ("fp32, [?, 7, 30, 41]", "l2_norm(x = x)"),
    (
        "fp32, [?, 7, 30, 41]",
        "local_response_norm(x = x, size = int32(3))",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "layer_norm(x = x, axes = tensor<int32, [1]>([1]), gamma = d, beta = c)",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "layer_norm(x = x, axes = tensor<int32, [2]>([1, 3]))",
    ),
    (
        "fp32, [?, 7, 77, 59]",
        "resize_bilinear(x = x, target_size_height = int32(77), target_size_width = int32(59))",
    ),
    (
        "fp32, [?, 7, 60, 82]",
        "upsample_bilinear(x = x, scale_factor_height = fp32(2), scale_factor_width = fp32(2))",
    ),
    (
        "fp32, [?, 7, 60, 123]",
        "upsample_nearest_neighbor(x = x, scale_factor_height = fp32(2), \
         scale_factor_width = fp32(3))",
    ),
    // Rows of more elements than threads share.
    (
        "fp32, [?, 7, 2, 20011]",
        "resize_bilinear(x = x, target_size_height = int32(2), target_size_width = int32(20011))",
    ),
    (
        "fp32, [?, 7, 2, 20011]",
        "resize_nearest_neighbor(x = x, target_size_height = int32(2), \
         target_size_width = int32(20011))",
    ),
    (
        "fp32, [?, 7, 30, 20044]",
        "pad(x = x, pad = tensor<int32, [2]>([3, 20000]), mode = string(\"replicate\"))",
    ),
    (
        "fp32, [?, 7, 33, 44]",
        "pad(x = x, pad = tensor<int32, [4]>([1, 2, 2, 1]), mode = string(\"reflect\"))",
    ),
    (
        "fp32, [?, 7, 33, 44]",
        "pad(x = x, pad = tensor<int32, [4]>([1, 2, 2, 1]), constant_val = fp32(0.5))",
    ),
    (
        "fp32, [?, 7, 30, 46]",
        "pad(x = x, pad = tensor<int32, [2]>([2, 3]), mode = string(\"replicate\"))",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "reverse(x = x, axes = tensor<int32, [2]>([1, 3]))",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "reverse(x = x, axes = tensor<int32, [1]>([2]))",
    ),
    (
        "fp32, [?, 3, 30, 41]",
        "gather(x = x, indices = tensor<int32, [3]>([5, 0, 2]), axis = int32(1))",
    ),
    (
        "fp32, [?, 7, 30, 3]",
        "gather(x = x, indices = tensor<int32, [3]>([5, 0, 2]), axis = int32(3))",
    ),
    (
        "int32, [?, 30, 41]",
        "reduce_argmax(x = x, axis = int32(1), keep_dims = bool(false))",
    ),
    (
        "int32, [?, 7, 30, 1]",
        "reduce_argmin(x = x, axis = int32(3), keep_dims = bool(true))",
    ),
    (
        "fp32, [?, 30, 41]",
        "reduce_log_sum_exp(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(false))",
    ),
    ("int32, [?, 7, 30, 41]", "argsort(x = x, axis = int32(3))"),
    (
        "int8, [?, 7, 30, 41]",
        "quantize(input = x, scale = d, axis = int32(1), output_dtype = string(\"int8\"))",
    ),
    (
        "fp32, [?, 7, 29, 20]",
        "l2_pool(x = x, kernel_sizes = tensor<int32, [2]>([2, 3]), \
         strides = tensor<int32, [2]>([1, 2]), pad_type = string(\"valid\"))",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "softplus_parametric(x = x, alpha = d, beta = d)",
    ),
    (
        "fp32, [?, 7, 30, 41]",
        "band_part(x = x, lower = int32(3), upper = int32(5))",
    ),
    ("fp32, [?, 7, 30, 41]", "floor(x = x)"),
    ("fp32, [?, 7, 30, 41]", "ceil(x = x)"),
    ("fp32, [?, 7, 30, 41]", "round(x = x)"),
    ("fp32, [?, 7, 30, 41]", "softplus(x = x)"),
];

/// Numbers from -6 to 6, some of them whole and some in the middle of two.
fn number(i: usize) -> f32 {
    ((i * 7919 + 13) % 1201) as f32 / 100.0 - 6.0
}

#[test]
fn items_of_a_batch_are_computed_as_by_themselves() {
    let n_item: usize = ITEM.iter().product();
    for (ty, op) in OPS {
        let text = format!(
            "program(1.3)\n{{\nfunc main<ios18>(tensor<fp32, [?, 7, 30, 41]> x) {{
            tensor<fp32, [7]> c = const()[val = tensor<fp32, [7]>([0.5, -1, 2, 7, -3, 4, 0])];
            tensor<fp32, [7]> d = const()[val = tensor<fp32, [7]>([0.5, 1, 0.25, 2, 3, 4, 5])];
            tensor<{ty}> y = {op};\n}} -> (y);\n}}"
        );
        let program = parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{op}: {e}"));
        valid::check(&program).unwrap_or_else(|e| panic!("{op}: {e:?}"));
        let cpu = Cpu::new(Numerics::F32, 2);
        let plan = Planned::new(&cpu, &program.functions()[0], None).unwrap();
        let mut instance = plan.instantiate().unwrap();
        let mut run = |items: std::ops::Range<usize>| {
            let shape = [&[items.len()][..], &ITEM].concat();
            let elements = items.start * n_item..items.end * n_item;
            let bytes: Vec<u8> = elements.flat_map(|i| number(i).to_ne_bytes()).collect();
            instance.input("x", &shape).unwrap().copy_from_slice(&bytes);
            instance.run("main").unwrap_or_else(|e| panic!("{op}: {e}"));
            instance.output("y").unwrap().bytes.to_vec()
        };
        let together = run(0..5);
        let apart: Vec<u8> = (0..5).flat_map(|i| run(i..i + 1)).collect();
        assert!(together == apart, "{op}");
    }
}

//! Convolutions, pools and images whose sizes are known at run time only, and those that are
//! refused.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance};
use thane_mil::text::parse;
use thane_mil::valid;

fn text(opset: &str, inputs: &str, body: &str) -> String {
    format!("program(1.3)\n{{\nfunc main<{opset}>({inputs}) {{\n{body}\n}} -> (y);\n}}")
}

fn loaded(inputs: &str, body: &str) -> Box<dyn Instance> {
    let program = parse(&text("ios18", inputs, body), &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    Cpu::new(Numerics::F32, 2)
        .load(&program)
        .unwrap()
        .instantiate()
        .unwrap()
}

fn run(
    instance: &mut dyn Instance,
    inputs: &[(&str, &[usize], &[f32])],
) -> Result<(Vec<usize>, Vec<f32>), String> {
    for (name, shape, values) in inputs {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        instance.input(name, shape).unwrap().copy_from_slice(&bytes);
    }
    instance.run("main").map_err(|e| e.to_string())?;
    let view = instance.output("y").unwrap();
    Ok((
        view.shape.to_vec(),
        view.bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_ne_bytes(*b))
            .collect(),
    ))
}

/// Expected values by hand.
#[test]
fn sizes_follow_from_what_is_given_at_run_time() {
    let body = "tensor<fp32, [1, 1, 3]> w = const()[val = tensor<fp32, [1, 1, 3]>([[[1, 10, 100]]])];
        tensor<fp32, [1, 1, ?]> c = conv(x = x, weight = w, pad_type = string(\"same\"));
        tensor<fp32, [1, 1, ?]> s = add(x = c, y = x);
        tensor<fp32, [1, 1, ?]> p = max_pool(x = s, kernel_sizes = tensor<int32, [1]>([2]),
            strides = tensor<int32, [1]>([2]), pad_type = string(\"valid\"));
        tensor<fp32, [1, 1, ?]> t = conv_transpose(x = p, weight = w, strides = tensor<int32, [1]>([2]));
        tensor<fp32, [1, 1, 1, ?]> e = expand_dims(x = t, axes = tensor<int32, [1]>([2]));
        tensor<fp32, [1, 1, 1, ?]> y = upsample_nearest_neighbor(x = e, scale_factor_width = fp32(1.5));";
    let mut instance = loaded("tensor<fp32, [1, 1, ?]> x", body);
    // c = 210, 321, 432, 43; s = 211, 323, 435, 47; p = 323, 435.
    let (shape, y) = run(
        instance.as_mut(),
        &[("x", &[1, 1, 4], &[1.0, 2.0, 3.0, 4.0])],
    )
    .unwrap();
    let t = [323.0, 3230.0, 32300.0 + 435.0, 4350.0, 43500.0];
    assert_eq!(
        (shape, y),
        (
            vec![1, 1, 1, 7],
            [0, 0, 1, 2, 2, 3, 4].map(|i| t[i]).to_vec()
        )
    );
    let (shape, _) = run(instance.as_mut(), &[("x", &[1, 1, 9], &[0.5; 9])]).unwrap();
    assert_eq!(shape, [1, 1, 1, 13]);
    let error = run(instance.as_mut(), &[("x", &[1, 1, 1], &[0.5])]).unwrap_err();
    assert!(error.contains("found 1 and padding"), "{error}");
}

/// A weight that comes at run time, of a size that only this run knows.
#[test]
fn a_weight_of_open_size_is_convolved() {
    let body = "tensor<fp32, [1, ?, ?]> y = conv(x = x, weight = w, groups = int32(2));";
    let mut instance = loaded("tensor<fp32, [1, 4, ?]> x, tensor<fp32, [?, 2, ?]> w", body);
    let x = (
        "x",
        &[1, 4, 2][..],
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0][..],
    );
    let (shape, y) = run(
        instance.as_mut(),
        &[
            x,
            ("w", &[2, 2, 2], &[1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.5]),
        ],
    )
    .unwrap();
    assert_eq!((shape, y), (vec![1, 2, 1], vec![5.0, 14.0]));
    for (shape, message) in [
        ([3, 2, 1], "expected channels that divide into 2 groups"),
        ([2, 2, 3], "found 2 and padding"),
    ] {
        let w = vec![1.0; shape.iter().product()];
        let error = run(instance.as_mut(), &[x, ("w", &shape, &w)]).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
#[allow(clippy::too_many_lines)] // a table of cases
fn what_no_opset_knows_is_refused() {
    let x = "tensor<fp32, [1, 4, 6, 5]> x";
    let conv =
        |more: &str| format!("tensor<fp32, [1, 2, 5, 5]> y = conv(x = x, weight = w{more});");
    let weight = |dtype: &str, shape: &str| format!("{x}, tensor<{dtype}, [{shape}]> w");
    let w = weight("fp32", "2, 4, 2, 1");
    let pool = |more: &str| {
        format!(
            "tensor<fp32, [1, 4, 3, 2]> y = max_pool(x = x, kernel_sizes = tensor<int32, [2]>([2, \
             3]){more});"
        )
    };
    for (opset, inputs, body, message) in [
        (
            "ios15",
            &w,
            conv(", pad_type = string(\"same_lower\")"),
            "`same_lower` requires opset \
                                                                    ios16",
        ),
        (
            "ios16",
            &weight("fp16", "2, 4, 2, 1"),
            conv(""),
            "expected the element type of `x`",
        ),
        (
            "ios17",
            &w,
            conv(", pad_type = string(\"SAME\")"),
            "same_lower or custom, found `SAME`",
        ),
        (
            "ios17",
            &w,
            conv(", strides = tensor<int32, [2]>([1, 0])"),
            "`strides`: expected 2 \
                                                                       positive numbers, found \
                                                                       [1, 0]",
        ),
        (
            "ios17",
            &w,
            conv(", dilations = tensor<int32, [1]>([1])"),
            "`dilations`: expected 2 \
                                                                      positive numbers, found [1]",
        ),
        (
            "ios17",
            &w,
            conv(", pad_type = string(\"custom\"), pad = tensor<int32, [4]>([0, 0, -1, 0])"),
            "`pad`: expected 4 numbers of 0 or more, found [0, 0, -1, 0]",
        ),
        (
            "ios17",
            &w,
            conv(", groups = int32(0)"),
            "`groups`: expected 1 or more",
        ),
        (
            "ios17",
            &w,
            conv(", groups = int32(2)"),
            "`weight`: expected 2 input channels",
        ),
        (
            "ios17",
            &weight("fp32", "2, 4, 7, 1"),
            conv(""),
            "expected at least the 7 elements that \
                                                            the kernel covers, found 6",
        ),
        (
            "ios17",
            &weight("fp32", "2, 4, 0, 1"),
            conv(""),
            "expected a kernel without sizes of 0",
        ),
        (
            "ios17",
            &w,
            conv(", dilations = tensor<int32, [2]>([2147483647, 1])"),
            "expected at least the 2147483648 elements",
        ),
        (
            "ios15",
            &x.to_owned(),
            pool(", pad_type = string(\"same_lower\")"),
            "`same_lower` \
                                                                               requires opset \
                                                                               ios16",
        ),
        (
            "ios18",
            &x.to_owned(),
            pool(", pad_type = string(\"same\"), ceil_mode = bool(true)"),
            "`ceil_mode` does not support the padding `same`",
        ),
        (
            "ios15",
            &x.to_owned(),
            "tensor<fp32, [1, 4, 6, 5]> y = instance_norm(x = x, gamma = tensor<fp16, [4]>([1, 2, \
             3, 4]));"
                .to_owned(),
            "expected the element type of `x`",
        ),
        (
            "ios18",
            &x.to_owned(),
            "tensor<fp32, [1, 4, 6, 5]> y = instance_norm(x = x, gamma = tensor<fp32, [3]>([1, 2, \
             3]));"
                .to_owned(),
            "`gamma`: expected one number for each of 4 channels",
        ),
        (
            "ios18",
            &x.to_owned(),
            "tensor<fp32, [1, 4, 6, 5]> y = crop(x = x, crop_height = tensor<int32, [2]>([4, 3]), \
             crop_width = tensor<int32, [2]>([0, 0]));"
                .to_owned(),
            "a sum of at most 6",
        ),
        (
            "ios18",
            &x.to_owned(),
            "tensor<fp32, [1, 4, 6, 5]> y = upsample_bilinear(x = x, scale_factor_height = \
             fp32(1e30));"
                .to_owned(),
            "expected a factor with a result of 1 to 2^53",
        ),
        (
            "ios18",
            &x.to_owned(),
            "tensor<fp32, [1, 4, 6, 5]> y = resize(x = x, shape = tensor<int32, [1]>([2]), \
             resized_dims = uint32(2));"
                .to_owned(),
            "expected `resized_dims` <= length of `shape`",
        ),
    ] {
        let error = parse(&text(opset, inputs, &body), &|_, _, _| None)
            .map(|_| body)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error} lacks {message}");
    }
}

/// Legal, but without a meaning that is documented, or of places that are not there. The last place
/// of the pool begins beyond the elements: without padding, coremltools leaves it there.
#[test]
fn what_has_no_meaning_is_refused_at_run_time() {
    let quantized = "tensor<fp32, [1, 1, 2]> y = conv_quantized(x = x, weight = tensor<uint8, [1, 1, 1]>([[[3]]]),
        quantization_type = string(\"lut\"), quant_scale = fp32(1), quant_bias = fp32(0));";
    let pool = "tensor<fp32, [1, 1, 2]> y = max_pool(x = x, kernel_sizes = tensor<int32, [1]>([1]),
        strides = tensor<int32, [1]>([2]), pad_type = string(\"valid\"), ceil_mode = bool(true));";
    let both =
        "tensor<fp32, [1, 1, 2]> y = upsample_bilinear(x = x, half_pixel_centers = bool(true));";
    let resize = "tensor<int32, [1, 1, 2]> i = cast(x = x, dtype = string(\"int32\"));
        tensor<int32, [1, 1, 3]> y = resize(x = i, shape = tensor<int32, [1]>([3]), resized_dims = uint32(1));";
    let boxes = |numbers: &str, index: i32| {
        format!(
            "tensor<fp32, [1, 1, 1, 2]> i = expand_dims(x = x, axes = tensor<int32, [1]>([0]));
            tensor<int32, [1]> n = const()[val = tensor<int32, [1]>([{index}])];
            tensor<int32, [1]> k = mul(x = n, y = m);
            tensor<fp32, [1, 1, 1, 1]> y = crop_resize(x = i, boxes = tensor<fp32, [1, 4]>([[{numbers}]]), box_indices = k);"
        )
    };
    let infinite = boxes("0, 0, 3e38, 1", 0).replace(
        "box_indices",
        "spatial_scale = fp32(1e38), normalized_coordinates = bool(true), box_indices",
    );
    for (body, message) in [
        (quantized, "no parameter for a table"),
        (both, "exclude each other"),
        (resize, "how LINEAR rounds"),
        (
            &boxes("0, 0, 0, 1", 1),
            "`box_indices`: expected images of `x` tensor<fp32, [1, 1, 1, 2]>, found 1",
        ),
        (&boxes("0, 0, 0, 1", -1), "found -1"),
    ] {
        let mut instance = loaded("tensor<fp32, [1, 1, 2]> x, tensor<int32, [1]> m", body);
        instance
            .input("m", &[1])
            .unwrap()
            .copy_from_slice(&1i32.to_ne_bytes());
        let error = run(instance.as_mut(), &[("x", &[1, 1, 2], &[0.5, -1.0])]).unwrap_err();
        assert!(error.contains(message), "{error} lacks {message}");
    }
    // Beyond every number that fp32 has, and outside of the image: padding.
    let mut instance = loaded("tensor<fp32, [1, 1, 2]> x, tensor<int32, [1]> m", &infinite);
    instance
        .input("m", &[1])
        .unwrap()
        .copy_from_slice(&1i32.to_ne_bytes());
    assert!(run(instance.as_mut(), &[("x", &[1, 1, 2], &[0.5, -1.0])]).is_ok());
    let mut instance = loaded("tensor<fp32, [1, 1, 2]> x", pool);
    let error = run(instance.as_mut(), &[("x", &[1, 1, 2], &[0.5, -1.0])]).unwrap_err();
    assert!(
        error.contains("no elements to take the largest of"),
        "{error}"
    );
}

/// Coordinates that are no numbers give none, those beyond all elements what the border is.
#[test]
fn coordinates_may_be_anything() {
    let body = |mode: &str, padding: &str| {
        format!(
            "tensor<fp32, [1, 1, 1, 5]> y = resample(x = x, coordinates = c, sampling_mode = string(\"{mode}\"),
            padding_mode = string(\"{padding}\"), padding_value = fp32(9), coordinates_mode = string(\"unnormalized\"),
            align_corners = bool(true));"
        )
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let at = [nan, 0.0, inf, 0.0, -inf, 0.0, 3e38, 0.0, 1.0, 0.0];
    for mode in ["bilinear", "nearest"] {
        for (padding, expected) in [
            ("constant", [9.0, 9.0, 9.0, 4.0]),
            ("border", [4.0, 2.0, 4.0, 4.0]),
        ] {
            let mut instance = loaded(
                "tensor<fp32, [1, 1, 1, 2]> x, tensor<fp32, [1, 1, 5, 2]> c",
                &body(mode, padding),
            );
            let (_, y) = run(
                instance.as_mut(),
                &[("x", &[1, 1, 1, 2], &[2.0, 4.0]), ("c", &[1, 1, 5, 2], &at)],
            )
            .unwrap();
            assert!(y[0].is_nan(), "{mode} {padding}");
            assert_eq!(y[1..], expected, "{mode} {padding}");
        }
        for padding in ["reflection", "symmetric"] {
            let mut instance = loaded(
                "tensor<fp32, [1, 1, 1, 2]> x, tensor<fp32, [1, 1, 5, 2]> c",
                &body(mode, padding),
            );
            run(
                instance.as_mut(),
                &[("x", &[1, 1, 1, 2], &[2.0, 4.0]), ("c", &[1, 1, 5, 2], &at)],
            )
            .unwrap();
        }
    }
}

/// Ops, and the kinds of parameters that are drawn for them: see `Random::parameter`.
const OPS: &[(&str, &str)] = &[
    (
        "conv",
        "weight:w pad_type:p pad:I strides:I dilations:I groups:i bias:F",
    ),
    (
        "conv_transpose",
        "weight:w pad_type:p pad:I strides:I dilations:I groups:i output_shape:I",
    ),
    (
        "avg_pool",
        "kernel_sizes:I pad_type:p pad:I strides:I ceil_mode:b exclude_padding_from_average:b",
    ),
    (
        "max_pool",
        "kernel_sizes:I pad_type:p pad:I strides:I ceil_mode:b",
    ),
    ("l2_pool", "kernel_sizes:I pad_type:p pad:I ceil_mode:b"),
    ("batch_norm", "mean:F variance:F gamma:F epsilon:f"),
    ("instance_norm", "gamma:F beta:F"),
    ("l2_norm", "epsilon:f"),
    ("local_response_norm", "size:i alpha:f beta:f k:f"),
    ("crop", "crop_height:I crop_width:I"),
    (
        "resize_bilinear",
        "target_size_height:i target_size_width:i sampling_mode:s",
    ),
    (
        "resize_nearest_neighbor",
        "target_size_height:i target_size_width:i",
    ),
    (
        "upsample_bilinear",
        "scale_factor_height:f scale_factor_width:f align_corners:b",
    ),
    (
        "upsample_nearest_neighbor",
        "scale_factor_height:i scale_factor_width:i",
    ),
    (
        "resize",
        "shape:I resized_dims:u interpolation_mode:m sampling_mode:s",
    ),
    (
        "crop_resize",
        "boxes:B target_height:i target_width:i normalized_coordinates:b spatial_scale:f \
         sampling_mode:s",
    ),
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn int(&mut self) -> String {
        self.of(&[1, 1, 2, 1, 3, 0, -1, i32::MAX, i32::MIN])
            .to_string()
    }

    fn float(&mut self) -> String {
        self.of(&["0", "1", "-1.5", "2.25", "3e38", "1e-40", "0.5"])
            .to_owned()
    }

    fn dims(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.of(&[1, 2, 3, 4, 0])).collect()
    }

    /// A literal for a parameter of an op on x of these dimensions, mostly of the length that it
    /// should have.
    fn parameter(&mut self, name: &str, kind: &str, x: &[usize]) -> String {
        let n = match (name, kind) {
            _ if self.below(8) == 0 => self.below(6),
            ("pad", _) => 2 * (x.len() - 2),
            ("crop_height" | "crop_width", _) => 2,
            (_, "F") => x[1],
            _ => x.len() - 2,
        };
        match kind {
            "i" => format!("int32({})", self.int()),
            "u" => format!("uint32({})", self.below(4)),
            "f" => format!("fp32({})", self.float()),
            "b" => format!("bool({})", self.of(&[true, false])),
            "p" => format!(
                "string(\"{}\")",
                self.of(&["valid", "same", "same_lower", "custom"])
            ),
            "s" => {
                format!(
                    "string(\"{}\")",
                    self.of(&[
                        "DEFAULT",
                        "ALIGN_CORNERS",
                        "UNALIGN_CORNERS",
                        "OFFSET_CORNERS"
                    ])
                )
            }
            "m" => format!("string(\"{}\")", self.of(&["LINEAR", "NEAREST_NEIGHBOR"])),
            "I" => format!(
                "tensor<int32, [{n}]>([{}])",
                (0..n).map(|_| self.int()).collect::<Vec<_>>().join(", ")
            ),
            "F" => format!(
                "tensor<fp32, [{n}]>([{}])",
                (0..n).map(|_| self.float()).collect::<Vec<_>>().join(", ")
            ),
            "B" => {
                let four = |r: &mut Self| {
                    format!(
                        "[{}, {}, {}, {}]",
                        r.float(),
                        r.float(),
                        r.float(),
                        r.float()
                    )
                };
                let boxes: Vec<String> = (0..n).map(|_| four(self)).collect();
                format!("tensor<fp32, [{n}, 4]>([{}])", boxes.join(", "))
            }
            _ => "w".to_owned(),
        }
    }
}

/// Any parameters and sizes: refused when parsed, loaded or run, or run; never a panic.
#[test]
fn any_parameters_are_run_or_refused() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut n_run = 0;
    for round in 0..4000 {
        let (op, params) = OPS[round % OPS.len()];
        let rank = 2 + random.below(4);
        let (x, mut w) = (random.dims(rank), random.dims(rank));
        w[usize::from(op == "conv")] = x[1];
        let params = params.split(' ').filter_map(|p| p.split_once(':'));
        let params: Vec<_> = params.filter(|_| random.below(4) > 0).collect();
        let args = params
            .into_iter()
            .map(|(name, kind)| format!("{name} = {}", random.parameter(name, kind, &x)));
        let args = args.collect::<Vec<_>>().join(", ");
        let mut show = |dims: &[usize], open: usize| {
            let dims = dims.iter().map(|d| {
                if random.below(open) == 0 {
                    "?".to_owned()
                } else {
                    d.to_string()
                }
            });
            dims.collect::<Vec<_>>().join(", ")
        };
        let inputs = format!(
            "tensor<fp32, [{}]> x, tensor<fp32, [{}]> w",
            show(&x, 3),
            show(&w, 9)
        );
        let body = format!("tensor<fp32, [{}]> y = {op}(x = x, {args});", show(&x, 1));
        let Ok(program) = parse(&text("ios18", &inputs, &body), &|_, _, _| None) else {
            continue;
        };
        if valid::check(&program).is_err() {
            continue;
        }
        let Ok(executable) = Cpu::new(Numerics::F32, 1).load(&program) else {
            continue;
        };
        let mut instance = executable.instantiate().unwrap();
        let values = |dims: &[usize]| {
            (0..dims.iter().product())
                .map(|i: usize| i as f32 - 2.5)
                .collect::<Vec<_>>()
        };
        n_run += usize::from(
            run(
                instance.as_mut(),
                &[("x", &x, &values(&x)), ("w", &w, &values(&w))],
            )
            .is_ok(),
        );
    }
    assert!(n_run > 400, "{n_run} ran");
}

//! Properties of predicted times: more work never takes less, and a chip that is better in every
//! figure is never slower. Placement is fixed: all ops are on the engine. Small transformers have
//! all kinds of ops; chains of products alone show thresholds that other ops would hide.

use thane_audit::latency::predict;
use thane_audit::place::place;
use thane_audit::target::{CHIPS, Chip, Figure, Release, Route, Target, Units};
use thane_audit::{View, rules};
use thane_mil::data::Data;
use thane_mil::program::Program;

/// Sizes of a small transformer with a convolution in front.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    positions: usize,
    width: usize,
    depth: usize,
}

fn program(sizes: Sizes) -> Program {
    let Sizes {
        batch: b,
        positions: s,
        width: d,
        depth,
    } = sizes;
    let t = format!("tensor<fp16, [{b}, {s}, {d}]>");
    let square = format!("tensor<fp16, [{b}, {s}, {s}]>");
    let weight = |name: &str, shape: &str| {
        format!(
            "tensor<fp16, [{shape}]> {name} = const()[val = tensor<fp16, [{shape}]>(BLOBFILE(path = \
             string(\"gone\"), offset = uint64(64)))];\n"
        )
    };
    let mut body = String::new();
    let mut x = "x".to_owned();
    for i in 0..depth {
        for w in ["q", "k", "v", "o"] {
            body += &weight(&format!("w{w}{i}"), &format!("{d}, {d}"));
        }
        body += &weight(&format!("wu{i}"), &format!("{}, {d}", 3 * d));
        body += &weight(&format!("wd{i}"), &format!("{d}, {}", 3 * d));
        body += &format!(
            "{t} q{i} = linear(x = {x}, weight = wq{i});
             {t} k{i} = linear(x = {x}, weight = wk{i});
             {t} v{i} = linear(x = {x}, weight = wv{i});
             {square} s{i} = matmul(x = q{i}, y = k{i}, transpose_y = bool(true));
             {square} p{i} = softmax(x = s{i}, axis = int32(-1));
             {t} a{i} = matmul(x = p{i}, y = v{i});
             {t} o{i} = linear(x = a{i}, weight = wo{i});
             {t} r{i} = add(x = {x}, y = o{i});
             tensor<fp16, [{b}, {s}, 1]> m{i} = reduce_mean(x = r{i}, axes = tensor<int32, [1]>([-1]), keep_dims = bool(true));
             {t} n{i} = sub(x = r{i}, y = m{i});
             tensor<fp16, [{b}, {s}, {wide}]> u{i} = linear(x = n{i}, weight = wu{i});
             tensor<fp16, [{b}, {s}, {wide}]> g{i} = relu(x = u{i});
             {t} d{i} = linear(x = g{i}, weight = wd{i});
             {t} y{i} = add(x = r{i}, y = d{i});\n",
            wide = 3 * d
        );
        x = format!("y{i}");
    }
    parse(&format!(
        "program(1.3) {{ func main<ios18>({t} x) {{\n{body}}} -> ({x}); }}"
    ))
}

/// How a chain of products stores its weights, and what it computes in.
#[derive(Clone, Copy, Debug)]
enum Products {
    /// fp16 weights and activations.
    Dense,
    /// Palettes of 4 bits, fp16 activations.
    Palette,
    /// int8 weights and activations.
    Int8,
}

/// Convolutions of 1x1 in a row, each as wide as the one before.
#[derive(Clone, Copy, Debug)]
struct Chain {
    products: Products,
    positions: usize,
    width: usize,
    depth: usize,
}

impl Chain {
    fn program(self) -> Program {
        let Self {
            products,
            positions: s,
            width: d,
            depth,
        } = self;
        let x = format!("tensor<fp16, [1, {d}, 1, {s}]>");
        let kernel = format!("[{d}, {d}, 1, 1]");
        let weight = format!("tensor<fp16, {kernel}>");
        let file = "(BLOBFILE(path = string(\"gone\"), offset = uint64(64)))";
        let mut body = String::new();
        for i in 0..depth {
            let made = match products {
                Products::Dense => format!("const()[val = {weight}{file}]"),
                Products::Palette => format!(
                    "constexpr_lut_to_dense(indices = tensor<uint4, {kernel}>{file}, lut = \
                     tensor<fp16, [1, 1, 1, 1, 16, 1]>{file})"
                ),
                Products::Int8 => format!(
                    "constexpr_blockwise_shift_scale(data = tensor<int8, {kernel}>{file}, \
                     scale = tensor<fp16, [{d}, 1, 1, 1]>{file})"
                ),
            };
            body += &format!("{weight} w{i} = {made};\n");
            let from = if let Products::Int8 = products {
                let codes = format!("tensor<int8, [1, {d}, 1, {s}]>");
                body += &format!(
                    "{codes} c{i} = quantize(input = x{i}, scale = fp16(0.1), output_dtype = \
                     string(\"int8\"));
                     {x} q{i} = dequantize(input = c{i}, scale = fp16(0.1));\n"
                );
                "q"
            } else {
                "x"
            };
            body += &format!("{x} x{} = conv(x = {from}{i}, weight = w{i});\n", i + 1);
        }
        parse(&format!(
            "program(1.3) {{ func main<ios18>({x} x0) {{\n{body}}} -> (x{depth}); }}"
        ))
    }
}

fn parse(text: &str) -> Program {
    thane_mil::text::parse(text, &|_, _, ty| ty.byte_len().map(Data::zeros))
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn ms(program: &Program, chip: &'static Chip) -> f64 {
    ms_by(program, chip, Units::CpuAndNeuralEngine, Route::Direct)
}

fn ms_by(program: &Program, chip: &'static Chip, units: Units, route: Route) -> f64 {
    let target = Target::new(chip, Release::newest(), units, route);
    let view = View::new(program, &program.functions()[0], &target);
    predict(&view, &place(&view, &rules::find(&view))).ms
}

/// xorshift64*.
fn random(seed: &mut u64, least: usize, most: usize) -> usize {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    least + (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % (most - least + 1)
}

#[test]
fn more_work_never_takes_less() {
    let mut seed = 11;
    for round in 0..60 {
        let chip = &CHIPS[random(&mut seed, 0, CHIPS.len() - 1)];
        let small = Sizes {
            batch: random(&mut seed, 1, 16),
            positions: random(&mut seed, 1, 700),
            width: random(&mut seed, 8, 1500),
            depth: random(&mut seed, 1, 4),
        };
        let mut large = small;
        match round % 4 {
            0 => large.batch += random(&mut seed, 1, 8),
            1 => large.positions += random(&mut seed, 1, 300),
            2 => large.width += random(&mut seed, 1, 600),
            _ => large.depth += random(&mut seed, 1, 3),
        }
        let (less, more) = (ms(&program(small), chip), ms(&program(large), chip));
        assert!(
            more >= less,
            "{}: {less} ms of {small:?}, {more} ms of {large:?}",
            chip.name
        );
    }
}

/// The chips that thresholds of products are of: M6 has two engines, M5 Max an int8 peak.
fn of_thresholds() -> [&'static Chip; 2] {
    ["m6", "m5-max"].map(|name| Chip::from_name(name).unwrap())
}

const ALL_PRODUCTS: [Products; 3] = [Products::Dense, Products::Palette, Products::Int8];

/// Widths from those whose weights stay on the engine to those that are read again, and for each
/// the positions about which work goes to a second engine, to int8 or to one more tile.
#[test]
fn more_positions_and_wider_products_never_take_less() {
    const POSITIONS: [usize; 22] = [
        1, 32, 63, 64, 65, 80, 96, 112, 127, 128, 129, 130, 160, 192, 196, 198, 240, 256, 257, 258,
        512, 1025,
    ];
    const WIDTHS: [usize; 16] = [
        64, 128, 256, 384, 500, 512, 724, 725, 768, 800, 1024, 1280, 1536, 2048, 2049, 3072,
    ];
    for chip in of_thresholds() {
        for products in ALL_PRODUCTS {
            let time = |positions: usize, width: usize| {
                let chain = Chain {
                    products,
                    positions,
                    width,
                    depth: 12,
                };
                ms(&chain.program(), chip)
            };
            let times: Vec<Vec<f64>> = WIDTHS
                .iter()
                .map(|width| POSITIONS.iter().map(|p| time(*p, *width)).collect())
                .collect();
            for (w, width) in WIDTHS.iter().enumerate() {
                for (p, positions) in POSITIONS.iter().enumerate() {
                    let this = times[w][p];
                    let narrower = w.checked_sub(1).map_or(0.0, |w| times[w][p]);
                    let fewer = p.checked_sub(1).map_or(0.0, |p| times[w][p]);
                    assert!(
                        this >= narrower.max(fewer),
                        "{} {products:?}: {this} ms of {positions} positions of {width}, \
                         {narrower} ms of the next less width, {fewer} ms of fewer positions",
                        chip.name
                    );
                }
            }
        }
    }
}

#[test]
fn products_on_a_better_chip_are_never_slower() {
    let mut seed = 13;
    for chip in of_thresholds() {
        for round in 0..60 {
            let chain = Chain {
                products: ALL_PRODUCTS[round % 3],
                positions: random(&mut seed, 1, 400),
                width: random(&mut seed, 64, 2200),
                depth: 12,
            };
            let better = better(chip, &mut seed);
            let program = chain.program();
            let (with, without) = (ms(&program, better), ms(&program, chip));
            assert!(
                with <= without,
                "{}: {without} ms, better {with} ms of {chain:?}",
                chip.name
            );
        }
    }
}

/// A chip like another, and better in every figure.
fn better(chip: &Chip, seed: &mut u64) -> &'static Chip {
    let faster = |f: Figure, by: f64| Figure {
        value: f.value * by,
        ..f
    };
    let mut by = || 1.0 + random(seed, 0, 100) as f64 / 100.0;
    Box::leak(Box::new(Chip {
        peak_tflops: faster(chip.peak_tflops, by()),
        int8_tops: chip.int8_tops.map(|f| faster(f, by())),
        weight_gbps: faster(chip.weight_gbps, by()),
        activation_gbps: faster(chip.activation_gbps, by()),
        local_gbps: faster(chip.local_gbps, by()),
        element_gps: faster(chip.element_gps, by()),
        cpu_gbps: faster(chip.cpu_gbps, by()),
        dispatch_us: faster(chip.dispatch_us, 1.0 / by()),
        direct_us: faster(chip.direct_us, 1.0 / by()),
        ..*chip
    }))
}

#[test]
fn a_better_chip_is_never_slower() {
    let mut seed = 12;
    for chip in CHIPS {
        let better = better(chip, &mut seed);
        let sizes = Sizes {
            batch: random(&mut seed, 1, 8),
            positions: random(&mut seed, 1, 400),
            width: random(&mut seed, 8, 900),
            depth: 2,
        };
        let program = program(sizes);
        let (with, without) = (ms(&program, better), ms(&program, chip));
        assert!(
            with <= without,
            "{}: {without} ms, better {with} ms of {sizes:?}",
            chip.name
        );
    }
}

/// A program for a size, and the sizes in order.
type Rising = (&'static str, fn(usize) -> String, &'static [usize]);

const FILE: &str = "(BLOBFILE(path = string(\"gone\"), offset = uint64(64)))";

/// Attention whose keys grow past the number of queries.
fn attention(keys: usize) -> String {
    format!(
        "func main<ios18>(tensor<fp16, [1, 8, 512, 128]> q, tensor<fp16, [1, 8, {keys}, 128]> k, \
         tensor<fp16, [1, 8, {keys}, 128]> v) {{
             tensor<fp16, [1, 8, 512, {keys}]> s = matmul(x = q, y = k, transpose_y = bool(true));
             tensor<fp16, [1, 8, 512, {keys}]> p = softmax(x = s, axis = int32(-1));
             tensor<fp16, [1, 8, 512, 128]> y = matmul(x = p, y = v);
         }} -> (y);"
    )
}

/// A convolution of the same image with a wider kernel.
fn kernel(width: usize) -> String {
    let weight = format!("tensor<fp16, [32, 32, 3, {width}]>");
    format!(
        "func main<ios18>(tensor<fp16, [1, 32, 64, 64]> x) {{
             {weight} w = const()[val = {weight}{FILE}];
             tensor<fp16, [1, 32, 62, 64]> y = conv(x = x, weight = w, pad_type = \
             string(\"custom\"), pad = tensor<int32, [4]>([0, 0, {}, {}]));
         }} -> (y);",
        (width - 1) / 2,
        width / 2
    )
}

/// Three convolutions and a softmax each, of which the values of some are returned too.
fn returned(more: usize) -> String {
    let (x, weight) = (
        "tensor<fp16, [1, 64, 128, 160]>",
        "tensor<fp16, [64, 64, 1, 1]>",
    );
    let mut body = String::new();
    for i in 0..3 {
        body += &format!(
            "{weight} w{i} = const()[val = {weight}{FILE}];
             {x} c{i} = conv(x = y{i}, weight = w{i});
             {x} y{} = softmax(x = c{i}, axis = int32(1));\n",
            i + 1
        );
    }
    let outputs = ["y3", "c2", "y2", "c1"][..=more].join(", ");
    format!("func main<ios18>({x} y0) {{\n{body}}} -> ({outputs});")
}

/// Adding constants, as many bytes as the value has.
fn constants(width: usize) -> String {
    let x = format!("tensor<fp16, [1, 64, 64, {width}]>");
    format!(
        "func main<ios18>({x} x) {{
             {x} c = const()[val = {x}{FILE}];
             {x} y = add(x = x, y = c);
         }} -> (y);"
    )
}

fn recurrent(batch: usize, width: usize) -> String {
    let (gates, wide) = (4 * width, format!("tensor<fp16, [{batch}, {width}]>"));
    format!(
        "func main<ios18>(tensor<fp16, [50, {batch}, 96]> x, {wide} h, {wide} c) {{
             tensor<fp16, [{gates}, 96]> i = const()[val = tensor<fp16, [{gates}, 96]>{FILE}];
             tensor<fp16, [{gates}, {width}]> r = const()[val = tensor<fp16, [{gates}, {width}]>{FILE}];
             tensor<fp16, [1, {batch}, {width}]> y, {wide} yh, {wide} yc = lstm(x = x, initial_h = h, initial_c = c, weight_ih = i, \
             weight_hh = r, direction = string(\"forward\"), output_sequence = bool(false), \
             recurrent_activation = string(\"sigmoid\"), cell_activation = string(\"tanh\"), \
             activation = string(\"tanh\"));
         }} -> (y);"
    )
}

fn sorted(n: usize) -> String {
    format!(
        "func main<ios18>(tensor<fp16, [3, {n}]> x) {{
             tensor<int32, [3, {n}]> y = argsort(x = x, axis = int32(-1), ascending = bool(true));
         }} -> (y);"
    )
}

fn cast(n: usize) -> String {
    format!(
        "func main<ios18>(tensor<fp32, [3, {n}]> x) {{
             tensor<fp16, [3, {n}]> y = cast(x = x, dtype = string(\"fp16\"));
         }} -> (y);"
    )
}

const ON_ENGINE: [Rising; 4] = [
    ("keys", attention, &[256, 511, 512, 513, 514, 1024]),
    ("kernel", kernel, &[1, 3, 8, 9, 15, 16, 17, 31]),
    ("outputs", returned, &[0, 1, 2, 3]),
    ("constants", constants, &[1, 63, 64, 640, 6400]),
];

const ON_CPU: [Rising; 4] = [
    ("batch", |n| recurrent(n, 512), &[1, 2, 16, 1000]),
    ("width", |n| recurrent(3, n), &[32, 512, 2048, 4096]),
    ("sort", sorted, &[100, 100_000, 1_000_000]),
    ("cast", cast, &[100_000, 10_000_000, 100_000_000]),
];

/// Ops whose time once did not grow with their size, or fell at one.
#[test]
fn larger_ops_never_take_less() {
    let routes = [
        (&ON_ENGINE, Units::CpuAndNeuralEngine, Route::Direct),
        (&ON_CPU, Units::CpuOnly, Route::CoreMl),
    ];
    for (cases, units, route) in routes {
        for (name, text, sizes) in cases {
            for chip in of_thresholds() {
                let time = |n: &usize| {
                    let program = parse(&format!("program(1.3) {{ {} }}", text(*n)));
                    ms_by(&program, chip, units, route)
                };
                let times: Vec<f64> = sizes.iter().map(time).collect();
                assert!(
                    times.is_sorted(),
                    "{} {name} {units:?}: {times:?}",
                    chip.name
                );
                // The largest is far more work than the smallest; outputs are not.
                let rises = *name == "outputs" || times[times.len() - 1] > 1.2 * times[0];
                assert!(rises, "{} {name} {units:?}: {times:?}", chip.name);
            }
        }
    }
}

/// Weights that are computed make a convolution no faster on the CPU.
#[test]
fn a_convolution_with_computed_weights_takes_as_long() {
    let convolution = |weight: &str, input: &str| {
        parse(&format!(
            "program(1.3) {{ func main<ios18>(tensor<fp16, [1, 64, 48, 40]> x{input}) {{
                 {weight}
                 tensor<fp16, [1, 96, 46, 38]> y = conv(x = x, weight = w);
             }} -> (y); }}"
        ))
    };
    let shape = "tensor<fp16, [96, 64, 3, 3]>";
    let constant = convolution(&format!("{shape} w = const()[val = {shape}{FILE}];"), "");
    let computed = convolution("", &format!(", {shape} w"));
    for chip in of_thresholds() {
        let time = |program| ms_by(program, chip, Units::CpuOnly, Route::CoreMl);
        assert_eq!(time(&computed), time(&constant), "{}", chip.name);
    }
}

/// Two layers of Gemma 4 E2B that read one cache of keys and values, as CoreML-LLM publishes them:
/// one head of keys is repeated for eight of queries, and coremltools writes that with transposes
/// that move axes of length 1. Its chunks 3 and 4 have two such layers each and take 7.0 ms longer
/// with 8,192 positions than with 2,048 on iPhone 17 Pro.
#[test]
fn a_longer_context_takes_about_as_much_longer_as_published() {
    let text = |context: usize| {
        let (cache, one) = (
            format!("{context}, 512"),
            format!("tensor<fp16, [1, 1, {context}, 512]>"),
        );
        let mut body = String::new();
        for (name, perm, shape) in [
            ("k", "1, 0, 3, 2", format!("1, 8, 512, {context}")),
            ("v", "1, 0, 2, 3", format!("1, 8, {cache}")),
        ] {
            body += &format!(
                "tensor<fp16, [1, 1, {cache}]> {name}a = transpose(x = {name}, perm = tensor<int32, [4]>([1, 0, 2, 3]));
                 tensor<fp16, [8, 1, {cache}]> {name}b = tile(x = {name}a, reps = tensor<int32, [4]>([8, 1, 1, 1]));
                 tensor<fp16, [8, 1, 1, {cache}]> {name}c = reshape(x = {name}b, shape = tensor<int32, [5]>([8, 1, 1, {cache}]));
                 tensor<fp16, [1, 8, 1, {cache}]> {name}d = transpose(x = {name}c, perm = tensor<int32, [5]>([1, 0, 2, 3, 4]));
                 tensor<fp16, [8, 1, {cache}]> {name}e = reshape(x = {name}d, shape = tensor<int32, [4]>([-1, 1, {cache}]));
                 tensor<fp16, [{shape}]> {name}f = transpose(x = {name}e, perm = tensor<int32, [4]>([{perm}]));\n"
            );
        }
        for i in 0..2 {
            body += &format!(
                "tensor<fp16, [1, 8, 1, {context}]> s{i} = matmul(x = q{i}, y = kf);
                 tensor<fp16, [1, 8, 1, {context}]> p{i} = softmax(x = s{i}, axis = int32(-1));
                 tensor<fp16, [1, 8, 1, 512]> y{i} = matmul(x = p{i}, y = vf);\n"
            );
        }
        let query = "tensor<fp16, [1, 8, 1, 512]>";
        let inputs = format!("{query} q0, {query} q1, {one} k, {one} v");
        parse(&format!(
            "program(1.3) {{ func main<ios18>({inputs}) {{\n{body}}} -> (y0, y1); }}"
        ))
    };
    let chip = Chip::from_name("a19-pro").unwrap();
    let of = |context| ms(&text(context), chip);
    let longer = of(8192) - of(2048);
    assert!((7.0 / 1.5..7.0 * 1.5).contains(&longer), "{longer} ms");
}

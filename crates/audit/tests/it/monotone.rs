//! Properties of predicted times: more work never takes less, and a chip that is better in every
//! figure is never slower. Placement is fixed: all ops are on the engine.

use thane_audit::latency::predict;
use thane_audit::place::place;
use thane_audit::target::{CHIPS, Chip, Figure, RELEASES, Route, Target, Units};
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
    let text = format!("program(1.3) {{ func main<ios18>({t} x) {{\n{body}}} -> ({x}); }}");
    thane_mil::text::parse(&text, &|_, _, ty| ty.byte_len().map(Data::zeros))
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn ms(sizes: Sizes, chip: &'static Chip) -> f64 {
    let program = program(sizes);
    let target = Target::new(
        chip,
        &RELEASES[RELEASES.len() - 1],
        Units::CpuAndNeuralEngine,
        Route::Direct,
    );
    let view = View::new(&program, &program.functions()[0], &target);
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
        let (less, more) = (ms(small, chip), ms(large, chip));
        assert!(
            more >= less,
            "{}: {less} ms of {small:?}, {more} ms of {large:?}",
            chip.name
        );
    }
}

#[test]
fn a_better_chip_is_never_slower() {
    let faster = |f: Figure, by: f64| Figure {
        value: f.value * by,
        ..f
    };
    let mut seed = 12;
    for chip in CHIPS {
        let mut by = || 1.0 + random(&mut seed, 0, 100) as f64 / 100.0;
        let better: &'static Chip = Box::leak(Box::new(Chip {
            peak_tflops: faster(chip.peak_tflops, by()),
            weight_gbps: faster(chip.weight_gbps, by()),
            activation_gbps: faster(chip.activation_gbps, by()),
            local_gbps: faster(chip.local_gbps, by()),
            element_gps: faster(chip.element_gps, by()),
            cpu_gbps: faster(chip.cpu_gbps, by()),
            dispatch_us: faster(chip.dispatch_us, 1.0 / by()),
            direct_us: faster(chip.direct_us, 1.0 / by()),
            ..*chip
        }));
        let sizes = Sizes {
            batch: random(&mut seed, 1, 8),
            positions: random(&mut seed, 1, 400),
            width: random(&mut seed, 8, 900),
            depth: 2,
        };
        let (with, without) = (ms(sizes, better), ms(sizes, chip));
        assert!(
            with <= without,
            "{}: {without} ms, better {with} ms of {sizes:?}",
            chip.name
        );
    }
}

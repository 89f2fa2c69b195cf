//! Estimates what an op takes on each backend, with the constants of Core ML's segmenter. The
//! numbers are for choosing between backends, not for predicting time.
//!
//! Elementwise ops have no estimate of their own: they cost their bytes at 100 GB/s on every
//! backend, so backends tie. On the Neural Engine the other ops cost `max(operations / peak,
//! bytes / bandwidth)`, except convolutions and `linear`, which have a decision tree; its
//! published leaves are interpolated here over operations per byte. On the CPU, products have a
//! rate each and all other ops cost their bytes. The constants were fitted to values of the M6
//! study (M4, macOS 27); values between those are inferred.
//!
//! What is known of GPUs are the costs in compute plans of five models (erwinzhang7, M4 Pro, macOS
//! 26.5, `results/residency`), which are parts of a whole. On the GPU a softmax, a norm, a reshape
//! and a matmul of DistilBERT cost their bytes at the rate of the engine, so backends tie, and
//! matmuls of SigLIP cost their operations at 2.74 10^12/s. `add`, `mul` and `transpose` cost less
//! on the GPU than on the engine. No plan has a convolution, `linear` or lookup on the GPU, and the
//! GPUs of families without plans are priced by their cores.

use super::Backend;
use crate::target::{Chip, Figure, Segmenter};
use crate::work::{Kind, Work};

const STUDY: &str = "M6 study, data/03_compile/opdispatch, H16G, macOS 27";

/// A constant of H16G, which other platforms are taken to have too.
const fn read(value: f64) -> Figure {
    Figure::measured(value, value, value).by(STUDY)
}

/// Bytes an elementwise op is taken to move, in 10^9/s on any backend: 64x32x32 of fp16 in 2.6214
/// us.
const ELEMENTWISE_GBPS: Figure = read(100.0);

const GIB: f64 = 1_073_741_824.0;

/// Operations per byte and what they reach of the best of a convolution on H16G, 16,152 GFLOP/s:
/// depthwise 3x3 (471), 1x1 (7,161), `linear` 128x256 -> 512 (10,581), and 3x3 of 64 channels over
/// 32x32.
const CONV_LEAVES: [(f64, Figure); 4] = [
    (4.481, read(0.02917)),
    (31.03, read(0.4434)),
    (73.14, read(0.6551)),
    (181.8, read(1.0)),
];

/// What entering the engine, changing backend, and ending on the engine cost each, in microseconds.
pub const HOP_US: Figure = read(125.0);

/// Bytes of the first leaf, in 10^9/s (depthwise 3x3: 263,296 in 2.5036 us), and of what has fewer
/// operations per byte, which is inferred.
const LEAN_GBPS: Figure = read(105.2);

/// On BNNS, over the rate of a 3x3 convolution: 1x1 kernels (388 of 754.5 GFLOP/s).
const BNNS_POINTWISE: Figure = read(388.0 / 754.5);
/// `linear` (335).
const BNNS_LINEAR: Figure = read(335.0 / 754.5);
/// A group a channel (27).
const BNNS_DEPTHWISE: Figure = read(27.06 / 754.5);
/// Any other number of groups: not published; half-way, in logarithms, between depthwise and 1x1.
const BNNS_GROUPED: Figure =
    Figure::inferred(102.0 / 754.5, BNNS_DEPTHWISE.value, BNNS_POINTWISE.value).by(STUDY);
/// `conv_transpose` (2,126 us for 64 channels, kernel and stride 2, to 64x64).
const BNNS_TRANSPOSED: Figure = read(15.8 / 754.5);
/// Results of a bilinear resize, in 10^9/s (499.6 us for 64 channels to 64x64).
const BNNS_RESIZED_GPS: Figure = read(0.5247);

/// The figures that all platforms share, by name.
pub const FIGURES: [(&str, Figure); 13] = [
    ("elementwise_gbps", ELEMENTWISE_GBPS),
    ("lean_gbps", LEAN_GBPS),
    ("bnns_pointwise", BNNS_POINTWISE),
    ("bnns_linear", BNNS_LINEAR),
    ("bnns_depthwise", BNNS_DEPTHWISE),
    ("bnns_grouped", BNNS_GROUPED),
    ("bnns_transposed", BNNS_TRANSPOSED),
    ("bnns_resized_gps", BNNS_RESIZED_GPS),
    ("conv_at_4_per_byte", CONV_LEAVES[0].1),
    ("conv_at_31_per_byte", CONV_LEAVES[1].1),
    ("conv_at_73_per_byte", CONV_LEAVES[2].1),
    ("conv_at_182_per_byte", CONV_LEAVES[3].1),
    ("hop_us", HOP_US),
];

/// Seconds that the segmenter takes a backend to need for an op.
pub fn seconds(work: &Work, name: &str, backend: Backend, chip: &Chip) -> f64 {
    let segmenter = &chip.family.segmenter;
    if let Some(seconds) = unfused(work, name, backend, segmenter) {
        return seconds;
    }
    // The segmenter knows no transpose that is free.
    let is_elementwise =
        matches!(work.kind, Kind::Unary | Kind::Elementwise | Kind::Free) && name != "transpose";
    match backend {
        Backend::MpsGraph if segmenter.unfused.is_none() => by_cores(work, name, chip),
        _ if is_elementwise => work.bytes() / (ELEMENTWISE_GBPS.value * 1e9),
        Backend::MpsGraph => by_plans(work, name, chip),
        Backend::Ane => ane(work, name, segmenter),
        Backend::ClassicCpu if is_product(work) => {
            segmenter.classic_slower.value * bnns(work, name, segmenter)
        }
        Backend::Bnns | Backend::ClassicCpu => bnns(work, name, segmenter),
    }
}

/// Seconds that a GPU of which there is no plan needs for the operations and bytes of an op.
fn gpu(work: &Work, chip: &Chip) -> f64 {
    let (host, cores) = (&chip.host, f64::from(chip.gpu_cores));
    let flops = work.flops / (host.gpu_core_gflops.value * 1e9 * cores);
    flops.max(work.bytes() / (host.gpu_core_gbps.value * 1e9 * cores))
}

/// What plans show of an op that costs more than its bytes. No plan has one on the CPU: there it is
/// taken to cost as much more than on the engine as other ops of its kind do.
fn unfused(work: &Work, name: &str, backend: Backend, segmenter: &Segmenter) -> Option<f64> {
    let costs = segmenter.unfused?;
    let operands = work.input_bytes + work.constant_bytes;
    let (cost, bytes) = match name {
        "add" => (costs.add, operands),
        "mul" => (costs.mul, operands),
        "transpose" => (costs.transpose, work.bytes()),
        _ => return None,
    };
    let (cost, gibps) = match backend {
        Backend::MpsGraph => (cost[1], segmenter.ane_gibps.value),
        Backend::Bnns | Backend::ClassicCpu if name == "transpose" => {
            (cost[0], segmenter.cpu_gibps.value)
        }
        _ => (cost[0], segmenter.ane_gibps.value),
    };
    Some(cost.value * bytes / (gibps * GIB))
}

/// An op on a GPU of which there is no plan.
fn by_cores(work: &Work, name: &str, chip: &Chip) -> f64 {
    match work.kind {
        Kind::Elementwise | Kind::Free if name != "transpose" => gpu(work, chip),
        _ => gpu(work, chip) + chip.family.segmenter.gpu_op_us.value / 1e6,
    }
}

/// An op on the GPU as plans have it. A convolution is taken to reach as much of the best there as
/// on the engine, and `einsum` to be taken apart into transposes and a product: SigLIP rewritten
/// for the engine, which has it, stays there with 1,633 of 1,658 ops (`whole_models.csv`).
fn by_plans(work: &Work, name: &str, chip: &Chip) -> f64 {
    let segmenter = &chip.family.segmenter;
    let cores = f64::from(chip.gpu_cores);
    let peak = segmenter.gpu_rate.value * chip.host.gpu_core_gflops.value * 1e9 * cores;
    let by_bytes = work.bytes() / (segmenter.ane_gibps.value * GIB);
    let product = (work.flops / peak).max(by_bytes);
    match (name, segmenter.unfused) {
        _ if is_conv(work, name) => segmenter.gpu_op_us.value / 1e6 + conv(work, peak),
        _ if work.table.is_some() => segmenter.gpu_lookup.value * bnns(work, name, segmenter),
        // A transpose reads and writes each operand and the result.
        ("einsum", Some(costs)) => product + 2.0 * costs.transpose[1].value * by_bytes,
        _ => product,
    }
}

fn is_conv(work: &Work, name: &str) -> bool {
    ["conv", "conv_quantized", "conv_transpose", "linear"].contains(&name) && work.flops > 0.0
}

/// Whether an op that resizes weighs neighbors, and does not copy the nearest.
pub fn interpolates(name: &str) -> bool {
    [
        "upsample_bilinear",
        "resize_bilinear",
        "resample",
        "affine",
        "crop_resize",
    ]
    .contains(&name)
}

fn is_product(work: &Work) -> bool {
    matches!(
        work.kind,
        Kind::Product(..) | Kind::Matmul | Kind::Attention | Kind::Resize
    )
}

fn ane(work: &Work, name: &str, segmenter: &Segmenter) -> f64 {
    let peak = segmenter.ane_gflops.value * 1e9;
    if is_conv(work, name) {
        return conv(work, peak * segmenter.ane_conv.value);
    }
    (work.flops / peak).max(work.bytes() / (segmenter.ane_gibps.value * GIB))
}

/// A convolution on a backend that reaches `best` operations in a second.
fn conv(work: &Work, best: f64) -> f64 {
    let intensity = work.flops / work.bytes().max(1.0);
    if intensity <= CONV_LEAVES[0].0 {
        return work.bytes() / (LEAN_GBPS.value * 1e9);
    }
    work.flops / (best * reached(intensity))
}

/// What a convolution of so many operations per byte reaches of the best; for fewer than the first
/// leaf has, bytes count.
fn reached(intensity: f64) -> f64 {
    for pair in CONV_LEAVES.windows(2) {
        let ((x, low), (y, high)) = (pair[0], pair[1]);
        if intensity <= y {
            let part = libm::log(intensity / x) / libm::log(y / x);
            let (low, high) = (low.value, high.value);
            return low * libm::pow(high / low, part);
        }
    }
    1.0
}

fn bnns(work: &Work, name: &str, segmenter: &Segmenter) -> f64 {
    let conv = segmenter.bnns_conv.value * 1e9;
    let by_bytes = work.bytes() / (segmenter.cpu_gibps.value * GIB);
    // That weights have to be read at all is inferred: the published products are small.
    let by_rate = |rate: f64| (work.flops / rate).max(by_bytes);
    match (work.kind, name) {
        (Kind::Resize, name) if interpolates(name) => work.outputs / (BNNS_RESIZED_GPS.value * 1e9),
        (_, "conv_transpose") => by_rate(conv * BNNS_TRANSPOSED.value),
        (_, "linear") => by_rate(conv * BNNS_LINEAR.value),
        (Kind::Product(gemm, _), "conv" | "conv_quantized") => by_rate(match () {
            () if gemm.groups > 1.0 && gemm.groups >= gemm.outputs => conv * BNNS_DEPTHWISE.value,
            () if gemm.groups > 1.0 => conv * BNNS_GROUPED.value,
            () if gemm.taps > 1.0 => conv,
            () => conv * BNNS_POINTWISE.value,
        }),
        (Kind::Matmul, "conv" | "conv_quantized") => by_rate(conv * BNNS_POINTWISE.value),
        (_, "matmul" | "einsum") => by_rate(segmenter.bnns_matmul.value * 1e9),
        (Kind::Attention, _) => by_rate(segmenter.bnns_matmul.value * 1e9),
        _ => by_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The leaves of the tree are met, and what lies between them lies between.
    #[test]
    fn the_tree_goes_through_its_leaves() {
        for (intensity, part) in CONV_LEAVES {
            assert!(
                (reached(intensity) / part.value - 1.0).abs() < 1e-9,
                "{intensity}"
            );
        }
        let rising: Vec<f64> = (36..4000).map(|i| reached(f64::from(i) / 8.0)).collect();
        assert!(rising.is_sorted() && rising.iter().all(|r| *r > 0.0 && *r <= 1.0));
        assert_eq!(reached(1e9), 1.0);
    }
}

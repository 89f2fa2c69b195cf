//! The time of each op on the Neural Engine and elsewhere.

use std::collections::HashSet;

use thane_mil::program::ValueId;

use super::on_engine;
use crate::place::{Backend, Placed, Placement};
use crate::plan::stream::{Gemm, RESIDENT_BYTES};
use crate::target::Chip;
use crate::view::View;
use crate::weight::Form;
use crate::work::{self, Kind};

/// Seconds of a call, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Products.
    pub compute: f64,
    /// Reading weights.
    pub weights: f64,
    /// Elementwise ops, reductions and permutations.
    pub elements: f64,
    /// Activations in memory.
    pub activations: f64,
    /// Entering and leaving the engine.
    pub dispatch: f64,
    /// Ops that run on the CPU or GPU.
    pub host: f64,
}

impl Parts {
    /// The sum of all parts.
    pub fn total(&self) -> f64 {
        self.on_engine() + self.dispatch + self.host
    }

    /// The sum of the parts on the engine.
    pub fn on_engine(&self) -> f64 {
        self.compute + self.weights + self.elements + self.activations
    }

    /// The largest part.
    pub fn bound(&self) -> super::Bound {
        use super::Bound::{Activations, Compute, Dispatch, Host, Weights};
        let parts = [
            (self.dispatch, Dispatch),
            (self.compute, Compute),
            (self.weights, Weights),
            (self.elements + self.activations, Activations),
            (self.host, Host),
        ];
        parts
            .into_iter()
            .fold(
                (0.0, Dispatch),
                |best, part| if part.0 > best.0 { part } else { best },
            )
            .1
    }
}

/// The time of all ops of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Seconds.
    pub parts: Parts,
    /// Bytes of weights that are read.
    pub weight_bytes: f64,
    /// Positions of most of the products, by their weights.
    pub positions: f64,
    /// Seconds of reading weights with more than one palette.
    pub grouped: f64,
}

/// Bytes that a permutation moves in a second: 60 GB/s (ANEForge, transposes).
const TRANSPOSED_BYTES: f64 = 60e9;

/// Results of a reduction over a short axis in a second: 81,920 results of 4 elements take 0.2 ms
/// (qwen-ane, M5 Max).
const SHORT_ROWS: f64 = 0.41e9;
/// Elements of a row below which a reduction counts as one over a short axis; between 4, slow, and
/// 2560, fast.
const SHORT: f64 = 64.0;

/// Operations of products on the CPU in a second: pplx-embed 0.6B at length 256 takes 82 ms on M4
/// Max with `cpuOnly` (CoreML-LLM, pull request 169). Half of that before M4, which is inferred.
const CPU_FLOPS: f64 = 2.9e12;

/// A `topk`, in seconds: it makes a call 6 to 10 ms slower (M6 study, M4 and M6).
const TOPK: f64 = 8e-3;

/// Sum the time of the ops of a placement.
pub fn run(view: &View<'_>, placement: &Placement) -> Total {
    walk(view, placement, &mut |_| {})
}

/// Seconds of each op of a placement, without what its activations and the call take; 0 where it is
/// done on the way out of another.
pub fn each(view: &View<'_>, placement: &Placement) -> Vec<f64> {
    let mut seconds = Vec::with_capacity(placement.ops.len());
    walk(view, placement, &mut |s| seconds.push(s));
    seconds
}

/// Sum the time of the ops of a placement, and report the seconds of each op to `report`.
fn walk(view: &View<'_>, placement: &Placement, report: &mut dyn FnMut(f64)) -> Total {
    let chip = view.target.chip;
    let mut total = Total::default();
    let mut read: HashSet<ValueId> = HashSet::new();
    let mut columns: Vec<(f64, f64)> = Vec::new();
    for op in &placement.ops {
        let so_far = total.parts.total();
        if !on_engine(op.chosen) {
            total.parts.host += elsewhere(op, chip);
        } else if let Kind::Product(gemm, weight) = op.work.kind {
            let resident = !read.insert(weight);
            total.weight_bytes += gemm.bytes(chip, resident);
            let before = total.parts.weights;
            product(op, &gemm, resident, chip, &mut total.parts);
            if matches!(gemm.stored.form, Form::Palette { grouped: true, .. }) {
                total.grouped += total.parts.weights - before;
            }
            columns.push((gemm.positions, gemm.n_weights()));
        } else if !is_fused(view, op) {
            other(view, op, chip, &mut total.parts);
        }
        if let (false, Kind::Product(gemm, _)) = (on_engine(op.chosen), op.work.kind) {
            total.weight_bytes += gemm.n_weights() * gemm.stored.bits / 8.0;
            columns.push((gemm.positions, gemm.n_weights()));
        }
        report((total.parts.total() - so_far).max(0.0));
    }
    total.positions = most_common(columns);
    total
}

/// What the CPU or GPU takes for an op. The segmenter takes CPUs for several times slower at
/// products than they are: one that is left to the CPU is faster than Core ML thinks.
fn elsewhere(op: &Placed, chip: &Chip) -> f64 {
    let estimate = op.estimate(op.chosen).unwrap_or(0.0) / 1e3;
    let is_product = matches!(
        op.work.kind,
        Kind::Product(..) | Kind::Matmul | Kind::Attention
    );
    if op.chosen == Backend::MpsGraph || !is_product {
        return estimate;
    }
    let flops = if chip.generation >= 16 {
        CPU_FLOPS
    } else {
        CPU_FLOPS / 2.0
    };
    let bytes = op.work.bytes() / (chip.family.segmenter.cpu_gibps * 1_073_741_824.0);
    (op.work.flops / flops).max(bytes).min(estimate)
}

/// The first of each pair, weighted by the second, that weighs most.
fn most_common(mut columns: Vec<(f64, f64)>) -> f64 {
    columns.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best = (0.0, 0.0);
    for same in columns.chunk_by(|a, b| a.0 == b.0) {
        let weight: f64 = same.iter().map(|c| c.1).sum();
        if weight > best.1 {
            best = (same[0].0, weight);
        }
    }
    best.0
}

fn product(op: &Placed, gemm: &Gemm, resident: bool, chip: &Chip, parts: &mut Parts) {
    let seconds = gemm.seconds(chip, resident);
    let narrow = if gemm.int8 { 2.0 } else { 1.0 };
    let moved =
        (op.work.input_bytes + op.work.output_bytes) / narrow / (chip.local_gbps.value * 1e9);
    if seconds.weights >= seconds.compute.max(moved) {
        parts.weights += seconds.weights;
    } else {
        parts.compute += seconds.compute.max(moved);
    }
}

/// Whether an op is fused into the product before it.
fn is_fused(view: &View<'_>, op: &Placed) -> bool {
    if op.work.kind != Kind::Unary {
        return false;
    }
    let mil = view.op(op.op);
    // Numbers become int8 and back where a product writes and reads them.
    if mil.def.name == "quantize" || mil.def.name == "dequantize" {
        return true;
    }
    let Some(x) = mil.value_arg("x").or_else(|| mil.value_arg("input")) else {
        return false;
    };
    let by_product = view
        .f
        .definer(x)
        .is_some_and(|op| ["conv", "linear", "conv_transpose"].contains(&op.def.name));
    by_product && view.users(x).len() == 1
}

fn other(view: &View<'_>, op: &Placed, chip: &Chip, parts: &mut Parts) {
    let work = &op.work;
    let elements = |n: f64| n / (chip.element_gps.value * 1e9);
    let peak = chip.peak_tflops.value * 1e12 * f64::from(chip.engines.max(1));
    match work.kind {
        Kind::Matmul => {
            parts.compute += (work.flops / peak).max(work.bytes() / (chip.local_gbps.value * 1e9))
        }
        Kind::Attention => {
            let (scores, _) = work::scores(view, view.op(op.op));
            parts.compute += work.flops / peak;
            parts.elements += elements(2.0 * scores);
            // Scores and what softmax makes of them, written and read again.
            let bytes = 2.0 * scores;
            if bytes > RESIDENT_BYTES {
                parts.activations += 4.0 * bytes / (chip.activation_gbps.value * 1e9);
            }
        }
        Kind::Unary | Kind::Elementwise | Kind::Other | Kind::Resize => {
            parts.elements += elements(work.outputs)
        }
        Kind::Softmax => parts.elements += elements(2.0 * work.outputs),
        Kind::Normalization => parts.elements += elements(3.0 * work.outputs),
        Kind::Pool => parts.elements += elements(work.inputs.max(work.outputs)),
        Kind::Reduction => {
            // Nothing is written: half of what an elementwise op does.
            let long = elements(work.inputs) / 2.0;
            let is_short = work.inputs < SHORT * work.outputs;
            parts.elements += if is_short {
                long.max(work.outputs / SHORT_ROWS)
            } else {
                long
            };
        }
        Kind::Transpose => parts.elements += work.output_bytes / TRANSPOSED_BYTES,
        Kind::Copy => parts.elements += work.output_bytes / (chip.local_gbps.value * 1e9),
        Kind::TopK => parts.elements += TOPK,
        Kind::State => {
            parts.activations +=
                (work.output_bytes.max(work.input_bytes)) / (chip.activation_gbps.value * 1e9);
        }
        Kind::Free | Kind::Product(..) => {}
    }
}

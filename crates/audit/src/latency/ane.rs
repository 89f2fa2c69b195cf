//! The time of each op on the Neural Engine and elsewhere.

use std::collections::{HashMap, HashSet};

use thane_mil::program::{Op, ValueId};

use super::{on_ane, renames, traffic};
use crate::place::estimate::interpolates;
use crate::place::{Backend, Placed, Placement};
use crate::plan::stream::{Gemm, RESIDENT_BYTES};
use crate::target::{Chip, Figure};
use crate::view::View;
use crate::weight::Encoding;
use crate::work::{self, Kind};

/// Seconds of a call, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Products.
    pub compute: f64,
    /// Reading weights, as far as no products and elementwise ops hide it.
    pub weights: f64,
    /// Elementwise ops, reductions and permutations.
    pub elements: f64,
    /// Starting the tasks of ops that are not products.
    pub tasks: f64,
    /// Activations in memory.
    pub activations: f64,
    /// Copies that the caller makes of inputs and outputs.
    pub copies: f64,
    /// What bindings of the caller's language add to a call, beside copies.
    pub caller: f64,
    /// Entering and leaving the engine.
    pub dispatch: f64,
    /// Ops that run on the CPU or GPU.
    pub host: f64,
}

impl Parts {
    /// The sum of all parts.
    pub fn total(&self) -> f64 {
        self.on_ane() + self.copies + self.caller + self.dispatch + self.host
    }

    /// Add the parts of an op.
    fn add(&mut self, of_op: Self) {
        self.compute += of_op.compute;
        self.weights += of_op.weights;
        self.elements += of_op.elements;
        self.tasks += of_op.tasks;
        self.activations += of_op.activations;
        self.dispatch += of_op.dispatch;
        self.host += of_op.host;
    }

    /// The sum of the parts on the engine.
    pub fn on_ane(&self) -> f64 {
        self.busy() + self.weights + self.activations
    }

    /// The sum of what hides the reading of weights.
    fn busy(&self) -> f64 {
        self.compute + self.elements + self.tasks
    }

    /// The seconds of an op if nothing ran beside it, where these are its parts.
    fn alone(&self) -> f64 {
        self.busy().max(self.weights) + self.activations + self.host
    }

    /// The largest part.
    pub fn bound(&self) -> super::Bound {
        use super::Bound::{Activations, Compute, Dispatch, Elements, Host, Tasks, Weights};
        // Where weights take longer than what hides them, they are the limit and it is not.
        let read = if self.weights > 0.0 {
            self.weights + self.busy()
        } else {
            0.0
        };
        let parts = [
            (self.dispatch + self.caller, Dispatch),
            (read, Weights),
            (self.compute, Compute),
            (
                self.elements + self.tasks + self.activations + self.copies,
                Activations,
            ),
            (self.host, Host),
        ];
        // All parts beside products are one limit, named after the largest of them.
        let others = [
            (self.activations + self.copies, Activations),
            (self.elements, Elements),
            (self.tasks, Tasks),
        ];
        match greatest(&parts) {
            Activations => greatest(&others),
            other => other,
        }
    }
}

/// Name of the largest of these parts; of equal ones, the first.
fn greatest(parts: &[(f64, super::Bound)]) -> super::Bound {
    let first = (0.0, super::Bound::Dispatch);
    let larger = |best: (f64, super::Bound), part: &(f64, super::Bound)| {
        if part.0 > best.0 { *part } else { best }
    };
    parts.iter().fold(first, larger).1
}

/// The time of all ops of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Seconds.
    pub parts: Parts,
    /// Seconds of reading weights, hidden or not.
    pub reading: f64,
    /// Bytes of weights that are read.
    pub weight_bytes: f64,
    /// Positions of most of the products, by their weights.
    pub positions: f64,
    /// Positions of the product that has most.
    pub most_positions: f64,
    /// Seconds of reading weights with more than one palette.
    pub grouped: f64,
    /// Seconds of reading weights that are not stored as fp16.
    pub compressed: f64,
    /// What the figures of the CPU and GPU leave open of the ops there, as [`Figure::spread`] has
    /// it, by the time of each.
    pub host_spread: f64,
}

/// Bytes that a permutation moves, in 10^9/s.
const TRANSPOSED_GBPS: Figure = Figure::measured(60.0, 60.0, 60.0).by("ANEForge, transposes");

/// Starting the task of an op, in microseconds. Products start theirs while others run. Whole
/// networks take 3 to 5 us more than the other terms for each op that is neither a product nor
/// fused into one, and are met about as well by 4 to 6.
pub const TASK_US: Figure = Figure::measured(4.0, 3.0, 6.0)
    .by("whole networks: ANEForge, coremltools, FluidAudio, MobileCLIP, FastViT");

/// Results of a reduction, in 10^9/s: 81,920 results of 4 elements take 0.2 ms.
const SHORT_ROWS_GPS: Figure = Figure::measured(0.41, 0.41, 0.41).by("qwen-ane, M5 Max");

/// An element that `topk` sorts, in nanoseconds: it makes a call 6 to 10 ms slower, which is taken
/// to be over 32,000 elements, as in the study's table of estimates. The middle is inferred.
const TOPK_NS: Figure = Figure::inferred(250.0, 187.5, 312.5).by("M6 study, M4 and M6");

/// A comparison of a sort on the CPU or GPU, in nanoseconds.
const COMPARE_NS: Figure = Figure::inferred(2.5, 1.0, 10.0).by("a guess: nobody published a sort");

/// Bytes of weights that the caches of a CPU keep from one step of a recurrent layer to the next.
const CPU_CACHE_BYTES: Figure = Figure::inferred(12.0e6, 8.0e6, 16.0e6)
    .by("AnandTech: 12 MB for the performance cores of M1, 8 of A14");

/// How often the elements of a softmax and of a norm are gone through on the engine, and those of a
/// reduction, which writes nothing.
const SOFTMAX_PASSES: Figure = passes(2.0);
const NORM_PASSES: Figure = passes(3.0);
const REDUCTION_PASSES: Figure = passes(0.5);

const fn passes(n: f64) -> Figure {
    Figure::inferred(n, n, n).by("M6 study; qwen-ane, M5 Max; ANEForge")
}

/// Results of a bilinear resize on the CPU, in 10^9/s: as many as Core ML's estimate for H16G says
/// (499.6 us for 64 channels to 64x64). Nobody published a measured time, so the range is a factor
/// of 2.
const CPU_RESIZED_GPS: Figure = Figure::inferred(0.5247, 0.2623, 1.049)
    .by("M6 study, data/03_compile/opdispatch, H16G, macOS 27");

/// The figures that all chips share, by name.
pub const FIGURES: [(&str, Figure); 10] = [
    ("transposed_gbps", TRANSPOSED_GBPS),
    ("task_us", TASK_US),
    ("short_rows_gps", SHORT_ROWS_GPS),
    ("topk_ns", TOPK_NS),
    ("cpu_resized_gps", CPU_RESIZED_GPS),
    ("compare_ns", COMPARE_NS),
    ("cpu_cache_bytes", CPU_CACHE_BYTES),
    ("softmax_passes", SOFTMAX_PASSES),
    ("norm_passes", NORM_PASSES),
    ("reduction_passes", REDUCTION_PASSES),
];

/// Sum the time of the ops of a placement.
pub fn run(view: &View<'_>, placement: &Placement) -> Total {
    walk(view, placement, &mut |_| {})
}

/// Seconds of each op of a placement, without what its activations and the call take, and what they
/// are made of, all of the reading of its weights among it; 0 where it is done on the way out of
/// another. Together they take as long as the ops of the call, of which some read weights while
/// others compute.
pub fn each(view: &View<'_>, placement: &Placement) -> Vec<(f64, Parts)> {
    let mut all = Vec::with_capacity(placement.ops.len());
    let total = walk(view, placement, &mut |terms| all.push(terms));
    let spilled = traffic::spilled(view, placement);
    let outgrown = |op: &Placed| -> f64 {
        let results = view.op(op.op).results.iter();
        let bytes: f64 = results.filter_map(|value| spilled.get(value)).sum();
        2.0 * bytes / (view.target.chip.activation_gbps.value * 1e9)
    };
    let alone: f64 = all.iter().map(|t| t.alone() - t.host).sum();
    let share = if alone > 0.0 {
        total.parts.on_ane() / alone
    } else {
        1.0
    };
    let with_results = all.into_iter().zip(&placement.ops).map(|(mut terms, op)| {
        let seconds = (terms.alone() - terms.host) * share + terms.host;
        let outgrown = outgrown(op);
        terms.activations += outgrown;
        (seconds + outgrown, terms)
    });
    with_results.collect()
}

/// Sum the time of the ops of a placement, and report those of each op to `report`. Weights
/// are read ahead, while the ops before them run.
fn walk(view: &View<'_>, placement: &Placement, report: &mut dyn FnMut(Parts)) -> Total {
    let chip = view.target.chip;
    let mut total = Total::default();
    let mut read: HashSet<ValueId> = HashSet::new();
    let mut columns: Vec<(f64, f64)> = Vec::new();
    // Results of elementwise ops on the engine.
    let mut elementwise: HashSet<ValueId> = HashSet::new();
    // Where each value was made.
    let mut producers: HashMap<ValueId, Backend> = HashMap::new();
    let (mut n_tasks, mut host_spread) = (0, 0.0);
    for op in &placement.ops {
        let (mut now, mut reading) = (Parts::default(), 0.0);
        let is_fused = is_fused(view, op, &producers);
        producers.extend(view.op(op.op).results.iter().map(|v| (*v, op.chosen)));
        if on_ane(op.chosen) && is_elementwise(op.work.kind) {
            elementwise.extend(view.op(op.op).results.iter().copied());
        }
        if !on_ane(op.chosen) {
            let took = elsewhere(view, op, is_fused, chip);
            now.host += took.seconds;
            host_spread += took.seconds * took.spread;
        } else if let Kind::Product(gemm, weight) = op.work.kind {
            let resident = !read.insert(weight);
            total.weight_bytes += gemm.bytes(chip, resident);
            reading = product(op, &gemm, resident, chip, &mut now);
            total.reading += reading;
            if gemm.stored.encoding != Encoding::Dense {
                total.compressed += reading;
            }
            if matches!(
                gemm.stored.encoding,
                Encoding::Palette { grouped: true, .. }
            ) {
                total.grouped += reading;
            }
            columns.push((gemm.positions, gemm.n_weights()));
            n_tasks += 1;
        } else if !is_fused {
            other(view, op, chip, &mut now);
            // Rows of a table and other constants come from memory, as weights do.
            reading = op.work.constant_bytes / (chip.weight_gbps.value * 1e9);
            total.reading += reading;
            total.weight_bytes += op.work.constant_bytes;
            if !renames(op.work.kind) && !is_chained(view, op, &elementwise) {
                // The first task starts with the call.
                now.tasks += if n_tasks > 0 {
                    TASK_US.value / 1e6
                } else {
                    0.0
                };
                n_tasks += 1;
            }
        }
        if !on_ane(op.chosen) {
            total.weight_bytes += op.work.constant_bytes + read_again(op);
            if let Kind::Product(gemm, _) = op.work.kind {
                columns.push((gemm.positions, gemm.n_weights()));
            }
        }
        total.parts.add(now);
        now.weights = reading;
        report(now);
    }
    total.parts.weights = (total.reading - total.parts.busy()).max(0.0);
    total.host_spread = host_spread / total.parts.host.max(f64::MIN_POSITIVE);
    total.most_positions = columns.iter().fold(0.0, |most, c| c.0.max(most));
    total.positions = most_common(columns);
    total
}

/// Seconds, with what the figures that they follow from leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Timed {
    seconds: f64,
    spread: f64,
}

impl Timed {
    fn by(seconds: f64, figure: Figure) -> Self {
        Self {
            seconds,
            spread: figure.spread(),
        }
    }

    fn or_longer(self, other: Self) -> Self {
        if other.seconds > self.seconds {
            other
        } else {
            self
        }
    }

    fn and(self, other: Self) -> Self {
        let seconds = self.seconds + other.seconds;
        let weighed = self.seconds * self.spread + other.seconds * other.spread;
        Self {
            seconds,
            spread: weighed / seconds.max(f64::MIN_POSITIVE),
        }
    }
}

/// What the CPU or GPU takes for an op. Starting one on the CPU is not charged: the 257 of Silero
/// VAD take 0.19 ms in all on M5 (FluidAudio). The time is not what the segmenter thinks: its CPUs
/// are several times slower at products than they are.
fn elsewhere(view: &View<'_>, op: &Placed, is_fused: bool, chip: &Chip) -> Timed {
    let (mil, is_free) = (view.op(op.op), op.work.kind == Kind::Free);
    if op.chosen == Backend::MpsGraph {
        // Activations are part of the kernel before them: charged by themselves, they make
        // MobileNet at batch 16 take twice the 1.5 ms that it does on M5 Max (erwinzhang7). So are
        // casts.
        if is_fused || is_free {
            return Timed::default();
        }
        return on_gpu(view, op, chip);
    }
    // A cast makes other bytes; what else is free gives the same ones another shape.
    if is_free && mil.def.name != "cast" {
        return Timed::default();
    }
    let (host, work) = (&chip.host, &op.work);
    let by_gbps = |bytes: f64| Timed::by(bytes / (chip.cpu_gbps.value * 1e9), chip.cpu_gbps);
    let bytes = by_gbps(work.moved_bytes());
    let gflops = match work.kind {
        Kind::Product(..) | Kind::Matmul if is_convolution(mil) => match taps(view, mil) {
            taps if taps > 1.0 => host.cpu_conv_gflops,
            _ if is_of_image(view, mil) => host.cpu_pointwise_gflops,
            _ => host.cpu_gflops,
        },
        Kind::Product(..) | Kind::Matmul | Kind::Attention | Kind::Recurrent(_) => host.cpu_gflops,
        Kind::Resize if is_interpolated(view, mil) => {
            let gps = CPU_RESIZED_GPS;
            return bytes.or_longer(Timed::by(work.outputs / (gps.value * 1e9), gps));
        }
        Kind::TopK => return bytes.or_longer(sorted(view, op)),
        _ => return bytes,
    };
    let products = Timed::by(work.flops / (gflops.value * 1e9), gflops);
    let Kind::Recurrent(steps) = work.kind else {
        return products.or_longer(bytes);
    };
    // Steps wait for each other.
    let step = host.cpu_step_us;
    let started = Timed::by(steps.n * step.value / 1e6, step);
    bytes.and(
        products
            .or_longer(started)
            .or_longer(by_gbps(read_again(op))),
    )
}

/// Bytes of weights that steps of a recurrent layer read again: on the CPU what its caches do not
/// hold, on the GPU all.
fn read_again(op: &Placed) -> f64 {
    let Kind::Recurrent(steps) = op.work.kind else {
        return 0.0;
    };
    let kept = if op.chosen == Backend::MpsGraph {
        0.0
    } else {
        CPU_CACHE_BYTES.value
    };
    (steps.n - 1.0).max(0.0) * (steps.weight_bytes - kept).max(0.0)
}

/// What a sort takes elsewhere than on the engine: each element is looked at, and those that are
/// wanted are put in order among those of their row.
fn sorted(view: &View<'_>, op: &Placed) -> Timed {
    let (mil, work) = (view.op(op.op), &op.work);
    let wanted = work.outputs / mil.results.len().max(1) as f64;
    let dims = mil.value_arg("x").map(|x| work::shape(view, x));
    let dims = dims.unwrap_or_default();
    let row = dims.get(work::axis(view, mil, dims.len(), -1));
    let row = row.copied().unwrap_or(1.0);
    let comparisons = work.inputs + wanted * libm::log2(row.max(1.0));
    Timed::by(comparisons * COMPARE_NS.value / 1e9, COMPARE_NS)
}

/// Whether an op weighs neighbors where it resizes.
fn is_interpolated(view: &View<'_>, op: &Op) -> bool {
    let mode = view
        .f
        .literal_arg(op, "sampling_mode")
        .and_then(|l| l.as_str());
    interpolates(op.def.name) && mode.is_none_or(|mode| mode != "nearest")
}

fn is_convolution(op: &Op) -> bool {
    op.def.name.starts_with("conv")
}

/// Positions of the kernel of a convolution.
fn taps(view: &View<'_>, op: &Op) -> f64 {
    let weight = op.value_arg("weight").map(|w| work::shape(view, w));
    weight.unwrap_or_default().iter().skip(2).product()
}

/// What the GPU takes for an op: its operations or its bytes, and starting it.
fn on_gpu(view: &View<'_>, op: &Placed, chip: &Chip) -> Timed {
    let (host, cores, work) = (&chip.host, f64::from(chip.gpu_cores), &op.work);
    let at = |amount: f64, giga: Figure| Timed::by(amount / (giga.value * 1e9 * cores), giga);
    let bytes = work.moved_bytes() + read_again(op);
    let launches = match work.kind {
        Kind::Recurrent(steps) => steps.n.max(1.0),
        _ => 1.0,
    };
    let mut seconds = at(work.flops, host.gpu_core_gflops).or_longer(at(bytes, host.gpu_core_gbps));
    if work.kind == Kind::TopK {
        seconds = seconds.or_longer(sorted(view, op));
    }
    let launch = host.gpu_launch_us;
    seconds.and(Timed::by(launches * launch.value / 1e6, launch))
}

/// Whether a convolution is one of an image, and no matrix product written as one.
fn is_of_image(view: &View<'_>, op: &Op) -> bool {
    let axes = |value: &ValueId| {
        work::shape(view, *value)
            .iter()
            .skip(2)
            .filter(|n| **n > 1.0)
            .count()
    };
    op.results.first().map_or(0, axes) > 1
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

/// Add the time of a product, and give the seconds of reading its weights.
fn product(op: &Placed, gemm: &Gemm, resident: bool, chip: &Chip, parts: &mut Parts) -> f64 {
    let seconds = gemm.seconds(chip, resident);
    let narrow = if gemm.int8 { 2.0 } else { 1.0 };
    let moved =
        (op.work.input_bytes + op.work.output_bytes) / narrow / (chip.local_gbps.value * 1e9);
    parts.compute += seconds.compute.max(moved);
    seconds.weights
}

/// Whether an op can be part of a chain that is one task.
fn is_elementwise(kind: Kind) -> bool {
    matches!(kind, Kind::Unary | Kind::Elementwise | Kind::Reduction)
}

/// Whether an elementwise op or a reduction is part of the task of the one before it: 64 squares in
/// a row, each with its sum, take as long as their elements (qwen-ane, M5 Max).
fn is_chained(view: &View<'_>, op: &Placed, elementwise: &HashSet<ValueId>) -> bool {
    is_elementwise(op.work.kind) && view.op(op.op).uses().any(|v| elementwise.contains(&v))
}

/// Whether an op is fused into the product before it, which runs in the same place.
fn is_fused(view: &View<'_>, op: &Placed, producers: &HashMap<ValueId, Backend>) -> bool {
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
    let is_its_own = view.users(x).len() == 1 && !view.f.body().outputs.contains(&x);
    by_product && is_its_own && producers.get(&x) == Some(&op.chosen)
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
            parts.elements += elements(SOFTMAX_PASSES.value * scores);
            // Scores and what softmax makes of them, written and read again.
            let bytes = 2.0 * scores;
            if bytes > RESIDENT_BYTES {
                parts.activations += 4.0 * bytes / (chip.activation_gbps.value * 1e9);
            }
        }
        Kind::Unary | Kind::Elementwise | Kind::Other | Kind::Resize => {
            parts.elements += elements(work.outputs)
        }
        Kind::Softmax => parts.elements += elements(SOFTMAX_PASSES.value * work.outputs),
        Kind::Normalization => parts.elements += elements(NORM_PASSES.value * work.outputs),
        Kind::Pool => parts.elements += elements(work.inputs.max(work.outputs)),
        Kind::Reduction => {
            // Rows of few elements take as long as longer ones.
            let long = elements(REDUCTION_PASSES.value * work.inputs);
            parts.elements += long.max(work.outputs / (SHORT_ROWS_GPS.value * 1e9));
        }
        Kind::Transpose => parts.elements += work.output_bytes / (TRANSPOSED_GBPS.value * 1e9),
        Kind::Copy => parts.elements += work.output_bytes / (chip.local_gbps.value * 1e9),
        Kind::TopK => parts.elements += TOPK_NS.value / 1e9 * work.inputs,
        Kind::State => {
            parts.activations +=
                (work.output_bytes.max(work.input_bytes)) / (chip.activation_gbps.value * 1e9);
        }
        Kind::Recurrent(steps) => parts.compute += steps.flops / peak,
        Kind::Free | Kind::Product(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bound;
    use super::Parts;

    #[test]
    fn a_call_is_bound_by_what_takes_time() {
        let parts = |elements, tasks, activations| Parts {
            compute: 1.5,
            elements,
            tasks,
            activations,
            ..Parts::default()
        };
        for (parts, bound) in [
            (parts(1.0, 1.1, 0.0), Bound::Tasks),
            (parts(1.1, 1.0, 0.0), Bound::Elements),
            (parts(0.5, 0.5, 0.6), Bound::Activations),
            (parts(0.5, 0.5, 0.1), Bound::Compute),
        ] {
            assert_eq!(parts.bound(), bound, "{parts:?}");
        }
    }
}

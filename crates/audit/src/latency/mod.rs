//! Predicts how long a call takes, with an interval, and what limits it.
//!
//! On the Neural Engine, time is summed op by op ([`ane`]): products by
//! [`stream`](crate::plan::stream), other ops by results, bytes or operations. Data that crosses
//! the edge of the Neural Engine or outgrows its memory is added ([`traffic`]), then a call, and
//! a hop for each further segment. Ops on the CPU take what their products or the bytes of the
//! chip's memory do, and so do those on the GPU, with a kernel each.
//!
//! Not covered: the first call after a pause (7 to 260 ms) and the ramp of the clock (up to 0.8
//! s; calls 0.4 ms apart are 2.5 times slower); heat; other work on the Neural Engine or on
//! memory; what an app does between calls; masked positions that A19 skips; programs that Core ML
//! silently takes off the Neural Engine, unless a rule finds it; packages of several programs.
//! Times on GPUs and CPUs are fitted to few whole networks.

pub mod ane;
pub mod energy;
pub mod spread;
pub mod traffic;
pub mod whole;

use crate::place::{Backend, Placement};
use crate::target::{Chip, Figure, Route};
use crate::view::View;
use crate::work::Kind;
use ane::Parts;
use energy::{Awake, Energy};
use traffic::Traffic;
use whole::{Class, Far};

/// What limits a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Products.
    Compute,
    /// Reading weights.
    Weights,
    /// Elementwise ops, reductions and permutations.
    Elements,
    /// Starting tasks: groups of ops that the engine runs one after the other.
    Tasks,
    /// Activations that cross the edge of the engine or outgrow its memory, and states.
    Activations,
    /// Entering and leaving the engine.
    #[default]
    Dispatch,
    /// Ops on the CPU or GPU.
    Host,
}

impl Bound {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Weights => "weights",
            Self::Elements => "elements",
            Self::Tasks => "tasks",
            Self::Activations => "activations",
            Self::Dispatch => "dispatch",
            Self::Host => "host",
        }
    }
}

/// Whether a program is small enough to load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadRisk {
    /// Smaller than any limit that is known.
    #[default]
    None,
    /// Larger than the least of the limits that sources give.
    Possible,
    /// Larger than the likely limit.
    Likely,
}

/// The predicted time of a call, and what it consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Expected milliseconds.
    pub ms: f64,
    /// Interval that holds about 80 % of calls, in milliseconds.
    pub interval_ms: (f64, f64),
    /// What limits it.
    pub bound: Bound,
    /// What the milliseconds are made of.
    pub parts: Parts,
    /// Calls a second, where each is a step of a decoder: all of its products have one position.
    pub tokens_per_second: Option<f64>,
    /// Positions of most of its products with weights.
    pub positions: f64,
    /// Milliseconds of reading the weights, hidden or not.
    pub reading_ms: f64,
    /// Bytes of weights that a call reads, those read again included.
    pub weight_bytes: f64,
    /// Bytes of activations that cross the edge of the engine.
    pub activation_bytes: f64,
    /// Segments on the engine.
    pub n_dispatches: usize,
    /// Bytes that go through memory or lie in it.
    pub memory: Traffic,
    /// Energy of the engine, of memory, and of the host's part of a call.
    pub energy: Energy,
    /// Whether it is small enough to load.
    pub load_risk: LoadRisk,
    /// True if it reads compressed weights (not fp16) on the engine.
    pub reads_compressed: bool,
    /// The class of whole models that it is of; `None` for smaller programs.
    pub class: Option<Class>,
    /// In what it is far from the whole models that were measured.
    pub far: Far,
}

/// What makes a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// An app in Swift or another compiled language, which passes buffers that Core ML can read.
    #[default]
    App,
    /// ANEForge's bindings, which copy inputs and outputs.
    AneForge,
    /// `predict` of coremltools, which passes arrays of numpy as they are and copies outputs.
    Predict,
}

/// Bytes a host copies into and out of surfaces, in 10^9/s: ANEForge's streaming figure of M5 and
/// M5 Pro and the companion book's of M1 and M5.
const COPY_GBPS: Figure = Figure::measured(24.0, 20.0, 24.0).by("ANEForge; companion book");

/// What `predict` of coremltools adds to a call beside its copies, in microseconds. One source
/// calls a model from Python and from Objective-C: 410 and 470 times a second, so 0.31 ms apart,
/// with images that `predict` copies too. A call through its bindings is taken to cost at least
/// 10 us; the value is the middle of both, in logarithms.
const PREDICT_US: Figure =
    Figure::inferred(56.0, 10.0, 313.0).by("issue 196 of Core ML Tools, 2021");

/// What each further segment on the engine adds, in microseconds. The sources give the ends; the
/// middle is inferred.
const HOP_US: Figure = Figure::inferred(375.0, 250.0, 500.0)
    .by("M6 study: constants of the segmenter, and what M4 and M6 need on the host");

/// A call of Core ML that stays on the CPU, in microseconds.
const CPU_CALL_US: Figure = Figure::measured(32.0, 32.0, 32.0).by("ane-bridge-rs, M5");

/// How many times as long as is predicted a function with open lengths takes elsewhere than on the
/// engine: at most 969 ms of 512 tokens over 165, twice what 256 of them take on the CPU.
const OPEN_LENGTHS: Figure = Figure::inferred(1.0, 1.0, 5.9)
    .by("CoreML-LLM, pull request 169: pplx-embed with lengths of 1 to 8192 on M4 Max");

/// The figures of a call that all chips share, by name.
pub const FIGURES: [(&str, Figure); 5] = [
    ("open_lengths", OPEN_LENGTHS),
    ("copy_gbps", COPY_GBPS),
    ("predict_us", PREDICT_US),
    ("hop_us", HOP_US),
    ("cpu_call_us", CPU_CALL_US),
];

/// Predict the time of a call.
pub fn predict(view: &View<'_>, placement: &Placement) -> Latency {
    predict_call(view, placement, Caller::App)
}

/// Predict the time of a call by `caller`.
pub fn predict_call(view: &View<'_>, placement: &Placement, caller: Caller) -> Latency {
    let chip = view.target.chip;
    let traffic = traffic::of(view, placement);
    let mut work = ane::run(view, placement);
    work.parts.activations += traffic.spilled_bytes * 2.0 / gbps(chip);
    // Inputs and outputs move while products are computed, but by the same wires as weights.
    let moved = traffic.edge_bytes / gbps(chip);
    let hidden = (work.parts.on_ane() - work.reading).max(0.0);
    work.parts.activations += (moved - hidden).max(0.0);
    let copied_bytes = match caller {
        Caller::App => 0.0,
        Caller::AneForge => traffic.call_bytes,
        Caller::Predict => traffic.output_bytes,
    };
    work.parts.copies = copied_bytes / (COPY_GBPS.value * 1e9);
    if caller == Caller::Predict {
        work.parts.caller = PREDICT_US.value / 1e6;
    }
    work.parts.dispatch = dispatch(view, placement, work.parts.on_ane());
    let parts = work.parts;
    let ms = parts.total() * 1e3;
    let class = whole::of(view, placement, &work);
    let far = class.map_or(Far::default(), |class| class.far(chip, &parts));
    let spread = spread::of(view, &work, class, far);
    let most = match has_one_size(view) || parts.host < parts.on_ane() {
        true => spread,
        false => spread.max(OPEN_LENGTHS.high),
    };
    let awake = Awake {
        seconds: awake(&parts),
        spread: libm::log(spread),
    };
    Latency {
        ms,
        interval_ms: (ms / spread, ms * most),
        bound: parts.bound(),
        parts,
        tokens_per_second: (work.most_positions == 1.0 && ms > 0.0 && has_one_size(view))
            .then(|| 1e3 / ms),
        positions: work.positions,
        reading_ms: work.reading * 1e3,
        weight_bytes: work.weight_bytes,
        activation_bytes: traffic.edge_bytes + 2.0 * traffic.spilled_bytes,
        n_dispatches: placement.n_dispatches(),
        memory: traffic,
        energy: energy::of(view, placement, awake, work.weight_bytes, &traffic),
        load_risk: load_risk(view, &traffic),
        reads_compressed: work.compressed > 0.0,
        class,
        far,
    }
}

/// Whether all inputs have lengths that are known: what has not is counted as one position, and is
/// none.
fn has_one_size(view: &View<'_>) -> bool {
    view.f.body().inputs.iter().all(|input| {
        view.shape(*input)
            .is_none_or(|dims| dims.iter().all(Option::is_some))
    })
}

fn gbps(chip: &Chip) -> f64 {
    chip.activation_gbps.value * 1e9
}

fn dispatch(view: &View<'_>, placement: &Placement, busy: f64) -> f64 {
    let n = match view.target.route {
        Route::Direct => placement.ops.len().min(1),
        Route::CoreMl => placement.n_dispatches(),
    };
    match n {
        0 if placement.ops.is_empty() => 0.0,
        0 => CPU_CALL_US.value / 1e6,
        n => {
            view.target.chip.dispatch_seconds(view.target.route, busy)
                + HOP_US.value / 1e6 * (n - 1) as f64
        }
    }
}

/// Seconds of a call that the engine is awake.
fn awake(parts: &Parts) -> f64 {
    if parts.on_ane() > 0.0 {
        parts.total() - parts.host
    } else {
        0.0
    }
}

/// Weights are held against the limits of one program, and all that is in memory against the memory
/// of the largest device with the chip.
fn load_risk(view: &View<'_>, traffic: &Traffic) -> LoadRisk {
    let limit = view.target.release.program_bytes(view.target.is_mobile());
    match traffic.program_bytes {
        _ if traffic.peak_bytes > view.target.chip.memory_bytes() => LoadRisk::Likely,
        b if b > limit.value => LoadRisk::Likely,
        b if b > limit.low => LoadRisk::Possible,
        _ => LoadRisk::None,
    }
}

/// Whether an op of a placement is on the engine.
fn on_ane(backend: Backend) -> bool {
    backend == Backend::Ane
}

/// Whether an op only gives a value another shape.
fn renames(kind: Kind) -> bool {
    matches!(kind, Kind::Free)
}

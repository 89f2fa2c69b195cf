//! Where the time of runs goes, by kind of step.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use thane_mil::program::ValueId;

use crate::exec::Frame;
use crate::exec_cache::third;
use crate::exec_encoder::HIDDEN;
use crate::fuse::Fused;
use crate::plan::{Kind, Plan, Step};
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Ops that compute much: one of them that no kernel was found for makes a program slow.
const HEAVY: [&str; 7] =
    ["conv", "conv_transpose", "linear", "matmul", "scaled_dot_product_attention", "softmax", "layer_norm"];

/// What the steps of all runs so far took; [`Cpu::load_profiled`](crate::Cpu::load_profiled) fills it.
#[derive(Debug, Default)]
pub struct Profile(Mutex<BTreeMap<(String, &'static str), Row>>);

/// The steps of one kind in one function.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Function name.
    pub function: String,
    /// Kernel, or the op where it is computed by itself.
    pub step: &'static str,
    /// Whether a kernel computes it, rather than the plain function of an op.
    pub is_fused: bool,
    /// Whether it is an op that computes much and that no kernel was found for.
    pub is_slow: bool,
    /// How often it ran.
    pub calls: u64,
    /// What that took; steps of a nested block count for the op that runs it too.
    pub time: Duration,
    /// Bytes that it read and wrote, constants as stored.
    pub bytes: f64,
    /// Operations of its products; a multiplication and an addition are two.
    pub flops: f64,
}

impl Profile {
    /// The rows, those that took longest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        rows
    }

    /// Forget what was measured.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn add(&self, plan: &Plan, begun: Begun, time: Duration, written: f64) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let function = plan.function.name.clone();
        let row = rows.entry((function.clone(), begun.name)).or_insert(Row {
            function,
            step: begun.name,
            is_fused: begun.is_fused,
            is_slow: begun.is_slow,
            calls: 0,
            time: Duration::ZERO,
            bytes: 0.0,
            flops: 0.0,
        });
        row.calls += 1;
        row.time += time;
        row.bytes += begun.read + written;
        row.flops += begun.flops;
    }
}

/// A step that runs.
pub struct Begun {
    name: &'static str,
    is_fused: bool,
    is_slow: bool,
    read: f64,
    flops: f64,
    start: Instant,
}

impl Begun {
    /// Look at a step before it runs: afterwards its operands are gone.
    pub fn new(frame: &Frame<'_>, plan: &Plan, step: &Step) -> Self {
        let (name, is_fused) = name(plan, step);
        let f = &plan.function;
        let uses = f.uses(step.op);
        let operands = match &step.kind {
            Kind::Fused(fused) => fused.operands(),
            _ => uses,
        };
        let read = operands.iter().filter_map(|v| frame.slots[v.index()].as_ref()).map(bytes).sum::<f64>();
        let (flops, constants) = match &step.kind {
            Kind::Fused(fused) => work(frame, fused),
            _ => (0.0, 0.0),
        };
        let is_slow = !is_fused && HEAVY.contains(&name);
        Self { name, is_fused, is_slow, read: read + constants, flops, start: Instant::now() }
    }

    /// With more operations, and more bytes that are read.
    pub fn with(mut self, (flops, read): (f64, f64)) -> Self {
        self.flops += flops;
        self.read += read;
        self
    }

    /// Count it.
    pub fn end<'a>(self, profile: &Profile, plan: &Plan, results: impl Iterator<Item = &'a Tensor>) {
        let time = self.start.elapsed();
        profile.add(plan, self, time, results.map(bytes).sum());
    }
}

fn bytes(tensor: &Tensor) -> f64 {
    tensor.dtype.byte_len(tensor.len()).unwrap_or(0) as f64
}

/// What a step is called, and whether a kernel computes it.
pub fn name(plan: &Plan, step: &Step) -> (&'static str, bool) {
    let fused = match &step.kind {
        Kind::Fused(fused) => fused,
        Kind::Plain(plain) | Kind::View(plain) | Kind::Add(plain, ..) => return (plain.def.name, false),
        _ => return (plan.function.op(step.op).def.name, false),
    };
    let name = match fused {
        Fused::Linear { .. } => "linear",
        Fused::HalfLinear { .. } => "linear of fp16",
        Fused::Gather { .. } => "gather of rows",
        Fused::RmsNorm { .. } => "rms norm",
        Fused::Rope { .. } => "rope",
        Fused::Gated { .. } => "gated activation",
        Fused::Append { .. } => "append to cache",
        Fused::Attend { .. } | Fused::Attention { .. } => "attention",
        Fused::LayerNorm { .. } => "layer norm",
        Fused::MatMul { .. } => "matmul",
        Fused::Pointwise { .. } => "1x1 convolution",
    };
    (name, true)
}

/// Operations of a kernel's products, and bytes of the constants, states among them, that it reads.
fn work(frame: &Frame<'_>, fused: &Fused) -> (f64, f64) {
    let shape = |v: &ValueId| frame.get(*v).map(|t| t.shape.clone()).unwrap_or_default();
    let len = |v: &ValueId| frame.get(*v).map_or(0.0, |t| t.len() as f64);
    match fused {
        Fused::Linear { x, products } => products.iter().fold((0.0, 0.0), |sum, product| {
            let (flops, bytes) = product_work(len(x), &product.weight);
            (sum.0 + flops, sum.1 + bytes)
        }),
        Fused::HalfLinear { x, weight, .. } | Fused::Pointwise { x, weight, .. } => product_work(len(x), weight),
        Fused::Gather { indices, weight } => {
            (0.0, len(indices) * weight.weight().bytes.len() as f64 / weight.n_rows.max(1) as f64)
        }
        Fused::Attend { query, key, .. } => {
            let keys = shape(key).get(2).map_or(0.0, |n| *n as f64);
            (4.0 * len(query) * keys, 0.0)
        }
        Fused::Attention { query, key, mask, end, .. } => attention(frame, *key, *end, *mask, len(query)),
        Fused::MatMul { x, y, transpose_y } => {
            let y = shape(y);
            let rows = if *transpose_y { y.len().checked_sub(2) } else { y.len().checked_sub(1) };
            (2.0 * len(x) * rows.and_then(|at| y.get(at)).map_or(0.0, |n| *n as f64), 0.0)
        }
        _ => (0.0, 0.0),
    }
}

/// Operations of a product with so many elements, and bytes of the matrix.
fn product_work(x_len: f64, weight: &Matrix) -> (f64, f64) {
    let places = x_len / weight.n_cols.max(1) as f64;
    (2.0 * places * (weight.n_rows * weight.n_cols) as f64, weight.n_bytes() as f64)
}

/// Operations of attention with a query of that many elements over the keys that its mask leaves, and bytes of the cache that it reads.
pub fn attention(frame: &Frame<'_>, key: usize, end: ValueId, mask: Option<ValueId>, query_len: f64) -> (f64, f64) {
    let (Some(state), Some(keys)) = (frame.states.get(key), frame.get(end).ok().and_then(|t| third(t).ok())) else {
        return (0.0, 0.0);
    };
    let keys = keys as f64;
    let share = keys / state.shape.get(2).map_or(1.0, |n| (*n).max(1) as f64);
    let mask = mask.and_then(|m| frame.get(m).ok()?.f32s()).filter(|mask| !mask.is_empty());
    let seen = mask.map_or(1.0, |mask| mask.iter().filter(|v| **v > HIDDEN).count() as f64 / mask.len() as f64);
    (4.0 * query_len * keys * seen, 2.0 * bytes(state) * share)
}

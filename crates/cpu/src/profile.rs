//! Where the time of runs goes, by kind of step.

use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use thane_kernels::BlockType;
use thane_mil::program::ValueId;

use crate::exec::Frame;
use crate::exec_cache::{Cached, third};
use crate::exec_encoder::HIDDEN;
use crate::fuse::{Fused, Then};
use crate::plan::{Kind, Plan, Step};
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Ops that compute much: one of them that no kernel was found for makes a program slow.
const HEAVY: [&str; 7] = [
    "conv",
    "conv_transpose",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
    "softmax",
    "layer_norm",
];

/// What the steps of all runs so far took; [`Cpu::load_profiled`](crate::Cpu::load_profiled) fills
/// it.
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
    /// Those of them that multiply bf16.
    pub bf16_flops: f64,
    /// Those of them that multiply bytes.
    pub byte_ops: f64,
}

impl Profile {
    /// The rows, those that took longest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        rows
    }

    /// Forget what was measured.
    pub fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
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
            bf16_flops: 0.0,
            byte_ops: 0.0,
        });
        row.calls += 1;
        row.time += time;
        row.bytes += begun.work.read + written;
        row.flops += begun.work.flops;
        row.bf16_flops += begun.work.bf16_flops;
        row.byte_ops += begun.work.byte_ops;
    }
}

/// A step that runs.
pub struct Begun {
    name: &'static str,
    is_fused: bool,
    is_slow: bool,
    work: Work,
    start: Instant,
}

/// What a step computes and reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Operations of products.
    flops: f64,
    /// Those of them that multiply bf16.
    bf16_flops: f64,
    /// Those of them that multiply bytes.
    byte_ops: f64,
    /// Bytes that are read.
    read: f64,
}

impl Add for Work {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let Self {
            flops,
            bf16_flops,
            byte_ops,
            read,
        } = self;
        Self {
            flops: flops + other.flops,
            bf16_flops: bf16_flops + other.bf16_flops,
            byte_ops: byte_ops + other.byte_ops,
            read: read + other.read,
        }
    }
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
        let read = operands
            .iter()
            .filter_map(|v| frame.slots[v.index()].as_ref())
            .map(bytes)
            .sum::<f64>();
        let own = match &step.kind {
            Kind::Fused(fused) => work(frame, fused),
            _ => Work::default(),
        };
        let is_slow = !is_fused && HEAVY.contains(&name);
        Self {
            name,
            is_fused,
            is_slow,
            work: own
                + Work {
                    read,
                    ..Work::default()
                },
            start: Instant::now(),
        }
    }

    /// With more work.
    pub fn with(self, more: Work) -> Self {
        Self {
            work: self.work + more,
            ..self
        }
    }

    /// With rows of its matrix ruled out, and so many bytes of it not read.
    pub fn screened(self, unread: f64) -> Self {
        let read = self.work.read - unread;
        Self {
            name: "linear, screened",
            work: Work { read, ..self.work },
            ..self
        }
    }

    /// Count it.
    pub fn end<'a>(
        self,
        profile: &Profile,
        plan: &Plan,
        results: impl Iterator<Item = &'a Tensor>,
    ) {
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
        Kind::Plain(plain) | Kind::View(plain) | Kind::Add(plain, ..) => {
            return (plain.def.name, false);
        }
        _ => return (plan.function.op(step.op).def.name, false),
    };
    let name = match fused {
        Fused::Linear {
            then: Then::Results,
            ..
        } => "linear",
        Fused::Linear {
            then: Then::Gated(_),
            ..
        } => "gated linear",
        Fused::Linear {
            then: Then::Added(_),
            ..
        } => "linear, added",
        Fused::Linear {
            then: Then::Activated(_),
            ..
        } => "linear, activated",
        Fused::HalfLinear { .. } => "linear of fp16",
        Fused::Gather { .. } => "gather of rows",
        Fused::RmsNorm { .. } => "rms norm",
        Fused::Rope { .. } => "rope",
        Fused::Gated { .. } => "gated activation",
        Fused::Append { .. } => "append to cache",
        Fused::Attend { .. } | Fused::Attention { .. } => "attention",
        Fused::RowsAttention(_) => "rope, append, attention",
        Fused::LayerNorm { .. } => "layer norm",
        Fused::MatMul { .. } => "matmul",
        Fused::Pointwise { .. } => "1x1 convolution",
    };
    (name, true)
}

/// What a kernel computes, and reads of constants, states among them.
fn work(frame: &Frame<'_>, fused: &Fused) -> Work {
    let shape = |v: &ValueId| frame.get(*v).map(|t| t.shape.clone()).unwrap_or_default();
    let len = |v: &ValueId| frame.get(*v).map_or(0.0, |t| t.len() as f64);
    match fused {
        Fused::Linear { x, products, .. } => {
            let works = products
                .iter()
                .map(|product| product_work(frame, len(x), &product.weight));
            works.fold(Work::default(), Add::add)
        }
        Fused::HalfLinear { x, weight, .. } | Fused::Pointwise { x, weight, .. } => {
            product_work(frame, len(x), weight)
        }
        Fused::Gather { indices, weight } => {
            let row_bytes = weight.weight().bytes.len() as f64 / weight.n_rows.max(1) as f64;
            Work {
                read: len(indices) * row_bytes,
                ..Work::default()
            }
        }
        Fused::Attend {
            query,
            key,
            by_row: [by_row, _],
            ..
        } => {
            let keys = shape(key)
                .get(if *by_row { 1 } else { 2 })
                .map_or(0.0, |n| *n as f64);
            Work {
                flops: 4.0 * len(query) * keys,
                ..Work::default()
            }
        }
        Fused::Attention { query, cached } => attention(frame, cached, len(query)),
        Fused::RowsAttention(rows) => attention(frame, &rows.cached, len(&rows.query.x)),
        Fused::MatMul { x, y, transpose_y } => {
            let y = shape(y);
            let rows = if *transpose_y {
                y.len().checked_sub(2)
            } else {
                y.len().checked_sub(1)
            };
            let n_rows = rows.and_then(|at| y.get(at)).map_or(0.0, |n| *n as f64);
            Work {
                flops: 2.0 * len(x) * n_rows,
                ..Work::default()
            }
        }
        _ => Work::default(),
    }
}

/// The product of a matrix with so many elements.
fn product_work(frame: &Frame<'_>, x_len: f64, weight: &Matrix) -> Work {
    let places = x_len / weight.n_cols.max(1) as f64;
    let flops = 2.0 * places * (weight.n_rows * weight.n_cols) as f64;
    let work = Work {
        flops,
        read: weight.n_bytes() as f64,
        ..Work::default()
    };
    match weight.ty {
        _ if weight.int8().is_some() => Work {
            byte_ops: flops,
            ..work
        },
        _ if !frame.numerics.is_fast() => work,
        BlockType::Bf16 if frame.context.isa().has_bf16() => Work {
            bf16_flops: flops,
            ..work
        },
        _ if weight.has_codes() => Work {
            byte_ops: flops,
            ..work
        },
        _ => work,
    }
}

/// Attention with a query of that many elements over the keys that its mask leaves.
pub fn attention(frame: &Frame<'_>, cached: &Cached, query_len: f64) -> Work {
    let Cached {
        states: [key, _],
        mask,
        end,
        ..
    } = *cached;
    let (Some(state), Some(keys)) = (
        frame.states.get(key),
        frame.get(end).ok().and_then(|t| third(t).ok()),
    ) else {
        return Work::default();
    };
    let keys = keys as f64;
    let share = keys / state.shape.get(2).map_or(1.0, |n| (*n).max(1) as f64);
    let mask = mask
        .and_then(|m| frame.get(m).ok()?.f32s())
        .filter(|mask| !mask.is_empty());
    let seen = mask.map_or(1.0, |mask| {
        mask.iter().filter(|v| **v > HIDDEN).count() as f64 / mask.len() as f64
    });
    Work {
        flops: 4.0 * query_len * keys * seen,
        read: 2.0 * bytes(state) * share,
        ..Work::default()
    }
}

//! What a step computes and reads, for the profile.

use std::ops::Add;

use thane_kernels::BlockType;
use thane_mil::program::ValueId;

use super::Frame;
use super::cache::third;
use super::encoder::HIDDEN;
use crate::ops;
use crate::plain::Plain;
use crate::profile::{Begun, StepKind, Work, bytes};
use crate::step::{
    Cached, Conv, Experts, Fused, Kept, Kernels, Kind, PastAttention, Plan, Product, Step, Then,
};
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

impl Frame<'_> {
    /// Look at a step before it runs: afterwards its operands are gone.
    pub fn begin(&self, plan: &Plan, step: &Step) -> Begun {
        let (name, is_fused) = name(plan, step);
        let is_by_element = match &step.kind {
            Kind::Plain(plain) | Kind::Add(plain, ..) => self.is_by_element(plain),
            _ => false,
        };
        let kind = StepKind {
            name,
            is_fused,
            is_slow: !is_fused && HEAVY.contains(&name),
            is_by_element,
            is_in_place: matches!(
                step.kind,
                Kind::View(_)
                    | Kind::Read(_)
                    | Kind::Write(..)
                    | Kind::Fused(Fused::StateUpdate(_))
            ),
        };
        let own = match &step.kind {
            Kind::Fused(fused) => work(self, fused),
            _ => Work::default(),
        };
        let read = Work {
            read: self.read_bytes(plan, step),
            ..Work::default()
        };
        Begun::new(step.op, kind, own + read)
    }

    /// The bytes of what a step reads of values; with those it writes, if it writes in place.
    fn read_bytes(&self, plan: &Plan, step: &Step) -> f64 {
        let operands = match &step.kind {
            Kind::View(_) | Kind::Read(_) | Kind::Write(..) => Vec::new(),
            // The rest of the state stays where it is.
            Kind::Fused(Fused::StateUpdate(update)) => vec![update.update; 2],
            Kind::Fused(fused) => fused.operands(),
            _ => plan.function.uses(step.op),
        };
        let values = operands.iter();
        values
            .filter_map(|v| self.slots[v.index()].as_ref())
            .map(bytes)
            .sum()
    }

    /// Whether the plain function of an op takes elements of these values one by one.
    fn is_by_element(&self, plain: &Plain) -> bool {
        let args = self.args(&plain.args).unwrap_or_default();
        !ops::goes_by_row(self.context, plain.def, &args)
    }

    /// The work of attention over a cache with a query of that many elements.
    pub fn attention_work(&self, cached: &Cached, query_len: f64) -> Work {
        attention(self, cached, query_len)
    }
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
        Fused::TopLinear { .. } => "linear, top k",
        Fused::HalfLinear { .. } => "linear of fp16",
        Fused::Gather { .. } => "gather of rows",
        Fused::RmsNorm { .. } | Fused::BoundedNorm { .. } => "rms norm",
        Fused::Rope { .. } | Fused::RopeRows { .. } | Fused::RopeHalves { .. } => "rope",
        Fused::Gated { .. } => "gated activation",
        Fused::Append { .. } => "append to cache",
        Fused::Attend { .. } | Fused::Attention { .. } | Fused::PastAttention(_) => "attention",
        Fused::StateUpdate(_) => "update of state",
        Fused::Conv(conv) if matches!(conv.then, Then::Activated(_)) => "convolution, activated",
        Fused::Conv(_) => "convolution",
        Fused::Pool { .. } => "pool",
        Fused::Recurrent(_) => "recurrent layer",
        Fused::RowsAttention(_) => "rope, append, attention",
        Fused::LayerNorm { .. } => "layer norm",
        Fused::GroupNorm { .. } => "group norm",
        Fused::Softmax { .. } => "softmax",
        Fused::Experts(_) => "experts",
        Fused::DeltaRule(_) => "delta rule",
        Fused::Depthwise { .. } => "depthwise convolution",
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
        Fused::Linear { x, .. } | Fused::TopLinear { x, .. } => {
            let works = fused
                .products()
                .iter()
                .map(|product| product_work(frame, len(x), &product.weight));
            works.fold(Work::default(), Add::add)
        }
        Fused::HalfLinear { x, weight, .. } | Fused::Pointwise { x, weight, .. } => {
            product_work(frame, len(x), weight)
        }
        Fused::Gather { indices, weight } => {
            let row_bytes = weight.n_bytes() as f64 / weight.stored.n_rows.max(1) as f64;
            Work {
                read: len(indices) * row_bytes,
                ..Work::default()
            }
        }
        Fused::Attend {
            query,
            key,
            by_row: [by_row, _],
            parts,
            ..
        } => {
            let keys = match parts {
                Some([keys, _]) => keys.shape.to_vec(),
                None => shape(key),
            };
            let keys = keys
                .get(if *by_row { 1 } else { 2 })
                .map_or(0.0, |n| *n as f64);
            Work {
                flops: 4.0 * len(query) * keys,
                ..Work::default()
            }
        }
        // A product with the key, one with the query, and what is written.
        Fused::DeltaRule(rule) => Work {
            flops: 7.0 * len(&rule.key) * shape(&rule.memory).last().map_or(0.0, |n| *n as f64),
            ..Work::default()
        },
        Fused::Experts(experts) => experts_work(frame, experts),
        Fused::Attention { query, cached } => attention(frame, cached, len(query)),
        Fused::RowsAttention(rows) => attention(frame, &rows.cached, len(&rows.query.x)),
        Fused::PastAttention(past) => past_work(past, len(&past.query), &shape(&past.key)),
        Fused::Recurrent(layer) => {
            let rows: usize = shape(&layer.x).iter().take(2).product();
            let works = layer
                .cells
                .iter()
                .flat_map(|cell| [&cell.input, &cell.state]);
            let works = works.map(|w| product_work(frame, (rows * w.stored.n_cols) as f64, w));
            works.fold(Work::default(), Add::add)
        }
        Fused::Conv(conv) => conv_work(conv, &shape(&conv.x)),
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

/// Attention with a query of that many elements over what is kept, in fp16, and new keys.
fn past_work(attention: &PastAttention, query_len: f64, new_keys: &[usize]) -> Work {
    let [_, n_past, _] = attention.past[0].shape;
    let n_new = new_keys.iter().rev().nth(1).map_or(0, |n| *n);
    let kept = attention
        .past
        .iter()
        .map(|past| 2 * past.shape.iter().product::<usize>());
    // The caller's values are operands.
    let is_state = matches!(attention.past[0].kept, Kept::State(_));
    Work {
        flops: 4.0 * query_len * (n_past + n_new) as f64,
        read: if is_state {
            kept.sum::<usize>() as f64
        } else {
            0.0
        },
        ..Work::default()
    }
}

/// A convolution, whose places are as many as the result has.
fn conv_work(conv: &Conv, shape: &[usize]) -> Work {
    let places = |output: &[Option<usize>]| output.iter().flatten().product::<usize>() as f64;
    let n = shape.first().map_or(0.0, |n| *n as f64);
    let (weights, places) = match &conv.kernels {
        Kernels::Stored { .. } => (0, 0.0),
        Kernels::Groups(weights) => {
            let len = weights.iter().map(|w| w.stored.n_rows * w.stored.n_cols);
            (len.sum::<usize>(), places(&conv.output))
        }
        Kernels::ByChannel(weight) => (weight.len(), places(&conv.output)),
        Kernels::Spread(weight) => {
            let inner = shape.get(1..shape.len() - 1).unwrap_or_default();
            let len = weight.stored.n_rows * weight.stored.n_cols;
            (len, inner.iter().product::<usize>() as f64)
        }
    };
    Work {
        flops: 2.0 * n * places * weights as f64,
        read: 4.0 * weights as f64,
        ..Work::default()
    }
}

/// The products of the experts that are chosen.
fn experts_work(frame: &Frame<'_>, experts: &Experts) -> Work {
    let choices = frame.choices(experts).unwrap_or_default();
    let products = choices.chunk_by(|a, b| a.0 == b.0).flat_map(|group| {
        let n_rows = group.len() as f64;
        experts.of(group[0].0).map(|product| (n_rows, product))
    });
    products
        .map(|(n_rows, Product { weight, .. })| {
            product_work(frame, n_rows * weight.stored.n_cols as f64, weight)
        })
        .fold(Work::default(), Add::add)
}

/// The product of a matrix with so many elements.
fn product_work(frame: &Frame<'_>, x_len: f64, weight: &Matrix) -> Work {
    let places = x_len / weight.stored.n_cols.max(1) as f64;
    let flops = 2.0 * places * (weight.stored.n_rows * weight.stored.n_cols) as f64;
    let work = Work {
        flops,
        read: weight.n_bytes() as f64,
        ..Work::default()
    };
    match weight.stored.ty {
        _ if weight.is_int8() => Work {
            byte_ops: flops,
            ..work
        },
        _ if !frame.numerics.is_fast() => work,
        BlockType::Bf16 if frame.context.isa().has_bf16() => Work {
            bf16_flops: flops,
            ..work
        },
        _ if weight.multiplies_codes() => Work {
            byte_ops: flops,
            ..work
        },
        _ => work,
    }
}

/// Attention with a query of that many elements over the keys that its mask leaves.
fn attention(frame: &Frame<'_>, cached: &Cached, query_len: f64) -> Work {
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

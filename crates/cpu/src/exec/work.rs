//! What a step computes and reads, for the profile.

use std::ops::Add;

use thane_kernels::BlockType;
use thane_mil::program::ValueId;

use super::Frame;
use super::cache::{Cached, HIDDEN, third};
use super::step::{Kind, Plan, Step};
use crate::ops;
use crate::plain::Plain;
use crate::profile::{Begun, StepKind, Work, bytes};
use crate::weight::{Matrix, Product};

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
            is_in_place: match &step.kind {
                Kind::View(_) | Kind::Read(_) | Kind::Write(..) => true,
                Kind::Fused(kernel) => kernel.facts().in_place.is_some(),
                _ => false,
            },
        };
        let own = match &step.kind {
            Kind::Fused(kernel) => kernel.work(self),
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
            Kind::Fused(kernel) => {
                let facts = kernel.facts();
                facts.in_place.map_or(facts.reads, |update| vec![update; 2])
            }
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

    /// The work of the product of a matrix with so many elements.
    pub fn product_work(&self, x_len: f64, weight: &Matrix) -> Work {
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
            _ if !self.numerics.is_fast() => work,
            BlockType::Bf16 if self.context.isa().has_bf16() => Work {
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

    /// The work of products with this value.
    pub fn products_work(&self, products: &[Product], x: ValueId) -> Work {
        let n = self.n_elements(x);
        let works = products.iter().map(|p| self.product_work(n, &p.weight));
        works.fold(Work::default(), Add::add)
    }

    /// The work of attention with a query of that many elements over the keys of a cache that its
    /// mask leaves.
    pub fn attention_work(&self, cached: &Cached, query_len: f64) -> Work {
        let Cached {
            states: [key, _],
            mask,
            end,
            ..
        } = *cached;
        let (Some(state), Some(keys)) = (
            self.states.get(key),
            self.get(end).ok().and_then(|t| third(t).ok()),
        ) else {
            return Work::default();
        };
        let keys = keys as f64;
        let share = keys / state.shape.get(2).map_or(1.0, |n| (*n).max(1) as f64);
        let mask = mask
            .and_then(|m| self.get(m).ok()?.f32s())
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

    /// The shape of a value; none where it is gone.
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.get(value).map(|t| t.shape.clone()).unwrap_or_default()
    }

    /// How many elements a value has.
    pub fn n_elements(&self, value: ValueId) -> f64 {
        self.get(value).map_or(0.0, |t| t.len() as f64)
    }
}

/// What a step is called, and whether a kernel computes it.
pub fn name(plan: &Plan, step: &Step) -> (&'static str, bool) {
    match &step.kind {
        Kind::Fused(kernel) => (kernel.facts().name, true),
        Kind::Plain(plain) | Kind::View(plain) | Kind::Add(plain, ..) => (plain.def.name, false),
        _ => (plan.function.op(step.op).def.name, false),
    }
}

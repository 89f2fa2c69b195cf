//! Breaks the time of a call into terms, by kind of op and by layer.

use serde::Serialize;

use super::FunctionRow;
use super::module::{is_within, layer};
use crate::latency::ane::Parts;

/// The time of a call, by kind of op and by layer; the largest first, layers in order.
#[derive(Debug, Default, Serialize)]
pub struct ExplainedRow {
    /// By the type of ops.
    pub kinds: Vec<TermsRow>,
    /// By layers of the checkpoint.
    pub layers: Vec<TermsRow>,
}

/// The time of some ops.
#[derive(Debug, Default, Serialize)]
pub struct TermsRow {
    /// The type of the ops, or their layer; empty for ops of no layer.
    pub name: String,
    /// How many ops.
    pub ops: usize,
    /// Their milliseconds of the call.
    pub ms: f64,
    /// Milliseconds of products, before weights are read beside them, as are the next fields.
    pub compute_ms: f64,
    /// Milliseconds of reading weights.
    pub reading_ms: f64,
    /// Milliseconds of elementwise ops, reductions and permutations.
    pub elements_ms: f64,
    /// Milliseconds of states.
    pub activations_ms: f64,
    /// Milliseconds of starting tasks.
    pub tasks_ms: f64,
    /// Milliseconds on the CPU and GPU.
    pub host_ms: f64,
}

impl TermsRow {
    fn add(&mut self, seconds: f64, terms: &Parts) {
        self.ops += 1;
        self.ms += seconds * 1e3;
        self.compute_ms += terms.compute * 1e3;
        self.reading_ms += terms.weights * 1e3;
        self.elements_ms += terms.elements * 1e3;
        self.activations_ms += terms.activations * 1e3;
        self.tasks_ms += terms.tasks * 1e3;
        self.host_ms += terms.host * 1e3;
    }

    /// The names of the terms, and their milliseconds.
    pub fn terms(&self) -> [(&'static str, f64); 6] {
        [
            ("products", self.compute_ms),
            ("weights", self.reading_ms),
            ("elements", self.elements_ms),
            ("activations", self.activations_ms),
            ("tasks", self.tasks_ms),
            ("host", self.host_ms),
        ]
    }
}

/// What a call takes besides its ops.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// Entering and leaving the engine, in milliseconds.
    pub dispatch: f64,
    /// Activations that cross the edge of the engine or outgrow its memory, in milliseconds.
    pub traffic: f64,
}

impl FunctionRow {
    /// What of a call its ops do not explain.
    pub fn overhead(&self) -> Overhead {
        let busy: f64 = self.table.iter().map(|op| op.ms).sum();
        let rest = (self.latency.ms - busy).max(0.0);
        let dispatch = self.latency.parts.dispatch_ms.min(rest);
        let traffic = rest - dispatch;
        // Less is what sums are rounded by.
        let is_some = traffic > 1e-9 * self.latency.ms;
        Overhead {
            dispatch,
            traffic: if is_some { traffic } else { 0.0 },
        }
    }
}

/// An op: its type, its module, its seconds of the call, and what they are made of.
pub type Timed<'a> = (&'static str, &'a str, f64, Parts);

/// Group the ops of a function.
pub fn explain<'a>(ops: impl Iterator<Item = Timed<'a>>) -> ExplainedRow {
    let mut explained = ExplainedRow::default();
    for (kind, place, seconds, terms) in ops {
        row(&mut explained.kinds, kind).add(seconds, &terms);
        let layer = layer(place.trim_end_matches('?')).unwrap_or_default();
        layer_row(&mut explained.layers, &layer).add(seconds, &terms);
    }
    explained.kinds.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    explained
}

/// The row of a layer, which names of weights and of ops may give with more or fewer modules around
/// it: `encoder_layer_0` and `bert.encoder.layer.0`. Its name is the shortest of them, as programs
/// spell it, so that a checkpoint and its package give one name: `layers_0` of `model.layers.0`.
fn layer_row<'a>(rows: &'a mut Vec<TermsRow>, name: &str) -> &'a mut TermsRow {
    let layer = name.replace(['.', '/'], "_");
    let layer = layer.strip_prefix("model_").unwrap_or(&layer);
    let is_same = |row: &TermsRow| {
        row.name == layer || is_within(&row.name, layer) || is_within(layer, &row.name)
    };
    match rows.iter().position(is_same) {
        Some(at) => {
            if layer.len() < rows[at].name.len() {
                layer.clone_into(&mut rows[at].name);
            }
            &mut rows[at]
        }
        None => row(rows, layer),
    }
}

fn row<'a>(rows: &'a mut Vec<TermsRow>, name: &str) -> &'a mut TermsRow {
    let at = rows
        .iter()
        .position(|row| row.name == name)
        .unwrap_or_else(|| {
            rows.push(TermsRow {
                name: name.to_owned(),
                ..TermsRow::default()
            });
            rows.len() - 1
        });
    &mut rows[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_one_row_whatever_is_named_around_it() {
        let places = [
            "encoder.layer.0.dense",
            "bert_encoder_layer_0_attention",
            "layers_10_mlp",
            "encoder.layer.1",
            "model.layers.1",
            "",
        ];
        let ops = places.map(|place| ("conv", place, 1.0, Parts::default()));
        let layers = explain(ops.into_iter()).layers;
        let rows: Vec<(&str, usize)> = layers.iter().map(|r| (&*r.name, r.ops)).collect();
        let expected = [
            ("encoder_layer_0", 2),
            ("layers_10", 1),
            ("encoder_layer_1", 1),
            ("layers_1", 1),
            ("", 1),
        ];
        assert_eq!(rows, expected);
    }
}

//! `GET /metrics`: what the server has done, in the text format of Prometheus.

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};

use super::Shared;
use crate::counts::{Counts, Durations};
use crate::model::{Kind, Served};

/// A metric of each model: name, help, value; `None` where a model has no such thing.
type Row = (&'static str, &'static str, fn(&Served) -> Option<u64>);

/// Numbers that go up and down.
const GAUGES: [Row; 4] = [
    ("thane_requests_running", "Requests that run.", |m| {
        Some(m.counts().running.get())
    }),
    ("thane_requests_waiting", "Requests that wait.", |m| {
        let running = m.counts().running.get();
        Some((m.places().n_taken() as u64).saturating_sub(running))
    }),
    ("thane_cache_slots", "KV caches of a language model.", |m| {
        n_slots(m)
    }),
    (
        "thane_cache_slots_in_use",
        "KV caches that a running request has.",
        |m| n_slots(m).map(|_| m.counts().running.get()),
    ),
];

/// Numbers that only grow.
const COUNTERS: [Row; 3] = [
    (
        "thane_prompt_tokens_total",
        "Tokens of prompts, once for all answers to one, and of embedded texts.",
        |m| Some(m.counts().prompt_tokens.get()),
    ),
    (
        "thane_prompt_tokens_cached_total",
        "Tokens of prompts that a KV cache held already.",
        |m| n_slots(m).map(|_| m.counts().cached_tokens.get()),
    ),
    ("thane_generated_tokens_total", "Tokens of answers.", |m| {
        n_slots(m).map(|_| m.counts().generated_tokens.get())
    }),
];

/// A histogram of each model: name, help, durations.
type Times = (
    &'static str,
    &'static str,
    fn(&Served) -> Option<&Durations>,
);

const HISTOGRAMS: [Times; 3] = [
    (
        "thane_time_to_first_token_seconds",
        "From the arrival of a request to its first text.",
        |m| n_slots(m).map(|_| &m.counts().first),
    ),
    (
        "thane_step_seconds",
        "Time of a step, which decodes a token of each running answer.",
        |m| n_slots(m).map(|_| &m.counts().step),
    ),
    (
        "thane_embed_seconds",
        "From the arrival of a request to its vectors.",
        |m| n_slots(m).is_none().then(|| &m.counts().first),
    ),
];

pub(super) async fn show(State(app): Shared) -> Response<Body> {
    let mut text = Text::default();
    let models = app.roster.loaded();
    let name = "thane_model_loaded";
    text.family(name, "Whether a model is loaded.", "gauge");
    for entry in &app.roster.entries() {
        let is_loaded = u8::from(entry.loaded().is_some());
        text.line(
            name,
            &format!("{{model={}}}", quoted(entry.id())),
            is_loaded,
        );
    }
    for (name, help, value) in GAUGES {
        text.values(name, help, "gauge", &models, value);
    }
    for (name, help, value) in COUNTERS {
        text.values(name, help, "counter", &models, value);
    }
    text.requests(&models);
    for times in HISTOGRAMS {
        text.histograms(times, &models);
    }
    let name = "process_resident_memory_bytes";
    if let Some(bytes) = (app.resident_bytes)() {
        text.family(name, "Memory of the process.", "gauge");
        text.line(name, "", bytes);
    }
    let mut response = Response::new(Body::from(text.0));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// KV caches of a language model.
fn n_slots(model: &Served) -> Option<u64> {
    match &model.task {
        Kind::Answers(answers) => Some(answers.n_slots as u64),
        Kind::Embeds(_) | Kind::Ranks(_) => None,
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn values(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        models: &[Arc<Served>],
        value: fn(&Served) -> Option<u64>,
    ) {
        self.family(name, help, kind);
        for model in models {
            if let Some(value) = value(model) {
                self.line(name, &format!("{{model={}}}", quoted(model.id())), value);
            }
        }
    }

    fn requests(&mut self, models: &[Arc<Served>]) {
        let name = "thane_requests_total";
        self.family(name, "Requests that have ended, by how.", "counter");
        for model in models {
            let counts: &Counts = model.counts();
            let outcomes = [
                ("completed", counts.completed.get()),
                ("failed", counts.failed.get()),
                ("cancelled", counts.cancelled.get()),
                ("refused", model.places().n_refused()),
            ];
            for (outcome, n) in outcomes {
                let labels = format!("{{model={},outcome=\"{outcome}\"}}", quoted(model.id()));
                self.line(name, &labels, n);
            }
        }
    }

    fn histograms(&mut self, (name, help, durations): Times, models: &[Arc<Served>]) {
        self.family(name, help, "histogram");
        let bounds = Durations::BOUNDS_S.map(|bound| bound.to_string());
        for model in models {
            let Some(durations) = durations(model) else {
                continue;
            };
            let id = quoted(model.id());
            let counts = durations.cumulative();
            let n = counts.last().copied().unwrap_or(0);
            let bounds = bounds.iter().map(String::as_str).chain(["+Inf"]);
            for (bound, n) in bounds.zip(&counts) {
                let labels = format!("{{model={id},le=\"{bound}\"}}");
                self.line(&format!("{name}_bucket"), &labels, n);
            }
            let labels = format!("{{model={id}}}");
            self.line(&format!("{name}_sum"), &labels, durations.sum_s());
            self.line(&format!("{name}_count"), &labels, n);
        }
    }
}

/// The value of a label.
fn quoted(value: &str) -> String {
    let escaped = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_quoted() {
        assert_eq!(quoted("a \"b\"\\\nc"), r#""a \"b\"\\\nc""#);
    }
}

//! What the commands say of another project's bundle: its layout, its parts and their calls.

use std::collections::BTreeMap;

use serde::Serialize;
use thane_audit::report::chain::ChainCall;
use thane_calls::Given;
use thane_engine::chain::Call;
use thane_mil::program::Program;
use thane_runtime::ForeignBundle;

use crate::output::{bytes, counted};

/// A bundle in JSON.
#[derive(Serialize)]
pub struct BundleRow {
    /// `ANEMLL` or `CoreML-LLM`.
    layout: &'static str,
    /// The version that the files name.
    version: Option<String>,
    architecture: String,
    layers: usize,
    vocabulary: usize,
    /// Tokens that the caches hold.
    context: usize,
    /// Bytes of states and caches.
    cache_bytes: usize,
    /// Whether only the most likely token is known.
    greedy_only: bool,
    parts: Vec<PartRow>,
    /// How the bundle is run.
    notes: Vec<String>,
}

/// A package of a bundle.
#[derive(Serialize)]
struct PartRow {
    name: String,
    file: String,
    functions: Vec<String>,
    /// Whether `thane run` runs it.
    runs: bool,
}

impl BundleRow {
    pub fn new(bundle: &ForeignBundle) -> Self {
        let names = |program: &Program| {
            let functions = program.functions().iter();
            functions.map(|f| f.name.clone()).collect()
        };
        let part = |part: &thane_runtime::ForeignPart| PartRow {
            name: part.name.clone(),
            file: part.file(),
            functions: names(part.program()),
            runs: part.is_run,
        };
        Self {
            layout: bundle.layout.name,
            version: bundle.version.clone(),
            architecture: bundle.info.architecture.clone(),
            layers: bundle.info.n_layers,
            vocabulary: bundle.info.vocab_size,
            context: bundle.info.context,
            cache_bytes: bundle.info.cache_bytes,
            greedy_only: bundle.is_greedy(),
            parts: bundle.parts.iter().map(part).collect(),
            notes: bundle.notes.clone(),
        }
    }

    /// A line for the bundle and one for each part and note.
    pub fn lines(&self) -> Vec<String> {
        let version = self.version.as_ref().map(|v| format!(" {v}"));
        let version = version.unwrap_or_default();
        let logits = match self.greedy_only {
            true => "only the most likely token",
            false => "all logits",
        };
        let mut lines = vec![
            format!(
                "bundle     {}{version}: {}, {}, gives {logits}",
                self.layout,
                self.architecture,
                counted(self.layers, "layer")
            ),
            format!(
                "context    {}, {} in the vocabulary, {} of caches",
                counted(self.context, "token"),
                counted(self.vocabulary, "token"),
                bytes(self.cache_bytes as u64)
            ),
        ];
        let widths = self.parts.iter().map(|part| part.name.len());
        let width = widths.max().unwrap_or(0);
        for part in &self.parts {
            let unused = if part.runs { "" } else { " (not run)" };
            lines.push(format!(
                "part       {:width$}  {}: {}{unused}",
                part.name,
                part.file,
                part.functions.join(", ")
            ));
        }
        lines.extend(self.notes.iter().map(|note| format!("note       {note}")));
        lines
    }
}

/// The calls of a bundle by the packages and functions that they run.
pub fn calls(bundle: &ForeignBundle) -> Vec<ChainCall> {
    let mut names = BTreeMap::new();
    for part in &bundle.parts {
        for f in part.program().functions() {
            names.insert(part.joined_name(f), format!("{}/{}", part.file(), f.name));
        }
    }
    let chain = &bundle.chain;
    let functions = |call: &Call| {
        let steps = call.steps.iter().chain(&call.head);
        let known = steps.filter_map(|step| names.get(&step.function).cloned());
        known.collect()
    };
    let calls = chain.calls.iter().map(|call| ChainCall {
        from: call.positions.start,
        call: thane_calls::Call {
            tokens: call.n_tokens,
            lanes: 1,
            context: call.positions.end,
            logits: call.gives.unwrap_or(Given::Last),
            functions: functions(call),
        },
    });
    calls.collect()
}

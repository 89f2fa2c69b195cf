//! ANEMLL bundles: `meta.yaml`, a package of embeddings, chunks of layers and a head, or one
//! package of all. Facts about the layout are in `docs/bundles.md`.

mod fit;
mod parameters;
mod write;

use std::ops::Range;
use std::path::Path;

use thane_engine::chain::{Call, Feed, Step};
use thane_models::ANEMLL;

use super::chaining::{Chaining, Run, call};
use super::fault::ForeignError;
use super::part::{self, ForeignPart};
use super::{ForeignLayout, ForeignWriter, Reading};
use crate::error::RuntimeError;
use crate::main_function::MAIN;
use fit::{check_block, check_chunks, logits};
use parameters::Parameters;

/// The layout of ANEMLL: `meta.yaml` beside embeddings, chunks and a head, or one package of all.
pub(super) static LAYOUT: ForeignLayout = ForeignLayout {
    name: NAME,
    description: META,
    read,
    writer: Some(ForeignWriter {
        project: NAME,
        form: "anemll",
        interface: &ANEMLL,
        files: &write::FILES,
        write: write::write,
    }),
};

/// The name of the project.
const NAME: &str = "ANEMLL";
/// The newest version of the layout that is known, and the one that is written.
const VERSION: &str = "0.3.5";
/// The file that names the parts.
const META: &str = "meta.yaml";
/// The part that looks up tokens, and its word in the names of packages.
const EMBEDDINGS: &str = "embeddings";
/// The part that gives logits.
const HEAD: &str = "head";
/// Its word in the names of packages.
const HEAD_FILE: &str = "lm_head";
/// The word of chunks of layers in the names of packages.
const CHUNKS_FILE: &str = "FFN_PF";

/// The part number `i` of chunks.
fn chunk(i: usize) -> String {
    format!("chunk{i}")
}

/// The package of chunk `i` of `n`, without extension. `stem` is what all chunks share.
fn chunk_file(stem: &str, i: usize, n: usize) -> String {
    format!("{stem}_chunk_{i:02}of{n:02}")
}

/// Reads and checks the bundle in `folder`.
fn read(folder: &Path) -> Result<Reading, RuntimeError> {
    let p = Parameters::read(folder)?;
    if p.flag("per_layer_inputs")? {
        let what = "per-layer inputs of the host are not supported";
        return Err(p.fault("per_layer_inputs", what).into());
    }
    let mut parts = Vec::new();
    if let Some(file) = p.text("monolithic_model") {
        parts.push(ForeignPart::open(folder, "model", file)?);
        return finish(folder, &p, parts, Shape::Monolithic);
    }
    let file = p.file("embeddings", EMBEDDINGS, "lut_embeddings");
    parts.push(ForeignPart::open(folder, EMBEDDINGS, &file)?);
    let (stem, n) = (p.chunk_stem(), p.n_chunks);
    for i in 1..=n {
        let file = chunk_file(&stem, i, n);
        parts.push(ForeignPart::open(folder, &chunk(i), &file)?);
    }
    // Functions of a cache that shifts may be in files of their own.
    for i in 1..=n {
        let stem = format!("{}_rot", chunk_file(&stem, i, n));
        if part::find(folder, &stem).is_some() || p.flag("split_rotate")? {
            let name = format!("{}_rotate", chunk(i));
            parts.push(ForeignPart::open(folder, &name, &stem)?);
        }
    }
    let file = p.file("lm_head", HEAD_FILE, "lut_lmhead");
    parts.push(ForeignPart::open(folder, HEAD, &file)?);
    finish(folder, &p, parts, Shape::Chunks)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Monolithic,
    Chunks,
}

/// The parts by what they do.
struct PartsByRole<'a> {
    embeddings: Option<&'a ForeignPart>,
    /// The files of each chunk.
    chunks: Vec<Vec<&'a ForeignPart>>,
    head: Option<&'a ForeignPart>,
}

impl<'a> PartsByRole<'a> {
    fn new(parts: &'a [ForeignPart], shape: Shape, n_chunks: usize) -> Self {
        let named = |name: &str| parts.iter().find(|part| part.name == name);
        let chunks = match shape {
            Shape::Monolithic => vec![parts.iter().collect()],
            Shape::Chunks => (1..=n_chunks)
                .map(|i| {
                    let name = chunk(i);
                    [named(&name), named(&format!("{name}_rotate"))]
                        .into_iter()
                        .flatten()
                        .collect()
                })
                .collect(),
        };
        Self {
            embeddings: named(EMBEDDINGS),
            chunks,
            head: named(HEAD),
        }
    }

    /// The part of each chunk that has the function.
    fn with(&self, function: &str) -> Option<Vec<&'a ForeignPart>> {
        let part = |files: &Vec<&'a ForeignPart>| {
            let mut having = files.iter().filter(|part| {
                let functions = part.program().functions();
                functions.iter().any(|f| f.name == function)
            });
            having.next().copied()
        };
        self.chunks.iter().map(part).collect()
    }

    /// The same, or an error of the first chunk that lacks the function.
    fn need(&self, function: &str) -> Result<Vec<&'a ForeignPart>, ForeignError> {
        if let Some(parts) = self.with(function) {
            return Ok(parts);
        }
        // A package of one function calls it `main`.
        let first = |files: &Vec<&'a ForeignPart>| {
            let part = files.first().copied();
            let part = part.ok_or_else(|| ForeignError::new(Path::new(META), "chunks"))?;
            part.need(function).map(|_| part)
        };
        self.chunks.iter().map(first).collect()
    }
}

fn finish(
    folder: &Path,
    p: &Parameters,
    all: Vec<ForeignPart>,
    shape: Shape,
) -> Result<Reading, RuntimeError> {
    let parts = PartsByRole::new(&all, shape, p.n_chunks);
    let infer = parts.need("infer")?;
    let (n_layers, window) = check_chunks(p, &infer)?;
    let plain_end = plain_end(p, &parts, &infer, window)?;
    let mut build = Builder::new(&parts);
    let mut calls = build.calls(p, &infer, plain_end)?;
    let head = match parts.head {
        Some(head) => vec![build.step(head, MAIN, 1, false)?],
        None => Vec::new(),
    };
    let give = |call: &&mut Call| call.gives.is_some();
    let giving = calls.iter_mut().filter(give);
    giving.for_each(|call| call.head.clone_from(&head));
    let (giver, function) = match parts.head {
        Some(head) => (head, MAIN),
        None => (infer[0], "infer"),
    };
    let (logits, vocab_size) = logits(p, parts.embeddings, giver, giver.need(function)?)?;
    let Builder {
        chaining, notes, ..
    } = build;
    let is_whole = plain_end == p.context;
    let architecture = p.meta.text("model_info.architecture");
    Ok(Reading {
        version: p.meta.text("model_info.version").map(str::to_owned),
        architecture: architecture.unwrap_or(&p.prefix).to_owned(),
        n_layers,
        vocab_size,
        context: p.context,
        chaining,
        calls,
        logits,
        rewind_limit: if is_whole { usize::MAX } else { plain_end },
        notes,
        tokenizer: folder.to_owned(),
        parts: all,
    })
}

/// The first position that a cache of local layers does not hold beside the ones before; the
/// context, if there is none. From there on, functions that shift the cache are needed.
fn plain_end(
    p: &Parameters,
    parts: &PartsByRole<'_>,
    infer: &[&ForeignPart],
    window: Option<usize>,
) -> Result<usize, ForeignError> {
    let window = window.filter(|window| *window < p.context);
    match window {
        None => Ok(p.context),
        Some(window) if parts.with("infer_rotate").is_some() => Ok(window),
        Some(window) => {
            let what = format!(
                "expected `infer_rotate`, because the local cache holds {window} of {} tokens, \
                 found no such function in every chunk",
                p.context
            );
            Err(infer[0].fault(infer[0].need("infer")?, what))
        }
    }
}

/// Builds the calls of a bundle.
struct Builder<'a, 'b> {
    parts: &'b PartsByRole<'a>,
    slot: usize,
    chaining: Chaining,
    notes: Vec<String>,
}

impl<'a, 'b> Builder<'a, 'b> {
    fn new(parts: &'b PartsByRole<'a>) -> Self {
        let mut chaining = Chaining::default();
        Self {
            parts,
            slot: chaining.slot("hidden_states"),
            chaining,
            notes: Vec::new(),
        }
    }

    /// Blocks where they are exact, single tokens, and single tokens after `plain_end`.
    fn calls(
        &mut self,
        p: &Parameters,
        infer: &[&ForeignPart],
        plain_end: usize,
    ) -> Result<Vec<Call>, ForeignError> {
        let mut calls = Vec::new();
        let is_exact = p.flag("prefill_dynamic_slice")? || p.flag("update_mask_prefill")?;
        let prefill = self.parts.with("prefill");
        if let Some(prefill) = prefill.as_ref().filter(|_| is_exact) {
            check_block(p, prefill[0])?;
            let gives_last = p.flag("prefill_last_token_output")?;
            calls.push(self.call(prefill, "prefill", p.block, 0..plain_end, gives_last)?);
        } else if prefill.is_some() {
            self.notes.push(format!(
                "prompts are computed token by token: {META} has neither prefill_dynamic_slice \
                 nor update_mask_prefill, without which blocks are not exact"
            ));
        }
        calls.push(self.call(infer, "infer", 1, 0..plain_end, true)?);
        let rotate = self.parts.with("infer_rotate");
        if let Some(rotate) = rotate.filter(|_| plain_end < p.context) {
            calls.push(self.call(&rotate, "infer_rotate", 1, plain_end..p.context, true)?);
            self.notes.push(format!(
                "tokens from position {plain_end} on are computed one by one: in blocks, local \
                 attention would see later tokens"
            ));
        }
        Ok(calls)
    }

    /// A call of one function of each chunk, after the embeddings.
    fn call(
        &mut self,
        chunks: &[&ForeignPart],
        function: &str,
        n_tokens: usize,
        positions: Range<usize>,
        gives_hidden: bool,
    ) -> Result<Call, ForeignError> {
        let mut steps = Vec::new();
        if let Some(embeddings) = self.parts.embeddings {
            steps.push(self.step(embeddings, MAIN, n_tokens, true)?);
        }
        for (i, chunk) in chunks.iter().enumerate() {
            let is_last = i + 1 == chunks.len();
            // One package of all gives logits.
            let keeps = self.parts.head.is_some() && (!is_last || gives_hidden);
            steps.push(self.step(chunk, function, n_tokens, keeps)?);
        }
        Ok(call(n_tokens, positions, gives_hidden, steps))
    }

    fn step(
        &mut self,
        part: &ForeignPart,
        function: &str,
        n_tokens: usize,
        keeps: bool,
    ) -> Result<Step, ForeignError> {
        let slot = self.slot;
        let feed = move |input: &str| match input {
            "input_ids" => Some(Feed::Tokens),
            "hidden_states" => Some(Feed::Slot(slot)),
            "position_ids" => Some(Feed::Positions),
            "current_pos" => Some(Feed::Position),
            "causal_mask" => Some(Feed::CausalMask),
            "update_mask" => Some(Feed::WriteMask),
            _ => None,
        };
        let found = part.need(function)?;
        let names = ["output_hidden_states", "hidden_states"];
        let output = part::outputs(found)
            .map(|port| port.name)
            .find(|name| names.contains(name))
            .unwrap_or(names[0]);
        let keeps = keeps.then(|| (output.to_owned(), slot));
        self.chaining.step(Run {
            part,
            function,
            n_tokens,
            feed: &feed,
            keeps: keeps.into_iter().collect(),
        })
    }
}

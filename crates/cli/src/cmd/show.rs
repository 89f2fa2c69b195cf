//! `thane show`: what a model is.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::model::{self, ProgramFlags};
use crate::output::{bytes, counted};

/// Show what a model is: architecture, parameters, quantisation, context, memory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalogue.
    model: String,
    /// List every tensor.
    #[arg(long, value_parser = clap::builder::FalseyValueParser::new())]
    tensors: bool,
    #[command(flatten)]
    flags: ProgramFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    path: &'a std::path::Path,
    architecture: &'a str,
    layers: usize,
    vocabulary: usize,
    /// Numbers in all tensors.
    parameters: u64,
    /// Bytes of all tensors as they are stored.
    weight_bytes: u64,
    /// Positions that the model was made for.
    max_context: usize,
    /// Tokens that the cache holds with these flags.
    context: usize,
    /// Bytes of the cache when it is full.
    cache_bytes: usize,
    /// Weights and a full cache.
    memory_bytes: u64,
    /// By element type: how many tensors, numbers and bytes.
    quantisation: BTreeMap<&'static str, Share>,
    /// Every tensor, in the order of names.
    tensors: Vec<TensorRow<'a>>,
}

/// What one element type holds.
#[derive(Default, Serialize)]
struct Share {
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

/// One tensor.
#[derive(Serialize)]
struct TensorRow<'a> {
    name: &'a str,
    r#type: &'static str,
    /// Outermost dimension first.
    shape: &'a [usize],
    bytes: usize,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let opened = model::open(&args.model, &args.flags.options(false), app)?;
    let mut quantisation: BTreeMap<&'static str, Share> = BTreeMap::new();
    let mut tensors = Vec::new();
    for t in opened.checkpoint()?.tensors.values() {
        let share = quantisation.entry(t.ty.name()).or_default();
        share.tensors += 1;
        share.parameters += t.element_count() as u64;
        share.bytes += t.bytes.len() as u64;
        tensors.push(TensorRow { name: &t.name, r#type: t.ty.name(), shape: &t.shape, bytes: t.bytes.len() });
    }
    let info = &opened.model.info;
    let weight_bytes = quantisation.values().map(|s| s.bytes).sum();
    let report = Report {
        model: &opened.name,
        path: &opened.path,
        architecture: &info.architecture,
        layers: info.n_layers,
        vocabulary: info.vocab_size,
        parameters: quantisation.values().map(|s| s.parameters).sum(),
        weight_bytes,
        max_context: info.max_context,
        context: info.context,
        cache_bytes: info.cache_bytes,
        memory_bytes: weight_bytes + info.cache_bytes as u64,
        quantisation,
        tensors,
    };
    if app.output.is_json() {
        return Ok(app.output.json(&report)?);
    }
    Ok(app.output.data(&text(&report, args.tensors))?)
}

fn text(r: &Report<'_>, all: bool) -> String {
    let mut lines = vec![
        format!("model         {}", r.model),
        format!("file          {}", r.path.display()),
        format!(
            "architecture  {}, {}, {} in the vocabulary",
            r.architecture,
            counted(r.layers, "layer"),
            counted(r.vocabulary, "token")
        ),
        format!("parameters    {:.1} million in {}", r.parameters as f64 / 1e6, bytes(r.weight_bytes)),
        format!("context       {} of {} tokens", r.context, r.max_context),
        format!("memory        {} with a full cache of {}", bytes(r.memory_bytes), bytes(r.cache_bytes as u64)),
    ];
    let mut label = "quantisation";
    for (ty, share) in &r.quantisation {
        let part = 100.0 * share.bytes as f64 / r.weight_bytes.max(1) as f64;
        let tensors = counted(share.tensors, "tensor");
        lines.push(format!("{label:<14}{ty:<7} {tensors:>12}, {} ({part:.0} %)", bytes(share.bytes)));
        label = "";
    }
    if all {
        lines.push(String::new());
        lines.extend(r.tensors.iter().map(|t| format!("{:<7} {:<20} {}", t.r#type, format!("{:?}", t.shape), t.name)));
    }
    lines.join("\n") + "\n"
}

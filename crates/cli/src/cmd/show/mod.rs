//! `thane show`: what a model is and does, its architecture, size and types.

mod families;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde::Serialize;
use thane_mil::budget::Budget;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Encoder, EncoderOptions, ModelError, Target};
use thane_runtime::{Bundle, Files, LanguageData, Model, Origin, RuntimeError, Task as ModelTask};

use crate::app::App;
use crate::exit::Outcome;
use crate::model::ProgramFlags;
use crate::output::{bytes, counted};
use crate::screen::in_a_row;

/// Show a model's task, architecture, parameters, quantization, context and memory.
///
/// The model may be a checkpoint, or a package or bundle that Thane can run.
///
/// With --families, list the model families that can be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    #[arg(required_unless_present = "families")]
    model: Option<String>,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// List the model families that can be read, instead of a model.
    #[arg(long, conflicts_with_all = ["model", "tensors"])]
    families: bool,
    #[command(flatten)]
    flags: ProgramFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    path: &'a Path,
    /// `checkpoint`, `package` or `bundle`.
    kind: &'static str,
    /// `generate`, `embed` or `rerank`.
    task: &'static str,
    architecture: &'a str,
    layers: usize,
    vocabulary: usize,
    /// Whether the model has a tokenizer that can be read.
    tokenizer: bool,
    /// Why the tokenizer cannot be read; null if it can, or if there is none.
    tokenizer_error: Option<String>,
    /// Number of parameters; null for packages and bundles.
    parameters: Option<u64>,
    /// Bytes of all tensors in the file, or of a package's weight files.
    weight_bytes: u64,
    #[serde(flatten)]
    facts: Facts<'a>,
    /// Tensors, parameters and bytes by element type.
    quantization: BTreeMap<&'static str, Share>,
    /// Every tensor, sorted by name.
    tensors: Vec<TensorRow<'a>>,
}

/// The facts of a language model, an embedding model or a reranker.
#[derive(Serialize)]
#[serde(untagged)]
enum Facts<'a> {
    Generate {
        /// Positions that the model was made for.
        max_context: usize,
        /// Tokens that the KV cache holds with these flags.
        context: usize,
        /// Bytes of the full KV cache.
        cache_bytes: usize,
        /// Bytes of weights and full KV cache.
        memory_bytes: u64,
    },
    Embed {
        /// Dimensions of a vector.
        dimensions: usize,
        /// How many of them are kept by default; null for all.
        truncate_dim: Option<usize>,
        /// Most tokens of a text that the model was made for.
        max_tokens: usize,
        /// Number of positions of the model.
        positions: usize,
        pooling: String,
        /// Whether vectors are normalized to length 1.
        normalize: bool,
        /// Prompts to put before a text, by the name of the task.
        prompts: &'a BTreeMap<String, String>,
    },
    Rerank {
        /// Scores of a pair of texts; `thane rerank` takes models of one.
        labels: usize,
        /// Most tokens of a query and a text together that the model was made for.
        max_tokens: usize,
        /// Number of positions of the model.
        positions: usize,
    },
}

impl Facts<'_> {
    fn task(&self) -> &'static str {
        match self {
            Self::Generate { .. } => "generate",
            Self::Embed { .. } => "embed",
            Self::Rerank { .. } => "rerank",
        }
    }
}

/// What a report says of any model.
struct Common<'a> {
    name: &'a str,
    path: &'a Path,
    kind: &'static str,
    architecture: &'a str,
    layers: usize,
    vocabulary: usize,
    tokenizer: Result<bool, String>,
    /// None for packages and bundles.
    checkpoint: Option<&'a Checkpoint>,
}

impl<'a> Common<'a> {
    fn of_checkpoint(
        model: &'a Model,
        checkpoint: &'a Checkpoint,
        architecture: &'a str,
        (layers, vocabulary): (usize, usize),
        budget: &Budget,
    ) -> Self {
        Self {
            name: &model.name,
            path: &model.path,
            kind: "checkpoint",
            architecture,
            layers,
            vocabulary,
            tokenizer: tokenizer(LanguageData::from_checkpoint(
                checkpoint, vocabulary, budget,
            )),
            checkpoint: Some(checkpoint),
        }
    }

    fn print(self, facts: Facts<'a>, args: &Args, app: &App) -> Outcome {
        let text = |report: &Report<'_>| text(report, args.tensors);
        Ok(app.output.report(&self.report(facts), text)?)
    }

    fn report(self, mut facts: Facts<'a>) -> Report<'a> {
        let (quantization, tensors) = self.checkpoint.map(stored).unwrap_or_default();
        let (tokenizer, tokenizer_error) = match self.tokenizer {
            Ok(is_there) => (is_there, None),
            Err(fault) => (false, Some(fault)),
        };
        let total = |part: fn(&Share) -> u64| quantization.values().map(part).sum::<u64>();
        let weight_bytes = match self.checkpoint {
            Some(_) => total(|s| s.bytes),
            None => weight_files(self.path),
        };
        if let Facts::Generate { memory_bytes, .. } = &mut facts {
            *memory_bytes += weight_bytes;
        }
        Report {
            model: self.name,
            path: self.path,
            kind: self.kind,
            task: facts.task(),
            architecture: self.architecture,
            layers: self.layers,
            vocabulary: self.vocabulary,
            tokenizer,
            tokenizer_error,
            parameters: self.checkpoint.map(|_| total(|s| s.parameters)),
            weight_bytes,
            facts,
            quantization,
            tensors,
        }
    }
}

/// The tensors of one element type.
#[derive(Default, Serialize)]
struct Share {
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorRow<'a> {
    name: &'a str,
    r#type: &'static str,
    /// Outermost dimension first.
    shape: &'a [usize],
    bytes: usize,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let Some(model) = &args.model else {
        return families::show(app);
    };
    let options = args.flags.options(false);
    let opened = Model::open(model, &app.hub, app.output.as_ref())?;
    if let (true, Files::Checkpoint(checkpoint)) = (opened.is_reranker()?, &opened.files) {
        return show_reranker(args, &opened, checkpoint, app);
    }
    if opened.task()? == ModelTask::Embed {
        return show_encoder(args, &opened, app);
    }
    let opened = opened.language_model(&options, app.output.as_ref())?;
    let info = &opened.info;
    let (kind, checkpoint) = match &opened.origin {
        Origin::Checkpoint(checkpoint) => ("checkpoint", Some(checkpoint.as_ref())),
        Origin::Package(_) => ("package", None),
        Origin::Foreign(_) => ("bundle", None),
    };
    let common = Common {
        name: &opened.name,
        path: &opened.path,
        kind,
        architecture: &info.architecture,
        layers: info.n_layers,
        vocabulary: info.vocab_size,
        tokenizer: tokenizer(opened.language_data(&app.budget)),
        checkpoint,
    };
    let facts = Facts::Generate {
        max_context: info.max_context,
        context: info.context,
        cache_bytes: info.cache_bytes,
        memory_bytes: info.cache_bytes as u64,
    };
    common.print(facts, args, app)
}

fn show_encoder(args: &Args, model: &Model, app: &App) -> Outcome {
    let Files::Checkpoint(checkpoint) = &model.files else {
        return show_bundle(args, model, app);
    };
    match thane_models::build_encoder(checkpoint, &EncoderOptions::default()) {
        Ok(encoder) => show_embedder(args, model, checkpoint, &encoder, app),
        Err(ModelError::Classifies(_)) => show_reranker(args, model, checkpoint, app),
        Err(e) => Err(RuntimeError::model(&model.path, e).into()),
    }
}

fn show_embedder(
    args: &Args,
    model: &Model,
    checkpoint: &Checkpoint,
    encoder: &Encoder,
    app: &App,
) -> Outcome {
    let info = &encoder.info;
    let sizes = (info.n_layers, info.vocab_size);
    let common = Common::of_checkpoint(model, checkpoint, &info.architecture, sizes, &app.budget);
    let facts = Facts::Embed {
        dimensions: info.dim,
        truncate_dim: info.truncate_dim,
        max_tokens: info.max_tokens,
        positions: info.n_positions,
        pooling: info.pooling.to_string(),
        normalize: info.normalize,
        prompts: &info.prompts,
    };
    common.print(facts, args, app)
}

fn show_reranker(args: &Args, model: &Model, checkpoint: &Checkpoint, app: &App) -> Outcome {
    let classifier = thane_models::build_classifier(checkpoint, &Target::Portable);
    let classifier = classifier.map_err(|e| RuntimeError::model(&model.path, e))?;
    let info = classifier.info;
    let sizes = (info.n_layers, info.vocab_size);
    let common = Common::of_checkpoint(model, checkpoint, &info.architecture, sizes, &app.budget);
    let facts = Facts::Rerank {
        labels: info.n_labels,
        max_tokens: info.max_tokens,
        positions: info.n_positions,
    };
    common.print(facts, args, app)
}

/// A package, or a folder of packages, of an embedding model.
fn show_bundle(args: &Args, model: &Model, app: &App) -> Outcome {
    let bundle = Bundle::open(&model.path)?;
    let made = &bundle.facts;
    let common = Common {
        name: &model.name,
        path: &model.path,
        kind: match model.files {
            Files::Package => "package",
            _ => "bundle",
        },
        architecture: &made.architecture,
        layers: made.layers,
        vocabulary: made.vocabulary,
        tokenizer: Ok(bundle.language.is_some()),
        checkpoint: None,
    };
    let facts = Facts::Embed {
        dimensions: made.dimensions,
        truncate_dim: made.truncate_dim,
        max_tokens: made.max_tokens,
        positions: made.positions,
        pooling: made.pooling.clone(),
        normalize: made.normalize,
        prompts: &made.prompts,
    };
    common.print(facts, args, app)
}

/// Whether there is a tokenizer, or why it cannot be read.
fn tokenizer<E: Error + Send + Sync + 'static>(
    data: Result<Option<LanguageData>, E>,
) -> Result<bool, String> {
    let is_there = data.map(|data| data.is_some());
    is_there.map_err(|e| format!("{:#}", anyhow::Error::new(e)))
}

/// Bytes of the weight files in a package or in the packages of a folder. What cannot be read
/// counts as nothing.
fn weight_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |path: &Path| match path.extension() {
        _ if path.is_dir() => weight_files(path),
        Some(end) if end == "bin" => path.metadata().map_or(0, |found| found.len()),
        _ => 0,
    };
    entries.map(|entry| bytes(&entry.path())).sum()
}

/// The tensors of a checkpoint, by element type and one by one.
fn stored(checkpoint: &Checkpoint) -> (BTreeMap<&'static str, Share>, Vec<TensorRow<'_>>) {
    let mut quantization: BTreeMap<&'static str, Share> = BTreeMap::new();
    let mut tensors = Vec::new();
    for t in checkpoint.tensors.values() {
        let share = quantization.entry(t.ty.name()).or_default();
        share.tensors += 1;
        share.parameters += t.element_count() as u64;
        share.bytes += t.bytes.len() as u64;
        tensors.push(TensorRow {
            name: &t.name,
            r#type: t.ty.name(),
            shape: &t.shape,
            bytes: t.bytes.len(),
        });
    }
    (quantization, tensors)
}

/// The lines that every model has.
fn head(r: &Report<'_>) -> Vec<String> {
    let mut lines = vec![
        format!("model         {}", in_a_row(r.model)),
        format!("file          {}", in_a_row(&r.path.to_string_lossy())),
    ];
    match r.kind {
        "package" => lines.push("kind          Core ML package".to_owned()),
        "bundle" => lines.push("kind          bundle of Core ML packages".to_owned()),
        _ => {}
    }
    let task = match r.task {
        "embed" => "makes vectors of texts (thane embed)",
        "rerank" => "scores pairs of texts (thane rerank)",
        _ => "generates text (thane run)",
    };
    lines.push(format!("task          {task}"));
    lines.push(format!(
        "architecture  {}, {}, {} in the vocabulary",
        r.architecture,
        counted(r.layers, "layer"),
        counted(r.vocabulary, "token")
    ));
    lines.push(match (&r.tokenizer_error, r.tokenizer) {
        (Some(fault), _) => format!("tokenizer     cannot be read: {}", in_a_row(fault)),
        (None, true) => "tokenizer     yes".to_owned(),
        (None, false) => "tokenizer     none, so the model takes no text".to_owned(),
    });
    let weights = bytes(r.weight_bytes);
    lines.push(match r.parameters {
        Some(n) => format!("parameters    {:.1} million in {weights}", n as f64 / 1e6),
        None => format!("weights       {weights}"),
    });
    lines
}

fn facts(r: &Report<'_>) -> Vec<String> {
    match &r.facts {
        Facts::Generate {
            max_context,
            context,
            cache_bytes,
            memory_bytes,
        } => vec![
            format!("context       {context} of {max_context} tokens"),
            format!(
                "memory        {} with a full cache of {}",
                bytes(*memory_bytes),
                bytes(*cache_bytes as u64)
            ),
        ],
        Facts::Embed {
            dimensions,
            truncate_dim,
            max_tokens,
            positions,
            pooling,
            normalize,
            prompts,
        } => {
            let length = match normalize {
                true => "of length 1",
                false => "as long as they come",
            };
            let kept = match truncate_dim {
                Some(n) => format!(", of which {n} are kept"),
                None => String::new(),
            };
            let mut lines = vec![
                format!("vectors       {dimensions} dimensions{kept}, {pooling} pooling, {length}"),
                format!(
                    "texts         {max_tokens} tokens at most; the model has {positions} positions"
                ),
            ];
            let prompts = prompts.iter();
            lines.extend(prompts.map(|(task, text)| format!("prompt        {task}: {text:?}")));
            lines
        }
        Facts::Rerank {
            labels,
            max_tokens,
            positions,
        } => vec![
            format!(
                "scores        {} for a pair of texts",
                counted(*labels, "label")
            ),
            format!(
                "pairs         {max_tokens} tokens at most; the model has {positions} positions"
            ),
        ],
    }
}

fn text(r: &Report<'_>, all: bool) -> String {
    let mut lines = head(r);
    lines.extend(facts(r));
    let mut label = "quantization";
    for (ty, share) in &r.quantization {
        let part = 100.0 * share.bytes as f64 / r.weight_bytes.max(1) as f64;
        let tensors = counted(share.tensors, "tensor");
        lines.push(format!(
            "{label:<14}{ty:<7} {tensors:>12}, {} ({part:.0} %)",
            bytes(share.bytes)
        ));
        label = "";
    }
    if all {
        lines.push(String::new());
        lines.extend(r.tensors.iter().map(|t| {
            let (shape, name) = (format!("{:?}", t.shape), in_a_row(t.name));
            format!("{:<7} {shape:<20} {name}", t.r#type)
        }));
    }
    lines.join("\n") + "\n"
}

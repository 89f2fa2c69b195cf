//! `thane show`: architecture, size and types of a model.

use std::collections::BTreeMap;

use serde::Serialize;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderOptions, families};
use thane_runtime::{Model, Origin, RuntimeError, Task as ModelTask};

use crate::app::App;
use crate::exit::Outcome;
use crate::model::ProgramFlags;
use crate::output::{bytes, counted};
use crate::screen::in_a_row;

/// Show a model's architecture, parameters, quantization, context length and memory.
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
    path: &'a std::path::Path,
    architecture: &'a str,
    layers: usize,
    vocabulary: usize,
    /// Number of parameters.
    parameters: u64,
    /// Bytes of all tensors in the file.
    weight_bytes: u64,
    #[serde(flatten)]
    task: Task<'a>,
    /// Tensors, parameters and bytes by element type.
    quantization: BTreeMap<&'static str, Share>,
    /// Every tensor, sorted by name.
    tensors: Vec<TensorRow<'a>>,
}

/// The facts of a language model or of an embedding model.
#[derive(Serialize)]
#[serde(untagged)]
enum Task<'a> {
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
}

/// The tensors of one element type.
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

/// What `--families --json` prints.
#[derive(Serialize)]
struct Families {
    families: Vec<FamilyRow>,
}

/// One family.
#[derive(Serialize)]
struct FamilyRow {
    /// `model_type` in `config.json`, `general.architecture` in GGUF.
    names: &'static [&'static str],
    models: &'static str,
    /// What can be made of Hugging Face folders and of GGUF files.
    hugging_face: Vec<&'static str>,
    gguf: Vec<&'static str>,
    /// Checkpoints in `tests/models` of the source code.
    checked: &'static [&'static str],
}

/// The word for each kind of model that a family makes of its files.
fn kinds(decodes: bool, encodes: bool) -> Vec<&'static str> {
    let kinds = [("generate", decodes), ("embed", encodes)];
    let supported = kinds.into_iter().filter(|(_, is)| *is);
    supported.map(|(kind, _)| kind).collect()
}

fn show_families(app: &App) -> Outcome {
    let rows: Vec<FamilyRow> = families::supported()
        .iter()
        .map(|f| FamilyRow {
            names: f.names,
            models: f.about,
            hugging_face: kinds(f.decodes_hugging_face, f.encodes_hugging_face),
            gguf: kinds(f.decodes_gguf, f.encodes_gguf),
            checked: f.checked,
        })
        .collect();
    if app.output.is_json() {
        return Ok(app.output.json(&Families { families: rows })?);
    }
    let cells = rows.iter().map(|row| {
        let or_none = |kinds: &[&str]| match kinds {
            [] => "-".to_owned(),
            kinds => kinds.join(", "),
        };
        [
            row.names.join(", "),
            or_none(&row.hugging_face),
            or_none(&row.gguf),
            row.models.to_owned(),
        ]
    });
    let head = ["architecture", "Hugging Face", "GGUF", "models"].map(str::to_owned);
    let cells: Vec<[String; 4]> = [head].into_iter().chain(cells).collect();
    let width = |i: usize| cells.iter().map(|row| row[i].len()).max().unwrap_or(0);
    let [names, hugging_face, gguf] = [0, 1, 2].map(width);
    let line =
        |[a, b, c, d]: &[String; 4]| format!("{a:names$}  {b:hugging_face$}  {c:gguf$}  {d}\n");
    Ok(app
        .output
        .data(&cells.iter().map(line).collect::<String>())?)
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let Some(model) = &args.model else {
        return show_families(app);
    };
    let options = args.flags.options(false);
    let opened = Model::open(model, &app.hub, app.output.as_ref())?;
    opened.checkpoint()?;
    if opened.task()? == ModelTask::Embed {
        return show_encoder(args, &opened, app);
    }
    let opened = opened.language_model(&options, app.output.as_ref())?;
    let Origin::Checkpoint(checkpoint) = &opened.origin else {
        let path = opened.path;
        return Err(RuntimeError::ExpectedCheckpoint { path }.into());
    };
    let info = &opened.info;
    let (quantization, tensors) = stored(checkpoint);
    let weight_bytes: u64 = quantization.values().map(|s| s.bytes).sum();
    let task = Task::Generate {
        max_context: info.max_context,
        context: info.context,
        cache_bytes: info.cache_bytes,
        memory_bytes: weight_bytes + info.cache_bytes as u64,
    };
    let report = Report {
        model: &opened.name,
        path: &opened.path,
        architecture: &info.architecture,
        layers: info.n_layers,
        vocabulary: info.vocab_size,
        parameters: quantization.values().map(|s| s.parameters).sum(),
        weight_bytes,
        task,
        quantization,
        tensors,
    };
    print(&report, args, app)
}

fn show_encoder(args: &Args, model: &Model, app: &App) -> Outcome {
    let checkpoint = model.checkpoint()?;
    let encoder = thane_models::build_encoder(checkpoint, &EncoderOptions::default());
    let encoder = encoder.map_err(|e| RuntimeError::model(&model.path, e))?;
    let info = encoder.info;
    let (quantization, tensors) = stored(checkpoint);
    let report = Report {
        model: &model.name,
        path: &model.path,
        architecture: &info.architecture,
        layers: info.n_layers,
        vocabulary: info.vocab_size,
        parameters: quantization.values().map(|s| s.parameters).sum(),
        weight_bytes: quantization.values().map(|s| s.bytes).sum(),
        task: Task::Embed {
            dimensions: info.dim,
            max_tokens: info.max_tokens,
            positions: info.n_positions,
            pooling: info.pooling.to_string(),
            normalize: info.normalize,
            prompts: &info.prompts,
        },
        quantization,
        tensors,
    };
    print(&report, args, app)
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

fn print(report: &Report<'_>, args: &Args, app: &App) -> Outcome {
    if app.output.is_json() {
        return Ok(app.output.json(report)?);
    }
    Ok(app.output.data(&text(report, args.tensors))?)
}

fn text(r: &Report<'_>, all: bool) -> String {
    let mut lines = vec![
        format!("model         {}", in_a_row(r.model)),
        format!("file          {}", in_a_row(&r.path.to_string_lossy())),
        format!(
            "architecture  {}, {}, {} in the vocabulary",
            r.architecture,
            counted(r.layers, "layer"),
            counted(r.vocabulary, "token")
        ),
        format!(
            "parameters    {:.1} million in {}",
            r.parameters as f64 / 1e6,
            bytes(r.weight_bytes)
        ),
    ];
    match &r.task {
        Task::Generate {
            max_context,
            context,
            cache_bytes,
            memory_bytes,
        } => lines.extend([
            format!("context       {context} of {max_context} tokens"),
            format!(
                "memory        {} with a full cache of {}",
                bytes(*memory_bytes),
                bytes(*cache_bytes as u64)
            ),
        ]),
        Task::Embed {
            dimensions,
            max_tokens,
            positions,
            pooling,
            normalize,
            prompts,
        } => {
            let length = if *normalize {
                "of length 1"
            } else {
                "as long as they come"
            };
            lines.extend([
                format!("vectors       {dimensions} dimensions, {pooling} pooling, {length}"),
                format!(
                    "texts         {max_tokens} tokens at most; the model has {positions} positions"
                ),
            ]);
            lines.extend(
                prompts
                    .iter()
                    .map(|(task, prompt)| format!("prompt        {task}: {prompt:?}")),
            );
        }
    }
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
            format!(
                "{:<7} {:<20} {}",
                t.r#type,
                format!("{:?}", t.shape),
                in_a_row(t.name)
            )
        }));
    }
    lines.join("\n") + "\n"
}

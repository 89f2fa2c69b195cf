//! Exit codes and remedies of errors about opening, running and writing models.

use std::io;
use std::path::Path;

use thane_compile::CompileError;
use thane_engine::embed::EmbedError;
use thane_engine::sample::SampleError;
use thane_mil::backend::RunError;
use thane_mil::package::{PackageError, final_path};
use thane_models::checkpoint::CheckpointError;
use thane_models::{ModelError, families};
use thane_runtime::{Note, Observer, OpsetError, RuntimeError, Task};

use crate::exit::{Code, Failure, other, usage};
use crate::model::longer_package;
use crate::out::has_extension;
use crate::output::Output;
use thane_mil::nearest::did_you_mean;

/// Checks whether the bytes of a model are right.
const CHECK: &str =
    "thane pull MODEL --check, which reads every byte of a model of the catalog or the Hub again";

impl Observer for Output {
    fn step(&self, what: &str) {
        self.busy(what);
    }

    fn progress(&self, what: &str, done: u64, all: u64) {
        self.stage(what, all, done);
    }

    fn note(&self, note: &Note) {
        self.say_once(&format!("thane: {note}"));
    }

    fn detail(&self, line: &str) {
        self.explain(line);
    }
}

impl From<RuntimeError> for Failure {
    /// Errors that only wrap another one are unwrapped, so that [`Failure::new`] sees what they
    /// are.
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Hub(e) => e.into(),
            RuntimeError::Checkpoint(e) => of_checkpoint(e),
            RuntimeError::Package(e) => usage(e),
            RuntimeError::Contract(e) => usage(e),
            RuntimeError::Truncated(e) => usage(e),
            RuntimeError::Load(e) => usage(*e),
            RuntimeError::Start(e) => of_start(*e),
            RuntimeError::Run(e) => usage(*e),
            RuntimeError::Text(e) => usage(e),
            RuntimeError::Generate(e) => usage(*e),
            RuntimeError::Sample(e) => of_sampling(e),
            RuntimeError::Embed(e) => of_embedding(*e),
            RuntimeError::Budget(e) => usage(e),
            RuntimeError::Opset(e) => of_opset(*e),
            RuntimeError::UnknownFunction { name, known } => unknown_function(&name, &known),
            RuntimeError::UnknownPrompt { name, known } => unknown_prompt(&name, &known),
            RuntimeError::Compile { source, .. } if !matches!(source, CompileError::Illegal(_)) => {
                other(source)
            }
            RuntimeError::Write { .. } => other(error),
            RuntimeError::WritePackage { path, source } => unwritten(source, &path),
            error => {
                let remedies = remedies(&error);
                remedies.into_iter().fold(usage(error), Failure::remedy)
            }
        }
    }
}

/// Names the verbs for a file of MIL text, which is no checkpoint.
fn of_checkpoint(error: CheckpointError) -> Failure {
    let is_mil_text = has_extension(error.path(), &["mil"]);
    let failure = usage(error);
    if is_mil_text {
        failure.remedy("thane audit or thane bisect, which read MIL text")
    } else {
        failure
    }
}

/// What the user can do, one line each.
fn remedies(error: &RuntimeError) -> Vec<String> {
    match error {
        RuntimeError::ExpectedCheckpoint { path } => {
            vec![format!("thane inspect --stats {}", path.display())]
        }
        RuntimeError::OldTarget { newer, .. } => vec![
            format!("--target {newer}, or a later system"),
            "--form ane --kv explicit --functions decode, a package of one function without states"
                .to_owned(),
        ],
        RuntimeError::NothingCompressed { .. } => vec![
            "--target a19 or --form ane, where weights of quantized files are fp16 numbers"
                .to_owned(),
            "leave out --compress".to_owned(),
        ],
        RuntimeError::OldBundle {
            several, flexible, ..
        } => of_old_bundle(*several, *flexible),
        RuntimeError::Model { path, source } => of_model(path, source),
        // The families write legal programs, so the numbers in the file are to blame.
        RuntimeError::Compile { .. } => vec![CHECK.to_owned()],
        RuntimeError::NoContract { path, task } => of_no_contract(path, *task),
        RuntimeError::BundleOfFile { .. } => vec![
            "the model's Hugging Face folder, or hf:org/name".to_owned(),
            "--form ane, for a package that has a tokenizer of its own".to_owned(),
        ],
        RuntimeError::EmbedsOnly { path } => vec![format!("thane embed {} TEXT", path.display())],
        RuntimeError::Reranks { path } => {
            vec![format!("thane rerank {} QUERY TEXT", path.display())]
        }
        RuntimeError::GeneratesOnly { path } => {
            vec![format!("thane run {} PROMPT", path.display())]
        }
        RuntimeError::FixedContext {
            asked,
            context,
            max_context,
            model,
            is_for_ane,
        } => std::iter::once(format!("leave --context out, or --context {context}"))
            .chain(longer_package(model, *is_for_ane, *max_context, *asked))
            .collect(),
        RuntimeError::Foreign(fault) => vec![fault.remedy.clone()],
        RuntimeError::GreedyOnly { option, .. } => of_few_logits(1, option),
        RuntimeError::GreatestOnly { n, option, .. } => of_few_logits(*n, option),
        RuntimeError::ForeignContext { context, .. } => {
            vec![format!("leave --context out, or --context {context}")]
        }
        RuntimeError::MissingFunction { path, .. } => vec![
            "thane convert MODEL -o PACKAGE without --functions, which writes all".to_owned(),
            predict(path),
        ],
        RuntimeError::NoRows { .. } => {
            vec!["thane convert MODEL -o PACKAGE --functions prefill,decode".to_owned()]
        }
        RuntimeError::Template { .. } => {
            vec!["--raw, which gives the model the prompt without its template".to_owned()]
        }
        RuntimeError::Vectors { .. } => {
            vec!["thane embed with the checkpoint that it was made of".to_owned()]
        }
        RuntimeError::MaxTokens { positions, .. } => vec![format!("--max-length 1 to {positions}")],
        RuntimeError::OnlyPrompt => vec!["--prompt \"\", which takes no prompt".to_owned()],
        _ => Vec::new(),
    }
}

/// What an old system reads of an embedding model.
fn of_old_bundle(several: bool, flexible: bool) -> Vec<String> {
    let without = if flexible { " --no-flexible" } else { "" };
    match several {
        true => vec![
            format!("--layout folder{without} -o FOLDER, a package for each length"),
            "--buckets 128 --no-flexible, one package of one function".to_owned(),
        ],
        false => vec!["--no-flexible".to_owned()],
    }
}

/// The failure of a function that a program does not have.
pub fn unknown_function(name: &str, known: &[String]) -> Failure {
    let hint = did_you_mean(name, known.iter().map(String::as_str));
    usage!("the program has no function `{name}`{hint}")
        .remedy(format!("--functions {}", known.join(",")))
}

fn unknown_prompt(name: &str, known: &[String]) -> Failure {
    let hint = did_you_mean(name, known.iter().map(String::as_str));
    let failure = usage!("the model has no prompt `{name}`{hint}");
    if known.is_empty() {
        failure.remedy("the same without --prompt: the model has none")
    } else {
        failure.remedy(format!("--prompt {}", known.join(" or ")))
    }
}

fn predict(path: &Path) -> String {
    let path = path.display();
    format!("thane predict {path} --out FOLDER runs a function of it once")
}

/// What gives enough logits where a model gives the `n` greatest.
fn of_few_logits(n: usize, option: &str) -> Vec<String> {
    let all = "thane convert MODEL --form ane --head logits -o PACKAGE, which gives all logits";
    let sampling = match (option, n) {
        (
            "the perplexity" | "the quality" | "bench verify" | "log probabilities" | "a grammar",
            _,
        ) => None,
        (_, 1) => Some("thane run with --temperature 0 and without penalties".to_owned()),
        _ => Some(format!(
            "thane run with --top-k 1 to {n} and without penalties"
        )),
    };
    sampling.into_iter().chain([all.to_owned()]).collect()
}

fn of_no_contract(path: &Path, task: Task) -> Vec<String> {
    let is_compiled = has_extension(path, &["mlmodelc"]);
    match task {
        Task::Generate if is_compiled => vec![
            "thane convert MODEL -o PACKAGE.mlpackage: a compiled model (.mlmodelc) never has a \
             contract"
                .to_owned(),
            predict(path),
        ],
        Task::Generate => vec![
            "thane convert MODEL -o PACKAGE makes packages that can be run".to_owned(),
            predict(path),
        ],
        Task::Embed => {
            vec!["thane convert MODEL --task embed makes packages that have one".to_owned()]
        }
    }
}

fn of_model(path: &Path, error: &ModelError) -> Vec<String> {
    let shown = path.display();
    match error {
        ModelError::Tensors(_) => {
            vec!["fetch the model again; its files do not belong together".to_owned()]
        }
        ModelError::Architecture { .. } => vec![format!(
            "a model of one of the {} families that thane show --families lists",
            families::supported().len()
        )],
        ModelError::EmbedsOnly(_) => vec![
            format!("thane embed {shown} TEXT"),
            format!("thane convert {shown} --task embed -o PACKAGE.mlpackage"),
        ],
        ModelError::Classifies(_) => vec![format!("thane rerank {shown} QUERY TEXT")],
        ModelError::NoLabels(_) => vec![format!("thane embed {shown} TEXT")],
        ModelError::AnswersOnly(_) => vec![format!("thane run {shown} PROMPT")],
        ModelError::Numbers {
            overflow: false, ..
        } => vec![CHECK.to_owned()],
        ModelError::Numbers { overflow: true, .. } => vec![
            "--form portable, which keeps fp32 (language models)".to_owned(),
            "--residual-divisor, 16 or more, where the weights write to the residual stream"
                .to_owned(),
        ],
        ModelError::Context { max, .. } => vec![format!("--context 1 to {max}")],
        ModelError::Bucket { max, .. } => vec![format!("--buckets from 1 to {max}")],
        ModelError::Block {
            function, context, ..
        } => {
            let flag = if *function == "verify" {
                "--verify"
            } else {
                "--block"
            };
            vec![format!("{flag} 1 to {context}, or a longer --context")]
        }
        ModelError::ShortContext { context, .. } => {
            vec![format!(
                "--contexts from 1 to {context}, or a longer --context"
            )]
        }
        ModelError::Bundle { .. } => vec!["--form ane".to_owned()],
        ModelError::SplitInto { n_layers, .. } => vec![format!("--split 1 to {n_layers}")],
        ModelError::Split { n_layers, .. } => vec![format!(
            "--split 2, or --split 0-{},{}-{n_layers}",
            n_layers / 2,
            n_layers / 2
        )],
        ModelError::Lanes { most, .. } => vec![format!("--lanes 2 to {most}")],
        ModelError::NoHeadToCut => vec!["--split without head, or --head logits".to_owned()],
        ModelError::SharedAcrossChunks { .. }
        | ModelError::MixedCaches
        | ModelError::LanesOfState => {
            vec!["--kv explicit".to_owned()]
        }
        ModelError::Pooling => vec![
            "--pooling mean, cls, lasttoken, max or weightedmean, as the model's page says"
                .to_owned(),
        ],
        _ => Vec::new(),
    }
}

/// The memory of an instance is that of its caches.
fn of_start(error: RunError) -> Failure {
    use RunError::{Memory, OverBudget, State};
    let is_too_large = matches!(error, OverBudget { .. } | Memory { .. } | State { .. });
    let failure = usage(error);
    if is_too_large {
        failure.remedy("--context N, with fewer tokens: a cache takes memory for each")
    } else {
        failure
    }
}

/// Names the flag of an option that is out of range.
fn of_sampling(error: SampleError) -> Failure {
    match error {
        SampleError::Option {
            option,
            value,
            range,
        } => {
            let flag = option.replace('_', "-");
            usage!("--{flag} is {value}, but must be {range}")
        }
        other => usage(other),
    }
}

fn of_embedding(error: EmbedError) -> Failure {
    let remedy = embedding_remedy(&error);
    remedy.into_iter().fold(usage(error), Failure::remedy)
}

/// What to do about a text that cannot be embedded.
pub fn embedding_remedy(error: &EmbedError) -> Option<&'static str> {
    match error {
        EmbedError::Empty { .. } => {
            Some("a text that is not empty: this tokenizer puts nothing around one")
        }
        EmbedError::TooLong { .. } => {
            Some("--truncate, which cuts it and counts it, or a shorter text")
        }
        EmbedError::TooManyChunks { .. } => Some("documents of fewer chunks"),
        EmbedError::NotFinite { .. } => Some("--numerics f32, which has a wider range"),
        _ => None,
    }
}

fn of_opset(error: OpsetError) -> Failure {
    let lowest = error.lowest;
    let failure = usage(error);
    match lowest {
        Some(lowest) => failure.remedy(format!("--opset {lowest}")),
        None => failure,
    }
}

/// The failure of a package that cannot be written: the machine's fault where the system refuses,
/// otherwise the user's.
pub fn unwritten(error: PackageError, path: &Path) -> Failure {
    let code = match &error {
        PackageError::Io { fault, .. } if fault.kind() != io::ErrorKind::InvalidInput => {
            Code::Other
        }
        _ => Code::Usage,
    };
    Failure::new(
        code,
        anyhow::Error::new(error).context(format!("{} is not written", final_path(path).display())),
    )
}

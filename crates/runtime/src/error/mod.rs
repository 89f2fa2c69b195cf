//! What can go wrong between a model's name and its answers or vectors.

mod contract;
mod language;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thane_compile::CompileError;
use thane_compile::compress::program::CompressError;
use thane_engine::choose::GrammarError;
use thane_engine::embed::EmbedError;
use thane_engine::generate::GenerateError;
use thane_engine::sample::SampleError;
use thane_engine::text::{TemplateError, TextError};
use thane_hub::HubError;
use thane_mil::backend::{LoadError, RunError};
use thane_mil::budget::OverBudget;
use thane_mil::data::Truncated;
use thane_mil::package::{PackageError, final_path};
use thane_models::ModelError;
use thane_models::checkpoint::CheckpointError;

use crate::foreign::ForeignError;
pub use contract::ContractError;
pub use language::LanguageError;

/// Why a model could not be opened, run or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The model cannot be found or downloaded.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The Core ML package cannot be read.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// What Thane wrote into a package besides the program is damaged or does not fit it.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A bundle of another project is damaged, or its parts do not fit together.
    #[error(transparent)]
    Foreign(Box<ForeignError>),
    /// A model gives only the most likely token, and something else was asked for.
    #[error(
        "{}: the model gives only the most likely token, and {option} needs the logits of all",
        path.display()
    )]
    GreedyOnly {
        /// The bundle or package.
        path: PathBuf,
        /// The option that needs more.
        option: &'static str,
    },
    /// A package gives only the greatest logits, and something needs more of them.
    #[error(
        "{}: the model gives only the {n} greatest logits of a token, and {option} needs more",
        path.display()
    )]
    GreatestOnly {
        /// The package.
        path: PathBuf,
        /// Number of logits.
        n: usize,
        /// The option that needs more.
        option: &'static str,
    },
    /// A file cannot be read.
    #[error("{}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The operation needs a checkpoint.
    #[error("expected a checkpoint, found the Core ML package {}", path.display())]
    ExpectedCheckpoint {
        /// The package.
        path: PathBuf,
    },
    /// The operation is for models that answer or embed.
    #[error(
        "{}: expected a language model or an embedding model, found a reranker: rank texts with it",
        path.display()
    )]
    Reranks {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The checkpoint does not become a program.
    #[error("{}", path.display())]
    Model {
        /// The checkpoint.
        path: PathBuf,
        /// Why not.
        source: Box<ModelError>,
    },
    /// A target is too old for a form that is to be planned.
    #[error(
        "{target}: the form for the Neural Engine has several functions, which iOS 18 and macOS 15 \
         were the first to read"
    )]
    OldTarget {
        /// The target.
        target: String,
        /// The target of the same chip with the oldest system that reads such a form.
        newer: String,
    },
    /// A system is too old for the packages of an embedding model.
    #[error(
        "opset {opset} cannot express {} of an embedding model, which iOS 18 and macOS 15 were the \
         first to read", old_bundle(*several, *flexible)
    )]
    OldBundle {
        /// Name of the newest opset that the system reads.
        opset: &'static str,
        /// Whether a package has several functions.
        several: bool,
        /// Whether there is a function of any length that needs a newer opset.
        flexible: bool,
    },
    /// A pass of the compiler failed.
    #[error("{}", path.display())]
    Compile {
        /// The checkpoint or package.
        path: PathBuf,
        /// Why.
        source: CompileError,
    },
    /// A file of weights became shorter after it was opened.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// The package was not written by Thane, or is compiled.
    #[error("{}: the package has no contract that says how to run it", path.display())]
    NoContract {
        /// The package.
        path: PathBuf,
        /// The task that was asked for.
        task: Task,
    },
    /// The model embeds texts, and answers were asked for.
    #[error("{}: the package makes vectors of texts, not answers", path.display())]
    EmbedsOnly {
        /// The package.
        path: PathBuf,
    },
    /// The model generates text, and vectors were asked for.
    #[error("{}: the package is that of a language model: it makes answers, not vectors", path.display())]
    GeneratesOnly {
        /// The package.
        path: PathBuf,
    },
    /// A package has a cache of fixed length, and another was asked for.
    #[error("the package holds {context} tokens, a context of {asked} was asked for")]
    FixedContext {
        /// Tokens that were asked for.
        asked: usize,
        /// Tokens that the package holds.
        context: usize,
        /// Most tokens of the model.
        max_context: usize,
        /// The model that the package was made of.
        model: String,
        /// Whether the package is in the Neural Engine form.
        is_for_ane: bool,
    },
    /// A bundle of another project has a cache of fixed length, and another was asked for.
    #[error(
        "{}: the bundle holds {context} tokens, a context of {asked} was asked for",
        path.display()
    )]
    ForeignContext {
        /// The bundle.
        path: PathBuf,
        /// Tokens that were asked for.
        asked: usize,
        /// Tokens that the bundle holds.
        context: usize,
    },
    /// The program lacks a function.
    #[error(
        "{}: it has the function {} only; the function `{missing}` is needed",
        path.display(),
        found.join(" and ")
    )]
    MissingFunction {
        /// The package.
        path: PathBuf,
        /// The function that is needed.
        missing: String,
        /// The functions that are there.
        found: Vec<String>,
    },
    /// A program has no function that gives the logits after each token of a text.
    #[error(
        "{}: it has no function `verify` or `decode`, which give the logits after each token",
        path.display()
    )]
    NoRows {
        /// The package.
        path: PathBuf,
    },
    /// Logits are NaN or infinite.
    #[error("{}: the logits are NaN or infinite", path.display())]
    Logits {
        /// The model.
        path: PathBuf,
    },
    /// A compiled model was requested of a form whose tables the caller looks up.
    #[error(
        "a compiled model has no place for the tables that the app looks up: write a package \
         (.mlpackage), or have the program look them up"
    )]
    TablesOfCompiled,
    /// Weights were to be compressed, and none of them was.
    #[error("nothing to compress: {n} weights are left as they are, the first because: {reason}")]
    NothingCompressed {
        /// Number of weights.
        n: usize,
        /// Why the first one stays.
        reason: String,
    },
    /// Activations were to be quantized, and it is not known how large those of any product are.
    #[error("no activations to quantize: no product was computed of a text")]
    NoRanges,
    /// A bundle was requested of a file, which has no tokenizer files that could be copied.
    #[error(
        "{}: expected a Hugging Face folder, whose tokenizer files are a part of an {project} bundle, \
         found a file",
        path.display()
    )]
    BundleOfFile {
        /// The file.
        path: PathBuf,
        /// The project that such bundles are of.
        project: &'static str,
    },
    /// Some functions were requested of a model that is cut into several packages.
    #[error("packages of a model that is cut hold all functions")]
    FunctionsOfChunks,
    /// Functions were chosen by names that the program does not have.
    #[error("the program has no function `{name}`")]
    UnknownFunction {
        /// The name that was asked for.
        name: String,
        /// The functions that are there.
        known: Vec<String>,
    },
    /// The program cannot be expressed in an opset.
    #[error(transparent)]
    Opset(Box<OpsetError>),
    /// The weights of a program cannot be compressed.
    #[error(transparent)]
    Compress(#[from] CompressError),
    /// The backend cannot load the program.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// The backend cannot make a running copy of a language model, whose caches take memory.
    #[error(transparent)]
    Start(Box<RunError>),
    /// The backend failed.
    #[error(transparent)]
    Run(Box<RunError>),
    /// Tokenizer or chat template cannot be read from the model's files.
    #[error("{}", path.display())]
    Language {
        /// The checkpoint or package.
        path: PathBuf,
        /// Why not.
        source: LanguageError,
    },
    /// A text cannot be tokenized.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The chat template cannot be read or rendered.
    #[error("{model}")]
    Template {
        /// Name of the model.
        model: String,
        /// Why not.
        source: TemplateError,
    },
    /// The operation needs a chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// Generation failed.
    #[error(transparent)]
    Generate(Box<GenerateError>),
    /// A grammar is not valid, or not supported.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A binding was given JSON of another form.
    #[error("{what}: {source}")]
    Json {
        /// What it is.
        what: &'static str,
        /// Why not.
        source: serde_json::Error,
    },
    /// Numerics that no backend has.
    #[error("numerics: expected fast, f32, int8 or ane, found `{found}`")]
    Numerics {
        /// The name.
        found: String,
    },
    /// A number of threads that no backend has.
    #[error("threads: expected 1 to 1024, found {found}")]
    Threads {
        /// The number.
        found: usize,
    },
    /// A model is asked while it answers, by what it tells of the answer.
    #[error("the model is asked again by what it calls while it answers: it would wait for itself")]
    AskedWithin,
    /// An answer can follow one grammar.
    #[error("expected one of a schema, a regular expression and a grammar, found more")]
    OneGrammar,
    /// A sampling option is out of range.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Embedding failed.
    #[error(transparent)]
    Embed(Box<EmbedError>),
    /// A package gives other vectors than those asked for.
    #[error(
        "{}: the package gives vectors of {encoding}, with {pooling} pooling, and no others",
        path.display()
    )]
    Vectors {
        /// The package.
        path: PathBuf,
        /// What it gives vectors of: `text`, `chunks` or `tokens`.
        encoding: String,
        /// Its pooling.
        pooling: String,
    },
    /// A classifier has another number of labels than a reranker.
    #[error(
        "{}: expected a reranker with one label, found a classifier with {found} labels",
        path.display()
    )]
    Labels {
        /// The checkpoint.
        path: PathBuf,
        /// Number of labels.
        found: usize,
    },
    /// The limit of tokens is 0 or more than the model has positions.
    #[error("the model has {positions} positions, texts of {asked} tokens were asked for")]
    MaxTokens {
        /// Tokens that were asked for.
        asked: usize,
        /// Positions of the model.
        positions: usize,
    },
    /// The tokenizer has no token that can separate chunks.
    #[error(
        "the tokenizer has no separator (sep_token in tokenizer_config.json), which joins chunks"
    )]
    NoSeparator,
    /// A chunk has the token that separates chunks.
    #[error("chunk {number} holds the separator that joins chunks, token {separator}; take it out")]
    SeparatorInChunk {
        /// Number of the chunk, from 1.
        number: usize,
        /// The token.
        separator: u32,
    },
    /// The model has no prompt of this name.
    #[error("the model has no prompt `{name}`")]
    UnknownPrompt {
        /// The name that was asked for.
        name: String,
        /// The names of the model's prompts.
        known: Vec<String>,
    },
    /// The model leaves the tokens of the prompt out of its pooling, and a text has no others, of
    /// which there is no maximum.
    #[error("expected tokens behind the prompt, which the model does not pool, found none")]
    OnlyPrompt,
    /// A package cannot be written.
    #[error("{} is not written", final_path(path).display())]
    WritePackage {
        /// The package.
        path: PathBuf,
        /// Why not.
        source: PackageError,
    },
    /// A file cannot be written.
    #[error("{} is not written", final_path(path).display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The input needs more memory than the budget has.
    #[error(transparent)]
    Budget(#[from] OverBudget),
}

impl From<ForeignError> for RuntimeError {
    fn from(error: ForeignError) -> Self {
        Self::Foreign(Box::new(error))
    }
}

impl From<LoadError> for RuntimeError {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}

impl From<GenerateError> for RuntimeError {
    fn from(error: GenerateError) -> Self {
        Self::Generate(Box::new(error))
    }
}

impl From<EmbedError> for RuntimeError {
    fn from(error: EmbedError) -> Self {
        Self::Embed(Box::new(error))
    }
}

impl RuntimeError {
    /// The error of the checkpoint at `path`, which does not become a program.
    pub fn model(path: &Path, source: ModelError) -> Self {
        Self::Model {
            path: path.to_owned(),
            source: Box::new(source),
        }
    }

    /// The error of the tokenizer or chat template of the model at `path`.
    pub(crate) fn language(path: &Path, source: LanguageError) -> Self {
        Self::Language {
            path: path.to_owned(),
            source,
        }
    }

    /// The error of an output that cannot be written to `path`.
    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |source| Self::Write {
            path: path.to_owned(),
            source,
        }
    }

    /// The error of a package that cannot be written to `path`.
    pub(crate) fn write_package(path: &Path) -> impl Fn(PackageError) -> Self + '_ {
        |source| Self::WritePackage {
            path: path.to_owned(),
            source,
        }
    }
}

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Generates text.
    Generate,
    /// Embeds texts.
    Embed,
}

/// A program that an opset cannot express.
#[derive(Debug)]
pub struct OpsetError {
    /// Name of the opset, such as `ios16`.
    pub opset: &'static str,
    /// Name of the lowest opset that expresses the program, if there is one.
    pub lowest: Option<&'static str>,
    /// The first broken rules.
    pub violations: Vec<String>,
    /// Number of further broken rules.
    pub n_more: usize,
    /// Whether the program has states, which are the usual reason.
    pub has_states: bool,
}

/// What of an embedding model an old system cannot read.
fn old_bundle(several: bool, flexible: bool) -> &'static str {
    match (several, flexible) {
        (true, true) => "several functions in one package and the function of any length",
        (true, false) => "several functions in one package",
        (false, _) => "the function of any length",
    }
}

/// Why programs with a cache need a recent system.
pub const STATES_NEED: &str = "caches are states, which need iOS 18 or macOS 15";

impl std::error::Error for OpsetError {}

impl fmt::Display for OpsetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opset {} cannot express this program:", self.opset)?;
        if self.has_states {
            write!(f, " {STATES_NEED};")?;
        }
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        match self.n_more {
            0 => Ok(()),
            n => write!(f, "\n  and {n} more"),
        }
    }
}

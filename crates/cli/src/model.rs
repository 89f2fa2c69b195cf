//! The flags that say how a model is lowered and run, and the backend that they ask for.

use std::sync::Arc;

use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics, Profile};
use thane_engine::pages::PageForm;
use thane_engine::sample::SampleOptions;
use thane_mil::backend::{Backend, Executable, LoadError, LoadOptions};
use thane_mil::budget::Budget;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_runtime::{EmbedOptions, LanguageModel, LanguageOptions, Model, Origin};

use crate::app::App;
use crate::exit::Failure;

/// How a model is lowered to a program; flags of every verb that does so.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ProgramFlags {
    /// Context length in tokens [default: the model's, at most 8192].
    ///
    /// Prompt and answer together have at most so many tokens.
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Numerics to use.
    ///
    /// fast multiplies quantized weights without dequantizing them and has an fp16 KV cache. int8
    /// also quantizes float weights. f32 is the reference. ane rounds to fp16 after each op and
    /// accumulates sums like the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    pub numerics: NumericsFlag,
}

/// How a model is run; flags of every verb that runs one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct RunFlags {
    #[command(flatten)]
    pub program: ProgramFlags,
    /// Number of threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Records where the time goes.
    #[arg(skip)]
    pub profile: Option<Arc<Profile>>,
}

/// How an embedding model or a reranker is run.
#[derive(Debug, clap::Args)]
pub struct EncoderFlags {
    /// Most tokens of a batch, padding included.
    #[arg(long, value_name = "N", default_value_t = EmbedOptions::BATCH_TOKENS)]
    pub batch_tokens: usize,
    /// Numerics to use.
    ///
    /// fast multiplies quantized weights without dequantizing them, int8 also quantizes float
    /// weights, f32 is the reference, and ane rounds like the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    pub numerics: NumericsFlag,
    /// Number of threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl EncoderFlags {
    /// The CPU that these flags ask for.
    pub fn cpu(&self, app: &App) -> Cpu {
        cpu(self.numerics, self.threads, app)
    }
}

/// How prompts are kept that no cache holds: the values of `--kv` and `--prompt-kv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KvFlag {
    Exact,
    Int8,
}

impl KvFlag {
    pub fn form(self) -> PageForm {
        match self {
            Self::Exact => PageForm::Exact,
            Self::Int8 => PageForm::Int8,
        }
    }
}

/// The values of `--numerics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NumericsFlag {
    F32,
    Fast,
    Int8,
    Ane,
}

impl ProgramFlags {
    /// The program that these flags ask for; with `verify` it has the function `verify`.
    pub fn options(&self, verify: bool) -> LanguageOptions {
        let cache = if self.numerics == NumericsFlag::F32 {
            DType::Fp32
        } else {
            DType::Fp16
        };
        LanguageOptions {
            context: self.context,
            cache,
            verify,
            top: None,
            ane: None,
        }
    }

    /// The program that generates text with these sampling options.
    pub fn sampling_options(&self, sampling: &SampleOptions) -> LanguageOptions {
        let options = self.options(false).with_sampling(sampling);
        self.with_top(options)
    }

    /// The program that generates text with sampling options that are not known yet.
    pub fn served_options(&self) -> LanguageOptions {
        self.with_top(LanguageOptions {
            top: Some(LanguageOptions::SERVED_TOP),
            ..self.options(false)
        })
    }

    /// Only `fast` and `int8` can rule out logits, so the others do without the function
    /// `decode_top`.
    fn with_top(&self, options: LanguageOptions) -> LanguageOptions {
        let rules_out = matches!(self.numerics, NumericsFlag::Fast | NumericsFlag::Int8);
        LanguageOptions {
            top: options.top.filter(|_| rules_out),
            ..options
        }
    }
}

impl RunFlags {
    /// The backend that these flags ask for.
    pub fn backend(&self, app: &App) -> Processor {
        Processor {
            cpu: cpu(self.program.numerics, self.threads, app),
            profile: self.profile.clone(),
        }
    }
}

/// The CPU with these numerics and threads.
pub fn cpu(numerics: NumericsFlag, threads: Option<u16>, app: &App) -> Cpu {
    let numerics = match numerics {
        NumericsFlag::F32 => Numerics::F32,
        NumericsFlag::Fast => Numerics::Fast,
        NumericsFlag::Int8 => Numerics::Int8,
        NumericsFlag::Ane => Numerics::Ane(Effects::default()),
    };
    Cpu::new(numerics, n_threads(threads))
        .with_isa(app.isa)
        .with_budget(&app.budget)
}

/// The number of threads that was asked for, or the number of physical cores.
pub fn n_threads(asked: Option<u16>) -> usize {
    asked.map_or_else(num_cpus::get_physical, usize::from)
}

/// The CPU, which fills a profile if there is one.
pub struct Processor {
    pub cpu: Cpu,
    pub profile: Option<Arc<Profile>>,
}

impl Backend for Processor {
    fn name(&self) -> &'static str {
        self.cpu.name()
    }

    fn load_with(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        let cpu = self.cpu.clone().with_profile(self.profile.clone());
        cpu.load_with(program, options)
    }

    fn budget(&self) -> Budget {
        self.cpu.budget()
    }
}

/// Finds a language model, downloads it if it is not here, and lowers it.
pub fn open(spec: &str, options: &LanguageOptions, app: &App) -> Result<LanguageModel, Failure> {
    let model = Model::open(spec, &app.hub, app.output.as_ref())?;
    lower(model, spec, options, app)
}

/// Lowers a model that was asked for as `spec`.
pub fn lower(
    model: Model,
    spec: &str,
    options: &LanguageOptions,
    app: &App,
) -> Result<LanguageModel, Failure> {
    let path = model.path.display().to_string();
    model
        .language_model(options, app.output.as_ref())
        .map_err(|e| Failure::from(e).naming(&path, spec))
}

/// The flag or command that gives a model a context of `needed` tokens, if the model can have that.
pub fn longer_context(model: &LanguageModel, needed: usize) -> Option<String> {
    let max = model.info.max_context;
    if matches!(model.origin, Origin::Foreign(_)) {
        return None;
    }
    if model.is_package() {
        return longer_package(model.checkpoint_name(), model.is_for_ane(), max, needed);
    }
    (needed <= max).then(|| format!("--context {needed}"))
}

/// The command that writes a package with a context of `needed` tokens, if the model can have that.
pub fn longer_package(model: &str, is_for_ane: bool, max: usize, needed: usize) -> Option<String> {
    // Every family can have an explicit cache.
    let form = if is_for_ane {
        " --form ane --kv explicit"
    } else {
        ""
    };
    (needed <= max).then(|| format!("thane convert {model}{form} -o PACKAGE --context {needed}"))
}

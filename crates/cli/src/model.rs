//! A model from its files: checkpoint, program, tokenizer, chat template, and a session on the CPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_compile::CompileError;
use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics, Profile};
use thane_engine::fixed::Fixed;
use thane_engine::generate::Session;
use thane_engine::sessions::Sessions;
use thane_mil::backend::{Backend, Executable, LoadError, RunError};
use thane_mil::package::Package;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Info, Model, ModelError, Options, StoredWeight};

use crate::app::App;
use crate::contract::{self, Contents, Facts};
use crate::exit::{Code, Failure};
use crate::form::Form;
use crate::language::{Language, Parts};
use crate::output::counted;

/// What program is made of a model; flags of every verb that makes one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ProgramFlags {
    /// Tokens of prompt and answer together [default: the model's, 8192 at most].
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// How to compute.
    ///
    /// fast takes quantised weights as they are and caches in fp16, f32 is the reference, ane is
    /// fp16 after each op with the sums of the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    pub numerics: NumericsFlag,
}

/// How a model is run; flags of every verb that runs one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct RunFlags {
    #[command(flatten)]
    pub program: ProgramFlags,
    /// Threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// What is told where the time goes.
    #[arg(skip)]
    pub profile: Option<Arc<Profile>>,
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
    /// What program these flags ask for.
    pub fn options(&self, score: bool) -> Options {
        let cache = if self.numerics == NumericsFlag::F32 {
            DType::Fp32
        } else {
            DType::Fp16
        };
        Options {
            context: self.context,
            cache,
            score,
            engine: None,
        }
    }
}

/// The CPU as these flags ask for it.
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

/// Threads to compute with.
pub fn n_threads(asked: Option<u16>) -> usize {
    asked.map_or_else(num_cpus::get_physical, usize::from)
}

/// A model and its program.
pub struct Opened {
    /// As the user would ask for it again.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// Known for the catalog's models.
    pub license: Option<String>,
    pub files: Files,
    pub model: Model,
}

/// What a model is read from.
pub enum Files {
    Checkpoint(Box<Checkpoint>),
    Package(Box<Contents>),
}

impl Opened {
    /// What gives a context of `needed` tokens, where the model can have that.
    pub fn longer_context(&self, needed: usize) -> Option<String> {
        let max = self.model.info.max_context;
        match &self.files {
            Files::Package(contents) => {
                let form = if self.model.info.fixed.is_some() {
                    Form::Engine
                } else {
                    Form::Portable
                };
                longer_package(&contents.contract.source.model, form, max, needed)
            }
            Files::Checkpoint(_) => (needed <= max).then(|| format!("--context {needed}")),
        }
    }

    /// The checkpoint; a package is another thing, which other verbs look at.
    pub fn checkpoint(&self) -> Result<&Checkpoint, Failure> {
        match &self.files {
            Files::Checkpoint(checkpoint) => Ok(checkpoint),
            Files::Package(_) => Err(not_a_checkpoint(&self.path)),
        }
    }
}

/// Find a model, fetching it where it must be fetched, and lower it; a package is lowered already.
pub fn open(spec: &str, options: &Options, app: &App) -> Result<Opened, Failure> {
    let files = app.hub.resolve(spec)?;
    app.output
        .explain(&format!("reading {}", files.path.display()));
    app.output.busy("reading the model");
    if is_package(&files.path) {
        return open_package(files, options, app);
    }
    let checkpoint = checkpoint(&files)?;
    open_checkpoint(files, checkpoint, options, app)
}

/// The checkpoint that the files are.
pub fn checkpoint(files: &thane_hub::ModelFiles) -> Result<Checkpoint, Failure> {
    if is_package(&files.path) {
        return Err(not_a_checkpoint(&files.path));
    }
    Checkpoint::open(&files.path).map_err(|e| Failure::new(Code::Usage, e))
}

/// Lower a checkpoint.
pub fn open_checkpoint(
    files: thane_hub::ModelFiles,
    checkpoint: Checkpoint,
    options: &Options,
    app: &App,
) -> Result<Opened, Failure> {
    let mut model =
        thane_models::build(&checkpoint, options).map_err(|e| unusable(&files.path, e))?;
    model
        .notes
        .iter()
        .for_each(|note| app.output.say(&format!("thane: {note}")));
    model.program = compile(model.program, &files.path, app)?;
    let thane_hub::ModelFiles {
        name,
        path,
        license,
        ..
    } = files;
    Ok(Opened {
        name,
        path,
        license,
        files: Files::Checkpoint(Box::new(checkpoint)),
        model,
    })
}

/// Read every number that a program is made of; see [`thane_models::check_numbers`].
pub fn check_numbers(path: &Path, stored: &[StoredWeight]) -> Result<(), Failure> {
    thane_models::check_numbers(stored).map_err(|e| unusable(path, e))
}

/// The failure of a verb that takes no package.
pub fn not_a_checkpoint(path: &Path) -> Failure {
    let error = anyhow::anyhow!(
        "expected a checkpoint, found the Core ML package {}",
        path.display()
    );
    Failure::new(Code::Usage, error).remedy(format!("thane inspect --stats {}", path.display()))
}

/// The conversion that gives a package, whose cache is as long as it was written, a context of
/// `needed` tokens, where the model can have that.
fn longer_package(model: &str, form: Form, max: usize, needed: usize) -> Option<String> {
    let form = if form == Form::Engine {
        " --form engine"
    } else {
        ""
    };
    (needed <= max).then(|| format!("thane convert {model}{form} -o PACKAGE --context {needed}"))
}

/// Whether a path is that of a Core ML package or of a compiled one.
pub fn is_package(path: &Path) -> bool {
    path.join("Manifest.json").is_file() || path.join("coremldata.bin").is_file()
}

fn open_package(
    files: thane_hub::ModelFiles,
    options: &Options,
    app: &App,
) -> Result<Opened, Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let thane_hub::ModelFiles {
        name,
        path,
        license,
        ..
    } = files;
    let package = Package::open(&path).map_err(|e| usage(e.into()))?;
    let contents = contract::read(&path, &package.program)
        .map_err(usage)?
        .ok_or_else(|| {
            let error = anyhow::anyhow!(
                "{}: the package has no contract that says how to run it",
                path.display()
            );
            Failure::new(Code::Usage, error)
                .remedy("thane convert MODEL -o PACKAGE makes packages that can be run")
                .remedy(format!(
                    "thane predict {} --out FOLDER runs a function of it once",
                    path.display()
                ))
        })?;
    let info: Info = match contents.contract.model.clone() {
        Facts::Generate(facts) => facts.into(),
        Facts::Embed(_) => {
            let error = anyhow::anyhow!(
                "{}: the package makes vectors of texts, not answers",
                path.display()
            );
            return Err(Failure::new(Code::Usage, error)
                .remedy(format!("thane embed {} TEXT", path.display())));
        }
    };
    if let Some(asked) = options.context.filter(|n| *n != info.context) {
        let error = anyhow::anyhow!(
            "the package holds {} tokens, --context asks for {asked}",
            info.context
        );
        let failure = Failure::new(Code::Usage, error).remedy(format!(
            "leave --context out, or --context {}",
            info.context
        ));
        let form = if info.fixed.is_some() {
            Form::Engine
        } else {
            Form::Portable
        };
        let longer = longer_package(
            &contents.contract.source.model,
            form,
            info.max_context,
            asked,
        );
        return Err(longer.into_iter().fold(failure, Failure::remedy));
    }
    let model = Model {
        program: compile(package.program, &path, app)?,
        info,
        notes: Vec::new(),
        stored: Vec::new(),
    };
    Ok(Opened {
        name,
        path,
        license,
        files: Files::Package(Box::new(contents)),
        model,
    })
}

/// What finds out whether a file is what it should be.
const CHECK: &str =
    "thane pull MODEL --check, which reads every byte of a model of the catalog or the Hub again";

/// Run the passes over a program.
pub fn compile(program: Program, path: &Path, app: &App) -> Result<Program, Failure> {
    program
        .check_files()
        .map_err(|e| Failure::new(Code::Usage, e))?;
    let done = thane_compile::run(program, &thane_compile::Options::default());
    let (program, _) = done.map_err(|e| match e {
        // What a family makes is legal but for the numbers of the file.
        CompileError::Illegal(_) => Failure::new(
            Code::Usage,
            anyhow::Error::new(e).context(path.display().to_string()),
        )
        .remedy(CHECK),
        _ => Failure::new(Code::Other, e),
    })?;
    let n_ops = program
        .functions()
        .iter()
        .map(|f| f.all_ops().len())
        .sum::<usize>();
    let functions = counted(program.functions().len(), "function");
    app.output.explain(&format!(
        "the program: {functions}, {}",
        counted(n_ops, "op")
    ));
    Ok(program)
}

/// The failure of a model that cannot be lowered.
pub fn unusable(path: &Path, error: ModelError) -> Failure {
    let shown = path.display();
    let remedies = match &error {
        ModelError::Tensors(_) => {
            vec!["fetch the model again; its files do not belong together".to_owned()]
        }
        ModelError::Architecture { .. } => vec!["a model of a supported architecture".to_owned()],
        ModelError::EmbedsOnly(_) => vec![
            format!("thane embed {shown} TEXT"),
            format!("thane convert {shown} --task embed -o PACKAGE.mlpackage"),
        ],
        ModelError::AnswersOnly(_) => vec![format!("thane run {shown} PROMPT")],
        ModelError::Numbers {
            overflow: false, ..
        } => vec![CHECK.to_owned()],
        ModelError::Numbers { overflow: true, .. } => vec![
            "--form portable, which keeps fp32 (language models)".to_owned(),
            "--residual-divisor, 16 or more, where the weights write to the residual stream"
                .to_owned(),
        ],
        _ => Vec::new(),
    };
    let failure = Failure::new(
        Code::Usage,
        anyhow::Error::new(error).context(path.display().to_string()),
    );
    remedies.into_iter().fold(failure, Failure::remedy)
}

/// A program ready to run, with a profile where one is asked for.
pub fn load(
    cpu: Cpu,
    program: &Program,
    profile: Option<&Arc<Profile>>,
) -> Result<Arc<dyn Executable>, LoadError> {
    match profile {
        Some(profile) => cpu.load_profiled(program, Arc::clone(profile)),
        None => cpu.load(program),
    }
}

/// A session over a fresh instance on the CPU, which can answer.
pub fn session(opened: &Opened, flags: &RunFlags, app: &App) -> Result<Session, Failure> {
    require(opened, &["prefill", "decode"])?;
    session_of_any(opened, flags, app)
}

/// The same over a program that may have only some of the functions.
pub fn session_of_any(opened: &Opened, flags: &RunFlags, app: &App) -> Result<Session, Failure> {
    let instance = executable(opened, flags, app)?
        .instantiate()
        .map_err(unstarted)?;
    let Info {
        context,
        vocab_size,
        ..
    } = opened.model.info;
    Ok(Session::new(instance, context, vocab_size, fixed(opened)))
}

/// Refuse a program that lacks one of these functions, as `convert --functions` writes it.
fn require(opened: &Opened, needed: &[&str]) -> Result<(), Failure> {
    let program = &opened.model.program;
    let Some(missing) = needed.iter().find(|name| program.function(name).is_none()) else {
        return Ok(());
    };
    let names: Vec<&str> = program
        .functions()
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    let (path, names) = (opened.path.display(), names.join(" and "));
    let error = anyhow::anyhow!(
        "{path}: it has the function {names} only; to answer, the function `{missing}` is needed"
    );
    Err(Failure::new(Code::Usage, error)
        .remedy("thane convert MODEL -o PACKAGE without --functions, which writes all")
        .remedy(format!(
            "thane predict {path} --out FOLDER runs a function of it once"
        )))
}

/// The tokenizer and a session, made at the same time where there are threads for both: the first
/// token waits for both.
pub fn language_and_session(
    opened: &Opened,
    flags: &RunFlags,
    app: &App,
) -> Result<(Language, Session), Failure> {
    if n_threads(flags.threads) == 1 {
        return Ok((language(opened)?, session(opened, flags, app)?));
    }
    std::thread::scope(|scope| {
        let language = scope.spawn(|| language(opened));
        let session = session(opened, flags, app);
        let language = language
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((language, session?))
    })
}

/// The failure of an instance that cannot be made; what it takes is its caches.
fn unstarted(error: RunError) -> Failure {
    let is_too_large = matches!(error, RunError::OverBudget { .. } | RunError::Memory { .. });
    let failure = Failure::new(Code::Usage, error);
    if is_too_large {
        failure.remedy("--context N, with fewer tokens: a cache takes memory for each")
    } else {
        failure
    }
}

/// Sessions over that many fresh instances on the CPU.
pub fn sessions(
    opened: &Opened,
    flags: &RunFlags,
    n: usize,
    app: &App,
) -> Result<Sessions, Failure> {
    require(opened, &["prefill", "decode"])?;
    let batch = executable(opened, flags, app)?
        .instantiate_batch(n)
        .map_err(unstarted)?;
    let Info {
        context,
        vocab_size,
        ..
    } = opened.model.info;
    Ok(Sessions::new(batch, context, vocab_size, fixed(opened)))
}

fn executable(
    opened: &Opened,
    flags: &RunFlags,
    app: &App,
) -> Result<Arc<dyn Executable>, Failure> {
    let cpu = cpu(flags.program.numerics, flags.threads, app);
    load(cpu, &opened.model.program, flags.profile.as_ref())
        .map_err(|e| Failure::new(Code::Usage, e))
}

fn fixed(opened: &Opened) -> Option<Fixed> {
    opened.model.info.fixed.map(|f| Fixed {
        block: f.block,
        window: f.window,
    })
}

/// The tokenizer and chat template that the files carry.
pub fn language(opened: &Opened) -> Result<Language, Failure> {
    let missing = || match &opened.files {
        Files::Checkpoint(c) if c.gguf().is_some() => {
            anyhow::anyhow!("the file has no tokenizer (key tokenizer.ggml.tokens)")
        }
        Files::Checkpoint(_) => anyhow::anyhow!("the folder has no tokenizer.json"),
        Files::Package(_) => {
            anyhow::anyhow!("the package was made of a checkpoint without a tokenizer")
        }
    };
    let language = parts(opened)?.ok_or_else(missing).and_then(Parts::language);
    language.map_err(|e| Failure::new(Code::Usage, e.context(opened.path.display().to_string())))
}

/// What they are made of; none where the files have no tokenizer.
pub fn parts(opened: &Opened) -> Result<Option<Parts>, Failure> {
    match &opened.files {
        Files::Checkpoint(checkpoint) => Parts::of(checkpoint, opened.model.info.vocab_size)
            .map_err(|e| Failure::new(Code::Usage, e.context(opened.path.display().to_string()))),
        Files::Package(contents) => Ok(contents.parts.clone()),
    }
}

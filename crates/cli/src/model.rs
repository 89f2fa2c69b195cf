//! A model from its files: checkpoint, program, tokenizer, chat template, and a session on the CPU.

use std::path::Path;

use thane_compile::CompileError;
use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::Session;
use thane_engine::text::{ChatTemplate, Tokenizer, TokenizerConfig, Vocab};
use thane_mil::backend::Backend;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::checkpoint::{Checkpoint, Gguf, HuggingFace, Source};
use thane_models::{Model, ModelError, Options};

use crate::app::App;
use crate::exit::{Code, Failure};
use crate::hub;

/// What program is made of a model; flags of every verb that makes one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ProgramFlags {
    /// Tokens of prompt and answer together [default: the model's context, 8192 at most].
    #[arg(long, env = "THANE_CONTEXT", value_name = "N")]
    pub context: Option<usize>,
    /// How to compute: fast takes quantised weights as they are and caches in fp16, f32 is the reference, ane is fp16 after
    /// each op with the sums of the Apple Neural Engine.
    #[arg(long, env = "THANE_NUMERICS", value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast)]
    pub numerics: NumericsFlag,
}

/// How a model is run; flags of every verb that runs one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct RunFlags {
    #[command(flatten)]
    pub program: ProgramFlags,
    /// Threads [default: the physical cores].
    #[arg(long, env = "THANE_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// The values of `--numerics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NumericsFlag {
    F32,
    Fast,
    Ane,
}

impl ProgramFlags {
    /// What program these flags ask for.
    pub fn options(&self, score: bool) -> Options {
        let cache = if self.numerics == NumericsFlag::F32 { DType::Fp32 } else { DType::Fp16 };
        Options { context: self.context, cache, score }
    }
}

impl RunFlags {
    fn cpu(&self) -> Cpu {
        let numerics = match self.program.numerics {
            NumericsFlag::F32 => Numerics::F32,
            NumericsFlag::Fast => Numerics::Fast,
            NumericsFlag::Ane => Numerics::Ane(Effects::default()),
        };
        Cpu { numerics, n_threads: self.threads.map_or_else(num_cpus::get_physical, usize::from) }
    }
}

/// A checkpoint and its program.
pub struct Opened {
    /// As the user would ask for it again.
    pub name: String,
    pub checkpoint: Checkpoint,
    pub model: Model,
}

/// Find a model, fetching it where it must be fetched, and lower it.
pub fn open(spec: &str, options: &Options, app: &App) -> Result<Opened, Failure> {
    let files = hub::resolve(spec, &app.hub)?;
    app.output.explain(&format!("reading {}", files.path.display()));
    let checkpoint = Checkpoint::open(&files.path).map_err(|e| Failure::new(Code::Usage, e))?;
    let mut model = thane_models::build(&checkpoint, options).map_err(|e| unusable(&files.path, e))?;
    model.program = compile(model.program, &files.path, app)?;
    Ok(Opened { name: files.name, checkpoint, model })
}

fn compile(program: Program, path: &Path, app: &App) -> Result<Program, Failure> {
    let done = thane_compile::run(program, &thane_compile::Options::default());
    let (program, report) = done.map_err(|e| match e {
        // What a family makes is legal but for the numbers of the file.
        CompileError::Illegal(_) => {
            Failure::new(Code::Usage, anyhow::Error::new(e).context(path.display().to_string()))
                .remedy("thane pull MODEL --check, which reads every byte of a model of the catalogue or the Hub again")
        }
        _ => Failure::new(Code::Other, e),
    })?;
    report.passes.iter().for_each(|pass| app.output.explain(&pass.to_string()));
    Ok(program)
}

fn unusable(path: &Path, error: ModelError) -> Failure {
    let remedy = match &error {
        ModelError::Tensors(_) => Some("fetch the model again; its files do not belong together"),
        ModelError::Architecture { .. } => Some("a model of a supported architecture"),
        _ => None,
    };
    let failure = Failure::new(Code::Usage, anyhow::Error::new(error).context(path.display().to_string()));
    match remedy {
        Some(remedy) => failure.remedy(remedy),
        None => failure,
    }
}

/// A session over a fresh instance on the CPU.
pub fn session(opened: &Opened, flags: &RunFlags) -> Result<Session, Failure> {
    let bad = |e: anyhow::Error| Failure::new(Code::Other, e);
    let executable = flags.cpu().load(&opened.model.program).map_err(|e| bad(e.into()))?;
    let instance = executable.instantiate().map_err(|e| bad(e.into()))?;
    Ok(Session::new(instance, opened.model.info.context, opened.model.info.vocab_size))
}

/// How text becomes tokens and conversations become text.
pub struct Language {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
}

/// The tokenizer and chat template that the files carry.
pub fn language(opened: &Opened) -> Result<Language, Failure> {
    let n_vocab = opened.model.info.vocab_size;
    let language = match &opened.checkpoint.source {
        Source::Gguf(gguf) => from_gguf(gguf, n_vocab),
        Source::HuggingFace(folder) => from_folder(folder, n_vocab),
    };
    let path = opened.checkpoint.path.display().to_string();
    language.map_err(|e| Failure::new(Code::Usage, e.context(path)))
}

fn from_gguf(gguf: &Gguf, n_vocab: usize) -> anyhow::Result<Language> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| gguf.opt_u32(&key(name));
    let texts = |name: &str| -> anyhow::Result<Option<Vec<String>>> {
        Ok(gguf.opt_strings(&key(name))?.map(|v| v.into_iter().map(str::to_owned).collect()))
    };
    let source = gguf.opt_str("tokenizer.chat_template")?;
    let tokens =
        texts("tokens")?.ok_or_else(|| anyhow::anyhow!("the file has no tokenizer (key tokenizer.ggml.tokens)"))?;
    let (bos, eos) = (id("bos_token_id")?, id("eos_token_id")?);
    let spelled = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default();
    let template = source.map(|s| ChatTemplate::new(s, &spelled(bos), &spelled(eos))).transpose()?;
    let vocab = Vocab {
        model: gguf.str(&key("model"))?.to_owned(),
        pre: gguf.opt_str(&key("pre"))?.map(str::to_owned),
        tokens,
        scores: gguf.opt_f32s(&key("scores"))?,
        token_types: gguf.opt_i32s(&key("token_type"))?,
        merges: texts("merges")?,
        bos,
        eos,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: gguf.opt_bool(&key("add_bos_token"))?,
        add_eos: gguf.opt_bool(&key("add_eos_token"))?,
        add_space_prefix: gguf.opt_bool(&key("add_space_prefix"))?,
        remove_extra_whitespaces: gguf.opt_bool(&key("remove_extra_whitespaces"))?,
        chat_template: source.map(str::to_owned),
        n_vocab,
    };
    Ok(Language { tokenizer: Tokenizer::from_vocab(vocab)?, template })
}

fn from_folder(folder: &HuggingFace, n_vocab: usize) -> anyhow::Result<Language> {
    let read = |path: &Path| std::fs::read(path).map_err(|e| anyhow::Error::new(e).context(path.display().to_string()));
    let json = folder.tokenizer_json.as_deref().ok_or_else(|| anyhow::anyhow!("the folder has no tokenizer.json"))?;
    let mut config = match folder.tokenizer_config.as_deref() {
        Some(path) => TokenizerConfig::from_tokenizer_config(&read(path)?, n_vocab)?,
        None => TokenizerConfig { n_vocab, ..TokenizerConfig::default() },
    };
    if let Some(path) = folder.chat_template.as_deref() {
        config.chat_template = Some(String::from_utf8(read(path)?)?);
    }
    config.eos_ids.extend(folder.eos_token_ids()?);
    let spelled = |token: &Option<String>| token.clone().unwrap_or_default();
    let (bos, eos) = (spelled(&config.bos_token), spelled(&config.eos_token));
    let template = config.chat_template.as_deref().map(|s| ChatTemplate::new(s, &bos, &eos)).transpose()?;
    Ok(Language { tokenizer: Tokenizer::from_json(&read(json)?, config)?, template })
}

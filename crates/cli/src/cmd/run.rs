//! `thane run`: answers a prompt, or holds a conversation.

use std::io::{self, IsTerminal, Read};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use thane_engine::pages::PageForm;
use thane_engine::sample::TokenLogprob;
use thane_engine::text::Tokenizer;
use thane_runtime::{
    Generator, GrammarSource, LanguageModel, Model, PageOptions, PromptCache, Timings,
};
use thane_serve::Client;

use crate::app::{App, size};
use crate::chat;
use crate::exit::{Failure, Outcome, usage, without_os_numbers};
use crate::grammars;
use crate::memory::peak_memory;
use crate::model::{self, RunFlags};
use crate::profile;
use crate::remote::{Ask, ServerFlags};
use crate::sampling::SamplingFlags;
use crate::structure::StructureFlags;
use crate::talk::Talk;

/// Answer a prompt, or hold a conversation on a terminal.
#[derive(Debug, clap::Args)]
#[command(mut_arg("server", |arg| arg.conflicts_with_all(OF_MACHINE)))]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// The prompt; text on stdin is appended to it.
    ///
    /// Several words need no quotes if the shell takes none of them for itself.
    ///
    /// Without a prompt, stdin is the prompt; on a terminal, a conversation starts.
    prompt: Vec<String>,
    /// Do not apply the model's chat template to the prompt.
    #[arg(long)]
    raw: bool,
    /// Interpret control tokens in messages, such as <|im_end|>; by default they are plain text.
    #[arg(long, conflicts_with = "raw")]
    allow_special_tokens: bool,
    /// System message.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Most tokens of an answer [default: as the model's files say, else 1024].
    #[arg(long, aliases = ["n-predict", "num-predict"], value_name = "N")]
    max_tokens: Option<usize>,
    /// End the answer before this text; can be repeated.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Keep no history of conversations; by default messages are saved in the file `history` of the
    /// cache folder.
    #[arg(long)]
    no_history: bool,
    /// Keep prompts in this folder, so that what begins alike need not be computed again.
    ///
    /// The folder may be the one of thane serve --prompt-cache. All weights are read at the start,
    /// because files belong to them.
    #[arg(long, value_name = "FOLDER")]
    prompt_cache: Option<PathBuf>,
    /// Most bytes in that folder, for each model.
    #[arg(long, value_name = "SIZE", default_value = "8GB", value_parser = size,
        requires = "prompt_cache")]
    prompt_cache_size: usize,
    /// Print the time of each kernel at the end, compared with the machine's peak rates.
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    structure: StructureFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    flags: RunFlags,
}

/// Flags of a model on this machine, which a server has its own of.
const OF_MACHINE: [&str; 9] = [
    "allow_special_tokens",
    "context",
    "logprobs",
    "no_history",
    "numerics",
    "profile",
    "prompt_cache",
    "prompt_cache_size",
    "threads",
];

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// Token ids of the prompt, with those of the chat template.
    prompt_tokens: &'a [u32],
    /// Token ids of the answer, without the token that ended it.
    tokens: &'a [u32],
    text: &'a str,
    /// `stop`: the model ended its turn or a stop string came; `length`: --max-tokens; `context`:
    /// the KV cache is full; `interrupted`.
    finish_reason: &'a str,
    /// Of each token, with --logprobs.
    logprobs: Option<Vec<Logprob>>,
    timings: Times,
}

/// What the model says of a token: before penalties, grammars and temperature.
#[derive(Serialize)]
struct Logprob {
    token: u32,
    /// The text of the token; what is no whole character is U+FFFD.
    text: String,
    /// Natural logarithm of the probability; null if the model excludes the token.
    logprob: Option<f32>,
    /// The most likely tokens, the likeliest first.
    top: Vec<Top>,
}

/// A likely token.
#[derive(Serialize)]
struct Top {
    token: u32,
    text: String,
    logprob: Option<f32>,
}

impl Logprob {
    fn new(found: &TokenLogprob, tokenizer: &Tokenizer) -> Self {
        let text = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
        let finite = |logprob: &f32| logprob.is_finite();
        let top = |(token, logprob): &(u32, f32)| Top {
            token: *token,
            text: text(*token),
            logprob: Some(*logprob).filter(finite),
        };
        Self {
            token: found.token,
            text: text(found.token),
            logprob: found.logprob.filter(finite),
            top: found.top.iter().map(top).collect(),
        }
    }
}

/// Seconds and rates of an answer.
#[derive(Serialize)]
struct Times {
    /// Time to first token.
    first_token_s: f64,
    prefill_s: f64,
    /// Tokens of the prompt that were computed, without those in the KV cache.
    prefill_tokens: usize,
    prefill_tokens_per_s: f64,
    decode_s: f64,
    /// Tokens after the first one.
    decode_tokens: usize,
    decode_tokens_per_s: f64,
    /// Peak memory of the process; null where the system does not tell.
    peak_memory_bytes: Option<u64>,
}

impl Times {
    fn new(t: &Timings) -> Self {
        Self {
            first_token_s: t.first_token.as_secs_f64(),
            prefill_s: t.prefill.as_secs_f64(),
            prefill_tokens: t.prefill_tokens,
            prefill_tokens_per_s: t.prefill_rate(),
            decode_s: t.decode.as_secs_f64(),
            decode_tokens: t.decode_tokens,
            decode_tokens_per_s: t.decode_rate(),
            peak_memory_bytes: peak_memory(),
        }
    }
}

pub fn run(args: &Args, app: &App) -> Outcome {
    if args.structure.logprobs().is_some() && !app.output.is_json() {
        return Err(
            usage!("--logprobs needs --json, which prints them").remedy("the same with --json")
        );
    }
    let grammar = args.structure.grammar(&app.budget)?;
    if let Some(client) = args.server.client(app)? {
        return ask(args, &client, grammar, app);
    }
    let talks = args.prompt.is_empty() && io::stdin().is_terminal() && !app.output.is_json();
    let prompt = (!talks).then(|| prompt(args, app.output.is_json()));
    let prompt = prompt.transpose()?;
    let model = Model::open(&args.model, &app.hub, app.output.as_ref())?;
    let choice = args.sampling.choose(&model, prompt.is_none())?;
    let options = match args.max_tokens {
        // Nothing is decoded after the first token.
        Some(0 | 1) => args.flags.program.options(false),
        _ if args.structure.needs_all_logits() => args.flags.program.options(false),
        _ => args.flags.program.sampling_options(&choice.options),
    };
    // The process ends with model and generator, and the system takes their memory back at once. To
    // free each piece would take a tenth of the time of a short answer.
    let model = ManuallyDrop::new(model.language_model(&options, app.output.as_ref())?);
    let flags = RunFlags {
        profile: profile::wanted(args.profile),
        ..args.flags.clone()
    };
    let backend = flags.backend(app);
    let in_parallel = model::n_threads(flags.threads) > 1;
    let mut generator = model.start(&backend, choice.options.clone(), in_parallel)?;
    app.output.clear();
    generator.max_tokens = args.max_tokens;
    generator.stop.clone_from(&args.stop);
    generator.prompts.allow_special_tokens = args.allow_special_tokens;
    generator.prompts.budget = app.budget.clone();
    if let Some(folder) = &args.prompt_cache {
        keep_prompts(folder, args, &model, &mut generator, app)?;
    }
    if let Some(source) = &grammar {
        generator.prompts.grammars.program = Some(grammars::program());
        generator.prompts.grammars.set_budget(app.budget.clone());
        generator.set_grammar(source, &|| app.interrupt.is_set())?;
    }
    if let Some(n) = args.structure.logprobs() {
        generator.set_logprobs(n)?;
    }
    let mut talk = ManuallyDrop::new(Talk::new(app, &flags, &model, generator));
    if !args.raw {
        talk.use_template(args.system.as_deref())?;
    }
    let cpu = &backend.cpu;
    let Some(prompt) = prompt else {
        let history = (!args.no_history).then(|| app.hub.places.cache.join("history"));
        let outcome = chat::converse(&mut talk, &choice, history.as_deref());
        profile::say(flags.profile.as_ref(), cpu, &app.output);
        return outcome;
    };
    let (prompt_tokens, answer) = talk.once(prompt)?;
    profile::say(flags.profile.as_ref(), cpu, &app.output);
    if app.output.is_json() {
        let shows = args.structure.logprobs().is_some();
        let tokenizer = talk.generator.tokenizer();
        let logprobs = answer.logprobs.iter();
        let logprobs = logprobs.map(|found| Logprob::new(found, tokenizer));
        let logprobs = shows.then(|| logprobs.collect());
        app.output.json(&Report {
            model: &model.name,
            prompt_tokens: &prompt_tokens,
            tokens: &answer.tokens,
            text: &answer.text,
            finish_reason: answer.finish_reason.name(),
            logprobs,
            timings: Times::new(&answer.timings),
        })?;
    }
    talk.ended(&answer)
}

/// Most memory for prompts that are kept, as in `thane serve`.
const PROMPT_BYTES: usize = 512_000_000;

fn keep_prompts(
    folder: &Path,
    args: &Args,
    model: &LanguageModel,
    generator: &mut Generator,
    app: &App,
) -> Outcome {
    let identity = model.cache_identity(&format!("{:?}", args.flags.program.numerics))?;
    let output = Arc::clone(&app.output);
    let complain = Box::new(move |what: &str| {
        output.say(&format!("thane: {}", without_os_numbers(what)));
    });
    let limit = args.prompt_cache_size as u64;
    let store = PromptCache::open(folder, &identity, limit, complain).map_err(|e| {
        let error = anyhow::Error::new(e).context(folder.display().to_string());
        usage(error).remedy("--prompt-cache with another folder")
    })?;
    let options = PageOptions {
        most_bytes: PROMPT_BYTES,
        budget: app.budget.clone(),
        form: PageForm::Exact,
        store: Some(Box::new(store)),
    };
    if !generator.keep_prompts(model, options)? {
        app.output.say(
            "thane: --prompt-cache keeps nothing of this model: its functions have fixed lengths, \
             or layers remember all tokens together",
        );
    }
    Ok(())
}

/// Prints the answer of a server.
fn ask(args: &Args, client: &Client, grammar: Option<GrammarSource>, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("the answer of a server"));
    }
    if args.prompt.is_empty() && io::stdin().is_terminal() {
        return Err(usage!("expected a prompt: --server holds no conversation")
            .remedy("thane run MODEL --server URL \"a prompt\"")
            .remedy("the page of the server, which its address opens in a browser"));
    }
    let mut fields = args.sampling.fields();
    if !args.stop.is_empty() {
        fields.insert("stop".to_owned(), args.stop.clone().into());
    }
    let ask = Ask {
        model: &args.model,
        prompt: prompt(args, false)?,
        system: args.system.as_deref(),
        is_raw: args.raw,
        max_tokens: args.max_tokens.unwrap_or(Generator::MAX_TOKENS),
        grammar,
        fields,
    };
    ask.run(client, app)
}

fn prompt(args: &Args, is_json: bool) -> Result<String, Failure> {
    let missing = |what: &'static str| {
        let failure = usage!(what).remedy("thane run MODEL \"a prompt\", or a prompt on stdin");
        let talk = match is_json {
            true => "without --json on a terminal",
            false => "on a terminal",
        };
        failure.remedy(format!("thane run MODEL {talk}, for a conversation"))
    };
    let words = (!args.prompt.is_empty()).then(|| args.prompt.join(" "));
    let text = match &words {
        Some(prompt) if has_piped_text() => {
            // Text that is piped in is what the prompt is about.
            let text = from_stdin(args.raw)?;
            match text.trim().is_empty() {
                true => prompt.clone(),
                false => format!("{prompt}\n\n{text}"),
            }
        }
        Some(prompt) => prompt.clone(),
        None if io::stdin().is_terminal() && is_json => {
            return Err(missing("--json needs a prompt"));
        }
        None if io::stdin().is_terminal() => return Err(missing("there is no prompt")),
        None => from_stdin(args.raw)?,
    };
    // A raw prompt may be empty, since many vocabularies have a token that begins a text.
    if text.trim().is_empty() && !args.raw {
        return Err(missing("the prompt is empty"));
    }
    Ok(text)
}

/// Whether stdin is a pipe, a file or a socket. A parent process may leave a device as stdin from
/// which nothing ever comes.
fn has_piped_text() -> bool {
    #[cfg(unix)]
    {
        use nix::sys::stat::{SFlag, fstat};
        let kind =
            fstat(io::stdin()).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
        kind.is_ok_and(|kind| {
            kind == SFlag::S_IFIFO || kind == SFlag::S_IFREG || kind == SFlag::S_IFSOCK
        })
    }
    #[cfg(not(unix))]
    {
        !io::stdin().is_terminal()
    }
}

fn from_stdin(raw: bool) -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| usage(anyhow::Error::new(e).context("the prompt on stdin cannot be read")))?;
    // The line break that `echo` appends is not part of the prompt.
    if !raw && text.ends_with('\n') {
        text.pop();
        text.truncate(text.trim_end_matches('\r').len());
    }
    Ok(text)
}

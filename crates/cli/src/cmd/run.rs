//! `thane run`: answer a prompt, or talk.

use std::io::{self, IsTerminal, Read};
use std::mem::ManuallyDrop;

use serde::Serialize;
use thane_engine::generate::{Answer, Timings};

use crate::app::App;
use crate::chat;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, RunFlags};
use crate::profile;
use crate::sampling::{self, Recommended, Sampling};
use crate::talk::{Talk, peak_memory};

/// Answer a prompt, or hold a conversation on a terminal.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// The prompt, which text on stdin follows.
    ///
    /// Without it stdin is the prompt, or a terminal a conversation.
    prompt: Option<String>,
    /// Give the prompt to the model as it is, without its chat template.
    #[arg(long)]
    raw: bool,
    /// Read control tokens that are spelled in messages, such as <|im_end|>, as such; otherwise
    /// they are text.
    #[arg(long, conflicts_with = "raw")]
    allow_special_tokens: bool,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Tokens of an answer at most.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// End the answer before this text; can be given more than once.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Keep no history of a conversation; otherwise its messages are in the file `history` of the
    /// cache folder.
    #[arg(long)]
    no_history: bool,
    /// Say at the end where the time went, and how that is to what the machine can do.
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    flags: RunFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// Ids of the prompt as the model saw it, the template's included.
    prompt_tokens: &'a [u32],
    /// Ids of the answer; a token that ended the turn is not among them.
    tokens: &'a [u32],
    text: &'a str,
    /// `stop`: the model ended its turn or a stop string came; `length`: --max-tokens; `context`:
    /// the cache is full; `interrupted`.
    finish_reason: &'a str,
    timings: Times,
}

/// Seconds and rates of an answer.
#[derive(Serialize)]
struct Times {
    /// From the prompt to the first token.
    first_token_s: f64,
    prefill_s: f64,
    /// Tokens of the prompt that were computed.
    prefill_tokens: usize,
    prefill_tokens_per_s: f64,
    decode_s: f64,
    /// Tokens after the first.
    decode_tokens: usize,
    decode_tokens_per_s: f64,
    /// Most memory that the process held; null where the system does not tell.
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
    let talks = args.prompt.is_none() && io::stdin().is_terminal() && !app.output.is_json();
    let prompt = if talks {
        None
    } else {
        Some(prompt(args, app.output.is_json())?)
    };
    // The process ends with them: the system takes their memory back at once, where to let go of
    // each piece takes a tenth of the time of a short answer.
    let opened = ManuallyDrop::new(model::open(
        &args.model,
        &args.flags.program.options(false),
        app,
    )?);
    let flags = RunFlags {
        profile: profile::wanted(args.profile),
        ..args.flags.clone()
    };
    let choice = args
        .sampling
        .choice(Recommended::of(&opened)?, prompt.is_none());
    let sampler = sampling::sampler(choice.options.clone())?;
    let (language, session) = model::language_and_session(&opened, &flags, app)?;
    app.output.clear();
    let mut talk = ManuallyDrop::new(Talk::new(app, &flags, &opened, language, session, sampler));
    talk.max_tokens = args.max_tokens;
    talk.stop.clone_from(&args.stop);
    talk.allows_special = args.allow_special_tokens;
    if !args.raw {
        talk.use_template(args.system.as_deref())?;
    }
    let cpu = model::cpu(flags.program.numerics, flags.threads, app);
    let Some(prompt) = prompt else {
        let history = (!args.no_history).then(|| app.hub.places.cache.join("history"));
        let outcome = chat::converse(&mut talk, choice, history.as_deref());
        profile::say(flags.profile.as_ref(), &cpu, &app.output);
        return outcome;
    };
    let (prompt_tokens, answer) = talk.once(prompt)?;
    profile::say(flags.profile.as_ref(), &cpu, &app.output);
    if app.output.is_json() {
        app.output
            .json(&report(&opened.name, &prompt_tokens, &answer))?;
    }
    talk.ended(&answer)
}

fn report<'a>(model: &'a str, prompt_tokens: &'a [u32], answer: &'a Answer) -> Report<'a> {
    Report {
        model,
        prompt_tokens,
        tokens: &answer.tokens,
        text: &answer.text,
        finish_reason: answer.finish_reason.name(),
        timings: Times::new(&answer.timings),
    }
}

fn prompt(args: &Args, is_json: bool) -> Result<String, Failure> {
    let missing = |what: &'static str| {
        let failure = Failure::new(Code::Usage, anyhow::anyhow!(what))
            .remedy("thane run MODEL \"a prompt\", or a prompt on stdin");
        let talk = if is_json {
            "without --json on a terminal"
        } else {
            "on a terminal"
        };
        failure.remedy(format!("thane run MODEL {talk}, for a conversation"))
    };
    let text = match &args.prompt {
        Some(prompt) if has_piped_text() => {
            // What is piped in is what the prompt is about.
            let text = from_stdin(args.raw)?;
            if text.trim().is_empty() {
                prompt.clone()
            } else {
                format!("{prompt}\n\n{text}")
            }
        }
        Some(prompt) => prompt.clone(),
        None if io::stdin().is_terminal() && is_json => {
            return Err(missing("--json needs a prompt"));
        }
        None if io::stdin().is_terminal() => return Err(missing("there is no prompt")),
        None => from_stdin(args.raw)?,
    };
    // A raw prompt may be empty: many vocabularies have a token that begins a text.
    if text.trim().is_empty() && !args.raw {
        return Err(missing("the prompt is empty"));
    }
    Ok(text)
}

/// Whether stdin is a pipe or a file: a program that starts this one may leave it a device that
/// never says anything.
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
    io::stdin().read_to_string(&mut text).map_err(|e| {
        Failure::new(
            Code::Usage,
            anyhow::Error::new(e).context("the prompt on stdin cannot be read"),
        )
    })?;
    // The line break that `echo` adds is nothing that anybody said.
    if !raw && text.ends_with('\n') {
        text.pop();
        text.truncate(text.trim_end_matches('\r').len());
    }
    Ok(text)
}

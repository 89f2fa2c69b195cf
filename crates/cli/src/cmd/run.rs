//! `thane run`: answer a prompt, or talk.

use std::io::{self, IsTerminal, Read};
use std::mem::ManuallyDrop;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use thane_engine::generate::{Answer, Timings};
use thane_engine::sample::{SampleError, SampleOptions, Sampler};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, RunFlags};
use crate::profile;
use crate::talk::{Talk, peak_memory};

/// Answer a prompt, or hold a conversation on a terminal.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalogue.
    model: String,
    /// The prompt [default: stdin, or a conversation on a terminal].
    prompt: Option<String>,
    /// Give the prompt to the model as it is, without its chat template.
    #[arg(long, value_parser = FalseyValueParser::new())]
    raw: bool,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Tokens of an answer at most.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// End the answer before this text; can be given more than once.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Say at the end where the time went, and how that is to what the machine can do.
    #[arg(long, value_parser = FalseyValueParser::new())]
    profile: bool,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    flags: RunFlags,
}

/// How tokens are chosen.
// Numbers below zero are let through, so that the answer is the range and not "unexpected argument".
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
struct Sampling {
    /// 0 takes the likeliest token; higher is bolder.
    #[arg(long, value_name = "T", default_value_t = SampleOptions::default().temperature, allow_negative_numbers = true)]
    temperature: f32,
    /// The same seed gives the same answer.
    #[arg(long, value_name = "N", default_value_t = SampleOptions::default().seed)]
    seed: u64,
    /// Choose among this many likeliest tokens; 0 is all.
    #[arg(long, value_name = "N", default_value_t = SampleOptions::default().top_k)]
    top_k: usize,
    /// Choose among the likeliest tokens whose probabilities reach this sum.
    #[arg(long, value_name = "P", default_value_t = SampleOptions::default().top_p, allow_negative_numbers = true)]
    top_p: f32,
    /// Choose among tokens at least this often as likely as the likeliest.
    #[arg(long, value_name = "P", default_value_t = SampleOptions::default().min_p, allow_negative_numbers = true)]
    min_p: f32,
    /// Divide the logits of the last 64 tokens by this; 1 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().repetition_penalty, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Take this from the logits of the last 64 tokens; 0 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().presence_penalty, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Take this from them for each time that they are there; 0 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().frequency_penalty, allow_negative_numbers = true)]
    frequency_penalty: f32,
}

impl Sampling {
    fn sampler(&self) -> Result<Sampler, Failure> {
        let options = SampleOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            ..SampleOptions::default()
        };
        Sampler::new(options).map_err(|e| match e {
            SampleError::Option { option, value, range } => {
                let flag = option.replace('_', "-");
                Failure::new(Code::Usage, anyhow::anyhow!("--{flag} is {value}, but must be {range}"))
            }
            other => Failure::new(Code::Usage, other),
        })
    }
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
    /// `stop`: the model ended its turn or a stop string came; `length`: --max-tokens; `context`: the cache is full;
    /// `interrupted`.
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
    let sampler = args.sampling.sampler()?;
    let talks = args.prompt.is_none() && io::stdin().is_terminal() && !app.output.is_json();
    let prompt = if talks { None } else { Some(prompt(args)?) };
    // The process ends with them: the system takes their memory back at once, where to let go of each piece takes a tenth of the
    // time of a short answer.
    let opened = ManuallyDrop::new(model::open(&args.model, &args.flags.program.options(false), app)?);
    let flags = RunFlags { profile: profile::wanted(args.profile), ..args.flags.clone() };
    let (language, session) = model::language_and_session(&opened, &flags, app)?;
    app.output.clear();
    let mut talk = ManuallyDrop::new(Talk::new(app, &flags, &opened, language, session, sampler));
    talk.max_tokens = args.max_tokens;
    talk.stop.clone_from(&args.stop);
    if args.raw {
        talk.language.template = None;
    } else {
        talk.check_template(args.system.as_deref())?;
    }
    let cpu = model::cpu(flags.program.numerics, flags.threads, app);
    let Some(prompt) = prompt else {
        let outcome = talk.conversation();
        profile::say(flags.profile.as_ref(), &cpu, &app.output);
        return outcome;
    };
    let (prompt_tokens, answer) = talk.once(prompt)?;
    profile::say(flags.profile.as_ref(), &cpu, &app.output);
    if app.output.is_json() {
        app.output.json(&report(&opened.name, &prompt_tokens, &answer))?;
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

fn prompt(args: &Args) -> Result<String, Failure> {
    let missing = |what: &'static str| {
        Failure::new(Code::Usage, anyhow::anyhow!(what))
            .remedy("thane run MODEL \"a prompt\", or a prompt on stdin")
            .remedy("thane run MODEL on a terminal, for a conversation")
    };
    let text = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None if io::stdin().is_terminal() => return Err(missing("there is no prompt")),
        None => from_stdin(args.raw)?,
    };
    // A raw prompt may be empty: many vocabularies have a token that begins a text.
    if text.trim().is_empty() && !args.raw {
        return Err(missing("the prompt is empty"));
    }
    Ok(text)
}

fn from_stdin(raw: bool) -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| Failure::new(Code::Usage, anyhow::Error::new(e).context("the prompt on stdin cannot be read")))?;
    // The line break that `echo` adds is nothing that anybody said.
    if !raw && text.ends_with('\n') {
        text.pop();
        text.truncate(text.trim_end_matches('\r').len());
    }
    Ok(text)
}

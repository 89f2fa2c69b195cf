//! `thane run`: answer a prompt, or talk.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::ops::ControlFlow;

use serde::Serialize;
use thane_engine::generate::{Answer, FinishReason, GenerateError, Limits, Session, Timings, generate};
use thane_engine::sample::{SampleOptions, Sampler};
use thane_engine::text::{EncodeOptions, Message, StreamOptions, TextStream};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, Language, RunFlags};

/// Answer a prompt; without one, talk on a terminal, or take the prompt from stdin.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name with /file or @revision after it, or a name of the catalogue.
    model: String,
    /// The prompt.
    prompt: Option<String>,
    /// Take the prompt as it is, without the model's chat template.
    #[arg(long, env = "THANE_RAW", value_parser = clap::builder::FalseyValueParser::new())]
    raw: bool,
    /// What the model is told before the conversation.
    #[arg(long, env = "THANE_SYSTEM", value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
    /// Tokens of an answer at most.
    #[arg(long, env = "THANE_MAX_TOKENS", value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// End the answer before this text; can be given more than once.
    #[arg(long, env = "THANE_STOP", value_name = "TEXT")]
    stop: Vec<String>,
    #[command(flatten)]
    flags: RunFlags,
}

/// How tokens are chosen.
#[derive(Debug, clap::Args)]
struct Sampling {
    /// 0 takes the likeliest token; higher is bolder.
    #[arg(long, env = "THANE_TEMPERATURE", default_value_t = SampleOptions::default().temperature)]
    temperature: f32,
    /// Choose among this many likeliest tokens; 0 among all.
    #[arg(long, env = "THANE_TOP_K", default_value_t = SampleOptions::default().top_k)]
    top_k: usize,
    /// Choose among the likeliest tokens whose probabilities reach this sum.
    #[arg(long, env = "THANE_TOP_P", default_value_t = SampleOptions::default().top_p)]
    top_p: f32,
    /// Choose among tokens at least this often as likely as the likeliest.
    #[arg(long, env = "THANE_MIN_P", default_value_t = SampleOptions::default().min_p)]
    min_p: f32,
    /// Make tokens that were used less likely by this factor.
    #[arg(long, env = "THANE_REPETITION_PENALTY", default_value_t = SampleOptions::default().repetition_penalty)]
    repetition_penalty: f32,
    /// Make tokens that were used less likely by this much.
    #[arg(long, env = "THANE_PRESENCE_PENALTY", default_value_t = SampleOptions::default().presence_penalty, allow_hyphen_values = true)]
    presence_penalty: f32,
    /// The same for each time that they were used.
    #[arg(long, env = "THANE_FREQUENCY_PENALTY", default_value_t = SampleOptions::default().frequency_penalty, allow_hyphen_values = true)]
    frequency_penalty: f32,
    /// The same seed gives the same answer.
    #[arg(long, env = "THANE_SEED", default_value_t = SampleOptions::default().seed)]
    seed: u64,
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
        Sampler::new(options).map_err(|e| Failure::new(Code::Usage, e))
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
    let opened = model::open(&args.model, &args.flags.options(false), app)?;
    let language = model::language(&opened)?;
    let session = model::session(&opened, &args.flags)?;
    let mut talk = Talk { args, app, name: &opened.name, language, session, sampler, messages: Vec::new() };
    if let Some(system) = &args.system {
        talk.messages.push(Message::new("system", system));
    }
    match prompt {
        Some(prompt) => talk.once(prompt),
        None => talk.conversation(),
    }
}

fn prompt(args: &Args) -> Result<String, Failure> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if io::stdin().is_terminal() {
        return Err(Failure::new(Code::Usage, anyhow::anyhow!("there is no prompt"))
            .remedy("thane run MODEL \"a prompt\", or a prompt on stdin"));
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| Failure::new(Code::Usage, anyhow::Error::new(e).context("stdin")))?;
    Ok(text)
}

struct Talk<'a> {
    args: &'a Args,
    app: &'a App,
    name: &'a str,
    language: Language,
    session: Session,
    sampler: Sampler,
    messages: Vec<Message>,
}

impl Talk<'_> {
    fn once(&mut self, prompt: String) -> Outcome {
        let (tokens, answer) = self.answer(prompt)?;
        if self.app.output.is_json() {
            let reason = answer.finish_reason.name();
            let timings = Times::new(&answer.timings);
            let (tokens, text) = (tokens.as_slice(), answer.text.as_str());
            let answered = answer.tokens.as_slice();
            let report = Report {
                model: self.name,
                prompt_tokens: tokens,
                tokens: answered,
                text,
                finish_reason: reason,
                timings,
            };
            self.app.output.json(&report)?;
        }
        self.ended(&answer)
    }

    /// Questions from the terminal until its end.
    fn conversation(&mut self) -> Outcome {
        self.app.output.say("An empty line or Ctrl-D ends the conversation.");
        loop {
            let mut err = io::stderr();
            // Nobody reading stderr is no reason to stop.
            let _ = write!(err, "> ").and_then(|()| err.flush());
            let mut line = String::new();
            let n = io::stdin().lock().read_line(&mut line)?;
            if n == 0 || line.trim().is_empty() {
                return Ok(());
            }
            let (_, answer) = self.answer(line.trim_end_matches(['\n', '\r']).to_owned())?;
            self.ended(&answer)?;
            self.messages.push(Message::new("assistant", answer.text));
        }
    }

    fn answer(&mut self, prompt: String) -> Result<(Vec<u32>, Answer), Failure> {
        let is_chat = self.language.template.is_some() && !self.args.raw;
        let tokens = self.encode(prompt, is_chat)?;
        let options = StreamOptions { stop: self.args.stop.clone(), skip_special: true, strip_space_prefix: is_chat };
        let tokenizer = &self.language.tokenizer;
        let mut stream = TextStream::new(tokenizer, options);
        let _cooperative = self.app.interrupt.cooperate();
        let limits = Limits {
            max_tokens: self.args.max_tokens,
            is_end: &|token| tokenizer.is_end(token),
            interrupted: &|| self.app.interrupt.is_set(),
        };
        let mut broken = None;
        let shows = !self.app.output.is_json();
        let mut show = |text: &str| match if shows { self.app.output.data(text) } else { Ok(()) } {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                broken = Some(e);
                ControlFlow::Break(())
            }
        };
        let answer = generate(&mut self.session, &mut self.sampler, &mut stream, &tokens, &limits, &mut show);
        let answer = answer.map_err(|e| refused(e, &self.args.flags))?;
        if let Some(error) = broken {
            return Err(error.into());
        }
        if shows {
            self.app.output.data("\n")?;
        }
        Ok((tokens, answer))
    }

    fn encode(&mut self, prompt: String, is_chat: bool) -> Result<Vec<u32>, Failure> {
        let bad = |e: anyhow::Error| Failure::new(Code::Usage, e);
        let mut text = prompt;
        if let Some(template) = self.language.template.as_ref().filter(|_| is_chat) {
            self.messages.push(Message::new("user", text));
            text = template.render(&self.messages, true).map_err(|e| bad(e.into()))?;
        }
        // A rendered template writes its control tokens itself; a raw prompt may hold them too.
        let options = EncodeOptions { add_special: !is_chat, parse_special: true };
        self.language.tokenizer.encode(&text, options).map_err(|e| bad(e.into()))
    }

    fn ended(&self, answer: &Answer) -> Outcome {
        let t = &answer.timings;
        let peak = peak_memory().map_or_else(String::new, |n| format!(", peak memory {}", crate::output::bytes(n)));
        self.app.output.explain(&format!(
            "first token after {:.3} s, prefill {} tokens at {:.1}/s, decode {} tokens at {:.1}/s{peak}",
            t.first_token.as_secs_f64(),
            t.prefill_tokens,
            t.prefill_rate(),
            t.decode_tokens,
            t.decode_rate(),
        ));
        match answer.finish_reason {
            FinishReason::Interrupted => Err(Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted"))),
            FinishReason::Context => {
                let context = self.session.context();
                self.app
                    .output
                    .say(&format!("thane: the context of {context} tokens is full; --context N makes it longer"));
                Ok(())
            }
            FinishReason::Stop | FinishReason::Length => Ok(()),
        }
    }
}

fn refused(error: GenerateError, flags: &RunFlags) -> Failure {
    let remedy = match &error {
        GenerateError::PromptTooLong { prompt, .. } => {
            Some(format!("--context {} or more, as far as the model goes", (prompt + 256).next_multiple_of(256)))
        }
        GenerateError::EmptyPrompt => Some("a prompt that is not empty".to_owned()),
        _ => None,
    };
    let code = if remedy.is_some() { Code::Usage } else { Code::Other };
    let failure = Failure::new(code, error);
    match remedy.filter(|_| flags.context != Some(0)) {
        Some(remedy) => failure.remedy(remedy),
        None => failure,
    }
}

/// Most memory that the process ever held, by Linux's account.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

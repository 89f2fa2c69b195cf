//! Questions and answers: what was said so far, as tokens, and the answer as text.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use thane_engine::generate::{Answer, FinishReason, GenerateError, Limits, Session, generate};
use thane_engine::sample::{SampleError, Sampler};
use thane_engine::text::{
    ChatTemplate, EncodeOptions, Message, StreamOptions, TemplateError, TextStream,
};
use thane_mil::budget::Reservation;

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::language::{Language, TOKENIZER_BYTES, Template};
use crate::model::{NumericsFlag, Opened, RunFlags};
use crate::output::Output;
use crate::output::counted;
use crate::overflow;
use crate::screen::Wrap;

/// How long an answer may take to end by itself when it is interrupted: a call of the program is
/// not broken off, and the first one reads up to 512 tokens.
const GRACE: Duration = Duration::from_millis(300);

/// A model with what was said so far.
pub struct Talk<'a> {
    pub language: Language,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    /// Control tokens that are spelled in messages are such.
    pub allows_special: bool,
    app: &'a App,
    opened: &'a Opened,
    flags: RunFlags,
    /// Whether there was a prompt yet.
    has_begun: bool,
    session: Session,
    sampler: Sampler,
    template: Option<ChatTemplate>,
    /// Grows only where there is a template to render it. The system message, if there is one, is
    /// the first.
    messages: Vec<Message>,
}

impl<'a> Talk<'a> {
    pub fn new(
        app: &'a App,
        flags: &RunFlags,
        opened: &'a Opened,
        language: Language,
        session: Session,
        sampler: Sampler,
    ) -> Self {
        Self {
            language,
            max_tokens: usize::MAX,
            stop: Vec::new(),
            allows_special: false,
            app,
            opened,
            flags: flags.clone(),
            has_begun: false,
            session,
            sampler,
            template: None,
            messages: Vec::new(),
        }
    }

    /// Reads the chat template and takes what the model is told before; says so where there is no
    /// template that could tell it anything.
    pub fn use_template(&mut self, system: Option<&str>) -> Outcome {
        let template = self
            .language
            .template
            .as_ref()
            .map(Template::parse)
            .transpose();
        self.template = template.map_err(|e| self.refused_by_template(e))?;
        match (&self.template, system) {
            (Some(_), system) => self
                .messages
                .extend(system.map(|text| Message::new("system", text))),
            (None, Some(_)) => {
                let error =
                    anyhow::anyhow!("the model has no chat template, so --system has no place");
                return Err(Failure::new(Code::Usage, error).remedy("the same without --system"));
            }
            (None, None) => self
                .app
                .output
                .say("thane: the model has no chat template: it goes on from the prompt as it is"),
        }
        Ok(())
    }

    pub fn output(&self) -> Arc<Output> {
        Arc::clone(&self.app.output)
    }

    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.sampler = sampler;
    }

    /// Forgets all but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(self.n_system());
    }

    /// Begins anew with this system message, or with none.
    pub fn set_system(&mut self, text: Option<&str>) {
        if self.template.is_none() {
            return self
                .app
                .output
                .say("thane: the model has no chat template, so a system message has no place");
        }
        self.messages.clear();
        self.messages
            .extend(text.map(|text| Message::new("system", text)));
        self.app.output.say("The conversation begins anew.");
    }

    /// How full the context is.
    pub fn fill(&self) -> String {
        format!(
            "{} of the context's {}",
            counted(self.session.tokens().len(), "token"),
            self.session.context()
        )
    }

    fn n_system(&self) -> usize {
        usize::from(
            self.messages
                .first()
                .is_some_and(|message| message.role == "system"),
        )
    }

    /// The answer to one prompt, and the tokens of the prompt.
    pub fn once(&mut self, prompt: String) -> Result<(Vec<u32>, Answer), Failure> {
        self.answer(prompt, Some(GRACE))
    }

    /// A question of a conversation. What is wrong with it is said, and there may be another.
    pub fn turn(&mut self, question: String) -> Outcome {
        let before = self.messages.clone();
        match self.answer(question, None) {
            Ok((_, answer)) => {
                if self.template.is_some() {
                    self.messages.push(Message::new("assistant", &answer.text));
                }
                // An interrupted answer is as far as the user wanted it.
                if answer.finish_reason == FinishReason::Interrupted {
                    self.app.interrupt.clear();
                    return Ok(());
                }
                self.ended(&answer)
            }
            Err(failure) if failure.code() == Code::Usage => {
                self.messages = before;
                let _ = failure.print(&mut io::stderr());
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn answer(
        &mut self,
        prompt: String,
        grace: Option<Duration>,
    ) -> Result<(Vec<u32>, Answer), Failure> {
        let tokens = self.encode(prompt)?;
        if !std::mem::replace(&mut self.has_begun, true) {
            overflow::warn(self.opened, &self.flags, &tokens, self.app);
        }
        let is_chat = self.template.is_some();
        let options = StreamOptions {
            stop: self.stop.clone(),
            skip_special: true,
            strip_space_prefix: is_chat,
        };
        let tokenizer = &self.language.tokenizer;
        let mut stream = TextStream::new(tokenizer, options);
        let _cooperative = self.app.interrupt.cooperate(grace);
        let limits = Limits {
            max_tokens: self.max_tokens,
            is_end: &|token| tokenizer.is_end(token),
            interrupted: &|| self.app.interrupt.is_set(),
        };
        let output = &self.app.output;
        let (mut broken, shows) = (None, !output.is_json());
        let mut wrap = output.columns().filter(|_| shows).map(Wrap::new);
        let mut show = |text: &str| {
            let shown = match &mut wrap {
                _ if !shows => Ok(()),
                Some(wrap) => output.data(&wrap.push(text)),
                None => output.data(text),
            };
            match shown {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    broken = Some(e);
                    ControlFlow::Break(())
                }
            }
        };
        self.app.output.busy(&format!(
            "reading the prompt of {}",
            counted(tokens.len(), "token")
        ));
        let answer = generate(
            &mut self.session,
            &mut self.sampler,
            &mut stream,
            &tokens,
            &limits,
            &mut show,
        );
        self.app.output.clear();
        if let Some(error) = broken {
            return Err(error.into());
        }
        if let Some(wrap) = &mut wrap {
            output.data(&wrap.finish())?;
        }
        // What was broken off before its first word leaves no line.
        let is_whole = answer
            .as_ref()
            .is_ok_and(|a| a.finish_reason != FinishReason::Interrupted);
        if shows && (is_whole || output.is_in_line()) {
            output.data("\n")?;
        }
        answer
            .map(|answer| (tokens, answer))
            .map_err(|e| self.refused(e))
    }

    fn encode(&mut self, prompt: String) -> Result<Vec<u32>, Failure> {
        if self.template.is_none() {
            self.say_what_is_lost(&prompt);
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            let _held = self.reserve(&prompt)?;
            return self
                .language
                .tokenizer
                .encode(&prompt, options)
                .map_err(|e| Failure::new(Code::Usage, e));
        }
        self.say_what_is_lost(&prompt);
        self.messages.push(Message::new("user", prompt));
        let (mut n_dropped, context) = (0, self.session.context());
        // An answer needs room too.
        let room = self.max_tokens.clamp(1, (context / 4).max(1));
        let oldest = self.n_system();
        loop {
            let tokens = self.encode_messages()?;
            let is_last = self.messages.len() < oldest + 3;
            if tokens.len() + room > context && !is_last {
                // A question and its answer, so that roles go on by turns.
                self.messages.drain(oldest..oldest + 2);
                n_dropped += 2;
                continue;
            }
            // What does not fit alone is refused, and nothing was left out for it.
            if n_dropped > 0 && tokens.len() <= context {
                let dropped = counted(n_dropped, "message");
                self.app.output.say(&format!(
                    "thane: the context of {context} tokens is full: the oldest {dropped} left out"
                ));
            }
            return Ok(tokens);
        }
    }

    fn encode_messages(&self) -> Result<Vec<u32>, Failure> {
        let Some(template) = &self.template else {
            return Ok(Vec::new());
        };
        let rendered = template
            .render(&self.messages, true)
            .map_err(|e| self.refused_by_template(e))?;
        let _held = self.reserve(&rendered.text)?;
        let tokenizer = &self.language.tokenizer;
        let tokens = if self.allows_special {
            tokenizer.encode(
                &rendered.text,
                EncodeOptions {
                    add_special: false,
                    parse_special: true,
                },
            )
        } else {
            tokenizer.encode_rendered(&rendered)
        };
        tokens.map_err(|e| Failure::new(Code::Usage, e))
    }

    fn refused_by_template(&self, error: TemplateError) -> Failure {
        let error = anyhow::Error::from(error).context(self.opened.name.clone());
        Failure::new(Code::Usage, error)
            .remedy("--raw, which gives the model the prompt without its template")
    }

    /// What the tokenizer takes for a prompt: a template may have made a long one.
    fn reserve(&self, prompt: &str) -> Result<Reservation, Failure> {
        let n_bytes = prompt.len().saturating_mul(TOKENIZER_BYTES);
        let held = self.app.budget.reserve(n_bytes, || {
            format!("the tokens of a prompt of {} bytes", prompt.len())
        });
        held.map_err(|e| Failure::new(Code::Usage, e))
    }

    fn say_what_is_lost(&self, text: &str) {
        let mut lost: Vec<String> = self
            .language
            .tokenizer
            .unencodable(text)
            .map(|c| format!("U+{:04X}", u32::from(c)))
            .collect();
        lost.sort();
        lost.dedup();
        if !lost.is_empty() {
            self.app.output.say(&format!(
                "thane: left out, as the vocabulary has no token for it: {}",
                lost.join(" ")
            ));
        }
    }

    /// Says how it went; an interruption is an error.
    pub fn ended(&self, answer: &Answer) -> Outcome {
        let t = &answer.timings;
        let peak = peak_memory().map_or_else(String::new, |n| {
            format!(", peak memory {}", crate::output::bytes(n))
        });
        self.app.output.explain(&format!(
            "first token after {:.3} s, prefill {} at {:.1}/s, decode {} at {:.1}/s{peak}",
            t.first_token.as_secs_f64(),
            counted(t.prefill_tokens, "token"),
            t.prefill_rate(),
            counted(t.decode_tokens, "token"),
            t.decode_rate(),
        ));
        match answer.finish_reason {
            FinishReason::Interrupted => {
                return Err(Failure::new(
                    Code::Interrupted,
                    anyhow::anyhow!("interrupted"),
                ));
            }
            FinishReason::Context => {
                let (context, most) = (self.session.context(), self.opened.model.info.max_context);
                let longer = self
                    .opened
                    .longer_context((2 * context).min(most))
                    .filter(|_| context < most);
                let more =
                    longer.map_or_else(String::new, |longer| format!("; {longer} makes it longer"));
                self.app.output.say(&format!(
                    "thane: the context of {context} tokens is full{more}"
                ));
            }
            FinishReason::Length => {
                let n = self.max_tokens;
                self.app
                    .output
                    .say(&format!("thane: the answer was cut after --max-tokens {n}"));
            }
            FinishReason::Stop => {}
        }
        Ok(())
    }

    fn refused(&self, error: GenerateError) -> Failure {
        match error {
            GenerateError::PromptTooLong { prompt, .. } => {
                let failure = Failure::new(Code::Usage, error);
                // Room for an answer, in a number that is easy to type.
                let most = self.opened.model.info.max_context;
                let wanted = (prompt + 256).next_multiple_of(256).min(most);
                match self
                    .opened
                    .longer_context(wanted)
                    .filter(|_| wanted > prompt)
                {
                    Some(longer) => {
                        failure.remedy(format!("{longer}, or up to the model's {most}"))
                    }
                    None => {
                        failure.remedy(format!("a shorter prompt: the model has {most} positions"))
                    }
                }
            }
            GenerateError::EmptyPrompt => {
                Failure::new(Code::Usage, error).remedy("a prompt that is not empty")
            }
            GenerateError::Sample(SampleError::NotFinite { .. } | SampleError::Empty(_)) => {
                no_numbers(error.into(), &self.opened.name, self.flags.program.numerics)
            }
            // What the program gave or refused: the model is at fault, or what it was asked for.
            _ => Failure::new(Code::Usage, error),
        }
    }
}

/// The failure of a model whose logits are no numbers.
pub fn no_numbers(error: anyhow::Error, model: &str, numerics: NumericsFlag) -> Failure {
    let error = error.context(
        "the model's logits are no numbers: its weights are damaged, or too large to compute with",
    );
    let failure = Failure::new(Code::Usage, error);
    let failure = match numerics {
        NumericsFlag::Fast | NumericsFlag::Int8 | NumericsFlag::Ane => {
            failure.remedy("--numerics f32, which has a wider range")
        }
        NumericsFlag::F32 => failure,
    };
    failure.remedy(format!(
        "thane pull {model} --check, if it was fetched; else fetch it again"
    ))
}

/// Most memory that the process ever held, by Linux's account.
pub fn peak_memory() -> Option<u64> {
    peak_memory_of("self")
}

/// That of another process, while it runs.
pub fn peak_memory_of(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kb| kb * 1024)
}

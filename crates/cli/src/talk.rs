//! Questions and answers: one, or a conversation on the terminal.

use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use thane_engine::generate::{Answer, FinishReason, GenerateError, Limits, Session, generate};
use thane_engine::sample::{SampleError, Sampler};
use thane_engine::text::{EncodeOptions, Message, StreamOptions, TextStream};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::language::Language;
use crate::model::{NumericsFlag, Opened, RunFlags};
use crate::output::counted;

/// How long an answer may take to end by itself when it is interrupted: a call of the program is not broken off, and
/// the first one reads up to 512 tokens.
const GRACE: Duration = Duration::from_millis(300);

/// A model with what was said so far.
pub struct Talk<'a> {
    pub language: Language,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    app: &'a App,
    model: &'a str,
    max_context: usize,
    numerics: NumericsFlag,
    session: Session,
    sampler: Sampler,
    /// Grows only where there is a template to render it.
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
            app,
            model: &opened.name,
            max_context: opened.model.info.max_context,
            numerics: flags.program.numerics,
            session,
            sampler,
            messages: Vec::new(),
        }
    }

    /// Takes what the model is told before; says so where there is no template that could tell it anything.
    pub fn check_template(&mut self, system: Option<&str>) -> Outcome {
        match (&self.language.template, system) {
            (Some(_), system) => self.messages.extend(system.map(|text| Message::new("system", text))),
            (None, Some(_)) => {
                let error = anyhow::anyhow!("the model has no chat template, so --system has no place");
                return Err(Failure::new(Code::Usage, error).remedy("the same without --system"));
            }
            (None, None) => {
                self.app.output.say("thane: the model has no chat template: it goes on from the prompt as it is")
            }
        }
        Ok(())
    }

    /// The answer to one prompt, and the tokens of the prompt.
    pub fn once(&mut self, prompt: String) -> Result<(Vec<u32>, Answer), Failure> {
        self.answer(prompt, Some(GRACE))
    }

    /// Questions from the terminal until its end.
    pub fn conversation(&mut self) -> Outcome {
        self.app.output.say("Ctrl-D ends the conversation, Ctrl-C an answer, /clear begins anew.");
        let n_before = self.messages.len();
        while let Some(line) = self.question()? {
            match line.trim() {
                "" => {}
                "/clear" => self.messages.truncate(n_before),
                _ => {
                    self.turn(line)?;
                    self.app.output.say("");
                }
            }
        }
        Ok(())
    }

    /// A line from the terminal; none at its end.
    fn question(&self) -> io::Result<Option<String>> {
        self.app.output.ask("> ");
        let mut line = String::new();
        let n = io::stdin().lock().read_line(&mut line)?;
        if n == 0 {
            // Ctrl-D leaves the cursor behind the prompt.
            let _ = writeln!(io::stderr());
        }
        self.app.output.answered();
        Ok((n > 0).then(|| line.trim_end_matches(['\n', '\r']).to_owned()))
    }

    fn turn(&mut self, line: String) -> Outcome {
        let n_before = self.messages.len();
        match self.answer(line, None) {
            Ok((_, answer)) => {
                if self.language.template.is_some() {
                    self.messages.push(Message::new("assistant", &answer.text));
                }
                // An interrupted answer is as far as the user wanted it.
                if answer.finish_reason == FinishReason::Interrupted {
                    self.app.interrupt.clear();
                    return Ok(());
                }
                self.ended(&answer)
            }
            // The question was at fault, and there may be another.
            Err(failure) if failure.code() == Code::Usage => {
                self.messages.truncate(n_before);
                let _ = failure.remedy("/clear, to begin anew").print(&mut io::stderr());
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn answer(&mut self, prompt: String, grace: Option<Duration>) -> Result<(Vec<u32>, Answer), Failure> {
        let tokens = self.encode(prompt)?;
        let is_chat = self.language.template.is_some();
        let options = StreamOptions { stop: self.stop.clone(), skip_special: true, strip_space_prefix: is_chat };
        let tokenizer = &self.language.tokenizer;
        let mut stream = TextStream::new(tokenizer, options);
        let _cooperative = self.app.interrupt.cooperate(grace);
        let limits = Limits {
            max_tokens: self.max_tokens,
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
        self.app.output.busy(&format!("reading the prompt of {}", counted(tokens.len(), "token")));
        let answer = generate(&mut self.session, &mut self.sampler, &mut stream, &tokens, &limits, &mut show);
        self.app.output.clear();
        if let Some(error) = broken {
            return Err(error.into());
        }
        // What was broken off before its first word leaves no line.
        let is_whole = answer.as_ref().is_ok_and(|a| a.finish_reason != FinishReason::Interrupted);
        if shows && (is_whole || self.app.output.is_in_line()) {
            self.app.output.data("\n")?;
        }
        answer.map(|answer| (tokens, answer)).map_err(|e| self.refused(e))
    }

    fn encode(&mut self, prompt: String) -> Result<Vec<u32>, Failure> {
        let bad = |e: anyhow::Error| Failure::new(Code::Usage, e);
        let mut text = prompt;
        let is_chat = self.language.template.is_some();
        if let Some(template) = &self.language.template {
            self.messages.push(Message::new("user", text));
            text = template.render(&self.messages, true).map_err(|e| bad(e.into()))?;
        }
        let mut lost: Vec<String> =
            self.language.tokenizer.lost(&text).map(|c| format!("U+{:04X}", u32::from(c))).collect();
        lost.sort();
        lost.dedup();
        if !lost.is_empty() {
            self.app.output.say(&format!("thane: left out, as the vocabulary has no token for it: {}", lost.join(" ")));
        }
        // A rendered template writes its control tokens itself; a raw prompt may hold them too.
        let options = EncodeOptions { add_special: !is_chat, parse_special: true };
        self.language.tokenizer.encode(&text, options).map_err(|e| bad(e.into()))
    }

    /// Says how it went; an interruption is an error.
    pub fn ended(&self, answer: &Answer) -> Outcome {
        let t = &answer.timings;
        let peak = peak_memory().map_or_else(String::new, |n| format!(", peak memory {}", crate::output::bytes(n)));
        self.app.output.explain(&format!(
            "first token after {:.3} s, prefill {} at {:.1}/s, decode {} at {:.1}/s{peak}",
            t.first_token.as_secs_f64(),
            counted(t.prefill_tokens, "token"),
            t.prefill_rate(),
            counted(t.decode_tokens, "token"),
            t.decode_rate(),
        ));
        match answer.finish_reason {
            FinishReason::Interrupted => return Err(Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted"))),
            FinishReason::Context => {
                let context = self.session.context();
                let more = if context < self.max_context { "; --context N makes it longer" } else { "" };
                self.app.output.say(&format!("thane: the context of {context} tokens is full{more}"));
            }
            FinishReason::Stop | FinishReason::Length => {}
        }
        Ok(())
    }

    fn refused(&self, error: GenerateError) -> Failure {
        match error {
            GenerateError::PromptTooLong { prompt, .. } => {
                let failure = Failure::new(Code::Usage, error);
                // Room for an answer, in a number that is easy to type.
                let wanted = (prompt + 256).next_multiple_of(256).min(self.max_context);
                if wanted > prompt {
                    return failure.remedy(format!("--context {wanted}, or up to the model's {}", self.max_context));
                }
                failure.remedy(format!("a shorter prompt: the model has {} positions", self.max_context))
            }
            GenerateError::EmptyPrompt => Failure::new(Code::Usage, error).remedy("a prompt that is not empty"),
            GenerateError::Sample(SampleError::NotFinite { .. } | SampleError::Empty(_)) => {
                no_numbers(error.into(), self.model, self.numerics)
            }
            // What the program gave or refused: the model is at fault, or what it was asked for.
            _ => Failure::new(Code::Usage, error),
        }
    }
}

/// The failure of a model whose logits are no numbers.
pub fn no_numbers(error: anyhow::Error, model: &str, numerics: NumericsFlag) -> Failure {
    let error =
        error.context("the model's logits are no numbers: its weights are damaged, or too large to compute with");
    let failure = Failure::new(Code::Usage, error);
    let failure = match numerics {
        NumericsFlag::Fast | NumericsFlag::Int8 | NumericsFlag::Ane => {
            failure.remedy("--numerics f32, which has a wider range")
        }
        NumericsFlag::F32 => failure,
    };
    failure.remedy(format!("thane pull {model} --check, if it was fetched; else fetch it again"))
}

/// Most memory that the process ever held, by Linux's account.
pub fn peak_memory() -> Option<u64> {
    peak_memory_of("self")
}

/// That of another process, while it runs.
pub fn peak_memory_of(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

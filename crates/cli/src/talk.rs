//! Questions and answers on the terminal: what was said so far, the answer as it streams, and what
//! there is to say about it.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thane_engine::generate::{FinishReason, GenerateError};
use thane_engine::sample::SampleError;
use thane_runtime::{Answer, Generator, LanguageModel, Message, RuntimeError, n_system};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome, interrupted, usage};
use crate::memory::peak_memory;
use crate::model::{NumericsFlag, RunFlags, longer_context};
use crate::output::{Output, bytes, counted};
use crate::overflow;
use crate::screen::Wrap;

/// How long an answer may take to end by itself after an interrupt. A call of the program is not
/// broken off, and the first one reads up to 512 tokens.
const GRACE: Duration = Duration::from_millis(300);

/// A running model and what was said so far.
pub struct Talk<'a> {
    pub generator: Generator,
    app: &'a App,
    model: &'a LanguageModel,
    flags: RunFlags,
    /// Whether there was a prompt yet.
    has_begun: bool,
    /// Whether nothing was said since the conversation started; the KV cache may still hold the one
    /// before.
    is_new: bool,
    /// The conversation, which only grows if the model has a chat template. A system message comes
    /// first.
    messages: Vec<Message>,
}

impl<'a> Talk<'a> {
    pub fn new(
        app: &'a App,
        flags: &RunFlags,
        model: &'a LanguageModel,
        generator: Generator,
    ) -> Self {
        Self {
            generator,
            app,
            model,
            flags: flags.clone(),
            has_begun: false,
            is_new: true,
            messages: Vec::new(),
        }
    }

    /// Parses the chat template and begins with a system message, if there is one.
    pub fn use_template(&mut self, system: Option<&str>) -> Outcome {
        self.generator.prompts.use_template()?;
        match (self.generator.prompts.has_template(), system) {
            (true, system) => {
                let system = system.map(|text| Message::new("system", text));
                self.messages.extend(system);
            }
            (false, Some(_)) => {
                return Err(
                    usage!("the model has no chat template, so --system has no place")
                        .remedy("the same without --system"),
                );
            }
            (false, None) => {
                let said = "the model has no chat template: it goes on from the prompt as it is";
                self.app.output.say(&format!("thane: {said}"));
            }
        }
        Ok(())
    }

    pub fn model_name(&self) -> &str {
        &self.model.name
    }

    pub fn output(&self) -> Arc<Output> {
        Arc::clone(&self.app.output)
    }

    /// Forgets every message but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(n_system(&self.messages));
        self.is_new = true;
    }

    /// Begins a new conversation with this system message, or with none.
    pub fn set_system(&mut self, text: Option<&str>) {
        if !self.generator.prompts.has_template() {
            let said = "thane: the model has no chat template, so a system message has no place";
            return self.app.output.say(said);
        }
        self.messages.clear();
        let system = text.map(|text| Message::new("system", text));
        self.messages.extend(system);
        self.is_new = true;
        self.app.output.say("A new conversation starts.");
    }

    /// How full the context is.
    pub fn fill(&self) -> String {
        let n_cached = if self.is_new {
            0
        } else {
            self.generator.n_cached()
        };
        let tokens = counted(n_cached, "token");
        format!("{tokens} of the context's {}", self.generator.context())
    }

    /// Answers one prompt; also returns the tokens of the prompt.
    pub fn once(&mut self, prompt: String) -> Result<(Vec<u32>, Answer), Failure> {
        self.answer(prompt, Some(GRACE))
    }

    /// Answers a question of a conversation. An error in the question is printed, and the
    /// conversation continues without the question.
    pub fn turn(&mut self, question: String) -> Outcome {
        let before = self.messages.clone();
        match self.answer(question, None) {
            Ok((_, answer)) => {
                if self.generator.prompts.has_template() {
                    self.messages.push(Message::new("assistant", &answer.text));
                }
                // An interrupted answer is as long as the user wanted it.
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
            overflow::check(self.model, &self.flags, &tokens, self.app)?;
        }
        self.is_new = false;
        let _cooperative = self.app.interrupt.cooperate(grace);
        let output = &self.app.output;
        let n_tokens = counted(tokens.len(), "token");
        output.busy(&format!("reading the prompt of {n_tokens}"));
        let mut shown = Shown::new(output);
        let interrupt = &self.app.interrupt;
        let show = &mut |text: &str| {
            let _printing = interrupt.printing();
            shown.push(text)
        };
        let answer = self
            .generator
            .generate(&tokens, &|| interrupt.is_set(), show);
        let _printing = interrupt.printing();
        output.clear();
        // An answer that is broken off before its first word leaves no line.
        let is_whole = |a: &Answer| a.finish_reason != FinishReason::Interrupted;
        shown.finish(answer.as_ref().is_ok_and(is_whole))?;
        let answer = answer.map_err(|e| self.refused(e))?;
        Ok((tokens, answer))
    }

    fn encode(&mut self, prompt: String) -> Result<Vec<u32>, Failure> {
        self.say_what_is_lost(&prompt);
        if !self.generator.prompts.has_template() {
            return Ok(self.generator.prompts.encode_prompt(&prompt)?);
        }
        self.messages.push(Message::new("user", prompt));
        let conversation = self.generator.encode_conversation(&mut self.messages)?;
        let context = self.generator.context();
        // A question that does not even fit alone is refused later, so nothing was dropped for it.
        if conversation.n_dropped > 0 && conversation.tokens.len() <= context {
            let dropped = counted(conversation.n_dropped, "message");
            self.app.output.say(&format!(
                "thane: the context of {context} tokens is full: the oldest {dropped} left out"
            ));
        }
        Ok(conversation.tokens)
    }

    fn say_what_is_lost(&self, text: &str) {
        let lost = self.generator.tokenizer().unencodable(text);
        let lost = lost.map(|c| format!("U+{:04X}", u32::from(c)));
        let mut lost: Vec<String> = lost.collect();
        lost.sort();
        lost.dedup();
        if !lost.is_empty() {
            self.app.output.say(&format!(
                "thane: left out, as the vocabulary has no token for it: {}",
                lost.join(" ")
            ));
        }
    }

    /// Reports speed and why the answer ended; an interruption is an error.
    pub fn ended(&self, answer: &Answer) -> Outcome {
        let t = &answer.timings;
        let peak = peak_memory().map(|n| format!(", peak memory {}", bytes(n)));
        let peak = peak.unwrap_or_default();
        self.app.output.explain(&format!(
            "first token after {:.3} s, prefill {} at {:.1}/s, decode {} at {:.1}/s{peak}",
            t.first_token.as_secs_f64(),
            counted(t.prefill_tokens, "token"),
            t.prefill_rate(),
            counted(t.decode_tokens, "token"),
            t.decode_rate(),
        ));
        match answer.finish_reason {
            FinishReason::Interrupted => return Err(interrupted()),
            FinishReason::Context => {
                let (context, most) = (self.generator.context(), self.model.info.max_context);
                let longer = longer_context(self.model, (2 * context).min(most))
                    .filter(|_| context < most)
                    .map_or_else(String::new, |longer| format!("; {longer} makes it longer"));
                self.app.output.say(&format!(
                    "thane: the context of {context} tokens is full{longer}"
                ));
            }
            FinishReason::Length => {
                let cut = match self.generator.max_tokens {
                    Some(n) => format!("--max-tokens {n}"),
                    None => format!(
                        "{}, --max-tokens allows more",
                        counted(answer.tokens.len(), "token")
                    ),
                };
                let said = format!("thane: the answer was cut after {cut}");
                self.app.output.say(&said);
            }
            // Nobody gives an answer here a deadline.
            FinishReason::Stop | FinishReason::Deadline => {}
        }
        Ok(())
    }

    fn refused(&self, error: RuntimeError) -> Failure {
        let RuntimeError::Generate(error) = error else {
            return error.into();
        };
        match *error {
            GenerateError::PromptTooLong { prompt, .. } => {
                let failure = usage(*error);
                // Room for an answer, rounded to a number that is easy to type.
                let most = self.model.info.max_context;
                let wanted = (prompt + 256).next_multiple_of(256).min(most);
                match longer_context(self.model, wanted).filter(|_| wanted > prompt) {
                    Some(longer) => {
                        failure.remedy(format!("{longer}, or up to the model's {most}"))
                    }
                    None => {
                        failure.remedy(format!("a shorter prompt: the model has {most} positions"))
                    }
                }
            }
            GenerateError::EmptyPrompt => usage(*error).remedy("a prompt that is not empty"),
            GenerateError::Sample(SampleError::NotFinite { .. } | SampleError::Empty(_)) => {
                let numerics = self.flags.program.numerics;
                no_numbers((*error).into(), &self.model.name, numerics)
            }
            // The program failed or gave no logits: the model is at fault, or the options are.
            _ => usage(*error),
        }
    }
}

/// Prints the text of an answer as it comes, wrapped to the terminal's columns.
pub struct Shown<'a> {
    output: &'a Output,
    is_json: bool,
    wrap: Option<Wrap>,
    error: Option<io::Error>,
}

impl<'a> Shown<'a> {
    pub fn new(output: &'a Output) -> Self {
        let is_json = output.is_json();
        Self {
            output,
            is_json,
            wrap: output.columns().filter(|_| !is_json).map(Wrap::new),
            error: None,
        }
    }

    /// Prints a piece of the answer.
    pub fn push(&mut self, text: &str) -> ControlFlow<()> {
        let printed = match &mut self.wrap {
            _ if self.is_json => Ok(()),
            Some(wrap) => self.output.data(&wrap.push(text)),
            None => self.output.data(text),
        };
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.error = Some(e);
                ControlFlow::Break(())
            }
        }
    }

    /// Ends the line of an answer, or of the part of it that was printed.
    pub fn finish(self, is_complete: bool) -> Outcome {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        if let Some(mut wrap) = self.wrap {
            self.output.data(&wrap.finish())?;
        }
        if !self.is_json && (is_complete || self.output.is_in_line()) {
            self.output.data("\n")?;
        }
        Ok(())
    }
}

/// The failure of a model whose logits are NaN or infinite.
pub fn no_numbers(error: anyhow::Error, model: &str, numerics: NumericsFlag) -> Failure {
    let error = error.context(
        "the model's logits are no numbers: its weights are damaged, or too large to compute with",
    );
    let failure = usage(error);
    let failure = match numerics {
        NumericsFlag::Fast | NumericsFlag::Int8 | NumericsFlag::Ane => {
            failure.remedy("--numerics f32, which has a wider range")
        }
        NumericsFlag::F32 => failure,
    };
    failure.remedy(match Path::new(model).exists() {
        true => "fetch the model again, or convert it again".to_owned(),
        false => format!("thane pull {model} --check"),
    })
}

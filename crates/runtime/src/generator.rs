//! Generates answers: messages become tokens by the chat template, and tokens become text.

use std::ops::ControlFlow;

use thane_engine::generate::{Answer, Limits, Session, generate};
use thane_engine::sample::{SampleOptions, Sampler};
use thane_engine::text::{
    ChatTemplate, EncodeOptions, Message, StreamOptions, TemplateError, TextStream, Tokenizer,
};
use thane_mil::backend::Backend;
use thane_mil::budget::{Budget, Reservation};

use crate::error::RuntimeError;
use crate::known::Known;
use crate::language::{Language, TOKENIZER_BYTES};
use crate::language_model::{LanguageModel, LanguageOptions};
use crate::opened::Model;
use crate::sampling::Sampling;

/// A running language model with its tokenizer.
///
/// The KV cache stays filled between calls, so a conversation only computes its new tokens.
pub struct Generator {
    /// Tokenizer and source of the chat template.
    pub language: Language,
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Texts that end an answer; they are not part of it.
    pub stop: Vec<String>,
    /// Whether control tokens that are spelled out in messages, such as `<|im_end|>`, act as
    /// control tokens. Otherwise they are text.
    pub allow_special_tokens: bool,
    /// Limits the memory for tokenizing.
    pub budget: Budget,
    name: String,
    session: Session,
    sampler: Sampler,
    template: Option<ChatTemplate>,
    /// The logits that the model gives, if not all.
    known: Option<Known>,
}

/// A conversation as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Messages that were dropped because the context is full.
    pub n_dropped: usize,
}

impl Model {
    /// Opens the model as a language model with default options and starts it on a backend.
    pub fn generator(self, backend: &dyn Backend) -> Result<Generator, RuntimeError> {
        let sampling = Sampling::default().choose(self.recommended_sampling()?, false);
        let options = LanguageOptions::default().with_sampling(&sampling.options);
        self.language_model(&options, &())?.generator(backend)
    }
}

impl LanguageModel {
    /// Starts the model on a backend, with its chat template and the sampling options that its
    /// files recommend, or greedy sampling.
    pub fn generator(&self, backend: &dyn Backend) -> Result<Generator, RuntimeError> {
        let recommended = self.recommended_sampling()?;
        let sampling = Sampling::default().choose(recommended, false);
        let mut generator = self.start(backend, sampling.options, true)?;
        generator.use_template()?;
        Ok(generator)
    }

    /// Starts the model on a backend, without its chat template. With `in_parallel` the tokenizer
    /// is made on another thread while the backend loads the program.
    pub fn start(
        &self,
        backend: &dyn Backend,
        sampling: SampleOptions,
        in_parallel: bool,
    ) -> Result<Generator, RuntimeError> {
        let known = self.known();
        check_known(known.as_ref(), &sampling)?;
        let sampler = Sampler::new(sampling)?;
        let (language, session) = if in_parallel {
            std::thread::scope(|scope| {
                let language = scope.spawn(|| self.language());
                let session = self.session(backend);
                let language = language
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok::<_, RuntimeError>((language, session?))
            })?
        } else {
            (self.language()?, self.session(backend)?)
        };
        Ok(Generator {
            language,
            max_tokens: Generator::MAX_TOKENS,
            stop: Vec::new(),
            allow_special_tokens: false,
            budget: Budget::unlimited(),
            name: self.name.clone(),
            session,
            sampler,
            template: None,
            known,
        })
    }
}

impl Generator {
    /// Most tokens of an answer by default.
    pub const MAX_TOKENS: usize = 1024;

    /// Parses the chat template, if the model has one.
    pub fn use_template(&mut self) -> Result<(), RuntimeError> {
        if let Some(source) = &self.language.template {
            let template = source.parse().map_err(|e| self.template_error(e))?;
            self.template = Some(template);
        }
        Ok(())
    }

    /// Whether messages can be answered.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.language.tokenizer
    }

    /// Tokens that the KV cache can hold.
    pub fn context(&self) -> usize {
        self.session.context()
    }

    /// Tokens that the KV cache holds now.
    pub fn n_cached(&self) -> usize {
        self.session.tokens().len()
    }

    /// Samples with these options from now on.
    pub fn set_sampling(&mut self, options: SampleOptions) -> Result<(), RuntimeError> {
        check_known(self.known.as_ref(), &options)?;
        self.sampler = Sampler::new(options)?;
        Ok(())
    }

    /// Answers the last of `messages`. Calls `on_text` with each piece of the answer as it becomes
    /// certain.
    ///
    /// Oldest messages are dropped if the context cannot hold all. A model without a chat template
    /// is an error; [`Self::complete`] continues a text.
    pub fn answer(
        &mut self,
        messages: &[Message],
        on_text: impl FnMut(&str),
    ) -> Result<Answer, RuntimeError> {
        let mut messages = messages.to_vec();
        let conversation = self.encode_conversation(&mut messages)?;
        self.run_to_end(&conversation.tokens, on_text)
    }

    /// Continues `prompt` without the chat template. Calls `on_text` with each piece of the text as
    /// it becomes certain.
    pub fn complete(
        &mut self,
        prompt: &str,
        on_text: impl FnMut(&str),
    ) -> Result<Answer, RuntimeError> {
        let tokens = self.encode_prompt(prompt)?;
        self.run_to_end(&tokens, on_text)
    }

    fn run_to_end(
        &mut self,
        tokens: &[u32],
        mut on_text: impl FnMut(&str),
    ) -> Result<Answer, RuntimeError> {
        self.generate(tokens, &|| false, &mut |text| {
            on_text(text);
            ControlFlow::Continue(())
        })
    }

    /// Generates from tokens. `interrupted` is asked before each call of the program; `on_text` can
    /// end the answer.
    pub fn generate(
        &mut self,
        tokens: &[u32],
        interrupted: &dyn Fn() -> bool,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, RuntimeError> {
        let options = StreamOptions {
            stop: self.stop.clone(),
            skip_special: true,
            strip_space_prefix: self.template.is_some(),
        };
        let tokenizer = &self.language.tokenizer;
        let mut stream = TextStream::new(tokenizer, options);
        let limits = Limits {
            max_tokens: self.max_tokens,
            is_end: &|token| tokenizer.is_end(token),
            interrupted,
        };
        Ok(generate(
            &mut self.session,
            &mut self.sampler,
            &mut stream,
            tokens,
            &limits,
            on_text,
        )?)
    }

    /// The tokens of a text, with those that the tokenizer adds. Control tokens that are spelled
    /// out act as such.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, RuntimeError> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let _held = self.reserve(prompt)?;
        Ok(self.tokenizer().encode(prompt, options)?)
    }

    /// The tokens of a conversation. Drops the oldest question and its answer, but no system
    /// message, until the context has room for an answer; dropped messages are removed from
    /// `messages`.
    pub fn encode_conversation(
        &self,
        messages: &mut Vec<Message>,
    ) -> Result<Conversation, RuntimeError> {
        let (mut n_dropped, context) = (0, self.context());
        // An answer needs room too.
        let room = self.max_tokens.clamp(1, (context / 4).max(1));
        let oldest = n_system(messages);
        loop {
            let tokens = self.encode_messages(messages)?;
            let is_last = messages.len() < oldest + 3;
            if tokens.len() + room <= context || is_last {
                return Ok(Conversation { tokens, n_dropped });
            }
            // Both a question and its answer, so that the roles still alternate.
            messages.drain(oldest..oldest + 2);
            n_dropped += 2;
        }
    }

    /// The tokens of messages, as the chat template renders them.
    fn encode_messages(&self, messages: &[Message]) -> Result<Vec<u32>, RuntimeError> {
        let template = self.template.as_ref().ok_or(RuntimeError::NoTemplate)?;
        let rendered = template
            .render(messages, true)
            .map_err(|e| self.template_error(e))?;
        let _held = self.reserve(&rendered.text)?;
        let tokens = if self.allow_special_tokens {
            let options = EncodeOptions {
                add_special: false,
                parse_special: true,
            };
            self.tokenizer().encode(&rendered.text, options)
        } else {
            self.tokenizer().encode_rendered(&rendered)
        };
        Ok(tokens?)
    }

    /// The memory that the tokenizer takes for a text. A template may render a long one.
    fn reserve(&self, text: &str) -> Result<Reservation, RuntimeError> {
        let n_bytes = text.len().saturating_mul(TOKENIZER_BYTES);
        Ok(self.budget.reserve(n_bytes, || {
            format!("the tokens of a prompt of {} bytes", text.len())
        })?)
    }

    fn template_error(&self, source: TemplateError) -> RuntimeError {
        RuntimeError::Template {
            model: self.name.clone(),
            source,
        }
    }
}

/// Refuses options that need more logits than the model gives.
fn check_known(known: Option<&Known>, options: &SampleOptions) -> Result<(), RuntimeError> {
    known.map_or(Ok(()), |known| known.check(options))
}

/// 1 if the first message is a system message, otherwise 0.
pub fn n_system(messages: &[Message]) -> usize {
    usize::from(messages.first().is_some_and(|m| m.role == "system"))
}

//! Generates answers: messages become tokens by the chat template, and tokens become text.

use std::ops::ControlFlow;

use thane_engine::sample::{SampleOptions, Sampler};
use thane_engine::schedule::{Request, Scheduler, StepLimits};
use thane_engine::sessions::Sessions;
use thane_engine::text::{Message, Tokenizer};
use thane_mil::backend::Backend;

use crate::answer::{Answer, answer};
use crate::contract::Facts;
use crate::error::RuntimeError;
use crate::grammar::GrammarSource;
use crate::known::Known;
use crate::language_model::{LanguageModel, LanguageOptions, Origin};
use crate::manifest::read_manifest;
use crate::opened::{Files, Model};
use crate::package_contents::read_facts;
use crate::page_options::PageOptions;
use crate::prompt_encoder::PromptEncoder;
use crate::recommended::Recommended;
use crate::sampling::{Sampling, of_facts};

/// A running language model with its tokenizer.
///
/// The KV cache stays filled between calls, so a conversation only computes its new tokens.
pub struct Generator {
    /// Tokenizer and chat template.
    pub prompts: PromptEncoder,
    /// Most tokens of an answer; `None` for what the model's files say, or
    /// [`Self::MAX_TOKENS`].
    pub max_tokens: Option<usize>,
    /// Texts that end an answer; they are not part of it.
    pub stop: Vec<String>,
    /// One sequence.
    sessions: Sessions,
    /// What answers have in common; the seed is that of the next one.
    request: Request,
    /// The logits that the model gives, if not all.
    known: Option<Known>,
    /// How answers are generated, as the model's files say.
    recommended: Recommended,
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
    /// How answers are generated, as the model's files say.
    pub fn recommended_sampling(&self) -> Result<Recommended, RuntimeError> {
        let of_stated = |facts: Option<Facts>| match facts {
            Some(Facts::Generate(facts)) => of_facts(&facts).0,
            _ => Recommended::default(),
        };
        Ok(match &self.files {
            Files::Checkpoint(checkpoint) => Recommended::of(checkpoint)?,
            Files::Package => of_stated(read_facts(&self.path)?),
            Files::Bundle => of_stated(read_manifest(&self.path)?.map(|manifest| manifest.model)),
            Files::Foreign(_) => Recommended::default(),
        })
    }
}

impl LanguageModel {
    /// How answers are generated, as the model's files say.
    pub fn recommended_sampling(&self) -> Result<Recommended, RuntimeError> {
        match &self.origin {
            Origin::Checkpoint(checkpoint) => Recommended::of(checkpoint),
            Origin::Package(contents) => Ok(match &contents.contract.model {
                Facts::Generate(facts) => of_facts(facts).0,
                Facts::Embed(_) => Recommended::default(),
            }),
            Origin::Foreign(_) if self.n_known() == Some(1) => Ok(Recommended::greedy()),
            Origin::Foreign(_) => Ok(Recommended::default()),
        }
    }
}

impl Model {
    /// Opens the model as a language model with default options and starts it on a backend.
    pub fn generator(self, backend: &dyn Backend) -> Result<Generator, RuntimeError> {
        let sampling = Sampling::default().choose(&self.recommended_sampling()?, false);
        let options = LanguageOptions::default().with_sampling(&sampling.options);
        self.language_model(&options, &())?.generator(backend)
    }
}

impl LanguageModel {
    /// Starts the model on a backend, with its chat template and the sampling options that its
    /// files recommend, or greedy sampling.
    pub fn generator(&self, backend: &dyn Backend) -> Result<Generator, RuntimeError> {
        let recommended = self.recommended_sampling()?;
        let sampling = Sampling::default().choose(&recommended, false);
        let mut generator = self.start(backend, sampling.options, true)?;
        generator.prompts.use_template()?;
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
        check_sampling(known.as_ref(), &sampling)?;
        let (language, sessions) = if in_parallel {
            std::thread::scope(|scope| {
                let language = scope.spawn(|| self.language(&backend.budget()));
                let sessions = self.sessions(backend, 1);
                let language = language
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok::<_, RuntimeError>((language, sessions?))
            })?
        } else {
            (
                self.language(&backend.budget())?,
                self.sessions(backend, 1)?,
            )
        };
        Ok(Generator {
            prompts: PromptEncoder::new(language, self.name.clone()),
            max_tokens: None,
            stop: Vec::new(),
            sessions,
            request: Request {
                sampling,
                ..Request::default()
            },
            known,
            recommended: self.recommended_sampling()?,
        })
    }
}

impl Generator {
    /// Most tokens of an answer by default.
    pub const MAX_TOKENS: usize = 1024;

    /// Takes prompts from pages from now on, and keeps them there. Returns false for a `model`,
    /// which is the one that generates, that has no pages.
    pub fn keep_prompts(
        &mut self,
        model: &LanguageModel,
        options: PageOptions,
    ) -> Result<bool, RuntimeError> {
        model.set_pages(&mut self.sessions, options)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.prompts.tokenizer()
    }

    /// Tokens that the KV cache can hold.
    pub fn context(&self) -> usize {
        self.sessions.context()
    }

    /// Tokens that the KV cache holds now.
    pub fn n_cached(&self) -> usize {
        self.sessions.tokens(0).map_or(0, <[u32]>::len)
    }

    /// How answers are generated, as the model's files say.
    pub fn recommended(&self) -> &Recommended {
        &self.recommended
    }

    /// Samples with these options from now on. The first answer has the seed of the
    /// options, and each other one the next seed.
    pub fn set_sampling(&mut self, options: SampleOptions) -> Result<(), RuntimeError> {
        check_sampling(self.known.as_ref(), &options)?;
        self.request.sampling = options;
        Ok(())
    }

    /// Holds answers to a grammar from now on. It holds for a whole answer, so a model whose chat
    /// template can ask it to think is asked not to. Compiling ends when `interrupted`, if that is
    /// done in a process ([`Grammars::program`](crate::Grammars::program)).
    pub fn set_grammar(
        &mut self,
        source: &GrammarSource,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), RuntimeError> {
        self.check_all_known("a grammar")?;
        let compiled = self.prompts.grammars.compile(source, interrupted)?;
        self.request.grammar = Some(compiled);
        let thinks = ("enable_thinking".to_owned(), false.into());
        self.prompts.variables.extend([thinks]);
        Ok(())
    }

    /// Lets answers be any text again.
    pub fn clear_grammar(&mut self) {
        if self.request.grammar.take().is_some() {
            self.prompts.variables.remove("enable_thinking");
        }
    }

    /// Tells the log probability of each token of an answer from now on, with those of the `n` most
    /// likely ones.
    pub fn set_logprobs(&mut self, n: usize) -> Result<(), RuntimeError> {
        self.check_all_known("log probabilities")?;
        self.request.logprobs = Some(n);
        Ok(())
    }

    /// Refuses what needs all logits if the model gives only some.
    fn check_all_known(&self, what: &'static str) -> Result<(), RuntimeError> {
        let known = self.known.as_ref();
        known.map_or(Ok(()), |known| Err(known.lacks(what)))
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
        let tokens = self.prompts.encode_prompt(prompt)?;
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
        let request = self.request(tokens);
        // The next answer draws other random numbers.
        let seed = &mut self.request.sampling.seed;
        *seed = seed.wrapping_add(1);
        let (sessions, tokenizer) = (&mut self.sessions, self.prompts.tokenizer());
        let mut scheduler = Scheduler::new(sessions, tokenizer, StepLimits::default());
        let answer = answer(&mut scheduler, request, interrupted, on_text)?;
        while self
            .sessions
            .pages()
            .is_some_and(|mut pages| pages.store_one())
        {}
        Ok(answer)
    }

    /// The request for an answer to `prompt`.
    fn request(&self, prompt: &[u32]) -> Request {
        let mut request = Request {
            prompt: prompt.to_vec(),
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            stop: self.stop.clone(),
            strip_space_prefix: self.prompts.has_template(),
            ..self.request.clone()
        };
        self.recommended.complete(&mut request);
        if self.max_tokens.is_none() && request.max_tokens == usize::MAX {
            request.max_tokens = Self::MAX_TOKENS;
        }
        request
    }

    /// Most tokens of an answer to a prompt of so many tokens.
    pub fn most_tokens(&self, n_prompt: usize) -> usize {
        self.request(&vec![0; n_prompt]).max_tokens
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
        let room = self.most_tokens(0).clamp(1, (context / 4).max(1));
        let oldest = n_system(messages);
        loop {
            let tokens = self.prompts.encode_messages(messages)?;
            let is_last = messages.len() < oldest + 3;
            if tokens.len() + room <= context || is_last {
                return Ok(Conversation { tokens, n_dropped });
            }
            // Both a question and its answer, so that the roles still alternate.
            messages.drain(oldest..oldest + 2);
            n_dropped += 2;
        }
    }
}

/// Refuses options that are out of range, or that need more logits than the model gives.
fn check_sampling(known: Option<&Known>, options: &SampleOptions) -> Result<(), RuntimeError> {
    known.map_or(Ok(()), |known| known.check(options))?;
    Sampler::new(options.clone())?;
    Ok(())
}

/// 1 if the first message is a system message, otherwise 0.
pub fn n_system(messages: &[Message]) -> usize {
    usize::from(messages.first().is_some_and(|m| m.role == "system"))
}

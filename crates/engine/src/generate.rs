//! Prefill and decode of one sequence, on any backend, call by call.
//!
//! [`Session`] is a running program together with the tokens in its cache. Answers are made by the
//! [`Scheduler`](crate::schedule::Scheduler).

use std::borrow::Cow;

use thane_mil::backend::{Instance, RunError};

pub use crate::error::GenerateError;
use crate::pages::Pages;
use crate::sequence::Sequence;
use crate::top::Top;

/// A running language model and the tokens in its cache.
///
/// The example generates greedily from token ids, on the CPU:
///
/// ```
/// use std::path::Path;
///
/// use thane_cpu::{Cpu, Numerics};
/// use thane_engine::generate::Session;
/// use thane_engine::sample::argmax;
/// use thane_mil::backend::Backend;
/// use thane_models::checkpoint::Checkpoint;
/// use thane_models::{Options, build};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let checkpoint = Checkpoint::open(Path::new("../../tests/models/tiny/llama-bias"))?;
/// let model = build(&checkpoint, &Options::default())?;
/// let instance = Cpu::new(Numerics::F32, 1).load(&model.program)?.instantiate()?;
/// let mut session = Session::new(instance, model.info.context, model.info.vocab_size);
/// let never = || false;
/// let logits = session.feed(&[1, 5, 9], &never)?.expect("nothing interrupts");
/// let next = argmax(&logits).expect("logits are finite");
/// let logits = session.decode(next as u32)?;
/// assert_eq!(logits.len(), model.info.vocab_size);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    instance: Box<dyn Instance>,
    sequence: Sequence,
    top: Top,
    pages: Option<Pages>,
}

impl Session {
    /// A session over a new instance whose caches hold `context` tokens.
    pub fn new(instance: Box<dyn Instance>, context: usize, vocab_size: usize) -> Self {
        Self {
            instance,
            sequence: Sequence::new(context, vocab_size),
            top: Top::new(0, vocab_size),
            pages: None,
        }
    }

    /// The session of a program with recurrent states, if `recurrent` is true: such states hold all
    /// tokens so far together, so a prompt that does not begin with all of them is computed anew.
    pub fn with_recurrence(self, recurrent: bool) -> Self {
        let sequence = self.sequence.with_recurrence(recurrent);
        Self { sequence, ..self }
    }

    /// The session of a program with the function `decode_top`, which gives the `n_top` greatest
    /// logits of a token; `None` if the program has no such function.
    pub fn with_top(self, n_top: Option<usize>) -> Self {
        let top = Top::new(n_top.unwrap_or(0), self.sequence.vocab_size());
        Self { top, ..self }
    }

    /// No pages yet, of at most `limit` bytes in all, for [`Self::set_pages`]. `states` hold the
    /// keys and values.
    ///
    /// # Errors
    ///
    /// As [`Pages::new`].
    pub fn new_pages(&self, states: &[String], limit: usize) -> Result<Pages, RunError> {
        Pages::new(self.instance.as_ref(), states, limit)
    }

    /// Takes prompts from pages from now on, and keeps them there.
    pub fn set_pages(&mut self, pages: Pages) {
        self.pages = Some(pages);
    }

    /// Keeps the tokens in the cache in pages, and puts new pages into their store.
    ///
    /// # Errors
    ///
    /// If a state cannot be read.
    pub fn keep(&mut self) -> Result<(), GenerateError> {
        if let Some(pages) = &mut self.pages {
            pages.save(0, self.sequence.tokens(), self.instance.as_ref())?;
            while pages.store_one() {}
        }
        Ok(())
    }

    /// Makes the cache hold its tokens from `from` on as pages give them back.
    ///
    /// # Errors
    ///
    /// If a state cannot be written.
    pub fn reload(&mut self, from: usize) -> Result<(), GenerateError> {
        if let Some(pages) = &mut self.pages {
            let tokens = self.sequence.tokens();
            pages.load(0, tokens, from..tokens.len(), self.instance.as_mut())?;
        }
        Ok(())
    }

    /// Number of tokens that the cache can hold.
    pub fn context(&self) -> usize {
        self.sequence.context()
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// The number of tokens at the start of `prompt` that are already in the cache. The last token
    /// never counts, because its logits must be computed.
    pub fn n_cached(&self, prompt: &[u32]) -> usize {
        self.sequence.n_cached(prompt)
    }

    /// Prefill: makes the cache hold `prompt`, reusing the common prefix, and returns the logits of
    /// the last token, one for each token of the vocabulary.
    ///
    /// `interrupted` is called between calls of the program. When it returns true, `feed` returns
    /// `None`, and the cache holds a part of the prompt.
    pub fn feed(
        &mut self,
        prompt: &[u32],
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<f32>>, GenerateError> {
        self.sequence.begin(prompt)?;
        self.empty_states();
        while let Some(tokens) = self.sequence.next(prompt, Sequence::MAX_CALL_TOKENS) {
            if interrupted() {
                return Ok(None);
            }
            self.call("prefill", tokens)?;
        }
        self.logits(1).map(Some)
    }

    /// Decode: appends one token to the cache and returns the logits of the next token.
    pub fn decode(&mut self, token: u32) -> Result<Cow<'_, [f32]>, GenerateError> {
        self.call("decode", &[token])?;
        self.sequence.logits(self.instance.as_ref(), 1)
    }

    /// Like [`Self::decode`], for a caller that needs the `n` greatest logits only; `None` for all.
    /// Other logits are then minus infinity if the function `decode_top` gives enough, which can be
    /// much faster.
    ///
    /// `decode_top` gives NaN only if fewer than its number of logits are numbers. A NaN in the
    /// hidden state makes all logits NaN, so it is always seen here. A NaN in a row of the output
    /// head makes the logit of one token NaN in every call, so [`Self::feed`] shows it.
    pub fn decode_greatest(
        &mut self,
        token: u32,
        n: Option<usize>,
    ) -> Result<Cow<'_, [f32]>, GenerateError> {
        if !n.is_some_and(|n| self.top.holds(n)) {
            return self.decode(token);
        }
        self.call("decode_top", &[token])?;
        self.top.read(self.instance.as_ref()).map(Cow::Borrowed)
    }

    /// Appends tokens to the cache and returns the logits after each of them, row by row. The
    /// program must have the function `verify`.
    pub fn verify(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerateError> {
        self.call("verify", tokens)?;
        self.logits(tokens.len())
    }

    /// Empties the cache.
    pub fn reset(&mut self) {
        self.instance.reset();
        self.sequence.clear();
    }

    fn call(&mut self, function: &str, tokens: &[u32]) -> Result<(), GenerateError> {
        self.sequence.fill(self.instance.as_mut(), tokens)?;
        let ran = self.instance.run(function);
        if ran.is_err() && self.sequence.is_recurrent() {
            // Some states may hold the tokens, and others not.
            self.sequence.clear();
        }
        ran?;
        self.sequence.extend(tokens);
        Ok(())
    }

    /// Empties recurrent states of a sequence that begins again, which even a NaN cannot outlive.
    fn empty_states(&mut self) {
        if self.sequence.is_recurrent() && self.sequence.tokens().is_empty() {
            self.instance.reset();
        }
    }

    fn logits(&self, n_tokens: usize) -> Result<Vec<f32>, GenerateError> {
        self.sequence
            .logits(self.instance.as_ref(), n_tokens)
            .map(Cow::into_owned)
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn, or a stop string occurred.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
    /// The cache is full.
    Context,
    /// The caller interrupted the generation.
    Interrupted,
    /// The deadline of the request has passed.
    Deadline,
}

impl FinishReason {
    /// The name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Interrupted => "interrupted",
            FinishReason::Deadline => "deadline",
        }
    }
}

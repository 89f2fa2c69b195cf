//! Prefill and decode of one sequence, on any backend.
//!
//! [`Session`] is a running program together with the tokens in its cache. [`generate`] drives a
//! session from a prompt to the end of an answer.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use thane_mil::backend::{Instance, RunError};

use crate::choose::{Chooser, Chosen};
pub use crate::error::GenerateError;
use crate::pages::Pages;
use crate::sample::TokenLogprob;
use crate::sequence::Sequence;
use crate::text::TextStream;
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

    /// Makes the cache hold what pages have of a prompt, if that is more than it holds.
    ///
    /// # Errors
    ///
    /// If a state cannot be written; the prompt can still be computed.
    pub fn restore(&mut self, prompt: &[u32]) -> Result<(), GenerateError> {
        match &mut self.pages {
            Some(pages) => pages.restore(prompt, &mut self.sequence, self.instance.as_mut()),
            None => Ok(()),
        }
    }

    /// Keeps the tokens in the cache in pages, and puts new pages into their store.
    ///
    /// # Errors
    ///
    /// If a state cannot be read.
    pub fn keep(&mut self) -> Result<(), GenerateError> {
        if let Some(pages) = &mut self.pages {
            pages.save(self.sequence.tokens(), self.instance.as_ref())?;
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
            pages.load(tokens, from..tokens.len(), self.instance.as_mut())?;
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
}

impl FinishReason {
    /// The name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Interrupted => "interrupted",
        }
    }
}

/// The durations of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Number of prompt tokens that were computed; the others were in the cache.
    pub prefill_tokens: usize,
    /// Time from the start to the logits of the prompt.
    pub prefill: Duration,
    /// Time from the start to the choice of the first token.
    pub first_token: Duration,
    /// Number of tokens that decode steps computed.
    pub decode_tokens: usize,
    /// Time of the decode steps, including sampling.
    pub decode: Duration,
}

impl Timings {
    /// Prefill throughput in prompt tokens per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Decode throughput in tokens per second, without the first token of the answer.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        n as f64 / time.as_secs_f64()
    }
}

/// A generated answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The tokens, without the one that ends the turn.
    pub tokens: Vec<u32>,
    /// The text.
    pub text: String,
    /// The log probability of each token, if the chooser tells it.
    pub logprobs: Vec<TokenLogprob>,
    /// Why the answer ended.
    pub finish_reason: FinishReason,
    /// The durations.
    pub timings: Timings,
}

/// The limits of an answer.
pub struct Limits<'a> {
    /// Maximum number of tokens.
    pub max_tokens: usize,
    /// Whether a token ends the turn.
    pub is_end: &'a dyn Fn(u32) -> bool,
    /// Whether the caller interrupts the generation; called before every call of the program.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// Generates the answer to a prompt of token ids.
///
/// `on_text` receives each piece of text as soon as no later token can change the piece, and can
/// interrupt the generation. `stream` decodes the tokens, and `chooser` chooses them.
///
/// # Errors
///
/// If the prompt is empty or does not fit, or the backend, the sampler or the grammar fails.
pub fn generate(
    session: &mut Session,
    chooser: &mut Chooser,
    stream: &mut TextStream<'_>,
    prompt: &[u32],
    limits: &Limits<'_>,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Answer, GenerateError> {
    if prompt.len() >= session.context() {
        return Err(GenerateError::PromptTooLong {
            prompt: prompt.len(),
            context: session.context(),
        });
    }
    chooser.begin()?;
    let start = Instant::now();
    // What cannot be restored is computed.
    let _ = session.restore(prompt);
    let prefill_tokens = prompt.len() - session.n_cached(prompt);
    let mut answer = Answer {
        tokens: Vec::new(),
        text: String::new(),
        logprobs: Vec::new(),
        finish_reason: FinishReason::Interrupted,
        timings: Timings {
            prefill_tokens,
            ..Timings::default()
        },
    };
    let Some(logits) = session.feed(prompt, limits.interrupted)? else {
        return Ok(answer);
    };
    answer.timings.prefill = start.elapsed();
    let mut writer = Writer {
        answer,
        history: prompt.to_vec(),
        stream,
        on_text,
    };
    let reason = decode(session, chooser, &mut writer, logits, start, limits)?;
    let Writer {
        mut answer,
        stream,
        on_text,
        ..
    } = writer;
    let rest = stream.finish();
    answer.text.push_str(&rest);
    let broken = !rest.is_empty() && on_text(&rest).is_break();
    answer.finish_reason = if broken {
        FinishReason::Interrupted
    } else {
        reason
    };
    Ok(answer)
}

/// Receives the tokens of an answer.
struct Writer<'a, 'b> {
    answer: Answer,
    history: Vec<u32>,
    stream: &'a mut TextStream<'b>,
    on_text: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl Writer<'_, '_> {
    /// Appends a chosen token and those that must follow; returns the reason if the answer ends.
    fn push_all(
        &mut self,
        chosen: &Chosen,
        context: usize,
        limits: &Limits<'_>,
    ) -> Option<FinishReason> {
        for (token, is_complete) in chosen.tokens() {
            if (limits.is_end)(token) {
                return Some(FinishReason::Stop);
            }
            if let Some(reason) = self.push(token) {
                return Some(reason);
            }
            if is_complete {
                return Some(FinishReason::Stop);
            }
            if self.answer.tokens.len() == limits.max_tokens {
                return Some(FinishReason::Length);
            }
            // The cache lacks the last token.
            if self.history.len() > context {
                return Some(FinishReason::Context);
            }
        }
        None
    }

    /// Appends one token; returns the reason if the answer ends with that token.
    fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.answer.tokens.push(token);
        self.history.push(token);
        let piece = self.stream.push(token).unwrap_or_default();
        self.answer.text.push_str(&piece);
        if !piece.is_empty() && (self.on_text)(&piece).is_break() {
            return Some(FinishReason::Interrupted);
        }
        self.stream.stopped().then_some(FinishReason::Stop)
    }
}

/// Samples and decodes until the answer ends.
fn decode(
    session: &mut Session,
    chooser: &mut Chooser,
    writer: &mut Writer<'_, '_>,
    mut logits: Vec<f32>,
    start: Instant,
    limits: &Limits<'_>,
) -> Result<FinishReason, GenerateError> {
    if limits.max_tokens == 0 {
        return Ok(FinishReason::Length);
    }
    let mut chosen = chooser.choose(&mut logits, &writer.history, &[])?;
    writer.answer.timings.first_token = start.elapsed();
    let begin = Instant::now();
    loop {
        let n_before = writer.history.len();
        let reason = writer.push_all(&chosen, session.context(), limits);
        if writer.history.len() > n_before {
            writer.answer.logprobs.extend(chosen.logprob);
        }
        if let Some(reason) = reason {
            return Ok(reason);
        }
        if (limits.interrupted)() {
            return Ok(FinishReason::Interrupted);
        }
        let n = chooser.n_greatest(writer.history.len());
        match &writer.history[n_before..] {
            [token] => {
                // Reuses the memory of the logits: for a large vocabulary, the system would clear
                // newly allocated memory page by page.
                logits.clear();
                logits.extend_from_slice(&session.decode_greatest(*token, n)?);
            }
            _ => match session.feed(&writer.history, limits.interrupted)? {
                Some(found) => logits = found,
                None => return Ok(FinishReason::Interrupted),
            },
        }
        let n_new = writer.history.len() - n_before;
        chosen = chooser.choose(&mut logits, &writer.history, &[])?;
        writer.answer.timings.decode_tokens += n_new;
        writer.answer.timings.decode = begin.elapsed();
    }
}

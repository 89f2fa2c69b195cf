//! Prefill and decode over any backend.
//!
//! [`Session`] is a running program with the tokens that its cache holds; [`generate`] drives it
//! from a prompt to the end of an answer. Knows nothing of which backend it drives.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use thane_mil::backend::Instance;

pub use crate::error::GenerateError;
use crate::fixed::Fixed;
use crate::sample::Sampler;
use crate::sequence::Sequence;
use crate::text::TextStream;

/// A running language model and the tokens in its cache.
pub struct Session {
    instance: Box<dyn Instance>,
    sequence: Sequence,
    n_greatest: Option<usize>,
}

impl Session {
    /// A session over a fresh instance whose caches hold `context` tokens; `fixed` where its
    /// functions take so many tokens and no others.
    pub fn new(
        instance: Box<dyn Instance>,
        context: usize,
        vocab_size: usize,
        fixed: Option<Fixed>,
    ) -> Self {
        Self {
            instance,
            sequence: Sequence::new(context, vocab_size, fixed),
            n_greatest: None,
        }
    }

    /// Want no more than so many of the greatest logits of a token from now on, or all of them, as
    /// at first: of the logits that [`Self::feed`] and [`Self::decode`] give, others may then be
    /// minus infinity. It can be much faster.
    pub fn want_greatest(&mut self, n: Option<usize>) {
        if n != self.n_greatest {
            self.instance.want_greatest("logits", n);
            self.n_greatest = n;
        }
    }

    /// Tokens that the cache can hold.
    pub fn context(&self) -> usize {
        self.sequence.context()
    }

    /// Tokens that the cache holds.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// Tokens at the front of `prompt` that need not be computed: the cache has them. The last
    /// token always is.
    pub fn n_cached(&self, prompt: &[u32]) -> usize {
        self.sequence.n_cached(prompt)
    }

    /// Make the cache hold `prompt`, reusing what it has in common with it; the logits of the last
    /// token.
    ///
    /// `interrupted` is asked between calls of the program; when it says so, `None` is given, and
    /// the cache holds a part.
    pub fn feed(
        &mut self,
        prompt: &[u32],
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<f32>>, GenerateError> {
        self.sequence.begin(prompt)?;
        while let Some((function, tokens)) = self.sequence.next(prompt, Sequence::MOST_TOKENS) {
            if interrupted() {
                return Ok(None);
            }
            self.call(function, tokens)?;
        }
        self.logits(1).map(Some)
    }

    /// Add one token to the cache; the logits of the next.
    pub fn decode(&mut self, token: u32) -> Result<Cow<'_, [f32]>, GenerateError> {
        self.call("decode", &[token])?;
        self.sequence.logits(self.instance.as_ref(), 1)
    }

    /// Add tokens to the cache; the logits after each of them, row by row. Needs a program with the
    /// function `score`.
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerateError> {
        let n_greatest = self.n_greatest;
        self.want_greatest(None);
        let called = self.call("score", tokens);
        self.want_greatest(n_greatest);
        called?;
        self.logits(tokens.len())
    }

    /// Forget every token.
    pub fn reset(&mut self) {
        self.instance.reset();
        self.sequence.clear();
    }

    fn call(&mut self, function: &str, tokens: &[u32]) -> Result<(), GenerateError> {
        self.sequence
            .fill(self.instance.as_mut(), function, tokens)?;
        self.instance.run(function)?;
        self.sequence.extend(tokens);
        Ok(())
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
    /// The model ended its turn, or a stop string came.
    Stop,
    /// The limit of tokens was reached.
    Length,
    /// The context is full.
    Context,
    /// The caller asked for the end.
    Interrupted,
}

impl FinishReason {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Interrupted => "interrupted",
        }
    }
}

/// How long an answer took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Tokens of the prompt that were computed; the others were in the cache.
    pub prefill_tokens: usize,
    /// From the start until the logits after the prompt.
    pub prefill: Duration,
    /// From the start until the first token was chosen.
    pub first_token: Duration,
    /// Tokens that decode steps computed.
    pub decode_tokens: usize,
    /// Time of those steps, sampling included.
    pub decode: Duration,
}

impl Timings {
    /// Tokens of the prompt a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Tokens of the answer a second, the first one left out.
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

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its tokens; a token that ends the turn is not among them.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// How long it took.
    pub timings: Timings,
}

/// What an answer is bounded by.
pub struct Limits<'a> {
    /// Tokens of the answer.
    pub max_tokens: usize,
    /// Whether a token ends the turn.
    pub is_end: &'a dyn Fn(u32) -> bool,
    /// Whether the caller wants the end now; asked before every call of the program.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// Answer a prompt; `on_text` gets each piece of text once no later token can change it, and can
/// break off.
pub fn generate(
    session: &mut Session,
    sampler: &mut Sampler,
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
    let start = Instant::now();
    let prefill_tokens = prompt.len() - session.n_cached(prompt);
    let mut answer = Answer {
        tokens: Vec::new(),
        text: String::new(),
        finish_reason: FinishReason::Interrupted,
        timings: Timings {
            prefill_tokens,
            ..Timings::default()
        },
    };
    session.want_greatest(sampler.n_greatest(prompt.len()));
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
    let reason = decode(session, sampler, &mut writer, logits, start, limits)?;
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

/// Where tokens go.
struct Writer<'a, 'b> {
    answer: Answer,
    history: Vec<u32>,
    stream: &'a mut TextStream<'b>,
    on_text: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl Writer<'_, '_> {
    /// Take one token; why the answer ends with it, if it does.
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

fn decode(
    session: &mut Session,
    sampler: &mut Sampler,
    writer: &mut Writer<'_, '_>,
    mut logits: Vec<f32>,
    start: Instant,
    limits: &Limits<'_>,
) -> Result<FinishReason, GenerateError> {
    if limits.max_tokens == 0 {
        return Ok(FinishReason::Length);
    }
    let mut token = sampler.sample(&mut logits, &writer.history)?;
    writer.answer.timings.first_token = start.elapsed();
    let begin = Instant::now();
    loop {
        if (limits.is_end)(token) {
            return Ok(FinishReason::Stop);
        }
        if let Some(reason) = writer.push(token) {
            return Ok(reason);
        }
        if writer.answer.tokens.len() == limits.max_tokens {
            return Ok(FinishReason::Length);
        }
        if session.tokens().len() == session.context() {
            return Ok(FinishReason::Context);
        }
        if (limits.interrupted)() {
            return Ok(FinishReason::Interrupted);
        }
        // Into the same memory: that of a large vocabulary, taken anew, would be cleared by the
        // system page by page.
        session.want_greatest(sampler.n_greatest(writer.history.len()));
        logits.clear();
        logits.extend_from_slice(&session.decode(token)?);
        token = sampler.sample(&mut logits, &writer.history)?;
        writer.answer.timings.decode_tokens += 1;
        writer.answer.timings.decode = begin.elapsed();
    }
}

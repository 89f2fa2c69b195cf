//! A request that has a sequence: its tokens so far, and when its answer ends.

use std::time::{Duration, Instant};

use crate::choose::{Chooser, Chosen};
use crate::generate::{FinishReason, GenerateError};
use crate::sample::TokenLogprob;
use crate::text::{StreamOptions, TextStream, Tokenizer};

use super::request::{Event, Request, RequestId, Usage};

/// A request with a sampler, from its arrival on.
pub(super) struct Running<'t> {
    pub id: RequestId,
    /// Whether the tokens of the prompt count among those of all requests.
    pub counts_prompt: bool,
    /// Who asks.
    pub owner: u64,
    /// The prompt and the answer so far. The cache lacks the tokens since the last choice, which
    /// the next step feeds.
    pub history: Vec<u32>,
    pub usage: Usage,
    /// Number of prompt tokens whose log probabilities were told, while some are left to tell.
    pub n_scored: Option<usize>,
    /// Tokens of the answer when the request got its sequence; `None` before it ever had one.
    pub turn_start: Option<usize>,
    pub has_grammar: bool,
    /// Time that the grammar took since the request got its sequence.
    pub turn_time: Duration,
    /// When the answer ends as it is.
    pub deadline: Option<Instant>,
    chooser: Chooser,
    late: Option<Late>,
    stream: TextStream<'t>,
    /// Tokens that end the answer.
    ends: Vec<u32>,
    /// Tokens before which no text ends the answer.
    min_tokens: usize,
    /// Tokens before which no token ends the answer; at least `min_tokens`.
    min_before_end: usize,
    max_tokens: usize,
}

/// What waits for a grammar that takes long.
enum Late {
    /// The logits of the next token, from which nothing was chosen.
    Logits(Vec<f32>),
    /// A token of which it is not known what must follow.
    Chosen(Chosen),
}

/// How long all requests wait for a grammar. Masks take some milliseconds, beside the model.
const PATIENCE: Duration = Duration::from_millis(50);

impl<'t> Running<'t> {
    /// Refuses sampling options that are out of range, and grammars that cannot be used.
    pub fn new(
        id: RequestId,
        request: Request,
        tokenizer: &'t Tokenizer,
    ) -> Result<Self, GenerateError> {
        let options = StreamOptions {
            stop: request.stop,
            skip_special: true,
            shown: request.shown_tokens,
            strip_space_prefix: request.strip_space_prefix,
        };
        let has_grammar = request.grammar.is_some();
        let mut chooser = Chooser::new(request.sampling)?;
        chooser.set_grammar(request.grammar);
        chooser.set_logprobs(request.logprobs);
        chooser.begin()?;
        let ends = tokenizer.end_ids().iter().chain(&request.stop_tokens);
        Ok(Self {
            id,
            counts_prompt: request.counts_prompt,
            owner: request.owner,
            usage: Usage {
                prompt_tokens: request.prompt.len(),
                ..Usage::default()
            },
            history: request.prompt,
            n_scored: request.scores_prompt.then_some(0),
            turn_start: None,
            has_grammar,
            turn_time: Duration::ZERO,
            deadline: request.deadline,
            chooser,
            late: None,
            stream: TextStream::new(tokenizer, options),
            ends: ends.copied().collect(),
            min_tokens: request.min_tokens,
            min_before_end: request.min_tokens.max(request.min_tokens_unless_stopped),
            max_tokens: request.max_tokens,
        })
    }

    /// Whether the next tokens are not chosen although their logits are known.
    pub fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Goes on with what was late, if the grammar is ready within `most`; as [`Self::take`].
    pub fn take_late(
        &mut self,
        most: Duration,
        context: usize,
        events: &mut Vec<(RequestId, Event)>,
    ) -> Result<Option<FinishReason>, GenerateError> {
        if !self.chooser.wait(most) {
            return Ok(None);
        }
        self.take(&mut [], context, events)
    }

    /// How many tokens of the history the cache shall hold before anything can be chosen.
    pub fn n_target(&self) -> usize {
        self.n_scored.map_or(self.history.len(), |n| n + 1)
    }

    /// How many of the greatest logits the next choice needs, or `None` if it needs all. Those of
    /// the first token are looked at whether they are numbers.
    pub fn n_greatest(&self) -> Option<usize> {
        if self.usage.answer_tokens == 0 {
            return None;
        }
        let n_barred = if self.bars_ends() { self.ends.len() } else { 0 };
        let n = self.chooser.n_greatest(self.history.len())?;
        Some(n.saturating_add(n_barred))
    }

    /// Whether no token that ends the answer may be chosen yet.
    fn bars_ends(&self) -> bool {
        self.usage.answer_tokens < self.min_before_end
    }

    /// Ends the answer: what is left of its text, and that it is done.
    pub fn end(&mut self, reason: FinishReason, events: &mut Vec<(RequestId, Event)>) {
        let rest = self.stream.finish();
        match events.last_mut() {
            Some((id, Event::Text(text))) if *id == self.id => text.push_str(&rest),
            _ if rest.is_empty() => {}
            _ => events.push((self.id, Event::Text(rest))),
        }
        self.usage.stop_idx = self.stream.stop_idx();
        let tokens = self.history.split_off(self.usage.prompt_tokens);
        events.push((self.id, Event::Done(reason, self.usage, tokens)));
    }

    /// Tokens of the answer since the request got its sequence.
    pub fn turn_tokens(&self) -> usize {
        self.usage.answer_tokens - self.turn_start.unwrap_or(0)
    }

    /// Takes the logits after the first [`Self::n_target`] tokens: tells the log probability of a
    /// prompt token, or chooses the next tokens of the answer. Appends to `events` what happened,
    /// and returns why the answer ends, if it does. Where a grammar takes long, nothing happens yet
    /// ([`Self::is_late`]).
    pub fn take(
        &mut self,
        logits: &mut [f32],
        context: usize,
        events: &mut Vec<(RequestId, Event)>,
    ) -> Result<Option<FinishReason>, GenerateError> {
        if let Some(n) = self.n_scored {
            if n == 0 {
                let first = TokenLogprob {
                    token: self.history[0],
                    logprob: None,
                    top: Vec::new(),
                };
                events.push((self.id, Event::Scored(first)));
            }
            if let Some(token) = self.history.get(n + 1) {
                let scored = self.chooser.score(logits, *token);
                events.push((self.id, Event::Scored(scored)));
                self.n_scored = Some(n + 1);
                return Ok(None);
            }
            self.n_scored = None;
        }
        let mut text = String::new();
        let reason = self.next(logits, context, &mut text, events);
        if !text.is_empty() {
            events.push((self.id, Event::Text(text)));
        }
        reason
    }

    fn next(
        &mut self,
        logits: &mut [f32],
        context: usize,
        text: &mut String,
        events: &mut Vec<(RequestId, Event)>,
    ) -> Result<Option<FinishReason>, GenerateError> {
        if self.max_tokens == 0 {
            return Ok(Some(FinishReason::Length));
        }
        let mut chosen = match self.late.take() {
            Some(Late::Chosen(chosen)) => chosen,
            late => {
                let mut held = match late {
                    Some(Late::Logits(logits)) => Some(logits),
                    _ => None,
                };
                if !self.chooser.wait(PATIENCE) {
                    self.late = Some(Late::Logits(held.unwrap_or_else(|| logits.to_vec())));
                    return Ok(None);
                }
                let logits = held.as_deref_mut().unwrap_or(logits);
                let barred: &[u32] = if self.bars_ends() { &self.ends } else { &[] };
                self.chooser.draw(logits, &self.history, barred)?
            }
        };
        if !self.chooser.wait(PATIENCE) {
            self.late = Some(Late::Chosen(chosen));
            return Ok(None);
        }
        self.chooser.follow(&mut chosen)?;
        let logprob = chosen.logprob.take().map(Event::Logprob);
        let mut logprob = logprob.map(|event| (self.id, event));
        for (token, is_complete) in chosen.tokens() {
            if self.ends.contains(&token) {
                return Ok(Some(FinishReason::Stop));
            }
            events.extend(logprob.take());
            let shown = match self.usage.answer_tokens < self.min_tokens {
                true => self.stream.push_early(token),
                false => self.stream.push(token),
            };
            self.history.push(token);
            self.usage.answer_tokens += 1;
            text.push_str(&shown.unwrap_or_default());
            if self.stream.stopped() || is_complete {
                return Ok(Some(FinishReason::Stop));
            } else if self.usage.answer_tokens == self.max_tokens {
                return Ok(Some(FinishReason::Length));
            } else if self.history.len() > context {
                return Ok(Some(FinishReason::Context));
            }
        }
        Ok(None)
    }
}

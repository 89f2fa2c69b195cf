//! What a caller asks of a [`Scheduler`](super::Scheduler), and what it hears.

use std::sync::Arc;
use std::time::Instant;

use crate::choose::Grammar;
use crate::generate::{FinishReason, GenerateError};
use crate::sample::{SampleOptions, TokenLogprob};

/// A prompt to answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Whether the tokens of the prompt count among those of
    /// [`Scheduler::totals`](super::Scheduler::totals): off for further answers to a prompt.
    pub counts_prompt: bool,
    /// Who asks. What one has computed is not used for another, who could tell from the time, or
    /// from [`Usage::cached_tokens`], that the prompt was computed before.
    pub owner: u64,
    /// How tokens are chosen. The seed belongs to this request alone.
    pub sampling: SampleOptions,
    /// What the answer is held to.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Tells the log probability of each token of the answer, with those of this many most likely
    /// tokens; `None` for nothing of it.
    pub logprobs: Option<usize>,
    /// Whether the log probabilities of the prompt are told too. Its tokens are then computed one
    /// by one.
    pub scores_prompt: bool,
    /// No token that ends the answer is chosen before it has this many tokens, and no text of
    /// [`Self::stop`] ends it.
    pub min_tokens: usize,
    /// No token that ends the answer is chosen before it has this many tokens. Texts of
    /// [`Self::stop`] end it all the same, as with `min_new_tokens` in transformers.
    pub min_tokens_unless_stopped: usize,
    /// Most tokens of the answer. An answer also ends where the cache of its sequence is full.
    pub max_tokens: usize,
    /// When the answer ends as it is, also if it has not begun.
    pub deadline: Option<Instant>,
    /// The answer ends before the first occurrence of any of these texts.
    pub stop: Vec<String>,
    /// The answer ends before any of these tokens, beside those that end a turn.
    pub stop_tokens: Vec<u32>,
    /// Control tokens that are part of the text.
    pub shown_tokens: Vec<u32>,
    /// Whether the space that encoding adds before a text is dropped: on for an answer, off for a
    /// text that continues the prompt.
    pub strip_space_prefix: bool,
}

impl Default for Request {
    /// An empty prompt, which has to be set, answered greedily until the cache is full.
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            counts_prompt: true,
            owner: 0,
            sampling: SampleOptions::default(),
            grammar: None,
            logprobs: None,
            scores_prompt: false,
            min_tokens: 0,
            min_tokens_unless_stopped: 0,
            max_tokens: usize::MAX,
            deadline: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            shown_tokens: Vec::new(),
            strip_space_prefix: true,
        }
    }
}

/// Identifies a request of one scheduler. Ids grow in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// The tokens of a request, and what ended its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that a cache already held.
    pub cached_tokens: usize,
    /// Tokens of the answer, without the one that ended the turn.
    pub answer_tokens: usize,
    /// Index in [`Request::stop`] of the text that ended the answer.
    pub stop_idx: Option<usize>,
}

/// What happened to a request in one step.
#[derive(Clone, Debug)]
pub enum Event {
    /// The log probability of the next token of the prompt.
    Scored(TokenLogprob),
    /// The log probability of the next token of the answer. It comes before the token's text.
    Logprob(TokenLogprob),
    /// A piece of the answer that no later token can change.
    Text(String),
    /// The answer is complete, with these tokens; nothing follows.
    Done(FinishReason, Usage, Vec<u32>),
    /// The backend or the sampler failed; nothing follows.
    Failed(Arc<GenerateError>),
}

/// How many prompt tokens steps compute beside running answers, and how long an answer keeps its
/// sequence. The time of prompt tokens is the pause of each answer; without running answers, the
/// sessions bound a call.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// At least so many a step for each prompt, on average.
    pub per_prompt: usize,
    /// One more for so many running answers.
    pub answers_per_token: usize,
    /// At least so many that the prompts of all requests are computed in about so many steps: where
    /// many requests wait, the first token of each counts more than the pauses of the others.
    pub n_steps: usize,
    /// Steps compute none until so many, or all that are left, can be computed in one.
    pub chunk: usize,
    /// Tokens after which an answer gives its sequence to a request that waits for one, and waits
    /// itself behind all others. This needs pages, which keep what was computed.
    pub turn_tokens: usize,
}

impl Default for StepLimits {
    /// A step with a few prompt tokens costs much by itself: beside 8 answers of SmolLM2-135M on
    /// two cores, one of 9 tokens takes half as long again as one of 8. Beside a prompt of 512,
    /// these answers keep 0.54 of their speed if each step has 9 prompt tokens, 0.65 if steps save
    /// up 9 until there are 32, and 0.72 if they save up 5 until there are 48. Where many prompts
    /// wait, one for each keeps the first tokens early.
    fn default() -> Self {
        Self {
            per_prompt: 1,
            answers_per_token: 2,
            n_steps: 96,
            chunk: 48,
            turn_tokens: 512,
        }
    }
}

impl StepLimits {
    /// The number of prompt tokens for each step beside `n_answers`, where `n_left` tokens of
    /// `n_prompts` prompts are to be computed.
    pub(super) fn tokens_a_step(self, n_answers: usize, n_prompts: usize, n_left: usize) -> usize {
        let more = n_answers / self.answers_per_token.max(1);
        let least = self.per_prompt.saturating_mul(n_prompts).max(1);
        let least = least.saturating_add(more);
        least.max(n_left.div_ceil(self.n_steps.max(1)))
    }
}

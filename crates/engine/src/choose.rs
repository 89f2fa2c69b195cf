//! Chooses the tokens of one answer: the sampler, what a grammar allows, and what the caller wants
//! to know about each token.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::error::GenerateError;
pub use crate::error::GrammarError;
use crate::sample::{Logprobs, SampleError, SampleOptions, Sampler, TokenLogprob};

/// A grammar that answers can be held to.
pub trait Grammar: Debug + Send + Sync {
    /// The state before the first token of an answer.
    fn start(&self) -> Result<Box<dyn Constraint>, GrammarError>;
}

/// What a grammar allows after the tokens of an answer so far. A constraint may compute beside the
/// model what it was asked for; a call that needs it waits.
pub trait Constraint: Send {
    /// Begins to compute what the next [`Self::mask`] needs.
    fn prepare(&mut self) {}

    /// Waits for what was begun, but not longer than `most`. Returns whether the next call does not
    /// wait.
    fn wait(&mut self, _most: Duration) -> bool {
        true
    }

    /// Sets the logits of all tokens that cannot follow to minus infinity. Tokens that end an
    /// answer can follow where it is complete.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError>;

    /// Begins to append a token that can follow, and, with `forces`, those that must follow it.
    fn advance(&mut self, token: u32, forces: bool) -> Result<(), GrammarError>;

    /// The tokens that were appended behind the one of [`Self::advance`]. None may be, although
    /// some must follow.
    fn forced(&mut self) -> Result<Vec<u32>, GrammarError>;

    /// Whether only tokens that end the answer can follow, as of the last [`Self::forced`].
    fn is_complete(&self) -> bool;
}

/// Chooses tokens.
pub struct Chooser {
    sampler: Sampler,
    grammar: Option<Arc<dyn Grammar>>,
    constraint: Option<Box<dyn Constraint>>,
    n_logprobs: Option<usize>,
    logprobs: Logprobs,
}

/// A token that was chosen.
#[derive(Debug)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// Its log probability, if that is wanted.
    pub logprob: Option<TokenLogprob>,
    /// Tokens that must follow it.
    pub forced: Vec<u32>,
    /// Whether the answer is complete after all these tokens.
    pub is_complete: bool,
}

impl Chosen {
    /// The tokens in order, and whether the answer is complete after each.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, bool)> {
        let n = 1 + self.forced.len();
        let tokens = std::iter::once(self.token).chain(self.forced.iter().copied());
        let is_last = move |at: usize| at + 1 == n;
        let is_complete = self.is_complete;
        tokens
            .enumerate()
            .map(move |(at, token)| (token, is_complete && is_last(at)))
    }
}

impl Chooser {
    /// Refuses sampling options that are out of range.
    pub fn new(sampling: SampleOptions) -> Result<Self, SampleError> {
        Ok(Self {
            sampler: Sampler::new(sampling)?,
            grammar: None,
            constraint: None,
            n_logprobs: None,
            logprobs: Logprobs::default(),
        })
    }

    /// Holds answers to a grammar.
    pub fn set_grammar(&mut self, grammar: Option<Arc<dyn Grammar>>) {
        self.grammar = grammar;
    }

    /// Tells the log probability of each token, with those of the `n` most likely ones; `None` for
    /// nothing of it.
    pub fn set_logprobs(&mut self, n: Option<usize>) {
        self.n_logprobs = n;
    }

    /// Begins an answer.
    pub fn begin(&mut self) -> Result<(), GenerateError> {
        let grammar = self.grammar.as_ref();
        self.constraint = grammar.map(|grammar| grammar.start()).transpose()?;
        if let Some(constraint) = &mut self.constraint {
            constraint.prepare();
        }
        Ok(())
    }

    /// How many of the greatest logits [`Self::choose`] needs, or `None` if it needs all.
    pub fn n_greatest(&self, n_history: usize) -> Option<usize> {
        let needs_all = self.constraint.is_some() || self.n_logprobs.is_some();
        self.sampler.n_greatest(n_history).filter(|_| !needs_all)
    }

    /// Chooses the token after `history`, but none of `barred` unless the grammar allows no other.
    /// Modifies `logits`.
    ///
    /// Forced tokens have no logits, so there are none where log probabilities are wanted.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        barred: &[u32],
    ) -> Result<Chosen, GenerateError> {
        let mut chosen = self.draw(logits, history, barred)?;
        self.follow(&mut chosen)?;
        Ok(chosen)
    }

    /// Waits for what the grammar computes, but not longer than `most`. Returns whether the next of
    /// [`Self::draw`] and [`Self::follow`] does not wait.
    pub fn wait(&mut self, most: Duration) -> bool {
        let constraint = self.constraint.as_mut();
        constraint.is_none_or(|constraint| constraint.wait(most))
    }

    /// The first part of [`Self::choose`]: nothing is forced yet.
    pub fn draw(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        barred: &[u32],
    ) -> Result<Chosen, GenerateError> {
        if self.n_logprobs.is_some() {
            self.logprobs.set(logits);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        // Where the grammar leaves nothing else, it goes before what bars tokens.
        if self.constraint.is_none() || has_other(logits, barred) {
            for token in barred {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let token = self.sampler.sample(logits, history)?;
        if let Some(constraint) = &mut self.constraint {
            constraint.advance(token, self.n_logprobs.is_none())?;
        }
        Ok(Chosen {
            token,
            logprob: self.n_logprobs.map(|n| self.logprobs.of(token, n)),
            forced: Vec::new(),
            is_complete: false,
        })
    }

    /// The second part of [`Self::choose`]: what must follow the token.
    pub fn follow(&mut self, chosen: &mut Chosen) -> Result<(), GenerateError> {
        if let Some(constraint) = &mut self.constraint {
            chosen.forced = constraint.forced()?;
            chosen.is_complete = constraint.is_complete();
            if !chosen.is_complete {
                constraint.prepare();
            }
        }
        Ok(())
    }

    /// The log probability of a token of a prompt, from the logits in its place.
    pub fn score(&mut self, logits: &[f32], token: u32) -> TokenLogprob {
        self.logprobs.set(logits);
        self.logprobs.of(token, self.n_logprobs.unwrap_or(0))
    }
}

/// Whether a token can be chosen that is none of `barred`.
fn has_other(logits: &[f32], barred: &[u32]) -> bool {
    let mut possible = logits
        .iter()
        .zip(0u32..)
        .filter(|(logit, _)| **logit != f32::NEG_INFINITY);
    possible.any(|(_, id)| !barred.contains(&id))
}

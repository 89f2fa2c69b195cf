//! Several sequences over one program: each has its own tokens, length and cache, and a step runs
//! all that have something to do.
//!
//! A sequence that has ended is simply not named any more; its place is used again by feeding it
//! another prompt, of which it computes what its cache does not have. Which sequence gets which
//! prompt is the caller's to choose.

use std::borrow::Cow;

use thane_mil::backend::{Batch, RunError};

use crate::fixed::Fixed;
use crate::generate::GenerateError;
use crate::sequence::Sequence;

/// Running copies of a language model and the tokens in their caches.
pub struct Sessions {
    batch: Box<dyn Batch>,
    sequences: Vec<Sequence>,
}

/// Tokens for a sequence, by its number.
type Work<'a> = (usize, &'a [u32]);

impl Sessions {
    /// Sessions over the fresh instances of a batch, whose caches hold `context` tokens each;
    /// `fixed` where functions take so many tokens and no others.
    pub fn new(
        batch: Box<dyn Batch>,
        context: usize,
        vocab_size: usize,
        fixed: Option<Fixed>,
    ) -> Self {
        let sequences = (0..batch.n_instances())
            .map(|_| Sequence::new(context, vocab_size, fixed))
            .collect();
        Self { batch, sequences }
    }

    /// How many sequences there can be at once.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Tokens that the cache of a sequence holds.
    pub fn tokens(&self, idx: usize) -> Result<&[u32], GenerateError> {
        self.sequence(idx).map(Sequence::tokens)
    }

    /// Make the caches of sequences hold these prompts, reusing what they have in common with them,
    /// all sequences side by side.
    ///
    /// `interrupted` is asked between calls of the program; when it says so, `false` is given, and
    /// the caches hold a part.
    pub fn feed(
        &mut self,
        prompts: &[Work<'_>],
        interrupted: &dyn Fn() -> bool,
    ) -> Result<bool, GenerateError> {
        let mut left = prompts.to_vec();
        while !left.is_empty() {
            if interrupted() {
                return Ok(false);
            }
            self.step(&left)?;
            left.retain(|(idx, prompt)| self.sequences[*idx].tokens() != *prompt);
        }
        Ok(true)
    }

    /// Go on, in one step, to where the cache of each sequence named holds these tokens: as many of
    /// them as a call takes. One that lacks a single token decodes beside others that read their
    /// prompts. It is there when [`Self::tokens`] are these.
    pub fn step(&mut self, targets: &[Work<'_>]) -> Result<(), GenerateError> {
        /// Products are about as fast as with more.
        const LEAST_TOKENS: usize = 16;
        let most = (Sequence::MOST_TOKENS / targets.len().max(1)).max(LEAST_TOKENS);
        let mut calls = Vec::with_capacity(targets.len());
        for (idx, target) in targets {
            let sequence = self.sequence_mut(*idx)?;
            sequence.begin(target).map_err(|e| of(*idx, e))?;
            calls.extend(
                sequence
                    .next(target, most)
                    .map(|(function, tokens)| (function, (*idx, tokens))),
            );
        }
        if self.sequences.first().is_some_and(Sequence::is_fixed) {
            for function in ["prefill", "decode"] {
                let work: Vec<Work<'_>> = calls
                    .iter()
                    .filter(|(f, _)| *f == function)
                    .map(|(_, work)| *work)
                    .collect();
                self.call(function, &work)?;
            }
            return Ok(());
        }
        let work: Vec<Work<'_>> = calls.into_iter().map(|(_, work)| work).collect();
        let is_decode = work.iter().all(|(_, tokens)| tokens.len() == 1);
        self.call(if is_decode { "decode" } else { "prefill" }, &work)
    }

    /// Add one token to the cache of each sequence named.
    pub fn decode(&mut self, next: &[(usize, u32)]) -> Result<(), GenerateError> {
        let work: Vec<Work<'_>> = next
            .iter()
            .map(|(idx, token)| (*idx, std::slice::from_ref(token)))
            .collect();
        self.call("decode", &work)
    }

    /// The logits behind the last token that a sequence computed.
    pub fn logits(&self, idx: usize) -> Result<Cow<'_, [f32]>, GenerateError> {
        self.sequence(idx)?.logits(self.batch.instance(idx)?, 1)
    }

    /// Forget the tokens of a sequence, and give back what its caches take.
    pub fn reset(&mut self, idx: usize) -> Result<(), GenerateError> {
        self.sequence_mut(idx)?.clear();
        self.batch.instance_mut(idx)?.reset();
        Ok(())
    }

    fn call(&mut self, function: &str, work: &[Work<'_>]) -> Result<(), GenerateError> {
        for (idx, tokens) in work {
            let instance = self.batch.instance_mut(*idx)?;
            self.sequences[*idx]
                .fill(instance, function, tokens)
                .map_err(|e| of(*idx, e))?;
        }
        let which: Vec<usize> = work.iter().map(|(idx, _)| *idx).collect();
        self.batch.run(function, &which)?;
        work.iter()
            .for_each(|(idx, tokens)| self.sequences[*idx].extend(tokens));
        Ok(())
    }

    fn sequence(&self, idx: usize) -> Result<&Sequence, GenerateError> {
        let n = self.sequences.len();
        self.sequences
            .get(idx)
            .ok_or_else(|| RunError::NoInstance { idx, n }.into())
    }

    fn sequence_mut(&mut self, idx: usize) -> Result<&mut Sequence, GenerateError> {
        let n = self.sequences.len();
        self.sequences
            .get_mut(idx)
            .ok_or_else(|| RunError::NoInstance { idx, n }.into())
    }
}

/// The error of one sequence.
fn of(idx: usize, source: GenerateError) -> GenerateError {
    GenerateError::Sequence {
        idx,
        source: Box::new(source),
    }
}

//! Several sequences over one program. Each sequence has its own tokens, length and cache, and one
//! step runs all sequences that have work.
//!
//! A sequence that has ended is simply not part of further steps. Its slot is reused by feeding
//! another prompt, of which only the part that is not in the cache is computed. The caller chooses
//! the sequence for each prompt.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thane_mil::backend::{Batch, RunError};
use thane_mil::budget::{Budget, Loss};

use crate::error::GenerateError;
use crate::pages::Pages;
use crate::sequence::Sequence;
use crate::top::Top;
use crate::whole::WholeCaches;

/// Running copies of a language model and the tokens in their caches.
pub struct Sessions {
    batch: Box<dyn Batch>,
    sequences: Vec<Sequence>,
    top: Top,
    /// Whether the last call of each sequence was one of `decode_top`.
    has_top: Vec<bool>,
    /// Both are shared with their budgets, which take memory back for others.
    pages: Option<Arc<Mutex<Pages>>>,
    whole: Option<Arc<Mutex<WholeCaches>>>,
}

/// A sequence index and tokens for that sequence.
type Work<'a> = (usize, &'a [u32]);

impl Sessions {
    /// Most sequences of a call of `decode_top`: only one row of logits can be screened.
    const MOST_TOP: usize = 1;

    /// Sessions over the new instances of a batch, whose caches hold `context` tokens each.
    pub fn new(batch: Box<dyn Batch>, context: usize, vocab_size: usize) -> Self {
        let n = batch.n_instances();
        let sequences = (0..n).map(|_| Sequence::new(context, vocab_size));
        Self {
            batch,
            sequences: sequences.collect(),
            top: Top::new(0, vocab_size),
            has_top: vec![false; n],
            pages: None,
            whole: None,
        }
    }

    /// The sessions of a program with the function `decode_top`, which gives the `n_top` greatest
    /// logits of a token; `None` if the program has no such function.
    pub fn with_top(self, n_top: Option<usize>) -> Self {
        let vocab_size = self.sequences.first().map_or(0, Sequence::vocab_size);
        let top = Top::new(n_top.unwrap_or(0), vocab_size);
        Self { top, ..self }
    }

    /// The sessions of a program with recurrent states, if `recurrent` is true: such states hold
    /// all tokens of a sequence so far together, so a prompt that does not begin with all of them
    /// is computed anew.
    pub fn with_recurrence(self, recurrent: bool) -> Self {
        let sequences = self.sequences.into_iter();
        let sequences = sequences.map(|sequence| sequence.with_recurrence(recurrent));
        Self {
            sequences: sequences.collect(),
            ..self
        }
    }

    /// The sessions with pages of their prompts, from which any sequence can take what another has
    /// computed. Recurrent states, which have no rows for each token, have no use for them.
    pub fn with_pages(mut self, pages: Pages) -> Self {
        self.set_pages(pages);
        self
    }

    /// [`Self::with_pages`] from now on.
    pub fn set_pages(&mut self, pages: Pages) {
        let recurrent = self.sequences.iter().any(Sequence::is_recurrent);
        self.pages = (!recurrent).then(|| {
            let budget = pages.budget().clone();
            let pages = Arc::new(Mutex::new(pages));
            budget.keep(Loss::Time, &pages);
            pages
        });
    }

    /// Keeps whole caches of sequences that other prompts take over, from now on: at most `limit`
    /// bytes in all, which count against the limit of the pages and against `budget`. Backends that
    /// cannot take caches out keep none.
    pub fn keep_whole(&mut self, limit: usize, budget: Budget) {
        let whole = Arc::new(Mutex::new(WholeCaches::new(limit, budget.clone())));
        // Pages hold most of what whole caches hold.
        budget.keep(Loss::Copy, &whole);
        self.whole = Some(whole);
    }

    /// Bytes of the whole caches that no sequence has.
    pub fn whole_bytes(&self) -> usize {
        self.whole
            .as_ref()
            .map_or(0, |whole| locked(whole).n_bytes())
    }

    /// Pages for the states of these names, which hold keys and values: at most `limit` bytes in
    /// all.
    ///
    /// # Errors
    ///
    /// If there is no such state, or no sequence.
    pub fn new_pages(&self, states: &[String], limit: usize) -> Result<Pages, RunError> {
        Pages::new(self.batch.instance(0)?, states, limit)
    }

    /// Whether prompts are kept in pages.
    pub fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// The pages, if there are any. Their budget takes none back before the result is dropped.
    pub fn pages(&self) -> Option<MutexGuard<'_, Pages>> {
        self.pages.as_ref().map(|pages| locked(pages))
    }

    /// The number of tokens at the start of an owner's prompt that pages hold, or a whole cache
    /// that no sequence has.
    pub fn n_kept(&mut self, owner: u64, prompt: &[u32]) -> usize {
        let n = self.n_paged(owner, prompt);
        let whole = self.whole.as_ref();
        let found = whole.and_then(|whole| locked(whole).find(owner, prompt));
        n.max(found.map_or(0, |(_, n)| n))
    }

    fn n_paged(&mut self, owner: u64, prompt: &[u32]) -> usize {
        let n = self
            .pages()
            .map_or(0, |mut pages| pages.n_known(owner, prompt));
        n.min(prompt.len().saturating_sub(1))
    }

    /// Makes the cache of sequence `idx` hold what is kept of an owner's prompt, if that is more
    /// than it holds. What the cache holds of other prompts was last used at `used`: caches that
    /// were not used for longest are dropped first.
    pub fn resume(
        &mut self,
        idx: usize,
        (owner, prompt): (u64, &[u32]),
        used: u64,
    ) -> Result<(), GenerateError> {
        let n_paged = self.n_paged(owner, prompt);
        let sequence = self.sequence(idx)?;
        let n_cached = sequence.n_cached_for(owner, prompt);
        let goes_on = sequence.goes_on(owner, prompt);
        let mut tail = None;
        if let Some(whole) = &self.whole {
            let mut whole = locked(whole);
            let is_more = |(_, n): &(usize, usize)| *n > n_cached && *n >= n_paged;
            let found = whole.find(owner, prompt).filter(is_more);
            let wanted = found.map(|(at, _)| at);
            let instance = self.batch.instance_mut(idx)?;
            if wanted.is_none() && !goes_on {
                let pages = self
                    .pages
                    .as_ref()
                    .map(|pages| locked(pages).tail(owner, &prompt[..n_cached], instance));
                tail = pages.transpose()?.flatten();
            }
            // What cannot be carried over would be computed again.
            let is_carried = tail.is_some() || n_cached <= n_paged;
            if wanted.is_some() || (!goes_on && is_carried) {
                whole.exchange((instance, &mut self.sequences[idx]), wanted, used);
            }
        }
        self.claim(idx, owner)?;
        self.restore(idx, prompt)?;
        if let Some((pages, tail)) = self.pages.as_ref().zip(tail) {
            let (sequence, instance) = (&mut self.sequences[idx], self.batch.instance_mut(idx)?);
            locked(pages).add_tail((&tail, prompt), sequence, instance)?;
        }
        let n_bytes = self.whole_bytes();
        if let Some(mut pages) = self.pages() {
            pages.leave(n_bytes);
        }
        Ok(())
    }

    /// Makes the cache of sequence `idx` one of this owner: drops what it holds of another.
    pub fn claim(&mut self, idx: usize, owner: u64) -> Result<(), GenerateError> {
        self.sequence_mut(idx)?.claim(owner);
        Ok(())
    }

    /// Copies what pages have of a prompt to the cache of sequence `idx`, if that is more than it
    /// holds.
    fn restore(&mut self, idx: usize, prompt: &[u32]) -> Result<(), GenerateError> {
        let Some(pages) = &self.pages else {
            return Ok(());
        };
        let (sequence, instance) = (&mut self.sequences[idx], self.batch.instance_mut(idx)?);
        let restored = locked(pages).restore(prompt, sequence, instance);
        restored.map_err(|e| sequence_error(idx, e))
    }

    /// Keeps the tokens of sequence `idx` in pages.
    pub fn keep(&mut self, idx: usize) -> Result<(), GenerateError> {
        let n = self.sequences.len();
        let sequence = self
            .sequences
            .get(idx)
            .ok_or(RunError::NoInstance { idx, n })?;
        if let Some(mut pages) = self.pages() {
            let instance = self.batch.instance(idx)?;
            pages.save(sequence.owner(), sequence.tokens(), instance)?;
        }
        Ok(())
    }

    /// The number of sequences.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Number of tokens that the cache of a sequence can hold; 0 without sequences.
    pub fn context(&self) -> usize {
        self.sequences.first().map_or(0, Sequence::context)
    }

    /// The number of tokens at the start of `prompt` that the cache of sequence `idx` holds. The
    /// last token never counts, because its logits must be computed.
    pub fn n_cached(&self, idx: usize, prompt: &[u32]) -> Result<usize, GenerateError> {
        self.sequence(idx).map(|sequence| sequence.n_cached(prompt))
    }

    /// [`Self::n_cached`] of an owner's prompt.
    pub fn n_cached_for(
        &self,
        idx: usize,
        owner: u64,
        prompt: &[u32],
    ) -> Result<usize, GenerateError> {
        let sequence = self.sequence(idx)?;
        Ok(sequence.n_cached_for(owner, prompt))
    }

    /// The tokens in the cache of sequence `idx`.
    pub fn tokens(&self, idx: usize) -> Result<&[u32], GenerateError> {
        self.sequence(idx).map(Sequence::tokens)
    }

    /// Prefill: makes the caches of several sequences hold these prompts, reusing common prefixes.
    /// The sequences run side by side.
    ///
    /// `interrupted` is called between calls of the program. When it returns true, `feed` returns
    /// `false`, and the caches hold a part of the prompts.
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
            self.step(&left, None)?;
            left.retain(|(idx, prompt)| self.sequences[*idx].tokens() != *prompt);
        }
        Ok(true)
    }

    /// Runs one step towards caches that hold these tokens: the sequences process as many tokens
    /// as one call takes, those that lack several of them alike. A sequence that lacks a single
    /// token decodes beside others that prefill. A sequence is done when [`Self::tokens`] equals
    /// its target. `n_greatest` is as for [`Self::decode`].
    pub fn step(
        &mut self,
        targets: &[Work<'_>],
        n_greatest: Option<usize>,
    ) -> Result<(), GenerateError> {
        /// With fewer tokens, matrix products become slower per token.
        const MIN_TOKENS: usize = 16;
        let lacks_several = |(idx, target): &&Work<'_>| {
            let sequence = self.sequences.get(*idx);
            sequence.is_some_and(|sequence| target.len() > sequence.n_cached(target) + 1)
        };
        let n_long = targets.iter().filter(lacks_several).count();
        let n_left = Sequence::MAX_CALL_TOKENS.saturating_sub(targets.len() - n_long);
        let max_tokens = (n_left / n_long.max(1)).max(MIN_TOKENS);
        let mut work: Vec<Work<'_>> = Vec::with_capacity(targets.len());
        for (idx, target) in targets {
            let sequence = self.sequence_mut(*idx)?;
            sequence
                .begin(target)
                .map_err(|e| sequence_error(*idx, e))?;
            if sequence.is_recurrent() && sequence.tokens().is_empty() {
                // Even a NaN cannot outlive this.
                self.batch.instance_mut(*idx)?.reset();
            }
            let next = self.sequence_mut(*idx)?.next(target, max_tokens);
            work.extend(next.map(|tokens| (*idx, tokens)));
        }
        if work.iter().any(|(_, tokens)| tokens.len() > 1) {
            return self.call("prefill", &work);
        }
        self.call(self.decoding(work.len(), n_greatest), &work)
    }

    /// Decode: appends one token to the cache of each sequence in `next`, for a caller that needs
    /// the `n_greatest` logits of each only; `None` for all. Other logits are then minus infinity
    /// where the function `decode_top` gives enough and is faster.
    ///
    /// `decode_top` gives NaN only if fewer than its number of logits are numbers. A NaN in the
    /// hidden state makes all logits NaN, so it is always seen here. A NaN in a row of the output
    /// head makes the logit of one token NaN in every call, so [`Self::feed`] shows it.
    pub fn decode(
        &mut self,
        next: &[(usize, u32)],
        n_greatest: Option<usize>,
    ) -> Result<(), GenerateError> {
        let work: Vec<Work<'_>> = next
            .iter()
            .map(|(idx, token)| (*idx, std::slice::from_ref(token)))
            .collect();
        self.call(self.decoding(work.len(), n_greatest), &work)
    }

    /// The function that decodes so many sequences.
    fn decoding(&self, n_sequences: usize, n_greatest: Option<usize>) -> &'static str {
        let is_enough = n_greatest.is_some_and(|n| self.top.holds(n));
        if is_enough && n_sequences <= Self::MOST_TOP {
            "decode_top"
        } else {
            "decode"
        }
    }

    /// The logits after the last token of sequence `idx`, one for each token of the vocabulary.
    pub fn logits(&mut self, idx: usize) -> Result<Cow<'_, [f32]>, GenerateError> {
        let instance = self.batch.instance(idx)?;
        if self.has_top[idx] {
            return self.top.read(instance).map(Cow::Borrowed);
        }
        self.sequences[idx].logits(instance, 1)
    }

    /// Drops the tokens of sequence `idx` and frees the memory of its caches.
    pub fn reset(&mut self, idx: usize) -> Result<(), GenerateError> {
        let sequence = self.sequence_mut(idx)?;
        *sequence = sequence.fresh();
        self.batch.instance_mut(idx)?.reset();
        Ok(())
    }

    fn call(&mut self, function: &str, work: &[Work<'_>]) -> Result<(), GenerateError> {
        let ran = self.run(function, work);
        if ran.is_err() {
            // Some recurrent states may hold the tokens, and others not.
            for (idx, _) in work {
                let sequence = self.sequence_mut(*idx)?;
                if sequence.is_recurrent() {
                    sequence.clear();
                }
            }
        }
        ran?;
        for (idx, tokens) in work {
            self.sequences[*idx].extend(tokens);
            self.has_top[*idx] = function == "decode_top";
        }
        Ok(())
    }

    fn run(&mut self, function: &str, work: &[Work<'_>]) -> Result<(), GenerateError> {
        for (idx, tokens) in work {
            let instance = self.batch.instance_mut(*idx)?;
            self.sequences[*idx]
                .fill(instance, tokens)
                .map_err(|e| sequence_error(*idx, e))?;
        }
        let which: Vec<usize> = work.iter().map(|(idx, _)| *idx).collect();
        Ok(self.batch.run(function, &which)?)
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

fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the index of a sequence to the sequence's error.
fn sequence_error(idx: usize, source: GenerateError) -> GenerateError {
    GenerateError::Sequence {
        idx,
        source: Box::new(source),
    }
}

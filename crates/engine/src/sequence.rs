//! The tokens of one sequence, and the inputs of the program calls that process them.

use std::borrow::Cow;

use thane_mil::backend::{Instance, View};
use thane_mil::literal::f16_to_f32;
use thane_mil::types::DType;

use crate::error::GenerateError;

/// The tokens in the cache of an instance, and the cache's capacity.
#[derive(Debug)]
pub(crate) struct Sequence {
    tokens: Vec<u32>,
    /// For whom they were computed.
    owner: u64,
    /// Most tokens that were in the cache since it was zero.
    n_written: usize,
    context: usize,
    vocab_size: usize,
    /// Whether states hold all tokens so far together, so that the sequence cannot go back to an
    /// earlier token, but only begin again.
    recurrent: bool,
}

impl Sequence {
    /// Maximum product of tokens and keys in one prefill call. The mask alone takes 4 bytes for
    /// each pair and each query head that shares a key head.
    const MAX_SCORES: usize = 1 << 18;
    /// Maximum number of tokens in one prefill call, over all sequences; more tokens are not
    /// faster.
    pub const MAX_CALL_TOKENS: usize = 512;

    /// An empty sequence with a capacity of `context` tokens.
    pub fn new(context: usize, vocab_size: usize) -> Self {
        Self {
            tokens: Vec::new(),
            owner: 0,
            n_written: 0,
            context,
            vocab_size,
            recurrent: false,
        }
    }

    /// The sequence of a program with recurrent states, if `recurrent` is true.
    pub fn with_recurrence(self, recurrent: bool) -> Self {
        Self { recurrent, ..self }
    }

    /// Whether the program has recurrent states.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent
    }

    /// The sequence of another cache of the program, which is zero.
    pub fn fresh(&self) -> Self {
        Self::new(self.context, self.vocab_size).with_recurrence(self.recurrent)
    }

    /// Most tokens that were in the cache since it was zero.
    pub fn n_written(&self) -> usize {
        self.n_written
    }

    /// For whom the tokens in the cache were computed.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Drops the tokens, unless they were computed for this owner, for whom the next ones are.
    pub fn claim(&mut self, owner: u64) {
        if self.owner != owner {
            self.clear();
            self.owner = owner;
        }
    }

    /// [`Self::n_cached`] of a prompt of this owner.
    pub fn n_cached_for(&self, owner: u64, prompt: &[u32]) -> usize {
        match self.owner == owner {
            true => self.n_cached(prompt),
            false => 0,
        }
    }

    /// Whether a prompt of an owner uses at least half of what the cache holds.
    pub fn goes_on(&self, owner: u64, prompt: &[u32]) -> bool {
        2 * self.n_cached_for(owner, prompt) >= self.tokens.len()
    }

    /// Number of tokens that the cache can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The length of the common prefix of `prompt` and the cache, without the last token of
    /// `prompt`. With recurrent states, the prefix counts only if it is the whole cache.
    pub fn n_cached(&self, prompt: &[u32]) -> usize {
        let common = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let common = common.min(prompt.len().saturating_sub(1));
        if self.recurrent && common < self.tokens.len() {
            0
        } else {
            common
        }
    }

    /// Drops all tokens after the common prefix of `prompt` and the cache, and all tokens where
    /// recurrent states hold more than that.
    pub fn begin(&mut self, prompt: &[u32]) -> Result<(), GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if prompt.len() > self.context {
            return Err(GenerateError::PromptTooLong {
                prompt: prompt.len(),
                context: self.context,
            });
        }
        self.tokens.truncate(self.n_cached(prompt));
        Ok(())
    }

    /// The tokens of the next program call on the way to `prompt`, at most `max_tokens`. `None`
    /// once the cache holds the prompt.
    pub fn next<'p>(&self, prompt: &'p [u32], max_tokens: usize) -> Option<&'p [u32]> {
        let rest = prompt
            .get(self.tokens.len()..)
            .filter(|rest| !rest.is_empty())?;
        let most = (Self::MAX_SCORES / prompt.len()).max(16);
        Some(&rest[..rest.len().min(max_tokens).min(most)])
    }

    /// Sets the inputs of a function for `tokens`, which follow the tokens in the cache.
    pub fn fill(&self, instance: &mut dyn Instance, tokens: &[u32]) -> Result<(), GenerateError> {
        let (position, context) = (self.tokens.len(), self.context);
        let total = position + tokens.len();
        if total > context {
            return Err(GenerateError::PromptTooLong {
                prompt: total,
                context,
            });
        }
        let ids = instance.input("input_ids", &[1, tokens.len()])?;
        for (bytes, token) in ids.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
            *bytes = token.to_ne_bytes();
        }
        let position = i32::try_from(position).unwrap_or(i32::MAX);
        instance
            .input("position", &[1])?
            .copy_from_slice(&position.to_ne_bytes());
        Ok(())
    }

    /// Records tokens that a call has written to the cache.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.n_written = self.n_written.max(self.tokens.len());
    }

    /// Drops all tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// The logits of the last call, for `n_tokens` tokens.
    pub fn logits<'i>(
        &self,
        instance: &'i dyn Instance,
        n_tokens: usize,
    ) -> Result<Cow<'i, [f32]>, GenerateError> {
        let view = instance.output("logits")?;
        let expected = n_tokens * self.vocab_size;
        let found: usize = view.shape.iter().product();
        let logits = floats(&view).filter(|logits| logits.len() == expected);
        logits.ok_or(GenerateError::Logits {
            found,
            dtype: view.dtype.name(),
            expected,
        })
    }
}

/// The elements of an output; `None` if they are not fp32 or fp16.
pub(crate) fn floats<'i>(view: &View<'i>) -> Option<Cow<'i, [f32]>> {
    match view.dtype {
        DType::Fp32 => bytemuck::try_cast_slice(view.bytes).map(Cow::Borrowed).ok(),
        DType::Fp16 => Some(
            view.bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f16_to_f32(u16::from_ne_bytes(*b)))
                .collect(),
        ),
        _ => None,
    }
}

/// The elements of an output; `None` if they are not int32.
pub(crate) fn ints(view: &View<'_>) -> Option<Vec<i32>> {
    let (elements, _) = view.bytes.as_chunks();
    let ints = elements.iter().map(|b| i32::from_ne_bytes(*b));
    (view.dtype == DType::Int32).then(|| ints.collect())
}

//! The tokens of one sequence, and how an instance is fed with them.

use std::borrow::Cow;

use thane_mil::backend::Instance;
use thane_mil::literal::f16_to_f32;
use thane_mil::types::DType;

use crate::error::GenerateError;
use crate::fixed::{Call, Fixed};

/// What the cache of an instance holds, and what it can hold.
#[derive(Debug)]
pub(crate) struct Sequence {
    tokens: Vec<u32>,
    context: usize,
    vocab_size: usize,
    fixed: Option<Fixed>,
}

impl Sequence {
    /// Tokens times keys of one prefill call at most: the mask alone takes 4 bytes for each of them
    /// and each query head of a key head.
    const MOST_SCORES: usize = 1 << 18;
    /// Tokens of a prefill call at most, of all sequences together; more brings no speed.
    pub const MOST_TOKENS: usize = 512;

    /// No tokens, of `context` that fit; `fixed` where functions take so many tokens and no others.
    pub fn new(context: usize, vocab_size: usize, fixed: Option<Fixed>) -> Self {
        Self {
            tokens: Vec::new(),
            context,
            vocab_size,
            fixed,
        }
    }

    /// Tokens that the cache can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens that the cache holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether functions take so many tokens and no others.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Tokens at the front of `prompt` that the cache has; the last is not counted.
    pub fn n_cached(&self, prompt: &[u32]) -> usize {
        let common = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        common.min(prompt.len().saturating_sub(1))
    }

    /// Forget what the cache does not have in common with `prompt`.
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

    /// The next call on the way to `prompt`, until the cache holds it: a function and its tokens,
    /// `most` where any number may be.
    pub fn next<'p>(
        &mut self,
        prompt: &'p [u32],
        most: usize,
    ) -> Option<(&'static str, &'p [u32])> {
        let rest = prompt
            .get(self.tokens.len()..)
            .filter(|rest| !rest.is_empty())?;
        Some(match self.fixed {
            None => {
                let n = rest
                    .len()
                    .min(most)
                    .min((Self::MOST_SCORES / prompt.len()).max(16));
                ("prefill", &rest[..n])
            }
            Some(_) if rest.len() == 1 => ("decode", rest),
            Some(fixed) => {
                // All of a block is written: where too little room is left, some tokens are
                // computed again.
                let start = self
                    .tokens
                    .len()
                    .min(self.context.saturating_sub(fixed.block));
                self.tokens.truncate(start);
                (
                    "prefill",
                    &prompt[start..prompt.len().min(start + fixed.block)],
                )
            }
        })
    }

    /// Set the inputs of a function that is to be given these tokens behind those of the cache.
    pub fn fill(
        &self,
        instance: &mut dyn Instance,
        function: &str,
        tokens: &[u32],
    ) -> Result<(), GenerateError> {
        let (position, context) = (self.tokens.len(), self.context);
        let total = position + tokens.len();
        if total > context {
            return Err(GenerateError::PromptTooLong {
                prompt: total,
                context,
            });
        }
        if let Some(fixed) = self.fixed {
            return Ok(fixed.set(
                instance,
                function,
                Call {
                    tokens,
                    position,
                    context,
                },
            )?);
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

    /// What a call has put into the cache.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Forget every token.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// The logits that the last call gave, of so many tokens.
    pub fn logits<'i>(
        &self,
        instance: &'i dyn Instance,
        n_tokens: usize,
    ) -> Result<Cow<'i, [f32]>, GenerateError> {
        let view = instance.output("logits")?;
        let expected = n_tokens * self.vocab_size;
        let found: usize = view.shape.iter().product();
        let wrong = GenerateError::Logits {
            found,
            dtype: view.dtype.name(),
            expected,
        };
        match view.dtype {
            DType::Fp32 if found == expected => bytemuck::try_cast_slice(view.bytes)
                .map(Cow::Borrowed)
                .map_err(|_| wrong),
            DType::Fp16 if found == expected => Ok(view
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f16_to_f32(u16::from_ne_bytes(*b)))
                .collect()),
            _ => Err(wrong),
        }
    }
}

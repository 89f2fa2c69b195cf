//! A request that has a sequence: its tokens so far, and when its answer ends.

use crate::generate::{FinishReason, GenerateError};
use crate::sample::Sampler;
use crate::text::{StreamOptions, TextStream, Tokenizer};

use super::request::{Request, RequestId, Usage};

/// A request with a sampler, from its arrival on.
pub(super) struct Running<'t> {
    pub id: RequestId,
    /// The prompt and the answer so far. The cache lacks the last token, which the next step feeds.
    pub history: Vec<u32>,
    pub usage: Usage,
    sampler: Sampler,
    stream: TextStream<'t>,
    stop_tokens: Vec<u32>,
    max_tokens: usize,
}

impl<'t> Running<'t> {
    /// Refuses sampling options that are out of range.
    pub fn new(
        id: RequestId,
        request: Request,
        tokenizer: &'t Tokenizer,
    ) -> Result<Self, GenerateError> {
        let options = StreamOptions {
            stop: request.stop,
            skip_special: true,
            strip_space_prefix: request.strip_space_prefix,
        };
        Ok(Self {
            id,
            usage: Usage {
                prompt_tokens: request.prompt.len(),
                ..Usage::default()
            },
            history: request.prompt,
            sampler: Sampler::new(request.sampling)?,
            stream: TextStream::new(tokenizer, options),
            stop_tokens: request.stop_tokens,
            max_tokens: request.max_tokens,
        })
    }

    /// Chooses the next token from the logits after the whole history. Appends to `text` what can
    /// be shown; returns why the answer ends, if it does.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
        context: usize,
        text: &mut String,
    ) -> Result<Option<FinishReason>, GenerateError> {
        let reason = self.next(logits, tokenizer, context, text)?;
        if reason.is_some() {
            text.push_str(&self.stream.finish());
            self.usage.stop_idx = self.stream.stop_idx();
        }
        Ok(reason)
    }

    fn next(
        &mut self,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
        context: usize,
        text: &mut String,
    ) -> Result<Option<FinishReason>, GenerateError> {
        if self.max_tokens == 0 {
            return Ok(Some(FinishReason::Length));
        }
        let token = self.sampler.sample(logits, &self.history)?;
        if tokenizer.is_end(token) || self.stop_tokens.contains(&token) {
            return Ok(Some(FinishReason::Stop));
        }
        self.history.push(token);
        self.usage.answer_tokens += 1;
        text.push_str(&self.stream.push(token).unwrap_or_default());
        Ok(if self.stream.stopped() {
            Some(FinishReason::Stop)
        } else if self.usage.answer_tokens == self.max_tokens {
            Some(FinishReason::Length)
        } else if self.history.len() > context {
            Some(FinishReason::Context)
        } else {
            None
        })
    }
}

//! One answer of a model that nobody else asks: its text as it comes, its tokens and its times.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thane_engine::generate::{FinishReason, GenerateError};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::{Event, Request, Scheduler};

/// The durations of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Number of prompt tokens that were computed; the others were in the cache.
    pub prefill_tokens: usize,
    /// Time from the start to the choice of the first token, or to the logits of the prompt if no
    /// token is wanted.
    pub prefill: Duration,
    /// Time from the start to the choice of the first token; 0 if none is wanted.
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
    /// The log probability of each token, if they are wanted.
    pub logprobs: Vec<TokenLogprob>,
    /// Why the answer ended.
    pub finish_reason: FinishReason,
    /// The durations.
    pub timings: Timings,
}

/// Answers a request, which no other runs beside. `interrupted` is asked before each call of the
/// program; `on_text` receives each piece of text as soon as no later token can change it, and can
/// end the answer.
pub(crate) fn answer(
    scheduler: &mut Scheduler<'_>,
    request: Request,
    interrupted: &dyn Fn() -> bool,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Answer, GenerateError> {
    let wants_tokens = request.max_tokens > 0;
    let id = scheduler.submit(request)?;
    let start = Instant::now();
    let (mut text, mut logprobs, mut timings) = (String::new(), Vec::new(), Timings::default());
    let mut is_broken = false;
    loop {
        let n_before = scheduler.totals().answer_tokens;
        let events = if is_broken || interrupted() {
            scheduler.interrupt(id)
        } else {
            let events = scheduler.step();
            let has_chosen = !events.is_empty() || scheduler.totals().answer_tokens > n_before;
            if has_chosen && timings.prefill.is_zero() {
                timings.prefill = start.elapsed();
                timings.first_token = timings.prefill * u32::from(wants_tokens);
            } else if has_chosen {
                timings.decode_tokens = n_before;
                timings.decode = start.elapsed() - timings.prefill;
            }
            events
        };
        for (_, event) in events {
            match event {
                Event::Scored(_) => {}
                Event::Logprob(logprob) => logprobs.push(logprob),
                Event::Text(piece) => {
                    is_broken |= on_text(&piece).is_break();
                    text.push_str(&piece);
                }
                Event::Done(reason, usage, tokens) => {
                    timings.prefill_tokens = usage.prompt_tokens - usage.cached_tokens;
                    let broken = is_broken.then_some(FinishReason::Interrupted);
                    return Ok(Answer {
                        tokens,
                        text,
                        logprobs,
                        finish_reason: broken.unwrap_or(reason),
                        timings,
                    });
                }
                Event::Failed(error) => {
                    let error = Arc::into_inner(error);
                    return Err(match error.expect("a request alone has its error alone") {
                        GenerateError::Sequence { source, .. } => *source,
                        error => error,
                    });
                }
            }
        }
    }
}

//! What requests to language models have in common: their checks, their prompts, and the queue.

use std::sync::Arc;

use thane_engine::choose::Grammar;
use thane_engine::sample::{SampleError, SampleOptions, Sampler};
use thane_runtime::chat::{AnswerParser, ChatSyntax};
use thane_runtime::{RuntimeError, Sampling};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::answers::{Answers, Sent};
use crate::apart::note_freed;
use crate::body::{Fields, refused};
use crate::compiling::Form;
use crate::error::{ApiError, of_cause};
use crate::log::{current_budget, held_bytes};
use crate::logprobs::{least_json_bytes, logprob_bytes};
use crate::model::{Kind, Served};

/// Most log probabilities of a token, as in OpenAI's API.
const MAX_LOGPROBS: usize = 20;

/// The language model of a request.
pub(super) fn language_model(model: &Served) -> Result<&Answers, ApiError> {
    match &model.task {
        Kind::Answers(answers) => Ok(answers),
        Kind::Embeds(_) | Kind::Ranks(_) => Err(model.wrong_kind()),
    }
}

/// Refuses log probabilities of so many tokens, each with `n_top` likely ones, for which there is
/// no memory, before there are any. They take memory as they come, which may be fewer.
pub(super) fn check_memory(
    n_tokens: usize,
    n_top: Option<usize>,
    in_one_piece: bool,
) -> Result<(), ApiError> {
    let Some(n_top) = n_top else { return Ok(()) };
    let of_events = n_tokens.saturating_mul(size_of::<Sent>() + logprob_bytes(n_top));
    let of_text = match in_one_piece {
        true => least_json_bytes(n_tokens, n_top),
        false => 0,
    };
    let n_bytes = of_events.saturating_add(of_text);
    let what = || format!("the log probabilities of {n_tokens} tokens");
    Ok(current_budget().check(n_bytes, what)?)
}

/// Refuses more log probabilities than a token shows, and any where the model does not give all
/// logits.
pub(super) fn check_logprobs(
    n: Option<usize>,
    field: &str,
    answers: &Answers,
) -> Result<(), ApiError> {
    if let Some(n) = n.filter(|n| *n > MAX_LOGPROBS) {
        return Err(refused(field, format_args!("at most {MAX_LOGPROBS}"), n));
    }
    match (n, &answers.known) {
        (Some(_), Some(known)) => Err(invalid(known.lacks("log probabilities")).with_param(field)),
        _ => Ok(()),
    }
}

/// Takes `logprobs`, and how many likely tokens are shown beside each.
pub(super) fn top_logprobs(
    fields: &mut Fields,
    answers: &Answers,
) -> Result<Option<usize>, ApiError> {
    let shows = fields.take("logprobs")?.unwrap_or(false);
    let n_top = fields.take("top_logprobs")?.unwrap_or(0);
    if n_top > 0 && !shows {
        let message = "`top_logprobs` needs `logprobs` to be true";
        return Err(ApiError::field("top_logprobs", message));
    }
    let n_top = shows.then_some(n_top);
    check_logprobs(n_top, "top_logprobs", answers)?;
    Ok(n_top)
}

/// The places in the queue of `n` answers that come together: all or none.
pub(super) fn places(answers: &Answers, n: usize) -> Result<Vec<OwnedSemaphorePermit>, ApiError> {
    let most = answers.places.n();
    if n > most {
        let message = format!(
            "expected at most {most} answers, which the slots and the queue of the model hold, \
             found {n}"
        );
        return Err(ApiError::field("n", message));
    }
    (0..n).map(|_| answers.places.take()).collect()
}

/// A prompt that was encoded, and how its answers are read.
pub(super) struct Prepared {
    pub tokens: Vec<u32>,
    pub parser: AnswerParser,
    /// Control tokens that are part of answers.
    pub shown: Vec<u32>,
    /// The text of the prompt, if it is repeated before each answer.
    pub echo: Option<String>,
    /// Whether the answer continues a text.
    pub continues: bool,
    /// Most calls of tools of an answer.
    pub max_calls: usize,
}

impl Prepared {
    /// A text that is continued.
    pub fn of_text(tokens: Vec<u32>, echo: Option<String>) -> Self {
        Self {
            tokens,
            parser: AnswerParser::new(ChatSyntax::default(), Vec::new(), ""),
            shown: Vec::new(),
            echo,
            continues: true,
            max_calls: 0,
        }
    }
}

/// The room for a prompt, and the field that has the prompt.
#[derive(Clone, Copy)]
pub(super) struct Room {
    context: usize,
    max_bytes: usize,
    n_vocab: usize,
    param: &'static str,
}

impl Room {
    pub fn new(answers: &Answers, param: &'static str) -> Self {
        Self {
            context: answers.context,
            max_bytes: answers.max_prompt_bytes,
            n_vocab: answers.n_vocab,
            param,
        }
    }

    /// Refuses a text before it is tokenized, which takes long, if no tokenization fits.
    pub fn check_bytes(self, n: usize) -> Result<(), ApiError> {
        if n <= self.max_bytes {
            return Ok(());
        }
        Err(self.refused(&format!("at least {} tokens", self.context)))
    }

    /// Refuses tokens that the model does not have.
    pub fn check_ids(self, tokens: &[u32]) -> Result<(), ApiError> {
        let n_vocab = self.n_vocab;
        let unknown = tokens.iter().find(|id| **id as usize >= n_vocab);
        unknown.map_or(Ok(()), |id| {
            Err(refused(
                self.param,
                format_args!("token ids below {n_vocab}"),
                id,
            ))
        })
    }

    /// Refuses a prompt without tokens, and one that leaves no room for an answer.
    pub fn check_tokens(self, n: usize) -> Result<(), ApiError> {
        match n {
            0 => Err(refused(self.param, "at least one token", "none")),
            n if n < self.context => Ok(()),
            n => Err(self.refused(&format!("{n} tokens"))),
        }
    }

    fn refused(self, found: &str) -> ApiError {
        let context = self.context;
        let message = format!(
            "expected a prompt shorter than the context of {context} tokens, found {found}"
        );
        ApiError::field(self.param, message).with_code("context_length_exceeded")
    }
}

/// The sampling options of a request: what the client leaves out is as the model's files recommend,
/// then as `thane run` has it.
pub(super) fn choose(
    sampling: &Sampling,
    answers: &Answers,
    is_chat: bool,
) -> Result<SampleOptions, ApiError> {
    let options = sampling.choose(&answers.recommended, is_chat).options;
    if let Some(known) = &answers.known {
        known.check(&options).map_err(invalid)?;
    }
    Sampler::new(options.clone()).map_err(|e| of_sampling(&e))?;
    Ok(options)
}

/// The grammar of a form.
pub(super) async fn grammar(
    answers: &Answers,
    form: Option<Form>,
) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
    let Some(form) = form else { return Ok(None) };
    let compiled = answers.compilers.compile(&answers.prompts, form);
    answers.in_time(compiled).await.map(Some)
}

/// Runs work that takes time beside the connections. It is given what tells whether the caller was
/// dropped, because the client has gone. Work that still waits for a thread then never begins. The
/// `places` are taken until the work ends, so that there is only so much of it, and come back.
pub(super) async fn beside<T: Send + 'static, P: Send + 'static>(
    places: P,
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, P), ApiError> {
    let (caller, _held) = oneshot::channel::<()>();
    let n_held = held_bytes();
    let work = move || {
        let is_gone = || caller.is_closed();
        let done = match is_gone() {
            true => Err(ApiError::failed("nobody waits for the answer")),
            false => work(&is_gone),
        };
        if is_gone() {
            drop(done);
            // The request ended before what it was made of was free.
            note_freed(n_held);
            return Err(ApiError::failed("nobody waits for the answer"));
        }
        Ok((done?, places))
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::failed("the prompt could not be encoded"))?
}

/// An error that the request has caused.
pub(super) fn invalid(error: RuntimeError) -> ApiError {
    of_cause(&error, |said| match error {
        RuntimeError::NoTemplate => ApiError::field("messages", said + ": use /v1/completions"),
        RuntimeError::Template { .. } => ApiError::field("messages", said),
        _ => ApiError::invalid(said),
    })
}

fn of_sampling(error: &SampleError) -> ApiError {
    match error {
        SampleError::Option {
            option,
            value,
            range,
        } => refused(option, range, value),
        other => ApiError::invalid(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// A client that leaves before a thread is free has no work done.
    #[test]
    fn work_that_nobody_waits_for_never_begins() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        let (go_on, held) = mpsc::channel::<()>();
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&has_begun);
        runtime.block_on(async {
            let busy = tokio::task::spawn_blocking(move || held.recv());
            let queued = tokio::spawn(beside((), move |_| {
                begun.store(true, Ordering::Relaxed);
                Ok(())
            }));
            tokio::task::yield_now().await;
            queued.abort();
            assert!(queued.await.is_err());
            go_on.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let (done, place) = beside("place", |_| Ok(7)).await.ok().unwrap();
            assert_eq!((done, place), (7, "place"));
        });
        assert!(!has_begun.load(Ordering::Relaxed));
    }
}

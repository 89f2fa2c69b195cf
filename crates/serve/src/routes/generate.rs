//! What chat and completions have in common: sampling fields, the queue, and the answer in one
//! piece or as a stream.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde::Deserialize;
use thane_engine::choose::Grammar;
use thane_engine::sample::{SampleError, SampleOptions, Sampler};
use thane_engine::schedule::Request;
use thane_runtime::chat::AnswerParser;
use thane_runtime::{RuntimeError, Sampling};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{format, now_s, sampling};
use crate::answers::{Answers, Sent};
use crate::body::Fields;
use crate::compiling::Form;
use crate::error::{ApiError, lacks_memory, of_cause};
use crate::log::current_budget;
use crate::logprobs::{least_json_bytes, logprob_bytes};
use crate::model::{Kind, Served};
use crate::shape::{Api, Shape, Shown};
use crate::stream::{Choice, respond};

/// Fields that do not change an answer.
pub(super) const IGNORED: &[&str] = &[
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Most choices for a prompt, as in OpenAI's API.
const MAX_CHOICES: usize = 128;

/// Most log probabilities of a token, as in OpenAI's API.
pub(super) const MAX_LOGPROBS: usize = 20;

/// Most texts that can end an answer, as in OpenAI's API.
const MAX_STOPS: usize = 4;

/// Most tokens that can end an answer.
const MAX_STOP_TOKENS: usize = 1024;

/// How an answer is made and given.
pub(super) struct Wish {
    sampling: SampleOptions,
    stop: Vec<String>,
    stop_tokens: Vec<u32>,
    min_tokens: usize,
    /// Answers to each prompt.
    pub n: usize,
    pub form: Option<Form>,
    /// Most likely tokens whose log probabilities are shown beside each token's.
    pub logprobs: Option<usize>,
    pub max_tokens: Option<usize>,
    is_stream: bool,
    include_usage: bool,
}

/// `stop`: one text or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// `stream_options`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamFields {
    include_usage: Option<bool>,
    /// Random padding against eavesdroppers, which loopback has no need of.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// Token ids that end an answer.
fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    let name = "stop_token_ids";
    let tokens: Vec<u32> = fields.take(name)?.unwrap_or_default();
    if tokens.len() > MAX_STOP_TOKENS {
        let n = tokens.len();
        let message = format!("`{name}`: expected at most {MAX_STOP_TOKENS} tokens, found {n}");
        return Err(ApiError::field(name, message));
    }
    Ok(tokens)
}

/// The language model of a request.
pub(super) fn language_model(model: &Served) -> Result<&Answers, ApiError> {
    match &model.task {
        Kind::Answers(answers) => Ok(answers),
        Kind::Embeds(_) | Kind::Ranks(_) => Err(model.wrong_kind()),
    }
}

impl Wish {
    /// Takes the fields, apart from those of log probabilities and of most tokens.
    pub fn take(
        fields: &mut Fields,
        answers: &Answers,
        api: Api,
        number: u64,
    ) -> Result<Self, ApiError> {
        let sampling = sampling::take(fields, answers, number)?;
        let sampling = choose(&sampling, answers, api == Api::Chat)?;
        let stop = match fields.take("stop")? {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Several(texts)) => texts,
        };
        sampling::check_stops(&stop, "stop", MAX_STOPS)?;
        let is_stream = fields.take("stream")?.unwrap_or(false);
        let options: Option<StreamFields> = fields.take("stream_options")?;
        if options.is_some() && !is_stream {
            let message = "`stream_options` needs `stream` to be true";
            return Err(ApiError::field("stream_options", message));
        }
        let include_usage = options.unwrap_or_default().include_usage.unwrap_or(false);
        let n = fields.take("n")?.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            let message = format!("`n`: expected 1 to {MAX_CHOICES}, found {n}");
            return Err(ApiError::field("n", message));
        }
        let form = format::take(fields)?;
        if let (Some(form), Some(known)) = (&form, &answers.known) {
            return Err(invalid(known.lacks("a grammar")).with_param(form.field));
        }
        Ok(Self {
            sampling,
            stop,
            stop_tokens: stop_tokens(fields)?,
            min_tokens: fields.take("min_tokens")?.unwrap_or(0),
            n,
            form,
            logprobs: None,
            max_tokens: None,
            is_stream,
            include_usage,
        })
    }

    /// Tokens of an answer to a prompt that the client asks for, with those of the prompt that are
    /// scored.
    fn logprob_tokens(&self, prompt: &Prepared, room: Room) -> usize {
        let n_prompt = prompt.tokens.len();
        let n_due = self.max_tokens.unwrap_or(self.min_tokens);
        let n_scored = if prompt.echo.is_some() { n_prompt } else { 0 };
        n_due.min(room.context.saturating_sub(n_prompt)) + n_scored
    }

    /// Asks for log probabilities.
    pub fn show_logprobs(
        &mut self,
        n: Option<usize>,
        field: &str,
        answers: &Answers,
    ) -> Result<(), ApiError> {
        check_logprobs(n, field, answers)?;
        self.logprobs = n;
        Ok(())
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
    let room = current_budget().reserve(n_bytes, what);
    room.map(drop).map_err(|e| lacks_memory(&e))
}

/// Refuses more log probabilities than a token shows, and any where the model does not give all
/// logits.
pub(super) fn check_logprobs(
    n: Option<usize>,
    field: &str,
    answers: &Answers,
) -> Result<(), ApiError> {
    if let Some(n) = n.filter(|n| *n > MAX_LOGPROBS) {
        let message = format!("`{field}`: expected at most {MAX_LOGPROBS}, found {n}");
        return Err(ApiError::field(field, message));
    }
    match (n, &answers.known) {
        (Some(_), Some(known)) => Err(invalid(known.lacks("log probabilities")).with_param(field)),
        _ => Ok(()),
    }
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

/// Generates `wish.n` answers to each prompt. There is a place for each.
pub(super) async fn answer(
    model: &Served,
    (api, number): (Api, u64),
    wish: Wish,
    (room, prompts, form): (Room, Vec<Prepared>, Option<Form>),
    places: Vec<OwnedSemaphorePermit>,
) -> Result<Response<Body>, ApiError> {
    let answers = language_model(model)?;
    for prompt in &prompts {
        room.check_tokens(prompt.tokens.len())?;
    }
    let of_prompt = |prompt: &Prepared| wish.n * wish.logprob_tokens(prompt, room);
    let n_tokens = prompts.iter().map(of_prompt).sum();
    check_memory(n_tokens, wish.logprobs, !wish.is_stream)?;
    let grammar = grammar(answers, form).await?;
    let mut places = places.into_iter();
    let mut choices = Vec::new();
    for prompt in prompts {
        for (idx, place) in places.by_ref().take(wish.n).enumerate() {
            let request = Request {
                prompt: prompt.tokens.clone(),
                sampling: SampleOptions {
                    seed: wish.sampling.seed.wrapping_add(idx as u64),
                    ..wish.sampling.clone()
                },
                grammar: grammar.clone(),
                logprobs: wish.logprobs,
                scores_prompt: prompt.echo.is_some() && wish.logprobs.is_some(),
                min_tokens: wish.min_tokens,
                max_tokens: wish.max_tokens.unwrap_or(usize::MAX),
                stop: wish.stop.clone(),
                stop_tokens: wish.stop_tokens.clone(),
                shown_tokens: prompt.shown.clone(),
                strip_space_prefix: !prompt.continues,
                ..Request::default()
            };
            let events = answers.submit(request, place)?;
            let (parser, echo) = (prompt.parser.clone(), prompt.echo.clone());
            let choice = Choice::new(events, parser, prompt.max_calls);
            choices.push(choice.of_prompt(echo, idx == 0));
        }
    }
    let prefix = if api == Api::Chat { "chatcmpl" } else { "cmpl" };
    let shape = Shape {
        api,
        id: format!("{prefix}-{number:016x}"),
        created: now_s(),
        model: model.id.clone(),
        include_usage: wish.include_usage,
        shows_logprobs: wish.logprobs.is_some(),
        prompts: Arc::clone(&answers.prompts),
        shown: vec![Shown::default(); choices.len()],
    };
    respond(shape, choices, wish.is_stream).await
}

/// The room for a prompt, and the field that has the prompt.
#[derive(Clone, Copy)]
pub(super) struct Room {
    context: usize,
    max_bytes: usize,
    param: &'static str,
}

impl Room {
    pub fn new(answers: &Answers, param: &'static str) -> Self {
        Self {
            context: answers.context,
            max_bytes: answers.max_prompt_bytes,
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

    /// Refuses a prompt that leaves no room for an answer.
    pub fn check_tokens(self, n: usize) -> Result<(), ApiError> {
        if n < self.context {
            return Ok(());
        }
        Err(self.refused(&format!("{n} tokens")))
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
/// dropped, because the client has gone.
pub(super) async fn beside<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (caller, _held) = oneshot::channel::<()>();
    let done = tokio::task::spawn_blocking(move || work(&|| caller.is_closed())).await;
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
        } => ApiError::field(
            *option,
            format!("`{option}`: expected {range}, found {value}"),
        ),
        other => ApiError::invalid(other.to_string()),
    }
}

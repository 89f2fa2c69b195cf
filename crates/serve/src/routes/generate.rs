//! What chat and completions have in common: sampling fields, the queue, and the answer in one
//! piece or as a stream.

use axum::body::Body;
use axum::http::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use thane_engine::sample::{SampleError, SampleOptions, Sampler};
use thane_engine::schedule::Request;
use thane_runtime::{RuntimeError, Sampling};
use tokio::sync::OwnedSemaphorePermit;

use super::{App, now_s};
use crate::answers::Answers;
use crate::body::Fields;
use crate::error::{ApiError, error_chain};
use crate::model::{Kind, Served};
use crate::shape::{Api, Shape};
use crate::stream::respond;

/// Fields that do not change an answer.
pub(super) const IGNORED: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Most texts that can end an answer, as in OpenAI's API.
const MAX_STOPS: usize = 4;

/// How an answer is made and given.
pub(super) struct Wish {
    sampling: SampleOptions,
    stop: Vec<String>,
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

/// The language model of a request.
pub(super) fn language_model(model: &Served) -> Result<&Answers, ApiError> {
    match &model.task {
        Kind::Answers(answers) => Ok(answers),
        Kind::Embeds(_) | Kind::Ranks(_) => Err(model.wrong_kind()),
    }
}

impl Wish {
    /// Takes the fields. Without a seed, each request has another.
    pub fn take(
        fields: &mut Fields,
        answers: &Answers,
        api: Api,
        number: u64,
    ) -> Result<Self, ApiError> {
        let sampling = Sampling {
            temperature: fields.take("temperature")?,
            top_k: fields.take("top_k")?,
            top_p: fields.take("top_p")?,
            min_p: fields.take("min_p")?,
            repetition_penalty: fields.take("repetition_penalty")?,
            presence_penalty: fields.take("presence_penalty")?.unwrap_or(0.0),
            frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(0.0),
            seed: fields
                .take::<i64>("seed")?
                .map_or(number, i64::cast_unsigned),
        };
        let sampling = choose(&sampling, answers, api == Api::Chat)?;
        let stop = match fields.take("stop")? {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Several(texts)) => texts,
        };
        if stop.len() > MAX_STOPS {
            let message = format!(
                "`stop`: expected at most {MAX_STOPS} texts, found {}",
                stop.len()
            );
            return Err(ApiError::field("stop", message));
        }
        let is_stream = fields.take("stream")?.unwrap_or(false);
        let options: Option<StreamFields> = fields.take("stream_options")?;
        if options.is_some() && !is_stream {
            let message = "`stream_options` needs `stream` to be true";
            return Err(ApiError::field("stream_options", message));
        }
        let include_usage = options.unwrap_or_default().include_usage.unwrap_or(false);
        Ok(Self {
            sampling,
            stop,
            is_stream,
            include_usage,
        })
    }
}

/// Fields that are supported with one value only, which changes nothing.
pub(super) fn neutral() -> Vec<(&'static str, Value)> {
    vec![("n", json!(1)), ("logit_bias", json!({}))]
}

/// A prompt that was encoded, and the request's place in the queue.
pub(super) struct Encoded {
    pub tokens: Vec<u32>,
    pub place: OwnedSemaphorePermit,
}

/// Generates the answer, which is `max_tokens` long at most, or as long as the context allows.
pub(super) async fn answer(
    app: &App,
    model: &Served,
    (api, number): (Api, u64),
    (wish, max_tokens): (Wish, Option<usize>),
    prompt: Encoded,
) -> Result<Response<Body>, ApiError> {
    let answers = language_model(model)?;
    let param = match api {
        Api::Chat => "messages",
        Api::Text => "prompt",
    };
    check_length(answers, prompt.tokens.len(), param)?;
    let request = Request {
        prompt: prompt.tokens,
        sampling: wish.sampling,
        max_tokens: max_tokens.unwrap_or(usize::MAX),
        stop: wish.stop,
        stop_tokens: Vec::new(),
        strip_space_prefix: api == Api::Chat,
    };
    let events = answers.submit(request, prompt.place)?;
    let prefix = if api == Api::Chat { "chatcmpl" } else { "cmpl" };
    let shape = Shape {
        api,
        id: format!("{prefix}-{:x}-{number:x}", app.started),
        created: now_s(),
        model: model.id.clone(),
        include_usage: wish.include_usage,
    };
    respond(shape, events, wish.is_stream).await
}

/// Refuses a prompt that leaves no room for an answer.
pub(super) fn check_length(answers: &Answers, n: usize, param: &str) -> Result<(), ApiError> {
    let context = answers.context;
    if n < context {
        return Ok(());
    }
    let message =
        format!("expected a prompt shorter than the context of {context} tokens, found {n} tokens");
    Err(ApiError::field(param, message).with_code("context_length_exceeded"))
}

/// The sampling options of a request: what the client leaves out is as the model's files recommend,
/// then as `thane run` has it.
pub(super) fn choose(
    sampling: &Sampling,
    answers: &Answers,
    is_chat: bool,
) -> Result<SampleOptions, ApiError> {
    let options = sampling
        .choose(answers.recommended.clone(), is_chat)
        .options;
    if let Some(known) = &answers.known {
        known.check(&options).map_err(invalid)?;
    }
    Sampler::new(options.clone()).map_err(|e| of_sampling(&e))?;
    Ok(options)
}

/// Runs the encoding of a prompt beside the connections.
pub(super) async fn encode(
    work: impl FnOnce() -> Result<Vec<u32>, RuntimeError> + Send + 'static,
) -> Result<Vec<u32>, ApiError> {
    let encoded = tokio::task::spawn_blocking(work).await;
    let encoded = encoded.map_err(|_| ApiError::failed("the prompt could not be encoded"))?;
    encoded.map_err(invalid)
}

/// An error that the request has caused.
fn invalid(error: RuntimeError) -> ApiError {
    let said = error_chain(&error);
    match error {
        RuntimeError::NoTemplate => ApiError::field("messages", said + ": use /v1/completions"),
        RuntimeError::Template { .. } => ApiError::field("messages", said),
        _ => ApiError::invalid(said),
    }
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

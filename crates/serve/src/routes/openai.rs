//! What `/v1/chat/completions` and `/v1/completions` have in common: most fields, and the answer in
//! one piece or as a stream.

use std::sync::Arc;

use serde::Deserialize;

use super::ask::Ask;
use super::embeddings::Texts;
use super::generate::language_model;
use super::{format, now_s, sampling};
use crate::answers::Answers;
use crate::body::{Fields, refused};
use crate::error::{Answered, ApiError};
use crate::model::Served;
use crate::shape::{Api, Shape, Shown};
use crate::stream::respond;

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

/// Most texts that can end an answer, as in OpenAI's API.
const MAX_STOPS: usize = 4;

/// Most tokens that can end an answer.
const MAX_STOP_TOKENS: usize = 1024;

/// How answers are made and given.
pub(super) struct Wish {
    pub ask: Ask,
    include_usage: bool,
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

impl Wish {
    /// Takes the fields, apart from those of prompts, log probabilities and of most tokens.
    pub fn take(fields: &mut Fields, answers: &Answers, number: u64) -> Result<Self, ApiError> {
        let mut ask = Ask::new(Vec::new(), sampling::take(fields, answers, number)?);
        ask.stop = fields.take("stop")?.map_or_else(Vec::new, Texts::into_vec);
        sampling::check_stops(&ask.stop, "stop", MAX_STOPS)?;
        ask.in_one_piece = !fields.take("stream")?.unwrap_or(false);
        let options: Option<StreamFields> = fields.take("stream_options")?;
        if options.is_some() && ask.in_one_piece {
            let message = "`stream_options` needs `stream` to be true";
            return Err(ApiError::field("stream_options", message));
        }
        ask.n = fields.take("n")?.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&ask.n) {
            return Err(refused("n", format_args!("1 to {MAX_CHOICES}"), ask.n));
        }
        ask.form = format::take(fields)?;
        ask.stop_tokens = fields.take("stop_token_ids")?.unwrap_or_default();
        let n_tokens = ask.stop_tokens.len();
        if n_tokens > MAX_STOP_TOKENS {
            let expected = format_args!("at most {MAX_STOP_TOKENS} tokens");
            return Err(refused("stop_token_ids", expected, n_tokens));
        }
        ask.min_tokens = fields.take("min_tokens")?.unwrap_or(0);
        let include_usage = options.unwrap_or_default().include_usage.unwrap_or(false);
        Ok(Self { ask, include_usage })
    }

    /// Answers the prompts, which are in the field `param`.
    pub async fn answer(
        self,
        model: &Served,
        (api, number): (Api, u64),
        param: &'static str,
    ) -> Answered {
        let answers = language_model(model)?;
        let (is_stream, logprobs) = (!self.ask.in_one_piece, self.ask.logprobs);
        let choices = self.ask.begin(answers, param).await?.choices;
        let prefix = if api == Api::Chat { "chatcmpl" } else { "cmpl" };
        let shape = Shape {
            api,
            id: format!("{prefix}-{number:016x}"),
            created: now_s(),
            model: model.id.clone(),
            include_usage: self.include_usage,
            shows_logprobs: logprobs.is_some(),
            prompts: Arc::clone(&answers.prompts),
            shown: vec![Shown::default(); choices.len()],
        };
        respond(shape, choices, is_stream).await
    }
}

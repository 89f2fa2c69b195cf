//! `POST /v1/completions`: texts that are continued without the chat template.

use axum::body::Body;
use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::Shared;
use super::ask::Prompt;
use super::generate::{check_logprobs, language_model};
use super::openai::{IGNORED, Wish};
use crate::body::refused;
use crate::error::Answered;
use crate::shape::Api;

/// Most tokens of an answer whose request does not say, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

/// `prompt`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids, or a list of such prompts"
)]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompts {
    fn into_list(self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

pub(super) async fn create(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, number) = app.read(body).await?;
    let answers = language_model(&model)?;
    let mut wish = Wish::take(&mut fields, answers, number)?;
    wish.ask.max_tokens = Some(fields.take("max_tokens")?.unwrap_or(MAX_TOKENS));
    wish.ask.logprobs = fields.take("logprobs")?;
    check_logprobs(wish.ask.logprobs, "logprobs", answers)?;
    wish.ask.is_echo = fields.take("echo")?.unwrap_or(false);
    wish.ask.prompts = fields.require::<Prompts>("prompt")?.into_list();
    let neutral = [("best_of", json!(wish.ask.n)), ("suffix", json!(""))];
    fields.finish(IGNORED, &neutral)?;
    if wish.ask.prompts.is_empty() {
        return Err(refused("prompt", "at least one prompt", "none"));
    }
    wish.answer(&model, (Api::Text, number), "prompt").await
}

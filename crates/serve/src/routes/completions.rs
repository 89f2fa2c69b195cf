//! `POST /v1/completions`: a text that is continued without the chat template.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::generate::{Encoded, IGNORED, Wish, answer, encode, language_model, neutral};
use crate::body::Fields;
use crate::error::ApiError;
use crate::shape::Api;

/// Most tokens of an answer whose request does not say, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

/// `prompt`. One prompt may stand in a list.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids, or a list of one of them"
)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts([String; 1]),
    TokenLists([Vec<u32>; 1]),
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let mut fields = Fields::read(body, app.max_body_bytes).await?;
    let model = app.model_of(&mut fields)?;
    let answers = language_model(model)?;
    let number = app.next_request();
    let wish = Wish::take(&mut fields, answers, Api::Text, number)?;
    let max_tokens = fields.take("max_tokens")?.unwrap_or(MAX_TOKENS);
    let prompt: Prompt = fields.require("prompt")?;
    let mut neutral = neutral();
    neutral.extend([
        ("best_of", json!(1)),
        ("echo", json!(false)),
        ("suffix", json!("")),
    ]);
    fields.finish(IGNORED, &neutral)?;
    let place = answers.places.take()?;
    let tokens = match prompt {
        Prompt::Text(text) | Prompt::Texts([text]) => {
            let prompts = Arc::clone(&answers.prompts);
            encode(move || prompts.encode_prompt(&text)).await?
        }
        Prompt::Tokens(tokens) | Prompt::TokenLists([tokens]) => tokens,
    };
    let n_vocab = answers.n_vocab;
    if let Some(id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
        let message = format!("`prompt`: expected token ids below {n_vocab}, found {id}");
        return Err(ApiError::field("prompt", message));
    }
    if tokens.is_empty() {
        let message = "`prompt`: expected at least one token, found none";
        return Err(ApiError::field("prompt", message));
    }
    let prompt = Encoded { tokens, place };
    let wish = (wish, Some(max_tokens));
    answer(&app, model, (Api::Text, number), wish, prompt).await
}

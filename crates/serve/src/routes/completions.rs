//! `POST /v1/completions`: texts that are continued without the chat template.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde::Deserialize;
use serde_json::json;
use thane_runtime::PromptEncoder;
use thane_runtime::chat::{AnswerParser, ChatSyntax};

use super::App;
use super::generate::{
    IGNORED, Prepared, Room, Wish, answer, beside, invalid, language_model, places,
};
use crate::error::ApiError;
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

/// One prompt.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
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

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let (mut fields, model, number) = app.read(body).await?;
    let answers = language_model(&model)?;
    let mut wish = Wish::take(&mut fields, answers, Api::Text, number)?;
    wish.max_tokens = Some(fields.take("max_tokens")?.unwrap_or(MAX_TOKENS));
    let logprobs = fields.take("logprobs")?;
    wish.show_logprobs(logprobs, "logprobs", answers)?;
    let is_echo = fields.take("echo")?.unwrap_or(false);
    let prompts: Prompts = fields.require("prompt")?;
    let neutral = [("best_of", json!(wish.n)), ("suffix", json!(""))];
    fields.finish(IGNORED, &neutral)?;
    let list = prompts.into_list();
    if list.is_empty() {
        return Err(refused("at least one prompt", "none"));
    }
    let n_answers = wish.n.saturating_mul(list.len());
    let places = places(answers, n_answers)?;
    let prompts = Arc::clone(&answers.prompts);
    let (form, n_vocab) = (wish.form.take(), answers.n_vocab);
    let room = Room::new(answers, "prompt");
    let prepared = beside(move |is_gone| {
        let list = list.into_iter();
        let prepare = |prompt| prepare(prompt, &prompts, (n_vocab, is_echo), (room, is_gone));
        let prepared = list.map(prepare);
        let prepared = prepared.collect::<Result<_, _>>()?;
        Ok((room, prepared, form))
    });
    let prepared = answers.in_time(prepared).await?;
    answer(&model, (Api::Text, number), wish, prepared, places).await
}

fn prepare(
    prompt: Prompt,
    prompts: &PromptEncoder,
    (n_vocab, is_echo): (usize, bool),
    (room, is_gone): (Room, &dyn Fn() -> bool),
) -> Result<Prepared, ApiError> {
    let (tokens, text) = match prompt {
        Prompt::Text(text) => {
            room.check_bytes(text.len())?;
            let tokens = prompts.encode_prompt_until(&text, is_gone);
            (tokens.map_err(invalid)?, Some(text))
        }
        Prompt::Tokens(tokens) => (tokens, None),
    };
    if let Some(id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
        let expected = format!("token ids below {n_vocab}");
        return Err(refused(&expected, &id.to_string()));
    }
    if tokens.is_empty() {
        return Err(refused("at least one token", "none"));
    }
    let echo = is_echo.then(|| text.unwrap_or_else(|| prompts.tokenizer().decode(&tokens, false)));
    Ok(Prepared {
        tokens,
        parser: AnswerParser::new(ChatSyntax::default(), Vec::new(), ""),
        shown: Vec::new(),
        echo,
        continues: true,
        max_calls: 0,
    })
}

fn refused(expected: &str, found: &str) -> ApiError {
    let message = format!("`prompt`: expected {expected}, found {found}");
    ApiError::field("prompt", message)
}

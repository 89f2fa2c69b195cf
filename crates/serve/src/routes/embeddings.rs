//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use thane_engine::embed::output::Format;

use super::App;
use crate::body::Fields;
use crate::error::{ApiError, json_response};
use crate::model::{Kind, Served};
use crate::vectors::{Ask, Embeddings, Input, Vectors};

/// Most inputs of a request, as in OpenAI's API.
const MAX_INPUTS: usize = 2048;

/// `input`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
enum Inputs {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// `encoding_format`.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    /// The bytes of fp32 numbers, little-endian.
    Base64,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let mut fields = Fields::read(body, app.max_body_bytes).await?;
    let model = app.model_of(&mut fields)?;
    let embeddings = embedding_model(model)?;
    let encoding: Encoding = fields.take("encoding_format")?.unwrap_or_default();
    let dim = dimensions(fields.take("dimensions")?, embeddings)?;
    let inputs = inputs(fields.require("input")?)?;
    fields.finish(&["user"], &[])?;
    let place = embeddings.places.take()?;
    let vectors = embeddings.embed(Ask { inputs, dim }, place).await?;
    Ok(json_response(&shown(&vectors, dim, encoding, &model.id)))
}

fn embedding_model(model: &Served) -> Result<&Embeddings, ApiError> {
    match &model.task {
        Kind::Embeds(embeddings) => Ok(embeddings),
        Kind::Answers(_) => {
            let message = format!("{} is a language model: use /v1/chat/completions", model.id);
            Err(ApiError::field("model", message))
        }
    }
}

fn dimensions(asked: Option<usize>, embeddings: &Embeddings) -> Result<usize, ApiError> {
    let dim = asked.unwrap_or(embeddings.dim);
    if (1..=embeddings.dim).contains(&dim) {
        return Ok(dim);
    }
    let most = embeddings.dim;
    let message = format!("`dimensions`: expected 1 to {most}, found {dim}");
    Err(ApiError::field("dimensions", message))
}

fn inputs(inputs: Inputs) -> Result<Vec<Input>, ApiError> {
    let inputs: Vec<Input> = match inputs {
        Inputs::Text(text) => vec![Input::Text(text)],
        // Also an empty list, which has no kind.
        Inputs::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
        Inputs::Tokens(tokens) => vec![Input::Tokens(tokens)],
        Inputs::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
    };
    if (1..=MAX_INPUTS).contains(&inputs.len()) {
        return Ok(inputs);
    }
    let n = inputs.len();
    let message = format!("`input`: expected 1 to {MAX_INPUTS} inputs, found {n}");
    Err(ApiError::field("input", message))
}

fn shown(vectors: &Vectors, dim: usize, encoding: Encoding, model: &str) -> Value {
    let rows = vectors.rows.chunks_exact(dim).enumerate();
    let data: Vec<Value> = rows
        .map(|(index, row)| {
            let embedding = match encoding {
                Encoding::Float => json!(row),
                Encoding::Base64 => {
                    let mut bytes = Vec::with_capacity(dim * 4);
                    Format::Float32.write(row, &mut bytes);
                    json!(STANDARD.encode(bytes))
                }
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let n = vectors.n_tokens;
    json!({
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": n, "total_tokens": n},
    })
}

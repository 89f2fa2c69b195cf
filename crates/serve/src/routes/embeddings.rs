//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde::Deserialize;
use thane_engine::embed::output::Kept;

use super::App;
use crate::body::Fields;
use crate::encoding::{List, Objects, VectorEncoding};
use crate::error::{ApiError, TOO_LARGE};
use crate::model::{Kind, Served};
use crate::vectors::{Ask, Embeddings, Input};
use crate::written::json_answer;

/// Most inputs of a request, as in OpenAI's API.
pub(super) const MAX_INPUTS: usize = 2048;

/// `input`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub(super) enum Inputs {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let (mut fields, model, _) = app.read(body).await?;
    let embeddings = embedding_model(&model)?;
    let encoding = fields.take("encoding_format")?;
    let encoding = encoding.unwrap_or(VectorEncoding::Float);
    let kept = dimensions(fields.take("dimensions")?, embeddings)?;
    let inputs = inputs(fields.require("input")?);
    check_count(inputs.len(), MAX_INPUTS, "input")?;
    fields.finish(&["user"], &[])?;
    let vectors = embeddings.embed(Ask::new(inputs, kept)).await?;
    let data = Objects {
        rows: &vectors.rows,
        dim: kept.dim,
        encoding,
    };
    json_answer(&List::new(data, &model.id, vectors.n_tokens))
}

pub(super) fn embedding_model(model: &Served) -> Result<&Embeddings, ApiError> {
    match &model.task {
        Kind::Embeds(embeddings) => Ok(embeddings),
        Kind::Answers(_) | Kind::Ranks(_) => Err(model.wrong_kind()),
    }
}

/// The elements that a request asks for, or those of the model's default.
pub(super) fn dimensions(asked: Option<usize>, embeddings: &Embeddings) -> Result<Kept, ApiError> {
    let Some(dim) = asked else {
        return Ok(embeddings.kept());
    };
    if (1..=embeddings.dim).contains(&dim) {
        let normalize = embeddings.info.normalize;
        return Ok(Kept { dim, normalize });
    }
    let most = embeddings.dim;
    let message = format!("`dimensions`: expected 1 to {most}, found {dim}");
    Err(ApiError::field("dimensions", message))
}

/// Token ids, or texts.
pub(super) fn inputs(inputs: Inputs) -> Vec<Input> {
    match inputs {
        Inputs::Text(text) => vec![Input::Text(text)],
        // Also an empty list, which has no kind.
        Inputs::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
        Inputs::Tokens(tokens) => vec![Input::Tokens(tokens)],
        Inputs::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
    }
}

/// Refuses no inputs, and more than a request may have.
pub(super) fn check_count(n: usize, most: usize, param: &str) -> Result<(), ApiError> {
    if (1..=most).contains(&n) {
        return Ok(());
    }
    let message = format!("`{param}`: expected 1 to {most} inputs, found {n}");
    let error = ApiError::field(param, message);
    Err(if n > most {
        error.with_code(TOO_LARGE)
    } else {
        error
    })
}

/// A text or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Texts {
    /// The texts as inputs of an embedding model.
    pub fn inputs(self) -> Vec<Input> {
        match self {
            Self::One(text) => vec![Input::Text(text)],
            Self::Several(texts) => texts.into_iter().map(Input::Text).collect(),
        }
    }
}

/// Takes the texts of a field, of which there may be [`MAX_INPUTS`].
pub(super) fn texts(fields: &mut Fields, name: &str) -> Result<Vec<Input>, ApiError> {
    let inputs = fields.require::<Texts>(name)?.inputs();
    check_count(inputs.len(), MAX_INPUTS, name)?;
    Ok(inputs)
}

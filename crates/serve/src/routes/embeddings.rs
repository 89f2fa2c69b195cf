//! `POST /v1/embeddings`.

use axum::body::Body;
use axum::extract::State;
use serde::Deserialize;
use thane_engine::embed::output::Kept;

use super::Shared;
use crate::body::{Fields, refused};
use crate::encoding::{List, Objects, VectorEncoding};
use crate::error::{Answered, ApiError, TOO_LARGE};
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

pub(super) async fn create(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, _) = app.read(body).await?;
    let encoding = fields.take("encoding_format")?;
    let encoding = encoding.unwrap_or(VectorEncoding::Float);
    answer(&model, fields, (&["user"], encoding), |fields| {
        let inputs = inputs(fields.require("input")?);
        check_count(inputs.len(), MAX_INPUTS, "input")?;
        Ok(inputs)
    })
    .await
}

/// Embeds the inputs that `inputs` takes, in the shape of OpenAI's API.
pub(super) async fn answer(
    model: &Served,
    mut fields: Fields,
    (ignored, encoding): (&[&str], VectorEncoding),
    inputs: impl FnOnce(&mut Fields) -> Result<Vec<Input>, ApiError>,
) -> Answered {
    let embeddings = embedding_model(model)?;
    let kept = dimensions(fields.take("dimensions")?, embeddings)?;
    let inputs = inputs(&mut fields)?;
    fields.finish(ignored, &[])?;
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
    Err(refused(
        "dimensions",
        format_args!("1 to {}", embeddings.dim),
        dim,
    ))
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
    let error = refused(param, format_args!("1 to {most} inputs"), n);
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
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }

    /// The texts as inputs of an embedding model.
    pub fn inputs(self) -> Vec<Input> {
        self.into_vec().into_iter().map(Input::Text).collect()
    }
}

/// Takes the texts of a field, of which there may be [`MAX_INPUTS`].
pub(super) fn texts(fields: &mut Fields, name: &str) -> Result<Vec<Input>, ApiError> {
    let inputs = fields.require::<Texts>(name)?.inputs();
    check_count(inputs.len(), MAX_INPUTS, name)?;
    Ok(inputs)
}

//! Perplexity's API, below `/perplexity`: embeddings of texts, and of the chunks of documents.

use std::fmt::Display;

use axum::body::Body;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;

use super::Shared;
use super::embeddings::{Texts, answer, check_count, dimensions, embedding_model};
use crate::body::{Fields, refused};
use crate::encoding::{List, Objects, VectorEncoding};
use crate::error::{Answered, ApiError};
use crate::vectors::{Ask, Input};
use crate::written::json_answer;

/// Most texts or documents of a request, as in the API.
const MAX_INPUTS: usize = 512;

/// Most chunks of all documents, as in the API.
const MAX_CHUNKS: usize = 16_000;

/// The vectors of a document's chunks.
#[derive(Serialize)]
struct Chunks<'a> {
    object: &'static str,
    index: usize,
    data: Objects<'a>,
}

pub(super) async fn embeddings(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, _) = app.read(body).await?;
    let encoding = encoding(&mut fields)?;
    answer(&model, fields, (&[], encoding), |fields| {
        let texts = fields.require::<Texts>("input")?.into_vec();
        check_count(texts.len(), MAX_INPUTS, "input")?;
        if let Some(idx) = texts.iter().position(String::is_empty) {
            return Err(empty(format_args!("input[{idx}]")));
        }
        Ok(texts.into_iter().map(Input::Text).collect())
    })
    .await
}

pub(super) async fn contextualized(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, _) = app.read(body).await?;
    let embeddings = embedding_model(&model)?;
    let encoding = encoding(&mut fields)?;
    let kept = dimensions(fields.take("dimensions")?, embeddings)?;
    let documents: Vec<Vec<String>> = fields.require("input")?;
    fields.finish(&[], &[])?;
    check_documents(&documents)?;
    let inputs = documents.into_iter().map(Input::Chunks).collect();
    let vectors = embeddings.embed(Ask::new(inputs, kept)).await?;
    let mut rest = vectors.rows.as_slice();
    let mut data = Vec::with_capacity(vectors.n_rows.len());
    for (index, n) in vectors.n_rows.iter().enumerate() {
        let (rows, after) = rest.split_at(n * kept.dim);
        rest = after;
        let dim = kept.dim;
        data.push(Chunks {
            object: "list",
            index,
            data: Objects {
                rows,
                dim,
                encoding,
            },
        });
    }
    json_answer(&List::new(data, &model.id, vectors.n_tokens))
}

/// int8 by default. Numbers are not part of this API.
fn encoding(fields: &mut Fields) -> Result<VectorEncoding, ApiError> {
    let given: Option<Value> = fields.take("encoding_format")?;
    match given.as_ref().map(|value| value.as_str().unwrap_or("")) {
        None | Some("base64_int8") => Ok(VectorEncoding::Base64Int8),
        Some("base64_binary") => Ok(VectorEncoding::Base64Binary),
        Some(other) => {
            let expected = "base64_int8 or base64_binary";
            Err(refused(
                "encoding_format",
                expected,
                format_args!("`{other}`"),
            ))
        }
    }
}

fn check_documents(documents: &[Vec<String>]) -> Result<(), ApiError> {
    check_count(documents.len(), MAX_INPUTS, "input")?;
    let n_chunks = documents.iter().map(Vec::len).sum();
    check_count(n_chunks, MAX_CHUNKS, "input")?;
    for (idx, chunks) in documents.iter().enumerate() {
        let place = format!("input[{idx}]");
        if chunks.is_empty() {
            return Err(refused(place, "at least one chunk", "none"));
        }
        if let Some(chunk) = chunks.iter().position(String::is_empty) {
            return Err(empty(format_args!("{place}[{chunk}]")));
        }
    }
    Ok(())
}

fn empty(place: impl Display) -> ApiError {
    refused(place, "a text that is not empty", "an empty one")
}

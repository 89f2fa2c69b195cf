//! `POST /api/embed` and the older `POST /api/embeddings`. Long texts lose tokens at the side that
//! the model's files name, because the requests name none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;

use super::super::Shared;
use super::super::embeddings::{dimensions, embedding_model, texts};
use super::{LOAD_OPTIONS, model_of, ns};
use crate::body::Fields;
use crate::error::{Answered, ApiError};
use crate::vectors::Ask;
use crate::written::json_of_cut;

/// The vectors of texts.
#[derive(Serialize)]
struct Embedded<'a> {
    model: &'a str,
    embeddings: Vec<&'a [f32]>,
    total_duration: Value,
    load_duration: Value,
    prompt_eval_count: usize,
}

pub(super) async fn embed(State(app): Shared, body: Body) -> Answered {
    let arrived = Instant::now();
    let mut fields = Fields::read(body, app.body).await?;
    let model = &*model_of(&app, &mut fields).await?;
    let embeddings = embedding_model(model)?;
    let kept = dimensions(fields.take("dimensions")?, embeddings)?;
    let inputs = texts(&mut fields, "input")?;
    let is_cut: bool = fields.take("truncate")?.unwrap_or(true);
    finish(fields)?;
    let ask = Ask {
        cut: is_cut.then(|| embeddings.texts.tokenizer().cut()),
        ..Ask::new(inputs, kept)
    };
    let vectors = embeddings.embed(ask).await?;
    let rows: Vec<&[f32]> = vectors.rows.chunks_exact(kept.dim).collect();
    let answer = Embedded {
        model: &model.id,
        embeddings: rows,
        total_duration: ns(arrived.elapsed()),
        load_duration: ns(Duration::ZERO),
        prompt_eval_count: vectors.n_tokens,
    };
    json_of_cut(&answer, vectors.n_cut)
}

/// One text, as `prompt`.
pub(super) async fn embed_one(State(app): Shared, body: Body) -> Answered {
    let mut fields = Fields::read(body, app.body).await?;
    let model = &*model_of(&app, &mut fields).await?;
    let embeddings = embedding_model(model)?;
    let prompt: String = fields.require("prompt")?;
    finish(fields)?;
    let ask = Ask {
        cut: Some(embeddings.texts.tokenizer().cut()),
        ..Ask::new(vec![prompt.into()], embeddings.kept())
    };
    let vectors = embeddings.embed(ask).await?;
    let answer = BTreeMap::from([("embedding", &vectors.rows)]);
    json_of_cut(&answer, vectors.n_cut)
}

/// Refuses what is left. Options of sampling have nothing to do with vectors.
fn finish(mut fields: Fields) -> Result<(), ApiError> {
    let options = fields.nested("options")?;
    options.finish(
        &[LOAD_OPTIONS, &["num_ctx", "temperature", "seed"]].concat(),
        &[],
    )?;
    fields.finish(&[], &[])
}

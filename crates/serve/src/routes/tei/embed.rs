//! `embed`, `embed_all` and `similarity`.

use serde::Deserialize;
use serde_json::{Value, json};
use thane_engine::embed::output::{Kept, to_unit_length};
use thane_engine::embed::similarity::Similarity;
use thane_engine::text::Cut;

use super::super::embeddings::{MAX_INPUTS, check_count, dimensions, embedding_model, inputs};
use crate::body::{Fields, refused};
use crate::error::{Answered, ApiError};
use crate::model::Served;
use crate::vectors::{Ask, Embeddings, Input};
use crate::written::json_of_cut;

/// The inputs of `similarity`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compared {
    source_sentence: String,
    sentences: Vec<String>,
}

/// Calls of `huggingface_hub` say what they want by their inputs.
pub(super) async fn by_fields(model: &Served, mut fields: Fields) -> Answered {
    let given: Value = fields.require("inputs")?;
    if !given.is_object() {
        return vectors(model, given, fields).await;
    }
    let compared = serde_json::from_value(given)
        .map_err(|e| ApiError::field("inputs", format!("`inputs`: {e}")))?;
    similarity(model, compared, fields).await
}

pub(super) async fn embed(model: &Served, mut fields: Fields) -> Answered {
    let given = fields.require("inputs")?;
    vectors(model, given, fields).await
}

async fn vectors(model: &Served, given: Value, mut fields: Fields) -> Answered {
    let embeddings = embedding_model(model)?;
    let kept = dimensions(fields.take("dimensions")?, embeddings)?;
    let ask = ask(&mut fields, inputs_of(given)?, kept)?;
    let is_normal = fields.take("normalize")?.unwrap_or(true);
    fields.finish(&[], &[("encoding_format", json!("float"))])?;
    if embeddings.info.normalize && !is_normal {
        let message = "`normalize`: expected true, because the model itself normalizes its \
                       vectors, found false";
        return Err(ApiError::field("normalize", message));
    }
    let mut vectors = embeddings.embed(ask).await?;
    let mut rows = vectors.rows.chunks_exact_mut(kept.dim);
    let is_whole = kept.dim == embeddings.dim;
    let has_length_1 = embeddings.info.normalize && (is_whole || kept.normalize);
    if is_normal && !has_length_1 {
        rows.by_ref().for_each(to_unit_length);
    }
    let rows: Vec<&[f32]> = vectors.rows.chunks_exact(kept.dim).collect();
    json_of_cut(&rows, vectors.n_cut)
}

/// A vector for each token, those that the tokenizer adds included.
pub(super) async fn embed_all(model: &Served, mut fields: Fields) -> Answered {
    let embeddings = embedding_model(model)?;
    let dim = embeddings.dim;
    let whole = Kept {
        dim,
        normalize: false,
    };
    let given = inputs_of(fields.require("inputs")?)?;
    let ask = Ask {
        of_tokens: true,
        ..ask(&mut fields, given, whole)?
    };
    fields.finish(&[], &[])?;
    let vectors = embeddings.embed(ask).await?;
    let mut rest = vectors.rows.as_slice();
    let texts = vectors.n_rows.iter().map(|n| {
        let (rows, after) = rest.split_at(n * dim);
        rest = after;
        rows.chunks_exact(dim).collect::<Vec<&[f32]>>()
    });
    let texts: Vec<_> = texts.collect();
    json_of_cut(&texts, vectors.n_cut)
}

/// The cosine of a sentence and each of some others.
pub(super) async fn similarity(model: &Served, compared: Compared, mut fields: Fields) -> Answered {
    let embeddings: &Embeddings = embedding_model(model)?;
    let mut parameters = fields.nested("parameters")?;
    fields.finish(&[], &[])?;
    check_count(compared.sentences.len(), MAX_INPUTS - 1, "inputs")?;
    let texts = [compared.source_sentence]
        .into_iter()
        .chain(compared.sentences);
    let texts = texts.map(Input::Text).collect();
    let kept = embeddings.kept();
    let ask = ask(&mut parameters, texts, kept)?;
    parameters.finish(&[], &[])?;
    let vectors = embeddings.embed(ask).await?;
    let mut rows = vectors.rows.chunks_exact(kept.dim);
    let source = rows.next().unwrap_or_default();
    let cosines: Vec<f32> = rows
        .map(|row| Similarity::Cosine.compare(source, row) as f32)
        .collect();
    json_of_cut(&cosines, vectors.n_cut)
}

fn inputs_of(given: Value) -> Result<Vec<Input>, ApiError> {
    let given = serde_json::from_value(given)
        .map_err(|e| ApiError::field("inputs", format!("`inputs`: {e}")))?;
    let given = inputs(given);
    check_count(given.len(), MAX_INPUTS, "inputs")?;
    Ok(given)
}

/// Where texts that are too long are cut; `None` if they are an error.
pub(super) fn cut(fields: &mut Fields) -> Result<Option<Cut>, ApiError> {
    let is_cut = fields.take("truncate")?.unwrap_or(false);
    let direction: Option<String> = fields.take("truncation_direction")?;
    let cut = match direction.map(|side| side.to_lowercase()).as_deref() {
        None | Some("right") => Cut::End,
        Some("left") => Cut::Start,
        Some(other) => {
            return Err(refused("truncation_direction", "left or right", other));
        }
    };
    Ok(is_cut.then_some(cut))
}

/// What all these routes take beside their inputs.
fn ask(fields: &mut Fields, inputs: Vec<Input>, kept: Kept) -> Result<Ask, ApiError> {
    Ok(Ask {
        cut: cut(fields)?,
        prompt: fields.take("prompt_name")?,
        ..Ask::new(inputs, kept)
    })
}

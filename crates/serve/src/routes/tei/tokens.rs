//! `tokenize` and `decode`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::embeddings::{MAX_INPUTS, Texts, check_count, embedding_model};
use crate::body::Fields;
use crate::error::{ApiError, json_response};
use crate::model::Served;

/// The field `ids` of `decode`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list of token ids or a list of such lists"
)]
enum Ids {
    One(Vec<u32>),
    Several(Vec<Vec<u32>>),
}

/// The tokens of texts. Where they lie in the text is not told.
pub(super) async fn tokenize(
    model: &Served,
    mut fields: Fields,
) -> Result<Response<Body>, ApiError> {
    let embeddings = embedding_model(model)?;
    let texts = match fields.require::<Texts>("inputs")? {
        Texts::One(text) => vec![text],
        Texts::Several(texts) => texts,
    };
    let add_special = fields.take("add_special_tokens")?.unwrap_or(true);
    let prompt: Option<String> = fields.take("prompt_name")?;
    fields.finish(&[], &[])?;
    check_count(texts.len(), MAX_INPUTS, "inputs")?;
    let sequences = embeddings.tokenize(texts, prompt.as_deref(), add_special);
    let tokenizer = embeddings.texts.tokenizer();
    let token = |id: &u32| {
        json!({
            "id": id,
            "text": tokenizer.decode(&[*id], false),
            "special": tokenizer.is_special(*id),
            "start": null,
            "stop": null,
        })
    };
    let sequences = sequences.await?;
    let rows = sequences.iter().map(|ids| ids.iter().map(token).collect());
    let rows: Vec<Vec<Value>> = rows.collect();
    Ok(json_response(&json!(rows)))
}

pub(super) async fn decode(model: &Served, mut fields: Fields) -> Result<Response<Body>, ApiError> {
    let embeddings = embedding_model(model)?;
    let lists = match fields.require("ids")? {
        Ids::One(ids) => vec![ids],
        Ids::Several(lists) => lists,
    };
    let skip_special = fields.take("skip_special_tokens")?.unwrap_or(true);
    fields.finish(&[], &[])?;
    check_count(lists.len(), MAX_INPUTS, "ids")?;
    let n_vocab = embeddings.info.vocab_size;
    if let Some(id) = lists.iter().flatten().find(|id| **id as usize >= n_vocab) {
        let message = format!("`ids`: expected token ids below {n_vocab}, found {id}");
        return Err(ApiError::field("ids", message));
    }
    let texts = Arc::clone(&embeddings.texts);
    let decoded = tokio::task::spawn_blocking(move || {
        let decode = |ids: &Vec<u32>| texts.tokenizer().decode(ids, skip_special);
        lists.iter().map(decode).collect::<Vec<String>>()
    });
    let decoded = decoded.await;
    let decoded = decoded.map_err(|_| ApiError::failed("the ids could not be decoded"))?;
    Ok(json_response(&json!(decoded)))
}

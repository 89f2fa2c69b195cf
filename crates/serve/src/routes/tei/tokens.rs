//! `tokenize` and `decode`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::embeddings::{MAX_INPUTS, Texts, check_count, embedding_model};
use super::super::generate::beside;
use crate::body::{Fields, refused};
use crate::error::{Answered, ApiError, TOO_LARGE};
use crate::log::current_budget;
use crate::model::Served;
use crate::written::{Writer, json_answer, written_answer};

/// Most tokens of a request: an answer of some 10 MB.
const MAX_TOKENS: usize = 1 << 17;

fn check_tokens(n: usize, param: &str) -> Result<(), ApiError> {
    if n <= MAX_TOKENS {
        return Ok(());
    }
    let expected = format_args!("at most {MAX_TOKENS} tokens in all");
    Err(refused(param, expected, n).with_code(TOO_LARGE))
}

#[derive(Serialize)]
struct Token {
    id: u32,
    text: String,
    special: bool,
    /// Where the token lies in the text is not told.
    start: Option<usize>,
    stop: Option<usize>,
}

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

/// The tokens of texts.
pub(super) async fn tokenize(model: &Served, mut fields: Fields) -> Answered {
    let embeddings = embedding_model(model)?;
    let texts = fields.require::<Texts>("inputs")?.into_vec();
    let add_special = fields.take("add_special_tokens")?.unwrap_or(true);
    let prompt: Option<String> = fields.take("prompt_name")?;
    fields.finish(&[], &[])?;
    check_count(texts.len(), MAX_INPUTS, "inputs")?;
    let place = embeddings.places.take()?;
    let sequences = embeddings.tokenize(texts, prompt.as_deref(), add_special);
    let sequences = sequences.await?;
    check_tokens(sequences.iter().map(Vec::len).sum(), "inputs")?;
    let texts = Arc::clone(&embeddings.texts);
    let mut writer = Writer::new(current_budget());
    let written = beside(place, move |_| {
        let token = |id: &u32| Token {
            id: *id,
            text: texts.tokenizer().decode(&[*id], false),
            special: texts.tokenizer().is_special(*id),
            start: None,
            stop: None,
        };
        let rows = sequences.iter().map(|ids| ids.iter().map(token).collect());
        let rows: Vec<Vec<Token>> = rows.collect();
        writer.json(&rows);
        writer.take()
    });
    let (written, _place) = written.await?;
    Ok(written_answer(written))
}

pub(super) async fn decode(model: &Served, mut fields: Fields) -> Answered {
    let embeddings = embedding_model(model)?;
    let lists = match fields.require("ids")? {
        Ids::One(ids) => vec![ids],
        Ids::Several(lists) => lists,
    };
    let skip_special = fields.take("skip_special_tokens")?.unwrap_or(true);
    fields.finish(&[], &[])?;
    check_count(lists.len(), MAX_INPUTS, "ids")?;
    check_tokens(lists.iter().map(Vec::len).sum(), "ids")?;
    let _place = embeddings.places.take()?;
    let n_vocab = embeddings.info.vocab_size;
    if let Some(id) = lists.iter().flatten().find(|id| **id as usize >= n_vocab) {
        return Err(refused(
            "ids",
            format_args!("token ids below {n_vocab}"),
            id,
        ));
    }
    let texts = Arc::clone(&embeddings.texts);
    let decoded = tokio::task::spawn_blocking(move || {
        let decode = |ids: &Vec<u32>| texts.tokenizer().decode(ids, skip_special);
        lists.iter().map(decode).collect::<Vec<String>>()
    });
    let decoded = decoded.await;
    let decoded = decoded.map_err(|_| ApiError::failed("the ids could not be decoded"))?;
    json_answer(&decoded)
}

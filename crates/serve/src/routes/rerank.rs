//! `POST /v1/rerank` and `POST /v2/rerank`, as Cohere and Jina have it. Rerankers score texts for a
//! query.

use axum::body::Body;
use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::Shared;
use super::embeddings::{MAX_INPUTS, check_count};
use crate::error::{Answered, ApiError};
use crate::model::{Kind, Served};
use crate::ranks::{Question, Ranks};
use crate::written::json_of_cut;

/// A document of Cohere's API.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string or an object with the field `text` alone"
)]
enum Document {
    Text(String),
    Object(OfText),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfText {
    text: String,
}

pub(super) async fn create(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, number) = app.read(body).await?;
    let ranks = reranker(&model)?;
    let query: String = fields.require("query")?;
    let documents: Vec<Document> = fields.require("documents")?;
    let top_n: Option<usize> = fields.take("top_n")?;
    let with_texts = fields.take("return_documents")?.unwrap_or(false);
    fields.finish(&["user"], &[])?;
    check_count(documents.len(), MAX_INPUTS, "documents")?;
    let texts = documents.into_iter().map(|document| match document {
        Document::Text(text) | Document::Object(OfText { text }) => text,
    });
    let mut texts: Vec<String> = texts.collect();
    let question = Question {
        query,
        texts: texts.clone(),
        cut: Some(ranks.cut),
    };
    let ranking = ranks.rank(question).await?;
    let best = ranking.ranked.iter().take(top_n.unwrap_or(usize::MAX));
    let results = best.map(|ranked| {
        let score = sigmoid(ranked.logit);
        let mut result = json!({"index": ranked.index, "relevance_score": score});
        if with_texts {
            result["document"] = json!({"text": std::mem::take(&mut texts[ranked.index])});
        }
        result
    });
    let results: Vec<_> = results.collect();
    let answer = json!({
        "id": format!("rerank-{number:016x}"),
        "model": model.id,
        "results": results,
        "usage": {"prompt_tokens": ranking.n_tokens, "total_tokens": ranking.n_tokens},
    });
    json_of_cut(&answer, ranking.n_cut)
}

/// The reranker of a request.
pub(super) fn reranker(model: &Served) -> Result<&Ranks, ApiError> {
    match &model.task {
        Kind::Ranks(ranks) => Ok(ranks),
        Kind::Answers(_) | Kind::Embeds(_) => Err(model.wrong_kind()),
    }
}

/// A logit as a number between 0 and 1, which these APIs have also for models whose own scores are
/// logits.
pub(super) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

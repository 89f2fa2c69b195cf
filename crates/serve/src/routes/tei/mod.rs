//! The API of Text Embeddings Inference: below `/tei/MODEL`, below `/models/MODEL` as
//! `huggingface_hub` calls it, and at the root for the one embedding model or the one reranker.

mod embed;
mod generate;
mod tokens;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::embeddings::{MAX_INPUTS, check_count};
use super::rerank::{reranker, sigmoid};
use super::table::{Route, routes};
use super::{App, Shared};
use crate::body::Fields;
use crate::error::{Answered, ApiError, json_response};
use crate::model::{Kind, ModelTask, Served};
use crate::ranks::Question;
use crate::roster::Entry;
use crate::written::json_of_cut;

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// What the model does, by the fields of the request.
    Default,
    Embed,
    EmbedAll,
    Similarity,
    Tokenize,
    Decode,
    Rerank,
}

/// The last part of a path.
const ACTIONS: &[(&str, Action)] = &[
    ("embed", Action::Embed),
    ("embed_all", Action::EmbedAll),
    ("similarity", Action::Similarity),
    ("tokenize", Action::Tokenize),
    ("decode", Action::Decode),
    ("rerank", Action::Rerank),
];

/// Pipelines of `huggingface_hub` after the name of a model.
const PIPELINES: &[&str] = &[
    "/pipeline/feature-extraction",
    "/pipeline/sentence-similarity",
];

/// The routes, each with its whole path.
pub(super) fn routes() -> Vec<Route> {
    let at_root = ACTIONS
        .iter()
        .map(|(name, action)| (format!("/{name}"), *action));
    let at_root = at_root.chain([("/".to_owned(), Action::Default)]);
    let mut routes: Vec<Route> = at_root
        .map(|(path, action)| {
            let call = move |State(app): Shared, body: Body| async move {
                let fields = Fields::read(body, app.body).await?;
                let model = &*default_model(&app, action, &path_of(action)).await?;
                call(model, action, fields).await
            };
            let (required, summary) = about_action(action);
            Route {
                method: "post",
                path,
                required,
                summary,
                handler: axum::routing::post(call),
            }
        })
        .collect();
    routes.extend(routes![
        get "/info" info_of_default, "The model of /embed.";
        post "/tei/{*path}" of_model,
            "What /embed, /rerank and the like do, with a model by its name.";
        get "/tei/{*path}" info, "MODEL/info and MODEL/health.";
        post "/models/{*path}" of_model,
            "What /embed, /rerank and the like do, with a model by its name.";
    ]);
    routes
}

/// The fields that an action needs, and what it does.
fn about_action(action: Action) -> (&'static [&'static str], &'static str) {
    match action {
        Action::Default => (&[], "Embeds, scores or continues texts, by the model."),
        Action::Embed => (&["inputs"], "Embeds texts or tokens."),
        Action::EmbedAll => (&["inputs"], "Embeds each token of texts."),
        Action::Similarity => (&["inputs"], "Compares a sentence with others."),
        Action::Tokenize => (&["inputs"], "The tokens of texts."),
        Action::Decode => (&["ids"], "The texts of tokens."),
        Action::Rerank => (&["query", "texts"], "Scores texts for a query."),
    }
}

fn path_of(action: Action) -> String {
    let name = ACTIONS.iter().find(|(_, a)| *a == action);
    name.map_or_else(String::new, |(name, _)| format!("/{name}"))
}

/// The one model that fits: a reranker for `rerank`, and where there is no embedding model; a
/// language model where there is neither.
async fn default_model(app: &App, action: Action, path: &str) -> Result<Arc<Served>, ApiError> {
    let entries = app.roster.entries();
    let of_task = |task: ModelTask| -> Vec<&Arc<Entry>> {
        let models = entries.iter();
        models.filter(|model| model.task() == task).collect()
    };
    let embed = of_task(ModelTask::Embed);
    let rank = of_task(ModelTask::Rerank);
    let (fitting, kind) = match action {
        Action::Rerank => (rank, "reranker"),
        Action::Default if embed.is_empty() && rank.is_empty() => {
            (of_task(ModelTask::Generate), "model")
        }
        Action::Default if embed.is_empty() => (rank, "reranker"),
        _ => (embed, "embedding model"),
    };
    match fitting[..] {
        [one] => app.roster.get(one).await,
        _ => {
            let n = fitting.len();
            let message = format!(
                "expected one {kind} on this server, found {n}: use /tei/MODEL{path}, or the \
                 routes below /v1"
            );
            Err(ApiError::new(StatusCode::NOT_FOUND, message))
        }
    }
}

/// A path that names a model, and what it asks for.
async fn of_model(State(app): Shared, Path(path): Path<String>, body: Body) -> Answered {
    let fields = Fields::read(body, app.body).await?;
    let (name, action) = split(&path);
    call(&*app.model(name).await?, action, fields).await
}

fn split(path: &str) -> (&str, Action) {
    let path = path.strip_suffix('/').unwrap_or(path);
    if let Some(name) = PIPELINES.iter().find_map(|end| path.strip_suffix(end)) {
        return (name, Action::Default);
    }
    let action = path.rsplit_once('/').and_then(|(name, last)| {
        let known = ACTIONS.iter().find(|(action, _)| *action == last);
        known.map(|(_, action)| (name, *action))
    });
    action.unwrap_or((path, Action::Default))
}

async fn call(model: &Served, action: Action, mut fields: Fields) -> Answered {
    match action {
        Action::Embed => embed::embed(model, fields).await,
        Action::EmbedAll => embed::embed_all(model, fields).await,
        Action::Similarity => {
            let inputs = fields.require("inputs")?;
            embed::similarity(model, inputs, fields).await
        }
        Action::Tokenize => tokens::tokenize(model, fields).await,
        Action::Decode => tokens::decode(model, fields).await,
        Action::Rerank => rerank(model, fields).await,
        Action::Default => match &model.task {
            Kind::Embeds(_) => embed::by_fields(model, fields).await,
            Kind::Ranks(_) => rerank(model, fields).await,
            Kind::Answers(_) => generate::generate(model, fields).await,
        },
    }
}

async fn rerank(model: &Served, mut fields: Fields) -> Answered {
    let ranks = reranker(model)?;
    let question = Question {
        query: fields.require("query")?,
        texts: fields.require("texts")?,
        cut: embed::cut(&mut fields)?,
    };
    let is_raw = fields.take("raw_scores")?.unwrap_or(false);
    let with_texts: bool = fields.take("return_text")?.unwrap_or(false);
    fields.finish(&[], &[])?;
    check_count(question.texts.len(), MAX_INPUTS, "texts")?;
    let mut texts = if with_texts {
        question.texts.clone()
    } else {
        Vec::new()
    };
    let ranking = ranks.rank(question).await?;
    let row = |ranked: &thane_runtime::Ranked| {
        let score = match is_raw {
            true => ranked.logit,
            false => sigmoid(ranked.logit),
        };
        let mut row = json!({"index": ranked.index, "score": score});
        if let Some(text) = texts.get_mut(ranked.index) {
            row["text"] = json!(std::mem::take(text));
        }
        row
    };
    let rows: Vec<Value> = ranking.ranked.iter().map(row).collect();
    json_of_cut(&rows, ranking.n_cut)
}

async fn info_of_default(State(app): Shared) -> Answered {
    Ok(about(
        &*default_model(&app, Action::Default, "/info").await?,
    ))
}

/// `GET /tei/MODEL/info` and `GET /tei/MODEL/health`.
async fn info(State(app): Shared, Path(path): Path<String>) -> Answered {
    match path.rsplit_once('/') {
        Some((name, "info")) => Ok(about(&*app.model(name).await?)),
        Some((name, "health")) => {
            app.roster.find(name)?;
            Ok(Response::new(Body::empty()))
        }
        _ => {
            let message = "expected /tei/MODEL/info or /tei/MODEL/health";
            Err(ApiError::new(StatusCode::NOT_FOUND, message))
        }
    }
}

fn about(model: &Served) -> Response<Body> {
    let kind = match &model.task {
        Kind::Embeds(embeddings) => {
            let pooling = embeddings.info.pooling.to_string();
            json!({"embedding": {"pooling": pooling}})
        }
        Kind::Ranks(_) => json!({"reranker": {"id2label": {"0": "LABEL_0"}}}),
        Kind::Answers(_) => json!({}),
    };
    json_response(&json!({
        "model_id": model.id,
        "model_type": kind,
        "max_input_length": model.max_tokens(),
        "max_client_batch_size": MAX_INPUTS,
        "max_concurrent_requests": model.places().n(),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_model_and_an_action() {
        for (path, expected) in [
            ("minilm/embed", ("minilm", Action::Embed)),
            ("hf:org/name/decode", ("hf:org/name", Action::Decode)),
            ("hf:org/name", ("hf:org/name", Action::Default)),
            ("minilm/", ("minilm", Action::Default)),
            (
                "minilm/pipeline/sentence-similarity",
                ("minilm", Action::Default),
            ),
        ] {
            assert_eq!(split(path), expected, "{path}");
        }
    }
}

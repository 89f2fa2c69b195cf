//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health` and `GET /ready`.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::Shared;
use super::table::{Route, routes};
use crate::error::{Answered, json_response};
use crate::model::Kind;
use crate::roster::Entry;

/// The routes, each with its whole path.
pub(super) fn routes() -> Vec<Route> {
    routes![
        get "/health" health, "Whether the server answers.";
        get "/ready" ready, "Whether the models are loaded.";
        get "/v1/models" list, "The models.";
        get "/v1/models/{*id}" retrieve, "A model.";
    ]
}

/// Whether the server answers, and how many requests run or wait.
async fn health(State(app): Shared) -> Response<Body> {
    let models = app.roster.loaded();
    let requests = models.iter().map(|model| model.places().n_taken());
    json_response(&json!({"status": "ok", "requests": requests.sum::<usize>()}))
}

/// Whether the models are loaded that are loaded at start.
async fn ready(State(app): Shared) -> Response<Body> {
    if app.roster.is_ready() {
        return json_response(&json!({"status": "ready"}));
    }
    let mut response = json_response(&json!({"status": "loading"}));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

async fn list(State(app): Shared) -> Response<Body> {
    let entries = app.roster.entries();
    let models = entries.iter().flat_map(|entry| {
        let names = entry.names();
        names.map(|name| shown(entry, name, app.started))
    });
    json_response(&json!({"object": "list", "data": models.collect::<Vec<_>>()}))
}

async fn retrieve(State(app): Shared, Path(id): Path<String>) -> Answered {
    let entry = app.roster.find(&id)?;
    let is_alias = entry.aliases().contains(&id);
    let name = if is_alias { &id } else { entry.id() };
    Ok(json_response(&shown(&entry, name, app.started)))
}

/// A model under one of its names.
fn shown(entry: &Entry, name: &str, started: u64) -> Value {
    let mut shown = json!({
        "id": name,
        "object": "model",
        "created": started,
        "owned_by": "thane",
        "task": entry.task().name(),
        "max_tokens": entry.max_tokens(),
        "loaded": entry.loaded().is_some(),
    });
    if name != entry.id() {
        shown["alias_of"] = json!(entry.id());
    }
    match entry.loaded().as_ref().map(|served| &served.task) {
        Some(Kind::Answers(answers)) => shown["chat"] = answers.prompts.has_template().into(),
        Some(Kind::Embeds(embeddings)) => {
            let info = &embeddings.info;
            shown["dimensions"] = info.truncate_dim.unwrap_or(info.dim).into();
            shown["format"] = if info.quantize { "int8" } else { "float" }.into();
            shown["similarity"] = info.similarity.as_deref().unwrap_or("cosine").into();
        }
        Some(Kind::Ranks(_)) | None => {}
    }
    shown
}

//! `GET /v1/models`, `GET /v1/models/{id}` and `GET /health`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Response;
use serde_json::{Value, json};

use super::App;
use crate::error::{ApiError, json_response};
use crate::model::{Kind, Served};

/// Whether the server answers, and how many requests run or wait.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    let requests = app.models.iter().map(|model| model.places().n_taken());
    json_response(&json!({"status": "ok", "requests": requests.sum::<usize>()}))
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Response<Body> {
    let models = app.models.iter().flat_map(|model| {
        let names = [&model.id].into_iter().chain(&model.aliases);
        names.map(|name| shown(model, name, app.started))
    });
    json_response(&json!({"object": "list", "data": models.collect::<Vec<_>>()}))
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response<Body>, ApiError> {
    let model = app.model(&id)?;
    let is_alias = model.aliases.contains(&id);
    let name = if is_alias { &id } else { &model.id };
    Ok(json_response(&shown(model, name, app.started)))
}

/// A model under one of its names.
fn shown(model: &Served, name: &str, started: u64) -> Value {
    let task = match &model.task {
        Kind::Answers(_) => "generate",
        Kind::Embeds(_) => "embed",
        Kind::Ranks(_) => "rerank",
    };
    let mut shown = json!({
        "id": name,
        "object": "model",
        "created": started,
        "owned_by": "thane",
        "task": task,
        "max_tokens": model.max_tokens(),
    });
    if name != model.id {
        shown["alias_of"] = json!(model.id);
    }
    shown
}

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
    let models: Vec<Value> = app.models.iter().map(|m| shown(m, app.started)).collect();
    json_response(&json!({"object": "list", "data": models}))
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response<Body>, ApiError> {
    Ok(json_response(&shown(app.model(&id)?, app.started)))
}

fn shown(model: &Served, started: u64) -> Value {
    let task = match &model.task {
        Kind::Answers(_) => "generate",
        Kind::Embeds(_) => "embed",
        Kind::Ranks(_) => "rerank",
    };
    let mut shown = json!({
        "id": model.id,
        "object": "model",
        "created": started,
        "owned_by": "thane",
        "task": task,
        "max_tokens": model.max_tokens(),
    });
    if let Kind::Embeds(embeddings) = &model.task {
        let info = &embeddings.info;
        shown["dimensions"] = info.dim.into();
        shown["format"] = if info.quantize { "int8" } else { "float" }.into();
        shown["similarity"] = info.similarity.as_deref().unwrap_or("cosine").into();
    }
    shown
}

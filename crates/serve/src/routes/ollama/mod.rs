//! Ollama's API, below `/api`.

mod embed;
mod generate;
mod models;

use axum::Router;
use axum::routing::{get, post};
use serde_json::Value;
use std::sync::Arc;

use super::App;
use crate::body::Fields;
use crate::error::ApiError;
use crate::model::Served;

/// The routes, each with its whole path.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/generate", post(generate::generate))
        .route("/api/chat", post(generate::chat))
        .route("/api/embed", post(embed::embed))
        .route("/api/embeddings", post(embed::embed_one))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/version", get(models::version))
        .route("/api/pull", post(models::pull))
}

/// The model of a request. Clients may write its name with the tag `latest`.
fn model_of<'a>(app: &'a App, fields: &mut Fields) -> Result<&'a Served, ApiError> {
    let name: String = fields.require("model")?;
    let base = name.strip_suffix(":latest");
    let found = base.and_then(|base| app.model(base).ok());
    found.map_or_else(|| app.model(&name), Ok)
}

/// Options of a request that decide how a model is loaded: they do not change an answer.
const LOAD_OPTIONS: &[&str] = &[
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
];

/// Nanoseconds as the API has them.
fn ns(time: std::time::Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}

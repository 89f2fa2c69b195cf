//! The routes. A route is a file here and a line in [`router`].

mod anthropic;
mod ask;
mod chat;
mod completions;
mod embeddings;
mod generate;
mod models;
mod ollama;
mod perplexity;
mod rerank;
mod tei;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::body::Fields;
use crate::error::ApiError;
use crate::guard::{Guard, guard};
use crate::model::Served;

/// What handlers share.
pub(crate) struct App {
    models: Vec<Served>,
    max_body_bytes: usize,
    /// When the server started, in seconds since 1970.
    started: u64,
    n_requests: AtomicU64,
}

impl App {
    pub fn new(models: Vec<Served>, max_body_bytes: usize) -> Self {
        Self {
            models,
            max_body_bytes,
            started: now_s(),
            n_requests: AtomicU64::new(0),
        }
    }

    /// The number of a request, from 1.
    fn next_request(&self) -> u64 {
        self.n_requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The model that the field `model` names.
    fn model(&self, name: &str) -> Result<&Served, ApiError> {
        let found = self.models.iter().find(|model| model.id == name);
        found.ok_or_else(|| {
            let ids: Vec<&str> = self.models.iter().map(Served::id).collect();
            let message = format!("expected a model of {}, found `{name}`", ids.join(", "));
            ApiError::new(StatusCode::NOT_FOUND, message)
                .with_param("model")
                .with_code("model_not_found")
        })
    }

    /// The model that the fields of a request name.
    fn model_of(&self, fields: &mut Fields) -> Result<&Served, ApiError> {
        self.model(&fields.require::<String>("model")?)
    }
}

/// All routes behind what is checked for each.
pub(crate) fn router(app: App, guarded: Guard) -> Router {
    let unknown = || async { ApiError::new(StatusCode::NOT_FOUND, "there is no such route") };
    let method = || async {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the route does not take this method",
        )
    };
    Router::new()
        .route("/health", get(models::health))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/perplexity/v1/embeddings", post(perplexity::embeddings))
        .route(
            "/perplexity/v1/contextualizedembeddings",
            post(perplexity::contextualized),
        )
        .route("/v1/rerank", post(rerank::create))
        .merge(tei::routes())
        .merge(ollama::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(method)
        .layer(from_fn_with_state(Arc::new(guarded), guard))
        .with_state(Arc::new(app))
}

/// Seconds since 1970.
fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

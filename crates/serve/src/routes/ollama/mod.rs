//! Ollama's API, below `/api`.

mod embed;
mod generate;
mod models;
mod shape;

use std::sync::Arc;

use serde_json::Value;

use super::App;
use super::table::Route;
use crate::body::Fields;
use crate::error::ApiError;
use crate::keep_alive::KeepAlive;
use crate::model::Served;

/// The routes, each with its whole path.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post(
            "/api/generate",
            &["model"],
            "Continues a prompt.",
            generate::generate,
        ),
        Route::post("/api/chat", &["model"], "Answers messages.", generate::chat),
        Route::post(
            "/api/embed",
            &["model", "input"],
            "Embeds texts.",
            embed::embed,
        ),
        Route::post(
            "/api/embeddings",
            &["model", "prompt"],
            "Embeds a text.",
            embed::embed_one,
        ),
        Route::post("/api/show", &["model"], "A model.", models::show),
        Route::post(
            "/api/pull",
            &["model"],
            "Downloads a model, where that is allowed.",
            models::pull,
        ),
        Route::get("/api/tags", "The models.", models::tags),
        Route::get("/api/ps", "The models that are loaded.", models::ps),
        Route::get("/api/version", "The version of Thane.", models::version),
    ]
}

/// The model of a request, loaded. Clients may write its name with the tag `latest`, and how long
/// it stays loaded, which counts where models are unloaded at all.
async fn model_of(app: &App, fields: &mut Fields) -> Result<Arc<Served>, ApiError> {
    let name: String = fields.require("model")?;
    let base = name.strip_suffix(":latest");
    let found = base.and_then(|base| app.roster.find(base).ok());
    let entry = found.map_or_else(|| app.roster.find(&name), Ok)?;
    let keep_alive = keep_alive(fields)?;
    if let Some(keep_alive) = keep_alive.filter(|_| app.roster.unloads()) {
        // One key does not take a model away from the others.
        let least = entry.keep_alive();
        entry.keep_for(match app.has_keys {
            true => keep_alive.max(least),
            false => keep_alive,
        });
    }
    app.roster.get(&entry).await
}

/// A number of seconds, or a text with a unit.
fn keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    let Some(value) = fields.take::<Value>("keep_alive")? else {
        return Ok(None);
    };
    let text = match &value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let parsed = text.parse();
    let refused = |e| ApiError::field("keep_alive", format!("`keep_alive`: {e}"));
    parsed.map(Some).map_err(refused)
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

//! Ollama's API, below `/api`.

mod embed;
mod generate;
mod models;
mod shape;

use std::sync::Arc;

use serde_json::Value;

use super::App;
use super::table::{Route, routes};
use crate::body::Fields;
use crate::error::ApiError;
use crate::keep_alive::KeepAlive;
use crate::model::Served;

/// The routes, each with its whole path.
pub(super) fn routes() -> Vec<Route> {
    routes![
        post "/api/generate" ["model"] generate::generate, "Continues a prompt.";
        post "/api/chat" ["model"] generate::chat, "Answers messages.";
        post "/api/embed" ["model", "input"] embed::embed, "Embeds texts.";
        post "/api/embeddings" ["model", "prompt"] embed::embed_one, "Embeds a text.";
        post "/api/show" ["model"] models::show, "A model.";
        post "/api/pull" ["model"] models::pull, "Downloads a model, where that is allowed.";
        get "/api/tags" models::tags, "The models.";
        get "/api/ps" models::ps, "The models that are loaded.";
        get "/api/version" models::version, "The version of Thane.";
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

//! Ollama's API, below `/api`.

mod embed;
mod generate;
mod models;

use serde_json::Value;

use super::App;
use super::table::Route;
use crate::body::Fields;
use crate::error::ApiError;
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
            &[],
            "Refused: models are given on the command line.",
            models::pull,
        ),
        Route::get("/api/tags", "The models.", models::tags),
        Route::get("/api/ps", "The models that are loaded: all.", models::ps),
        Route::get("/api/version", "The version of Thane.", models::version),
    ]
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

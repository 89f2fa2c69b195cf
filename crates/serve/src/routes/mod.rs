//! The routes. A route is a file here and a line in [`routes`].

mod anthropic;
mod ask;
mod audit;
mod chat;
mod completions;
mod conversation;
mod embeddings;
mod format;
mod generate;
mod metrics;
mod models;
mod ollama;
mod openai;
mod page;
mod perplexity;
mod rerank;
mod responses;
mod sampling;
mod table;
mod tei;
mod tools;
mod turns;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;

use crate::apart::{Apart, apart};
use crate::body::Fields;
use crate::error::ApiError;
use crate::guard::{Guard, guard};
use crate::kept::{Responses, Store};
use crate::log::{Log, current_account, record};
use crate::model::Served;
use crate::random;
use crate::roster::Roster;
use crate::upload::Uploads;
use table::{Route, routes};

/// How handlers get what they share.
type Shared = State<Arc<App>>;

/// What handlers share.
pub(crate) struct App {
    pub roster: Arc<Roster>,
    /// Most bytes of a body, and the time in which it must be there.
    pub body: (usize, Duration),
    pub uploads: Uploads,
    pub resident_bytes: fn() -> Option<u64>,
    /// Whether clients have different keys.
    pub has_keys: bool,
    /// When the server started, in seconds since 1970.
    pub started: u64,
    pub responses: Arc<Store>,
}

impl App {
    /// The responses that whoever asks has made.
    fn responses(&self) -> Responses {
        self.responses.of(current_account().owner)
    }

    /// The model that a request names, loaded.
    async fn model(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        self.roster.get(&self.roster.find(name)?).await
    }

    /// The fields of a request, the model that they name, loaded, and a random number for ids and
    /// the default of seeds.
    async fn read(&self, body: Body) -> Result<(Fields, Arc<Served>, u64), ApiError> {
        let mut fields = Fields::read(body, self.body).await?;
        let name = fields.require::<String>("model")?;
        let model = self.model(&name).await?;
        Ok((fields, model, random::number()?))
    }
}

fn routes() -> Vec<Route> {
    let mut routes = routes![
        get "/" page::index, "The page.";
        get "/page/{file}" page::file, "A file of the page.";
        get "/metrics" metrics::show, "Counts, as Prometheus reads them.";
        post "/audit" audit::create, "Audits an archive of a package.";
        post "/v1/chat/completions" ["model", "messages"] chat::create, "Answers messages.";
        post "/v1/completions" ["model", "prompt"] completions::create, "Continues a text.";
        post "/v1/embeddings" ["model", "input"] embeddings::create, "Embeds texts or tokens.";
        post "/v1/rerank" ["model", "query", "documents"]
            rerank::create, "Scores documents for a query, as Cohere and Jina do.";
        post "/v2/rerank" ["model", "query", "documents"]
            rerank::create, "The same, for Cohere's newer client.";
        post "/v1/messages" ["model", "messages", "max_tokens"]
            anthropic::create, "Answers messages, in Anthropic's API.";
        post "/v1/messages/count_tokens" ["model", "messages"]
            anthropic::count_tokens, "Counts the tokens of messages, in Anthropic's API.";
        post "/perplexity/v1/embeddings" ["model", "input"]
            perplexity::embeddings, "Embeds texts, in Perplexity's API.";
        post "/perplexity/v1/contextualizedembeddings" ["model", "input"]
            perplexity::contextualized, "Embeds the chunks of documents, in Perplexity's API.";
    ];
    routes.extend(responses::routes());
    routes.extend(models::routes());
    routes.extend(tei::routes());
    routes.extend(ollama::routes());
    routes
}

/// All routes behind what is checked for each.
pub(crate) fn router(app: App, guarded: Guard, log: Log) -> Router {
    let unknown = || async { ApiError::new(StatusCode::NOT_FOUND, "there is no such route") };
    let method = || async {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the route does not take this method",
        )
    };
    table::router(routes())
        .fallback(unknown)
        .method_not_allowed_fallback(method)
        .layer(from_fn_with_state(Arc::new(Apart::default()), apart))
        .layer(from_fn_with_state(Arc::new(guarded), guard))
        .layer(from_fn_with_state(Arc::new(log), record))
        .with_state(Arc::new(app))
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

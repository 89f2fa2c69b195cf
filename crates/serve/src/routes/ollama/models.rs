//! `/api/tags`, `/api/ps`, `/api/show`, `/api/version` and `/api/pull`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use thane_runtime::rfc3339;
use tokio::sync::oneshot;

use super::super::Shared;
use super::model_of;
use crate::body::Fields;
use crate::deadline;
use crate::error::{Answered, ApiError, json_response};
use crate::lines::Lines;
use crate::model::{Kind, Served};
use crate::threads::lock;

/// The models that were given to the server.
pub(super) async fn tags(State(app): Shared) -> Response<Body> {
    let started = rfc3339(UNIX_EPOCH + Duration::from_secs(app.started));
    let entries = app.roster.entries();
    let models = entries.iter().flat_map(|entry| {
        let loaded = entry.loaded();
        let rows = entry.names().map(|name| {
            let mut row = row(entry.id(), name, loaded.as_deref());
            row["modified_at"] = json!(started);
            row
        });
        rows.collect::<Vec<_>>()
    });
    json_response(&json!({"models": models.collect::<Vec<_>>()}))
}

/// The models that are loaded.
pub(super) async fn ps(State(app): Shared) -> Response<Body> {
    let loaded = app.roster.loaded();
    let models = loaded.iter().map(|model| {
        let mut row = row(&model.id, &model.id, Some(model));
        row["context_length"] = model.max_tokens().into();
        row
    });
    json_response(&json!({"models": models.collect::<Vec<_>>()}))
}

pub(super) async fn show(State(app): Shared, body: Body) -> Answered {
    let mut fields = Fields::read(body, app.body).await?;
    let model = &*model_of(&app, &mut fields).await?;
    fields.finish(
        &["verbose"],
        &[("options", json!({})), ("system", json!(""))],
    )?;
    let architecture = &model.architecture;
    let mut info = json!({"general.architecture": architecture});
    info[format!("{architecture}.context_length")] = model.max_tokens().into();
    let (capabilities, template) = match &model.task {
        Kind::Answers(answers) => {
            let template = answers.prompts.language.template.as_ref();
            let syntax = answers.prompts.syntax();
            let mut capabilities = vec!["completion"];
            capabilities.extend(syntax.calls.map(|_| "tools"));
            capabilities.extend(syntax.thoughts.map(|_| "thinking"));
            (capabilities, template.map(|source| source.text.as_str()))
        }
        Kind::Embeds(embeddings) => {
            info[format!("{architecture}.embedding_length")] = embeddings.kept().dim.into();
            (vec!["embedding"], None)
        }
        Kind::Ranks(_) => (vec!["rerank"], None),
    };
    Ok(json_response(&json!({
        "template": template.unwrap_or_default(),
        "parameters": "",
        "details": details(model),
        "model_info": info,
        "capabilities": capabilities,
    })))
}

/// Some clients look for the version of Ollama whose features they want; this is Thane's.
pub(super) async fn version() -> Response<Body> {
    json_response(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Downloads a model where that is allowed, and tells how far it is as Ollama does.
pub(super) async fn pull(State(app): Shared, body: Body) -> Answered {
    if !app.roster.pulls() {
        let message = "models cannot be pulled through the API: start the server with the model, \
                       `thane serve MODEL`, or with `--allow-pull`";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    let mut fields = Fields::read(body, app.body).await?;
    let name = match fields.take::<String>("name")? {
        Some(name) => name,
        None => fields.require("model")?,
    };
    let name = name.strip_suffix(":latest").unwrap_or(&name).to_owned();
    let is_stream = fields.take("stream")?.unwrap_or(true);
    fields.finish(&["insecure"], &[])?;
    if name.len() > MAX_NAME {
        let message = format!("expected a name of at most {MAX_NAME} bytes, found more");
        return Err(ApiError::field("model", message));
    }
    let turn = app.roster.pull_turn()?;
    let (lines, body) = Lines::new();
    let (done, ended) = oneshot::channel();
    let roster = Arc::clone(&app.roster);
    let work = move || {
        let say = |line: Value| lines.send(Bytes::from(format!("{line}\n")));
        let _ = say(json!({"status": "pulling manifest"}));
        let last = Mutex::new(None::<Instant>);
        let to_client = lines.clone();
        let pulled = roster.pull(
            &name,
            Arc::new(move |what, completed, total| {
                // The client has left.
                if to_client.is_closed() {
                    return false;
                }
                let mut last = lock(&last);
                if last.is_some_and(|last| last.elapsed() < SAY_TIME) {
                    return true;
                }
                *last = Some(Instant::now());
                let status = format!("pulling {what}");
                let line = json!({"status": status, "completed": completed, "total": total});
                to_client.send(Bytes::from(format!("{line}\n"))).is_ok()
            }),
        );
        let _ = match &pulled {
            Ok(()) => say(json!({"status": "success"})),
            Err(error) => say(json!({"error": error.message})),
        };
        drop(turn);
        let _ = done.send(pulled);
    };
    let thread = std::thread::Builder::new().name("pull".to_owned());
    let begun = thread.spawn(work);
    begun.map_err(|_| ApiError::failed("the thread that pulls models cannot start"))?;
    if is_stream {
        let mut response = Response::new(Body::new(body));
        let kind = HeaderValue::from_static("application/x-ndjson");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return Ok(response);
    }
    let stopped = |_| ApiError::failed("the thread that pulls models has stopped");
    // The client waits until the download ends, which it does if the client leaves.
    let ended = async { ended.await.map_err(stopped)? };
    deadline::within(app.uploads.answer_time, ended).await?;
    drop(body);
    Ok(json_response(&json!({"status": "success"})))
}

/// Most bytes of the name of a model that is downloaded.
const MAX_NAME: usize = 1000;

/// Between two lines about a download.
const SAY_TIME: Duration = Duration::from_millis(200);

/// A model under one of its names.
fn row(id: &str, name: &str, loaded: Option<&Served>) -> Value {
    let mut details = loaded.map_or_else(|| json!({}), details);
    if name != id {
        details["parent_model"] = json!(id);
    }
    json!({"name": name, "model": name, "details": details})
}

fn details(model: &Served) -> Value {
    let family = &model.architecture;
    json!({"family": family, "families": [family]})
}

//! Answers requests without a network: they go through the routes of the server, so each answer is
//! the one that the server gives.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{self, Response, header};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::task::JoinSet;

use crate::error::STOPPED;
use crate::guard::Guard;
use crate::model::Served;
use crate::rate::Limits;
use crate::roster::Roster;
use crate::server::{Options, Server, routes, stop};

/// A request: JSON for a path.
#[derive(Clone, Debug)]
pub struct Request {
    /// The path of a route, such as `/v1/embeddings`.
    pub path: String,
    /// The body, which is JSON.
    pub body: Vec<u8>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body; JSON, unless the request asked for a stream.
    pub body: Bytes,
}

/// Why no more requests are answered.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The system refused a thread or a timer.
    #[error("the requests cannot be answered")]
    Start(#[source] io::Error),
    /// The thread of a model has ended.
    #[error("a model has stopped because of a failure")]
    ModelStopped,
}

/// Models that answer requests without a network.
pub struct Offline {
    service: TowerToHyperService<Router>,
    roster: Arc<Roster>,
}

impl Offline {
    /// Models behind the routes of the server. Of the options, those of bodies and memory count.
    pub fn new(models: Vec<Served>, options: &Options) -> Self {
        let roster = Arc::new(Roster::of_loaded(models));
        let guard = Guard::new(&[], Limits::default(), true);
        Self {
            service: TowerToHyperService::new(routes(&roster, options, guard)),
            roster,
        }
    }

    /// Whether requests may name a model so.
    pub fn has_model(&self, name: &str) -> bool {
        self.roster.find(name).is_ok()
    }

    /// Answers requests, `width` at a time, until `next` gives none or `is_stopped` returns true,
    /// which is asked several times a second. Each answer is given to `done` with the key of its
    /// request; answers come in any order. Requests that are not answered when this returns are
    /// dropped.
    ///
    /// Returns whether all requests were answered.
    ///
    /// # Errors
    ///
    /// Those of `next` and `done`, and [`OfflineError`].
    pub fn run<K, E>(
        &self,
        width: usize,
        next: &mut dyn FnMut() -> Result<Option<(K, Request)>, E>,
        done: &mut dyn FnMut(K, Reply) -> Result<(), E>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<bool, E>
    where
        K: Send + 'static,
        E: From<OfflineError>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(Server::ENCODERS)
            .build()
            .map_err(OfflineError::Start)?;
        let ran = runtime.block_on(async {
            let mut running = JoinSet::new();
            let mut has_more = true;
            loop {
                while has_more && running.len() < width {
                    match next()? {
                        Some((key, request)) => {
                            let answer = answer(self.service.clone(), request);
                            running.spawn(async move { (key, answer.await) });
                        }
                        None => has_more = false,
                    }
                }
                let joined = tokio::select! {
                    joined = running.join_next() => joined,
                    () = stop(is_stopped) => return Ok(false),
                };
                match joined {
                    None => return Ok(true),
                    Some(Ok((key, Some(reply)))) => done(key, reply)?,
                    Some(Ok((_, None)) | Err(_)) => Err(OfflineError::ModelStopped)?,
                }
            }
        });
        runtime.shutdown_background();
        ran
    }
}

/// The answer to a request; `None` if the model has stopped.
async fn answer(service: TowerToHyperService<Router>, request: Request) -> Option<Reply> {
    let asked = http::Request::post(request.path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(request.body))
        .ok()?;
    let Ok(response): Result<Response<Body>, _> = service.call(asked).await;
    let status = response.status();
    let body = response.into_body().collect().await.ok()?.to_bytes();
    let has_stopped = status.is_server_error() && {
        let error: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        error.is_some_and(|error| error["error"]["code"] == STOPPED)
    };
    (!has_stopped).then_some(Reply {
        status: status.as_u16(),
        body,
    })
}

//! Requests that are large, or may be, are read, shaped and answered by threads of their own: each
//! takes milliseconds to seconds, in which nobody else shall wait. Two of them run at once, and
//! they have other threads for what blocks ([`tokio::task::spawn_blocking`]).

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware::Next;
use axum::response::IntoResponse;
use hyper::body::Body as _;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::error::ApiError;
use crate::log::in_record;

/// Longest body that the thread of all connections reads and shapes: that takes a few milliseconds.
const MAX_SMALL_BYTES: u64 = 64 << 10;

/// Threads for large requests.
const THREADS: usize = 2;

/// The threads for large requests, which the first of them starts.
#[derive(Default)]
pub(crate) struct Apart(OnceLock<Option<Runtime>>);

impl Apart {
    /// `None` if the system has no threads.
    fn runtime(&self) -> Option<&Runtime> {
        let start = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder
                .worker_threads(THREADS)
                .max_blocking_threads(THREADS);
            builder.enable_time().thread_name("large").build().ok()
        };
        self.0.get_or_init(start).as_ref()
    }
}

impl Drop for Apart {
    /// Whoever waited for these requests has gone.
    fn drop(&mut self) {
        if let Some(Some(runtime)) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Answers a large request apart.
pub(crate) async fn apart(
    State(apart): State<Arc<Apart>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let size = request.body().size_hint();
    let is_small = size.upper().is_some_and(|n| n <= MAX_SMALL_BYTES);
    if is_small {
        return next.run(request).await;
    }
    let Some(runtime) = apart.runtime() else {
        return next.run(request).await;
    };
    // Ends with the connection.
    let mut tasks = JoinSet::new();
    tasks.spawn_on(in_record(next.run(request)), runtime.handle());
    match tasks.join_next().await {
        Some(Ok(response)) => response,
        _ => ApiError::failed("the request could not be answered").into_response(),
    }
}

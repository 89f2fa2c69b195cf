//! Requests with a body, and those for what the server keeps, are read, shaped and answered by
//! threads beside the one that has all connections, which so never waits: some take milliseconds to
//! seconds. Each class of them has threads of its own, for what blocks too
//! ([`tokio::task::spawn_blocking`]), so that small ones do not wait for large ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response};
use axum::middleware::Next;
use axum::response::IntoResponse;
use hyper::body::Body as _;
use thane_mil::budget::Reservation;
use thane_runtime::return_freed_memory;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

use crate::error::ApiError;
use crate::log::{held_bytes, in_record};

/// Longest body of a small request: it is read and shaped within a few milliseconds.
const MAX_SMALL_BYTES: u64 = 64 << 10;
/// Memory of a request that goes back to the system with it: the allocator would keep it for the
/// thread.
const LARGE_BYTES: usize = 32 << 20;

/// Requests that share threads.
#[derive(Clone, Copy)]
enum Class {
    Small,
    /// Of conversations that the server keeps, which may be large.
    Kept,
    Large,
    /// What the server counts, which takes a millisecond to write.
    Metrics,
}

impl Class {
    /// `None` for what is answered at once: it has no body, and its answer is small.
    fn of(request: &Request) -> Option<Self> {
        let n_bytes = request.body().size_hint().upper();
        if n_bytes.is_none_or(|n| n > MAX_SMALL_BYTES) {
            return Some(Self::Large);
        }
        let path = request.uri().path();
        if path.starts_with("/v1/responses") {
            return Some(Self::Kept);
        }
        if path == "/metrics" {
            return Some(Self::Metrics);
        }
        (request.method() == Method::POST).then_some(Self::Small)
    }

    /// The name of its threads, and their number.
    fn threads(self) -> (&'static str, usize) {
        match self {
            Self::Small => ("small", 4),
            Self::Kept => ("kept", 2),
            Self::Large => ("large", 2),
            Self::Metrics => ("metrics", 1),
        }
    }
}

/// The threads of each class, which its first request starts.
#[derive(Default)]
pub(crate) struct Apart([OnceLock<Option<Runtime>>; 4]);

impl Apart {
    /// `None` if the system has no threads.
    fn runtime(&self, class: Class) -> Option<&Runtime> {
        let start = || {
            let (name, n) = class.threads();
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(n).max_blocking_threads(n);
            builder.enable_time().thread_name(name).build().ok()
        };
        self.0[class as usize].get_or_init(start).as_ref()
    }
}

impl Drop for Apart {
    /// Whoever waited for these requests has gone.
    fn drop(&mut self) {
        for runtime in &mut self.0 {
            if let Some(Some(runtime)) = runtime.take() {
                runtime.shutdown_background();
            }
        }
    }
}

/// Answers a request apart, if it may take long.
pub(crate) async fn apart(
    State(apart): State<Arc<Apart>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let runtime = Class::of(&request).and_then(|class| apart.runtime(class));
    let Some(runtime) = runtime else {
        return next.run(request).await;
    };
    // Ends with the connection.
    let mut tasks = JoinSet::new();
    let answer = async {
        let _freed = Large;
        next.run(request).await
    };
    tasks.spawn_on(in_record(answer), runtime.handle());
    match tasks.join_next().await {
        Some(Ok(response)) => response,
        _ => ApiError::failed("the request could not be answered").into_response(),
    }
}

/// Returns the memory of a large request to the system, dropped behind what the request was made
/// of: with its answer, or when its client has left.
struct Large;

impl Drop for Large {
    fn drop(&mut self) {
        if held_bytes() >= LARGE_BYTES {
            return_freed_memory();
        }
    }
}

/// Memory that goes back to the system once it is dropped, behind what it was reserved for.
pub(crate) struct Freed(pub Reservation);

impl Drop for Freed {
    fn drop(&mut self) {
        note_freed(self.0.bytes());
    }
}

/// Notes memory of an answer that was freed, and gives it back to the system whenever there is
/// much.
pub(crate) fn note_freed(n_bytes: usize) {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    /// Of less, the allocator makes other answers.
    const LEAST: usize = 256 << 10;
    if n_bytes < LEAST || FREED.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes < LARGE_BYTES {
        return;
    }
    FREED.store(0, Ordering::Relaxed);
    // Those who note it must not wait, and may hold a part of it a little longer.
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(return_freed_memory)),
        Err(_) => return_freed_memory(),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use http_body_util::BodyExt;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    async fn thread_name() -> String {
        let thread = std::thread::current();
        thread.name().unwrap_or_default().to_owned()
    }

    #[test]
    fn only_small_answers_without_a_body_are_given_by_the_thread_of_connections() {
        let apart = from_fn_with_state(Arc::new(Apart::default()), apart);
        let router: Router = Router::new().fallback(thread_name).layer(apart);
        let service = TowerToHyperService::new(router);
        let connections = std::thread::current();
        let connections = connections.name().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        for (method, path, n_bytes, expected) in [
            ("GET", "/health", 0, connections),
            ("GET", "/v1/models", 0, connections),
            ("GET", "/metrics", 0, "metrics"),
            ("POST", "/v1/embeddings", 9, "small"),
            ("POST", "/v1/chat/completions", 65_536, "small"),
            ("POST", "/v1/chat/completions", 65_537, "large"),
            ("POST", "/v1/responses", 9, "kept"),
            ("POST", "/v1/responses", 65_537, "large"),
            ("GET", "/v1/responses/resp_1", 0, "kept"),
            ("GET", "/v1/responses/resp_1/input_items", 0, "kept"),
            ("DELETE", "/v1/responses/resp_1", 0, "kept"),
        ] {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Body::from(vec![b' '; n_bytes])).unwrap();
            let name = runtime.block_on(async {
                let response = service.call(request).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            });
            assert_eq!(name, expected, "{method} {path} {n_bytes}");
        }
    }
}

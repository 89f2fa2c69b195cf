//! How many requests a model takes at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// The requests that a model takes: those that run and those that wait.
pub(crate) struct Places {
    free: Arc<Semaphore>,
    n: usize,
    /// What has them, as errors say.
    what: &'static str,
    n_refused: AtomicU64,
}

impl Places {
    pub fn new(n: usize, what: &'static str) -> Self {
        Self {
            free: Arc::new(Semaphore::new(n)),
            n,
            what,
            n_refused: AtomicU64::new(0),
        }
    }

    /// A place, which is free again when the result is dropped. With all places taken, the request
    /// is refused.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.free).try_acquire_owned().map_err(|_| {
            self.n_refused.fetch_add(1, Ordering::Relaxed);
            let (n, what) = (self.n, self.what);
            let message = format!("the queue of the model is full: {n} {what} run or wait");
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                .with_code("queue_full")
                .retry_after(1)
        })
    }

    /// Number of requests that found no place.
    pub fn n_refused(&self) -> u64 {
        self.n_refused.load(Ordering::Relaxed)
    }

    /// Number of places.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of places that are taken.
    pub fn n_taken(&self) -> usize {
        self.n - self.free.available_permits()
    }
}

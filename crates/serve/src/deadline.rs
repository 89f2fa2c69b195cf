//! The most time that an embedding model or a reranker may take for a request (`--answer-time`).
//! Language models end their answers themselves.

use std::time::Duration;

use axum::http::StatusCode;

use crate::error::ApiError;

/// What `answer` gives within `time`. Afterwards it is dropped, so that the model's thread stops
/// as it does when a client goes, and the request is refused.
pub(crate) async fn within<T>(
    time: Option<Duration>,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let Some(time) = time else {
        return answer.await;
    };
    match tokio::time::timeout(time, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let message = format!(
                "expected the answer within {time:?}, the most that the server may take, found \
                 that it takes longer: ask for less at a time"
            );
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
            Err(error.with_code("deadline_exceeded"))
        }
    }
}

//! The most time from the arrival of a request to its answer (`--answer-time`). Language models end
//! answers themselves that they have begun.

use std::time::Duration;

use axum::http::StatusCode;

use crate::error::ApiError;
use crate::log::arrived;

/// What `answer` gives within `time` of the arrival of the current request. Afterwards it is
/// dropped, so that whoever works for it stops as when a client goes, and the request is refused.
pub(crate) async fn within<T>(
    time: Option<Duration>,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let Some(time) = time else {
        return answer.await;
    };
    let left = time.saturating_sub(arrived().elapsed());
    match tokio::time::timeout(left, answer).await {
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn what_is_not_there_in_time_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let soon = Some(Duration::ZERO);
        runtime.block_on(async {
            let refused = within::<()>(soon, pending()).await.unwrap_err();
            assert_eq!(refused.code, Some("deadline_exceeded"));
            assert_eq!(within(soon, ready(Ok(1))).await.ok(), Some(1));
            assert_eq!(within(None, ready(Ok(2))).await.ok(), Some(2));
        });
    }
}

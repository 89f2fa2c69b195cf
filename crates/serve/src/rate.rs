//! How often a client may ask.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use axum::http::StatusCode;

use crate::error::ApiError;

/// A bucket of requests, full at first, that fills up again within a minute (token bucket).
#[derive(Debug)]
pub(crate) struct Rate {
    per_minute: NonZeroU32,
    /// Requests that are left, and when they were counted.
    left: Mutex<(f64, Instant)>,
}

impl Rate {
    pub fn new(per_minute: NonZeroU32, now: Instant) -> Self {
        let left = Mutex::new((f64::from(per_minute.get()), now));
        Self { per_minute, left }
    }

    /// Takes a request, or says when there is one.
    pub fn take(&self, now: Instant) -> Result<(), ApiError> {
        let most = f64::from(self.per_minute.get());
        let per_s = most / 60.0;
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(left.1).as_secs_f64();
        *left = ((left.0 + passed * per_s).min(most), now);
        if left.0 >= 1.0 {
            left.0 -= 1.0;
            return Ok(());
        }
        let seconds = ((1.0 - left.0) / per_s).ceil().max(1.0) as u32;
        let message = format!(
            "expected at most {} requests per minute of this client, found more: try again in \
             {seconds} s",
            self.per_minute
        );
        Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
            .with_code("rate_limit_exceeded")
            .retry_after(seconds))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_come_back_within_a_minute() {
        let start = Instant::now();
        let rate = Rate::new(NonZeroU32::new(6).unwrap(), start);
        let taken = |at_s: u64, n: usize| {
            let now = start + Duration::from_secs(at_s);
            (0..n).filter(|_| rate.take(now).is_ok()).count()
        };
        // One each 10 seconds, and never more than 6 at once.
        for (at_s, n) in [(0, 6), (9, 0), (10, 1), (25, 1), (30, 1), (1000, 6)] {
            assert_eq!(taken(at_s, 10), n, "at {at_s} s");
        }
        let refused = rate.take(start + Duration::from_secs(1003)).unwrap_err();
        assert!(refused.message().ends_with("in 7 s"), "{refused:?}");
    }
}

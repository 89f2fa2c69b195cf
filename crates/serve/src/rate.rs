//! Who asks: whose things a request may see, how often the client may ask, and for how many
//! tokens.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Mutex;
use std::time::Instant;

use axum::http::StatusCode;

use crate::error::ApiError;
use crate::threads::lock;

/// A client, and what its requests take.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub owner: Owner,
    pub quota: Option<Quota>,
}

/// To whom things belong that requests leave behind: a key, of which this is a hash, or everybody
/// where no key is asked for. Nobody else can tell that they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner(pub u64);

impl Account {
    /// Counts tokens of a request.
    pub fn spend(&self, n: usize) {
        if let Some(quota) = &self.quota {
            quota.spend(n);
        }
    }
}

/// Limits of a client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub requests_per_minute: Option<NonZeroU32>,
    pub tokens_per_day: Option<NonZeroU64>,
}

/// What a client may have in a time, all of it at first, which comes back evenly (token bucket).
#[derive(Debug)]
struct Bucket {
    most: f64,
    per_s: f64,
    /// What is left, and when that was counted. Below zero, the client had more than it may.
    left: Mutex<(f64, Instant)>,
}

impl Bucket {
    fn new(most: f64, seconds: f64, now: Instant) -> Self {
        Self {
            most,
            per_s: most / seconds,
            left: Mutex::new((most, now)),
        }
    }

    /// Takes `n` if there is at least one. Otherwise says in how many seconds there is.
    fn take(&self, n: f64, now: Instant) -> Result<(), u32> {
        let mut left = lock(&self.left);
        let passed = now.saturating_duration_since(left.1).as_secs_f64();
        *left = ((left.0 + passed * self.per_s).min(self.most), now);
        if left.0 >= 1.0 {
            left.0 -= n;
            return Ok(());
        }
        Err(((1.0 - left.0) / self.per_s).ceil().max(1.0) as u32)
    }

    /// Takes `n`, also of what is not there yet.
    fn spend(&self, n: f64) {
        let mut left = lock(&self.left);
        left.0 -= n;
    }
}

/// Requests in a minute.
#[derive(Debug)]
pub(crate) struct Rate {
    per_minute: NonZeroU32,
    bucket: Bucket,
}

impl Rate {
    pub fn new(per_minute: NonZeroU32, now: Instant) -> Self {
        let bucket = Bucket::new(f64::from(per_minute.get()), 60.0, now);
        Self { per_minute, bucket }
    }

    /// Takes a request, or says when there is one.
    pub fn take(&self, now: Instant) -> Result<(), ApiError> {
        let most = format!("{} requests per minute", self.per_minute);
        self.bucket.take(1.0, now).map_err(|s| refused(&most, s))
    }
}

/// Tokens in a day. How many a request takes is known once it has ended, so the last one may take
/// more than is left; what it took too much is waited for.
#[derive(Debug)]
pub(crate) struct Quota {
    per_day: NonZeroU64,
    bucket: Bucket,
}

impl Quota {
    pub fn new(per_day: NonZeroU64, now: Instant) -> Self {
        let bucket = Bucket::new(per_day.get() as f64, 86_400.0, now);
        Self { per_day, bucket }
    }

    /// Whether a token is left; if not, says when there is one.
    pub fn check(&self, now: Instant) -> Result<(), ApiError> {
        let most = format!("{} tokens per day", self.per_day);
        self.bucket.take(0.0, now).map_err(|s| refused(&most, s))
    }

    fn spend(&self, n: usize) {
        self.bucket.spend(n as f64);
    }
}

fn refused(most: &str, seconds: u32) -> ApiError {
    let message =
        format!("expected at most {most} of this client, found more: try again in {seconds} s");
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
        .with_code("rate_limit_exceeded")
        .retry_after(seconds)
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
        assert!(refused.message.ends_with("in 7 s"), "{refused:?}");
    }

    #[test]
    fn tokens_that_were_too_many_are_waited_for() {
        let start = Instant::now();
        let quota = Quota::new(NonZeroU64::new(864).unwrap(), start);
        let at = |seconds: u64| quota.check(start + Duration::from_secs(seconds));
        at(0).unwrap();
        quota.spend(800);
        at(0).unwrap();
        // One each 100 seconds: 36 too many, and one more for the next request.
        quota.spend(100);
        let refused = at(0).unwrap_err();
        assert!(refused.message.ends_with("in 3700 s"), "{refused:?}");
        at(3690).unwrap_err();
        at(3701).unwrap();
        quota.spend(1);
        at(3702).unwrap_err();
        at(200_000).unwrap();
        quota.spend(864);
        at(200_000).unwrap_err();
    }
}

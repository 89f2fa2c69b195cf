//! What a model has done since the server started, counted where requests pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thane_engine::schedule::{Event, Usage};

/// A number that another thread may read at any time.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn subtract(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of a model.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests that run now.
    pub running: Count,
    pub completed: Count,
    pub failed: Count,
    /// Requests whose client went away.
    pub cancelled: Count,
    pub prompt_tokens: Count,
    /// Prompt tokens that a KV cache held already.
    pub cached_tokens: Count,
    pub generated_tokens: Count,
    /// From the arrival of a request to its first text, or to its vectors.
    pub first: Durations,
    /// Time of a step, which decodes a token of each running answer.
    pub step: Durations,
}

impl Counts {
    /// What the scheduler has after a step.
    pub fn note_scheduled(&self, totals: &Usage, n_running: usize) {
        self.running.set(n_running as u64);
        self.prompt_tokens.set(totals.prompt_tokens as u64);
        self.cached_tokens.set(totals.cached_tokens as u64);
        self.generated_tokens.set(totals.answer_tokens as u64);
    }

    /// Counts how a request ended, if the event ends it.
    pub fn note_end(&self, event: &Event) {
        match event {
            Event::Scored(_) | Event::Logprob(_) | Event::Text(_) => {}
            Event::Done(..) => self.completed.add(1),
            Event::Failed(_) => self.failed.add(1),
        }
    }

    /// After a request for vectors of this many tokens; `None` if its client went away.
    pub fn note_vectors<E>(&self, n_tokens: Result<Option<usize>, E>, time: Duration) {
        match n_tokens {
            Ok(Some(n_tokens)) => {
                self.prompt_tokens.add(n_tokens as u64);
                self.completed.add(1);
                self.first.observe(time);
            }
            Ok(None) => self.cancelled.add(1),
            Err(_) => self.failed.add(1),
        }
    }
}

/// How long something took, as a histogram.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// A count for each bound of [`Self::BOUNDS_S`], and one for what is longer.
    counts: [Count; Self::BOUNDS_S.len() + 1],
    sum_ns: Count,
}

impl Durations {
    /// Longest duration of each bucket, in seconds.
    pub const BOUNDS_S: [f64; 15] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    ];

    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = Self::BOUNDS_S.partition_point(|bound| *bound < seconds);
        self.counts[bucket].add(1);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.add(ns);
    }

    /// Number of durations up to each bound, then of all.
    pub fn cumulative(&self) -> Vec<u64> {
        let mut sum = 0;
        let counts = self.counts.iter().map(|count| {
            sum += count.get();
            sum
        });
        counts.collect()
    }

    pub fn sum_s(&self) -> f64 {
        Duration::from_nanos(self.sum_ns.get()).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_its_bucket_and_all_longer_ones() {
        let durations = Durations::default();
        for ms in [1, 2, 100, 120_000] {
            durations.observe(Duration::from_millis(ms));
        }
        // A bound belongs to its bucket, as in Prometheus.
        let expected = [1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4];
        assert_eq!(durations.cumulative(), expected);
        assert!((durations.sum_s() - 120.103).abs() < 1e-9);
    }
}

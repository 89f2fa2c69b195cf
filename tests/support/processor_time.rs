//! Processor time of a thread, to compare the work of two calls: what else runs on the machine does
//! not add to it. Tests include this file.

use std::fs;
use std::time::{Duration, Instant};

/// What `work` returns, and the processor time that it takes on this thread. Where the system does
/// not tell (`/proc/thread-self/schedstat`), that is the time that passes.
pub fn of<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let (start, before) = (Instant::now(), used());
    let done = work();
    let spent = before.and_then(|before| used()?.checked_sub(before));
    (done, spent.unwrap_or_else(|| start.elapsed()))
}

/// Processor time that this thread has used.
fn used() -> Option<Duration> {
    // The system brings the count up to date when the thread gives way.
    std::thread::yield_now();
    let counts = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns = counts.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

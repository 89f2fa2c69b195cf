//! Waits for threads, but not for ever, and for locks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Waits for a thread to end; returns whether it has. One that has not goes on by itself.
pub fn join_within(thread: JoinHandle<()>, time: Duration) -> bool {
    let end = Instant::now() + time;
    while !thread.is_finished() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = thread.join();
    true
}

/// What a lock guards. It is whole also where a thread panicked that had it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Ends the tokenizing of a text that nobody waits for any more.
//!
//! Loops of this crate ask every so often. The `tokenizers` crate cannot be asked within one of its
//! passes over a text, so long texts are tokenized by a thread of their own, which the caller
//! leaves behind. That thread asks between passes and between words, and so ends soon too.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::TextError;
use super::guard::catch_panics;

/// Bytes or merges between two questions. They take about a millisecond.
const STEPS: usize = 1 << 14;
/// Longest text that needs no thread: its longest pass takes tenths of a second.
const MAX_SHORT_BYTES: usize = 1 << 20;
/// Time limit for a text if a pattern can backtrack far.
const MAX_TIME: Duration = Duration::from_secs(8);
/// Time between two questions of a caller that waits for a thread.
const WAIT: Duration = Duration::from_millis(20);
/// Most threads of a tokenizer that were left behind. A caller that stops waits for its thread if
/// there are so many, so that clients that leave cannot pile up work.
const MAX_LEFT: usize = 2;

/// Asks every so often whether to go on.
pub(super) struct Stop<'a> {
    is_stopped: &'a dyn Fn() -> bool,
    n_steps: Cell<usize>,
}

impl<'a> Stop<'a> {
    pub(super) fn new(is_stopped: &'a dyn Fn() -> bool) -> Self {
        Self {
            is_stopped,
            n_steps: Cell::new(0),
        }
    }

    /// Asks now.
    pub(super) fn ask(&self) -> Result<(), TextError> {
        self.n_steps.set(0);
        if (self.is_stopped)() {
            return Err(TextError::Interrupted);
        }
        Ok(())
    }

    /// Notes work on so many bytes, or so many merges, and asks if it is time.
    pub(super) fn note(&self, n_steps: usize) -> Result<(), TextError> {
        let n = self.n_steps.get().saturating_add(n_steps);
        self.n_steps.set(n);
        if n < STEPS {
            return Ok(());
        }
        self.ask()
    }
}

/// The threads that tokenize long texts, and which of them nobody waits for.
#[derive(Debug, Default)]
pub(super) struct Threads {
    n_left: Arc<AtomicUsize>,
}

/// What a thread and its caller tell each other.
#[derive(Debug, Default)]
struct Shared {
    /// The thread ends when it asks.
    is_stopped: AtomicBool,
    /// The work is done, or the caller has left. Whoever is the second of both counts the thread no
    /// more.
    is_over: AtomicBool,
}

impl Threads {
    /// Whether a text of this length is left to a thread.
    pub(super) fn take(len: usize) -> bool {
        len > MAX_SHORT_BYTES
    }

    /// Runs work in a thread, with panics caught, and with a time limit if it `is_slow`.
    pub(super) fn run<T: Send + 'static>(
        &self,
        is_slow: bool,
        stop: &Stop,
        work: impl FnOnce(&Stop) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, TextError> {
        stop.ask()?;
        let shared = Arc::new(Shared::default());
        let result = self.start(Arc::clone(&shared), work)?;
        let mut waits = (0..MAX_TIME.as_millis() / WAIT.as_millis()).map(|_| ());
        loop {
            match result.recv_timeout(WAIT) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(TextError::Encode("the thread has ended".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if is_slow && waits.next().is_none() {
                self.leave(&shared);
                return Err(TextError::Broken(format!(
                    "its patterns take longer than {} s for this text",
                    MAX_TIME.as_secs()
                )));
            }
            if stop.ask().is_ok() {
                continue;
            }
            shared.is_stopped.store(true, Ordering::Relaxed);
            if self.n_left.load(Ordering::Relaxed) < MAX_LEFT {
                self.leave(&shared);
                return Err(TextError::Interrupted);
            }
        }
    }

    fn start<T: Send + 'static>(
        &self,
        shared: Arc<Shared>,
        work: impl FnOnce(&Stop) -> Result<T, TextError> + Send + 'static,
    ) -> Result<Receiver<Result<T, TextError>>, TextError> {
        let (done, result) = mpsc::channel();
        let n_left = Arc::clone(&self.n_left);
        let thread = std::thread::Builder::new().name("tokenizer".to_owned());
        let started = thread.spawn(move || {
            let is_stopped = || shared.is_stopped.load(Ordering::Relaxed);
            let worked = catch_panics(|| work(&Stop::new(&is_stopped)));
            // If this fails, nobody waits.
            let _ = done.send(worked);
            if shared.is_over.swap(true, Ordering::Relaxed) {
                n_left.fetch_sub(1, Ordering::Relaxed);
            }
        });
        started.map_err(|error| TextError::Encode(error.to_string()))?;
        Ok(result)
    }

    /// Leaves a thread behind.
    fn leave(&self, shared: &Shared) {
        shared.is_stopped.store(true, Ordering::Relaxed);
        self.n_left.fetch_add(1, Ordering::Relaxed);
        if shared.is_over.swap(true, Ordering::Relaxed) {
            self.n_left.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller that stops gets its answer while the thread works, and then the thread ends when it
    /// asks; behind too many such threads, it waits.
    #[test]
    fn threads_that_are_left_behind_end_and_are_counted() {
        let threads = Threads::default();
        let (go_on, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let (ended, ends) = mpsc::channel();
        let work = || {
            let (held, ended) = (Arc::clone(&held), ended.clone());
            move |stop: &Stop| {
                let _ = held.lock().unwrap().recv();
                let found = stop.ask().map(|()| 7);
                ended.send(()).unwrap();
                found
            }
        };
        let asked = Cell::new(0);
        let is_stopped = || asked.replace(asked.get() + 1) > 0;
        for n in 1..=MAX_LEFT {
            asked.set(0);
            let found = threads.run(false, &Stop::new(&is_stopped), work());
            assert!(matches!(found, Err(TextError::Interrupted)));
            assert_eq!(threads.n_left.load(Ordering::Relaxed), n);
        }
        // Now there are too many, so a caller who stops waits for the thread.
        asked.set(0);
        let is_stopped = || {
            if asked.replace(asked.get() + 1) == 1 {
                (0..=MAX_LEFT).for_each(|_| go_on.send(()).unwrap());
            }
            asked.get() > 1
        };
        let last = threads.run(false, &Stop::new(&is_stopped), work());
        assert!(matches!(last, Ok(7) | Err(TextError::Interrupted)));
        assert_eq!(ends.iter().take(MAX_LEFT + 1).count(), MAX_LEFT + 1);
        while threads.n_left.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }
}

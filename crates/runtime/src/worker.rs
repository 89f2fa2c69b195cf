//! A thread that computes beside the model.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Gives work to a thread, which does one piece after another, and ends once all copies of this are
/// gone.
#[derive(Clone)]
pub(crate) struct Worker(Sender<Job>);

type Job = Box<dyn FnOnce() + Send>;

impl Worker {
    /// Starts a thread.
    pub fn start(name: &str) -> io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = channel::<Job>();
        let work = move || {
            for job in waiting {
                // Whoever waits for the result gets none.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        let thread = Builder::new().name(name.to_owned()).spawn(work)?;
        Ok((Self(jobs), thread))
    }

    /// Lets the thread compute something. The result comes through the receiver, or an error if
    /// `compute` panics. A receiver that is dropped drops the result.
    pub fn begin<T: Send + 'static>(
        &self,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (reply, result) = channel();
        let job = Box::new(move || {
            let _ = reply.send(compute());
        });
        if let Err(SendError(job)) = self.0.send(job) {
            job();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_outlives_a_panic_and_no_copy_of_itself() {
        let (worker, thread) = Worker::start("test").unwrap();
        let copy = worker.clone();
        let panics = worker.begin(|| -> usize { panic!("expected by the test") });
        drop(worker.begin(|| 1));
        let works = copy.begin(|| 2);
        assert!(panics.recv().is_err());
        assert_eq!(works.recv(), Ok(2));
        drop(worker);
        assert_eq!(copy.begin(|| 3).recv(), Ok(3));
        drop(copy);
        // Without an end, the test would not end.
        thread.join().unwrap();
    }
}

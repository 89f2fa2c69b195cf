//! Work on several connections at once, with one progress for all of it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{Hub, Progress};
use crate::error::HubError;

/// Does `work` for each item, on as many threads as there are connections, in the order of the
/// items. The first error ends the rest: what was begun is kept. `total` bytes of `what` are shown
/// as one progress, which each worker moves through the hub that it is given.
pub fn each<T: Sync>(
    hub: &Hub,
    (what, total): (&str, u64),
    items: &[T],
    work: impl Fn(&Hub, &T) -> Result<(), HubError> + Sync,
) -> Result<(), HubError> {
    if items.is_empty() {
        return Ok(());
    }
    let joint = Arc::new(Joint {
        inner: Arc::clone(&hub.progress),
        done: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
    });
    let (next, first) = (AtomicUsize::new(0), Mutex::new(None));
    let run = || {
        let lane = Hub {
            progress: Arc::new(Lane {
                joint: Arc::clone(&joint),
                last: AtomicU64::new(0),
            }),
            ..hub.clone()
        };
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if joint.has_failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = work(&lane, item) {
                // Others end because this one failed, and say only that.
                if !joint.has_failed.swap(true, Ordering::Relaxed) {
                    *first.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
                return;
            }
        }
    };
    hub.progress.start(what, Some(total), 0);
    std::thread::scope(|scope| {
        for _ in 0..hub.connections.clamp(1, items.len()) {
            scope.spawn(run);
        }
    });
    hub.progress.finish();
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    first.map_or(Ok(()), Err)
}

/// The progress of all workers.
struct Joint {
    inner: Arc<dyn Progress>,
    done: AtomicU64,
    has_failed: AtomicBool,
}

/// The progress of one worker, which does one item after another.
struct Lane {
    joint: Arc<Joint>,
    /// Bytes of its present item.
    last: AtomicU64,
}

impl Lane {
    fn moved(&self, done: u64) {
        let before = self.last.swap(done, Ordering::Relaxed);
        // An item that starts again goes back.
        let change = done.wrapping_sub(before);
        let all = self.joint.done.fetch_add(change, Ordering::Relaxed);
        self.joint.inner.set(all.wrapping_add(change));
    }
}

impl Progress for Lane {
    fn start(&self, _: &str, _: Option<u64>, done: u64) {
        self.last.store(0, Ordering::Relaxed);
        self.moved(done);
    }

    fn set(&self, done: u64) {
        self.moved(done);
    }

    fn is_wanted(&self) -> bool {
        !self.joint.has_failed.load(Ordering::Relaxed) && self.joint.inner.is_wanted()
    }

    fn finish(&self) {}

    fn note(&self, line: &str) {
        self.joint.inner.note(line);
    }

    fn detail(&self, line: &str) {
        self.joint.inner.detail(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Places;

    #[derive(Default)]
    struct Seen(Mutex<Vec<u64>>);

    impl Progress for Seen {
        fn start(&self, _: &str, total: Option<u64>, _: u64) {
            self.0.lock().unwrap().extend(total);
        }
        fn set(&self, done: u64) {
            self.0.lock().unwrap().push(done);
        }
        fn finish(&self) {}
        fn note(&self, _: &str) {}
        fn detail(&self, _: &str) {}
    }

    fn hub(progress: Arc<dyn Progress>, connections: usize) -> Hub {
        Hub {
            progress,
            connections,
            ..Hub::new(Places::in_folder("/tmp"))
        }
    }

    #[test]
    fn bytes_of_all_workers_are_one_sum() {
        for connections in [0, 1, 3, 100] {
            let seen = Arc::new(Seen::default());
            let hub = hub(seen.clone(), connections);
            let items = [5, 7, 1, 2];
            let done = each(&hub, ("x", 15), &items, |hub, bytes| {
                hub.progress.start("", None, 0);
                hub.progress.set(bytes + 3);
                hub.progress.set(*bytes);
                Ok(())
            });
            assert!(done.is_ok());
            let seen = seen.0.lock().unwrap();
            assert_eq!((seen.first(), seen.last()), (Some(&15), Some(&15)));
        }
    }

    #[test]
    fn the_first_error_ends_all_work() {
        let n_begun = AtomicUsize::new(0);
        let fails = each(
            &hub(Arc::default() as Arc<Seen>, 2),
            ("x", 0),
            &[0; 1000],
            |hub, _| match n_begun.fetch_add(1, Ordering::SeqCst) {
                0 => Err(HubError::NoCache),
                _ => loop {
                    hub.check_wanted("x")?;
                    std::thread::yield_now();
                },
            },
        );
        assert!(matches!(fails, Err(HubError::NoCache)), "{fails:?}");
        assert!(n_begun.into_inner() <= 2);
    }
}

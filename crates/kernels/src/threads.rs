//! A fork-join pool for very short jobs: workers spin for a while before they sleep, and a job
//! never waits for a worker that has not woken yet.
//!
//! Knows nothing of what it runs. Start at [`Pool::run`].

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Turns of the spin loop before a worker sleeps: about 100 us at 4 GHz, longer than the serial gap
/// between two matrix products of a decode step (10 to 50 us).
const SPINS_BEFORE_SLEEP: u32 = 8_000;
/// Turns of the spin loop before the caller, waiting for the last tasks, yields its core (more
/// threads than cores).
const SPINS_BEFORE_YIELD: u32 = 20_000;

/// Bit of `Shared::state`: workers may join the job.
const OPEN: u64 = 1 << 16;
/// Bits of `Shared::state` below `OPEN`: workers inside the job.
const ACTIVE_MASK: u64 = OPEN - 1;
/// Bits of `Shared::state` above `OPEN`: the number of the job, so that a worker joins a job once.
const JOB_UNIT: u64 = OPEN << 1;

/// Threads that run jobs of independent tasks together with the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The process that has the workers; a process that is forked from it has none.
    process: u32,
    /// Held by the run in progress; a second run (nested, or from another thread) finds it taken
    /// and runs inline.
    busy: AtomicBool,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// The tasks not yet claimed, a thread's own each.
    lanes: Box<[Lane]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    n_sleeping: AtomicUsize,
    stop: AtomicBool,
    sleep_lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written only by the one caller that holds `Pool::busy`, while `state` is closed
// and no worker is active; it is read only by workers counted in `state`. All other fields are Sync
// by themselves.
unsafe impl Sync for Shared {}
// SAFETY: `Job` holds a pointer to a `Sync` closure, which any thread may call.
unsafe impl Send for Shared {}

/// Where the next task of a thread is counted: two lines of its own, as processors fetch them in
/// pairs.
#[repr(align(128))]
struct Lane(AtomicUsize);

/// The closure takes (worker index, task index).
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize, usize) + Sync),
    n_tasks: usize,
}

impl Job {
    /// The first task of a lane, or what is behind the last.
    fn start_of(&self, lane_idx: usize, n_lanes: usize) -> usize {
        lane_idx * (self.n_tasks / n_lanes) + lane_idx.min(self.n_tasks % n_lanes)
    }
}

impl Pool {
    /// A pool of `n_threads` threads, the caller of [`run`](Self::run) included: `n_threads - 1`
    /// are started here. Zero counts as one. Where the system refuses a thread, the pool is
    /// smaller.
    pub fn new(n_threads: usize) -> Self {
        let n_threads = n_threads.clamp(1, ACTIVE_MASK as usize);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            lanes: (0..n_threads).map(|_| Lane(AtomicUsize::new(0))).collect(),
            panic: Mutex::new(None),
            n_sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut workers = Vec::with_capacity(n_threads - 1);
        for worker_idx in 1..n_threads {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("thane-{worker_idx}"));
            match builder.spawn(move || work(&shared, worker_idx)) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        Self {
            shared,
            workers,
            process: std::process::id(),
            busy: AtomicBool::new(false),
        }
    }

    /// Threads that a job may use, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` once with each of `0..n_tasks`, on all threads, and returns when all calls have
    /// returned. Each thread takes its share, tasks that follow each other, and then what the
    /// others have not begun, so tasks need not be equal. Runs that divide the same things alike so
    /// meet them on the same thread, in whose caches they are; and of what lies side by side, which
    /// often shares a cache line, two threads write little. A run inside a run, or while another
    /// thread's run is in progress, is executed by its caller alone.
    ///
    /// # Panics
    /// With the panic of a task, after all running tasks have ended; tasks not yet begun are
    /// dropped.
    pub fn run<F: Fn(usize) + Sync>(&self, n_tasks: usize, task: F) {
        self.run_indexed(n_tasks, |_, task_idx| task(task_idx));
    }

    /// As [`run`](Self::run), and tells the task which thread it is on: `0..n_threads`, no two at
    /// once, so that each can have its own scratch.
    pub fn run_indexed<F: Fn(usize, usize) + Sync>(&self, n_tasks: usize, task: F) {
        if n_tasks <= 1 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            (0..n_tasks).for_each(|task_idx| task(0, task_idx));
            return;
        }
        let panicked = self.fork_join(n_tasks, &task);
        self.busy.store(false, Ordering::Release);
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    fn fork_join(
        &self,
        n_tasks: usize,
        body: &(dyn Fn(usize, usize) + Sync),
    ) -> Option<Box<dyn Any + Send>> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. This function returns after the job is closed and
        // every worker has left it, so no worker holds the pointer when the borrow ends; and it
        // cannot unwind in between, because `drain` catches panics.
        let body = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize, usize) + Sync + '_),
                *const (dyn Fn(usize, usize) + Sync + 'static),
            >(body)
        };
        let job = Job { body, n_tasks };
        // SAFETY: `busy` is held and the last job was left by all workers, so nobody reads `job`
        // now.
        unsafe { *shared.job.get() = Some(job) };
        for (lane_idx, lane) in shared.lanes.iter().enumerate() {
            lane.0.store(
                job.start_of(lane_idx, shared.lanes.len()),
                Ordering::Relaxed,
            );
        }
        let closed = shared.state.load(Ordering::Relaxed);
        shared
            .state
            .store((closed.wrapping_add(JOB_UNIT)) | OPEN, Ordering::SeqCst);
        if shared.n_sleeping.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&shared.sleep_lock);
            shared.wake.notify_all();
        }
        drain(shared, job, 0);
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut n_spins = 0u32;
        while shared.state.load(Ordering::Acquire) & ACTIVE_MASK != 0 {
            n_spins = n_spins.saturating_add(1);
            if n_spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
        }
        lock(&shared.panic).take()
    }

    /// Splits `out` into chunks of `chunk_len` (the last may be shorter) and calls `task` with each
    /// chunk's index and the chunk.
    ///
    /// # Panics
    /// If `chunk_len` is 0 and `out` is not empty.
    pub fn run_chunks<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &self,
        out: &mut [T],
        chunk_len: usize,
        task: F,
    ) {
        if out.is_empty() {
            return;
        }
        assert!(chunk_len > 0, "chunks of no elements");
        let len = out.len();
        let shared = SharedMut::new(out);
        self.run(len.div_ceil(chunk_len), |chunk_idx| {
            let start = chunk_idx * chunk_len;
            // SAFETY: each task index is run once and chunks of different indices do not overlap.
            let chunk = unsafe { shared.slice(start, chunk_len.min(len - start)) };
            task(chunk_idx, chunk);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Nobody would end, and a lock may be held by a thread that is not there.
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.sleep_lock);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of tasks, so it cannot have ended with one.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("n_threads", &self.n_threads())
            .finish()
    }
}

/// A mutable slice that several tasks write, each its own part.
#[derive(Debug)]
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice`, whose caller promises that parts do not overlap; so it is as
// if each part were sent to one thread.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: std::marker::PhantomData,
        }
    }

    /// All elements: no part is in use while this is borrowed for changes.
    pub(crate) fn all(&mut self) -> &mut [T] {
        // SAFETY: the parts borrow this, so that none of them is alive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Where an element would be.
    #[inline(always)]
    pub(crate) fn address(&self, at: usize) -> *const T {
        self.start.wrapping_add(at)
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// No other slice of this object that overlaps these elements is alive.
    ///
    /// # Panics
    /// If they are not all in the slice.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(
            start <= self.len && len <= self.len - start,
            "part outside of the slice"
        );
        // SAFETY: in bounds by the assertion; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// A worker's life: wait for a job not seen yet, join it, leave it.
fn work(shared: &Shared, worker_idx: usize) {
    let mut last_seen = 0u64;
    while let Some(state) = next_job(shared, last_seen) {
        if shared
            .state
            .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            continue;
        }
        last_seen = state / JOB_UNIT;
        // SAFETY: this worker is counted in `state`, so the caller does not change `job` before it
        // leaves.
        if let Some(job) = unsafe { *shared.job.get() } {
            drain(shared, job, worker_idx);
        }
        shared.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Waits for an open job other than `last_seen`; None when the pool ends.
fn next_job(shared: &Shared, last_seen: u64) -> Option<u64> {
    let is_new = |state: u64| state & OPEN != 0 && state / JOB_UNIT != last_seen;
    for _ in 0..SPINS_BEFORE_SLEEP {
        let state = shared.state.load(Ordering::Acquire);
        if is_new(state) {
            return Some(state);
        }
        if shared.stop.load(Ordering::Relaxed) {
            return None;
        }
        std::hint::spin_loop();
    }
    shared.n_sleeping.fetch_add(1, Ordering::SeqCst);
    let mut guard = lock(&shared.sleep_lock);
    let found = loop {
        let state = shared.state.load(Ordering::SeqCst);
        if is_new(state) {
            break Some(state);
        }
        if shared.stop.load(Ordering::SeqCst) {
            break None;
        }
        guard = shared
            .wake
            .wait(guard)
            .unwrap_or_else(PoisonError::into_inner);
    };
    drop(guard);
    shared.n_sleeping.fetch_sub(1, Ordering::SeqCst);
    found
}

/// Claims tasks until there are none. Never unwinds.
fn drain(shared: &Shared, job: Job, worker_idx: usize) {
    // SAFETY: the caller of `fork_join` keeps the closure alive until all workers have left the
    // job.
    let body = unsafe { &*job.body };
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let n_lanes = shared.lanes.len();
        for lane_idx in (worker_idx..n_lanes).chain(0..worker_idx) {
            let end = job.start_of(lane_idx + 1, n_lanes);
            loop {
                let task_idx = shared.lanes[lane_idx].0.fetch_add(1, Ordering::Relaxed);
                if task_idx >= end {
                    break;
                }
                body(worker_idx, task_idx);
            }
        }
    }));
    if let Err(payload) = ended {
        shared
            .lanes
            .iter()
            .for_each(|lane| lane.0.store(job.n_tasks, Ordering::Relaxed));
        lock(&shared.panic).get_or_insert(payload);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

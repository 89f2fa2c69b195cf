//! The thread pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use thane_kernels::Pool;

#[test]
fn every_task_runs_once() {
    for n_threads in [1, 2, 5] {
        let pool = Pool::new(n_threads);
        assert_eq!(pool.n_threads(), n_threads);
        for n_tasks in [0, 1, 2, 3, 100] {
            let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run_indexed(n_tasks, |worker_idx, task_idx| {
                assert!(worker_idx < n_threads);
                counts[task_idx].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == 1),
                "{n_threads} threads, {n_tasks} tasks"
            );
        }
    }
}

#[test]
fn many_short_runs_with_sleeps_between() {
    let pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    for round in 0..2_000 {
        pool.run(7, |task_idx| {
            total.fetch_add(task_idx, Ordering::Relaxed);
        });
        if round % 500 == 0 {
            // Long enough for the workers to fall asleep, so that waking is part of the test.
            let start = std::time::Instant::now();
            while start.elapsed().as_millis() < 3 {
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(total.into_inner(), 2_000 * 21);
}

#[test]
fn no_two_tasks_share_a_worker_index() {
    let pool = Pool::new(4);
    let inside: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
    pool.run_indexed(400, |worker_idx, _| {
        assert!(!inside[worker_idx].swap(true, Ordering::SeqCst));
        std::thread::yield_now();
        inside[worker_idx].store(false, Ordering::SeqCst);
    });
}

#[test]
fn nested_run_is_inline() {
    let pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    pool.run(4, |_| {
        pool.run_indexed(5, |worker_idx, _| {
            assert_eq!(worker_idx, 0);
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 20);
}

#[test]
fn panic_of_a_task_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::new(3);
    for bad_task in [0, 7, 49] {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(50, |task_idx| {
                assert!(task_idx != bad_task, "task {task_idx}")
            })
        }));
        let payload = result.unwrap_err();
        assert_eq!(
            payload.downcast_ref::<String>().unwrap(),
            &format!("task {bad_task}")
        );
        let total = AtomicUsize::new(0);
        pool.run(10, |_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 10);
    }
}

#[test]
fn chunks_cover_the_slice() {
    let pool = Pool::new(2);
    for len in [0usize, 1, 9, 10, 11] {
        let mut out = vec![0usize; len];
        pool.run_chunks(&mut out, 5, |chunk_idx, chunk| {
            for (i, value) in chunk.iter_mut().enumerate() {
                *value += chunk_idx * 5 + i + 1;
            }
        });
        assert_eq!(out, (1..=len).collect::<Vec<_>>());
    }
}

#[test]
fn concurrent_callers_both_finish() {
    let pool = Pool::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let total = AtomicUsize::new(0);
                    pool.run(9, |_| {
                        total.fetch_add(1, Ordering::Relaxed);
                    });
                    assert_eq!(total.into_inner(), 9);
                }
            });
        }
    });
}

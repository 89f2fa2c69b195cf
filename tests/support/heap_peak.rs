//! An allocator that counts what one thread has, as glibc does. Each program that includes this
//! file gets the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, PoisonError};

struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// Whether this thread's allocations count. It needs none itself, and is never dropped.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

/// What glibc takes for a piece: with its own length, in steps of 16.
fn piece(layout: Layout) -> isize {
    (layout.size() + 8).next_multiple_of(16).max(32) as isize
}

// SAFETY: hands everything on to the system's allocator, whose promises are those that are due.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            let held = HELD.fetch_add(piece(layout), Ordering::Relaxed) + piece(layout);
            PEAK.fetch_max(held, Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if COUNTS.get() {
            HELD.fetch_sub(piece(layout), Ordering::Relaxed);
        }
        // SAFETY: `at` came from `alloc`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` makes, most bytes that it has at once, and bytes that it leaves. Where two tests of
/// a program call this, one waits.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    HELD.store(0, Ordering::SeqCst);
    PEAK.store(0, Ordering::SeqCst);
    COUNTS.set(true);
    let made = work();
    COUNTS.set(false);
    let [peak, left] = [&PEAK, &HELD].map(|n| n.load(Ordering::SeqCst).max(0) as usize);
    (made, peak, left)
}

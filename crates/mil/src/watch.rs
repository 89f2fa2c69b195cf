//! Work that ends early because nobody waits for its result any more.

use std::cell::Cell;

/// Asks, once in some thousand steps of the work, whether it is to end.
pub(crate) struct Watch<'a> {
    interrupted: &'a dyn Fn() -> bool,
    n_steps: Cell<u32>,
    is_over: Cell<bool>,
}

impl<'a> Watch<'a> {
    /// Steps between two questions: tokens of a text, or ops. They take less than a millisecond.
    const STEPS: u32 = 4096;

    pub fn new(interrupted: &'a dyn Fn() -> bool) -> Self {
        Self {
            interrupted,
            n_steps: Cell::new(0),
            is_over: Cell::new(false),
        }
    }

    /// Counts a step; returns whether the work is to end.
    pub fn step(&self) -> bool {
        let n = self.n_steps.get().wrapping_add(1);
        self.n_steps.set(n);
        if n.is_multiple_of(Self::STEPS) {
            self.ask();
        }
        self.is_over()
    }

    /// Asks now, unless the answer was yes before.
    pub fn ask(&self) -> bool {
        let is_over = self.is_over() || (self.interrupted)();
        self.is_over.set(is_over);
        is_over
    }

    /// Whether the work was asked to end.
    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }
}

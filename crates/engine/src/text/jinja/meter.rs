//! The limits of work, memory and nesting of a template, and the error type.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thane_mil::budget::{Budget, OverBudget, Reservation};

/// Maximum number of work steps: one for each expression and statement, and one for each 16 bytes
/// that are copied or read. A long conversation takes about 100,000 steps with the templates in
/// use.
const MAX_WORK: u64 = 20_000_000;
/// Maximum bytes of strings and lists that are alive at the same time.
const MAX_HELD: usize = 256 << 20;
/// Bytes that are taken of the budget at once.
const STEP: usize = 16 << 10;
/// Maximum nesting of calls, blocks and expressions.
pub(super) const MAX_DEPTH: usize = 400;

/// Counts the work, memory and depth of one rendering. Every operation counts before it acts.
#[derive(Debug)]
pub(super) struct Meter {
    work: Cell<u64>,
    held: Cell<usize>,
    budget: Budget,
    /// As many bytes as were held at most.
    reserved: RefCell<Option<Reservation>>,
    depth: Cell<usize>,
    /// Whether nobody waits for the rendering any more.
    stop: Arc<AtomicBool>,
}

impl Meter {
    pub(super) fn new(budget: Budget, stop: Arc<AtomicBool>) -> Self {
        Self {
            work: Cell::new(0),
            held: Cell::new(0),
            budget,
            reserved: RefCell::new(None),
            depth: Cell::new(0),
            stop,
        }
    }

    /// Counts `steps` of work, and asks whether to go on.
    pub(super) fn spend(&self, steps: u64) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error {
                is_stopped: true,
                ..Error::new("interrupted")
            });
        }
        let work = self.work.get().saturating_add(steps);
        self.work.set(work);
        if work > MAX_WORK {
            return Err(Error::new(format!(
                "expected at most {MAX_WORK} steps of work, found more"
            )));
        }
        Ok(())
    }

    /// Counts the work of copying or reading `bytes` bytes.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<(), Error> {
        self.spend(bytes as u64 / 16 + 1)
    }

    /// Counts `bytes` of memory.
    pub(super) fn hold(&self, bytes: usize) -> Result<(), Error> {
        let held = self.held.get().saturating_add(bytes);
        if held > MAX_HELD {
            return Err(Error::new(format!(
                "expected at most {} MiB of memory, found more",
                MAX_HELD >> 20
            )));
        }
        self.reserve(held).map_err(|over| Error {
            over: Some(over.clone()),
            ..Error::new(over.to_string())
        })?;
        self.held.set(held);
        Ok(())
    }

    /// Takes what is held of the budget until the rendering ends.
    fn reserve(&self, held: usize) -> std::result::Result<(), OverBudget> {
        let what = || "the rendering of the chat template".to_owned();
        let mut reserved = self.reserved.borrow_mut();
        let n_bytes = reserved.as_ref().map_or(0, Reservation::bytes);
        if held <= n_bytes {
            return Ok(());
        }
        let more = held.next_multiple_of(STEP) - n_bytes;
        match &mut *reserved {
            Some(reserved) => reserved.grow(more, what)?,
            none => *none = Some(self.budget.reserve(more, what)?),
        }
        Ok(())
    }

    /// Counts memory that is taken already: what is held next fails if it is too much.
    pub(super) fn add(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_add(bytes));
    }

    /// Returns memory that [`Meter::hold`] counted.
    pub(super) fn release(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }

    /// Enters a level of nesting, which [`Meter::leave`] leaves. An error ends the rendering, so
    /// levels need not be left after an error.
    pub(super) fn enter(&self) -> Result<(), Error> {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > MAX_DEPTH {
            return Err(Error::new(format!(
                "expected at most {MAX_DEPTH} nested calls and blocks, found more"
            )));
        }
        Ok(())
    }

    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }
}

/// An error in a template or in its rendering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .line.map(|line| format!(" (line {line})")).unwrap_or_default())]
pub(in crate::text) struct Error {
    pub(in crate::text) message: String,
    /// Line in the template, counted from 1.
    pub(in crate::text) line: Option<u32>,
    /// Whether the template itself raised the error.
    pub(in crate::text) is_raised: bool,
    /// Whether the budget was exceeded.
    pub(in crate::text) over: Option<OverBudget>,
    /// Whether the caller stopped the rendering.
    pub(in crate::text) is_stopped: bool,
}

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            line: None,
            is_raised: false,
            over: None,
            is_stopped: false,
        }
    }

    /// Sets the line, unless a more precise one is known.
    #[must_use]
    pub(super) fn at(mut self, line: u32) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

/// The result of everything that a template does.
pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

//! What a template may cost, and the error that says that it cost more.

use std::cell::Cell;

/// Steps of work: one for each expression and statement, and one for each 16 bytes that are copied
/// or looked at. A long conversation in the templates that are in use takes some 100,000.
const MAX_WORK: u64 = 20_000_000;
/// Bytes of strings and lists that may be held at the same time.
const MAX_HELD: usize = 256 << 20;
/// Calls, blocks and expressions inside of each other.
pub(super) const MAX_DEPTH: usize = 400;

/// Counts work, memory and depth of one rendering.
#[derive(Debug)]
pub(super) struct Meter {
    work: Cell<u64>,
    held: Cell<usize>,
    depth: Cell<usize>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self {
            work: Cell::new(0),
            held: Cell::new(0),
            depth: Cell::new(0),
        }
    }

    /// Takes note of `steps` of work before it is done.
    pub(super) fn spend(&self, steps: u64) -> Result<(), Error> {
        let work = self.work.get().saturating_add(steps);
        self.work.set(work);
        if work > MAX_WORK {
            return Err(Error::new(format!("it takes more than {MAX_WORK} steps")));
        }
        Ok(())
    }

    /// Takes note of work with so many bytes.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<(), Error> {
        self.spend(bytes as u64 / 16 + 1)
    }

    /// Takes note of memory before it is taken.
    pub(super) fn hold(&self, bytes: usize) -> Result<(), Error> {
        let held = self.held.get().saturating_add(bytes);
        if held > MAX_HELD {
            return Err(Error::new(format!(
                "it needs more than {} MiB of memory",
                MAX_HELD >> 20
            )));
        }
        self.held.set(held);
        Ok(())
    }

    pub(super) fn release(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }

    /// Goes one level down; [`Meter::leave`] goes up again. An error ends the rendering, so its
    /// levels need not be left.
    pub(super) fn enter(&self) -> Result<(), Error> {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > MAX_DEPTH {
            return Err(Error::new(format!(
                "calls and blocks are more than {MAX_DEPTH} levels deep"
            )));
        }
        Ok(())
    }

    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }
}

/// What is wrong with a template or with what it does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .line.map(|line| format!(" (line {line})")).unwrap_or_default())]
pub(in crate::text) struct Error {
    pub(in crate::text) message: String,
    /// In the template, from 1 on.
    pub(in crate::text) line: Option<u32>,
    /// The template itself raised it.
    pub(in crate::text) is_raised: bool,
}

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            line: None,
            is_raised: false,
        }
    }

    /// At this line, unless a more precise one is known.
    #[must_use]
    pub(super) fn at(mut self, line: u32) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

/// The answer of everything that a template does.
pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

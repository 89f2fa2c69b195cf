//! Accounts for the memory of a row while it is read: bytes are reserved from the budget as they
//! arrive, and released with the next row.

use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;

use thane_mil::budget::{Budget, OverBudget, Reservation};

use super::row::MAX_ROW_BYTES;

/// Bytes that readers buffer; they may belong to the next rows.
pub const BUFFER_BYTES: usize = 1 << 16;

/// The account of the current row, shared by clones.
#[derive(Clone)]
pub struct Meter(Rc<RefCell<State>>);

struct State {
    held: Reservation,
    /// Bytes of memory per byte that is read.
    factor: usize,
    source: String,
    row_bytes: u64,
    /// Bytes of memory that stay reserved between rows.
    kept: usize,
    over: Option<OverBudget>,
}

impl Meter {
    /// An account that reserves `factor` bytes of memory per byte that is read.
    pub fn new(budget: &Budget, factor: usize, source: impl FnOnce() -> String) -> Self {
        let held = budget
            .reserve(0, String::new)
            .expect("nothing is always left");
        Self(Rc::new(RefCell::new(State {
            held,
            factor,
            source: source(),
            row_bytes: 0,
            kept: 0,
            over: None,
        })))
    }

    /// Releases the memory of the current row.
    pub fn next_row(&self) {
        let mut state = self.0.borrow_mut();
        let held = state.held.bytes().saturating_sub(state.kept);
        state.held.shrink(held);
        state.row_bytes = 0;
    }

    /// Keeps so many bytes of what the current row holds reserved until the last row.
    pub fn keep(&self, n_bytes: usize) {
        let mut state = self.0.borrow_mut();
        state.kept = n_bytes.min(state.held.bytes());
    }

    /// Reserves memory of the current row beside that of its bytes.
    pub fn hold(&self, n_bytes: usize) -> io::Result<()> {
        self.0.borrow_mut().hold(n_bytes)
    }

    /// A reader whose bytes are counted.
    pub fn reader<R: Read>(&self, from: R) -> Metered<R> {
        Metered {
            from,
            meter: self.clone(),
        }
    }

    /// The error of a failed read: [`OverBudget`] if memory was the reason.
    pub fn fault(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        self.0
            .borrow_mut()
            .over
            .take()
            .map_or_else(|| error.into(), Into::into)
    }

    fn took(&self, n: usize) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        state.row_bytes += n as u64;
        if state.row_bytes > MAX_ROW_BYTES + 2 * BUFFER_BYTES as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                too_long().to_string(),
            ));
        }
        state.hold(n.saturating_mul(state.factor))
    }
}

impl State {
    fn hold(&mut self, n_bytes: usize) -> io::Result<()> {
        let what = || format!("a row of {}", self.source);
        self.held.grow(n_bytes, what).map_err(|over| {
            self.over = Some(over.clone());
            io::Error::other(over)
        })
    }
}

/// The error of a row that is too long.
pub fn too_long() -> anyhow::Error {
    anyhow::anyhow!("it is longer than {MAX_ROW_BYTES} bytes")
}

/// See [`Meter::reader`].
pub struct Metered<R> {
    from: R,
    meter: Meter,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buf)?;
        self.meter.took(n)?;
        Ok(n)
    }
}

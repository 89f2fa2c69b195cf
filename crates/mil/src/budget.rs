//! A limit on the memory that a process allocates because of its input.
//!
//! Tensors, states, packed weights, rows and side files all count against one [`Budget`]. Mapped
//! files do not count: the system can reclaim their pages. Take a [`Reservation`] before
//! allocating; dropping the reservation gives its bytes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit in bytes for all reservations together, shared by all clones.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

/// A reservation exceeds what is left of the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {} of memory, but {} of the allowed {} are already in use",
    human(*needed_bytes),
    human(*used_bytes),
    human(*limit_bytes)
)]
pub struct OverBudget {
    /// What the memory is for, such as "tensor `x` of op `concat`".
    pub what: String,
    /// Bytes requested.
    pub needed_bytes: usize,
    /// Bytes that other reservations held at that time.
    pub used_bytes: usize,
    /// The limit of the budget, in bytes.
    pub limit_bytes: usize,
}

impl Budget {
    /// A budget of at most `limit_bytes` reserved at once.
    pub fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Account {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
        }))
    }

    /// A budget without a limit, for callers that trust their input.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The limit, in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.0.limit_bytes
    }

    /// Bytes reserved now.
    pub fn used_bytes(&self) -> usize {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`. `what` names their purpose and is called only for the error.
    pub fn reserve(
        &self,
        bytes: usize,
        what: impl FnOnce() -> String,
    ) -> Result<Reservation, OverBudget> {
        let mut reservation = Reservation {
            budget: self.clone(),
            bytes: 0,
        };
        reservation.grow(bytes, what)?;
        Ok(reservation)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

/// Bytes held from a [`Budget`] until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: usize,
}

impl Reservation {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `more` additional bytes. After an error the earlier bytes are still held.
    pub fn grow(&mut self, more: usize, what: impl FnOnce() -> String) -> Result<(), OverBudget> {
        let limit_bytes = self.budget.0.limit_bytes;
        let add = |used: usize| used.checked_add(more).filter(|sum| *sum <= limit_bytes);
        match self
            .budget
            .0
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        {
            Ok(_) => {
                self.bytes += more;
                Ok(())
            }
            Err(used_bytes) => Err(OverBudget {
                what: what(),
                needed_bytes: more,
                used_bytes,
                limit_bytes,
            }),
        }
    }

    /// Gives back `less` bytes, or all if fewer are held.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.budget.0.used_bytes.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// Formats bytes in decimal units, such as `1.5 GB`.
fn human(bytes: usize) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| bytes as f64 >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / size),
        None => format!("{bytes} B"),
    }
}

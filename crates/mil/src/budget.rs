//! How much memory a process may allocate for what it is given: one number that tensors, states,
//! packed weights, rows and side files are counted against.
//!
//! What is counted is what Thane allocates itself because of an input's size. Mapped files are not:
//! the system takes their pages back when it needs them. A [`Reservation`] is taken before the
//! memory is, and gives its bytes back when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that may be reserved, shared by all clones.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

/// More was asked for than is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {} of memory, and {} of the {} that may be used are taken",
    human(*needed_bytes),
    human(*used_bytes),
    human(*limit_bytes)
)]
pub struct OverBudget {
    /// What the memory was for, such as "tensor `x` of op `concat`".
    pub what: String,
    /// Bytes asked for.
    pub needed_bytes: usize,
    /// Bytes that others held then.
    pub used_bytes: usize,
    /// Bytes that may be held together.
    pub limit_bytes: usize,
}

impl Budget {
    /// At most `limit_bytes` at once.
    pub fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Account {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
        }))
    }

    /// Without a limit, for callers that trust their input.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Bytes that may be reserved at once.
    pub fn limit_bytes(&self) -> usize {
        self.0.limit_bytes
    }

    /// Bytes that are reserved now.
    pub fn used_bytes(&self) -> usize {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`; `what` names what they are for and is only made for the error.
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

/// Bytes taken from a [`Budget`] until this is dropped.
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

    /// Takes `more` bytes besides; on an error what was held before stays held.
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

    /// Gives `less` bytes back.
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

/// `1.5 GB`, in decimal units.
fn human(bytes: usize) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| bytes as f64 >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / size),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_together_is_bounded_and_comes_back() {
        let budget = Budget::new(1000);
        let mut first = budget.reserve(600, || "a".into()).unwrap();
        let error = budget.reserve(401, || "rows of `x`".into()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rows of `x` needs 401 B of memory, and 600 B of the 1.0 kB that may be used are taken"
        );
        first.shrink(100);
        let second = budget.clone().reserve(500, || "b".into()).unwrap();
        assert!(first.grow(usize::MAX, || "c".into()).is_err());
        assert_eq!(
            (first.bytes(), second.bytes(), budget.used_bytes()),
            (500, 500, 1000)
        );
        drop((first, second));
        assert_eq!(budget.used_bytes(), 0);
    }
}

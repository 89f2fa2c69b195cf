//! A limit on the memory that a process allocates because of its input.
//!
//! Tensors, states, packed weights, rows and side files all count against one [`Budget`]. Mapped
//! files do not count: the system can reclaim their pages. Take a [`Reservation`] before
//! allocating; dropping the reservation gives its bytes back.
//!
//! What is kept only because there was room for it, such as a cache, is [`Reclaim`]. Where a
//! reservation does not fit, the budget takes memory back from what was registered with
//! [`Budget::keep`], whoever holds it and whoever asks, unless the asker [spares
//! data](Budget::sparing_data).

use std::cmp::Reverse;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

/// A limit in bytes for all reservations together, shared by all clones.
#[derive(Clone, Debug)]
pub struct Budget {
    account: Arc<Account>,
    /// The work that reservations of these clones are for.
    work: Option<Arc<Work>>,
}

/// Work that may not fit in the end.
#[derive(Debug)]
struct Work {
    spares_data: AtomicBool,
    used_bytes: AtomicUsize,
}

/// Data is spared until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Sparing(Arc<Work>);

impl Drop for Sparing {
    fn drop(&mut self) {
        self.0.spares_data.store(false, Ordering::Relaxed);
    }
}

struct Account {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    kept: Mutex<Vec<Kept>>,
}

/// Memory that may be taken back, for as long as somebody has it.
type Kept = (Loss, Weak<Mutex<dyn Reclaim>>);

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("limit_bytes", &self.limit_bytes)
            .field("used_bytes", &self.used_bytes)
            .finish_non_exhaustive()
    }
}

/// Holds memory that others may take.
///
/// The budget locks it for each call, and waits a fraction of a second for that lock at most: so
/// whoever holds the lock can reserve too, though nothing comes back from there meanwhile.
pub trait Reclaim: Send {
    /// Bytes of reservations that [`Self::reclaim`] would give back in all.
    fn held_bytes(&self) -> usize;

    /// Drops reservations of at least so many bytes, those that are worth least first, or all.
    /// Returns whether there were any.
    fn reclaim(&mut self, n_bytes: usize) -> bool;
}

/// What is lost where memory is taken back; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// The time to allocate or copy it again.
    Copy,
    /// The time to compute it again.
    Time,
    /// Data that nothing makes again.
    Data,
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
    /// Bytes among those in use that the same [work](Budget::sparing_data) holds and cannot do
    /// without.
    pub own_bytes: usize,
}

impl OverBudget {
    /// Whether the work would not fit either if others had nothing.
    pub fn never_fits(&self) -> bool {
        self.needed_bytes.saturating_add(self.own_bytes) > self.limit_bytes
    }
}

impl Budget {
    /// A budget of at most `limit_bytes` reserved at once.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            account: Arc::new(Account {
                limit_bytes,
                used_bytes: AtomicUsize::new(0),
                kept: Mutex::default(),
            }),
            work: None,
        }
    }

    /// A budget without a limit, for callers that trust their input.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The same limit for work that may not fit in the end, such as loading a model: until the
    /// second value is dropped, no reservation of the first one, or of its clones, takes
    /// [`Loss::Data`] back. What was reserved stays reserved. Errors say whether the work
    /// [never fits](OverBudget::never_fits).
    pub fn sparing_data(&self) -> (Self, Sparing) {
        let work = Arc::new(Work {
            spares_data: AtomicBool::new(true),
            used_bytes: AtomicUsize::new(0),
        });
        let sparing = Self {
            account: Arc::clone(&self.account),
            work: Some(Arc::clone(&work)),
        };
        (sparing, Sparing(work))
    }

    /// The limit, in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.account.limit_bytes
    }

    /// Bytes reserved now.
    pub fn used_bytes(&self) -> usize {
        self.account.used_bytes.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`. Where they do not fit, memory that is only [kept](Self::keep) makes room.
    /// `what` names their purpose and is called only for the error.
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

    /// Reserves `bytes` for what can do without them: nothing makes room for them. `None` if they
    /// do not fit.
    pub fn reserve_spare(&self, bytes: usize) -> Option<Reservation> {
        self.take(bytes).ok()?;
        Some(Reservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// Whether `bytes` fit now, or would if all that may be taken back were. Takes nothing.
    pub fn check(&self, bytes: usize, what: impl FnOnce() -> String) -> Result<(), OverBudget> {
        let (limit_bytes, used_bytes) = (self.limit_bytes(), self.used_bytes());
        // What is locked is in use.
        let kept = self.may_take().into_iter();
        let held = kept.filter_map(|(_, kept)| Some(try_locked(&kept)?.held_bytes()));
        let held_bytes = held.fold(0, usize::saturating_add);
        let needed = used_bytes.saturating_sub(held_bytes).saturating_add(bytes);
        if needed <= limit_bytes {
            return Ok(());
        }
        Err(OverBudget {
            what: what(),
            needed_bytes: bytes,
            used_bytes,
            limit_bytes,
            own_bytes: self.own_bytes(),
        })
    }

    /// Lets reservations of others take memory back from `kept`, as long as it lives.
    pub fn keep<T: Reclaim + 'static>(&self, loss: Loss, kept: &Arc<Mutex<T>>) {
        if self.account.limit_bytes == usize::MAX {
            return;
        }
        let kept: Arc<Mutex<dyn Reclaim>> = Arc::clone(kept) as _;
        let mut all = locked(&self.account.kept);
        all.retain(|(_, known)| known.strong_count() > 0);
        all.push((loss, Arc::downgrade(&kept)));
    }

    /// Counts `bytes`, or returns the number of those in use if these do not fit beside them.
    fn take(&self, bytes: usize) -> Result<(), usize> {
        let limit_bytes = self.account.limit_bytes;
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit_bytes);
        let (order, used) = (Ordering::Relaxed, &self.account.used_bytes);
        used.fetch_update(order, order, add)?;
        if let Some(work) = &self.work {
            work.used_bytes.fetch_add(bytes, order);
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let order = Ordering::Relaxed;
        self.account.used_bytes.fetch_sub(bytes, order);
        if let Some(work) = &self.work {
            work.used_bytes.fetch_sub(bytes, order);
        }
    }

    /// What the work of these clones holds, without as much as may be taken back of anybody. What
    /// is locked counts as if it were all of it.
    fn own_bytes(&self) -> usize {
        let Some(work) = &self.work else { return 0 };
        let held = |kept: &Mutex<dyn Reclaim>| Some(try_locked(kept)?.held_bytes());
        let kept = self.may_take().into_iter();
        let kept = kept.map(|(_, kept)| held(&kept).unwrap_or(usize::MAX));
        let kept = kept.fold(0, usize::saturating_add);
        work.used_bytes.load(Ordering::Relaxed).saturating_sub(kept)
    }

    /// What is kept and may be taken back for this budget.
    fn may_take(&self) -> Vec<(Loss, Arc<Mutex<dyn Reclaim>>)> {
        let work = self.work.as_ref();
        let spares_data = work.is_some_and(|work| work.spares_data.load(Ordering::Relaxed));
        let kept = locked(&self.account.kept);
        let kept = kept
            .iter()
            .filter(|(loss, _)| !(spares_data && *loss == Loss::Data));
        kept.filter_map(|(loss, kept)| Some((*loss, kept.upgrade()?)))
            .collect()
    }

    /// Takes back `bytes`, or a part of them. Nothing is lost where all that is kept has fewer.
    /// Returns whether anything came back.
    fn reclaim(&self, bytes: usize) -> bool {
        /// Pages are locked while those of a long prompt are copied, for some hundredths of a
        /// second.
        const TRIES: usize = 200;
        const WAIT: Duration = Duration::from_millis(1);
        for _ in 0..TRIES {
            if let Some(has_room) = self.try_reclaim(bytes) {
                return has_room;
            }
            std::thread::sleep(WAIT);
        }
        false
    }

    /// [`Self::reclaim`] without waiting; `None` if nothing came back and something is locked.
    fn try_reclaim(&self, bytes: usize) -> Option<bool> {
        let mut is_locked = false;
        let mut kept: Vec<_> = self
            .may_take()
            .into_iter()
            .filter_map(|(loss, kept)| {
                let held_bytes = try_locked(&kept).map(|kept| kept.held_bytes());
                is_locked |= held_bytes.is_none();
                Some((loss, held_bytes?, kept))
            })
            .collect();
        let sum = kept.iter().map(|(_, held_bytes, _)| held_bytes);
        if sum.fold(0, |sum: usize, n| sum.saturating_add(*n)) >= bytes {
            // Of equals, whoever has most makes room.
            kept.sort_by_key(|(loss, held_bytes, _)| (*loss, Reverse(*held_bytes)));
            let has_room = kept.iter().any(|(.., kept)| {
                let kept = try_locked(kept);
                is_locked |= kept.is_none();
                kept.is_some_and(|mut kept| kept.reclaim(bytes))
            });
            if has_room {
                return Some(true);
            }
        }
        (!is_locked).then_some(false)
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None` while somebody else has the lock.
fn try_locked<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
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

    /// Reserves `more` additional bytes, as [`Budget::reserve`] does. After an error the earlier
    /// bytes are still held.
    pub fn grow(&mut self, more: usize, what: impl FnOnce() -> String) -> Result<(), OverBudget> {
        let limit_bytes = self.budget.limit_bytes();
        while let Err(used_bytes) = self.budget.take(more) {
            // Others may use more by now, or less.
            let missing = used_bytes.saturating_add(more).saturating_sub(limit_bytes);
            if more > limit_bytes || !self.budget.reclaim(missing) {
                return Err(OverBudget {
                    what: what(),
                    needed_bytes: more,
                    used_bytes,
                    limit_bytes,
                    own_bytes: self.budget.own_bytes(),
                });
            }
        }
        self.bytes += more;
        Ok(())
    }

    /// Gives back `less` bytes, or all if fewer are held.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.budget.give_back(less);
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

//! A model that several threads of a binding use in turn.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::Duration;

use crate::error::RuntimeError;

/// How often a thread that waits asks whether it still shall.
const PATIENCE: Duration = Duration::from_millis(5);

/// A value that one thread uses at a time.
#[derive(Debug, Default)]
pub struct Turns<T> {
    value: Mutex<T>,
    user: Mutex<Option<ThreadId>>,
}

/// The value, for as long as the thread uses it.
pub struct Turn<'a, T> {
    value: MutexGuard<'a, T>,
    turns: &'a Turns<T>,
}

impl<T> Turns<T> {
    /// A value that nobody uses.
    pub fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            user: Mutex::new(None),
        }
    }

    /// Waits for the value until `is_over` says not to; `None` then.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::AskedWithin`] if this thread has the value.
    pub fn take(&self, is_over: &dyn Fn() -> bool) -> Result<Option<Turn<'_, T>>, RuntimeError> {
        let own = std::thread::current().id();
        if *self.user.lock().unwrap_or_else(PoisonError::into_inner) == Some(own) {
            return Err(RuntimeError::AskedWithin);
        }
        let value = loop {
            match self.value.try_lock() {
                Ok(value) => break value,
                Err(TryLockError::Poisoned(error)) => break error.into_inner(),
                Err(TryLockError::WouldBlock) if is_over() => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PATIENCE),
            }
        };
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
        Ok(Some(Turn { value, turns: self }))
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let user = self.turns.user.lock();
        *user.unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_the_value_does_not_wait_for_itself() {
        let turns = Turns::new(1);
        let mut turn = turns.take(&|| false).unwrap().unwrap();
        *turn += 1;
        assert!(matches!(
            turns.take(&|| false),
            Err(RuntimeError::AskedWithin)
        ));
        // Another one waits, and gives up when it is told to.
        let gave_up = std::thread::scope(|scope| {
            let other = scope.spawn(|| turns.take(&|| true).unwrap().is_none());
            other.join().unwrap()
        });
        assert!(gave_up);
        drop(turn);
        assert_eq!(*turns.take(&|| true).unwrap().unwrap(), 2);
    }
}

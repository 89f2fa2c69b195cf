//! Values side by side whose memory is counted.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::meter::{Meter, Result};

/// A vector that counts the memory of its items, with the room that it has for more, until it is
/// dropped.
pub(super) struct Many<T> {
    items: Vec<T>,
    /// How many items are counted.
    room: usize,
    meter: Rc<Meter>,
}

impl<T> Many<T> {
    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        Self {
            items: Vec::new(),
            room: 0,
            meter: Rc::clone(meter),
        }
    }

    /// All items, or the first error among them.
    pub(super) fn of(
        items: impl IntoIterator<Item = Result<T>>,
        meter: &Rc<Meter>,
    ) -> Result<Self> {
        let mut out = Self::new(meter);
        items.into_iter().try_for_each(|item| out.push(item?))?;
        Ok(out)
    }

    pub(super) fn push(&mut self, item: T) -> Result<()> {
        if self.items.len() == self.room {
            let more = self.room.max(4);
            self.meter.spend(1)?;
            self.meter.hold(more * size_of::<T>())?;
            self.room += more;
            self.items.reserve_exact(more);
        }
        self.items.push(item);
        Ok(())
    }

    pub(super) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }
}

impl<T> Deref for Many<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for Many<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> Drop for Many<T> {
    fn drop(&mut self) {
        self.meter.release(self.room * size_of::<T>());
    }
}

//! The elements of a tensor, and where their memory comes from.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;
use thane_mil::budget::Reservation;

/// Elements that count against a budget as long as they are there. They begin on a whole cache
/// line: a vector that lies in two takes two reads, and products of a prompt a thirtieth longer.
#[derive(Debug)]
pub struct Elements<T> {
    memory: Memory<T>,
    start: usize,
    len: usize,
    /// What they count as.
    pub held: Option<Reservation>,
}

/// Elements of fp32.
pub type Floats = Elements<f32>;

#[derive(Debug)]
enum Memory<T> {
    Heap(Vec<T>),
    /// Pages that the system provides as they are written. The allocator may hand out what was
    /// freed before, and clears, and so uses, all of it.
    Pages(MmapMut),
}

/// Bytes from which on zeros are pages of their own.
const LEAST_PAGES: usize = 1 << 18;

impl<T: Pod> Elements<T> {
    /// Zeros, which count as `held` says, in memory that the system provides as it is written if
    /// there is much of it.
    pub fn paged(len: usize, held: Option<Reservation>) -> Self {
        let n_bytes = len.saturating_mul(size_of::<T>());
        if n_bytes < LEAST_PAGES {
            return Self::zeros(len, held);
        }
        let Ok(pages) = MmapMut::map_anon(n_bytes) else {
            return Self::zeros(len, held);
        };
        // Large pages would be used whole for the first row of each head.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::NoHugePage);
        Self {
            memory: Memory::Pages(pages),
            start: 0,
            len,
            held,
        }
    }

    /// Zeros, which count as `held` says.
    pub fn zeros(len: usize, held: Option<Reservation>) -> Self {
        const LINE: usize = 64;
        let values = vec![T::zeroed(); len.saturating_add(LINE / size_of::<T>() - 1)];
        let start = values.as_ptr().align_offset(LINE);
        // The allocator may not say.
        let start = if start > values.len() - len { 0 } else { start };
        Self {
            memory: Memory::Heap(values),
            start,
            len,
            held,
        }
    }

    /// Set all to zero, as [`Self::paged`] gives them.
    pub fn renew(&mut self) {
        *self = Self::paged(self.len, self.held.take());
    }
}

impl<T> Default for Elements<T> {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl<T: Pod> Deref for Elements<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Heap(values) => &values[self.start..][..self.len],
            Memory::Pages(pages) => bytemuck::cast_slice(pages),
        }
    }
}

impl<T: Pod> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Heap(values) => &mut values[self.start..][..self.len],
            Memory::Pages(pages) => bytemuck::cast_slice_mut(pages),
        }
    }
}

/// A few that are not worth counting.
impl<T> From<Vec<T>> for Elements<T> {
    fn from(values: Vec<T>) -> Self {
        Self {
            start: 0,
            len: values.len(),
            memory: Memory::Heap(values),
            held: None,
        }
    }
}

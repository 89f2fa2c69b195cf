//! Caches that the host holds, and the rows of a call that are not stored yet.

use std::ops::Range;

use thane_calls::Kept;
use thane_mil::backend::{Instance, RunError, View};
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

use super::Cache;

/// Keys or values of one layer, [heads, rows, row]. The input of the program that takes them holds
/// them from call to call, so that a call copies no more than the rows of new tokens.
pub(super) struct HostCache {
    name: String,
    n_heads: usize,
    row: usize,
    dtype: DType,
    kept: Kept,
    /// Rows of the input of the longest context.
    most_rows: usize,
    /// Rows of the input; 0 before the first call.
    n_rows: usize,
}

impl HostCache {
    /// An empty cache.
    pub fn new(cache: &Cache) -> Self {
        Self {
            name: cache.name.clone(),
            n_heads: cache.n_heads,
            row: cache.row,
            dtype: cache.dtype,
            kept: cache.kept,
            most_rows: cache.n_rows,
            n_rows: 0,
        }
    }

    /// The elements for the function that ran last.
    pub fn view<'a>(&self, program: &'a dyn Instance) -> Result<View<'a>, RunError> {
        program.given(&self.name)
    }

    /// The elements, for writing.
    pub fn bytes_mut<'a>(&self, program: &'a mut dyn Instance) -> Result<&'a mut [u8], RunError> {
        program.input(&self.name, &[1, self.n_heads, self.n_rows, self.row])
    }

    /// Makes the input have so many rows of each head, when tokens were stored up to `n_written`.
    pub fn resize(
        &mut self,
        n_rows: usize,
        n_written: usize,
        program: &mut dyn Instance,
    ) -> Result<(), RunError> {
        if n_rows == self.n_rows {
            return Ok(());
        }
        let before = match self.n_rows {
            0 => Vec::new(),
            _ => self.view(program)?.bytes.to_vec(),
        };
        let row = self.row_bytes();
        let n = self.n_used(n_written).min(n_rows) * row;
        let from = before.chunks((self.n_rows * row).max(1));
        self.n_rows = n_rows;
        let to = self.bytes_mut(program)?.chunks_mut((n_rows * row).max(1));
        for (from, to) in from.zip(to) {
            to[..n].copy_from_slice(&from[..n]);
        }
        Ok(())
    }

    /// Clears what was stored of tokens up to `n_written`.
    pub fn clear(&self, n_written: usize, program: &mut dyn Instance) -> Result<(), RunError> {
        let (row, n_used) = (self.row_bytes(), self.n_used(n_written));
        if n_used == 0 {
            return Ok(());
        }
        let heads = self.bytes_mut(program)?.chunks_mut(self.n_rows * row);
        heads.for_each(|head| head[..n_used * row].fill(0));
        Ok(())
    }

    /// Copies the rows of the tokens at these positions, or all rows, to an input of as many rows
    /// or fewer.
    pub fn copy_to(
        &self,
        input: &mut [u8],
        positions: Option<Range<usize>>,
        program: &dyn Instance,
    ) -> Result<(), RunError> {
        if self.n_rows == 0 {
            input.fill(0);
            return Ok(());
        }
        let row = self.row_bytes();
        let from = self.view(program)?.bytes.chunks((self.n_rows * row).max(1));
        let to = input.chunks_mut((input.len() / self.n_heads.max(1)).max(1));
        for (from, to) in from.zip(to) {
            let n = from.len().min(to.len());
            let Some(positions) = positions.clone().filter(|_| self.kept.pool.is_none()) else {
                to[..n].copy_from_slice(&from[..n]);
                to[n..].fill(0);
                continue;
            };
            for begin in positions.map(|at| self.kept.row(at) * row) {
                if begin + row <= n {
                    to[begin..][..row].copy_from_slice(&from[begin..][..row]);
                }
            }
        }
        Ok(())
    }

    /// Stores the first `n` of the rows of each head, those of the tokens from `position`.
    fn store(
        &mut self,
        rows: &[u8],
        (position, n): (usize, usize),
        program: &mut dyn Instance,
    ) -> Result<(), RunError> {
        // A call of several sequences has a longer context than the last call of this one.
        let last = (position..position + n).map(|at| self.kept.row(at)).max();
        if last.is_some_and(|last| last >= self.n_rows) {
            self.resize(self.most_rows, position, program)?;
        }
        let (row, kept, dtype) = (self.row_bytes(), self.kept, self.dtype);
        let from = rows.chunks((rows.len() / self.n_heads.max(1)).max(1));
        let to = self.bytes_mut(program)?;
        let to = to.chunks_mut((self.n_rows * row).max(1));
        for (from, to) in from.zip(to) {
            for (i, from) in from.chunks(row.max(1)).take(n).enumerate() {
                let begin = kept.row(position + i) * row;
                let Some(cells) = to.get_mut(begin..begin + row) else {
                    continue;
                };
                cells.copy_from_slice(from);
                store_mean(to, kept, position + i, (row, dtype));
            }
        }
        Ok(())
    }

    fn row_bytes(&self) -> usize {
        self.row * self.dtype.bits() / 8
    }

    /// The first rows, outside of which nothing is stored of tokens up to `n_written`.
    fn n_used(&self, n_written: usize) -> usize {
        match self.kept.pool {
            None => n_written.min(self.n_rows),
            Some(_) => self.n_rows,
        }
    }
}

/// Stores the mean of the block of tokens that ends with `position`, if one does.
fn store_mean(rows: &mut [u8], kept: Kept, position: usize, (row, dtype): (usize, DType)) {
    let (Some(n), Some(after)) = (kept.pool, position.checked_sub(kept.sinks)) else {
        return;
    };
    let n = n.max(1);
    if !(after + 1).is_multiple_of(n) {
        return;
    }
    let size = dtype.bits() / 8;
    let mut sums = vec![0.0f32; row / size.max(1)];
    for at in position + 1 - n..=position {
        let begin = kept.row(at) * row;
        let cells = rows.get(begin..begin + row).unwrap_or_default();
        for (sum, cell) in sums.iter_mut().zip(cells.chunks(size.max(1))) {
            *sum += match *cell {
                [a, b] => f16_to_f32(u16::from_ne_bytes([a, b])),
                [a, b, c, d] => f32::from_ne_bytes([a, b, c, d]),
                _ => 0.0,
            };
        }
    }
    let begin = (kept.sinks + kept.ring + after / n) * row;
    let cells = rows.get_mut(begin..begin + row).unwrap_or_default();
    for (cell, sum) in cells.chunks_mut(size.max(1)).zip(sums) {
        let mean = sum / n as f32;
        match size {
            2 => cell.copy_from_slice(&f64_to_f16(f64::from(mean)).to_ne_bytes()),
            _ => cell.copy_from_slice(&mean.to_ne_bytes()),
        }
    }
}

/// The rows that a call gave. They are stored when the next call says how many it builds on.
#[derive(Default)]
pub(super) struct Pending {
    /// Position of the first row.
    position: usize,
    /// Number of rows that mean something.
    n: usize,
    /// Rows of caches, [heads, tokens of the call, row].
    rows: Vec<(usize, Vec<u8>)>,
}

impl Pending {
    /// The rows of a call of `n` tokens at `position`.
    pub fn begin(&mut self, position: usize, n: usize) {
        (self.position, self.n) = (position, n);
        self.rows.clear();
    }

    /// Adds the rows of a cache.
    pub fn push(&mut self, cache: usize, rows: Vec<u8>) {
        self.rows.push((cache, rows));
    }

    /// Stores the rows before position `end`, and returns the positions of these.
    pub fn accept(
        &mut self,
        end: usize,
        caches: &mut [HostCache],
        program: &mut dyn Instance,
    ) -> Result<Range<usize>, RunError> {
        let n = end.saturating_sub(self.position).min(self.n);
        for (cache, rows) in self.rows.drain(..) {
            if let Some(cache) = caches.get_mut(cache) {
                cache.store(&rows, (self.position, n), program)?;
            }
        }
        Ok(self.position..self.position + n)
    }
}

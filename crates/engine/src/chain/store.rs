//! Caches that the host holds, and the rows of a call that are not stored yet.

use thane_mil::backend::View;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

use super::{Cache, Kept};

/// Keys or values of one layer, [heads, context, row].
pub(super) struct HostCache {
    bytes: Vec<u8>,
    n_heads: usize,
    row_bytes: usize,
    shape: [usize; 4],
    dtype: DType,
    kept: Kept,
}

impl HostCache {
    /// An empty cache.
    pub fn new(cache: &Cache) -> Self {
        let row_bytes = cache.row * cache.dtype.bits() / 8;
        Self {
            bytes: vec![0; cache.n_heads * cache.n_rows * row_bytes],
            n_heads: cache.n_heads,
            row_bytes,
            shape: [1, cache.n_heads, cache.n_rows, cache.row],
            dtype: cache.dtype,
            kept: cache.kept,
        }
    }

    /// The elements.
    pub fn view(&self) -> View<'_> {
        View {
            dtype: self.dtype,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }

    /// The elements, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Copies the first rows of each head to an input of fewer tokens.
    pub fn copy_to(&self, input: &mut [u8]) {
        let from = self.bytes.chunks(self.per_head().max(1));
        let to = input.chunks_mut((input.len() / self.n_heads.max(1)).max(1));
        for (from, to) in from.zip(to) {
            let n = from.len().min(to.len());
            to[..n].copy_from_slice(&from[..n]);
        }
    }

    /// Stores the first `n` of the rows of each head, those of the tokens from `position`.
    fn store(&mut self, rows: &[u8], position: usize, n: usize) {
        let (per_head, row, kept) = (self.per_head(), self.row_bytes, self.kept);
        let dtype = self.dtype;
        let from = rows.chunks((rows.len() / self.n_heads.max(1)).max(1));
        let to = self.bytes.chunks_mut(per_head.max(1));
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
    }

    fn per_head(&self) -> usize {
        self.bytes.len() / self.n_heads.max(1)
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

    /// Stores the rows before position `end`, and returns the position behind the last of them.
    pub fn accept(&mut self, end: usize, caches: &mut [HostCache]) -> usize {
        let n = end.saturating_sub(self.position).min(self.n);
        for (cache, rows) in self.rows.drain(..) {
            if let Some(cache) = caches.get_mut(cache) {
                cache.store(&rows, self.position, n);
            }
        }
        self.position + n
    }
}

//! Which tiles of a mask need no reading: looked up once for all key/value heads, or for all
//! layers.

use super::{MASK_FLOOR, MASKED, TILE_KEYS};
use crate::Context;
use crate::simd::{Kernel, LANES, Simd};
use crate::softmax;

/// What a mask says of 16 rows and a tile of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    /// Every row sees every key.
    Clear,
    /// No row sees any, and each sees some other.
    Hidden,
    /// To be read, of so many keys: no row needs more, of whole vectors.
    Mixed(usize),
}

/// What a mask says of 16 rows at a time and tiles of keys, for [`Attention`](super::Attention).
#[derive(Debug, Clone, Copy)]
pub struct MaskTiles<'a> {
    /// [rows / 16, tile]: what a mask adds to every score of the tile, 0 or -inf; where scores
    /// differ, the number of leading keys that some row may see.
    common: &'a [f32],
    n_tiles: usize,
}

/// f32s of scratch of [`MaskTiles`].
pub fn mask_tiles_len(n_rows: usize, n_keys: usize) -> usize {
    n_rows.div_ceil(LANES) * n_keys.div_ceil(TILE_KEYS)
}

impl<'a> MaskTiles<'a> {
    /// Of a mask [n_rows, n_keys].
    ///
    /// # Panics
    /// If the mask is not whole rows, or `scratch` is not [`mask_tiles_len`].
    pub fn new(ctx: &Context, mask: Option<&[f32]>, n_keys: usize, scratch: &'a mut [f32]) -> Self {
        /// Elements that take less time than handing them to another thread.
        const MAX_SERIAL_LEN: usize = 1 << 14;
        let n_tiles = n_keys.div_ceil(TILE_KEYS);
        if let Some(mask) = mask {
            let n_rows = mask.len() / n_keys.max(1);
            assert_eq!(mask.len(), n_rows * n_keys, "rows of {n_keys} keys");
            assert_eq!(
                scratch.len(),
                mask_tiles_len(n_rows, n_keys),
                "tiles of {n_rows} rows"
            );
        }
        let Some(mask) = mask else {
            scratch.fill(0.0);
            return Self {
                common: scratch,
                n_tiles,
            };
        };
        let rows = |idx: usize, common: &mut [f32]| {
            let rows = &mask[idx * LANES * n_keys..];
            ctx.isa().run(RowsTask {
                rows: &rows[..rows.len().min(LANES * n_keys)],
                n_keys,
                common,
            });
        };
        if mask.len() <= MAX_SERIAL_LEN {
            scratch
                .chunks_mut(n_tiles)
                .enumerate()
                .for_each(|(idx, common)| rows(idx, common));
        } else {
            ctx.pool().run_chunks(scratch, n_tiles, rows);
        }
        Self {
            common: scratch,
            n_tiles,
        }
    }

    /// What [`Self::new`] left in its scratch.
    pub fn looked_up(common: &'a [f32], n_keys: usize) -> Self {
        Self {
            common,
            n_tiles: n_keys.div_ceil(TILE_KEYS),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.common.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, row_idx: usize, tile_idx: usize) -> Tile {
        match self.common[row_idx / LANES * self.n_tiles + tile_idx] {
            0.0 => Tile::Clear,
            f32::NEG_INFINITY => Tile::Hidden,
            n_keys => Tile::Mixed(n_keys as usize),
        }
    }
}

/// Up to 16 rows.
struct RowsTask<'a> {
    rows: &'a [f32],
    n_keys: usize,
    /// By tile.
    common: &'a mut [f32],
}

impl Kernel for RowsTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            rows,
            n_keys,
            common,
        } = self;
        for (tile_idx, common) in common.iter_mut().enumerate() {
            let keys = tile_idx * TILE_KEYS..n_keys.min((tile_idx + 1) * TILE_KEYS);
            *common = common_of(
                simd,
                rows.chunks_exact(n_keys).map(|row| &row[keys.clone()]),
            );
        }
        // Where a row sees no key, those that are masked count.
        let is_hidden = |common: &f32| *common == f32::NEG_INFINITY;
        let has_no_key = |row: &[f32]| softmax::max(simd, row) <= MASKED;
        if common.iter().any(is_hidden)
            && !common.contains(&0.0)
            && rows.chunks_exact(n_keys).any(has_no_key)
        {
            for (tile_idx, common) in common.iter_mut().enumerate() {
                *common = (n_keys - tile_idx * TILE_KEYS).min(TILE_KEYS) as f32;
            }
        }
    }
}

/// What the rows of a tile have in common, or how many keys they need.
#[inline(always)]
fn common_of<'a, S: Simd>(simd: S, rows: impl Iterator<Item = &'a [f32]>) -> f32 {
    let (mut found, mut is_common, mut n_needed) = (None, true, 0);
    for row in rows {
        let (common, n_seen) = common_of_row(simd, row);
        // NaN is not itself.
        is_common &= *found.get_or_insert(common) == common;
        // Where a row sees none here, these may be all it has.
        n_needed = n_needed.max(if n_seen == 0 { row.len() } else { n_seen });
    }
    if is_common {
        found.unwrap_or(0.0)
    } else {
        n_needed as f32
    }
}

/// What a mask adds everywhere in a row, NaN where it is not the same, and how many keys are seen,
/// in whole vectors.
#[inline(always)]
fn common_of_row<S: Simd>(simd: S, row: &[f32]) -> (f32, usize) {
    let (vectors, rest) = row.as_chunks::<LANES>();
    let mut last = [rest.first().copied().unwrap_or(0.0); LANES];
    last[..rest.len()].copy_from_slice(rest);
    let (mut largest, mut least) = (simd.splat(f32::NEG_INFINITY), simd.splat(f32::INFINITY));
    let mut poison = simd.splat(0.0);
    let (hidden, mut n_seen) = (simd.splat(MASKED.next_up()), 0);
    for (i, vector) in vectors
        .iter()
        .chain((!rest.is_empty()).then_some(&last))
        .enumerate()
    {
        // NaN stays, and is seen.
        let mask = simd.max(simd.splat(MASK_FLOOR), simd.load(vector));
        if simd.any_lt(
            simd.splat(0.0),
            simd.select_lt(mask, hidden, simd.splat(0.0), simd.splat(1.0)),
        ) {
            n_seen = row.len().min((i + 1) * LANES);
        }
        largest = simd.max(mask, largest);
        least = simd.min(mask, least);
        poison = simd.fma(mask, simd.splat(0.0), poison);
    }
    let (largest, least) = (
        simd.max_lane(largest),
        -simd.max_lane(simd.sub(simd.splat(0.0), least)),
    );
    let common = if simd.sum(poison).is_nan() {
        f32::NAN
    } else if largest <= MASKED {
        f32::NEG_INFINITY
    } else if largest == 0.0 && least == 0.0 {
        0.0
    } else {
        f32::NAN
    };
    (common, n_seen)
}

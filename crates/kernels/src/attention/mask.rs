//! Which tiles of a mask need no reading: looked up once for all key/value heads, or for all layers.

use super::{BLOCK_ROWS, MASK_FLOOR, MASKED, TILE_KEYS};
use crate::Context;
use crate::simd::{Kernel, LANES, Simd};
use crate::softmax;

/// What a mask says of a block of rows and a tile of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    /// Every row sees every key.
    Clear,
    /// No row sees any, and each sees some other.
    Hidden,
    /// To be read.
    Mixed,
}

/// What a mask says of blocks of rows and tiles of keys, for [`Attention`](super::Attention).
#[derive(Debug, Clone, Copy)]
pub struct MaskTiles<'a> {
    /// [row block, tile]: what a mask adds everywhere in the tile: nothing, or -inf; NaN where it is not the same.
    common: &'a [f32],
    n_tiles: usize,
}

/// f32s of scratch of [`MaskTiles`].
pub fn mask_tiles_len(n_rows: usize, n_keys: usize) -> usize {
    n_rows.div_ceil(BLOCK_ROWS) * n_keys.div_ceil(TILE_KEYS)
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
            assert_eq!(scratch.len(), mask_tiles_len(n_rows, n_keys), "tiles of {n_rows} rows");
        }
        let Some(mask) = mask else {
            scratch.fill(0.0);
            return Self { common: scratch, n_tiles };
        };
        let block = |block_idx: usize, common: &mut [f32]| {
            let rows = &mask[block_idx * BLOCK_ROWS * n_keys..];
            ctx.isa().run(BlockTask { rows: &rows[..rows.len().min(BLOCK_ROWS * n_keys)], n_keys, common });
        };
        if mask.len() <= MAX_SERIAL_LEN {
            scratch.chunks_mut(n_tiles).enumerate().for_each(|(block_idx, common)| block(block_idx, common));
        } else {
            ctx.pool().run_chunks(scratch, n_tiles, block);
        }
        Self { common: scratch, n_tiles }
    }

    /// What [`Self::new`] left in its scratch.
    pub fn looked_up(common: &'a [f32], n_keys: usize) -> Self {
        Self { common, n_tiles: n_keys.div_ceil(TILE_KEYS) }
    }

    pub(super) fn len(&self) -> usize {
        self.common.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, block_idx: usize, tile_idx: usize) -> Tile {
        match self.common[block_idx * self.n_tiles + tile_idx] {
            0.0 => Tile::Clear,
            f32::NEG_INFINITY => Tile::Hidden,
            _ => Tile::Mixed,
        }
    }
}

/// The rows of a block.
struct BlockTask<'a> {
    rows: &'a [f32],
    n_keys: usize,
    /// By tile.
    common: &'a mut [f32],
}

impl Kernel for BlockTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows, n_keys, common } = self;
        for (tile_idx, common) in common.iter_mut().enumerate() {
            let keys = tile_idx * TILE_KEYS..n_keys.min((tile_idx + 1) * TILE_KEYS);
            *common = common_of(simd, rows.chunks_exact(n_keys).map(|row| &row[keys.clone()]));
        }
        // Where a row sees no key, those that are masked count.
        let is_hidden = |common: &f32| *common == f32::NEG_INFINITY;
        let has_no_key = |row: &[f32]| softmax::max(simd, row) <= MASKED;
        if common.iter().any(is_hidden) && !common.contains(&0.0) && rows.chunks_exact(n_keys).any(has_no_key) {
            common.fill(f32::NAN);
        }
    }
}

/// What the rows of a tile have in common.
#[inline(always)]
fn common_of<'a, S: Simd>(simd: S, rows: impl Iterator<Item = &'a [f32]>) -> f32 {
    let mut found = None;
    for row in rows {
        let common = common_of_row(simd, row);
        // NaN is not itself.
        if *found.get_or_insert(common) != common {
            return f32::NAN;
        }
    }
    found.unwrap_or(f32::NAN)
}

#[inline(always)]
fn common_of_row<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (vectors, rest) = row.as_chunks::<LANES>();
    let mut last = [rest.first().copied().unwrap_or(0.0); LANES];
    last[..rest.len()].copy_from_slice(rest);
    let (mut largest, mut least) = (simd.splat(f32::NEG_INFINITY), simd.splat(f32::INFINITY));
    let mut poison = simd.splat(0.0);
    for vector in vectors.iter().chain((!rest.is_empty()).then_some(&last)) {
        // NaN stays.
        let mask = simd.max(simd.splat(MASK_FLOOR), simd.load(vector));
        largest = simd.max(mask, largest);
        least = simd.min(mask, least);
        poison = simd.fma(mask, simd.splat(0.0), poison);
    }
    let (largest, least) = (simd.max_lane(largest), -simd.max_lane(simd.sub(simd.splat(0.0), least)));
    if simd.sum(poison).is_nan() {
        f32::NAN
    } else if largest <= MASKED {
        f32::NEG_INFINITY
    } else if largest == 0.0 && least == 0.0 {
        0.0
    } else {
        f32::NAN
    }
}

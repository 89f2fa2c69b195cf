//! The products of some panels with tiles of tokens.

use std::hint::black_box;
use std::ops::Range;

use super::{
    BLOCK_LEN, BLOCK_QUADS, GROUP_LEN, Int8Activations, Int8Block, LINE_BYTES, PanelSums,
    TILE_TOKENS,
};
use crate::simd::{Kernel, Simd};

/// Blocks of columns that a task goes over with all its tokens at a time: those of its rows are 25
/// KiB to 38 KiB, read from the first cache, or from the second and as fast.
const PART_BLOCKS: usize = 3;

/// 256 columns of the tokens of a tile.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TileBlock<const PARTS: usize> {
    /// Of each token, with [`super::offset`] added.
    pub(super) codes: [[u8; BLOCK_LEN]; TILE_TOKENS],
    /// Of each part.
    pub(super) scales: [[f32; TILE_TOKENS]; PARTS],
}

/// Where the sums of a task go.
pub(in crate::linear) trait Sums {
    /// Those of a panel, from a token on: of the first columns, or of others.
    fn panel(&self, panel_idx: usize, first_token: usize, is_first: bool) -> PanelSums<'_>;
    /// Makes outputs of sums that are whole, of the tokens of a tile at most.
    fn finish(&self, n_panels: usize, first_token: usize, n_tokens: usize);
}

/// Up to three panels of 16 rows, and some tokens.
pub(in crate::linear) struct PanelTask<'a, O, const PARTS: usize> {
    /// By columns, then by panel.
    pub(in crate::linear) blocks: &'a [Int8Block<PARTS>],
    pub(in crate::linear) n_panels: usize,
    pub(in crate::linear) x: &'a Int8Activations<'a, PARTS>,
    pub(in crate::linear) tokens: Range<usize>,
    /// What this thread may read next: asked for a few lines with each tile.
    pub(in crate::linear) next: [&'a [u8]; 2],
    pub(in crate::linear) sums: &'a O,
}

impl<O: Sums, const PARTS: usize> Kernel for PanelTask<'_, O, PARTS> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if const { PARTS > 1 && !S::PARTS.are_of_four() } {
            unreachable!("scales of parts are for sums of four products");
        }
        match self.n_panels {
            3 if const { !S::PARTS.are_of_four() } => self.rows::<S, 3>(simd),
            2 => self.rows::<S, 2>(simd),
            _ => self.rows::<S, 1>(simd),
        }
    }
}

impl<O: Sums, const PARTS: usize> PanelTask<'_, O, PARTS> {
    /// Some tokens after others, over columns of which the codes of all rows stay in a near cache.
    #[inline(always)]
    fn rows<S: Simd, const P: usize>(&self, simd: S) {
        let blocks = self.blocks.as_chunks::<P>().0;
        let mut ahead = self.next.iter().flat_map(|bytes| bytes.chunks(LINE_BYTES));
        let n_tiles = blocks.len().div_ceil(PART_BLOCKS) * self.tokens.len().div_ceil(TILE_TOKENS);
        let n_ahead = ahead.clone().count().div_ceil(n_tiles.max(1));
        for start in (0..blocks.len().max(1)).step_by(PART_BLOCKS) {
            let end = (start + PART_BLOCKS).min(blocks.len());
            for first_token in self.tokens.clone().step_by(TILE_TOKENS) {
                ahead
                    .by_ref()
                    .take(n_ahead)
                    .for_each(|line| simd.prefetch_far(line.as_ptr().cast()));
                let n_tokens = TILE_TOKENS.min(self.tokens.end - first_token);
                let part = Part {
                    blocks: &blocks[start..end],
                    start,
                };
                // With many registers each weight that is read is multiplied with a tile's tokens,
                // or with what is in their place.
                if const { S::PARTS.are_of_four() } && n_tokens > 3 {
                    self.tile::<S, P, TILE_TOKENS>(simd, part, first_token, n_tokens);
                } else if const { S::PARTS.are_of_four() } {
                    self.tile::<S, P, 3>(simd, part, first_token, n_tokens);
                } else {
                    for token_idx in first_token..first_token + n_tokens {
                        self.tile::<S, P, 1>(simd, part, token_idx, 1);
                    }
                }
                if end == blocks.len() {
                    self.sums.finish(P, first_token, n_tokens);
                }
            }
        }
    }

    /// A part, and as many of `N` tokens of a tile as there are.
    #[inline(always)]
    fn tile<S: Simd, const P: usize, const N: usize>(
        &self,
        simd: S,
        part: Part<P, PARTS>,
        first_token: usize,
        n_tokens: usize,
    ) {
        let n_blocks = self.x.n_cols.div_ceil(BLOCK_LEN);
        let tile =
            &self.x.tiles[first_token / TILE_TOKENS * n_blocks + part.start..][..part.blocks.len()];
        let n_quads = self.x.n_cols.next_multiple_of(GROUP_LEN) / 4 - part.start * BLOCK_QUADS;
        let panel = |p: usize| self.sums.panel(p, first_token, part.start == 0);
        for p in 0..P {
            panel(p).prefetch(simd, n_tokens);
        }
        let acc =
            products::<S, P, N, PARTS>(simd, part.blocks, tile, first_token % TILE_TOKENS, n_quads);
        for p in 0..P {
            // SAFETY: the rows of these panels belong, for these tokens, to this task alone.
            unsafe { panel(p).add(simd, acc[p], n_tokens) };
        }
    }
}

/// Some blocks of columns.
#[derive(Clone, Copy)]
struct Part<'a, const P: usize, const PARTS: usize> {
    blocks: &'a [[Int8Block<PARTS>; P]],
    /// The first.
    start: usize,
}

/// The products of some blocks with `N` tokens of a tile. From the first on there are so many fours
/// of columns.
#[inline(always)]
fn products<S: Simd, const P: usize, const N: usize, const PARTS: usize>(
    simd: S,
    blocks: &[[Int8Block<PARTS>; P]],
    tile: &[TileBlock<PARTS>],
    first: usize,
    mut n_quads: usize,
) -> [[S::F; N]; P] {
    assert!(first + N <= TILE_TOKENS, "tokens of a tile");
    // No constant, nor known to be small, so that the loop over it stays one: written out, it needs
    // more registers than there are.
    let part_quads = black_box(BLOCK_QUADS / PARTS);
    let mut acc = [[simd.splat(0.0); N]; P];
    for (panels, x) in blocks.iter().zip(tile) {
        let mut sums = [[simd.splat(0.0); N]; P];
        for part in 0..n_quads.div_ceil(BLOCK_QUADS / PARTS).min(PARTS) {
            let mut dots = [[simd.zero_int(); N]; P];
            for p in 0..P {
                dots[p] = [simd.load_int(&panels[p].offsets[part]); N];
            }
            // Whole groups, which are parts or are whole themselves.
            let n_quads = if PARTS == 1 {
                n_quads.min(part_quads)
            } else {
                part_quads
            };
            // SAFETY: `n_quads` are a part's at most.
            unsafe { add_part(simd, panels, x, first, part, n_quads, &mut dots) };
            for p in 0..P {
                for n in 0..N {
                    let scale = simd.splat(x.scales[part][first + n]);
                    sums[p][n] = simd.fma(simd.int_values(dots[p][n]), scale, sums[p][n]);
                }
            }
        }
        n_quads = n_quads.saturating_sub(BLOCK_QUADS);
        for p in 0..P {
            let scales = simd.load(&panels[p].scales);
            for n in 0..N {
                acc[p][n] = simd.fma(sums[p][n], scales, acc[p][n]);
            }
        }
    }
    acc
}

/// Adds the integer products of a part of a block.
///
/// # Safety
/// A part has so many fours of columns at least.
#[inline(always)]
unsafe fn add_part<S: Simd, const P: usize, const N: usize, const PARTS: usize>(
    simd: S,
    panels: &[Int8Block<PARTS>; P],
    x: &TileBlock<PARTS>,
    first: usize,
    part: usize,
    n_quads: usize,
    dots: &mut [[S::I; N]; P],
) {
    let start = part * (BLOCK_QUADS / PARTS);
    let four_of = |n: usize, quad: usize| {
        let codes: &[[u8; 4]] = x.codes[first + n].as_chunks().0;
        // SAFETY: the caller's promise, here and below: there are BLOCK_QUADS, the parts' together.
        simd.dup4_b(&unsafe { codes.get_unchecked(quad) }.map(|code| code as i8))
    };
    if const { !S::PARTS.are_of_four() } {
        for pair in start / 2..(start + n_quads) / 2 {
            for n in 0..N {
                let fours = [four_of(n, 2 * pair), four_of(n, 2 * pair + 1)];
                for p in 0..P {
                    // SAFETY: as above.
                    let weights = unsafe { panels[p].codes.as_chunks::<2>().0.get_unchecked(pair) };
                    dots[p][n] = simd.dot_two(
                        dots[p][n],
                        fours,
                        weights.each_ref().map(|quad| simd.load_b(quad)),
                    );
                }
            }
        }
        return;
    }
    for quad in start..start + n_quads {
        let mut weights = [simd.dup4_b(&[0; 4]); P];
        for p in 0..P {
            // SAFETY: as above.
            weights[p] = simd.load_b(unsafe { panels[p].codes.get_unchecked(quad) });
        }
        for n in 0..N {
            let four = four_of(n, quad);
            for p in 0..P {
                dots[p][n] = simd.dot_part(dots[p][n], four, weights[p]);
            }
        }
    }
}

//! Many tokens on machines that sum up products of narrow codes in 16 bits: tiles of 16 rows and six tokens.
//!
//! The twelve sums of a tile, a weight, an activation and their product fill the registers of AVX2. Weights have a sign and activations
//! have 128 added, for which each sum begins with what that adds too much. On the way a sum may overflow and come back: 16 bits need
//! only hold what it is in the end, so that all products of a group of columns are summed up before they are taken apart.
//!
//! What is read of a group of columns lies behind two addresses, the weights on whole cache lines: a vector in two lines takes two reads,
//! and an address for each token more registers than there are.

use std::hint::black_box;

use super::panel::{Kind, Panel, kind_of, scratch_len as panel_scratch_len};
use super::q8::{TILE_TOKENS, TileGroup};
use super::{Output, Q8Activations, add_rows};
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// Bytes of weights that a task goes over with its tokens at a time: half of a first-level cache.
const PART_BYTES: usize = 16 << 10;
/// Codes of activations that a task goes over: so many that a panel need not be filled again stay in a last-level cache, of which
/// 16 rows at a time read less than it gives.
const BLOCK_BYTES: usize = 2 << 20;
/// Tokens of a task, at least, where there are as many: to fill a panel is then a small part of the work.
const LEAST_TOKENS: usize = 16 * TILE_TOKENS;

/// True where products of many tokens are computed here.
pub(super) fn is_for(isa: Isa) -> bool {
    struct HasParts;
    impl Kernel for HasParts {
        type Output = bool;
        #[inline(always)]
        fn run<S: Simd>(self, _simd: S) -> bool {
            S::HAS_PARTS
        }
    }
    isa.run(HasParts)
}

/// Fours of columns of 16 rows with common factors. Codes of eight bits are the sum of two planes of four: the first 16 times.
#[repr(C, align(64))]
struct Cell<const QUADS: usize, const PLANES: usize> {
    codes: [[[u8; 64]; QUADS]; PLANES],
    /// What the sums of 16 bits begin with.
    first: [[i16; 32]; PLANES],
    scales: [f32; LANES],
    shifts: [f32; LANES],
}

/// f32s of scratch for each thread.
pub(super) fn scratch_len(ty: BlockType, n_cols: usize) -> usize {
    let n_steps = n_cols.div_ceil(64);
    let cells_bytes = match kind_of(ty) {
        Kind { is_wide: true, .. } => 2 * n_steps * size_of::<Cell<8, 2>>(),
        Kind { group_len: 16, .. } => 4 * n_steps * size_of::<Cell<4, 1>>(),
        Kind { .. } => 2 * n_steps * size_of::<Cell<8, 1>>(),
    };
    // And what lies in front of the first whole line.
    panel_scratch_len(n_cols) + (cells_bytes + align_of::<Cell<8, 1>>()) / size_of::<f32>()
}

/// The product of all tokens with the panels that `fill` makes in its scratch, given the first row of each.
pub(super) fn multiply(
    ctx: &Context,
    ty: BlockType,
    x: &Q8Activations,
    out: &Output,
    scratch: &mut [f32],
    fill: impl for<'s> Fn(usize, &'s mut [f32]) -> Panel<'s> + Sync,
) {
    let worker_len = scratch_len(ty, x.n_cols());
    let n_panels = out.n_rows.div_ceil(LANES);
    // Few panels for many threads are shared.
    let n_shares = (4 * ctx.pool().n_threads()).div_ceil(n_panels.max(1));
    let block_len = (BLOCK_BYTES / x.n_cols().max(1)).min(x.n_tokens().div_ceil(n_shares));
    let block_len = block_len.next_multiple_of(TILE_TOKENS).max(LEAST_TOKENS);
    let scratch = SharedMut::new(scratch);
    ctx.pool().run_indexed(n_panels * x.n_tokens().div_ceil(block_len), |worker_idx, task_idx| {
        // SAFETY: no two tasks run at once with the same worker index.
        let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
        let (panel, cells) = scratch.split_at_mut(panel_scratch_len(x.n_cols()));
        let first_row = task_idx % n_panels * LANES;
        let panel = fill(first_row, panel);
        let first_token = task_idx / n_panels * block_len;
        let tokens = first_token..(first_token + block_len).min(x.n_tokens());
        let task = Task { kind: kind_of(ty), panel, x, tokens, out, first_row };
        match task.kind {
            Kind { is_wide: true, .. } => ctx.isa().run(Products::<8, 2> { task, cells: cells_of(cells) }),
            Kind { group_len: 16, .. } => ctx.isa().run(Products::<4, 1> { task, cells: cells_of(cells) }),
            Kind { .. } => ctx.isa().run(Products::<8, 1> { task, cells: cells_of(cells) }),
        }
    });
}

/// The memory of some f32, from its first cache line on.
fn cells_of<const QUADS: usize, const PLANES: usize>(scratch: &mut [f32]) -> &mut [Cell<QUADS, PLANES>] {
    // SAFETY: any bits are a cell, and any cell is bits of f32.
    let (_, cells, _) = unsafe { scratch.align_to_mut() };
    cells
}

struct Task<'a> {
    kind: Kind,
    panel: Panel<'a>,
    x: &'a Q8Activations<'a>,
    tokens: std::ops::Range<usize>,
    out: &'a Output<'a>,
    first_row: usize,
}

struct Products<'a, const QUADS: usize, const PLANES: usize> {
    task: Task<'a>,
    cells: &'a mut [Cell<QUADS, PLANES>],
}

impl<const QUADS: usize, const PLANES: usize> Kernel for Products<'_, QUADS, PLANES> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Products { task, cells } = self;
        let n_groups = task.x.n_steps() * 16 / QUADS;
        let cells = &mut cells[..n_groups];
        place(simd, task.kind, &task.panel, cells);
        if task.kind.is_centred {
            task.all::<S, QUADS, PLANES, true>(simd, cells);
        } else {
            task.all::<S, QUADS, PLANES, false>(simd, cells);
        }
    }
}

/// Puts a panel into cells.
#[inline(always)]
fn place<S: Simd, const QUADS: usize, const PLANES: usize>(
    simd: S,
    kind: Kind,
    panel: &Panel,
    cells: &mut [Cell<QUADS, PLANES>],
) {
    let groups = panel.codes.as_chunks::<QUADS>().0.iter().zip(panel.scales).zip(panel.shifts);
    for (cell, ((codes, scales), shifts)) in cells.iter_mut().zip(groups) {
        cell.scales = *scales;
        let shift = simd.fma(simd.load(scales), simd.splat(f32::from(kind.centre)), simd.load(shifts));
        simd.store(shift, &mut cell.shifts);
        // A weight is a code of its plane less `centre`.
        let centre = if PLANES == 1 { kind.centre } else { 8 };
        let mut first = [simd.load_parts(&[i16::from(centre).wrapping_mul(256 * QUADS as i16); 32]); PLANES];
        for (quad, codes) in codes.iter().enumerate() {
            let mut planes = [*codes; PLANES];
            if PLANES > 1 {
                for (i, code) in codes.iter().enumerate() {
                    let code = code ^ 0x80;
                    let high = ((code >> 3) + 1) >> 1;
                    planes[0][i] = high;
                    planes[PLANES - 1][i] = code.wrapping_add(8).wrapping_sub(high << 4);
                }
            }
            for (plane, codes) in planes.iter().enumerate() {
                first[plane] = simd.dot_part(first[plane], simd.load_b(codes), simd.dup4_b(&[-128; 4]));
                for (i, code) in codes.iter().enumerate() {
                    cell.codes[plane][quad][i] = code.wrapping_sub(centre);
                }
            }
        }
        for (first, to) in first.into_iter().zip(&mut cell.first) {
            simd.store_parts(first, to);
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn all<S: Simd, const QUADS: usize, const PLANES: usize, const CENTRED: bool>(
        &self,
        simd: S,
        cells: &[Cell<QUADS, PLANES>],
    ) {
        let part_len = (PART_BYTES / size_of::<Cell<QUADS, PLANES>>()).next_multiple_of(8 / QUADS);
        for start in (0..cells.len().max(1)).step_by(part_len) {
            let cells = &cells[start..(start + part_len).min(cells.len())];
            for first_token in self.tokens.clone().step_by(TILE_TOKENS) {
                match self.tokens.end - first_token {
                    5.. => self.tile::<S, QUADS, PLANES, CENTRED, 6>(simd, cells, start, first_token),
                    3.. => self.tile::<S, QUADS, PLANES, CENTRED, 4>(simd, cells, start, first_token),
                    _ => self.tile::<S, QUADS, PLANES, CENTRED, 2>(simd, cells, start, first_token),
                }
            }
        }
    }

    /// Some groups of columns, from group `start` on, of `N` tokens or of those that there are.
    #[inline(always)]
    fn tile<S: Simd, const QUADS: usize, const PLANES: usize, const CENTRED: bool, const N: usize>(
        &self,
        simd: S,
        cells: &[Cell<QUADS, PLANES>],
        start: usize,
        first_token: usize,
    ) {
        let x = self.x.tile(first_token / TILE_TOKENS);
        let x = &x[start * QUADS / 8..][..(cells.len() * QUADS).div_ceil(8)];
        let acc = sums::<S, QUADS, PLANES, CENTRED, N>(simd, cells, x);
        let n_rows = (self.out.n_rows - self.first_row).min(LANES);
        let bias = self.out.bias_of(self.first_row, n_rows);
        for (token_idx, acc) in (first_token..self.tokens.end).zip(acc) {
            // SAFETY: the rows of this panel belong, for these tokens, to this task alone.
            let y = unsafe { self.out.part(token_idx, self.first_row, n_rows) };
            add_rows(simd, acc, y, bias, start > 0);
        }
    }
}

/// The products of some groups of columns with as many of `N` tokens.
#[inline(always)]
fn sums<S: Simd, const QUADS: usize, const PLANES: usize, const CENTRED: bool, const N: usize>(
    simd: S,
    cells: &[Cell<QUADS, PLANES>],
    x: &[TileGroup],
) -> [S::F; N] {
    // No constant, so that the loop over it stays one: written out, it needs more registers than there are.
    let n_quads = black_box(QUADS).min(QUADS);
    let mut acc = [simd.splat(0.0); N];
    for (cells, x) in cells.chunks(8 / QUADS).zip(x) {
        for (part, cell) in cells.iter().enumerate() {
            let mut dots = [simd.zero_int(); N];
            for plane in 0..PLANES {
                let mut parts = [simd.load_parts(&cell.first[plane]); N];
                for quad in 0..n_quads {
                    // SAFETY: n_quads is at most QUADS, and a cell is eight fours of columns in 8 / QUADS parts.
                    let (weights, x) =
                        unsafe { (cell.codes[plane].get_unchecked(quad), x.codes.get_unchecked(part * QUADS + quad)) };
                    let weights = simd.load_b(weights);
                    for n in 0..N {
                        parts[n] = simd.dot_part(parts[n], simd.dup4_b(&x[n]), weights);
                    }
                }
                for n in 0..N {
                    dots[n] = if plane + 1 < PLANES {
                        simd.join_part::<16>(dots[n], parts[n])
                    } else {
                        simd.join_part::<1>(dots[n], parts[n])
                    };
                }
            }
            let (scales, shifts) = (simd.load(&cell.scales), simd.load(&cell.shifts));
            let sums = if QUADS == 8 { &x.sums32 } else { &x.sums16[part] };
            for n in 0..N {
                let values = simd.mul(simd.int_values(dots[n]), scales);
                acc[n] = simd.fma(values, simd.splat(x.scales[n]), acc[n]);
                if !CENTRED {
                    acc[n] = simd.fma(shifts, simd.splat(sums[n]), acc[n]);
                }
            }
        }
    }
    acc
}

//! Many tokens on machines that sum up products of narrow codes in 16 bits, or four products in 32: tiles of 16 rows, or of twice 16, and
//! six tokens.
//!
//! The twelve sums of a tile, a weight, an activation and their product fill the registers of AVX2, and those of 32 rows, their scaled
//! sums and two weights the registers of AVX-512. Weights have a sign and activations have 128 added, for which each sum begins with what
//! that adds too much. On the way a sum may overflow and come back: it need only fit in the end, so that all products of a group of
//! columns are summed up before they are scaled.
//!
//! What is read of a group of columns lies behind two addresses, the weights on whole cache lines: a vector in two lines takes two reads,
//! and an address for each token more registers than there are.

use std::hint::black_box;

use super::panel::{Kind, Panel, kind_of, scratch_len as panel_scratch_len};
use super::q8::{TILE_TOKENS, TileGroup};
use super::tiles::{most_panels, task_panels};
use super::{Output, Q8Activations, add_rows};
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::{SharedMut, apart};
use crate::{Context, Isa};

/// Bytes of weights that a task goes over with its tokens at a time, for each panel: half of a first-level cache.
const PART_BYTES: usize = 16 << 10;
/// Codes of activations that a task goes over: so many that a panel need not be filled again stay in a last-level cache, of which
/// 16 rows at a time read less than it gives.
const BLOCK_BYTES: usize = 2 << 20;
/// Tokens of a task, at least, where there are as many: to fill a panel is then a small part of the work.
const LEAST_TOKENS: usize = 16 * TILE_TOKENS;

/// True where products of many tokens are computed here.
pub(super) fn is_for(isa: Isa) -> bool {
    products(isa) > 0
}

/// True where codes of eight bits are two planes.
pub(super) fn has_planes(isa: Isa) -> bool {
    products(isa) == 2
}

/// [`Simd::PART_PRODUCTS`].
fn products(isa: Isa) -> usize {
    struct PartProducts;
    impl Kernel for PartProducts {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd>(self, _simd: S) -> usize {
            S::PART_PRODUCTS
        }
    }
    isa.run(PartProducts)
}

/// Fours of columns of 16 rows with common factors. Codes of eight bits are one plane, or the sum of two of four bits: the first 16 times.
#[repr(C, align(64))]
struct Cell<const QUADS: usize, const PLANES: usize> {
    codes: [[[u8; 64]; QUADS]; PLANES],
    /// What the sums begin with.
    first: [[i32; LANES]; PLANES],
    scales: [f32; LANES],
    shifts: [f32; LANES],
}

/// f32s of scratch for each thread.
pub(super) fn scratch_len(isa: Isa, ty: BlockType, n_cols: usize) -> usize {
    let n_steps = n_cols.div_ceil(64);
    let cells_bytes = match kind_of(ty) {
        Kind { is_wide: true, .. } if has_planes(isa) => 2 * n_steps * size_of::<Cell<8, 2>>(),
        Kind { group_len: 16, .. } => 4 * n_steps * size_of::<Cell<4, 1>>(),
        Kind { .. } => 2 * n_steps * size_of::<Cell<8, 1>>(),
    };
    // And what lies in front of the first whole line.
    let cells_bytes = task_panels(isa) * cells_bytes + align_of::<Cell<8, 1>>();
    panel_scratch_len(n_cols) + cells_bytes / size_of::<f32>()
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
    let worker_len = scratch_len(ctx.isa(), ty, x.n_cols());
    let (kind, has_planes) = (kind_of(ty), has_planes(ctx.isa()));
    let task_rows = task_panels(ctx.isa()) * LANES;
    let n_tasks = out.n_rows.div_ceil(task_rows);
    // Few rows for many threads are shared.
    let n_shares = (4 * ctx.pool().n_threads()).div_ceil(n_tasks.max(1));
    let block_len = (BLOCK_BYTES / x.n_cols().max(1)).min(x.n_tokens().div_ceil(n_shares));
    let block_len = block_len.next_multiple_of(TILE_TOKENS).max(LEAST_TOKENS);
    let scratch = SharedMut::new(scratch);
    ctx.pool().run_indexed(n_tasks * x.n_tokens().div_ceil(block_len), |worker_idx, task_idx| {
        // SAFETY: no two tasks run at once with the same worker index.
        let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
        let (panel, cells) = scratch.split_at_mut(panel_scratch_len(x.n_cols()));
        let first_row = apart(task_idx % n_tasks, n_tasks, ctx.pool().n_threads()) * task_rows;
        let n_panels = (out.n_rows - first_row).min(task_rows).div_ceil(LANES);
        let first_token = task_idx / n_tasks * block_len;
        let tokens = first_token..(first_token + block_len).min(x.n_tokens());
        let task = Task { kind, n_panels, x, tokens, out, first_row };
        match kind {
            Kind { is_wide: true, .. } if has_planes => task.run::<8, 2>(ctx.isa(), panel, cells, &fill),
            Kind { group_len: 16, .. } => task.run::<4, 1>(ctx.isa(), panel, cells, &fill),
            Kind { .. } => task.run::<8, 1>(ctx.isa(), panel, cells, &fill),
        }
    });
}

/// The memory of some f32, from its first cache line on.
fn cells_of<const QUADS: usize, const PLANES: usize>(scratch: &mut [f32]) -> &mut [Cell<QUADS, PLANES>] {
    // SAFETY: any bits are a cell, and any cell is bits of f32.
    let (_, cells, _) = unsafe { scratch.align_to_mut() };
    cells
}

/// Some panels and tokens.
struct Task<'a> {
    kind: Kind,
    n_panels: usize,
    x: &'a Q8Activations<'a>,
    tokens: std::ops::Range<usize>,
    out: &'a Output<'a>,
    first_row: usize,
}

impl Task<'_> {
    fn run<const QUADS: usize, const PLANES: usize>(
        &self,
        isa: Isa,
        scratch: &mut [f32],
        cells: &mut [f32],
        fill: &impl for<'s> Fn(usize, &'s mut [f32]) -> Panel<'s>,
    ) {
        let n_groups = self.x.n_steps() * 16 / QUADS;
        let cells = &mut cells_of::<QUADS, PLANES>(cells)[..n_groups * self.n_panels];
        for panel_idx in 0..self.n_panels {
            let (kind, panel) = (self.kind, fill(self.first_row + panel_idx * LANES, &mut *scratch));
            isa.run(Place { kind, panel, cells: cells.iter_mut().skip(panel_idx).step_by(self.n_panels) });
        }
        isa.run(Products { task: self, cells });
    }
}

/// Puts a panel into cells.
struct Place<'a, I> {
    kind: Kind,
    panel: Panel<'a>,
    cells: I,
}

impl<'c, I, const QUADS: usize, const PLANES: usize> Kernel for Place<'_, I>
where
    I: Iterator<Item = &'c mut Cell<QUADS, PLANES>>,
{
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { kind, panel, cells } = self;
        let groups = panel.codes.as_chunks::<QUADS>().0.iter().zip(panel.scales).zip(panel.shifts);
        for (cell, ((codes, scales), shifts)) in cells.zip(groups) {
            cell.scales = *scales;
            let shift = simd.fma(simd.load(scales), simd.splat(f32::from(kind.centre)), simd.load(shifts));
            simd.store(shift, &mut cell.shifts);
            place_codes(simd, kind, codes, cell);
        }
    }
}

/// Codes with a sign, and what the sums begin with.
#[inline(always)]
fn place_codes<S: Simd, const QUADS: usize, const PLANES: usize>(
    simd: S,
    kind: Kind,
    codes: &[[u8; 64]; QUADS],
    cell: &mut Cell<QUADS, PLANES>,
) {
    // A weight is a code of its plane less `centre`.
    let centre = match kind.is_wide {
        true if PLANES == 1 => S::WIDE_XOR,
        true => 8,
        false => kind.centre,
    };
    let mut first = [simd.splat_part(i32::from(centre) * 128 * (S::PART_PRODUCTS * QUADS) as i32); PLANES];
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
        simd.store_int(first, to);
    }
}

struct Products<'a, const QUADS: usize, const PLANES: usize> {
    task: &'a Task<'a>,
    /// By group, then by panel.
    cells: &'a [Cell<QUADS, PLANES>],
}

impl<const QUADS: usize, const PLANES: usize> Kernel for Products<'_, QUADS, PLANES> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Products { task, cells } = self;
        match (most_panels::<S>() == 2 && task.n_panels == 2, task.kind.is_centred) {
            (true, true) => task.all::<S, QUADS, PLANES, 2, true>(simd, cells),
            (true, false) => task.all::<S, QUADS, PLANES, 2, false>(simd, cells),
            (false, true) => task.all::<S, QUADS, PLANES, 1, true>(simd, cells),
            (false, false) => task.all::<S, QUADS, PLANES, 1, false>(simd, cells),
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn all<S: Simd, const QUADS: usize, const PLANES: usize, const PANELS: usize, const CENTRED: bool>(
        &self,
        simd: S,
        cells: &[Cell<QUADS, PLANES>],
    ) {
        let cells = cells.as_chunks::<PANELS>().0;
        let part_len = (PART_BYTES / size_of::<Cell<QUADS, PLANES>>()).next_multiple_of(8 / QUADS);
        for start in (0..cells.len().max(1)).step_by(part_len) {
            let cells = &cells[start..(start + part_len).min(cells.len())];
            for first_token in self.tokens.clone().step_by(TILE_TOKENS) {
                match self.tokens.end - first_token {
                    5.. => self.tile::<S, QUADS, PLANES, PANELS, CENTRED, 6>(simd, cells, start, first_token),
                    3.. => self.tile::<S, QUADS, PLANES, PANELS, CENTRED, 4>(simd, cells, start, first_token),
                    _ => self.tile::<S, QUADS, PLANES, PANELS, CENTRED, 2>(simd, cells, start, first_token),
                }
            }
        }
    }

    /// Some groups of columns, from group `start` on, of `N` tokens or of those that there are.
    #[inline(always)]
    fn tile<
        S: Simd,
        const QUADS: usize,
        const PLANES: usize,
        const PANELS: usize,
        const CENTRED: bool,
        const N: usize,
    >(
        &self,
        simd: S,
        cells: &[[Cell<QUADS, PLANES>; PANELS]],
        start: usize,
        first_token: usize,
    ) {
        let x = self.x.tile(first_token / TILE_TOKENS);
        let x = &x[start * QUADS / 8..][..(cells.len() * QUADS).div_ceil(8)];
        let acc = sums::<S, QUADS, PLANES, PANELS, CENTRED, N>(simd, cells, x);
        let n_tokens = N.min(self.tokens.end - first_token);
        for p in 0..PANELS {
            let first_row = self.first_row + p * LANES;
            let n_rows = (self.out.n_rows - first_row).min(LANES);
            let bias = self.out.bias_of(first_row, n_rows);
            // By index, so that the sums stay in registers.
            for n in 0..N {
                if n < n_tokens {
                    // SAFETY: the rows of these panels belong, for these tokens, to this task alone.
                    let y = unsafe { self.out.part(first_token + n, first_row, n_rows) };
                    add_rows(simd, acc[p][n], y, bias, start > 0);
                }
            }
        }
    }
}

/// The products of some groups of columns with as many of `N` tokens.
#[inline(always)]
fn sums<S: Simd, const QUADS: usize, const PLANES: usize, const PANELS: usize, const CENTRED: bool, const N: usize>(
    simd: S,
    cells: &[[Cell<QUADS, PLANES>; PANELS]],
    x: &[TileGroup],
) -> [[S::F; N]; PANELS] {
    // No constant, so that the loop over it stays one: written out, it needs more registers than there are.
    let n_quads = black_box(QUADS).min(QUADS);
    let mut acc = [[simd.splat(0.0); N]; PANELS];
    for (cells, x) in cells.chunks(8 / QUADS).zip(x) {
        for (part, cells) in cells.iter().enumerate() {
            let mut dots = [[simd.zero_int(); N]; PANELS];
            for plane in 0..PLANES {
                let mut parts = [[simd.zero_int(); N]; PANELS];
                for p in 0..PANELS {
                    parts[p] = [simd.load_int(&cells[p].first[plane]); N];
                }
                for quad in 0..n_quads {
                    let mut weights = [simd.dup4_b(&[0; 4]); PANELS];
                    for p in 0..PANELS {
                        // SAFETY: n_quads is at most QUADS.
                        weights[p] = simd.load_b(unsafe { cells[p].codes[plane].get_unchecked(quad) });
                    }
                    // SAFETY: as above, and a group is eight fours of columns in 8 / QUADS parts.
                    let x = unsafe { x.codes.get_unchecked(part * QUADS + quad) };
                    for n in 0..N {
                        let x = simd.dup4_b(&x[n]);
                        for p in 0..PANELS {
                            parts[p][n] = simd.dot_part(parts[p][n], x, weights[p]);
                        }
                    }
                }
                for p in 0..PANELS {
                    for n in 0..N {
                        dots[p][n] = if plane + 1 < PLANES {
                            simd.join_part::<16>(dots[p][n], parts[p][n])
                        } else {
                            simd.join_part::<1>(dots[p][n], parts[p][n])
                        };
                    }
                }
            }
            let sums = if QUADS == 8 { &x.sums32 } else { &x.sums16[part] };
            for p in 0..PANELS {
                let (scales, shifts) = (simd.load(&cells[p].scales), simd.load(&cells[p].shifts));
                for n in 0..N {
                    let values = simd.mul(simd.int_values(dots[p][n]), scales);
                    acc[p][n] = simd.fma(values, simd.splat(x.scales[n]), acc[p][n]);
                    if !CENTRED {
                        acc[p][n] = simd.fma(shifts, simd.splat(sums[n]), acc[p][n]);
                    }
                }
            }
        }
    }
    acc
}

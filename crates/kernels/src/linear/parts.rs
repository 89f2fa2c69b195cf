//! Many tokens on machines that sum up products of narrow codes in 16 bits, or four products in 32.
//!
//! The latter take [codes of 8 bits](super::int8) made of a panel's. Else tiles are of 16 rows and
//! six tokens, whose twelve sums, a weight, an activation and their product fill the registers of
//! AVX2. Weights have a sign and activations have 128 added, for which each sum begins with what
//! that adds too much. On the way a sum may overflow and come back: it need only fit in the end, so
//! that all products of a group of columns are summed up before they are scaled.
//!
//! What is read of a group of columns lies behind two addresses, the weights on whole cache lines:
//! a vector in two lines takes two reads, and an address for each token more registers than there
//! are.

use std::hint::black_box;

use super::choose::{has_parts, has_planes, is_wide, task_panels};
use super::codes::Codes;
use super::columns::LINE_BYTES;
use super::int8::{BLOCK_LEN, FINE_PARTS, Int8Block, PanelTask, Requantize, Sums};
use super::output::{Output, PanelSums, Start, filled_up, store};
use super::panel::{Kind, Panel, kind_of, scratch_len as panel_scratch_len};
use super::q8::{Q8Activations, TileGroup};
use super::steps::TILE_TOKENS;
use super::tables;
use super::tasks::share_len;
use crate::activation::Unary;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// Bytes of weights that a task goes over with its tokens at a time: they leave a first cache of 32
/// KiB room for the activations.
const PART_BYTES: usize = 20 << 10;
/// Codes of activations that a task goes over: so many that a panel need not be filled again stay
/// in a last-level cache, of which 16 rows at a time read less than it gives.
const BLOCK_BYTES: usize = 2 << 20;
/// Tokens of a task, at least, where there are as many: to fill a panel is then a small part of the
/// work.
const LEAST_TOKENS: usize = 16 * TILE_TOKENS;

/// Fours of columns of 16 rows with common factors. Codes of eight bits are the sum of two planes
/// of four bits: the first 16 times.
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
        _ if is_wide(isa) => n_cols.div_ceil(BLOCK_LEN) * size_of::<Int8Block<FINE_PARTS>>(),
        Kind { is_wide: true, .. } if has_planes(isa) => 2 * n_steps * size_of::<Cell<8, 2>>(),
        Kind { group_len: 16, .. } => 4 * n_steps * size_of::<Cell<4, 1>>(),
        Kind { .. } => 2 * n_steps * size_of::<Cell<8, 1>>(),
    };
    // And what lies in front of the first whole line.
    let cells_bytes = task_panels(isa) * cells_bytes + LINE_BYTES;
    panel_scratch_len(n_cols) + cells_bytes / size_of::<f32>()
}

/// f32s of scratch for each thread of a product of codes that are unpacked.
pub(super) fn worker_len(isa: Isa, ty: BlockType, n_cols: usize) -> usize {
    if has_parts(isa) {
        scratch_len(isa, ty, n_cols)
    } else {
        panel_scratch_len(n_cols)
    }
}

/// Where products go.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) out: &'a Output<'a>,
    /// Where there is one, there are two matrices of as many rows: what `op` gives of the first,
    /// the gate, times the second.
    pub(super) gate: Option<Gate<'a>>,
}

/// What becomes of a gate.
#[derive(Clone, Copy)]
pub(super) struct Gate<'a> {
    pub(super) op: Unary,
    /// Of the gate; that of the other is in its output.
    pub(super) bias: Option<&'a [f32]>,
}

/// f32s of more scratch for each thread where there is a gate.
pub(super) fn gate_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens
        .next_multiple_of(TILE_TOKENS)
        .min(most_block_len(n_cols))
        * LANES
}

/// Tokens of a task, at most.
fn most_block_len(n_cols: usize) -> usize {
    (BLOCK_BYTES / n_cols.max(1))
        .next_multiple_of(TILE_TOKENS)
        .max(LEAST_TOKENS)
}

/// The products of all tokens with a matrix, or with two of one type where there is a gate.
pub(super) fn multiply(
    ctx: &Context,
    weights: &[Codes],
    x: &Q8Activations,
    to: Target,
    scratch: &mut [f32],
) {
    let (ty, n_rows) = (weights[0].ty(), to.out.n_rows);
    let gate_len = to
        .gate
        .map_or(0, |_| gate_scratch_len(x.n_tokens(), x.n_cols()));
    let worker_len = scratch_len(ctx.isa(), ty, x.n_cols()) + gate_len;
    let (kind, is_wide) = (kind_of(ty), is_wide(ctx.isa()));
    let task_rows = if to.gate.is_some() {
        LANES
    } else {
        task_panels(ctx.isa()) * LANES
    };
    let n_tasks = n_rows.div_ceil(task_rows);
    let block_len = share_len(
        ctx,
        x.n_tokens(),
        (TILE_TOKENS, LEAST_TOKENS),
        most_block_len(x.n_cols()),
    );
    let scratch = SharedMut::new(scratch);
    ctx.pool().run_indexed(
        n_tasks * x.n_tokens().div_ceil(block_len),
        |worker_idx, task_idx| {
            // SAFETY: no two tasks run at once with the same worker index.
            let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
            let (gates, scratch) = scratch.split_at_mut(gate_len);
            let (panel, cells) = scratch.split_at_mut(panel_scratch_len(x.n_cols()));
            let first_row = task_idx % n_tasks * task_rows;
            let n_panels = if to.gate.is_some() {
                2
            } else {
                (n_rows - first_row).min(task_rows).div_ceil(LANES)
            };
            let first_token = task_idx / n_tasks * block_len;
            let tokens = first_token..(first_token + block_len).min(x.n_tokens());
            let gates = SharedMut::new(gates);
            let task = Task {
                ctx,
                weights,
                kind,
                n_panels,
                x,
                tokens,
                to,
                gates,
                first_row,
                task_rows,
            };
            match kind {
                _ if is_wide => task.run_wide(panel, cells),
                Kind { is_wide: true, .. } => task.run::<8, 2>(panel, cells),
                Kind { group_len: 16, .. } => task.run::<4, 1>(panel, cells),
                Kind { .. } => task.run::<8, 1>(panel, cells),
            }
        },
    );
}

/// The memory of some f32, from its first cache line on.
///
/// # Safety
/// Any bits are a `T`, and any `T` is bits of f32.
unsafe fn cells_of<T>(scratch: &mut [f32]) -> &mut [T] {
    // SAFETY: the caller's promise.
    let (_, cells, _) = unsafe { scratch.align_to_mut() };
    cells
}

/// Some panels and tokens.
struct Task<'a> {
    ctx: &'a Context,
    weights: &'a [Codes<'a>],
    kind: Kind,
    /// Of rows behind each other, or of the gate and of what it is for.
    n_panels: usize,
    x: &'a Q8Activations<'a>,
    tokens: std::ops::Range<usize>,
    to: Target<'a>,
    /// Where there is a gate, its sums: 16 for each token.
    gates: SharedMut<'a, f32>,
    first_row: usize,
    /// From it to that of the next.
    task_rows: usize,
}

impl Task<'_> {
    /// One panel after another, in cells.
    fn run<const QUADS: usize, const PLANES: usize>(&self, scratch: &mut [f32], cells: &mut [f32]) {
        let isa = self.ctx.isa();
        // SAFETY: a cell is made of bytes, i32 and f32, without bytes between them.
        let cells = unsafe { cells_of::<Cell<QUADS, PLANES>>(cells) };
        let cells = &mut cells[..self.x.n_steps() * 16 / QUADS];
        for panel_idx in 0..self.n_panels {
            let (weight, first_row) = self.panel(panel_idx);
            let panel = weight.fill(self.ctx, first_row, self.x.n_steps(), &mut *scratch);
            isa.run(Place {
                kind: self.kind,
                panel,
                cells: cells.iter_mut(),
            });
            isa.run(Products {
                task: self,
                panel_idx,
                cells,
            });
        }
    }

    /// All panels at once, in codes of 8 bits.
    fn run_wide(&self, scratch: &mut [f32], blocks: &mut [f32]) {
        let (isa, n_panels) = (self.ctx.isa(), self.n_panels);
        // SAFETY: a block is made of bytes, i32 and f32, without bytes between them.
        let blocks = unsafe { cells_of::<Int8Block<FINE_PARTS>>(blocks) };
        let blocks = &mut blocks[..self.x.n_cols().div_ceil(BLOCK_LEN) * n_panels];
        let mut next: [&[u8]; 2] = [&[]; 2];
        for i in 0..n_panels {
            let (weight, first_row) = self.panel(i);
            let blocks = blocks.iter_mut().skip(i).step_by(n_panels);
            if let Codes::Tables(weight) = weight {
                isa.run(tables::BlocksTask {
                    weight,
                    panel_idx: first_row / LANES,
                    blocks,
                });
            } else {
                let panel = weight.fill(self.ctx, first_row, self.x.n_steps(), &mut *scratch);
                let kind = self.kind;
                isa.run(Requantize {
                    kind,
                    panel,
                    blocks,
                });
            }
            next[i] = weight.bytes(first_row + self.task_rows);
        }
        let (x, tokens) = (self.x.int8(), self.tokens.clone());
        isa.run(PanelTask {
            blocks,
            n_panels,
            x,
            tokens,
            next,
            sums: self,
        });
    }

    /// The matrix of a panel, and its first row.
    #[inline(always)]
    fn panel(&self, panel_idx: usize) -> (Codes<'_>, usize) {
        match self.to.gate {
            Some(_) => (self.weights[panel_idx], self.first_row),
            None => (self.weights[0], self.first_row + panel_idx * LANES),
        }
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
        if const { !S::PARTS.are_of_two() } {
            unreachable!("cells are for sums of two products");
        }
        let Self { kind, panel, cells } = self;
        let groups = panel
            .codes
            .as_chunks::<QUADS>()
            .0
            .iter()
            .zip(panel.scales)
            .zip(panel.shifts);
        for (cell, ((codes, scales), shifts)) in cells.zip(groups) {
            cell.scales = *scales;
            let shift = simd.fma(
                simd.load(scales),
                simd.splat(f32::from(kind.center)),
                simd.load(shifts),
            );
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
    // A weight is a code of its plane less `center`.
    let center = if kind.is_wide { 8 } else { kind.center };
    let sum = i32::from(center) * 128 * (2 * QUADS) as i32;
    let mut first = [simd.splat_part(sum); PLANES];
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
                cell.codes[plane][quad][i] = code.wrapping_sub(center);
            }
        }
    }
    for (first, to) in first.into_iter().zip(&mut cell.first) {
        simd.store_int(first, to);
    }
}

struct Products<'a, const QUADS: usize, const PLANES: usize> {
    task: &'a Task<'a>,
    panel_idx: usize,
    /// By group.
    cells: &'a [Cell<QUADS, PLANES>],
}

impl<const QUADS: usize, const PLANES: usize> Kernel for Products<'_, QUADS, PLANES> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if const { !S::PARTS.are_of_two() } {
            unreachable!("cells are for sums of two products");
        }
        let Products {
            task,
            panel_idx,
            cells,
        } = self;
        if task.kind.is_centered {
            task.all::<S, QUADS, PLANES, true>(simd, panel_idx, cells);
        } else {
            task.all::<S, QUADS, PLANES, false>(simd, panel_idx, cells);
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn all<S: Simd, const QUADS: usize, const PLANES: usize, const CENTRED: bool>(
        &self,
        simd: S,
        panel_idx: usize,
        cells: &[Cell<QUADS, PLANES>],
    ) {
        let part_len = (PART_BYTES / size_of::<Cell<QUADS, PLANES>>()).next_multiple_of(8 / QUADS);
        // What this thread may fill a panel with next: asked for a few lines with each tile.
        let (weight, first_row) = self.panel(panel_idx);
        let mut ahead = weight.bytes(first_row + self.task_rows).chunks(LINE_BYTES);
        let n_tiles = cells.len().div_ceil(part_len) * self.tokens.len().div_ceil(TILE_TOKENS);
        let n_ahead = ahead.len().div_ceil(n_tiles.max(1));
        for start in (0..cells.len().max(1)).step_by(part_len) {
            let part = Part {
                panel_idx,
                start,
                cells: &cells[start..(start + part_len).min(cells.len())],
            };
            let is_last = start + part_len >= cells.len() && panel_idx + 1 == self.n_panels;
            for first_token in self.tokens.clone().step_by(TILE_TOKENS) {
                ahead
                    .by_ref()
                    .take(n_ahead)
                    .for_each(|line| simd.prefetch_far(line.as_ptr().cast()));
                let n_tokens = TILE_TOKENS.min(self.tokens.end - first_token);
                match n_tokens {
                    5.. => self.tile::<S, QUADS, PLANES, CENTRED, 6>(simd, &part, first_token),
                    3.. => self.tile::<S, QUADS, PLANES, CENTRED, 4>(simd, &part, first_token),
                    _ => self.tile::<S, QUADS, PLANES, CENTRED, 2>(simd, &part, first_token),
                }
                if is_last {
                    self.finish(self.n_panels, first_token, n_tokens);
                }
            }
        }
    }

    /// Some groups of columns of `N` tokens or of those that there are.
    #[inline(always)]
    fn tile<
        S: Simd,
        const QUADS: usize,
        const PLANES: usize,
        const CENTRED: bool,
        const N: usize,
    >(
        &self,
        simd: S,
        part: &Part<'_, QUADS, PLANES>,
        first_token: usize,
    ) {
        let Part {
            panel_idx,
            start,
            cells,
        } = *part;
        let x = self.x.tile(first_token / TILE_TOKENS);
        let x = &x[start * QUADS / 8..][..(cells.len() * QUADS).div_ceil(8)];
        let n_tokens = N.min(self.tokens.end - first_token);
        let acc = sums::<S, QUADS, PLANES, CENTRED, N>(simd, cells, x);
        // SAFETY: the rows of this panel belong, for these tokens, to this task alone.
        unsafe {
            self.panel_sums(panel_idx, first_token, start == 0)
                .add(simd, acc, n_tokens)
        };
    }

    /// Where the sums of a panel go, from a token on: of its first columns, or of others.
    #[inline(always)]
    fn panel_sums(&self, panel_idx: usize, first_token: usize, is_first: bool) -> PanelSums<'_> {
        let (out, (_, first_row)) = (self.to.out, self.panel(panel_idx));
        match self.to.gate {
            Some(Gate { bias, .. }) if panel_idx == 0 => {
                let n_rows = (out.n_rows - first_row).min(LANES);
                let bias = bias
                    .filter(|_| is_first)
                    .map(|bias| &bias[first_row..][..n_rows]);
                let first = (first_token - self.tokens.start) * LANES;
                let start = Start {
                    bias,
                    accumulates: !is_first,
                };
                PanelSums {
                    all: &self.gates,
                    first,
                    stride: LANES,
                    n_rows,
                    start,
                }
            }
            _ => out.panel(first_token, first_row, is_first),
        }
    }
}

impl Sums for Task<'_> {
    #[inline(always)]
    fn panel(&self, panel_idx: usize, first_token: usize, is_first: bool) -> PanelSums<'_> {
        self.panel_sums(panel_idx, first_token, is_first)
    }

    /// What is to become of the gate's, and theirs, of a tile.
    #[inline(always)]
    fn finish(&self, _n_panels: usize, first_token: usize, n_tokens: usize) {
        if let Some(gate) = self.to.gate {
            let tokens = first_token..first_token + n_tokens;
            Gated {
                task: self,
                op: gate.op,
                tokens,
            }
            .run_on(self.ctx.isa());
        }
    }
}

/// Some groups of columns.
struct Part<'a, const QUADS: usize, const PLANES: usize> {
    panel_idx: usize,
    /// The first group.
    start: usize,
    cells: &'a [Cell<QUADS, PLANES>],
}

/// Multiplies the outputs of some tokens with what `op` gives of the gate.
struct Gated<'a> {
    task: &'a Task<'a>,
    op: Unary,
    tokens: std::ops::Range<usize>,
}

impl Gated<'_> {
    /// Never inlined, for the reason given at `Finish::run_on`.
    #[inline(never)]
    fn run_on(self, isa: Isa) {
        isa.run(self);
    }
}

impl Kernel for Gated<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [gates, sums] =
            [0, 1].map(|panel| self.task.panel_sums(panel, self.tokens.start, false));
        let mut values = [simd.splat(0.0); TILE_TOKENS];
        for token_idx in 0..TILE_TOKENS {
            if token_idx < self.tokens.len() {
                // SAFETY: they belong, for these tokens, to this task alone.
                values[token_idx] = simd.load(&filled_up(unsafe { gates.of(token_idx) }));
            }
        }
        // At once, as none of them waits for another.
        let values = self.op.of_each(simd, values);
        for token_idx in 0..TILE_TOKENS {
            if token_idx < self.tokens.len() {
                // SAFETY: as above.
                let y = unsafe { sums.of(token_idx) };
                store(
                    simd,
                    simd.mul(values[token_idx], simd.load(&filled_up(y))),
                    y,
                );
            }
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
    // No constant, so that the loop over it stays one: written out, it needs more registers than
    // there are.
    let n_quads = black_box(QUADS).min(QUADS);
    let mut acc = [simd.splat(0.0); N];
    assert!(
        x.len() * 8 >= cells.len() * QUADS,
        "as many groups of activations"
    );
    for (i, cell) in cells.iter().enumerate() {
        let part = i % (8 / QUADS);
        // SAFETY: as asserted, a group being eight fours of columns.
        let x = unsafe { x.get_unchecked(i * QUADS / 8) };
        let mut dots = [simd.zero_int(); N];
        for plane in 0..PLANES {
            let mut parts = [simd.load_int(&cell.first[plane]); N];
            for quad in 0..n_quads {
                // SAFETY: n_quads is at most QUADS, and a group is eight fours of columns in 8 /
                // QUADS parts.
                let (weights, codes) = unsafe {
                    (
                        simd.load_b(cell.codes[plane].get_unchecked(quad)),
                        x.codes.get_unchecked(part * QUADS + quad),
                    )
                };
                for n in 0..N {
                    parts[n] = simd.dot_part(parts[n], simd.dup4_b(&codes[n]), weights);
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
        let sums = if QUADS == 8 {
            &x.sums32
        } else {
            &x.sums16[part]
        };
        let (scales, shifts) = (simd.load(&cell.scales), simd.load(&cell.shifts));
        for n in 0..N {
            let values = simd.mul(simd.int_values(dots[n]), scales);
            acc[n] = simd.fma(values, simd.splat(x.scales[n]), acc[n]);
            if !CENTRED {
                acc[n] = simd.fma(shifts, simd.splat(sums[n]), acc[n]);
            }
        }
    }
    acc
}

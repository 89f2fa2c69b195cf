//! Many tokens in f32: 16 rows at a time, or twice 16, are dequantized, by 512 columns, to panels
//! whose lanes are the rows, and all tokens go over them. Two columns in bf16 go as one in f32, but
//! where they are multiplied.

use std::ops::Range;

use super::choose::task_panels;
use super::columns::{LEAST_TOKENS, LINE_BYTES, PackedColumn, block_tokens};
use super::output::{Extent, Output};
use super::source::Source;
use super::tasks::share_len;
use super::tiles::{Inputs, Next, Panels, Tiles};
use crate::quant::BlockType;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx512Bf16, Bf16Kernel};
use crate::simd::{Kernel, LANES, Multiply, Simd};
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// Columns of a panel, at most: a multiple of every block length. Their products are added up one
/// after the other before the sum joins the output, which bounds the rounding error. They are read
/// from the second cache: 256 of one panel would fit the first, and are as fast on AVX2, but with
/// two panels of AVX-512 took 1.05 to 1.08 of the time.
const PANEL_COLS: usize = 512;
/// f32s of scratch per thread: the rows, two panels, and what lies in front of the first whole
/// line: a vector in two lines takes two reads.
fn worker_len(panel_cols: usize) -> usize {
    3 * LANES * panel_cols + LINE_BYTES / size_of::<f32>()
}

/// f32s of scratch: the inputs of a block of tokens, then what each thread needs.
pub(super) fn scratch_len(ctx: &Context, source: Source, n_tokens: usize) -> usize {
    let blocks = Blocks::new(source, n_tokens);
    blocks.inputs_len() + ctx.pool().n_threads() * worker_len(blocks.panel_cols)
}

/// Which tokens and columns are multiplied with all rows before the next.
struct Blocks {
    n_tokens: usize,
    n_cols: usize,
    panel_cols: usize,
}

impl Blocks {
    fn new(source: Source, n_tokens: usize) -> Self {
        let panel_cols = panel_cols(source.n_cols(), source.block_len());
        if n_tokens <= block_tokens(source.n_cols()) {
            return Self {
                n_tokens,
                n_cols: source.n_cols(),
                panel_cols,
            };
        }
        // All rows over some columns, then over those that follow: that takes as many more tokens
        // in the cache, and to fill a panel for each 128 of 1024 columns was an eighth of the time.
        Self {
            n_tokens: n_tokens.min(block_tokens(panel_cols)),
            n_cols: panel_cols,
            panel_cols,
        }
    }

    fn inputs_len(&self) -> usize {
        self.n_tokens * self.n_cols.div_ceil(self.panel_cols) * input_stride(self.panel_cols)
    }
}

pub(super) fn linear_f32(
    ctx: &Context,
    source: Source,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    linear(
        ctx,
        source,
        (x, source.n_cols()),
        n_tokens,
        out,
        scratch,
        &|task| ctx.isa().run(task),
    );
}

/// Pairs of bf16, each as an f32, where those of a token are `stride` apart from those of the next.
#[cfg(target_arch = "x86_64")]
pub(super) fn linear_bf16(
    ctx: &Context,
    simd: Avx512Bf16,
    source: Source,
    (x, stride): (&[f32], usize),
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    linear(ctx, source, (x, stride), n_tokens, out, scratch, &|task| {
        simd.run(task)
    });
}

fn linear(
    ctx: &Context,
    source: Source,
    (x, stride): (&[f32], usize),
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
    run: &(impl Fn(PanelTask) + Sync),
) {
    let Blocks {
        n_tokens: block_tokens,
        n_cols: block_cols,
        panel_cols,
    } = Blocks::new(source, n_tokens);
    for first_token in (0..n_tokens).step_by(block_tokens.max(1)) {
        let tokens = first_token..(first_token + block_tokens).min(n_tokens);
        for start in (0..source.n_cols().max(1)).step_by(block_cols.max(1)) {
            let cols = start..(start + block_cols).min(source.n_cols());
            let block = Block {
                isa: ctx.isa(),
                source,
                n_cols: source.n_cols(),
                tokens: tokens.clone(),
                cols,
                panel_cols,
            };
            let (inputs, scratch) = scratch.split_at_mut(block.inputs_len());
            block.gather(ctx, x, stride, inputs);
            block.multiply(ctx, inputs, out, scratch, run);
        }
    }
}

/// Some tokens and columns.
struct Block<'a> {
    isa: Isa,
    source: Source<'a>,
    /// Of a row.
    n_cols: usize,
    tokens: Range<usize>,
    /// From a multiple of `panel_cols` on.
    cols: Range<usize>,
    panel_cols: usize,
}

impl Block<'_> {
    fn inputs_len(&self) -> usize {
        self.tokens.len()
            * self.cols.len().div_ceil(self.panel_cols)
            * input_stride(self.panel_cols)
    }

    /// Copies its inputs to [panel, token, column]: of rows that are a power of two apart, those of
    /// a tile would take each other's places in the caches.
    fn gather(&self, ctx: &Context, x: &[f32], stride: usize, inputs: &mut [f32]) {
        /// Tokens of a task: some 16 KB, which take longer to copy than to hand to another thread.
        const TASK_TOKENS: usize = 16;
        let (n_tokens, panel_cols) = (self.tokens.len(), self.panel_cols);
        let input_stride = input_stride(panel_cols);
        ctx.pool()
            .run_chunks(inputs, TASK_TOKENS * input_stride, |task_idx, chunk| {
                for (i, to) in chunk.chunks_exact_mut(input_stride).enumerate() {
                    let i = task_idx * TASK_TOKENS + i;
                    let (token_idx, start) = (
                        self.tokens.start + i % n_tokens,
                        self.cols.start + i / n_tokens * panel_cols,
                    );
                    let len = panel_cols.min(self.cols.end - start);
                    to[..len].copy_from_slice(&x[token_idx * stride + start..][..len]);
                }
            });
    }

    fn multiply(
        &self,
        ctx: &Context,
        inputs: &[f32],
        out: &Output,
        scratch: &mut [f32],
        run: &(impl Fn(PanelTask) + Sync),
    ) {
        let (scratch, worker_len) = (SharedMut::new(scratch), worker_len(self.panel_cols));
        let task_rows = task_panels(ctx.isa()) * LANES;
        let n_tasks = self.source.n_rows().div_ceil(task_rows);
        let share_len = share_len(
            ctx,
            self.tokens.len(),
            (12, LEAST_TOKENS),
            self.tokens.len(),
        );
        let n_shares = self.tokens.len().div_ceil(share_len);
        ctx.pool()
            .run_indexed(n_tasks * n_shares, |worker_idx, task_idx| {
                // SAFETY: no two tasks run at once with the same worker index.
                let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
                let (values, panels) = scratch.split_at_mut(LANES * self.panel_cols);
                let panels = PackedColumn::in_scratch(panels);
                let first_token =
                    (self.tokens.start + task_idx / n_tasks * share_len).min(self.tokens.end);
                let end_token = (first_token + share_len).min(self.tokens.end);
                let first_row = task_idx % n_tasks * task_rows;
                let tiles = Tiles {
                    first_token,
                    end_token,
                    out,
                    first_row,
                };
                run(PanelTask {
                    block: self,
                    inputs,
                    tiles,
                    task_rows,
                    values,
                    panels,
                });
            });
    }
}

/// Columns of each panel but the last: as even as whole blocks allow.
fn panel_cols(n_cols: usize, block_len: usize) -> usize {
    let n_panels = n_cols.div_ceil(PANEL_COLS).max(1);
    n_cols
        .div_ceil(n_panels)
        .max(1)
        .next_multiple_of(block_len.max(LANES))
        .min(PANEL_COLS)
}

/// From the inputs of a token to those of the next: an odd number of cache lines, so that those of
/// a tile lie in as many different sets of the first cache.
fn input_stride(panel_cols: usize) -> usize {
    const LINE_COLS: usize = LINE_BYTES / size_of::<f32>();
    (panel_cols.div_ceil(LINE_COLS) | 1) * LINE_COLS
}

struct PanelTask<'a> {
    block: &'a Block<'a>,
    /// As gathered.
    inputs: &'a [f32],
    tiles: Tiles<'a>,
    task_rows: usize,
    /// Rows on their way.
    values: &'a mut [f32],
    panels: &'a mut [PackedColumn],
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.products(simd);
    }
}

#[cfg(target_arch = "x86_64")]
impl Bf16Kernel for PanelTask<'_> {
    #[inline(always)]
    fn run(self, simd: Avx512Bf16) {
        self.products(simd);
    }
}

impl PanelTask<'_> {
    #[inline(always)]
    fn products<M: Multiply>(self, simd: M) {
        let Block {
            tokens,
            cols,
            panel_cols,
            ..
        } = self.block;
        let input_stride = input_stride(*panel_cols);
        let first = (self.tiles.first_token - tokens.start) * input_stride;
        // One panel of no columns where there are none: the outputs are the bias.
        for (panel_idx, start) in (cols.start..cols.end.max(1))
            .step_by(*panel_cols)
            .enumerate()
        {
            let len = (*panel_cols).min(cols.end - start);
            let n_panels = self.tiles.n_panels::<M::Base>();
            for panel_idx in 0..n_panels {
                // Apart from the products, which some instruction sets have in two forms.
                self.block.isa.run(Fill {
                    isa: self.block.isa,
                    source: self.block.source,
                    first_row: self.tiles.first_row + panel_idx * LANES,
                    start,
                    len,
                    panel_cols: *panel_cols,
                    values: self.values,
                    panel: &mut self.panels[panel_idx * panel_cols..]
                        [..len.next_multiple_of(LANES)],
                });
            }
            let data = &self.inputs[panel_idx * tokens.len() * input_stride..];
            let stride = if cols.is_empty() { 0 } else { input_stride };
            let inputs = Inputs {
                data: &data[first.min(data.len())..],
                stride,
            };
            let panels = Panels {
                data: &*self.panels,
                stride: *panel_cols,
                len,
                n_panels,
            };
            let extent = Extent {
                is_first: start == 0,
                is_last: start + len >= self.block.n_cols,
            };
            self.tiles
                .multiply(simd, panels, inputs, extent, self.next(start, len));
        }
    }

    /// What this thread may fill a panel with next: these columns of the rows behind.
    fn next(&self, start: usize, len: usize) -> Next<'_> {
        let source = self.block.source;
        let first_row = self.tiles.first_row + self.task_rows;
        if first_row >= source.n_rows() {
            return Next::default();
        }
        source.next([first_row, self.task_rows], start, len)
    }
}

/// The columns `start..start + len` of 16 rows as a panel: column by column, 16 rows each.
struct Fill<'a> {
    isa: Isa,
    source: Source<'a>,
    first_row: usize,
    start: usize,
    len: usize,
    panel_cols: usize,
    /// Rows on their way.
    values: &'a mut [f32],
    panel: &'a mut [PackedColumn],
}

impl Kernel for Fill<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            isa,
            source,
            first_row,
            start,
            len,
            panel_cols,
            values,
            panel,
        } = self;
        let rows = source.rows();
        let n_rows = (rows.n_rows - first_row).min(LANES);
        // Rows past the end are the last row again; their outputs are not stored.
        let row_idx = |i: usize| first_row + i.min(n_rows - 1);
        let row = |i: usize| source.chunk(rows.get(row_idx(i)), start, len);
        if source.write_panel(simd, first_row, start, panel) {
            return;
        }
        if let Some(ty @ (BlockType::Bf16 | BlockType::F16)) = source.float_type() {
            let rows: [&[u8]; LANES] = std::array::from_fn(row);
            if ty == BlockType::Bf16 {
                transpose_each(simd, panel, |i, at| {
                    simd.load_bf16(&filled_up(rows[i], 32 * at))
                });
            } else {
                transpose_each(simd, panel, |i, at| {
                    simd.load_f16(&filled_up(rows[i], 32 * at))
                });
            }
            return;
        }
        for (i, values) in values.chunks_exact_mut(panel_cols).enumerate() {
            // The next row is read while this one is written: they are far apart in memory, where
            // nothing else foresees it.
            row(i + 1)
                .chunks(LINE_BYTES)
                .for_each(|line| simd.prefetch(line.as_ptr().cast()));
            source.values(isa, row_idx(i), start, &mut values[..len]);
            values[len..len.next_multiple_of(LANES)].fill(0.0);
        }
        let vectors: &[[f32; LANES]] = values.as_chunks().0;
        transpose_each(simd, panel, |i, at| {
            simd.load(&vectors[i * panel_cols / LANES + at])
        });
    }
}

/// 32 bytes from `start` on; zeros where there are none.
#[inline(always)]
fn filled_up(row: &[u8], start: usize) -> [u8; 32] {
    let row = &row[start..];
    row.first_chunk().copied().unwrap_or_else(|| {
        let mut bytes = [0; 32];
        bytes[..row.len()].copy_from_slice(row);
        bytes
    })
}

/// A panel from 16 columns at a time of each of 16 rows: `load` gives the columns from `16 * at` on
/// of row `i`.
#[inline(always)]
fn transpose_each<S: Simd>(
    simd: S,
    panel: &mut [PackedColumn],
    load: impl Fn(usize, usize) -> S::F,
) {
    for (at, block) in panel.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let mut lanes = [simd.splat(0.0); LANES];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = load(i, at);
        }
        simd.transpose(&mut lanes);
        for (lane, out) in lanes.into_iter().zip(block) {
            simd.store(lane, &mut out.0);
        }
    }
}

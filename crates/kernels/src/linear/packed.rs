//! Float weights packed once: 16 rows are a panel whose lanes are the rows, column after column, so
//! that a product reads them from start to end and has nothing to unpack. Where the machine
//! multiplies bf16, two columns of it go as one of f32.

#[cfg(target_arch = "x86_64")]
use super::bf16::{self, bf16_products};
use super::choose::task_panels;
use super::columns::{PackedColumn, block_tokens};
use super::output::{Extent, Output};
use super::source::Source;
use super::tasks::{LEAST_PACKED_TOKENS, share_len};
use super::tiles::{Inputs, Next, Panels, Tiles};
use super::weight::Weight;
use crate::quant::BlockType;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx512Bf16, Bf16Kernel};
use crate::simd::{Kernel, LANES, Multiply, Simd};
use crate::{Context, Isa};

/// Columns whose products are added up one after the other before the sum joins the output, at
/// most, for each panel of a task: it bounds the rounding error. Of one panel 384 are 24 KiB, which
/// leaves a first cache of 32 KiB room for the inputs. Of two panels twice as many are read from
/// the second cache, and as fast: fewer in the first took 1.07 to 1.13 of the time.
const MAX_COLS: usize = 384;

/// A weight matrix [n_rows, n_cols] in panels, as [`pack`] makes them.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// f32 or bf16.
    pub ty: BlockType,
    /// [n_rows / 16, n_cols], or half as many columns of bf16, [`packed_len`] in all; rows past the
    /// end are zeros.
    pub panels: &'a [PackedColumn],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Columns of a matrix in panels; `None` if it is not packed: if it is of another type than f32
/// and, where the instruction set [has its products](Isa::has_bf16) and the columns are even, bf16,
/// or if the bytes are too many to count.
pub fn packed_len(isa: Isa, ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    let n_columns = n_rows
        .div_ceil(LANES)
        .checked_mul(panel_len(isa, ty, n_cols)?)?;
    n_columns
        .checked_mul(size_of::<PackedColumn>())
        .map(|_| n_columns)
}

/// Those of a panel.
fn panel_len(isa: Isa, ty: BlockType, n_cols: usize) -> Option<usize> {
    match ty {
        BlockType::F32 => Some(n_cols),
        BlockType::Bf16 if isa.has_bf16() && n_cols.is_multiple_of(2) => Some(n_cols / 2),
        _ => None,
    }
}

/// Packs a matrix of floats; one of f16 as f32.
///
/// # Panics
/// If the weight is not well formed, or `panels` is not of [`packed_len`], for f16 of that of f32.
pub fn pack(ctx: &Context, weight: &Weight, panels: &mut [PackedColumn]) {
    let rows = weight.checked();
    let ty = match weight.ty {
        BlockType::F16 => BlockType::F32,
        ty => ty,
    };
    assert_eq!(
        Some(panels.len()),
        packed_len(ctx.isa(), ty, weight.n_rows, weight.n_cols),
        "panels"
    );
    let panel_len = panel_len(ctx.isa(), ty, weight.n_cols).unwrap_or(0);
    ctx.pool()
        .run_chunks(panels, panel_len.max(1), |panel_idx, panel| {
            if ty == BlockType::F32 {
                let source = Source::Blocks(*weight);
                let first_row = panel_idx * LANES;
                ctx.isa().run(Pack {
                    isa: ctx.isa(),
                    source,
                    first_row,
                    panel,
                });
                return;
            }
            for lane in 0..LANES {
                let row_idx = panel_idx * LANES + lane;
                if row_idx >= weight.n_rows {
                    panel.iter_mut().for_each(|column| column.0[lane] = 0.0);
                    continue;
                }
                for (column, bytes) in panel.iter_mut().zip(rows.get(row_idx).as_chunks().0) {
                    column.0[lane] = f32::from_le_bytes(*bytes);
                }
            }
        });
}

/// 16 rows as a panel of f32.
struct Pack<'a> {
    isa: Isa,
    source: Source<'a>,
    first_row: usize,
    panel: &'a mut [PackedColumn],
}

impl Kernel for Pack<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        /// Columns at once: a multiple of 16.
        const CHUNK_LEN: usize = 256;
        let n_rows = (self.source.rows().n_rows - self.first_row).min(LANES);
        // Rows past the end are zeros.
        let mut values = [[0.0; CHUNK_LEN]; LANES];
        for (i, panel) in self.panel.chunks_mut(CHUNK_LEN).enumerate() {
            for (lane, values) in values.iter_mut().enumerate().take(n_rows) {
                let row_idx = self.first_row + lane;
                let values = &mut values[..panel.len()];
                self.source.values(self.isa, row_idx, i * CHUNK_LEN, values);
            }
            let (blocks, last) = panel.as_chunks_mut::<LANES>();
            for (at, block) in blocks.iter_mut().enumerate() {
                let mut lanes = [simd.splat(0.0); LANES];
                for (lane, values) in lanes.iter_mut().zip(&values) {
                    *lane = simd.load(&values.as_chunks().0[at]);
                }
                simd.transpose(&mut lanes);
                for (lane, column) in lanes.into_iter().zip(block) {
                    simd.store(lane, &mut column.0);
                }
            }
            for (at, column) in last.iter_mut().enumerate() {
                for (number, values) in column.0.iter_mut().zip(&values) {
                    *number = values[LANES * blocks.len() + at];
                }
            }
        }
    }
}

/// f32s of scratch that [`linear`] needs.
pub(super) fn scratch_len(weight: &Packed, n_tokens: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if weight.ty == BlockType::Bf16 {
        return bf16::activations_len(n_tokens, weight.n_cols);
    }
    let _ = (weight, n_tokens);
    0
}

/// The product with a packed matrix; sums are rounded in another order than those of rows.
///
/// # Panics
/// If a size does not fit, or the scratch is shorter than [`scratch_len`].
pub(super) fn linear(
    ctx: &Context,
    weight: &Packed,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    let Packed {
        ty,
        panels,
        n_rows,
        n_cols,
    } = *weight;
    assert_eq!(
        Some(panels.len()),
        packed_len(ctx.isa(), ty, n_rows, n_cols),
        "panels"
    );
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = bf16_products(ctx, ty) {
        let scratch = &mut scratch[..scratch_len(weight, n_tokens)];
        let (x, stride) = bf16::round(ctx, simd, x, n_tokens, n_cols, scratch);
        let panels = (panels, n_cols / 2);
        return multiply(ctx, panels, (x, stride), n_tokens, out, &|task| {
            simd.run(task)
        });
    }
    let _ = scratch;
    let panels = (panels, n_cols);
    multiply(ctx, panels, (x, n_cols), n_tokens, out, &|task| {
        ctx.isa().run(task)
    });
}

/// Panels of `n_cols` columns, and inputs of tokens that are `stride` apart.
fn multiply(
    ctx: &Context,
    (panels, n_cols): (&[PackedColumn], usize),
    (x, stride): (&[f32], usize),
    n_tokens: usize,
    out: &Output,
    run: &(impl Fn(PanelTask) + Sync),
) {
    let block_tokens = share_len(
        ctx,
        n_tokens,
        (12, LEAST_PACKED_TOKENS),
        block_tokens(n_cols),
    );
    let task_panels = task_panels(ctx.isa());
    let n_tasks = out.n_rows.div_ceil(task_panels * LANES);
    ctx.pool()
        .run(n_tasks * n_tokens.div_ceil(block_tokens), |task_idx| {
            let block_idx = task_idx / n_tasks;
            let panel_idx = task_idx % n_tasks * task_panels;
            let first_token = block_idx * block_tokens;
            let end_token = (first_token + block_tokens).min(n_tokens);
            let tiles = Tiles {
                first_token,
                end_token,
                out,
                first_row: panel_idx * LANES,
            };
            let of_task = |idx: usize| {
                &panels[(idx * n_cols).min(panels.len())
                    ..((idx + task_panels) * n_cols).min(panels.len())]
            };
            let next = of_task(panel_idx + task_panels);
            let x = &x[first_token * stride..];
            run(PanelTask {
                tiles,
                x,
                stride,
                n_cols,
                panels: of_task(panel_idx),
                next,
            });
        });
}

struct PanelTask<'a> {
    tiles: Tiles<'a>,
    /// From the first token on.
    x: &'a [f32],
    /// From token to token.
    stride: usize,
    n_cols: usize,
    /// One or two, one behind the other.
    panels: &'a [PackedColumn],
    /// What this thread may multiply next.
    next: &'a [PackedColumn],
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
        let n_cols = self.n_cols;
        let n_panels = self.tiles.n_panels::<M::Base>();
        let n_parts = n_cols.div_ceil(n_panels * MAX_COLS).max(1);
        let part_cols = n_cols.div_ceil(n_parts).max(1);
        for start in (0..n_cols.max(1)).step_by(part_cols) {
            let len = part_cols.min(n_cols - start);
            let (following, first) = if start + len < n_cols {
                (self.panels, start + len)
            } else {
                (self.next, 0)
            };
            let rows = PackedColumn::bytes(following.get(first..).unwrap_or(&[]));
            let col_bytes = size_of::<PackedColumn>();
            let n_bytes = part_cols.min(n_cols.saturating_sub(first)) * col_bytes;
            let following = Next {
                rows,
                stride: n_cols * col_bytes,
                n_bytes,
            };
            let inputs = Inputs {
                data: &self.x[start.min(self.x.len())..],
                stride: self.stride,
            };
            let panels = Panels {
                data: &self.panels[start..],
                stride: n_cols,
                len,
                n_panels,
            };
            let extent = Extent {
                is_first: start == 0,
                is_last: start + len >= n_cols,
            };
            self.tiles.multiply(simd, panels, inputs, extent, following);
        }
    }
}

//! f32 weights packed once: 16 rows are a panel whose lanes are the rows, column after column, so that a product reads them
//! from start to end and has nothing to unpack.

use super::dense::{Inputs, Next, Tiles, block_tokens};
use super::{Output, Weight, f32_bytes};
use crate::Context;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};

/// Columns whose products are added up one after the other before the sum joins the output, at most: it bounds the rounding
/// error. 384 are 24 KiB of a panel, which leaves a first cache of 32 KiB room for the inputs.
const MAX_COLS: usize = 384;

/// A weight matrix [n_rows, n_cols] in panels, as [`pack`] makes them.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// [n_rows / 16, n_cols, 16], [`packed_len`] values; rows past the end are zeros.
    pub panels: &'a [f32],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// f32s of a matrix in panels; `None` if they are too many to count.
pub fn packed_len(n_rows: usize, n_cols: usize) -> Option<usize> {
    n_rows.checked_next_multiple_of(LANES)?.checked_mul(n_cols)
}

/// Packs a matrix of f32 values.
///
/// # Panics
/// If the weight is not of f32, is not well formed, or `panels` is not of [`packed_len`].
pub fn pack(ctx: &Context, weight: &Weight, panels: &mut [f32]) {
    let rows = weight.checked();
    assert_eq!(weight.ty, BlockType::F32, "values to pack");
    assert_eq!(Some(panels.len()), packed_len(weight.n_rows, weight.n_cols), "panels");
    ctx.pool().run_chunks(panels, (weight.n_cols * LANES).max(1), |panel_idx, panel| {
        for lane in 0..LANES {
            let row_idx = panel_idx * LANES + lane;
            if row_idx >= weight.n_rows {
                panel.iter_mut().skip(lane).step_by(LANES).for_each(|v| *v = 0.0);
                continue;
            }
            for (value, bytes) in panel.iter_mut().skip(lane).step_by(LANES).zip(rows.get(row_idx).as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    });
}

/// The product of [`linear_f32`](super::linear_f32) with a packed matrix; sums are rounded in another order.
///
/// # Panics
/// If a size does not fit.
pub fn linear_packed(ctx: &Context, weight: &Packed, x: &[f32], n_tokens: usize, bias: Option<&[f32]>, y: &mut [f32]) {
    let Packed { panels, n_rows, n_cols } = *weight;
    assert_eq!(Some(panels.len()), packed_len(n_rows, n_cols), "panels");
    assert_eq!(Some(x.len()), n_tokens.checked_mul(n_cols), "inputs of {n_tokens} tokens");
    let out = Output::new(n_rows, n_tokens, bias, y);
    let block_tokens = block_tokens(n_cols);
    let n_panels = n_rows.div_ceil(LANES);
    ctx.pool().run(n_panels * n_tokens.div_ceil(block_tokens), |task_idx| {
        let (block_idx, panel_idx) = (task_idx / n_panels, task_idx % n_panels);
        let first_token = block_idx * block_tokens;
        let end_token = (first_token + block_tokens).min(n_tokens);
        let tiles = Tiles { first_token, end_token, out: &out, first_row: panel_idx * LANES };
        let panel = |idx: usize| panels[idx * n_cols * LANES..][..n_cols * LANES].as_chunks().0;
        // Each thread takes every n-th panel or so.
        let next_idx = panel_idx + ctx.pool().n_threads();
        let next = if next_idx < n_panels { panel(next_idx) } else { &[] };
        ctx.isa().run(PanelTask { tiles, x: &x[first_token * n_cols..], panel: panel(panel_idx), next });
    });
}

struct PanelTask<'a> {
    tiles: Tiles<'a>,
    /// From the first token on.
    x: &'a [f32],
    panel: &'a [[f32; LANES]],
    /// What this thread may multiply next.
    next: &'a [[f32; LANES]],
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n_cols = self.panel.len();
        let n_parts = n_cols.div_ceil(MAX_COLS).max(1);
        let part_cols = n_cols.div_ceil(n_parts).max(1);
        for start in (0..n_cols.max(1)).step_by(part_cols) {
            let len = part_cols.min(n_cols - start);
            let following = self.panel.get(start + len..).filter(|p| !p.is_empty()).unwrap_or(self.next);
            let inputs = Inputs { data: &self.x[start.min(self.x.len())..], stride: n_cols };
            let rows = f32_bytes(following[..part_cols.min(following.len())].as_flattened());
            let following = Next { rows, stride: rows.len(), n_bytes: rows.len() };
            self.tiles.multiply(simd, &self.panel[start..][..len], inputs, start > 0, following);
        }
    }
}

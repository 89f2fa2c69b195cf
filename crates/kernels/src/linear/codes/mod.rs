//! Quantised weights packed once, in the order that products read them: 16 rows are a panel whose lanes are the rows.
//!
//! Nothing is summed up across lanes, and scales are multiplied for 16 rows at once: a third to a half of the instructions
//! that rows as they are stored take, for about as many bytes. A panel is, for each 32 columns, the [codes](layout) and the
//! factors of its rows. For few tokens they are multiplied as they are read; for more, a panel is first unpacked to bytes,
//! which all tokens go over (`panel`).

mod layout;
mod pack;
mod tile;

use layout::{Layout, LayoutTask, with_layout};
pub use pack::{pack_codes, pack_codes_scratch_len};

use super::panel::{self, Target, multiply_panel};
use super::q8::{self, q8_scratch_len};
use super::{Output, parts, run_row_parts};
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::{SharedMut, apart};
use crate::{Context, Isa};

/// Up to this many tokens, codes are unpacked for each tile of tokens again.
const MOST_TILED_TOKENS: usize = 8;

/// More tokens are multiplied in [`parts`], unless all codes are of eight bits and would be two planes: that is no faster.
fn is_in_parts(isa: Isa, mut types: impl Iterator<Item = BlockType>, n_tokens: usize) -> bool {
    let is_slow = |ty| ty == BlockType::Q8_0 && parts::has_planes(isa);
    n_tokens > MOST_TILED_TOKENS && parts::is_for(isa) && types.any(|ty| !is_slow(ty))
}

/// Elsewhere codes of four bits are unpacked for each tile of any number of tokens: that takes no more than two instructions, and half as
/// much of the first-level cache as bytes. Where activations are multiplied in parts, codes of eight bits need no unpacking.
fn is_tiled(isa: Isa, ty: BlockType, n_tokens: usize) -> bool {
    let is_short = matches!(ty, BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4K);
    n_tokens <= MOST_TILED_TOKENS || is_short || ty == BlockType::Q8_0 && parts::is_for(isa)
}

/// A cache line: panels begin at a multiple of it, so that no vector lies in two where the matrix does.
pub const LINE_BYTES: usize = 64;

/// A matrix as [`pack_codes`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct PackedCodes<'a> {
    /// What it was packed from.
    pub ty: BlockType,
    /// Its panels, one behind another; [`packed_codes_len`] bytes. Read fastest where they begin at a multiple of [`LINE_BYTES`].
    pub bytes: &'a [u8],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Bytes of a matrix of this type, packed; `None` for types that are not packed: those of floats, and those that would take
/// much more room.
pub fn packed_codes_len(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    n_rows.div_ceil(LANES).checked_mul(panel_bytes(ty, n_cols)?)
}

fn panel_bytes(ty: BlockType, n_cols: usize) -> Option<usize> {
    struct OfSteps(usize);
    impl LayoutTask for OfSteps {
        type Output = Option<usize>;
        fn run<L: Layout>(self) -> Option<usize> {
            (2 * self.0).checked_mul(L::SUPER_BYTES).map(|bytes| bytes / L::N_GROUPS)
        }
    }
    with_layout(ty, OfSteps(n_cols.div_ceil(64)))??.checked_next_multiple_of(LINE_BYTES)
}

/// A packed matrix and where its product goes.
#[derive(Debug)]
pub struct CodesProduct<'a> {
    weight: PackedCodes<'a>,
    out: Output<'a>,
}

impl<'a> CodesProduct<'a> {
    /// `y` is [n_tokens, n_rows].
    ///
    /// # Panics
    /// If a size does not fit.
    pub fn new(weight: PackedCodes<'a>, n_tokens: usize, bias: Option<&'a [f32]>, y: &'a mut [f32]) -> Self {
        let PackedCodes { ty, bytes, n_rows, n_cols } = weight;
        assert_eq!(Some(bytes.len()), packed_codes_len(ty, n_rows, n_cols), "bytes");
        Self { weight, out: Output::new(n_rows, n_tokens, bias, y) }
    }

    fn n_panels(&self) -> usize {
        self.weight.n_rows.div_ceil(LANES)
    }

    fn panel(&self, panel_idx: usize) -> &'a [u8] {
        let panel_len = self.weight.bytes.len() / self.n_panels();
        &self.weight.bytes[panel_idx * panel_len..][..panel_len]
    }

    fn target(&self, panel_idx: usize) -> Target<'_> {
        let first_row = panel_idx * LANES;
        Target { out: &self.out, first_row, n_rows: (self.weight.n_rows - first_row).min(LANES) }
    }
}

/// f32s of scratch that [`linear_codes`] needs for matrices of this type; for several, the most of theirs.
pub fn linear_codes_scratch_len(ctx: &Context, ty: BlockType, n_tokens: usize, n_cols: usize) -> usize {
    let isa = ctx.isa();
    // In parts with others, if not by itself.
    let is_tiled = is_tiled(isa, ty, n_tokens) && (n_tokens <= MOST_TILED_TOKENS || !parts::is_for(isa));
    let unpacked = if is_tiled { 0 } else { ctx.pool().n_threads() * panel::worker_len(isa, ty, n_cols) };
    q8_scratch_len(n_tokens, n_cols) + unpacked
}

/// The products of [`linear_q8`](super::linear_q8) of the same activations with packed matrices. The activations are quantised once,
/// and threads divide the rows of all matrices among them, or of one after another for many tokens.
///
/// # Panics
/// If a size does not fit or the scratch is too short.
pub fn linear_codes(ctx: &Context, products: &mut [CodesProduct], x: &[f32], n_tokens: usize, scratch: &mut [f32]) {
    let products = &*products;
    let Some(n_cols) = products.first().map(|product| product.weight.n_cols) else { return };
    assert!(products.iter().all(|product| product.weight.n_cols == n_cols), "matrices of as many columns");
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(n_tokens, n_cols));
    let is_tiled = |product: &&CodesProduct| is_tiled(ctx.isa(), product.weight.ty, n_tokens);
    let in_parts = is_in_parts(ctx.isa(), products.iter().map(|product| product.weight.ty), n_tokens);
    let form = if in_parts { q8::Form::Tiles } else { q8::Form::Blocks };
    let x = q8::quantize(ctx, x, n_tokens, n_cols, activations, form);
    if in_parts {
        for product in products {
            let ty = product.weight.ty;
            parts::multiply(ctx, ty, &x, &product.out, &mut *scratch, |first_row, scratch| {
                let panel = product.panel(first_row / LANES);
                ctx.isa().run(pack::Unpack { ty, panel, n_steps: x.n_steps(), scratch })
            });
        }
        return;
    }
    let of_tiles = || products.iter().filter(is_tiled);
    run_row_parts(ctx.pool(), of_tiles().map(CodesProduct::n_panels).sum(), 1, |start, len| {
        let mut first = 0;
        for product in of_tiles() {
            let panels = first..first + product.n_panels();
            for panel_idx in start.max(panels.start)..(start + len).min(panels.end) {
                let (panel, target) = (product.panel(panel_idx - first), product.target(panel_idx - first));
                ctx.isa().run(tile::PanelTask { ty: product.weight.ty, panel, x: &x, target });
            }
            first = panels.end;
        }
    });
    let worker_len = panel::scratch_len(n_cols);
    let scratch = SharedMut::new(scratch);
    for product in products.iter().filter(|product| !is_tiled(product)) {
        ctx.pool().run_indexed(product.n_panels(), |worker_idx, task_idx| {
            // SAFETY: no two tasks run at once with the same worker index.
            let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
            let panel_idx = apart(task_idx, product.n_panels(), ctx.pool().n_threads());
            let (panel, target) = (product.panel(panel_idx), product.target(panel_idx));
            ctx.isa().run(Unpacked { ty: product.weight.ty, panel, x: &x, target, scratch });
        });
    }
}

/// A panel that is unpacked first.
struct Unpacked<'a> {
    ty: BlockType,
    panel: &'a [u8],
    x: &'a q8::Q8Activations<'a>,
    target: Target<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for Unpacked<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Unpacked { ty, panel, x, target, scratch } = self;
        let panel = pack::Unpack { ty, panel, n_steps: x.n_steps(), scratch }.run(simd);
        multiply_panel(simd, ty, panel, x, target);
    }
}

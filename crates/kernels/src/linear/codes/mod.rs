//! Quantised weights packed once, in the order that products read them: 16 rows are a panel whose
//! lanes are the rows.
//!
//! Nothing is summed up across lanes, and scales are multiplied for 16 rows at once: a third to a
//! half of the instructions that rows as they are stored take, for about as many bytes. A panel is,
//! for each 32 columns, the [codes](layout) and the factors of its rows. For few tokens they are
//! multiplied as they are read; for more, a panel is first unpacked to bytes, which all tokens go
//! over (`panel`).

mod layout;
mod pack;
mod screen;
mod tile;

use std::ops::Range;

use layout::{Group, Layout, LayoutTask, with_layout};
pub use pack::{pack_codes, pack_codes_scratch_len};
pub use screen::{linear_codes_best, linear_codes_best_scratch_len};

use super::panel::{self, Target, multiply_panel};
use super::q8::{self, q8_scratch_len};
use super::{Output, Start, Weight, parts, run_row_parts};
use crate::activation::Unary;
use crate::quant::{BlockType, has_format};
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// Up to this many tokens, codes are unpacked for each tile of tokens again.
const MOST_TILED_TOKENS: usize = 8;

/// More tokens are multiplied in [`parts`], unless all codes are packed, of eight bits, and would
/// be two planes, which is no faster, or would be [fitted to 8 bits](parts::is_wide) and are a
/// vocabulary's.
fn is_in_parts<'a>(
    isa: Isa,
    mut weights: impl Iterator<Item = Codes<'a>>,
    n_tokens: usize,
) -> bool {
    let is_apart = |weight: &Codes| match weight {
        _ if parts::is_wide(isa) => is_vocabulary(weight),
        Codes::Packed(packed) => packed.ty == BlockType::Q8_0 && parts::has_planes(isa),
        Codes::Stored(_) => false,
    };
    n_tokens > MOST_TILED_TOKENS && parts::is_for(isa) && weights.any(|weight| !is_apart(&weight))
}

/// True for so many rows that the outputs are logits. Of what a perplexity lost by fitted codes,
/// these had a third to a half.
fn is_vocabulary(weight: &Codes) -> bool {
    is_many_rows(weight.n_rows(), weight.n_cols())
}

fn is_many_rows(n_rows: usize, n_cols: usize) -> bool {
    n_rows / 16 > n_cols
}

/// True where a packed matrix has its codes' lower bits apart, so that rows can be
/// [screened](linear_codes_best).
fn is_split(ty: BlockType, n_rows: usize, n_cols: usize) -> bool {
    ty == BlockType::Q8_0 && is_many_rows(n_rows, n_cols)
}

/// Elsewhere codes of four bits are unpacked for each tile of any number of tokens: that takes no
/// more than two instructions, and half as much of the first-level cache as bytes. Where
/// activations are multiplied in parts, codes of eight bits need no unpacking but where they are
/// split: those are for up to two tiles of tokens, which takes 0.8 of the time (AVX-512, AMD EPYC
/// of family 26).
fn is_tiled(isa: Isa, packed: &PackedCodes, n_tokens: usize) -> bool {
    let is_short = matches!(
        packed.ty,
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4K
    );
    let is_whole = packed.ty == BlockType::Q8_0 && !packed.is_split();
    let is_two_tiles =
        packed.is_split() && parts::is_wide(isa) && n_tokens <= 2 * MOST_TILED_TOKENS;
    n_tokens <= MOST_TILED_TOKENS || is_two_tiles || is_short || is_whole && parts::is_for(isa)
}

/// A cache line: panels begin at a multiple of it, so that no vector lies in two where the matrix
/// does.
pub const LINE_BYTES: usize = 64;

/// A matrix as [`pack_codes`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct PackedCodes<'a> {
    /// What it was packed from.
    pub ty: BlockType,
    /// Its panels, one behind another; [`packed_codes_len`] bytes. Read fastest where they begin at
    /// a multiple of [`LINE_BYTES`].
    pub bytes: &'a [u8],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// A quantised matrix.
#[derive(Debug, Clone, Copy)]
pub enum Codes<'a> {
    /// As it is stored; not of a float type.
    Stored(Weight<'a>),
    /// For products of few tokens.
    Packed(PackedCodes<'a>),
}

impl<'a> From<Weight<'a>> for Codes<'a> {
    fn from(weight: Weight<'a>) -> Self {
        Self::Stored(weight)
    }
}

impl<'a> From<PackedCodes<'a>> for Codes<'a> {
    fn from(packed: PackedCodes<'a>) -> Self {
        Self::Packed(packed)
    }
}

impl<'a> Codes<'a> {
    /// What it is stored as, or was packed from.
    pub fn ty(&self) -> BlockType {
        match self {
            Self::Stored(Weight { ty, .. }) | Self::Packed(PackedCodes { ty, .. }) => *ty,
        }
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Stored(Weight { n_rows, .. }) | Self::Packed(PackedCodes { n_rows, .. }) => {
                *n_rows
            }
        }
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        match self {
            Self::Stored(Weight { n_cols, .. }) | Self::Packed(PackedCodes { n_cols, .. }) => {
                *n_cols
            }
        }
    }

    fn check(&self) {
        match self {
            Self::Stored(weight) => {
                let _: super::Rows = weight.checked();
                assert!(
                    has_format(weight.ty),
                    "a weight of type {:?} has no codes to multiply",
                    weight.ty
                );
            }
            Self::Packed(PackedCodes {
                ty,
                bytes,
                n_rows,
                n_cols,
            }) => {
                assert_eq!(
                    Some(bytes.len()),
                    packed_codes_len(*ty, *n_rows, *n_cols),
                    "bytes"
                );
            }
        }
    }

    /// The codes of 16 rows, or of those that there are, as bytes.
    pub(super) fn fill<'s>(
        &self,
        ctx: &Context,
        first_row: usize,
        n_steps: usize,
        scratch: &'s mut [f32],
    ) -> panel::Panel<'s> {
        let ty = self.ty();
        match self {
            Self::Stored(weight) => ctx.isa().run(panel::FillTask {
                ty,
                rows: weight.rows(),
                n_steps,
                scratch,
                first_row,
            }),
            Self::Packed(packed) => ctx.isa().run(pack::Unpack {
                ty,
                panel: packed.panel(first_row / LANES),
                n_steps,
                scratch,
            }),
        }
    }

    /// What [`Self::fill`] reads, lower bits that are apart left out; nothing past the last row.
    pub(super) fn bytes(&self, first_row: usize) -> &'a [u8] {
        if first_row >= self.n_rows() {
            return &[];
        }
        match self {
            Self::Stored(weight) => {
                let rows = weight.rows();
                &rows.bytes[first_row * rows.row_bytes
                    ..(first_row + LANES).min(rows.n_rows) * rows.row_bytes]
            }
            Self::Packed(packed) => packed.panel(first_row / LANES).upper,
        }
    }
}

impl<'a> PackedCodes<'a> {
    fn n_panels(&self) -> usize {
        self.n_rows.div_ceil(LANES)
    }

    /// True where rows can be [screened](linear_codes_best): Q8_0 of more than 16 rows for each
    /// column, as a vocabulary has.
    pub fn is_split(&self) -> bool {
        is_split(self.ty, self.n_rows, self.n_cols)
    }

    fn panel(&self, panel_idx: usize) -> PanelBytes<'a> {
        let places = Places::new(self.ty, self.n_rows, self.n_cols).unwrap_or_default();
        let [upper, lower] = places.of(panel_idx);
        PanelBytes {
            upper: &self.bytes[upper],
            lower: &self.bytes[lower],
        }
    }
}

/// A panel of a packed matrix.
#[derive(Clone, Copy)]
struct PanelBytes<'a> {
    /// Groups of columns; behind them, where codes are split, what [`screen`] needs of each row.
    upper: &'a [u8],
    /// The lower bits of split codes.
    lower: &'a [u8],
}

impl<'a> PanelBytes<'a> {
    fn is_split(&self) -> bool {
        !self.lower.is_empty()
    }

    /// A group whose bytes are these.
    #[inline(always)]
    fn group<L: Layout>(&self, at: usize, bytes: &'a [u8]) -> Group<'a> {
        Group {
            bytes,
            lower: &self.lower[at * L::LOWER_BYTES..][..L::LOWER_BYTES],
        }
    }
}

/// Where the panels of a packed matrix are: the lower bits of split codes behind all others, so
/// that who reads these reads on.
#[derive(Clone, Copy, Default)]
struct Places {
    n_panels: usize,
    /// Bytes of a panel.
    upper_len: usize,
    /// Bytes of the lower bits of a panel.
    lower_len: usize,
}

impl Places {
    /// `None` for types that are not packed, and more bytes than can be counted.
    fn new(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<Self> {
        struct OfGroups(usize);
        impl LayoutTask for OfGroups {
            type Output = Option<[usize; 2]>;
            fn run<L: Layout>(self) -> Self::Output {
                let upper = self
                    .0
                    .checked_mul(L::SUPER_BYTES)
                    .map(|bytes| bytes / L::N_GROUPS)?;
                Some([upper, self.0.checked_mul(L::LOWER_BYTES)?])
            }
        }
        let is_split = is_split(ty, n_rows, n_cols);
        let [upper, lower_len] =
            with_layout(ty, is_split, OfGroups(n_cols.div_ceil(64).checked_mul(2)?))??;
        let upper = if is_split {
            upper.checked_add(screen::ROWS_BYTES)?
        } else {
            upper
        };
        let upper_len = upper.checked_next_multiple_of(LINE_BYTES)?;
        let places = Self {
            n_panels: n_rows.div_ceil(LANES),
            upper_len,
            lower_len,
        };
        places.len().map(|_| places)
    }

    /// Bytes of all panels.
    fn len(&self) -> Option<usize> {
        self.n_panels
            .checked_mul(self.upper_len.checked_add(self.lower_len)?)
    }

    /// The bytes of a panel, and its lower bits.
    fn of(&self, panel_idx: usize) -> [Range<usize>; 2] {
        let upper = panel_idx * self.upper_len;
        let lower = self.n_panels * self.upper_len + panel_idx * self.lower_len;
        [upper..upper + self.upper_len, lower..lower + self.lower_len]
    }
}

/// Bytes of a matrix of this type, packed; `None` for types that are not packed: those of floats,
/// and those that would take much more room.
pub fn packed_codes_len(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    Places::new(ty, n_rows, n_cols)?.len()
}

/// A quantised matrix and where its product goes.
#[derive(Debug)]
pub struct CodesProduct<'a> {
    weight: Codes<'a>,
    out: Output<'a>,
}

impl<'a> CodesProduct<'a> {
    /// `y` is [n_tokens, n_rows].
    ///
    /// # Panics
    /// If the matrix is of floats or not well formed, or a size does not fit.
    pub fn new(
        weight: impl Into<Codes<'a>>,
        n_tokens: usize,
        start: Start<'a>,
        y: &'a mut [f32],
    ) -> Self {
        Self::of(weight.into(), n_tokens, start, y)
    }

    fn of(weight: Codes<'a>, n_tokens: usize, start: Start<'a>, y: &'a mut [f32]) -> Self {
        weight.check();
        Self {
            weight,
            out: Output::new(weight.n_rows(), n_tokens, start, y),
        }
    }

    /// The matrix, where it is packed and its panels are multiplied as they are.
    fn tiled(&self, isa: Isa, n_tokens: usize) -> Option<PackedCodes<'a>> {
        match self.weight {
            Codes::Packed(packed) if is_tiled(isa, &packed, n_tokens) => Some(packed),
            _ => None,
        }
    }

    fn target(&self, panel_idx: usize) -> Target<'_> {
        let first_row = panel_idx * LANES;
        Target {
            out: &self.out,
            first_row,
        }
    }
}

/// f32s of scratch that [`linear_codes`] needs for a matrix; for several, the most of theirs.
pub fn linear_codes_scratch_len<'a>(
    ctx: &Context,
    weight: impl Into<Codes<'a>>,
    n_tokens: usize,
) -> usize {
    let (isa, weight) = (ctx.isa(), weight.into());
    // In parts with others, if not by itself.
    let is_tiled = matches!(weight, Codes::Packed(packed) if is_tiled(isa, &packed, n_tokens))
        && (n_tokens <= MOST_TILED_TOKENS || !parts::is_for(isa));
    let worker_len = if is_tiled {
        0
    } else {
        panel::worker_len(isa, weight.ty(), weight.n_cols())
    };
    q8_scratch_len(n_tokens, weight.n_cols()) + ctx.pool().n_threads() * worker_len
}

/// The products of [`linear_q8`](super::linear_q8) of the same activations with several matrices;
/// codes are fitted for more than eight tokens, and not of a matrix of more than 16 rows for each
/// column. The activations are quantised once, and threads divide the rows of all packed matrices
/// among them, or of one after another for many tokens.
///
/// # Panics
/// If a size does not fit or the scratch is too short.
pub fn linear_codes(
    ctx: &Context,
    products: &mut [CodesProduct],
    x: &[f32],
    n_tokens: usize,
    scratch: &mut [f32],
) {
    let (isa, products) = (ctx.isa(), &*products);
    let Some(n_cols) = products.first().map(|product| product.weight.n_cols()) else {
        return;
    };
    assert!(
        products
            .iter()
            .all(|product| product.weight.n_cols() == n_cols),
        "matrices of as many columns"
    );
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(n_tokens, n_cols));
    let in_parts = is_in_parts(isa, products.iter().map(|product| product.weight), n_tokens);
    let form = if in_parts {
        q8::Form::Tiles
    } else {
        q8::Form::Blocks
    };
    let x = q8::quantize(ctx, x, n_tokens, n_cols, activations, form);
    if in_parts {
        for product in products {
            let to = parts::Target {
                out: &product.out,
                gate: None,
            };
            parts::multiply(ctx, &[product.weight], &x, to, &mut *scratch);
        }
        return;
    }
    let of_tiles = || {
        products
            .iter()
            .filter_map(|product| Some((product, product.tiled(isa, n_tokens)?)))
    };
    run_row_parts(
        ctx.pool(),
        of_tiles().map(|(_, packed)| packed.n_panels()).sum(),
        1,
        |start, len| {
            let mut first = 0;
            for (product, packed) in of_tiles() {
                let panels = first..first + packed.n_panels();
                for panel_idx in start.max(panels.start)..(start + len).min(panels.end) {
                    let (panel, target) = (
                        packed.panel(panel_idx - first),
                        product.target(panel_idx - first),
                    );
                    isa.run(tile::PanelTask {
                        ty: packed.ty,
                        panel,
                        x: &x,
                        target,
                    });
                }
                first = panels.end;
            }
        },
    );
    for product in products
        .iter()
        .filter(|product| product.tiled(isa, n_tokens).is_none())
    {
        match product.weight {
            Codes::Packed(packed) => unpacked(ctx, packed, product, &x, scratch),
            Codes::Stored(weight) => {
                panel::linear_q8(ctx, weight.ty, weight.rows(), &x, &product.out, scratch)
            }
        }
    }
}

/// Panels are unpacked first.
fn unpacked(
    ctx: &Context,
    packed: PackedCodes,
    product: &CodesProduct,
    x: &q8::Q8Activations,
    scratch: &mut [f32],
) {
    let worker_len = panel::scratch_len(packed.n_cols);
    let scratch = SharedMut::new(scratch);
    ctx.pool()
        .run_indexed(packed.n_panels(), |worker_idx, panel_idx| {
            // SAFETY: no two tasks run at once with the same worker index.
            let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
            let (panel, target) = (packed.panel(panel_idx), product.target(panel_idx));
            ctx.isa().run(Unpacked {
                ty: packed.ty,
                panel,
                x,
                target,
                scratch,
            });
        });
}

/// Two matrices of as many rows and columns: what an activation gives of products with the first,
/// the gate, is multiplied with those with the second.
#[derive(Debug, Clone, Copy)]
pub struct GatedCodes<'a> {
    /// The gate's first.
    pub weights: [Codes<'a>; 2],
    /// Theirs.
    pub biases: [Option<&'a [f32]>; 2],
    /// What the gate goes through.
    pub op: Unary,
}

impl GatedCodes<'_> {
    /// In one go: else as two products.
    fn is_in_parts(&self, isa: Isa, n_tokens: usize) -> bool {
        let [gate, up] = self.weights;
        gate.ty() == up.ty() && is_in_parts(isa, self.weights.into_iter(), n_tokens)
    }
}

/// f32s of scratch that [`linear_codes_gated`] needs.
pub fn linear_codes_gated_scratch_len(ctx: &Context, gated: &GatedCodes, n_tokens: usize) -> usize {
    let (n_rows, n_cols) = (gated.weights[1].n_rows(), gated.weights[1].n_cols());
    let lens = gated
        .weights
        .map(|weight| linear_codes_scratch_len(ctx, weight, n_tokens));
    let more = if gated.is_in_parts(ctx.isa(), n_tokens) {
        ctx.pool().n_threads() * parts::gate_scratch_len(n_tokens, n_cols)
    } else {
        n_tokens * n_rows
    };
    lens[0].max(lens[1]) + more
}

/// `op(x gate^T) * (x up^T)`, products as those of [`linear_codes`]; `y` is [n_tokens, n_rows].
///
/// # Panics
/// If a size does not fit or the scratch is too short.
pub fn linear_codes_gated(
    ctx: &Context,
    gated: &GatedCodes,
    x: &[f32],
    n_tokens: usize,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let GatedCodes {
        weights: [gate, up],
        biases,
        op,
    } = *gated;
    assert_eq!(
        (gate.n_rows(), gate.n_cols()),
        (up.n_rows(), up.n_cols()),
        "rows and columns of both"
    );
    if !gated.is_in_parts(ctx.isa(), n_tokens) {
        let (factors, scratch) = scratch.split_at_mut(n_tokens * up.n_rows());
        let product =
            |i: usize, y| CodesProduct::new(gated.weights[i], n_tokens, biases[i].into(), y);
        linear_codes(
            ctx,
            &mut [product(0, &mut *y), product(1, &mut *factors)],
            x,
            n_tokens,
            scratch,
        );
        return crate::activation::gated(ctx, op, y, factors);
    }
    assert!(
        biases[0].is_none_or(|bias| bias.len() == gate.n_rows()),
        "one bias per row"
    );
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(n_tokens, up.n_cols()));
    let x = q8::quantize(ctx, x, n_tokens, up.n_cols(), activations, q8::Form::Tiles);
    gate.check();
    let product = CodesProduct::new(up, n_tokens, biases[1].into(), y);
    let to = parts::Target {
        out: &product.out,
        gate: Some(parts::Gate {
            op,
            bias: biases[0],
        }),
    };
    parts::multiply(ctx, &gated.weights, &x, to, scratch);
}

/// A panel that is unpacked first.
struct Unpacked<'a> {
    ty: BlockType,
    panel: PanelBytes<'a>,
    x: &'a q8::Q8Activations<'a>,
    target: Target<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for Unpacked<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Unpacked {
            ty,
            panel,
            x,
            target,
            scratch,
        } = self;
        let panel = pack::Unpack {
            ty,
            panel,
            n_steps: x.n_steps(),
            scratch,
        }
        .run(simd);
        multiply_panel(simd, ty, panel, x, target);
    }
}

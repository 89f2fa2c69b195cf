//! Quantized weights packed once, in the order that products read them: 16 rows are a panel whose
//! lanes are the rows.
//!
//! Nothing is summed up across lanes, and scales are multiplied for 16 rows at once: a third to a
//! half of the instructions that rows as they are stored take, for about as many bytes. A panel is,
//! for each 32 columns, the [codes](layout) and the factors of its rows. For few tokens they are
//! multiplied as they are read; for more, a panel is first unpacked to bytes, which all tokens go
//! over (`panel`).

mod layout;
mod pack;
mod product;
mod screen;
mod tile;

use std::ops::Range;

use layout::{Group, Layout, LayoutTask, with_layout};
pub use pack::{pack_code_rows, pack_codes, pack_codes_scratch_len};
pub(super) use product::{
    gate_scratch_len, is_gated_in_parts, joint, multiply, multiply_gated, scratch_len,
};
pub use screen::{linear_codes_best, linear_codes_best_scratch_len};

use super::choose::is_split;
use super::columns::LINE_BYTES;
use super::panel;
use super::tables::{self, TableCodes};
use super::weight::{Rows, Weight};
use crate::Context;
use crate::quant::{BlockType, has_format};
use crate::simd::LANES;

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

/// A quantized matrix.
#[derive(Debug, Clone, Copy)]
pub enum Codes<'a> {
    /// As it is stored; not of a float type.
    Stored(Weight<'a>),
    /// For products of few tokens.
    Packed(PackedCodes<'a>),
    /// With tables.
    Tables(TableCodes<'a>),
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
    /// What it is stored as, was packed from, or is unpacked to.
    pub fn ty(&self) -> BlockType {
        match self {
            Self::Stored(Weight { ty, .. }) | Self::Packed(PackedCodes { ty, .. }) => *ty,
            Self::Tables(_) => BlockType::Q8_0,
        }
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Stored(Weight { n_rows, .. }) | Self::Packed(PackedCodes { n_rows, .. }) => {
                *n_rows
            }
            Self::Tables(tables) => tables.n_rows(),
        }
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        match self {
            Self::Stored(Weight { n_cols, .. }) | Self::Packed(PackedCodes { n_cols, .. }) => {
                *n_cols
            }
            Self::Tables(tables) => tables.n_cols(),
        }
    }

    pub(super) fn check(&self) {
        match self {
            Self::Stored(weight) => {
                let _: Rows = weight.checked();
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
            // It was checked when it was made.
            Self::Tables(_) => {}
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
            Self::Tables(tables) => ctx.isa().run(tables::FillTask {
                weight: *tables,
                panel_idx: first_row / LANES,
                n_steps,
                scratch,
            }),
        }
    }

    fn n_panels(&self) -> usize {
        self.n_rows().div_ceil(LANES)
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
            Self::Tables(tables) => tables.panel(first_row / LANES),
        }
    }
}

impl<'a> PackedCodes<'a> {
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

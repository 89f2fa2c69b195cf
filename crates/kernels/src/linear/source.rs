//! Where products of values get the values from.

use super::columns::PackedColumn;
use super::compressed::Compressed;
use super::halves::HalfPanels;
use super::tiles::Next;
use super::values::dequantize_simd;
use super::weight::{Rows, Weight};
use crate::quant::BlockType;
use crate::simd::{Isa, Kernel, Simd};

/// What the values of a matrix come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Blocks.
    Blocks(Weight<'a>),
    /// Codes.
    Compressed(Compressed<'a>),
    /// 16-bit floats in panels.
    Halves(HalfPanels<'a>),
}

impl<'a> Source<'a> {
    pub(super) fn n_cols(&self) -> usize {
        match self {
            Self::Blocks(weight) => weight.n_cols,
            Self::Compressed(weight) => weight.n_cols(),
            Self::Halves(weight) => weight.n_cols(),
        }
    }

    /// Columns that are read together.
    pub(super) fn block_len(&self) -> usize {
        match self {
            Self::Blocks(weight) => weight.ty.block_len(),
            Self::Compressed(_) | Self::Halves(_) => 1,
        }
    }

    pub(super) fn n_rows(&self) -> usize {
        match self {
            Self::Blocks(weight) => weight.n_rows,
            Self::Compressed(weight) => weight.n_rows(),
            Self::Halves(weight) => weight.n_rows(),
        }
    }

    /// The rows, where they lie row after row; empty ones where they lie in panels.
    pub(super) fn rows(&self) -> Rows<'a> {
        match self {
            Self::Blocks(weight) => weight.rows(),
            Self::Compressed(weight) => weight.rows(),
            Self::Halves(weight) => Rows {
                bytes: &[],
                row_bytes: 0,
                n_rows: weight.n_rows(),
            },
        }
    }

    /// Writes columns from `start` on of the 16 rows from `first_row` on to a panel, whole vectors,
    /// where the matrix lies in panels; whether it does.
    #[inline(always)]
    pub(super) fn write_panel<S: Simd>(
        &self,
        simd: S,
        first_row: usize,
        start: usize,
        panel: &mut [PackedColumn],
    ) -> bool {
        match self {
            Self::Compressed(weight) if weight.is_ordered() => {
                weight.panel(simd, first_row, start, panel);
            }
            Self::Halves(weight) => weight.panel(simd, first_row, start, panel),
            _ => return false,
        }
        true
    }

    /// What is read next, where that is `len` columns from `start` on of `n_rows` rows from
    /// `first_row` on.
    pub(super) fn next(
        &self,
        [first_row, n_rows]: [usize; 2],
        start: usize,
        len: usize,
    ) -> Next<'a> {
        match self {
            Self::Compressed(weight) if weight.is_ordered() => {
                return weight.next_panels(first_row, n_rows, start, len);
            }
            Self::Halves(weight) => return weight.next_panels(first_row, n_rows, start, len),
            _ => {}
        }
        let rows = self.rows();
        if rows.row_bytes == 0 {
            return Next::default();
        }
        let first = rows.get(first_row);
        let n_bytes = self.chunk(first, start, len).len();
        let skipped = self.chunk(first, 0, start).len();
        let end_row = (first_row + n_rows).min(rows.n_rows);
        Next {
            rows: &rows.bytes[first_row * rows.row_bytes + skipped..end_row * rows.row_bytes],
            stride: rows.row_bytes,
            n_bytes,
        }
    }

    /// The type of values that are stored as they are.
    #[inline(always)]
    pub(super) fn float_type(&self) -> Option<BlockType> {
        match self {
            Self::Blocks(weight) => Some(weight.ty),
            Self::Compressed(_) | Self::Halves(_) => None,
        }
    }

    /// The bytes of `len` columns from `start` on, both whole blocks.
    #[inline(always)]
    pub(super) fn chunk<'b>(&self, row: &'b [u8], start: usize, len: usize) -> &'b [u8] {
        match self {
            Self::Blocks(weight) => chunk_bytes(weight.ty, row, start, len),
            Self::Compressed(weight) => weight.chunk(row, start, len),
            Self::Halves(_) => row,
        }
    }

    /// The values of the columns from `start` on of a row, where they lie row after row. Compiled
    /// once for each instruction set, with the reading of all types.
    pub(super) fn values(&self, isa: Isa, row_idx: usize, start: usize, out: &mut [f32]) {
        isa.run(Values {
            source: self,
            row_idx,
            start,
            out,
        });
    }
}

struct Values<'a> {
    source: &'a Source<'a>,
    row_idx: usize,
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for Values<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            source,
            row_idx,
            start,
            out,
        } = self;
        match source {
            Source::Blocks(weight) => {
                let bytes = source.chunk(source.rows().get(row_idx), start, out.len());
                dequantize_simd(simd, weight.ty, bytes, out);
            }
            Source::Compressed(weight) => weight.values(simd, row_idx, start, out),
            Source::Halves(_) => {}
        }
    }
}

/// The bytes of `len` columns from `start` on, both whole blocks.
#[inline(always)]
fn chunk_bytes(ty: BlockType, row: &[u8], start: usize, len: usize) -> &[u8] {
    &row[start / ty.block_len() * ty.block_bytes()..][..len / ty.block_len() * ty.block_bytes()]
}

//! Where products of values get the values from.

use super::compressed::Compressed;
use super::values::dequantize_simd;
use super::weight::{Rows, Weight};
use crate::quant::BlockType;
use crate::simd::Simd;

/// What the values of a matrix come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Blocks.
    Blocks(Weight<'a>),
    /// Codes.
    Compressed(Compressed<'a>),
}

impl<'a> Source<'a> {
    pub(super) fn n_cols(&self) -> usize {
        match self {
            Self::Blocks(weight) => weight.n_cols,
            Self::Compressed(weight) => weight.n_cols(),
        }
    }

    /// Columns that are read together.
    pub(super) fn block_len(&self) -> usize {
        match self {
            Self::Blocks(weight) => weight.ty.block_len(),
            Self::Compressed(_) => 1,
        }
    }

    pub(super) fn rows(&self) -> Rows<'a> {
        match self {
            Self::Blocks(weight) => weight.rows(),
            Self::Compressed(weight) => weight.rows(),
        }
    }

    /// The type of values that are stored as they are.
    #[inline(always)]
    pub(super) fn float_type(&self) -> Option<BlockType> {
        match self {
            Self::Blocks(weight) => Some(weight.ty),
            Self::Compressed(_) => None,
        }
    }

    /// The bytes of `len` columns from `start` on, both whole blocks.
    #[inline(always)]
    pub(super) fn chunk<'b>(&self, row: &'b [u8], start: usize, len: usize) -> &'b [u8] {
        match self {
            Self::Blocks(weight) => chunk_bytes(weight.ty, row, start, len),
            Self::Compressed(weight) => weight.chunk(row, start, len),
        }
    }

    /// The values of the columns from `start` on of a row.
    #[inline(always)]
    pub(super) fn values<S: Simd>(&self, simd: S, row_idx: usize, start: usize, out: &mut [f32]) {
        match self {
            Self::Blocks(weight) => {
                let bytes = self.chunk(self.rows().get(row_idx), start, out.len());
                dequantize_simd(simd, weight.ty, bytes, out);
            }
            Self::Compressed(weight) => weight.values(simd, row_idx, start, out),
        }
    }
}

/// The bytes of `len` columns from `start` on, both whole blocks.
#[inline(always)]
fn chunk_bytes(ty: BlockType, row: &[u8], start: usize, len: usize) -> &[u8] {
    &row[start / ty.block_len() * ty.block_bytes()..][..len / ty.block_len() * ty.block_bytes()]
}

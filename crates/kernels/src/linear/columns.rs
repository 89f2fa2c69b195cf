//! Columns of 16 rows in f32, and how many tokens a task multiplies with them.

use crate::cache;
use crate::simd::LANES;

/// A cache line: panels begin at a multiple of it, so that no vector lies in two where the matrix
/// does.
pub const LINE_BYTES: usize = 64;

/// A column of 16 rows, on a whole cache line: a vector in two lines takes two reads, and AVX-512
/// half as fast.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct PackedColumn(pub [f32; LANES]);

impl PackedColumn {
    /// To be filled.
    pub const ZERO: Self = Self([0.0; LANES]);

    /// As many as there is room for in some f32, from its first cache line on.
    pub(super) fn in_scratch(scratch: &mut [f32]) -> &mut [Self] {
        // SAFETY: any bits are a column, and any column is bits of f32.
        let (_, columns, _) = unsafe { scratch.align_to_mut() };
        columns
    }

    /// Their numbers.
    pub(super) fn numbers(columns: &mut [Self]) -> &mut [f32] {
        // SAFETY: columns are f32 and nothing else; the borrow is handed on.
        unsafe {
            std::slice::from_raw_parts_mut(columns.as_mut_ptr().cast(), columns.len() * LANES)
        }
    }

    /// Their bytes.
    pub(super) fn bytes(columns: &[Self]) -> &[u8] {
        // SAFETY: columns are f32 and nothing else, whose bytes are all initialized; the borrow is
        // handed on.
        unsafe { std::slice::from_raw_parts(columns.as_ptr().cast(), size_of_val(columns)) }
    }
}

/// Tokens of a task, at least, where there are as many.
pub(super) const LEAST_TOKENS: usize = 96;

/// Tokens of a task: as many as stay in a core's second cache while every panel goes over them, and
/// enough for the filling of a panel to be a small part of the work.
pub(super) fn block_tokens(n_cols: usize) -> usize {
    // Half of it, for the weights and outputs pass through it too.
    let n_inputs = cache::second_len() / 2 / size_of::<f32>();
    (n_inputs / n_cols.max(1))
        .clamp(LEAST_TOKENS, 1536)
        .next_multiple_of(12)
}

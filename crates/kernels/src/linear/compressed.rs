//! Weights whose values are codes of a few bits, as Core ML packages hold them: each code goes
//! through a table, or is scaled and shifted. Products read the codes and compute in f32.

#[macro_use]
mod unpack;
mod panels;

pub(super) use panels::linear_few;
use unpack::{CHUNK_LEN, code_values, look_up, unpack};

use super::tasks::run_row_parts;
use super::weight::Rows;
use crate::Context;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// How codes give values.
#[derive(Debug, Clone, Copy)]
pub enum Coding<'a> {
    /// The entry of a table, which `group_rows` rows after one another share.
    Table {
        /// Tables of `1 << n_bits` entries.
        entries: &'a [f32],
        /// Rows of a table.
        group_rows: usize,
    },
    /// `scale * (code - offset)`.
    Scale {
        /// Whether codes are two's complement.
        is_signed: bool,
        /// [groups of rows, groups of columns].
        scales: &'a [f32],
        /// As many, or none.
        offsets: &'a [f32],
        /// Rows and columns of a group.
        group: [usize; 2],
    },
}

/// A weight matrix [n_rows, n_cols] of codes.
#[derive(Debug, Clone, Copy)]
pub struct Compressed<'a> {
    n_bits: usize,
    codes: &'a [u8],
    order: Order<'a>,
    coding: Coding<'a>,
    n_rows: usize,
    n_cols: usize,
}

/// In which order codes lie.
#[derive(Debug, Clone, Copy)]
enum Order<'a> {
    /// Row after row, as they are stored.
    Rows,
    /// As products read them.
    Panels {
        /// Scales and offsets in the same order.
        scaling: &'a [f32],
    },
}

impl<'a> Compressed<'a> {
    /// A weight of codes of 1 to 8 bits, row after row, the least significant bits of a byte first;
    /// `None` where rows are no whole bytes, or sizes do not fit together.
    pub fn new(
        n_bits: usize,
        codes: &'a [u8],
        coding: Coding<'a>,
        [n_rows, n_cols]: [usize; 2],
    ) -> Option<Self> {
        (1..=8).contains(&n_bits).then_some(())?;
        let row_bits = n_cols.checked_mul(n_bits)?;
        let is_whole =
            row_bits.is_multiple_of(8) && (row_bits / 8).checked_mul(n_rows) == Some(codes.len());
        let fits = match coding {
            Coding::Table {
                entries,
                group_rows,
            } => {
                group_rows > 0
                    && n_rows.div_ceil(group_rows).checked_mul(1 << n_bits) == Some(entries.len())
            }
            Coding::Scale {
                scales,
                offsets,
                group: [rows, cols],
                ..
            } => {
                rows > 0
                    && cols > 0
                    && n_cols.is_multiple_of(cols)
                    && n_rows.div_ceil(rows).checked_mul(n_cols / cols) == Some(scales.len())
                    && (offsets.is_empty() || offsets.len() == scales.len())
            }
        };
        (is_whole && fits).then_some(Self {
            n_bits,
            codes,
            order: Order::Rows,
            coding,
            n_rows,
            n_cols,
        })
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The codes' rows, where they lie in this order.
    pub(super) fn rows(&self) -> Rows<'a> {
        Rows {
            bytes: self.codes,
            row_bytes: self.n_cols * self.n_bits / 8,
            n_rows: self.n_rows,
        }
    }

    /// The bytes of `len` columns of a row from `start` on, which is a multiple of 8.
    #[inline(always)]
    pub(super) fn chunk<'b>(&self, row: &'b [u8], start: usize, len: usize) -> &'b [u8] {
        &row[start * self.n_bits / 8..][..(len * self.n_bits).div_ceil(8)]
    }

    /// The values of the columns from `start` on, a multiple of 8, of a row.
    #[inline(always)]
    pub(super) fn values<S: Simd>(&self, simd: S, row_idx: usize, start: usize, out: &mut [f32]) {
        let bytes = self.chunk(self.rows().get(row_idx), start, out.len());
        let mut codes = [0u8; CHUNK_LEN];
        for (i, out) in out.chunks_mut(CHUNK_LEN).enumerate() {
            let (at, codes) = (i * CHUNK_LEN, &mut codes[..out.len()]);
            unpack(self.n_bits, &bytes[at * self.n_bits / 8..], codes);
            match self.coding {
                Coding::Table {
                    entries,
                    group_rows,
                } => {
                    let table = &entries[(row_idx / group_rows) << self.n_bits..];
                    look_up(simd, &table[..1 << self.n_bits], codes, out);
                }
                Coding::Scale { .. } => self.scale(simd, row_idx, start + at, codes, out),
            }
        }
    }

    /// Whether the codes lie in the order of panels.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self.order, Order::Panels { .. })
    }

    /// Codes in two's complement of fewer bits, as of eight.
    #[inline(always)]
    fn extend_sign(&self, is_signed: bool, codes: &mut [u8]) {
        if is_signed && self.n_bits < 8 {
            let sign = self.sign();
            for code in codes {
                *code = (*code ^ sign).wrapping_sub(sign);
            }
        }
    }

    /// The values of scaled codes in columns from `start` on.
    #[inline(always)]
    fn scale<S: Simd>(
        &self,
        simd: S,
        row_idx: usize,
        start: usize,
        codes: &mut [u8],
        out: &mut [f32],
    ) {
        let Coding::Scale {
            is_signed,
            scales,
            offsets,
            group: [group_rows, group_cols],
        } = self.coding
        else {
            return;
        };
        self.extend_sign(is_signed, codes);
        let first = row_idx / group_rows * (self.n_cols / group_cols);
        let mut done = 0;
        while done < codes.len() {
            let col = start + done;
            let len = (group_cols - col % group_cols).min(codes.len() - done);
            let at = first + col / group_cols;
            let offset = offsets.get(at).copied().unwrap_or(0.0);
            let (scale, offset) = (simd.splat(scales[at]), simd.splat(offset));
            each!(
                simd,
                &codes[done..][..len],
                &mut out[done..][..len],
                |codes| simd.mul(scale, simd.sub(code_values(simd, codes, is_signed), offset)),
            );
            done += len;
        }
    }
}

/// The values of some rows, as for an embedding: `out` [indices.len(), n_cols].
///
/// # Panics
/// If the codes were [put in order](Compressed::ordered), an index is not below `n_rows`, or `out`
/// has another size.
pub fn decompress_rows(ctx: &Context, weight: &Compressed, indices: &[usize], out: &mut [f32]) {
    struct Row<'a>(&'a Compressed<'a>, usize, &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            self.0.values(simd, self.1, 0, self.2);
        }
    }
    assert_eq!(
        Some(out.len()),
        indices.len().checked_mul(weight.n_cols),
        "values of {} rows",
        indices.len()
    );
    assert!(!weight.is_ordered(), "codes row after row");
    let out = SharedMut::new(out);
    run_row_parts(ctx.pool(), indices.len(), 1, |start, len| {
        for (i, row_idx) in indices.iter().enumerate().skip(start).take(len) {
            // SAFETY: each row belongs to one part.
            let out = unsafe { out.slice(i * weight.n_cols, weight.n_cols) };
            ctx.isa().run(Row(weight, *row_idx, out));
        }
    });
}

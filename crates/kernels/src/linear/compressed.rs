//! Weights whose values are codes of a few bits, as Core ML packages hold them: each code goes
//! through a table, or is scaled and shifted. Products read the codes and compute in f32.

#[macro_use]
mod unpack;
mod dot;

use unpack::{CHUNK_LEN, code_values, look_up, unpack};

use super::columns::PackedColumn;
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
    coding: Coding<'a>,
    n_rows: usize,
    n_cols: usize,
}

/// The scales and offsets of 16 rows, in a group of columns.
struct Scaling<S: Simd> {
    /// Of each row, where its groups begin.
    first: [usize; LANES],
    /// The column behind the group.
    end: usize,
    scale: S::F,
    offset: S::F,
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

    /// The codes' rows.
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

    /// Whether [`Self::panel`] can give these rows: they share a table, or groups are whole vectors
    /// of columns.
    pub(super) fn has_panel(&self, first_row: usize, n_rows: usize) -> bool {
        match self.coding {
            Coding::Table { group_rows, .. } => {
                self.n_bits <= 6 && first_row / group_rows == (first_row + n_rows - 1) / group_rows
            }
            Coding::Scale { group, .. } => {
                group[1].is_multiple_of(LANES) || group[1] == self.n_cols
            }
        }
    }

    /// The columns from `start` on, a multiple of 16, of up to 16 rows, column by column.
    #[inline(always)]
    pub(super) fn panel<S: Simd>(
        &self,
        simd: S,
        first_row: usize,
        n_rows: usize,
        start: usize,
        panel: &mut [PackedColumn],
    ) {
        let rows = self.rows();
        // Rows past the end are the last row again.
        let row_idx = |i: usize| first_row + i.min(n_rows - 1);
        let end = (start + panel.len()).min(self.n_cols);
        let mut unpacked = [[0u8; CHUNK_LEN]; LANES];
        let mut scaling = self.scaling(simd, first_row, n_rows);
        for (at, block) in panel.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let col = start + LANES * at;
            let in_chunk = LANES * at % CHUNK_LEN;
            if in_chunk == 0 {
                let len = CHUNK_LEN.min(end - col);
                for (i, codes) in unpacked.iter_mut().enumerate() {
                    let bytes = self.chunk(rows.get(row_idx(i)), col, len);
                    unpack(self.n_bits, bytes, &mut codes[..len]);
                }
            }
            let mut codes = [[0u8; LANES]; LANES];
            for (codes, row) in codes.iter_mut().zip(&unpacked) {
                *codes = row.as_chunks().0[in_chunk / LANES];
            }
            simd.transpose_bytes(&mut codes);
            let out = PackedColumn::numbers(block);
            match (self.coding, &mut scaling) {
                (Coding::Scale { is_signed, .. }, Some(scaling)) => {
                    self.scale_lanes(simd, scaling, col);
                    let codes = codes.as_flattened_mut();
                    self.extend_sign(is_signed, codes);
                    let (scale, offset) = (scaling.scale, scaling.offset);
                    each!(simd, codes, out, |codes| {
                        simd.mul(scale, simd.sub(code_values(simd, codes, is_signed), offset))
                    });
                }
                (coding, _) => {
                    if let Coding::Table {
                        entries,
                        group_rows,
                    } = coding
                    {
                        let table = &entries[(first_row / group_rows) << self.n_bits..];
                        look_up(simd, &table[..1 << self.n_bits], codes.as_flattened(), out);
                    }
                }
            }
        }
    }

    /// The scaling of rows before their first column; none where there is none.
    #[inline(always)]
    fn scaling<S: Simd>(&self, simd: S, first_row: usize, n_rows: usize) -> Option<Scaling<S>> {
        let Coding::Scale { group, .. } = self.coding else {
            return None;
        };
        let mut first = [0; LANES];
        for (i, first) in first.iter_mut().enumerate() {
            *first = (first_row + i.min(n_rows - 1)) / group[0] * (self.n_cols / group[1]);
        }
        Some(Scaling {
            first,
            end: 0,
            scale: simd.splat(0.0),
            offset: simd.splat(0.0),
        })
    }

    /// Brings scales and offsets to those of a column.
    #[inline(always)]
    fn scale_lanes<S: Simd>(&self, simd: S, scaling: &mut Scaling<S>, col: usize) {
        let Coding::Scale {
            scales,
            offsets,
            group,
            ..
        } = self.coding
        else {
            return;
        };
        if col < scaling.end {
            return;
        }
        let at = col / group[1];
        scaling.end = (at + 1) * group[1];
        let (mut lanes, mut shifts) = ([0.0; LANES], [0.0; LANES]);
        for (i, first) in scaling.first.iter().enumerate() {
            lanes[i] = scales[first + at];
            if !offsets.is_empty() {
                shifts[i] += offsets[first + at];
            }
        }
        scaling.scale = simd.load(&lanes);
        scaling.offset = simd.load(&shifts);
    }

    /// Codes in two's complement of fewer bits, as of eight.
    #[inline(always)]
    fn extend_sign(&self, is_signed: bool, codes: &mut [u8]) {
        if is_signed && self.n_bits < 8 {
            let sign = 1 << (self.n_bits - 1);
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
/// If an index is not below `n_rows` or `out` has another size.
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
    let out = SharedMut::new(out);
    run_row_parts(ctx.pool(), indices.len(), 1, |start, len| {
        for (i, row_idx) in indices.iter().enumerate().skip(start).take(len) {
            // SAFETY: each row belongs to one part.
            let out = unsafe { out.slice(i * weight.n_cols, weight.n_cols) };
            ctx.isa().run(Row(weight, *row_idx, out));
        }
    });
}

//! Weights whose values are codes of a few bits, as Core ML packages hold them: each code goes
//! through a table, or is scaled and shifted. Products read the codes and compute in f32.

#[macro_use]
mod unpack;
mod panels;
mod sparse;

pub(super) use panels::{join, linear_few, spread};
pub use sparse::Mask;
pub(super) use unpack::{CHUNK_LEN, unpack};
use unpack::{code_values, look_up};

use super::tasks::run_row_parts;
use super::weight::Rows;
use crate::Context;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// How codes give values.
#[derive(Debug, Clone, Copy)]
pub enum Coding<'a> {
    /// The entry of a table, which `group_rows` rows after one another share, times the scale of
    /// the row.
    Table {
        /// Tables of `1 << n_bits` entries, each of `width` numbers.
        entries: &'a [f32],
        /// Rows of a table.
        group_rows: usize,
        /// Rows after one another that share codes, each with its own number of an entry.
        width: usize,
        /// Of the rows, or none.
        scales: &'a [f32],
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
    /// Codes are numbers in f16 themselves, of [sparse](Compressed::sparse) weights.
    Half,
}

/// A weight matrix [n_rows, n_cols] of codes.
#[derive(Debug, Clone, Copy)]
pub struct Compressed<'a> {
    pub(super) n_bits: usize,
    codes: &'a [u8],
    order: Order<'a>,
    pub(super) coding: Coding<'a>,
    /// Which elements have codes, where the others are 0.
    mask: Option<Mask<'a>>,
    /// Values are rounded to f16.
    is_rounded: bool,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
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

impl Coding<'_> {
    /// Rows after one another that share codes.
    fn width(&self) -> usize {
        match self {
            Self::Table { width, .. } => *width,
            Self::Scale { .. } | Self::Half => 1,
        }
    }

    /// Whether there are as many entries, or scales, as codes of so many bits need.
    fn fits(&self, n_bits: usize, [n_rows, n_cols]: [usize; 2]) -> bool {
        match *self {
            Coding::Table {
                entries,
                group_rows,
                width,
                scales,
            } => {
                let n_tables = n_rows.div_ceil(group_rows.max(1));
                group_rows > 0
                    && width > 0
                    && n_rows.is_multiple_of(width)
                    && (group_rows >= n_rows || group_rows.is_multiple_of(width))
                    && n_tables.checked_mul(width << n_bits) == Some(entries.len())
                    && (scales.is_empty() || scales.len() == n_rows)
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
            Coding::Half => true,
        }
    }
}

/// Rounds numbers to f16.
#[inline(always)]
fn round_to_f16<S: Simd>(simd: S, values: &mut [f32]) {
    let (whole, rest) = values.as_chunks_mut::<LANES>();
    let mut halves = [0; LANES];
    for values in whole {
        simd.store_f16(simd.load(values), &mut halves);
        *values = halves.map(f16_to_f32);
    }
    for value in rest {
        *value = f16_to_f32(f32_to_f16(*value));
    }
}

impl<'a> Compressed<'a> {
    /// A weight of codes of 1 to 8 bits, row after row, the least significant bits of a byte first;
    /// `None` where rows are no whole bytes, or sizes do not fit together.
    pub fn new(
        n_bits: usize,
        codes: &'a [u8],
        coding: Coding<'a>,
        shape @ [n_rows, n_cols]: [usize; 2],
    ) -> Option<Self> {
        (1..=8).contains(&n_bits).then_some(())?;
        let row_bits = n_cols.checked_mul(n_bits)?;
        let n_code_rows = n_rows / coding.width().max(1);
        let is_whole = row_bits.is_multiple_of(8)
            && (row_bits / 8).checked_mul(n_code_rows) == Some(codes.len())
            && !matches!(coding, Coding::Half);
        (is_whole && coding.fits(n_bits, shape)).then(|| Self::stored(n_bits, codes, coding, shape))
    }

    /// Codes as they are stored.
    fn stored(n_bits: usize, codes: &'a [u8], coding: Coding<'a>, shape: [usize; 2]) -> Self {
        Self {
            n_bits,
            codes,
            order: Order::Rows,
            coding,
            mask: None,
            is_rounded: false,
            n_rows: shape[0],
            n_cols: shape[1],
        }
    }

    /// The same codes, whose values are rounded to f16 where rows are decompressed or dotted.
    /// Products in the order of panels do not round.
    pub fn rounded(self) -> Self {
        Self {
            is_rounded: true,
            ..self
        }
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The codes' rows, where each row has its own and they lie in this order; else rows without
    /// bytes.
    pub(super) fn rows(&self) -> Rows<'a> {
        if self.coding.width() > 1 || self.mask.is_some() {
            return Rows {
                bytes: &[],
                row_bytes: 0,
                n_rows: self.n_rows,
            };
        }
        Rows {
            bytes: self.codes,
            row_bytes: self.row_bytes(),
            n_rows: self.n_rows,
        }
    }

    /// Bytes of the codes of a row.
    fn row_bytes(&self) -> usize {
        self.n_cols * self.n_bits / 8
    }

    /// The bytes of `len` columns of a row from `start` on, which is a multiple of 8.
    #[inline(always)]
    pub(super) fn chunk<'b>(&self, row: &'b [u8], start: usize, len: usize) -> &'b [u8] {
        if row.is_empty() {
            return row;
        }
        &row[start * self.n_bits / 8..][..(len * self.n_bits).div_ceil(8)]
    }

    /// The values of the columns from `start` on, a multiple of 8, of a row.
    #[inline(always)]
    pub(super) fn values<S: Simd>(&self, simd: S, row_idx: usize, start: usize, out: &mut [f32]) {
        match self.mask {
            Some(mask) => self.sparse_values(simd, mask, row_idx, start, out),
            None => self.dense_values(simd, row_idx, start, out),
        }
        if self.is_rounded {
            round_to_f16(simd, out);
        }
    }

    #[inline(always)]
    fn dense_values<S: Simd>(&self, simd: S, row_idx: usize, start: usize, out: &mut [f32]) {
        let row_bytes = self.row_bytes();
        let row = &self.codes[row_idx / self.coding.width() * row_bytes..][..row_bytes];
        let bytes = self.chunk(row, start, out.len());
        let mut codes = [0u8; CHUNK_LEN];
        for (i, out) in out.chunks_mut(CHUNK_LEN).enumerate() {
            let (at, codes) = (i * CHUNK_LEN, &mut codes[..out.len()]);
            unpack(self.n_bits, &bytes[at * self.n_bits / 8..], codes);
            self.code_values(simd, row_idx, start + at, codes, out);
        }
    }

    /// The values of some codes of a row, from a column on.
    #[inline(always)]
    fn code_values<S: Simd>(
        &self,
        simd: S,
        row_idx: usize,
        start: usize,
        codes: &mut [u8],
        out: &mut [f32],
    ) {
        match self.coding {
            Coding::Table { .. } => self.look_up_row(simd, row_idx, codes, out),
            Coding::Scale { .. } => self.scale(simd, row_idx, start, codes, out),
            Coding::Half => {}
        }
    }

    /// The values of some codes of a row with a table.
    #[inline(always)]
    fn look_up_row<S: Simd>(&self, simd: S, row_idx: usize, codes: &[u8], out: &mut [f32]) {
        let Coding::Table {
            entries,
            group_rows,
            width,
            scales,
        } = self.coding
        else {
            return;
        };
        let n_entries = 1 << self.n_bits;
        let tables = &entries[row_idx / group_rows * n_entries * width..][..n_entries * width];
        if width == 1 {
            look_up(simd, tables, codes, out);
        } else {
            let mut table = [0.0; 256];
            let numbers = tables[row_idx % width..].iter().step_by(width);
            table.iter_mut().zip(numbers).for_each(|(to, v)| *to = *v);
            look_up(simd, &table[..n_entries], codes, out);
        }
        if let Some(scale) = scales.get(row_idx) {
            out.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// Whether each element has a code, row after row.
    pub(super) fn is_plain(&self) -> bool {
        self.mask.is_none() && !self.is_ordered()
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

//! Weights whose values are codes of a few bits, as Core ML packages hold them: each code goes
//! through a table, or is scaled and shifted. Products read the codes and compute in f32.

use super::columns::PackedColumn;
use super::tasks::run_row_parts;
use super::weight::Rows;
use crate::Context;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// What an expression gives of 16 codes at a time. No closure, which might not be inlined to where
/// the instruction set is known.
macro_rules! each {
    ($simd:expr, $all:expr, $out:expr, |$codes:ident| $values:expr $(,)?) => {{
        let ((all, last), (out, last_out)) = ($all.as_chunks::<LANES>(), $out.as_chunks_mut());
        for ($codes, out) in all.iter().zip(out) {
            $simd.store($values, out);
        }
        if !last.is_empty() {
            let (mut padded, mut values) = ([0; LANES], [0.0; LANES]);
            padded[..last.len()].copy_from_slice(last);
            let $codes = &padded;
            $simd.store($values, &mut values);
            last_out.copy_from_slice(&values[..last.len()]);
        }
    }};
}

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

/// Codes that are unpacked at once.
const CHUNK_LEN: usize = 256;

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

    /// Adds products of a row with up to as many tokens as there are totals, 16 columns at a time;
    /// how many columns that are: none where values have to be unpacked first.
    #[inline(always)]
    pub(super) fn dot<S: Simd, const N: usize>(
        &self,
        simd: S,
        row_idx: usize,
        (x, n_tokens): (&[f32], usize),
        totals: &mut [[S::F; 2]; N],
    ) -> usize {
        let row = self.rows().get(row_idx);
        let end = self.n_cols / LANES * LANES;
        let is_short = matches!(self.coding, Coding::Table { .. }) && self.n_bits <= 4;
        let is_even = match self.coding {
            Coding::Scale { group, .. } => {
                group[1].is_multiple_of(LANES) || group[1] == self.n_cols
            }
            Coding::Table { .. } => false,
        };
        if !is_short && !is_even {
            return 0;
        }
        let mut codes = [0u8; CHUNK_LEN];
        for start in (0..end).step_by(CHUNK_LEN) {
            let codes = &mut codes[..CHUNK_LEN.min(end - start)];
            unpack(self.n_bits, self.chunk(row, start, codes.len()), codes);
            match self.coding {
                Coding::Table {
                    entries,
                    group_rows,
                } => {
                    let entries = &entries[(row_idx / group_rows) << self.n_bits..];
                    let mut table = [0.0; LANES];
                    table[..1 << self.n_bits].copy_from_slice(&entries[..1 << self.n_bits]);
                    let table = simd.load(&table);
                    let vectors = codes.as_chunks::<LANES>().0;
                    for (token_idx, total) in totals.iter_mut().enumerate().take(n_tokens) {
                        let x = &x[token_idx * self.n_cols + start..][..codes.len()];
                        let x = x.as_chunks::<LANES>().0;
                        let [mut even, mut odd] = *total;
                        let ((pairs, last), (x, last_x)) =
                            (vectors.as_chunks::<2>(), x.as_chunks::<2>());
                        for (codes, x) in pairs.iter().zip(x) {
                            even = simd.fma(simd.look_up(table, &codes[0]), simd.load(&x[0]), even);
                            odd = simd.fma(simd.look_up(table, &codes[1]), simd.load(&x[1]), odd);
                        }
                        if let ([codes], [x]) = (last, last_x) {
                            even = simd.fma(simd.look_up(table, codes), simd.load(x), even);
                        }
                        *total = [even, odd];
                    }
                }
                Coding::Scale { .. } => {
                    self.dot_scaled(simd, row_idx, start, codes, (x, n_tokens), totals);
                }
            }
        }
        end
    }

    /// Adds products with scaled codes in columns from `start` on, group by group.
    #[inline(always)]
    fn dot_scaled<S: Simd, const N: usize>(
        &self,
        simd: S,
        row_idx: usize,
        start: usize,
        codes: &mut [u8],
        (x, n_tokens): (&[f32], usize),
        totals: &mut [[S::F; 2]; N],
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
        let mut x_of = [&[][..]; N];
        for (token_idx, of_token) in x_of.iter_mut().enumerate().take(n_tokens) {
            let x = &x[token_idx * self.n_cols + start..][..codes.len()];
            *of_token = x.as_chunks::<LANES>().0;
        }
        let mut vectors = codes.as_chunks::<LANES>().0;
        let mut at = row_idx / group_rows * (self.n_cols / group_cols) + start / group_cols;
        let mut left = group_cols - start % group_cols;
        while !vectors.is_empty() {
            let n = left.div_ceil(LANES).min(vectors.len());
            let (group, rest) = vectors.split_at(n);
            let offset = simd.splat(offsets.get(at).copied().unwrap_or(0.0));
            let scale = simd.splat(scales[at]);
            let mut sums = [[simd.splat(0.0); 2]; N];
            for (token_idx, (sums, x_of)) in sums.iter_mut().zip(&mut x_of).enumerate() {
                if token_idx == n_tokens {
                    break;
                }
                let (x, x_rest) = x_of.split_at(n);
                *x_of = x_rest;
                // Two sums by name: an index that the loop computes keeps them in memory.
                let [mut even, mut odd] = *sums;
                let ((pairs, last), (x, last_x)) = (group.as_chunks::<2>(), x.as_chunks::<2>());
                for (codes, x) in pairs.iter().zip(x) {
                    let values = simd.sub(code_values(simd, &codes[0], is_signed), offset);
                    even = simd.fma(values, simd.load(&x[0]), even);
                    let values = simd.sub(code_values(simd, &codes[1], is_signed), offset);
                    odd = simd.fma(values, simd.load(&x[1]), odd);
                }
                if let ([codes], [x]) = (last, last_x) {
                    let values = simd.sub(code_values(simd, codes, is_signed), offset);
                    even = simd.fma(values, simd.load(x), even);
                }
                *sums = [even, odd];
            }
            for (total, sums) in totals.iter_mut().zip(sums) {
                total[0] = simd.fma(scale, sums[0], total[0]);
                total[1] = simd.fma(scale, sums[1], total[1]);
            }
            vectors = rest;
            at += 1;
            left = group_cols;
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

/// 16 codes as numbers.
#[inline(always)]
fn code_values<S: Simd>(simd: S, codes: &[u8; LANES], is_signed: bool) -> S::F {
    match is_signed {
        true => simd.i8_values(&codes.map(u8::cast_signed)),
        false => simd.u8_values(codes),
    }
}

/// Codes as a byte each.
#[inline(always)]
fn unpack(n_bits: usize, bytes: &[u8], codes: &mut [u8]) {
    match n_bits {
        8 => codes.copy_from_slice(&bytes[..codes.len()]),
        4 => {
            let (eights, rest) = codes.as_chunks_mut::<8>();
            for (bytes, codes) in bytes.as_chunks::<4>().0.iter().zip(&mut *eights) {
                // Bytes are spread to every second place, then divided; a loop that divides byte
                // by byte is not vectorized.
                let x = u64::from(u32::from_le_bytes(*bytes));
                let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
                let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
                *codes = ((x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes();
            }
            let at = 8 * eights.len();
            for (i, code) in rest.iter_mut().enumerate() {
                *code = bits(bytes, at + i, 4);
            }
        }
        6 => {
            let (fours, rest) = codes.as_chunks_mut::<4>();
            for (bytes, codes) in bytes.as_chunks::<3>().0.iter().zip(&mut *fours) {
                let [a, b, c] = *bytes;
                *codes = [
                    a & 63,
                    a >> 6 | (b & 15) << 2,
                    b >> 4 | (c & 3) << 4,
                    c >> 2,
                ];
            }
            let at = 4 * fours.len();
            for (i, code) in rest.iter_mut().enumerate() {
                *code = bits(bytes, at + i, 6);
            }
        }
        _ => {
            for (i, code) in codes.iter_mut().enumerate() {
                *code = bits(bytes, i, n_bits);
            }
        }
    }
}

/// The code at `i`.
#[inline(always)]
fn bits(bytes: &[u8], i: usize, n_bits: usize) -> u8 {
    let at = i * n_bits;
    let next = bytes.get(at / 8 + 1).copied().unwrap_or(0);
    let both = u16::from_le_bytes([bytes[at / 8], next]);
    (both >> (at % 8)) as u8 & ((1 << n_bits) - 1) as u8
}

/// The entries that codes stand for.
#[inline(always)]
fn look_up<S: Simd>(simd: S, table: &[f32], codes: &[u8], out: &mut [f32]) {
    let (tables, short) = table.as_chunks::<16>();
    match *tables {
        [] => {
            let mut padded = [0.0; 16];
            padded[..short.len()].copy_from_slice(short);
            let table = simd.load(&padded);
            each!(simd, codes, out, |codes| simd.look_up(table, codes));
        }
        [ref table] => {
            let table = simd.load(table);
            each!(simd, codes, out, |codes| simd.look_up(table, codes));
        }
        [ref a, ref b, ref c, ref d] => {
            let tables = [simd.load(a), simd.load(b), simd.load(c), simd.load(d)];
            let bounds = [simd.splat(16.0), simd.splat(32.0), simd.splat(48.0)];
            each!(simd, codes, out, |codes| {
                let number = simd.u8_values(codes);
                let [a, b] = [
                    simd.look_up(tables[0], codes),
                    simd.look_up(tables[1], codes),
                ];
                let [c, d] = [
                    simd.look_up(tables[2], codes),
                    simd.look_up(tables[3], codes),
                ];
                let low = simd.select_lt(number, bounds[0], a, b);
                let high = simd.select_lt(number, bounds[2], c, d);
                simd.select_lt(number, bounds[1], low, high)
            });
        }
        _ => {
            for (code, out) in codes.iter().zip(out) {
                *out = table[usize::from(*code) & (table.len() - 1)];
            }
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

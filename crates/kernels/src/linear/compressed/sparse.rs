//! Weights of which only some elements have codes, and the others are 0.

use super::unpack::{CHUNK_LEN, spread_word};
use super::{Coding, Compressed};
use crate::f16::u16_as_bytes;
use crate::simd::{LANES, Simd};

/// Which elements of a matrix have codes.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    /// A bit for each element, row after row, the least significant of a byte first.
    pub bits: &'a [u8],
    /// Of each row, how many elements in front of it have codes, as [`Self::count`] counts them.
    pub starts: &'a [u32],
}

/// Columns of a byte of the mask.
const BYTE_COLS: usize = 8;

/// Where each element of eight takes its code from: that of so many codes in a row, or the eighth,
/// which is none.
static PLACES: [[u8; BYTE_COLS]; 256] = places();

const fn places() -> [[u8; BYTE_COLS]; 256] {
    let mut all = [[BYTE_COLS as u8; BYTE_COLS]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut at, mut n) = (0, 0);
        while at < BYTE_COLS {
            if byte >> at & 1 == 1 {
                all[byte][at] = n;
                n += 1;
            }
            at += 1;
        }
        byte += 1;
    }
    all
}

impl<'a> Mask<'a> {
    /// [`Self::starts`] of the bits of a matrix; `None` where its rows are no whole bytes, or there
    /// are other bits.
    pub fn count(bits: &[u8], [n_rows, n_cols]: [usize; 2]) -> Option<Vec<u32>> {
        let row_bytes = n_cols / BYTE_COLS;
        let fits = n_cols.is_multiple_of(BYTE_COLS)
            && row_bytes > 0
            && row_bytes.checked_mul(n_rows) == Some(bits.len());
        let mut n = 0usize;
        let starts = bits.chunks(fits.then_some(row_bytes)?).map(|row| {
            let start = n;
            n += count_ones(row);
            u32::try_from(start).ok()
        });
        starts.collect()
    }

    /// Elements that have codes; `None` where the mask is not of so many whole bytes in each row.
    fn n_codes(&self, [n_rows, n_cols]: [usize; 2]) -> Option<usize> {
        let row_bytes = n_cols / BYTE_COLS;
        let fits = n_cols.is_multiple_of(BYTE_COLS)
            && row_bytes.checked_mul(n_rows) == Some(self.bits.len())
            && self.starts.len() == n_rows;
        let last = fits.then(|| self.starts.last())??;
        let row = &self.bits[self.bits.len() - row_bytes..];
        (*last as usize).checked_add(count_ones(row))
    }

    /// The bits of columns of a row, both multiples of eight, and the number of the first code.
    #[inline(always)]
    fn part(&self, n_cols: usize, row_idx: usize, start: usize, len: usize) -> (&'a [u8], usize) {
        let row = &self.bits[row_idx * n_cols / BYTE_COLS..][..n_cols / BYTE_COLS];
        let (before, rest) = row.split_at(start / BYTE_COLS);
        let first = self.starts[row_idx] as usize + count_ones(before);
        (&rest[..len.div_ceil(BYTE_COLS)], first)
    }
}

fn count_ones(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| byte.count_ones() as usize).sum()
}

impl<'a> Compressed<'a> {
    /// As [`Self::new`] of the elements that a mask names: their codes follow each other, from one
    /// row to the next. `None` also where rows of the mask are no whole bytes, or rows share codes.
    pub fn sparse(
        n_bits: usize,
        codes: &'a [u8],
        coding: Coding<'a>,
        mask: Mask<'a>,
        shape: [usize; 2],
    ) -> Option<Self> {
        let n_codes = mask.n_codes(shape)?;
        let has_bits = match coding {
            Coding::Half => n_bits == 16,
            _ => (1..=8).contains(&n_bits),
        };
        let has_codes = n_codes
            .checked_mul(n_bits)
            .is_some_and(|n| n.div_ceil(8) == codes.len());
        let is_whole = has_bits && has_codes && coding.width() == 1;
        (is_whole && coding.fits(n_bits, shape)).then_some(Self {
            mask: Some(mask),
            ..Self::stored(n_bits, codes, coding, shape)
        })
    }

    /// The values of columns of a row, from a multiple of eight on.
    #[inline(always)]
    pub(super) fn sparse_values<S: Simd>(
        &self,
        simd: S,
        mask: Mask,
        row_idx: usize,
        start: usize,
        out: &mut [f32],
    ) {
        let mut codes = [0; CHUNK_LEN];
        for (i, out) in out.chunks_mut(CHUNK_LEN).enumerate() {
            let start = start + i * CHUNK_LEN;
            let (bits, first) = mask.part(self.n_cols, row_idx, start, out.len());
            if let Coding::Half = self.coding {
                self.sparse_halves(simd, bits, first, out);
                continue;
            }
            self.sparse_codes(bits, first, &mut codes);
            self.code_values(simd, row_idx, start, &mut codes[..out.len()], out);
            for (byte, out) in bits.iter().zip(out.chunks_mut(BYTE_COLS)) {
                for (at, value) in out.iter_mut().enumerate() {
                    let kept = u32::from(byte >> at & 1).wrapping_neg();
                    *value = f32::from_bits(value.to_bits() & kept);
                }
            }
        }
    }

    /// The codes of some elements, from this one on, each in its place.
    #[inline(always)]
    fn sparse_codes(&self, bits: &[u8], mut first: usize, codes: &mut [u8; CHUNK_LEN]) {
        for (byte, codes) in bits.iter().zip(codes.as_chunks_mut::<BYTE_COLS>().0) {
            let at = first * self.n_bits;
            let rest = &self.codes[at / 8..];
            let mut word = [0; 8];
            let n = rest.len().min(8);
            word[..n].copy_from_slice(&rest[..n]);
            let word = spread_word(self.n_bits, u64::from_le_bytes(word) >> (at % 8));
            let mut found = [0; BYTE_COLS + 1];
            found[..BYTE_COLS].copy_from_slice(&word.to_le_bytes());
            for (code, place) in codes.iter_mut().zip(&PLACES[usize::from(*byte)]) {
                *code = found[usize::from(*place)];
            }
            first += byte.count_ones() as usize;
        }
    }

    /// Numbers in f16, from this one on, each in its place.
    #[inline(always)]
    fn sparse_halves<S: Simd>(&self, simd: S, bits: &[u8], mut first: usize, out: &mut [f32]) {
        let numbers = self.codes.as_chunks::<2>().0;
        for (pair, out) in bits.chunks(2).zip(out.chunks_mut(LANES)) {
            let mut halves = [0; LANES];
            for (byte, halves) in pair.iter().zip(halves.as_chunks_mut::<BYTE_COLS>().0) {
                let n = byte.count_ones() as usize;
                let mut found = [0; BYTE_COLS + 1];
                for (to, number) in found.iter_mut().zip(&numbers[first..][..n]) {
                    *to = u16::from_le_bytes(*number);
                }
                // What is none is 0.
                for (half, place) in halves.iter_mut().zip(&PLACES[usize::from(*byte)]) {
                    *half = found[usize::from(*place)];
                }
                first += n;
            }
            let mut values = [0.0; LANES];
            simd.store(simd.load_f16(u16_as_bytes(&halves)), &mut values);
            out.copy_from_slice(&values[..out.len()]);
        }
    }
}

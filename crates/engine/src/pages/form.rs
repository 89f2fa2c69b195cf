//! How pages hold the rows of keys and values.

use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

/// How pages hold keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageForm {
    /// As caches have them.
    #[default]
    Exact,
    /// As int8 with an fp32 scale for each token and head, if they are fp16 or fp32.
    Int8,
}

/// The bytes of a scale.
const SCALE: usize = size_of::<f32>();

impl PageForm {
    /// The form that rows of this type get.
    pub(super) fn of(self, dtype: DType) -> Self {
        match dtype {
            DType::Fp16 | DType::Fp32 => self,
            _ => Self::Exact,
        }
    }

    /// Bytes of a row of so many elements.
    pub(super) fn row_bytes(self, dtype: DType, n: usize) -> usize {
        match self {
            Self::Exact => n * dtype.bits() / 8,
            Self::Int8 => SCALE + n,
        }
    }

    /// Appends the rows of a cache, of `n` elements each. Returns false if they have no such form,
    /// because a number is not finite.
    pub(super) fn encode(self, rows: &[u8], (dtype, n): (DType, usize), to: &mut Vec<u8>) -> bool {
        if self == Self::Exact {
            to.extend_from_slice(rows);
            return true;
        }
        let mut rows = rows.chunks_exact(Self::Exact.row_bytes(dtype, n).max(1));
        rows.all(|row| encode_row(row, dtype, to))
    }

    /// Sets the rows of a cache from those of a page.
    pub(super) fn decode(self, stored: &[u8], (dtype, n): (DType, usize), to: &mut [u8]) {
        if self == Self::Exact {
            to.copy_from_slice(stored);
            return;
        }
        let stored = stored.chunks_exact(self.row_bytes(dtype, n));
        let rows = to.chunks_exact_mut(Self::Exact.row_bytes(dtype, n).max(1));
        for (row, to) in stored.zip(rows) {
            decode_row(row, dtype, to);
        }
    }
}

fn encode_row(row: &[u8], dtype: DType, to: &mut Vec<u8>) -> bool {
    // `f32::max`, below, skips NaN.
    if !numbers(row, dtype).all(f32::is_finite) {
        return false;
    }
    let greatest = numbers(row, dtype).map(f32::abs).fold(0.0, f32::max);
    let scale = greatest / 127.0;
    // A subnormal scale has no finite inverse: such a row becomes zeros.
    let inverse = Some(1.0 / scale).filter(|x| x.is_finite()).unwrap_or(0.0);
    let code = |x: f32| (x * inverse).round() as i8;
    to.extend(scale.to_ne_bytes());
    to.extend(numbers(row, dtype).map(|x| code(x).cast_unsigned()));
    true
}

fn decode_row(row: &[u8], dtype: DType, to: &mut [u8]) {
    let Some((scale, codes)) = row.split_first_chunk() else {
        return;
    };
    let scale = f32::from_ne_bytes(*scale);
    let numbers = codes
        .iter()
        .map(|code| f32::from(code.cast_signed()) * scale);
    if dtype == DType::Fp16 {
        let cells = to.as_chunks_mut::<2>().0.iter_mut();
        let halves = numbers.map(|x| f64_to_f16(f64::from(x)).to_ne_bytes());
        cells.zip(halves).for_each(|(cell, x)| *cell = x);
    } else {
        let cells = to.as_chunks_mut::<4>().0.iter_mut();
        let floats = numbers.map(f32::to_ne_bytes);
        cells.zip(floats).for_each(|(cell, x)| *cell = x);
    }
}

fn numbers(row: &[u8], dtype: DType) -> impl Iterator<Item = f32> {
    let halves = if dtype == DType::Fp16 { row } else { &[] };
    let floats = if dtype == DType::Fp16 { &[] } else { row };
    let halves = halves.as_chunks::<2>().0.iter();
    let floats = floats.as_chunks::<4>().0.iter();
    halves
        .map(|b| f16_to_f32(u16::from_ne_bytes(*b)))
        .chain(floats.map(|b| f32::from_ne_bytes(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row that comes back.
    fn there_and_back(row: &[f32], dtype: DType) -> Option<Vec<f32>> {
        let bytes: Vec<u8> = row
            .iter()
            .flat_map(|x| match dtype {
                DType::Fp16 => f64_to_f16(f64::from(*x)).to_ne_bytes().to_vec(),
                _ => x.to_ne_bytes().to_vec(),
            })
            .collect();
        let form = PageForm::Int8.of(dtype);
        let (mut stored, mut back) = (Vec::new(), vec![0xff; bytes.len()]);
        // Two rows.
        let n = row.len() / 2;
        if !form.encode(&bytes, (dtype, n), &mut stored) {
            return None;
        }
        assert_eq!(stored.len(), 2 * form.row_bytes(dtype, n));
        form.decode(&stored, (dtype, n), &mut back);
        Some(numbers(&back, dtype).collect())
    }

    #[test]
    fn numbers_come_back_within_half_a_step_of_their_row() {
        let number = |i: usize| ((i * i * 7 % 41) as f32 - 19.5) * if i < 37 { 0.173 } else { 5.3 };
        let rows: Vec<f32> = (0..74).map(number).collect();
        for dtype in [DType::Fp16, DType::Fp32] {
            let back = there_and_back(&rows, dtype).unwrap();
            for (row, back) in rows.chunks(37).zip(back.chunks(37)) {
                let step = row.iter().copied().map(f32::abs).fold(0.0, f32::max) / 127.0;
                let error = row.iter().zip(back).map(|(x, y)| (x - y).abs());
                let error = error.fold(0.0, f32::max);
                assert!(
                    0.1 * step < error && error < 0.56 * step,
                    "{dtype:?}: {error} {step}"
                );
            }
        }
    }

    #[test]
    fn rows_of_zeros_stay_and_rows_that_are_not_finite_have_no_form() {
        assert_eq!(there_and_back(&[0.0; 6], DType::Fp32), Some(vec![0.0; 6]));
        assert_eq!(
            there_and_back(&[1e-42, -1e-42], DType::Fp32),
            Some(vec![0.0; 2])
        );
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(
                there_and_back(&[1.0, 2.0, x, 2.0], DType::Fp32),
                None,
                "{x}"
            );
        }
    }
}

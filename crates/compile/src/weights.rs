//! Parts of constants, and constants in another form, computed when they are read: a part of a
//! mapped weight takes no memory. [`compressed`](crate::compressed) handles constants that are
//! computed from smaller ones.

use std::sync::{Arc, OnceLock};

use thane_mil::data::{Data, Packed, Source};
use thane_mil::graph::Graph;
use thane_mil::literal::{Literal, f16_to_f32};
use thane_mil::program::Op;
use thane_mil::types::DType;

use crate::rewrite::bytes_of;

/// A constant: type, shape, bytes.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Element type.
    pub dtype: DType,
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// Content.
    pub data: Data,
}

impl Constant {
    /// What the parameter of an op is bound to, where it is a constant as it stands, of any element
    /// type.
    pub fn stated(graph: &Graph<'_>, op: &Op, name: &str) -> Option<Self> {
        let Literal::Tensor(ty, data) = graph.f.literal_arg(op, name)? else {
            return None;
        };
        Some(Self {
            dtype: ty.dtype,
            shape: ty.known_shape()?,
            data: data.clone(),
        })
    }

    /// What the parameter of an op is bound to, where it is a plain constant of floating point.
    pub fn of(graph: &Graph<'_>, op: &Op, name: &str) -> Option<Self> {
        Self::from_literal(graph.f.literal_arg(op, name)?)
    }

    /// A literal, where it is a tensor of floating point.
    pub fn from_literal(literal: &Literal) -> Option<Self> {
        let Literal::Tensor(ty, data) = literal else {
            return None;
        };
        let is_float = matches!(ty.dtype, DType::Fp16 | DType::Fp32);
        is_float.then(|| {
            Some(Self {
                dtype: ty.dtype,
                shape: ty.known_shape()?,
                data: data.clone(),
            })
        })?
    }

    /// `len` elements of an axis from `begin` on; elements of fewer bits than a byte are moved
    /// together.
    pub fn slice(&self, axis: usize, begin: usize, len: usize) -> Self {
        let (columns, shape) = self.columns(axis, begin, len, len);
        let (start, end) = (columns.start, columns.start + columns.width);
        let part = match &self.data {
            Data::Bytes(bytes) if columns.rows == 1 && start % 8 == 0 && end % 8 == 0 => {
                bytes.slice(start / 8..end / 8).map(Data::Bytes)
            }
            _ => None,
        };
        Self {
            dtype: self.dtype,
            shape,
            data: part.unwrap_or_else(|| Data::Source(Arc::new(columns))),
        }
    }

    /// With an axis of `len` elements, those behind its own 0.
    pub fn padded(&self, axis: usize, len: usize) -> Self {
        let (columns, shape) = self.columns(axis, 0, self.shape[axis], len);
        Self {
            dtype: self.dtype,
            shape,
            data: Data::Source(Arc::new(columns)),
        }
    }

    /// `n` elements of an axis from `begin` on, followed by zeros up to `len`, and their shape.
    fn columns(&self, axis: usize, begin: usize, n: usize, len: usize) -> (Columns, Vec<usize>) {
        let mut shape = self.shape.clone();
        shape[axis] = len;
        let inner = self.shape[axis + 1..].iter().product::<usize>() * self.dtype.bits();
        let columns = Columns {
            data: self.data.clone(),
            rows: self.shape[..axis].iter().product(),
            row: self.shape[axis] * inner,
            start: begin * inner,
            width: n * inner,
            wide: len * inner,
        };
        (columns, shape)
    }

    /// The same bytes in another shape of as many elements.
    pub fn reshaped(self, shape: Vec<usize>) -> Self {
        Self { shape, ..self }
    }

    /// With its first two axes exchanged.
    pub fn transposed(mut self) -> Self {
        let (rows, columns) = (self.shape[0], self.shape[1]);
        self.shape.swap(0, 1);
        let width = self.dtype.bits() * self.shape[2..].iter().product::<usize>();
        let made = Transposed {
            data: self.data,
            rows,
            columns,
            width,
            made: OnceLock::new(),
        };
        Self {
            data: Data::Source(Arc::new(made)),
            ..self
        }
    }

    /// Each number by itself into another, of this element type.
    pub fn map(self, dtype: DType, map: fn(f32) -> f32) -> Self {
        let data = Data::Source(Arc::new(Mapped {
            from: self.dtype,
            to: dtype,
            data: self.data,
            map,
        }));
        Self {
            dtype,
            shape: self.shape,
            data,
        }
    }

    /// Whether some number is as `is` says; read in pieces.
    pub fn any(&self, is: impl Fn(f32) -> bool) -> bool {
        let len = self.data.byte_len();
        let mut piece = vec![0; PIECE.min(len)];
        (0..len).step_by(PIECE).any(|at| {
            let n = PIECE.min(len - at);
            self.data.read(at, &mut piece[..n]) && numbers(self.dtype, &piece[..n]).any(&is)
        })
    }

    /// As an argument of a `const`.
    pub fn literal(self) -> Literal {
        Literal::Tensor(
            thane_mil::types::TensorType::new(self.dtype, self.shape),
            self.data,
        )
    }
}

/// Bytes that are read at once; a multiple of any element's size.
const PIECE: usize = 1 << 16;

fn numbers(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(dtype.bits() / 8).map(|b| match b {
        [low, high] => f16_to_f32(u16::from_le_bytes([*low, *high])),
        wide => wide.try_into().map_or(0.0, f32::from_le_bytes),
    })
}

/// Some columns of each row, and zeros behind them; lengths are in bits.
struct Columns {
    data: Data,
    rows: usize,
    /// Of a row of `data`.
    row: usize,
    /// Where the columns begin in a row.
    start: usize,
    /// Of the columns of a row.
    width: usize,
    /// Of a row with its zeros.
    wide: usize,
}

impl Source for Columns {
    fn byte_len(&self) -> usize {
        (self.rows * self.wide).div_ceil(8)
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.fill(0);
        let first = 8 * offset;
        let end = (first + 8 * out.len()).min(self.rows * self.wide);
        let mut at = first;
        while at < end {
            let (row, column) = (at / self.wide, at % self.wide);
            let n = (self.wide - column).min(end - at);
            let stored = self.width.saturating_sub(column).min(n);
            if stored > 0 {
                let from = row * self.row + self.start + column;
                copy_bits(&self.data, from, stored, out, at - first);
            }
            at += n;
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// Copy `n` bits of `data` to place `to` of `out`, which is 0 there; the least significant bit of a
/// byte comes first.
fn copy_bits(data: &Data, from: usize, n: usize, out: &mut [u8], to: usize) {
    let (first, last) = (from / 8, (from + n).div_ceil(8));
    let is_whole = [from, n, to].iter().all(|bits| bits % 8 == 0);
    let read = if is_whole {
        data.read(first, &mut out[to / 8..(to + n) / 8])
    } else {
        let mut bytes = vec![0; last - first];
        let read = data.read(first, &mut bytes);
        move_bits(&bytes, from % 8, n, out, to);
        read
    };
    debug_assert!(read, "the part lies within the whole");
}

/// Set those of `n` bits of `out` from `to` on that are set in `bytes` from `from` on.
pub fn move_bits(bytes: &[u8], from: usize, n: usize, out: &mut [u8], to: usize) {
    for i in 0..n {
        let bit = bytes[(from + i) / 8] >> ((from + i) % 8) & 1;
        out[(to + i) / 8] |= bit << ((to + i) % 8);
    }
}

/// A matrix with rows and columns exchanged, made when it is first read.
struct Transposed {
    data: Data,
    rows: usize,
    columns: usize,
    /// Bits of an element.
    width: usize,
    made: OnceLock<Vec<u8>>,
}

impl Source for Transposed {
    fn byte_len(&self) -> usize {
        self.data.byte_len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let made = self.made.get_or_init(|| {
            let (from, w) = (self.data.to_vec(), self.width);
            let mut to = vec![0; from.len()];
            for row in 0..self.rows {
                for column in 0..self.columns {
                    let (a, b) = (
                        (row * self.columns + column) * w,
                        (column * self.rows + row) * w,
                    );
                    if w % 8 == 0 {
                        to[b / 8..(b + w) / 8].copy_from_slice(&from[a / 8..(a + w) / 8]);
                    } else {
                        move_bits(&from, a, w, &mut to, b);
                    }
                }
            }
            to
        });
        out.copy_from_slice(&made[offset..offset + out.len()]);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// Numbers, each made into another.
struct Mapped {
    data: Data,
    from: DType,
    to: DType,
    map: fn(f32) -> f32,
}

impl Source for Mapped {
    fn byte_len(&self) -> usize {
        self.data.byte_len() / (self.from.bits() / 8) * (self.to.bits() / 8)
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let (from, to) = (self.from.bits() / 8, self.to.bits() / 8);
        let (first, last) = (offset / to, (offset + out.len()).div_ceil(to));
        let mut stored = vec![0; (last - first) * from];
        let read = self.data.read(first * from, &mut stored);
        debug_assert!(read, "as many elements are stored as are made");
        let made = bytes_of(self.to, numbers(self.from, &stored).map(self.map));
        let skip = offset - first * to;
        out.copy_from_slice(&made[skip..skip + out.len()]);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(shape: &[usize]) -> Constant {
        let n: usize = shape.iter().product();
        let data = Data::owned(bytes_of(DType::Fp32, (0..n).map(|i| i as f32)));
        Constant {
            dtype: DType::Fp32,
            shape: shape.to_vec(),
            data,
        }
    }

    fn floats(c: &Constant) -> Vec<f32> {
        let bytes = c.data.to_vec();
        // In odd pieces too, as writers read.
        for (at, len) in [(0, 1), (3, 3), (bytes.len() - 1, 1)] {
            let mut piece = vec![0; len];
            assert!(c.data.read(at, &mut piece) && piece == bytes[at..at + len]);
        }
        numbers(c.dtype, &bytes).collect()
    }

    #[test]
    fn parts_and_forms_are_what_they_say() {
        let c = ramp(&[2, 3, 4]);
        assert_eq!(
            floats(&c.slice(1, 1, 2)),
            [
                4., 5., 6., 7., 8., 9., 10., 11., 16., 17., 18., 19., 20., 21., 22., 23.
            ]
        );
        assert_eq!(floats(&c.slice(2, 3, 1)), [3., 7., 11., 15., 19., 23.]);
        let rows = c.slice(0, 1, 1);
        assert!(matches!(rows.data, Data::Bytes(_)), "rows are not copied");
        assert_eq!(floats(&rows)[..2], [12., 13.]);
        assert_eq!(
            floats(&ramp(&[2, 3]).padded(1, 5)),
            [0., 1., 2., 0., 0., 3., 4., 5., 0., 0.]
        );
        assert_eq!(
            floats(&ramp(&[2, 2]).padded(0, 3)),
            [0., 1., 2., 3., 0., 0.]
        );
        assert_eq!(
            floats(&ramp(&[2, 3]).transposed()),
            [0., 3., 1., 4., 2., 5.]
        );
        // Elements of 4 bits, 0 to 14 in rows of 5: a row is no whole number of bytes.
        let nibbles = Data::owned(vec![0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0x0e]);
        let codes = Constant {
            dtype: DType::Uint4,
            shape: vec![3, 5],
            data: nibbles,
        };
        assert_eq!(
            codes.slice(1, 1, 3).data.to_vec(),
            [0x21, 0x63, 0x87, 0xcb, 0x0d]
        );
        assert_eq!(codes.slice(0, 1, 1).data.to_vec(), [0x65, 0x87, 0x09]);
        assert_eq!(
            codes.transposed().data.to_vec(),
            [0x50, 0x1a, 0xb6, 0x72, 0x3c, 0xd8, 0x94, 0x0e]
        );
        let half = ramp(&[3]).map(DType::Fp16, |x| -x);
        assert_eq!(floats(&half), [0., -1., -2.]);
        assert!(half.any(|x| x == -2.0) && !half.any(|x| x > 0.5));
    }
}

//! Parts of constants, and constants in another form, made where they are read: a part of a mapped weight takes no
//! memory.

use std::sync::{Arc, OnceLock};

use thane_mil::data::{Data, Packed, Source};
use thane_mil::literal::{Literal, f16_to_f32};
use thane_mil::program::Op;
use thane_mil::types::DType;

use super::rewrite::bytes_of;
use crate::audit::view::View;

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
    /// What the parameter of an op is bound to, where it is a plain constant of floating point.
    pub fn of(view: &View<'_>, op: &Op, name: &str) -> Option<Self> {
        Self::from_literal(view.f.literal_arg(op, name)?)
    }

    /// A literal, where it is a tensor of floating point.
    pub fn from_literal(literal: &Literal) -> Option<Self> {
        let Literal::Tensor(ty, data) = literal else { return None };
        let is_float = matches!(ty.dtype, DType::Fp16 | DType::Fp32);
        is_float.then(|| Some(Self { dtype: ty.dtype, shape: ty.known_shape()?, data: data.clone() }))?
    }

    /// `len` elements of an axis from `begin` on.
    pub fn slice(&self, axis: usize, begin: usize, len: usize) -> Self {
        let mut shape = self.shape.clone();
        shape[axis] = len;
        let inner = self.shape[axis + 1..].iter().product::<usize>() * (self.dtype.bits() / 8);
        let rows = self.shape[..axis].iter().product();
        let row = self.shape[axis] * inner;
        let (start, width) = (begin * inner, len * inner);
        let part = match &self.data {
            Data::Bytes(bytes) if rows == 1 => bytes.slice(start..start + width).map(Data::Bytes),
            _ => None,
        };
        let data = part
            .unwrap_or_else(|| Data::Source(Arc::new(Columns { data: self.data.clone(), rows, row, start, width })));
        Self { dtype: self.dtype, shape, data }
    }

    /// The same bytes in another shape of as many elements.
    pub fn reshaped(self, shape: Vec<usize>) -> Self {
        Self { shape, ..self }
    }

    /// A matrix with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        let (rows, columns) = (self.shape[0], self.shape[1]);
        let width = self.dtype.bits() / 8;
        let made = Transposed { data: self.data, rows, columns, width, made: OnceLock::new() };
        Self { dtype: self.dtype, shape: vec![columns, rows], data: Data::Source(Arc::new(made)) }
    }

    /// Each number by itself into another, of this element type.
    pub fn map(self, dtype: DType, map: fn(f32) -> f32) -> Self {
        let data = Data::Source(Arc::new(Mapped { from: self.dtype, to: dtype, data: self.data, map }));
        Self { dtype, shape: self.shape, data }
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
        Literal::Tensor(thane_mil::types::TensorType::new(self.dtype, self.shape), self.data)
    }
}

/// Bytes that are read at once; a multiple of any element's size.
const PIECE: usize = 1 << 16;

fn numbers(dtype: DType, bytes: &[u8]) -> Box<dyn Iterator<Item = f32> + '_> {
    match dtype {
        DType::Fp16 => Box::new(bytes.as_chunks::<2>().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b)))),
        _ => Box::new(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
    }
}

/// Some columns of each row.
struct Columns {
    data: Data,
    rows: usize,
    /// Bytes of a row of `data`.
    row: usize,
    /// Where the columns begin in a row.
    start: usize,
    /// Bytes of the columns of a row.
    width: usize,
}

impl Source for Columns {
    fn byte_len(&self) -> usize {
        self.rows * self.width
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let (row, column) = ((offset + done) / self.width, (offset + done) % self.width);
            let n = (self.width - column).min(out.len() - done);
            let read = self.data.read(row * self.row + self.start + column, &mut out[done..done + n]);
            debug_assert!(read, "the columns lie within the rows");
            done += n;
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// A matrix with rows and columns exchanged, made when it is first read.
struct Transposed {
    data: Data,
    rows: usize,
    columns: usize,
    /// Bytes of an element.
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
                    let (a, b) = ((row * self.columns + column) * w, (column * self.rows + row) * w);
                    to[b..b + w].copy_from_slice(&from[a..a + w]);
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
        Constant { dtype: DType::Fp32, shape: shape.to_vec(), data }
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
            [4., 5., 6., 7., 8., 9., 10., 11., 16., 17., 18., 19., 20., 21., 22., 23.]
        );
        assert_eq!(floats(&c.slice(2, 3, 1)), [3., 7., 11., 15., 19., 23.]);
        let rows = c.slice(0, 1, 1);
        assert!(matches!(rows.data, Data::Bytes(_)), "rows are not copied");
        assert_eq!(floats(&rows)[..2], [12., 13.]);
        assert_eq!(floats(&ramp(&[2, 3]).transposed()), [0., 3., 1., 4., 2., 5.]);
        let half = ramp(&[3]).map(DType::Fp16, |x| -x);
        assert_eq!(floats(&half), [0., -1., -2.]);
        assert!(half.any(|x| x == -2.0) && !half.any(|x| x > 0.5));
    }
}

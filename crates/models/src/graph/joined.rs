//! Products with several matrices at once, whose rows become one constant.

use std::ops::Range;
use std::sync::Arc;

use thane_mil::data::{Data, Packed, Source};
use thane_mil::literal::Literal;
use thane_mil::program::ValueId;
use thane_mil::types::TensorType;

use super::constants::dense;
use super::{Graph, ValueResult};
use crate::checkpoint::Tensor;
use crate::quant;

/// A matrix, as a part of a joined one.
#[derive(Clone)]
pub struct Matrix {
    /// The matrix [rows, columns].
    pub weight: Tensor,
    /// Added to each product with a row, if there is a bias.
    pub bias: Option<Tensor>,
    /// Every number is divided by this.
    pub divisor: f32,
    /// The rows to take, in this order; `None` for all as they are stored.
    pub rows: Option<Arc<[usize]>>,
}

impl Matrix {
    /// All rows of a matrix.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self {
            weight,
            bias,
            divisor: 1.0,
            rows: None,
        }
    }

    /// The rows `range` of those that are taken.
    pub fn within(&self, range: Range<usize>) -> Self {
        let rows = self.rows.as_ref();
        let rows = range.map(|i| rows.map_or(i, |rows| rows[i]));
        Self {
            rows: Some(rows.collect()),
            ..self.clone()
        }
    }

    /// Number of rows that are taken.
    fn n_rows(&self) -> usize {
        let all = self.weight.shape.first().copied().unwrap_or(0);
        self.rows.as_ref().map_or(all, |rows| rows.len())
    }
}

impl Graph {
    /// Products of `x` [1, columns, 1, tokens] with all rows of `parts`, in their order. `name` is
    /// that of the op, and with the current module that of the constant: parts of one name must be
    /// the same in all functions.
    pub fn joined_product(&mut self, name: &str, x: ValueId, parts: &[Matrix]) -> ValueResult {
        if let [
            Matrix {
                weight,
                bias,
                divisor,
                rows: None,
            },
        ] = parts
            && *divisor == 1.0
        {
            return self.linear(name, x, weight, bias.as_ref());
        }
        let n_rows = parts.iter().map(Matrix::n_rows).sum();
        let n_columns = parts.first().map_or(0, |part| part.weight.shape[1]);
        let weight = self.joined_constant(&format!("{name}.weight"), parts, |part| {
            (Some(&part.weight), n_columns)
        });
        let weight = self.named(weight, &[n_rows, n_columns, 1, 1])?;
        let bias = if parts.iter().any(|part| part.bias.is_some()) {
            let bias = self.joined_constant(&format!("{name}.bias"), parts, |part| {
                (part.bias.as_ref(), 1)
            });
            Some(self.named(bias, &[n_rows])?)
        } else {
            None
        };
        self.conv(name, (x, weight), 1, bias)
    }

    fn named(&mut self, (name, data): (String, Data), shape: &[usize]) -> ValueResult {
        let key = (name.clone(), shape.len(), 1f32.to_bits());
        if let Some(value) = self.weights.get(&key) {
            return Ok(*value);
        }
        let ty = TensorType::new(self.spelling.float, shape.iter().copied());
        let value = self.builder.constant(&name, Literal::Tensor(ty, data))?;
        self.weights.insert(key, value);
        Ok(value)
    }

    /// The numbers of one tensor of each part, in the element type of the form; zeros where a part
    /// has none. `of` gives the tensor and the length of a row.
    fn joined_constant<'p>(
        &self,
        name: &str,
        parts: &'p [Matrix],
        of: impl Fn(&'p Matrix) -> (Option<&'p Tensor>, usize),
    ) -> (String, Data) {
        let size = self.spelling.float.bits() / 8;
        let pieces = parts.iter().map(|part| {
            let (tensor, n_columns) = of(part);
            let row_bytes = n_columns * size;
            let n_rows = part.n_rows();
            let Some(tensor) = tensor else {
                return Piece {
                    data: Data::zeros(n_rows * row_bytes),
                    row_bytes,
                    n_rows,
                    rows: None,
                };
            };
            self.note_use(tensor, part.divisor);
            let data = quant::divided(dense(tensor), part.divisor, self.spelling.float);
            Piece {
                data,
                row_bytes,
                n_rows,
                rows: part.rows.clone(),
            }
        });
        let data = Data::Source(Arc::new(Joined(pieces.collect())));
        let name = format!("{}.{name}", self.place);
        let data = self.derive(&name, data);
        (name, data)
    }
}

/// Rows of a constant.
struct Piece {
    data: Data,
    row_bytes: usize,
    n_rows: usize,
    /// The rows to take; `None` for all.
    rows: Option<Arc<[usize]>>,
}

impl Piece {
    fn byte_len(&self) -> usize {
        self.n_rows * self.row_bytes
    }

    /// Writes the bytes from `offset` on. What a tensor with a fault lacks stays zero;
    /// [`crate::weights::Weights`] reports it.
    fn read(&self, offset: usize, out: &mut [u8]) {
        let Some(rows) = &self.rows else {
            let _ = self.data.read(offset, out);
            return;
        };
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let (row, within) = (at / self.row_bytes, at % self.row_bytes);
            let n = (self.row_bytes - within).min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            let _ = self.data.read(rows[row] * self.row_bytes + within, now);
            at += n;
            rest = later;
        }
    }
}

/// Pieces one after another.
struct Joined(Vec<Piece>);

impl Source for Joined {
    fn byte_len(&self) -> usize {
        self.0.iter().map(Piece::byte_len).sum()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let (mut start, mut done) = (0, 0);
        for piece in &self.0 {
            let end = start + piece.byte_len();
            let at = offset + done;
            if done < out.len() && at < end {
                let n = (end - at).min(out.len() - done);
                piece.read(at - start, &mut out[done..done + n]);
                done += n;
            }
            start = end;
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

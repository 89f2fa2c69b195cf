//! Running the fused ops that encoders have: attention over the tokens of a call, norms with a
//! mean, products of run-time matrices, and 1x1 convolutions. fp16 values are widened before and
//! rounded after, as the plain ops do it.

use thane_kernels::attention::{
    Attention, HeadRows, KvData, KvView, attention, attention_scratch_len,
};
use thane_kernels::linear::{Epilogue, Product, Start, linear_f32, linear_f32_scratch_len};
use thane_kernels::norm::{group_norm, layer_norm};
use thane_kernels::{BlockType, Weight};
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::ops::Fault;
use crate::step::Part;
use crate::tensor::{Buffer, Floats, Tensor, floats};
use crate::weight::{Demand, Matrix};

/// At or below this a mask hides a key entirely: its weight is exp of it, which is 0.
pub const HIDDEN: f32 = -1e4;

impl Frame<'_> {
    /// `softmax(q k^T / sqrt(head_dim) + mask) v`, each text of the batch for itself; whether what
    /// is given, and the result, are [batch, tokens, heads, head_dim], which is not possible with a
    /// mask for each head.
    pub fn attend(
        &mut self,
        [q, k, v]: [ValueId; 3],
        mask: Option<ValueId>,
        scale: Option<f32>,
        [by_row, out_by_row]: [bool; 2],
        parts: Option<[Part; 2]>,
    ) -> Result<Tensor, Fault> {
        let [shape, keys] = self.attend_sizes([q, k, v], by_row, parts)?;
        let ([batch, n_heads, n_rows, head_dim], [_, _, n_keys, _]) = (shape, keys);
        let shape = if out_by_row {
            vec![batch, n_rows, n_heads, head_dim]
        } else {
            shape.to_vec()
        };
        let mask = mask.map(|m| self.get(m).cloned()).transpose()?;
        // With a mask for each head, heads attend one by one.
        let n_parts = mask
            .as_ref()
            .map_or(1, |m| m.shape.get(1).map_or(1, |n| *n));
        if n_parts != 1 && (n_parts != n_heads || by_row || out_by_row) {
            return Err(format!(
                "the masks of {n_parts} heads do not fit {n_heads} heads"
            ));
        }
        let n_heads = n_heads / n_parts;
        let rows = |by_row, n| match by_row {
            true => HeadRows::by_row(n_heads, head_dim),
            false => HeadRows::by_head(n, head_dim),
        };
        let scratch_len = attention_scratch_len(self.context, n_heads, n_rows, head_dim, n_keys);
        let mut scratch = self.pool.take(scratch_len)?;
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let [q, k, v] = [
            self.get(q)?.clone(),
            self.get(k)?.clone(),
            self.get(v)?.clone(),
        ];
        let (q, k, v) = (
            floats(&q)?,
            elements(&k, parts.map(|[part, _]| part))?,
            elements(&v, parts.map(|[_, part]| part))?,
        );
        let mut repeated = Floats::default();
        let part_len = (n / (batch * n_parts).max(1)).max(1);
        for (part, out) in out[..n].chunks_mut(part_len).enumerate() {
            let (n_seen, mask) = match &mask {
                None => (n_keys, None),
                Some(mask) => self.mask_of_part(mask, part, [n_rows, n_keys], &mut repeated)?,
            };
            let first = part * n_heads * n_keys * head_dim;
            let [k, v] = [k, v].map(|data| view(data, first, rows(by_row, n_keys)));
            let args = Attention {
                q: &q[part * out.len()..][..out.len()],
                q_rows: rows(by_row, n_rows),
                k,
                v,
                mask,
                tiles: None,
                scale: scale.unwrap_or((head_dim as f32).sqrt().recip()),
                more: None,
                may_round: self.may_round,
                n_kv_heads: n_heads,
                n_rows,
                head_dim,
                n_keys: n_seen,
                out_rows: rows(out_by_row, n_rows),
                out,
            };
            attention(self.context, args, &mut scratch);
        }
        self.pool.give_f32(scratch);
        if !repeated.is_empty() {
            self.pool.give_f32(repeated);
        }
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// The batch, heads, rows and elements of queries and of keys, which fit each other.
    fn attend_sizes(
        &self,
        [q, k, v]: [ValueId; 3],
        by_row: bool,
        parts: Option<[Part; 2]>,
    ) -> Result<[[usize; 4]; 2], Fault> {
        let shape = sizes(&self.get(q)?.shape, by_row)?;
        let [keys, values] = match parts {
            Some(parts) => parts.map(|part| part.shape),
            None => [
                sizes(&self.get(k)?.shape, by_row)?,
                sizes(&self.get(v)?.shape, by_row)?,
            ],
        };
        let [batch, n_heads, _, head_dim] = shape;
        if keys != [batch, n_heads, keys[2], head_dim] || values != keys {
            return Err(format!("keys {keys:?} do not fit queries {shape:?}"));
        }
        Ok([shape, keys])
    }

    /// How many keys the rows of one text, or of one head of a text, see, and what is added for
    /// each row; `repeated` is for a row that is the same for all.
    fn mask_of_part<'m>(
        &mut self,
        mask: &'m Tensor,
        part: usize,
        [n_rows, n_keys]: [usize; 2],
        repeated: &'m mut Floats,
    ) -> Result<(usize, Option<&'m [f32]>), Fault> {
        Ok(match seen(mask, part, n_rows, n_keys)? {
            Seen::First(n) => (n, None),
            Seen::Rows(rows) => (n_keys, Some(rows)),
            Seen::Row(row) => {
                // As large as a mask of all rows would be, which the limits hold for too.
                if repeated.len() < n_rows * n_keys {
                    *repeated = self.pool.take_checked(&[n_rows, n_keys])?.0;
                }
                let rows = &mut repeated[..n_rows * n_keys];
                rows.chunks_mut(n_keys.max(1))
                    .for_each(|repeated| repeated.copy_from_slice(row));
                (n_keys, Some(&*rows))
            }
        })
    }

    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias` along the last `n_axes`.
    pub fn layer_norm(
        &mut self,
        (x, n_axes): (ValueId, usize),
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f32,
    ) -> Result<Tensor, Fault> {
        let shape = self.get(x)?.shape.clone();
        let width = shape[shape.len() - n_axes..].iter().product();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let x = floats(self.get(x)?)?;
        let (weight, bias) = (weight.and_then(Tensor::f32s), bias.and_then(Tensor::f32s));
        layer_norm(self.context, x, weight, bias, epsilon, width, &mut out[..n]);
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// `(x - mean) / sqrt(variance + epsilon)` of groups, along the axes from `a` to `b` and from
    /// `c` on.
    pub fn group_norm(
        &mut self,
        x: ValueId,
        [a, b, c]: [usize; 3],
        epsilon: f32,
    ) -> Result<Tensor, Fault> {
        let shape = self.get(x)?.shape.clone();
        let sizes = [a..b, b..c, c..shape.len()].map(|axes| shape[axes].iter().product());
        let (mut out, n) = self.pool.take_checked(&shape)?;
        group_norm(
            self.context,
            floats(self.get(x)?)?,
            sizes,
            epsilon,
            &mut out[..n],
        );
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// `x y`, or `x y^T`, of run-time matrices with equal batch axes.
    pub fn matmul(&mut self, [x, y]: [ValueId; 2], transpose_y: bool) -> Result<Tensor, Fault> {
        let (x, y) = (self.get(x)?.clone(), self.get(y)?.clone());
        let dtype = x.dtype;
        let (x, y) = (self.pool.widened(&x)?, self.pool.widened(&y)?);
        let (Some((&k, outer)), Some((y_sizes, y_batch))) = (
            x.shape.split_last(),
            y.shape.split_last_chunk::<2>().map(|(b, s)| (s, b)),
        ) else {
            return Err("a factor has no axes".to_owned());
        };
        let (n, y_k) = if transpose_y {
            (y_sizes[0], y_sizes[1])
        } else {
            (y_sizes[1], y_sizes[0])
        };
        let Some((&m, batch)) = outer.split_last() else {
            return Err("`x` is a vector".to_owned());
        };
        if y_k != k || batch != y_batch {
            return Err(format!("{:?} and {:?} do not fit", x.shape, y.shape));
        }
        let shape = [batch, &[m, n]].concat();
        let (mut out, len) = self.pool.take_checked(&shape)?;
        let (x, y) = (floats(&x)?, floats(&y)?);
        let mut turned = if transpose_y {
            Floats::default()
        } else {
            self.pool.take(k * n)?
        };
        for (i, out) in out[..len].chunks_mut((m * n).max(1)).enumerate() {
            let (x, y) = (&x[i * m * k..][..m * k], &y[i * n * k..][..n * k]);
            if k == 0 || !transpose_y && m == 1 {
                out.fill(0.0);
                for (x, y) in x.iter().zip(y.chunks(n)) {
                    out.iter_mut().zip(y).for_each(|(out, y)| *out += x * y);
                }
                continue;
            }
            let rows = if transpose_y {
                y
            } else {
                turn(y, [k, n], &mut turned);
                &turned[..k * n]
            };
            let weight = Weight {
                ty: BlockType::F32,
                bytes: bytemuck::cast_slice(rows),
                n_rows: n,
                n_cols: k,
            };
            let mut scratch = self
                .pool
                .take(linear_f32_scratch_len(self.context, &weight, m))?;
            linear_f32(self.context, &weight, x, m, Start::NONE, out, &mut scratch);
            self.pool.give_f32(scratch);
        }
        self.pool
            .narrowed(Tensor::new(DType::Fp32, shape, Buffer::F32(out)), dtype)
    }

    /// A convolution whose kernel is one place: x [batch, channels, .., places] times a matrix.
    pub fn pointwise(
        &mut self,
        x: ValueId,
        weight: &Matrix,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Fault> {
        let x = self.get(x)?.clone();
        let (dtype, mut shape) = (x.dtype, x.shape.clone());
        let (n_in, n_out) = (weight.stored.n_cols, weight.stored.n_rows);
        if shape.len() < 3 || shape[1] != n_in {
            return Err(format!(
                "{shape:?} has not the {n_in} channels of the weight"
            ));
        }
        let n_places: usize = shape[2..].iter().product();
        shape[1] = n_out;
        let x = self.pool.widened(&x)?;
        let x = floats(&x)?;
        let bias = bias.map(|bias| self.pool.widened(bias)).transpose()?;
        let bias = bias.as_ref().and_then(Tensor::f32s);
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let operand = weight.operand(self.context, Demand::Stored);
        let (mut rows, mut product) = (
            self.pool.take(n_in * n_places)?,
            self.pool.take(n_places * n_out)?,
        );
        for (x, out) in x
            .chunks((n_in * n_places).max(1))
            .zip(out[..n].chunks_mut((n_out * n_places).max(1)))
        {
            turn(x, [n_in, n_places], &mut rows);
            let y = &mut product[..n_places * n_out];
            let mut products = [Product::new(operand, n_places, bias.into(), y)];
            let rows = &rows[..n_in * n_places];
            self.multiply(&mut products, (rows, n_places), Epilogue::None)?;
            turn(&product[..n_places * n_out], [n_places, n_out], out);
        }
        self.pool.give_f32(product);
        self.pool.give_f32(rows);
        self.pool
            .narrowed(Tensor::new(DType::Fp32, shape, Buffer::F32(out)), dtype)
    }
}

impl Frame<'_> {
    /// `x @ weight^T + bias` of fp16 values.
    pub fn half_linear(
        &mut self,
        x: ValueId,
        weight: &Matrix,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Fault> {
        let x = self.get(x)?.clone();
        let x = self.pool.widened(&x)?;
        let mut shape = x.shape.clone();
        let last = shape.pop().filter(|last| *last == weight.stored.n_cols);
        last.ok_or_else(|| {
            format!(
                "the last dimension is not the {} columns of the weight",
                weight.stored.n_cols
            )
        })?;
        let n_rows = shape.iter().product();
        shape.push(weight.stored.n_rows);
        let x = floats(&x)?;
        let bias = bias.map(|bias| self.pool.widened(bias)).transpose()?;
        let bias = bias.as_ref().and_then(Tensor::f32s);
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let operand = weight.operand(self.context, Demand::Stored);
        let mut products = [Product::new(operand, n_rows, bias.into(), &mut out[..n])];
        self.multiply(&mut products, (x, n_rows), Epilogue::None)?;
        self.pool.narrowed(
            Tensor::new(DType::Fp32, shape, Buffer::F32(out)),
            DType::Fp16,
        )
    }
}

/// Keys or values from an element on.
fn view(data: KvData<'_>, first: usize, rows: HeadRows) -> KvView<'_> {
    KvView {
        data: match data {
            KvData::F32(data) => KvData::F32(&data[first..]),
            KvData::F16(data) => KvData::F16(&data[first..]),
        },
        head_stride: rows.head_stride,
        key_stride: rows.row_stride,
    }
}

/// All elements of keys or values, or a part of them that is fp16.
fn elements(t: &Tensor, part: Option<Part>) -> Result<KvData<'_>, Fault> {
    let Some(Part { first, shape, .. }) = part else {
        return Ok(KvData::F32(floats(t)?));
    };
    match &*t.data {
        Buffer::F16(v) => v
            .get(first..first + shape.iter().product::<usize>())
            .map(KvData::F16)
            .ok_or_else(|| "keys or values are outside of their tensor".to_owned()),
        _ => Err(format!("keys or values are {}, not fp16", t.dtype)),
    }
}

/// The batch, heads, rows and elements of [batch, heads, rows, elements], or with `by_row` of
/// [batch, rows, heads, elements].
fn sizes(shape: &[usize], by_row: bool) -> Result<[usize; 4], Fault> {
    match (shape, by_row) {
        (&[batch, heads, rows, dim], false) | (&[batch, rows, heads, dim], true) => {
            Ok([batch, heads, rows, dim])
        }
        _ => Err("`query` or `key` is not of rank 4".to_owned()),
    }
}

/// Which keys the rows of one text see.
enum Seen<'a> {
    /// The first so many, each as it is.
    First(usize),
    /// What is added for each row.
    Rows(&'a [f32]),
    /// What is added for every row.
    Row(&'a [f32]),
}

/// The mask of one text, or of one head of a text; [batch or 1, heads or 1, rows or 1, keys].
fn seen(mask: &Tensor, part: usize, n_rows: usize, n_keys: usize) -> Result<Seen<'_>, Fault> {
    let misfit = || {
        format!(
            "the mask {:?} does not cover {n_rows} rows of {n_keys} keys",
            mask.shape
        )
    };
    let &[batch, heads, rows, keys] = mask.shape.as_slice() else {
        return Err(misfit());
    };
    if keys != n_keys || rows != n_rows && rows != 1 {
        return Err(misfit());
    }
    let at = if batch == 1 {
        part % heads.max(1)
    } else {
        part
    };
    let values = floats(mask)?
        .get(at * rows * keys..(at + 1) * rows * keys)
        .ok_or_else(misfit)?;
    if rows == n_rows && rows != 1 {
        return Ok(Seen::Rows(values));
    }
    let n_seen = values.iter().take_while(|v| **v == 0.0).count();
    let is_padding = n_seen > 0 && values[n_seen..].iter().all(|v| *v <= HIDDEN);
    Ok(if is_padding {
        Seen::First(n_seen)
    } else {
        Seen::Row(values)
    })
}

/// [rows, cols] as [cols, rows].
fn turn(x: &[f32], [n_rows, n_cols]: [usize; 2], out: &mut [f32]) {
    // Tiles of a cache line each way: else every element touches a line of its own.
    const TILE: usize = 16;
    for row in (0..n_rows).step_by(TILE) {
        for col in (0..n_cols).step_by(TILE) {
            for r in row..(row + TILE).min(n_rows) {
                for c in col..(col + TILE).min(n_cols) {
                    out[c * n_rows + r] = x[r * n_cols + c];
                }
            }
        }
    }
}

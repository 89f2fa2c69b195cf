//! Running fused steps: which kernel each takes, and the kernels that need no file of their own.

use thane_kernels::Weight;
use thane_kernels::activation::gated;
use thane_kernels::linear::{decompress_rows, dequantize_rows_gather};
use thane_kernels::norm::{rms_norm, rms_norm_by_largest};
use thane_kernels::rope::{RopeShape, RopeStyle, rope};
use thane_kernels::softmax::softmax;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::Numerics;
use crate::ane;
use crate::ops::Fault;
use crate::ops::gather::row;
use crate::step::{Fused, Step};
use crate::tensor::{Buffer, Tensor, floats, floats_mut};
use crate::weight::Matrix;

impl Frame<'_> {
    /// What a fused step gives.
    pub fn fused(&mut self, step: &Step, fused: &Fused) -> Result<Vec<Tensor>, Fault> {
        let result = match fused {
            Fused::Linear { x, products, then } => return self.linear(step, *x, products, *then),
            Fused::TopLinear { x, product, k } => return self.top_linear(*x, product, *k),
            Fused::DeltaRule(rule) => return self.delta_rule(step, rule),
            Fused::Append {
                state,
                update,
                begin,
                end,
            } => {
                self.append(*state, *update, [*begin, *end])?;
                return Ok(Vec::new());
            }
            Fused::Gather { indices, weight } => self.gather(*indices, weight)?,
            Fused::RmsNorm { x, weight, epsilon } => self.rms_norm(*x, weight, *epsilon)?,
            Fused::BoundedNorm {
                x,
                weight,
                epsilon,
                least,
            } => self.bounded_norm(*x, weight, [*epsilon, *least])?,
            Fused::Rope { x, cos, sin, style } => self.rope(step, *x, [*cos, *sin], *style)?,
            Fused::RopeRows {
                x,
                cos,
                sin,
                is_interleaved,
            } => self.rope_rows(*x, [*cos, *sin], *is_interleaved)?,
            Fused::RopeHalves { x, cos, sin } => self.rope_halves(*x, [*cos, *sin])?,
            Fused::Recurrent(layer) => return self.recurrent(layer),
            Fused::Conv(conv) => self.conv(conv)?,
            Fused::Pool {
                x,
                windows,
                pooling,
            } => self.pool_rows(*x, windows, *pooling)?,
            Fused::PastAttention(attention) => self.past_attention(attention)?,
            Fused::StateUpdate(update) => return self.state_update(step, update),
            Fused::Gated { gate, up, op } => {
                let up = self.get(*up)?.clone();
                let mut gate = self.take(step, *gate)?;
                if gate.shape != up.shape {
                    return Err("gate and up differ in shape".to_owned());
                }
                gated(
                    self.context,
                    *op,
                    floats_mut(&mut gate, self.pool)?,
                    floats(&up)?,
                );
                gate
            }
            Fused::Attention { query, cached } => self.attention(*query, *cached)?,
            Fused::RowsAttention(attention) => self.rows_attention(step, attention)?,
            Fused::Attend {
                query,
                key,
                value,
                mask,
                scale,
                by_row,
                parts,
            } => self.attend([*query, *key, *value], *mask, *scale, *by_row, *parts)?,
            Fused::LayerNorm {
                x,
                n_axes,
                weight,
                bias,
                epsilon,
            } => self.layer_norm((*x, *n_axes), weight.as_ref(), bias.as_ref(), *epsilon)?,
            Fused::GroupNorm { x, ends, epsilon } => self.group_norm(*x, *ends, *epsilon)?,
            Fused::Depthwise { x, taps } => self.depthwise(*x, taps)?,
            Fused::Softmax { x } => self.softmax(step, *x)?,
            Fused::Experts(experts) => self.experts(experts)?,
            Fused::MatMul { x, y, transpose_y } => self.matmul([*x, *y], *transpose_y)?,
            Fused::HalfLinear { x, weight, bias } => self.half_linear(*x, weight, bias.as_ref())?,
            Fused::Pointwise { x, weight, bias } => self.pointwise(*x, weight, bias.as_ref())?,
        };
        Ok(vec![result])
    }

    fn gather(&mut self, indices: ValueId, weight: &Matrix) -> Result<Tensor, Fault> {
        let indices = self.get(indices)?;
        let ids = indices
            .to_ints()
            .ok_or("`indices` does not hold integers")?;
        let ids = ids
            .into_iter()
            .map(|id| row(id, weight.stored.n_rows))
            .collect::<Result<Vec<_>, _>>()?;
        let shape = [indices.shape.as_slice(), &[weight.stored.n_cols]].concat();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        if let Some(codes) = weight.codes() {
            decompress_rows(self.context, &codes, &ids, &mut out[..n]);
        } else if weight.stored.bytes.is_released() {
            self.gather_copied(weight, &ids, &mut out[..n])?;
        } else {
            dequantize_rows_gather(self.context, &weight.weight(), &ids, &mut out[..n]);
        }
        if let Numerics::Ane(effects) = self.numerics {
            ane::round_constants(self.context, &mut out[..n], effects);
        }
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// The values of some rows, which are read from their file: a map would bring in what lies
    /// around each, up to 2 MiB.
    fn gather_copied(
        &mut self,
        weight: &Matrix,
        ids: &[usize],
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let row_bytes = weight.stored.bytes.len() / weight.stored.n_rows.max(1);
        let mut rows = self.pool.take(out.len())?;
        let bytes = &mut bytemuck::cast_slice_mut(&mut rows)[..ids.len() * row_bytes];
        self.context
            .pool()
            .run_chunks(&mut *bytes, row_bytes.max(1), |i, row| {
                // Each id is below the number of rows.
                let _ = weight.stored.bytes.read(ids[i] * row_bytes, row);
            });
        let copied = Weight {
            ty: weight.stored.ty,
            bytes,
            n_rows: ids.len(),
            n_cols: weight.stored.n_cols,
        };
        dequantize_rows_gather(self.context, &copied, &Vec::from_iter(0..ids.len()), out);
        self.pool.give_f32(rows);
        Ok(())
    }

    fn rms_norm(&mut self, x: ValueId, weight: &Tensor, epsilon: f32) -> Result<Tensor, Fault> {
        let shape = self.get(x)?.shape.clone();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let x = floats(self.get(x)?)?;
        rms_norm(
            self.context,
            x,
            weight.f32s(),
            epsilon,
            weight.len(),
            &mut out[..n],
        );
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    fn bounded_norm(
        &mut self,
        x: ValueId,
        weight: &Tensor,
        [epsilon, least]: [f32; 2],
    ) -> Result<Tensor, Fault> {
        let shape = self.get(x)?.shape.clone();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let x = floats(self.get(x)?)?;
        let (weight, width, how) = (weight.f32s(), weight.len(), [epsilon, least]);
        rms_norm_by_largest(self.context, x, weight, how, width, &mut out[..n]);
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    fn softmax(&mut self, step: &Step, x: ValueId) -> Result<Tensor, Fault> {
        let mut rows = self.take(step, x)?;
        let n_cols = rows.shape.last().copied().unwrap_or(1);
        softmax(self.context, floats_mut(&mut rows, self.pool)?, n_cols);
        Ok(rows)
    }

    fn rope(
        &mut self,
        step: &Step,
        x: ValueId,
        angles: [ValueId; 2],
        style: RopeStyle,
    ) -> Result<Tensor, Fault> {
        let mut x = self.take(step, x)?;
        let &[batch, n_heads, n_tokens, head_dim] = x.shape.as_slice() else {
            return Err("x is not of rank 4".to_owned());
        };
        let (n_heads, head_stride) = (batch * n_heads, n_tokens * head_dim);
        let shape = RopeShape {
            n_heads,
            n_tokens,
            rotary_dim: head_dim,
            head_stride,
            token_stride: head_dim,
        };
        let values = floats_mut(&mut x, self.pool)?;
        self.rotate(values, shape, angles, style)?;
        Ok(x)
    }

    /// Rotate heads in place by angles of this frame.
    pub fn rotate(
        &self,
        x: &mut [f32],
        shape: RopeShape,
        angles: [ValueId; 2],
        style: RopeStyle,
    ) -> Result<(), Fault> {
        let [cos, sin] = [floats(self.get(angles[0])?)?, floats(self.get(angles[1])?)?];
        if cos.len() != shape.n_tokens * shape.rotary_dim / 2 || sin.len() != cos.len() {
            return Err("the angles do not fit the tokens".to_owned());
        }
        rope(self.context, x, shape, cos, sin, style);
        Ok(())
    }
}

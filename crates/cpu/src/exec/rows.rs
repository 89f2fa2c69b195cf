//! Running attention from the rows of products to rows: what lies between is done on each frame's
//! own part of them.

use thane_kernels::Context;
use thane_kernels::norm::rms_norm;
use thane_kernels::rope::RopeShape;
use thane_mil::types::DType;

use super::Frame;
use crate::ops::Fault;
use crate::step::{Heads, RowsAttention, Step};
use crate::tensor::{Buffer, Floats, Tensor, floats, floats_mut};

/// Rows of one frame: queries and keys, which are changed, and values.
pub struct Rows<'a> {
    pub q: &'a mut [f32],
    pub k: &'a mut [f32],
    pub v: &'a [f32],
    /// Of the queries' size.
    pub out: &'a mut [f32],
}

impl Frame<'_> {
    /// Attention from rows to rows.
    pub fn rows_attention(
        &mut self,
        step: &Step,
        attention: &RowsAttention,
    ) -> Result<Tensor, Fault> {
        let (mut q, mut k) = (
            self.take(step, attention.query.x)?,
            self.take(step, attention.key.x)?,
        );
        let v = self.get(attention.value)?.clone();
        let shape = q.shape.clone();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let rows = Rows {
            q: floats_mut(&mut q, self.pool)?,
            k: floats_mut(&mut k, self.pool)?,
            v: floats(&v)?,
            out: &mut out[..n],
        };
        self.attend_rows(rows, attention)?;
        self.pool.give(q);
        self.pool.give(k);
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// Keep keys and values, and attend over all that are kept.
    pub fn attend_rows(&mut self, rows: Rows<'_>, attention: &RowsAttention) -> Result<(), Fault> {
        let RowsAttention {
            query,
            key,
            begin,
            cached,
            ..
        } = attention;
        let &[1, n_kv_heads, _, head_dim] = self.states[cached.states[0]].shape.as_slice() else {
            return Err("the state is not [1, ..]".to_owned());
        };
        let Rows { q, k, v, out } = rows;
        let n_heads = attention.n_heads;
        let n_tokens = q.len() / (n_heads * head_dim).max(1);
        let (bounds, n_k) = ([*begin, cached.end], k.len());
        let own = self.finish_heads(k, key, [n_kv_heads, head_dim])?;
        self.append_rows(
            cached.states[0],
            &own.as_deref().unwrap_or(k)[..n_k],
            bounds,
        )?;
        self.append_rows(cached.states[1], v, bounds)?;
        own.into_iter().for_each(|own| self.pool.give_f32(own));
        let own = self.finish_heads(q, query, [n_heads, head_dim])?;
        let q = own.as_deref().unwrap_or(q);
        let shape = [
            1,
            n_kv_heads,
            n_heads / n_kv_heads.max(1) * n_tokens,
            head_dim,
        ];
        if n_tokens <= 1 {
            // One token's heads lie as by head.
            self.attention_to((&shape, &q[..out.len()]), *cached, out)?;
        } else {
            let (mut by_head, mut result) =
                (self.pool.take(out.len())?, self.pool.take(out.len())?);
            exchange(
                self.context,
                &q[..out.len()],
                [n_tokens, n_heads, head_dim],
                &mut by_head,
            );
            self.attention_to(
                (&shape, &by_head[..out.len()]),
                *cached,
                &mut result[..out.len()],
            )?;
            exchange(self.context, &result, [n_heads, n_tokens, head_dim], out);
            self.pool.give_f32(by_head);
            self.pool.give_f32(result);
        }
        own.into_iter().for_each(|own| self.pool.give_f32(own));
        Ok(())
    }

    /// Normalizes and rotates heads [tokens, heads, head_dim], in place where no buffer of their
    /// own is given back.
    fn finish_heads(
        &mut self,
        x: &mut [f32],
        heads: &Heads,
        [n_heads, head_dim]: [usize; 2],
    ) -> Result<Option<Floats>, Fault> {
        let n = x.len();
        let mut own = None;
        if let Some((weight, epsilon)) = &heads.norm {
            let mut normed = self.pool.take(n)?;
            rms_norm(
                self.context,
                x,
                weight.f32s(),
                *epsilon,
                weight.len(),
                &mut normed[..n],
            );
            own = Some(normed);
        }
        if let Some((angles, style)) = heads.angles {
            let token_stride = n_heads * head_dim;
            let n_tokens = n / token_stride.max(1);
            let shape = RopeShape {
                n_heads,
                n_tokens,
                rotary_dim: head_dim,
                head_stride: head_dim,
                token_stride,
            };
            self.rotate(
                &mut own.as_deref_mut().unwrap_or(x)[..n],
                shape,
                angles,
                style,
            )?;
        }
        Ok(own)
    }
}

/// [outer, inner, dim] as [inner, outer, dim].
fn exchange(context: &Context, x: &[f32], [outer, inner, dim]: [usize; 3], out: &mut [f32]) {
    /// Elements that a task moves.
    const TASK_LEN: usize = 1 << 14;
    let (row, n, dim) = ((outer * dim).max(1), outer * inner * dim, dim.max(1));
    let n_rows = (TASK_LEN / row).max(1);
    context
        .pool()
        .run_chunks(&mut out[..n], n_rows * row, |task, out| {
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                let first = (task * n_rows + i) * dim;
                for (o, out) in out.chunks_exact_mut(dim).enumerate() {
                    out.copy_from_slice(&x[o * inner * dim + first..][..dim]);
                }
            }
        });
}

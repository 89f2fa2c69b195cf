//! Running the fused ops of programs that write their state once, at the end: attention over the
//! state and what a call adds to it, and the write itself.

use std::sync::Arc;

use thane_kernels::attention::{
    Attention, HeadRows, KvData, KvView, More, PART_KEYS, attention, attention_scratch_len,
};
use thane_kernels::f16::f32_to_f16_slice;
use thane_kernels::rope::{Angles, rope_halves};
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::ops::slice::update_in_place;
use crate::ops::{Fault, broadcast_strides};
use crate::step::{Kept, Past, PastAttention, StateUpdate, Step};
use crate::tensor::{Buffer, Tensor, floats};

impl Frame<'_> {
    /// Attention over the keys and values of before, and those of this call behind them.
    pub fn past_attention(&mut self, args: &PastAttention) -> Result<Tensor, Fault> {
        let [q, k, v, mask] =
            [args.query, args.key, args.value, args.mask].map(|value| self.get(value).cloned());
        let (q, k, v, mask) = (q?, k?, v?, mask?);
        let [n_heads, n_past, head_dim] = args.past[0].shape;
        let (&[1, _, n_rows, _], &[1, _, n_new, _]) = (&q.shape[..], &k.shape[..]) else {
            return Err("queries or keys are not [1, heads, rows, elements]".to_owned());
        };
        let n_keys = n_past + n_new;
        let mask = self.mask_of_heads(&mask, [n_rows, n_keys])?;
        let scratch_len = attention_scratch_len(self.context, n_heads, n_rows, head_dim, n_keys);
        let mut scratch = self.pool.take(scratch_len)?;
        let (mut out, n) = self.pool.take_checked(&q.shape)?;
        let [past_k, past_v] = [&args.past[0], &args.past[1]].map(|past| self.past(past));
        let (past_k, past_v) = (past_k?, past_v?);
        let new = |data| KvView {
            data: KvData::F32(data),
            head_stride: n_new * head_dim,
            key_stride: head_dim,
        };
        let (new_k, new_v) = (new(floats(&k)?), new(floats(&v)?));
        let joined;
        let (first_k, first_v, more) = if n_past.is_multiple_of(PART_KEYS) {
            let more = More {
                n_before: n_past,
                k: new_k,
                v: new_v,
            };
            (past_k, past_v, Some(more))
        } else {
            let join = |past, new| join([past, new], [n_heads, n_past, n_new, head_dim]);
            joined = [join(past_k, new_k), join(past_v, new_v)];
            let view = |data| KvView {
                data: KvData::F32(data),
                head_stride: n_keys * head_dim,
                key_stride: head_dim,
            };
            (view(&joined[0]), view(&joined[1]), None)
        };
        let rows = HeadRows::by_head(n_rows, head_dim);
        let args = Attention {
            q: floats(&q)?,
            q_rows: rows,
            k: first_k,
            v: first_v,
            more,
            mask: Some(floats(&mask)?),
            tiles: None,
            scale: 1.0,
            may_round: self.may_round,
            n_kv_heads: n_heads,
            n_rows,
            head_dim,
            n_keys,
            out: &mut out[..n],
            out_rows: rows,
        };
        attention(self.context, args, &mut scratch);
        self.pool.give_f32(scratch);
        Ok(Tensor::new(DType::Fp32, q.shape.clone(), Buffer::F32(out)))
    }

    /// The mask [.., tokens, keys] for rows that are all tokens, so many times. All layers have the
    /// same.
    fn mask_of_heads(
        &mut self,
        mask: &Tensor,
        [n_rows, n_keys]: [usize; 2],
    ) -> Result<Tensor, Fault> {
        if mask.len() == n_rows * n_keys {
            return Ok(mask.clone());
        }
        let is_same = |(given, made): &&(Tensor, Tensor)| {
            Arc::ptr_eq(&given.data, &mask.data) && made.len() == n_rows * n_keys
        };
        if let Some((_, made)) = self.masks.iter().find(is_same) {
            return Ok(made.clone());
        }
        let values = floats(mask)?;
        let (mut repeated, n) = self.pool.take_checked(&[n_rows, n_keys])?;
        for part in repeated[..n].chunks_mut(values.len().max(1)) {
            part.copy_from_slice(&values[..part.len()]);
        }
        let made = Tensor::new(DType::Fp32, vec![n_rows, n_keys], Buffer::F32(repeated));
        self.masks.push((mask.clone(), made.clone()));
        Ok(made)
    }

    fn past(&self, past: &Past) -> Result<KvView<'_>, Fault> {
        let [n_heads, n_keys, head_dim] = past.shape;
        let elements = past.first..past.first + n_heads * n_keys * head_dim;
        let outside = || "a part of a cache is outside of it".to_owned();
        let held = match past.kept {
            Kept::State(state) => &*self.states[state],
            Kept::Value(value) => self.get(value)?,
        };
        let data = match &*held.data {
            Buffer::F16(v) => KvData::F16(v.get(elements).ok_or_else(outside)?),
            Buffer::F32(v) => KvData::F32(v.get(elements).ok_or_else(outside)?),
            _ => return Err(format!("a cache of {} cannot be read", held.dtype)),
        };
        Ok(KvView {
            data,
            head_stride: n_keys * head_dim,
            key_stride: head_dim,
        })
    }

    /// Replaces a part of a state; what it gives is the state, where something reads that.
    pub fn state_update(
        &mut self,
        step: &Step,
        update: &StateUpdate,
    ) -> Result<Vec<Tensor>, Fault> {
        // What was read is the state itself: it is written in place where nothing else holds it.
        if step.last_uses.contains(&update.old) {
            self.slots[update.old.index()] = None;
        }
        let values = [update.update, update.begin, update.end].map(|v: ValueId| self.get(v));
        let [values, begin, end] = values;
        let (mut values, begin, end) = (values?.clone(), values_of(begin?)?, values_of(end?)?);
        let masks = update.masks.each_ref();
        let masks = masks.map(|m| m.as_ref().and_then(Tensor::to_ints));
        if update.narrows {
            values = self.rounded_to_half(&values)?;
        }
        let state = &mut *self.states[update.state];
        update_in_place(self.pool, state, &values, [begin, end], masks)?;
        if update.narrows {
            self.pool.give(values);
        }
        let stored = update.is_used.then(|| self.states[update.state].clone());
        Ok(stored.into_iter().collect())
    }

    /// fp32 values in fp16.
    fn rounded_to_half(&mut self, values: &Tensor) -> Result<Tensor, Fault> {
        let mut halves = self.pool.tensor(DType::Fp16, values.shape.clone())?;
        let (from, n) = (floats(values)?, values.len());
        match Arc::get_mut(&mut halves.data) {
            Some(Buffer::F16(to)) => f32_to_f16_slice(self.context.isa(), from, &mut to[..n]),
            _ => return Err("a fresh buffer is shared".to_owned()),
        }
        Ok(halves)
    }
}

fn values_of(bounds: &Tensor) -> Result<Vec<i64>, Fault> {
    bounds
        .to_ints()
        .ok_or_else(|| "the bounds of a slice are not integers".to_owned())
}

/// Keys, or values, of two views behind each other.
fn join(views: [KvView<'_>; 2], sizes: [usize; 4]) -> Vec<f32> {
    let [n_heads, n_past, n_new, head_dim] = sizes;
    let mut joined = Vec::with_capacity(n_heads * (n_past + n_new) * head_dim);
    for head in 0..n_heads {
        for (view, n_keys) in views.iter().zip([n_past, n_new]) {
            let elements = head * view.head_stride..head * view.head_stride + n_keys * head_dim;
            match view.data {
                KvData::F32(data) => joined.extend_from_slice(&data[elements]),
                KvData::F16(data) => {
                    let wide = data[elements].iter();
                    joined.extend(wide.map(|half| thane_kernels::f16::f16_to_f32(*half)));
                }
            }
        }
    }
    joined
}

impl Frame<'_> {
    /// Rotates the pairs of rows of heads [.., tokens, heads, head_dim].
    pub fn rope_rows(
        &mut self,
        x: ValueId,
        angles: [ValueId; 2],
        is_interleaved: bool,
    ) -> Result<Tensor, Fault> {
        let x = self.get(x)?.clone();
        let [cos, sin] = angles.map(|v| self.get(v).cloned());
        let (cos, sin) = (cos?, sin?);
        let (cos, sin, values) = (floats(&cos)?, floats(&sin)?, floats(&x)?);
        let &[.., n_heads, head_dim] = x.shape.as_slice() else {
            return Err("x has no heads".to_owned());
        };
        let half = head_dim / 2;
        let n_tokens = x.len() / (n_heads * head_dim).max(1);
        if cos.len() != n_tokens * half || sin.len() != cos.len() || half == 0 {
            return Err("the angles do not fit the tokens".to_owned());
        }
        let (mut out, n) = self.pool.take_checked(&x.shape)?;
        let token_len = n_heads * head_dim;
        self.context
            .pool()
            .run_chunks(&mut out[..n], token_len, |token, out| {
                let (cos, sin) = (&cos[token * half..][..half], &sin[token * half..][..half]);
                let heads = values[token * token_len..].chunks_exact(head_dim);
                for (x, out) in heads.zip(out.chunks_exact_mut(head_dim)) {
                    turn(x, [cos, sin], is_interleaved, out);
                }
            });
        Ok(Tensor::new(DType::Fp32, x.shape.clone(), Buffer::F32(out)))
    }

    /// Rotates the halves of the last axis by angles for each element of it.
    pub fn rope_halves(&mut self, x: ValueId, angles: [ValueId; 2]) -> Result<Tensor, Fault> {
        let shape = self.get(x)?.shape.clone();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let [cos, sin] = angles.map(|v| self.get(v));
        let (cos, sin) = (cos?, sin?);
        let [Some(cos_strides), Some(sin_strides)] =
            [cos, sin].map(|angles| repeated_strides(&angles.shape, &shape))
        else {
            return Err(format!(
                "the angles {:?} and {:?} do not fit {shape:?}",
                cos.shape, sin.shape
            ));
        };
        let angles = |values, strides| -> Result<Angles<'_>, Fault> {
            let values = floats(values)?;
            Ok(Angles { values, strides })
        };
        let angles = [angles(cos, &cos_strides)?, angles(sin, &sin_strides)?];
        let (last, outer) = shape.split_last().ok_or("x has no axes")?;
        let x = floats(self.get(x)?)?;
        rope_halves(self.context, x, (outer, *last), angles, &mut out[..n]);
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }
}

/// The strides of rows of `own` along the outer axes of `shape`, 0 where they are repeated; none
/// where a row has another length or is not there.
fn repeated_strides(own: &[usize], shape: &[usize]) -> Option<Vec<usize>> {
    let pad = shape.len().checked_sub(own.len())?;
    let fits = own
        .iter()
        .zip(&shape[pad..])
        .all(|(a, n)| *a == *n || *a == 1);
    let is_row = own.last() == shape.last() && shape.last()?.is_multiple_of(2);
    let strides = broadcast_strides(own, shape.len());
    (fits && is_row).then(|| strides[..shape.len() - 1].to_vec())
}

fn turn(x: &[f32], [cos, sin]: [&[f32]; 2], is_interleaved: bool, out: &mut [f32]) {
    let (left, right) = out.split_at_mut(cos.len());
    let outs = left.iter_mut().zip(right).zip(cos.iter().zip(sin));
    let rotate = |((left, right), (cos, sin)): ((&mut f32, &mut f32), (&f32, &f32)), a, b| {
        *left = a * cos - b * sin;
        *right = b * cos + a * sin;
    };
    if is_interleaved {
        let pairs = x.as_chunks::<2>().0;
        outs.zip(pairs)
            .for_each(|(out, [a, b])| rotate(out, *a, *b));
    } else {
        let (first, second) = x.split_at(cos.len());
        outs.zip(first.iter().zip(second))
            .for_each(|(out, (a, b))| rotate(out, *a, *b));
    }
}

//! Running the fused ops that work on a cache where it is: tokens written into a state, and
//! attention over its first entries.

use std::sync::Arc;

use thane_kernels::attention::{
    Attention, HeadRows, KvData, KvView, MaskTiles, attention, attention_scratch_len,
    mask_tiles_len,
};
use thane_kernels::f16::f32_to_f16_slice;
use thane_kernels::rope::{RopeShape, RopeStyle, rope};
use thane_kernels::{Context, Isa};
use thane_mil::program::ValueId;

use super::Frame;
use crate::ops::Fault;
use crate::tensor::{Buffer, Tensor, floats};

/// At or below this a mask hides a key entirely: its weight is exp of it, which is 0.
pub const HIDDEN: f32 = -1e4;

/// What attention over a cache reads: two states, what is added to the scores, and where the cache
/// ends.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    /// The states of keys and of values.
    pub states: [usize; 2],
    /// [rows, keys], where there is one.
    pub mask: Option<ValueId>,
    /// Its third entry is the number of keys.
    pub end: ValueId,
    /// Factor of the scores.
    pub scale: f32,
}

/// Rows of one frame: queries and keys, which are changed, and values.
pub struct Rows<'a> {
    pub q: &'a mut [f32],
    pub k: &'a mut [f32],
    pub v: &'a [f32],
    /// Of the queries' size.
    pub out: &'a mut [f32],
}

/// Some tokens of a state.
struct Place {
    /// Heads, tokens that there is room for, and elements of a head.
    shape: [usize; 3],
    /// The first token.
    begin: usize,
    n_tokens: usize,
}

impl Frame<'_> {
    /// Write `update` to a state from `begin[2]` to `end[2]`.
    pub fn append(
        &mut self,
        state: usize,
        update: ValueId,
        bounds: [ValueId; 2],
    ) -> Result<(), Fault> {
        let update = self.get(update)?.clone();
        let Place {
            shape: [n_heads, capacity, head_dim],
            begin,
            n_tokens,
        } = self.place(state, bounds)?;
        let state = &mut *self.states[state];
        if update.shape != [1, n_heads, n_tokens, head_dim] {
            let end = begin + n_tokens;
            return Err(format!(
                "{:?} does not fit tokens {begin} to {end} of {:?}",
                update.shape, state.shape
            ));
        }
        let (dtype, isa) = (state.dtype, self.context.isa());
        let data = self.pool.own(state)?;
        let run = n_tokens * head_dim;
        let copied = (0..n_heads).all(|h| {
            let at = (h * capacity + begin) * head_dim;
            match (&mut *data, &*update.data) {
                (Buffer::F16(to), Buffer::F32(from)) => round_to(isa, to, at, from, h * run, run),
                (data, from) => data.copy_from(at, from, h * run, run),
            }
        });
        if copied {
            Ok(())
        } else {
            Err(format!(
                "what is computed cannot be written to a state of {dtype}"
            ))
        }
    }

    /// Write rows [tokens, heads * head_dim] to a state [1, heads, context, head_dim] from
    /// `begin[2]` to `end[2]`.
    pub fn append_rows(
        &mut self,
        state: usize,
        rows: &[f32],
        bounds: [ValueId; 2],
    ) -> Result<(), Fault> {
        let Place {
            shape: [n_heads, capacity, head_dim],
            begin,
            n_tokens,
        } = self.place(state, bounds)?;
        if rows.len() != n_tokens * n_heads * head_dim {
            let end = begin + n_tokens;
            return Err(format!(
                "{} elements do not fit tokens {begin} to {end} of {n_heads} heads",
                rows.len()
            ));
        }
        let (context, state) = (self.context, &mut *self.states[state]);
        let (isa, at) = (
            context.isa(),
            [capacity * head_dim, begin * head_dim, head_dim],
        );
        let dtype = state.dtype;
        match self.pool.own(state)? {
            Buffer::F16(to) => write_heads(context, rows, to, at, |from, to| {
                f32_to_f16_slice(isa, from, to)
            }),
            Buffer::F32(to) => {
                write_heads(context, rows, to, at, |from, to| to.copy_from_slice(from))
            }
            _ => {
                return Err(format!(
                    "what is computed cannot be written to a state of {dtype}"
                ));
            }
        }
        Ok(())
    }

    /// Where `begin[2]` and `end[2]` are in a state.
    fn place(&self, state: usize, bounds: [ValueId; 2]) -> Result<Place, Fault> {
        let [begin, end] = [third(self.get(bounds[0])?)?, third(self.get(bounds[1])?)?];
        let [_, n_heads, capacity, head_dim] = self.states[state].shape[..] else {
            return Err("the state is not of rank 4".to_owned());
        };
        if begin.max(end) > capacity {
            return Err(format!(
                "the cache holds {capacity} tokens, {} are needed: ask for a longer context",
                begin.max(end)
            ));
        }
        Ok(Place {
            shape: [n_heads, capacity, head_dim],
            begin,
            n_tokens: end.saturating_sub(begin),
        })
    }

    /// Attention of queries [1, kv_heads, rows, head_dim] over a cache, to `out`.
    pub fn attention_to(
        &mut self,
        (shape, q): (&[usize], &[f32]),
        cached: Cached,
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let n_keys = third(self.get(cached.end)?)?;
        let &[1, n_kv_heads, n_rows, head_dim] = shape else {
            return Err("`query` is not [1, ..]".to_owned());
        };
        let scratch_len = attention_scratch_len(self.context, n_kv_heads, n_rows, head_dim, n_keys);
        let mut scratch = self.pool.take(scratch_len)?;
        let mask = cached.mask.map(|m| self.get(m).cloned()).transpose()?;
        if mask.as_ref().is_some_and(|m| m.shape != [n_rows, n_keys]) {
            return Err(format!(
                "the mask does not cover {n_rows} rows of {n_keys} keys"
            ));
        }
        let tiles = mask
            .as_ref()
            .map(|mask| self.tiles_of(mask, n_keys))
            .transpose()?
            .flatten();
        let tiles = tiles.map(|at| MaskTiles::looked_up(&self.mask_tiles[at].1, n_keys));
        let args = Attention {
            q,
            q_rows: HeadRows::by_head(n_rows, head_dim),
            k: view(self.states[cached.states[0]], n_kv_heads, head_dim, n_keys)?,
            v: view(self.states[cached.states[1]], n_kv_heads, head_dim, n_keys)?,
            mask: mask.as_ref().map(floats).transpose()?,
            tiles,
            scale: cached.scale,
            more: None,
            may_round: self.may_round,
            n_kv_heads,
            n_rows,
            head_dim,
            n_keys,
            out_rows: HeadRows::by_head(n_rows, head_dim),
            out,
        };
        attention(self.context, args, &mut scratch);
        self.pool.give_f32(scratch);
        Ok(())
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

    /// The place in `mask_tiles` of what the mask says by tiles, where to look it up takes longer
    /// than to look for it.
    pub fn tiles_of(&mut self, mask: &Tensor, n_keys: usize) -> Result<Option<usize>, Fault> {
        /// Elements of a mask that are looked up for each layer anew.
        const MOST_RENEWED: usize = 1 << 14;
        let values = floats(mask)?;
        if values.len() <= MOST_RENEWED {
            return Ok(None);
        }
        let known = self
            .mask_tiles
            .iter()
            .position(|(known, _)| Arc::ptr_eq(known, &mask.data));
        Ok(Some(known.unwrap_or_else(|| {
            let mut tiles = vec![0.0; mask_tiles_len(values.len() / n_keys, n_keys)];
            MaskTiles::new(self.context, Some(values), n_keys, &mut tiles);
            self.mask_tiles.push((mask.data.clone(), tiles));
            self.mask_tiles.len() - 1
        })))
    }
}

/// Stores rows [tokens, heads, head_dim] in heads of `head_len` elements, each from `at` on.
fn write_heads<T: Send>(
    context: &Context,
    rows: &[f32],
    heads: &mut [T],
    [head_len, at, head_dim]: [usize; 3],
    store: impl Fn(&[f32], &mut [T]) + Sync,
) {
    /// Elements that take longer to store than to hand to another thread.
    const LEAST_SHARED: usize = 1 << 14;
    let (n_heads, dim) = (heads.len() / head_len.max(1), head_dim.max(1));
    let write = |h: usize, head: &mut [T]| {
        let own = rows.chunks_exact(dim).skip(h).step_by(n_heads);
        head[at..]
            .chunks_exact_mut(dim)
            .zip(own)
            .for_each(|(to, from)| store(from, to));
    };
    if rows.len() < LEAST_SHARED {
        return heads
            .chunks_mut(head_len.max(1))
            .enumerate()
            .for_each(|(h, head)| write(h, head));
    }
    context.pool().run_chunks(heads, head_len.max(1), write);
}

/// Elements rounded to fp16; `false` when an end is passed.
fn round_to(isa: Isa, to: &mut [u16], at: usize, from: &[f32], from_at: usize, n: usize) -> bool {
    let to = at.checked_add(n).and_then(|end| to.get_mut(at..end));
    let from = from_at
        .checked_add(n)
        .and_then(|end| from.get(from_at..end));
    let (Some(to), Some(from)) = (to, from) else {
        return false;
    };
    f32_to_f16_slice(isa, from, to);
    true
}

/// The third of the bounds of a slice of four axes.
pub fn third(t: &Tensor) -> Result<usize, Fault> {
    let value = t
        .i32s()
        .and_then(|v| v.get(2).copied())
        .ok_or("the bounds of a slice are not four int32")?;
    usize::try_from(value).map_err(|_| format!("position {value} is negative"))
}

fn view(
    state: &Tensor,
    n_kv_heads: usize,
    head_dim: usize,
    n_keys: usize,
) -> Result<KvView<'_>, Fault> {
    let &[_, heads, capacity, width] = state.shape.as_slice() else {
        return Err("the state is not of rank 4".to_owned());
    };
    if (heads, width) != (n_kv_heads, head_dim) || n_keys > capacity {
        return Err(format!(
            "{n_keys} keys of {n_kv_heads} heads of {head_dim} are not in a cache {:?}",
            state.shape
        ));
    }
    let data = match &*state.data {
        Buffer::F32(v) => KvData::F32(v),
        Buffer::F16(v) => KvData::F16(v),
        _ => return Err(format!("a cache of {} cannot be read", state.dtype)),
    };
    Ok(KvView {
        data,
        head_stride: capacity * head_dim,
        key_stride: head_dim,
    })
}

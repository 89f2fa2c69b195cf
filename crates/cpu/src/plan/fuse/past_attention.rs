//! Attention over what a state holds and what a call adds to it, as programs for the Neural Engine
//! have it: the state is written at the end, once for all layers.

use std::sync::Arc;

use thane_kernels::attention::{
    Attention, HeadRows, KvData, KvView, MaskTiles, More, PART_KEYS, attention,
    attention_scratch_len,
};

use super::*;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "past_attention",
    pattern!(add(past @ matmul(past_weights, past_value), new @ matmul(new_weights, value))),
    past_attention,
)];

/// The weights of all keys, those of before in front.
const WEIGHTS: Pattern = OneOf(&[pattern!(reshape((SOFTMAX))), SOFTMAX]);
const SOFTMAX: Pattern = pattern!(softmax @ softmax(masked @ add((SCORES), mask)));
const SCORES: Pattern = OneOf(&[pattern!(reshape((JOINED))), JOINED]);
const JOINED: Pattern =
    pattern!(scores @ concat(past @ matmul(query, past_key), new @ matmul(query, key)));

/// What holds keys or values of before.
const KEPT: Pattern = OneOf(&[
    pattern!(cast(slice @ slice_by_index(read @ read_state(state)))),
    pattern!(cast(read @ read_state(state))),
    pattern!(cast(given)),
]);

/// Where keys or values of earlier tokens are.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// In a state.
    State(usize),
    /// In a value, which the caller gave.
    Value(ValueId),
}

/// A part of a state or value that lies together: keys or values.
#[derive(Debug)]
struct Past {
    kept: Kept,
    /// Its first element.
    first: usize,
    /// Heads, keys, and elements of a key.
    shape: [usize; 3],
}

/// Attention of queries [1, heads, rows, head_dim] over keys and values of before, and those
/// [1, heads, tokens, head_dim] of this call behind them.
#[derive(Debug)]
struct PastAttention {
    query: ValueId,
    /// Keys and values.
    past: [Past; 2],
    key: ValueId,
    value: ValueId,
    /// [1, 1, tokens, keys]: the rows of a head are so many times all tokens.
    mask: ValueId,
}

/// The products with keys and values of before and of this call are added up, where the weights are
/// the two parts of a softmax of both scores.
fn past_attention(p: &mut Planner<'_>, mut sum: Match<'_>) -> Option<Vec<Found>> {
    let weights = sum.values(["past_weights", "new_weights"])?;
    let (weights, parting, parts) = parted(p, weights)?;
    let scores = WEIGHTS.made(p, weights)?;
    joined_last(p, scores.op("scores")?)?;
    let [masked, mask, query, key, past_key] =
        scores.values(["masked", "mask", "query", "key", "past_key"])?;
    let [value, past_value] = sum.values(["value", "past_value"])?;
    let turned = |found: &Match<'_>, turned| {
        let mut products = ["past", "new"].iter().filter_map(|name| found.op(name));
        products.all(|product| transposed(p, product) == Some([false, turned]))
    };
    let sized = turned(&scores, true) && turned(&sum, false);
    let (root, covers) = (sum.root, &mut sum.ops);
    covers.extend([parting, scores.ops.clone()].concat());
    let past = [
        kept(p, past_key, root, covers)?,
        kept(p, past_value, root, covers)?,
    ];
    let [n_heads, n_rows, head_dim] = heads(p, query)?;
    let [past_heads, n_past, past_dim] = past[0].shape;
    let [new_heads, n_new, new_dim] = heads(p, key)?;
    let sizes = sized
        && past[0].shape == past[1].shape
        && heads(p, value)? == [new_heads, n_new, new_dim]
        && [past_heads, new_heads] == [n_heads; 2]
        && [past_dim, new_dim] == [head_dim; 2]
        && [query, key, value].iter().all(|v| is_float32(p, *v));
    let n_keys = n_past + n_new;
    let rows = mask_rows(p, mask, n_keys)?;
    let is_last = is_along_last(p, scores.op("softmax")?, masked)?;
    // Rows of a head are those of the query heads that share it, each of all tokens.
    if !sizes || parts != [n_past, n_new] || !is_last || rows == 0 || n_rows % rows != 0 {
        return None;
    }
    if !fits_rows(p, masked, [rows, n_keys])? {
        return None;
    }
    let attention = PastAttention {
        query,
        past,
        key,
        value,
        mask,
    };
    one(sum, attention)
}

/// The sizes of [1, heads, rows, elements].
fn heads(p: &Planner<'_>, value: ValueId) -> Option<[usize; 3]> {
    match p.known_shape(value)?[..] {
        [1, heads, rows, elements] => Some([heads, rows, elements]),
        _ => None,
    }
}

/// `cast(slice_by_index(read_state(..)))` of a part that lies together, where nothing writes the
/// state between that and `root`; or `cast` of an input.
fn kept(p: &Planner<'_>, value: ValueId, root: OpId, covers: &mut Vec<OpId>) -> Option<Past> {
    let found = KEPT.made(p, value)?;
    if let Some(given) = found.value("given") {
        let is_given = p.f.body().inputs.contains(&given) && is_of(p, given, DType::Fp16);
        covers.push(found.root);
        return is_given.then_some(Past {
            kept: Kept::Value(given),
            first: 0,
            shape: heads(p, given)?,
        });
    }
    let (state_value, read_id) = (found.value("state")?, found.maker("read")?);
    let state = p.state(state_value)?;
    let ty = p.state_type(state);
    let shape = ty.known_shape()?;
    let &[n, heads, n_keys, head_dim] = shape.as_slice() else {
        return None;
    };
    let first = match found.op("slice") {
        None => (n == 1).then_some(0),
        Some(slice) => {
            let ranges = slice_ranges(p.f, slice)?;
            let mut inner = shape[1..].iter().zip(&ranges[1..]);
            let whole = inner.all(|(n, range)| range.is_whole(*n));
            let is_kept = dims(p, slice.results[0]).len() == ranges.len();
            (whole && is_kept && ranges[0].len() == 1).then_some(ranges[0].start)
        }
    }?;
    let place = |id: OpId| p.f.body().ops.iter().position(|op| *op == id);
    let between = place(read_id)?..=place(root)?;
    let is_written_between = |user: &OpId| {
        p.f.op(*user).def.name != "read_state"
            && place(*user).is_none_or(|at| between.contains(&at))
    };
    let is_float = matches!(ty.dtype, DType::Fp16 | DType::Fp32);
    if !is_float || p.users(state_value).iter().any(is_written_between) {
        return None;
    }
    covers.extend(found.ops.iter().filter(|op| **op != read_id));
    Some(Past {
        kept: Kept::State(state),
        first: first * heads * n_keys * head_dim,
        shape: [heads, n_keys, head_dim],
    })
}

/// The rows of a mask [1, 1, rows, keys].
fn mask_rows(p: &Planner<'_>, mask: ValueId, n_keys: usize) -> Option<usize> {
    let shape = p.known_shape(mask)?;
    match shape[..] {
        [1, 1, rows, keys] if keys == n_keys && is_float32(p, mask) => Some(rows),
        _ => None,
    }
}

/// Whether scores are [.., rows, keys], so that the mask is of the rows of each query head, or all
/// rows have the same mask.
fn fits_rows(p: &Planner<'_>, scores: ValueId, [rows, n_keys]: [usize; 2]) -> Option<bool> {
    let shape = p.known_shape(scores)?;
    Some(shape.ends_with(&[rows, n_keys]) || (rows == 1 && shape.last() == Some(&n_keys)))
}

impl Kernel for PastAttention {
    fn facts(&self) -> Facts<'_> {
        let given = self.past.iter().filter_map(|past| match past.kept {
            Kept::Value(value) => Some(value),
            Kept::State(_) => None,
        });
        let rows = [self.query, self.key, self.value, self.mask];
        Facts::new("attention", given.chain(rows))
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let [q, k, v, mask] =
            [self.query, self.key, self.value, self.mask].map(|value| frame.get(value).cloned());
        let (q, k, v, mask) = (q?, k?, v?, mask?);
        let [n_heads, n_past, head_dim] = self.past[0].shape;
        let (&[1, _, n_rows, _], &[1, _, n_new, _]) = (&q.shape[..], &k.shape[..]) else {
            return Err("queries or keys are not [1, heads, rows, elements]".to_owned());
        };
        let n_keys = n_past + n_new;
        let mask = mask_of_heads(frame, &mask, [n_rows, n_keys])?;
        let tiles = frame.tiles_of(&mask, n_keys)?;
        let scratch_len = attention_scratch_len(frame.context, n_heads, n_rows, head_dim, n_keys);
        let mut scratch = frame.pool.take(scratch_len)?;
        let (mut out, n) = frame.pool.take_checked(&q.shape)?;
        let [past_k, past_v] = [&self.past[0], &self.past[1]].map(|past| kept_view(frame, past));
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
        let tiles = tiles.map(|at| MaskTiles::looked_up(&frame.mask_tiles[at].1, n_keys));
        let args = Attention {
            q: floats(&q)?,
            q_rows: rows,
            k: first_k,
            v: first_v,
            more,
            mask: Some(floats(&mask)?),
            tiles,
            scale: 1.0,
            may_round: frame.may_round,
            n_kv_heads: n_heads,
            n_rows,
            head_dim,
            n_keys,
            out: &mut out[..n],
            out_rows: rows,
        };
        attention(frame.context, args, &mut scratch);
        frame.pool.give_f32(scratch);
        Ok(vec![Tensor::fp32(q.shape, out)])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        let [_, n_past, _] = self.past[0].shape;
        let n_new = frame.shape(self.key).iter().rev().nth(1).map_or(0, |n| *n);
        // In fp16. The caller's values are operands.
        let states = self
            .past
            .iter()
            .filter(|past| matches!(past.kept, Kept::State(_)));
        let n_bytes = states.map(|past| 2 * past.shape.iter().product::<usize>());
        Work {
            flops: 4.0 * frame.n_elements(self.query) * (n_past + n_new) as f64,
            read: n_bytes.sum::<usize>() as f64,
            ..Work::default()
        }
    }
}

/// The mask [.., tokens, keys] for rows that are all tokens, so many times. All layers have the
/// same.
fn mask_of_heads(
    frame: &mut Frame<'_>,
    mask: &Tensor,
    [n_rows, n_keys]: [usize; 2],
) -> Result<Tensor, Fault> {
    if mask.len() == n_rows * n_keys {
        return Ok(mask.clone());
    }
    let is_same = |(given, made): &&(Tensor, Tensor)| {
        Arc::ptr_eq(&given.data, &mask.data) && made.len() == n_rows * n_keys
    };
    if let Some((_, made)) = frame.masks.iter().find(is_same) {
        return Ok(made.clone());
    }
    let values = floats(mask)?;
    let (mut repeated, n) = frame.pool.take_checked(&[n_rows, n_keys])?;
    for part in repeated[..n].chunks_mut(values.len().max(1)) {
        part.copy_from_slice(&values[..part.len()]);
    }
    let made = Tensor::fp32(vec![n_rows, n_keys], repeated);
    frame.masks.push((mask.clone(), made.clone()));
    Ok(made)
}

/// The keys or values of before.
fn kept_view<'f>(frame: &'f Frame<'_>, past: &Past) -> Result<KvView<'f>, Fault> {
    let [n_heads, n_keys, head_dim] = past.shape;
    let elements = past.first..past.first + n_heads * n_keys * head_dim;
    let outside = || "a part of a cache is outside of it".to_owned();
    let held = match past.kept {
        Kept::State(state) => &*frame.states[state],
        Kept::Value(value) => frame.get(value)?,
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

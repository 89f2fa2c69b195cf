//! Attention over keys and values of this call, as one op or as products.

use thane_kernels::attention::{
    Attention, HeadRows, KvData, KvView, attention, attention_scratch_len,
};

use super::attention::ATTENTION;
use super::*;
use crate::exec::HIDDEN;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new("attend", ATTENTION, attend),
    Fusion::new(
        "attend",
        pattern!(transpose((OneOf(&[ATTENTION, DECOMPOSED])))),
        attend_by_row,
    ),
    Fusion::new("attend_products", DECOMPOSED, attend),
];

/// `softmax(q k^T scale + mask) v` as products, where the factor and the mask may be missing.
const DECOMPOSED: Pattern = pattern!(attention @ matmul(weights @ softmax((MASKED)), value));
const MASKED: Pattern = OneOf(&[pattern!(add{(SCALED), mask}), SCALED]);
const SCALED: Pattern = OneOf(&[pattern!(mul((DIVIDED), #factor)), DIVIDED]);
const DIVIDED: Pattern = OneOf(&[pattern!(real_div((SCORES), #divisor)), SCORES]);
const SCORES: Pattern = pattern!(scores @ matmul(query, key));

/// `softmax(q k^T scale + mask) v` of [batch, heads, tokens, head_dim].
#[derive(Debug)]
struct Attend {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    mask: Option<ValueId>,
    /// Factor of the scores; one over the root of `head_dim` where there is none.
    scale: Option<f32>,
    /// Whether what is given, and the result, are [batch, tokens, heads, head_dim].
    by_row: [bool; 2],
    /// Where keys and values lie in `key` and `value`, which are fp16 and hold more.
    parts: Option<[Part; 2]>,
}

/// Elements [batch, heads, keys, head_dim] that lie together in a value.
#[derive(Debug, Clone, Copy)]
struct Part {
    value: ValueId,
    first: usize,
    shape: [usize; 4],
}

/// Attention with a mask [batch or 1, heads or 1, rows or 1, keys].
fn attend(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    let (root, result) = (found.root, p.f.op(found.root).results[0]);
    let attend = attending(p, &found)?;
    // Left to the pattern that ends there.
    let ends = |user: &OpId| exchanged(p, *user).is_some() && p.is_closed(*user, &[root]);
    if !has_masks_by_head(p, attend.mask) && p.users(result).iter().any(ends) {
        return None;
    }
    let attend = with_operands(p, &mut found, attend)?;
    one(found, attend)
}

/// The same, where heads and tokens of the result are exchanged.
fn attend_by_row(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    exchanged(p, found.root)?;
    let attend = attending(p, &found)?;
    if has_masks_by_head(p, attend.mask) {
        return None;
    }
    let mut attend = with_operands(p, &mut found, attend)?;
    attend.by_row[1] = true;
    one(found, attend)
}

/// What an op that exchanges heads and tokens is given.
pub(super) fn exchanged(p: &Planner<'_>, id: OpId) -> Option<ValueId> {
    let op = p.f.op(id);
    let perm =
        p.f.literal_arg(op, "perm")
            .filter(|_| op.def.name == "transpose")?;
    op.value_arg("x")
        .filter(|_| perm.to_ints().is_some_and(|perm| perm == [0, 2, 1, 3]))
}

/// The attention that was found, as one op or as products.
fn attending(p: &mut Planner<'_>, found: &Match<'_>) -> Option<Attend> {
    let op = found.op("attention")?;
    let [query, key, value] = found.values(["query", "key", "value"])?;
    let mut attend = Attend {
        query,
        key,
        value,
        mask: op.value_arg("attn_mask"),
        scale: None,
        by_row: [false; 2],
        parts: None,
    };
    if op.def.name == "matmul" {
        let weights = found.op("weights")?;
        let scores = weights.value_arg("x")?;
        let is_last = is_along_last(p, weights, scores)?;
        let is_plain = transposed(p, op)? == [false; 2]
            && transposed(p, found.op("scores")?)? == [false, true];
        if dims(p, scores).len() != 4 || !is_last || !is_plain {
            return None;
        }
        let mut numbers = [1.0; 2];
        for (name, scale) in ["factor", "divisor"].iter().zip(&mut numbers) {
            if found.bound(name).is_some() {
                *scale = number(p, found, name, 4)?;
            }
        }
        attend.mask = found.value("mask");
        attend.scale = Some(numbers[0] * numbers[1].recip());
    }
    Some(attend)
}

/// Whether attention has a mask for each head, as with a bias by distance. Heads then attend one by
/// one, which takes tensors where they follow each other.
fn has_masks_by_head(p: &Planner<'_>, mask: Option<ValueId>) -> bool {
    mask.is_some_and(|mask| matches!(dims(p, mask)[..], [_, n, _, _] if n != Some(1)))
}

/// Whether shapes are those that a kernel takes. As many keys as values there are by the meaning of
/// the op, whatever symbols their numbers have.
fn has_known_heads(p: &Planner<'_>, attend: &Attend) -> bool {
    let Attend {
        query,
        key,
        value,
        mask,
        ..
    } = *attend;
    let shape = |v: ValueId| {
        let ty = p.f.value(v).ty.tensor();
        ty.map(|t| t.shape.as_slice()).unwrap_or_default()
    };
    let rank = [query, key, value]
        .iter()
        .all(|v| is_float32(p, *v) && shape(*v).len() == 4);
    rank && [0, 1, 3]
        .iter()
        .all(|axis| shape(key)[*axis] == shape(value)[*axis])
        && shape(key)[3] == shape(query)[3]
        && shape(key)[1] == shape(query)[1]
        && mask.is_none_or(|m| {
            let n_heads = shape(query)[1].known();
            let fits = |n: Option<usize>| n.is_some() && (n == Some(1) || n == n_heads);
            is_float32(p, m) && matches!(shape(m), [_, heads, _, _] if fits(heads.known()))
        })
}

/// With the ops that exchange heads and tokens in front of attention, or take its keys and values
/// out of others.
fn with_operands(p: &Planner<'_>, found: &mut Match<'_>, mut attend: Attend) -> Option<Attend> {
    if !has_known_heads(p, &attend) {
        return None;
    }
    // All or none: where queries and keys are rotated in between, to exchange the values as well
    // costs less than to read them by row.
    let inner = found.ops.clone();
    let is_inner = |user: &OpId| inner.contains(user);
    let given = [attend.query, attend.key, attend.value].map(|v| {
        let made = p.maker(v)?;
        let is_inside = p
            .users(v)
            .iter()
            .all(|user| is_inner(user) && *user != made);
        let by_row = exchanged(p, made).filter(|_| is_inside)?;
        Some((made, by_row))
    });
    let parts = [attend.key, attend.value].map(|v| halves_of(p, v, &is_inner));
    if let [Some((key, k_covers)), Some((value, v_covers))] = parts {
        found.ops.extend([k_covers, v_covers].concat());
        (attend.key, attend.value) = (key.value, value.value);
        attend.parts = Some([key, value]);
    } else if let [Some(q), Some(k), Some(v)] = given
        && !has_masks_by_head(p, attend.mask)
    {
        found.ops.extend([q.0, k.0, v.0]);
        (attend.query, attend.key, attend.value) = (q.1, k.1, v.1);
        attend.by_row[0] = true;
    }
    Some(attend)
}

/// `cast(slice_by_index(x))` of fp16 elements that lie together, as they lie in x, and the ops.
fn halves_of(
    p: &Planner<'_>,
    value: ValueId,
    is_inner: &dyn Fn(&OpId) -> bool,
) -> Option<(Part, Vec<OpId>)> {
    let found = pattern!(cast(slice @ slice_by_index(x))).made(p, value)?;
    let (slice, x) = (found.value("slice")?, found.value("x")?);
    let own = p.f.value(x).ty.tensor()?;
    let shape = <[usize; 4]>::try_from(p.known_shape(value)?).ok()?;
    let is_alone = p.users(value).iter().all(is_inner) && p.users(slice) == [found.root];
    let n = shape.iter().product();
    let part = Part {
        value: x,
        first: first_of_run(&own.known_shape()?, p, found.op("slice")?, n)?,
        shape,
    };
    (own.dtype == DType::Fp16 && is_alone).then_some((part, found.ops))
}

/// The first element of a slice whose `n` elements lie together.
fn first_of_run(own: &[usize], p: &Planner<'_>, slice: &Op, n: usize) -> Option<usize> {
    let (mut first, mut run, mut stride, mut is_whole) = (0, 1, 1, true);
    for (size, range) in own.iter().zip(slice_ranges(p.f, slice)?).rev() {
        if range.step != 1 || range.len() > 1 && !is_whole {
            return None;
        }
        is_whole &= range.len() == *size;
        first += range.start * stride;
        stride *= size;
        run *= range.len();
    }
    (run == n).then_some(first)
}

impl Kernel for Attend {
    fn facts(&self) -> Facts<'_> {
        let reads = [self.query, self.key, self.value].into_iter();
        Facts::new("attention", reads.chain(self.mask))
    }

    /// Each text of the batch for itself; by row is not possible with a mask for each head.
    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let [by_row, out_by_row] = self.by_row;
        let [shape, keys] = self.sizes(frame)?;
        let ([batch, n_heads, n_rows, head_dim], [_, _, n_keys, _]) = (shape, keys);
        let shape = if out_by_row {
            vec![batch, n_rows, n_heads, head_dim]
        } else {
            shape.to_vec()
        };
        let mask = self.mask.map(|m| frame.get(m).cloned()).transpose()?;
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
        let scratch_len = attention_scratch_len(frame.context, n_heads, n_rows, head_dim, n_keys);
        let mut scratch = frame.pool.take(scratch_len)?;
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let [q, k, v] = [self.query, self.key, self.value].map(|v| frame.get(v).cloned());
        let (q, k, v) = (q?, k?, v?);
        let (q, k, v) = (
            floats(&q)?,
            elements(&k, self.parts.map(|[part, _]| part))?,
            elements(&v, self.parts.map(|[_, part]| part))?,
        );
        let mut repeated = Floats::default();
        let part_len = (n / (batch * n_parts).max(1)).max(1);
        for (part, out) in out[..n].chunks_mut(part_len).enumerate() {
            let (n_seen, mask) = match &mask {
                None => (n_keys, None),
                Some(mask) => mask_of_part(frame, mask, part, [n_rows, n_keys], &mut repeated)?,
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
                scale: self.scale.unwrap_or((head_dim as f32).sqrt().recip()),
                more: None,
                may_round: frame.may_round,
                n_kv_heads: n_heads,
                n_rows,
                head_dim,
                n_keys: n_seen,
                out_rows: rows(out_by_row, n_rows),
                out,
            };
            attention(frame.context, args, &mut scratch);
        }
        frame.pool.give_f32(scratch);
        if !repeated.is_empty() {
            frame.pool.give_f32(repeated);
        }
        Ok(vec![Tensor::fp32(shape, out)])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        let keys = match &self.parts {
            Some([keys, _]) => keys.shape.to_vec(),
            None => frame.shape(self.key),
        };
        let n_keys = keys.get(if self.by_row[0] { 1 } else { 2 });
        Work::flops(4.0 * frame.n_elements(self.query) * n_keys.map_or(0.0, |n| *n as f64))
    }
}

impl Attend {
    /// The batch, heads, rows and elements of queries and of keys, which fit each other.
    fn sizes(&self, frame: &Frame<'_>) -> Result<[[usize; 4]; 2], Fault> {
        let by_row = self.by_row[0];
        let sizes = |value| sizes(&frame.get(value)?.shape, by_row);
        let shape = sizes(self.query)?;
        let [keys, values] = match self.parts {
            Some(parts) => parts.map(|part| part.shape),
            None => [sizes(self.key)?, sizes(self.value)?],
        };
        let [batch, n_heads, _, head_dim] = shape;
        if keys != [batch, n_heads, keys[2], head_dim] || values != keys {
            return Err(format!("keys {keys:?} do not fit queries {shape:?}"));
        }
        Ok([shape, keys])
    }
}

/// How many keys the rows of one text, or of one head of a text, see, and what is added for each
/// row, from a mask [batch or 1, heads or 1, rows or 1, keys]; `repeated` is for a row that is the
/// same for all.
fn mask_of_part<'m>(
    frame: &mut Frame<'_>,
    mask: &'m Tensor,
    part: usize,
    [n_rows, n_keys]: [usize; 2],
    repeated: &'m mut Floats,
) -> Result<(usize, Option<&'m [f32]>), Fault> {
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
        return Ok((n_keys, Some(values)));
    }
    let n_seen = values.iter().take_while(|v| **v == 0.0).count();
    if n_seen > 0 && values[n_seen..].iter().all(|v| *v <= HIDDEN) {
        return Ok((n_seen, None));
    }
    // As large as a mask of all rows would be, which the limits hold for too.
    if repeated.len() < n_rows * n_keys {
        *repeated = frame.pool.take_checked(&[n_rows, n_keys])?.0;
    }
    let all = &mut repeated[..n_rows * n_keys];
    all.chunks_mut(n_keys.max(1))
        .for_each(|row| row.copy_from_slice(values));
    Ok((n_keys, Some(&*all)))
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

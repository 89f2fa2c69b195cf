//! Patterns of attention: over caches, over what a call computes, and with all that lies between
//! products and it.

use thane_mil::program::{Op, OpId, ValueId};
use thane_mil::types::DType;

use super::{Found, PATTERNS, constant_arg, find, is_float32, made_by, one};
use crate::plan::Planner;
use crate::step::{Cached, Fused, Heads, Part, RowsAttention};

/// A cache on its way from its update to attention.
struct Remembered {
    state: usize,
    end: ValueId,
    append: Found,
    covers: Vec<OpId>,
}

/// Whether the masks of a slice leave only the third of four axes to `begin` and `end`.
fn masks(p: &Planner<'_>, op: &Op, begin: &[i64], end: &[i64]) -> bool {
    let is = |name: &str, flags: &[i64]| {
        p.f.literal_arg(op, name)
            .and_then(|l| l.to_ints())
            .is_some_and(|v| v == flags)
    };
    is("begin_mask", begin)
        && is("end_mask", end)
        && op.arg("stride").is_none()
        && op.arg("squeeze_mask").is_none()
}

fn remembered(p: &Planner<'_>, value: ValueId) -> Option<Remembered> {
    let f = p.f;
    let mut covers = Vec::new();
    let mut value = value;
    if let Some((id, cast)) = made_by(p, value, "cast") {
        covers.push(id);
        value = cast.value_arg("x")?;
    }
    let (slice_id, slice) = made_by(p, value, "slice_by_index")?;
    covers.push(slice_id);
    let (update_id, update) = made_by(p, slice.value_arg("x")?, "coreml_update_state")?;
    let (write_id, write) = made_by(p, update.value_arg("value")?, "slice_update")?;
    let (read_id, read) = made_by(p, write.value_arg("x")?, "read_state")?;
    let input = update.value_arg("state")?;
    let tokens = [1, 1, 0, 1];
    let plain = masks(p, slice, &[1; 4], &tokens) && masks(p, write, &tokens, &tokens);
    // Read, written and sliced here only, so that nobody sees the state between.
    let alone = read.value_arg("input") == Some(input)
        && p.users(input).len() == 2
        && p.users(update.results[0]) == [slice_id]
        && f.value(input).ty.tensor_or_state()?.rank() == 4
        && f.value(input).ty.tensor_or_state()?.shape[0].known() == Some(1);
    let end = slice.value_arg("end")?;
    if !plain || !alone || write.value_arg("end") != Some(end) {
        return None;
    }
    let state = p.state(input)?;
    let mut update = write.value_arg("update")?;
    let mut appended = vec![write_id, read_id];
    // A cache rounds what it is given; where nothing else needs the rounded numbers, they are not
    // kept.
    if let Some((id, cast)) =
        made_by(p, update, "cast").filter(|(id, _)| p.is_closed(write_id, &[*id]))
        && let Some(x) = cast.value_arg("x").filter(|x| is_float32(p, *x))
        && f.value(update).ty.tensor()?.dtype == DType::Fp16
    {
        appended.push(id);
        update = x;
    }
    let append = Fused::Append {
        state,
        update,
        begin: write.value_arg("begin")?,
        end,
    };
    let append = Found {
        root: update_id,
        covers: appended,
        fused: append,
    };
    Some(Remembered {
        state,
        end,
        append,
        covers,
    })
}

pub(super) fn attention(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let query = op.value_arg("query").filter(|q| is_float32(p, *q))?;
    let (key, value) = (
        remembered(p, op.value_arg("key")?)?,
        remembered(p, op.value_arg("value")?)?,
    );
    let mask = op.value_arg("attn_mask");
    let mask_fits = mask.is_none_or(|m| {
        is_float32(p, m) && p.f.value(m).ty.tensor().is_some_and(|t| t.rank() == 2)
    });
    let types = [key.state, value.state].map(|s| p.state_type(s));
    if key.end != value.end
        || !mask_fits
        || types[0] != types[1]
        || p.f.value(query).ty.tensor()?.rank() != 4
    {
        return None;
    }
    let head_dim = types[0].shape[3].known()?;
    let scale = (head_dim as f32).sqrt().recip();
    let cached = Cached {
        states: [key.state, value.state],
        mask,
        end: key.end,
        scale,
    };
    let fused = Fused::Attention { query, cached };
    let covers = [key.covers, value.covers].concat();
    Some(vec![
        Found {
            root,
            covers,
            fused,
        },
        key.append,
        value.append,
    ])
}

/// Attention over caches, from the products of queries, keys and values [1, tokens, heads *
/// head_dim] to rows of the same kind.
pub(super) fn rows_attention(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (turned_id, turned) = made_by(p, p.f.op(root).value_arg("x")?, "transpose")?;
    let by_head = turned
        .value_arg("x")
        .filter(|_| exchanged(p, turned_id).is_some())?;
    let (split_id, split) = made_by(p, by_head, "reshape")?;
    let (id, _) = made_by(p, split.value_arg("x")?, "scaled_dot_product_attention")?;
    let [attention, k_append, v_append] = <[Found; 3]>::try_from(attention(p, id)?).ok()?;
    let (
        Fused::Attention { query, mut cached },
        Fused::Append {
            update: k, begin, ..
        },
        Fused::Append {
            update: v,
            begin: v_begin,
            ..
        },
    ) = (attention.fused, k_append.fused, v_append.fused)
    else {
        return None;
    };
    let mut own = vec![turned_id, split_id, id, k_append.root, v_append.root];
    let (grouped_id, grouped) = made_by(p, query, "reshape")?;
    own.push(grouped_id);
    let mut queries = grouped.value_arg("x")?;
    if let Some((id, x, factor)) = scaled(p, queries) {
        own.push(id);
        queries = x;
        cached.scale *= factor;
    }
    // Rows of a key head are those of the queries that share it, head after head; the result is
    // split as the queries were.
    let ([kv_heads, head_dim], [n_heads, _]) = (of_heads(p, k)?, of_heads(p, queries)?);
    let width = n_heads.checked_mul(head_dim);
    let fits = [query, v]
        .iter()
        .all(|v| of_heads(p, *v) == Some([kv_heads, head_dim]))
        && [queries, by_head]
            .iter()
            .all(|v| of_heads(p, *v) == Some([n_heads, head_dim]))
        && kv_heads > 0
        && n_heads.is_multiple_of(kv_heads)
        && matches!(dims(p, p.f.op(root).results[0])[..], [Some(1), _, Some(n)] if Some(n) == width)
        && p.state_type(cached.states[0])
            .known_shape()
            .is_some_and(|s| s[1] == kv_heads && s[3] == head_dim)
        && v_begin == begin;
    if !fits {
        return None;
    }
    let ((query, q_covers), (key, k_covers), (value, v_covers)) =
        (heads(p, queries)?, heads(p, k)?, heads(p, v)?);
    let is_plain = value.norm.is_none() && value.angles.is_none();
    // Queries and keys are changed where they are.
    if !is_plain || query.x == key.x || query.x == value.x || key.x == value.x {
        return None;
    }
    let covers = [
        own,
        attention.covers,
        k_append.covers,
        v_append.covers,
        q_covers,
        k_covers,
        v_covers,
    ]
    .concat();
    let rows = RowsAttention {
        query,
        key,
        value: value.x,
        n_heads,
        begin,
        cached,
    };
    one(root, covers, Fused::RowsAttention(Box::new(rows)))
}

/// The op that multiplies with one number, what it multiplies, and the number.
fn scaled(p: &mut Planner<'_>, value: ValueId) -> Option<(OpId, ValueId, f32)> {
    let (id, mul) = made_by(p, value, "mul")?;
    let factor = constant_arg(p, mul, "y")??;
    let number = *factor.f32s()?.first()?;
    (factor.len() == 1 && factor.shape.len() <= 4).then_some((id, mul.value_arg("x")?, number))
}

/// The heads of [1, heads, tokens, head_dim], and the elements of one.
fn of_heads(p: &Planner<'_>, value: ValueId) -> Option<[usize; 2]> {
    match dims(p, value)[..] {
        [Some(1), Some(n), _, Some(dim)] => Some([n, dim]),
        _ => None,
    }
}

/// What heads [1, heads, tokens, head_dim] are made of: rows of a product, split, normalized and
/// rotated.
fn heads(p: &mut Planner<'_>, value: ValueId) -> Option<(Heads, Vec<OpId>)> {
    let (mut x, mut covers) = (value, Vec::new());
    let (mut norm, mut angles) = (None, None);
    while let Some(id) = p.definer(x) {
        let Some(found) = find(p, id, PATTERNS).pop() else {
            break;
        };
        match found.fused {
            Fused::Rope {
                x: given,
                cos,
                sin,
                style,
            } if angles.is_none() && norm.is_none() => {
                (x, angles) = (given, Some(([cos, sin], style)));
            }
            Fused::RmsNorm {
                x: given,
                weight,
                epsilon,
            } if norm.is_none() => (x, norm) = (given, Some((weight, epsilon))),
            _ => break,
        }
        covers.extend([vec![id], found.covers].concat());
    }
    let id = p.definer(x)?;
    let split = exchanged(p, id)?;
    let (split_id, row) =
        made_by(p, split, "reshape").and_then(|(id, op)| Some((id, op.value_arg("x")?)))?;
    let is_row = match (&dims(p, row)[..], &dims(p, split)[..]) {
        (&[Some(1), _, Some(width)], &[Some(1), _, Some(n), Some(dim)]) => {
            n.checked_mul(dim) == Some(width)
        }
        _ => false,
    };
    covers.extend([id, split_id]);
    (is_row && is_float32(p, row)).then_some((
        Heads {
            x: row,
            norm,
            angles,
        },
        covers,
    ))
}

/// The sizes of a tensor, as far as they are known.
fn dims(p: &Planner<'_>, value: ValueId) -> Vec<Option<usize>> {
    let ty = p.f.value(value).ty.tensor();
    ty.map(|t| t.shape.iter().map(|d| d.known()).collect())
        .unwrap_or_default()
}

/// What an op that exchanges heads and tokens is given.
fn exchanged(p: &Planner<'_>, id: OpId) -> Option<ValueId> {
    let op = p.f.op(id);
    let perm =
        p.f.literal_arg(op, "perm")
            .filter(|_| op.def.name == "transpose")?;
    op.value_arg("x")
        .filter(|_| perm.to_ints().is_some_and(|perm| perm == [0, 2, 1, 3]))
}

/// What attends in one call: `scaled_dot_product_attention`, or
/// `matmul(softmax(add(mul(matmul(q, k^T), scale), mask)), v)`, where the factor and the mask may
/// be missing.
struct Attending {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    mask: Option<ValueId>,
    /// That of the op where there is none.
    scale: Option<f32>,
    covers: Vec<OpId>,
}

/// The attention that ends in an op.
fn attending(p: &mut Planner<'_>, id: OpId) -> Option<Attending> {
    let f = p.f;
    let op = f.op(id);
    match op.def.name {
        "scaled_dot_product_attention" => Some(Attending {
            query: op.value_arg("query")?,
            key: op.value_arg("key")?,
            value: op.value_arg("value")?,
            mask: op.value_arg("attn_mask"),
            scale: None,
            covers: Vec::new(),
        }),
        "matmul" => decomposed(p, op),
        _ => None,
    }
}

fn decomposed(p: &mut Planner<'_>, op: &Op) -> Option<Attending> {
    let f = p.f;
    if transposed(p, op)? != [false; 2] {
        return None;
    }
    let (softmax_id, softmax) = made_by(p, op.value_arg("x")?, "softmax")?;
    let mut scores = softmax.value_arg("x")?;
    let rank = f.value(scores).ty.tensor()?.rank() as i64;
    let axis = match softmax.arg("axis") {
        None => -1,
        Some(_) => *f.literal_arg(softmax, "axis")?.to_ints()?.first()?,
    };
    if rank != 4 || ![-1, rank - 1].contains(&axis) {
        return None;
    }
    let mut covers = vec![softmax_id];
    let mut mask = None;
    if let Some((id, add)) = made_by(p, scores, "add") {
        let (x, y) = (add.value_arg("x")?, add.value_arg("y")?);
        // The scores have the type of the sum, a mask may be broadcast.
        let is_scores = |v: ValueId| {
            ["mul", "real_div", "matmul"]
                .iter()
                .any(|n| made_by(p, v, n).is_some())
        };
        let (made, added) = if is_scores(x) { (x, y) } else { (y, x) };
        (scores, mask) = (made, Some(added));
        covers.push(id);
    }
    let mut scale = 1.0;
    for name in ["mul", "real_div"] {
        let Some((id, by)) = made_by(p, scores, name) else {
            continue;
        };
        let factor = constant_arg(p, by, "y")??;
        let number = *factor.f32s()?.first()?;
        if factor.len() != 1 || factor.shape.len() > 4 {
            return None;
        }
        scale *= if name == "mul" {
            number
        } else {
            number.recip()
        };
        covers.push(id);
        scores = by.value_arg("x")?;
    }
    let (product_id, product) = made_by(p, scores, "matmul")?;
    covers.push(product_id);
    (transposed(p, product)? == [false, true]).then_some(())?;
    Some(Attending {
        query: product.value_arg("x")?,
        key: product.value_arg("y")?,
        value: op.value_arg("y")?,
        mask,
        scale: Some(scale),
        covers,
    })
}

/// `cast(slice_by_index(x))` of fp16 elements that lie together, as they lie in x, and the ops.
fn halves_of(
    p: &Planner<'_>,
    value: ValueId,
    id: OpId,
    inner: &[OpId],
) -> Option<(Part, Vec<OpId>)> {
    let f = p.f;
    let (cast_id, cast) = made_by(p, value, "cast")?;
    let (slice_id, slice) = made_by(p, cast.value_arg("x")?, "slice_by_index")?;
    let x = slice.value_arg("x")?;
    let own = f.value(x).ty.tensor()?;
    let shape = f.value(value).ty.tensor()?.known_shape()?;
    let is_alone = p
        .users(value)
        .iter()
        .all(|user| *user == id || inner.contains(user))
        && p.users(cast.value_arg("x")?) == [cast_id];
    let first = first_of_run(&own.known_shape()?, p, slice, shape.iter().product())?;
    let shape = <[usize; 4]>::try_from(shape).ok()?;
    let part = Part {
        value: x,
        first,
        shape,
    };
    (own.dtype == DType::Fp16 && is_alone).then_some((part, vec![cast_id, slice_id]))
}

/// The first element of a slice whose `n` elements lie together.
fn first_of_run(own: &[usize], p: &Planner<'_>, slice: &Op, n: usize) -> Option<usize> {
    let f = p.f;
    let rank = own.len();
    let ints = |name: &str, missing: i64| match slice.arg(name) {
        None => Some(vec![missing; rank]),
        Some(_) => f
            .literal_arg(slice, name)?
            .to_ints()
            .filter(|v| v.len() == rank),
    };
    let [begin, no_begin, no_end] = [
        ints("begin", 0)?,
        ints("begin_mask", 0)?,
        ints("end_mask", 0)?,
    ];
    let (end, squeezed, step) = (
        ints("end", 0)?,
        ints("squeeze_mask", 0)?,
        ints("stride", 1)?,
    );
    let mut first = 0;
    let mut run = 1;
    let mut is_whole = true;
    let stride = |axis: usize| own[axis + 1..].iter().product::<usize>();
    for axis in (0..rank).rev() {
        let size = own[axis] as i64;
        let start = if no_begin[axis] != 0 { 0 } else { begin[axis] };
        let stop = match (squeezed[axis], no_end[axis]) {
            (0, 0) => end[axis],
            (0, _) => size,
            _ => start + 1,
        };
        let len = usize::try_from(stop - start).ok()?;
        if start < 0 || stop > size || step[axis] != 1 || len > 1 && !is_whole {
            return None;
        }
        is_whole &= len == own[axis];
        first += usize::try_from(start).ok()? * stride(axis);
        run *= len;
    }
    (run == n).then_some(first)
}

/// Whether each factor of a product is transposed.
pub(super) fn transposed(p: &Planner<'_>, op: &Op) -> Option<[bool; 2]> {
    let flag = |name| match op.arg(name) {
        None => Some(false),
        Some(_) => Some(p.f.literal_arg(op, name)?.to_ints()? == [1]),
    };
    Some([flag("transpose_x")?, flag("transpose_y")?])
}

/// Attention whose keys and values are computed in this call, with a mask [batch or 1, heads or 1,
/// rows or 1, keys].
pub(super) fn attend(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let result = p.f.op(root).results[0];
    let attending = attending(p, root)?;
    // Left to the pattern that ends there.
    let ends = |user: &OpId| exchanged(p, *user).is_some() && p.is_closed(*user, &[root]);
    let (covers, fused) = if !has_masks_by_head(p, &attending) && p.users(result).iter().any(ends) {
        None
    } else {
        attend_with(p, root, attending)
    }?;
    one(root, covers, fused)
}

/// The same, where heads and tokens of the result are exchanged.
pub(super) fn attend_by_row(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let id = p.definer(exchanged(p, root)?)?;
    let attending = attending(p, id)?;
    if has_masks_by_head(p, &attending) {
        return None;
    }
    let (mut covers, mut fused) = attend_with(p, id, attending)?;
    if let Fused::Attend {
        by_row: [.., result],
        ..
    } = &mut fused
    {
        *result = true;
    }
    covers.push(id);
    one(root, covers, fused)
}

/// Whether attention has a mask for each head, as with a bias by distance. Heads then attend one by
/// one, which takes tensors where they follow each other.
fn has_masks_by_head(p: &Planner<'_>, attending: &Attending) -> bool {
    attending
        .mask
        .is_some_and(|mask| matches!(dims(p, mask)[..], [_, n, _, _] if n != Some(1)))
}

/// Whether shapes are those that a kernel takes. As many keys as values there are by the meaning of
/// the op, whatever symbols their numbers have.
fn has_known_heads(p: &Planner<'_>, attending: &Attending) -> bool {
    let Attending {
        query,
        key,
        value,
        mask,
        ..
    } = *attending;
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

/// What attends, and the ops that exchange heads and tokens in front of it.
fn attend_with(p: &Planner<'_>, id: OpId, attending: Attending) -> Option<(Vec<OpId>, Fused)> {
    if !has_known_heads(p, &attending) {
        return None;
    }
    let by_head = has_masks_by_head(p, &attending);
    let Attending {
        query,
        key,
        value,
        mask,
        scale,
        mut covers,
    } = attending;
    let attend = |[query, key, value]: [ValueId; 3], is_by_row, parts| Fused::Attend {
        query,
        key,
        value,
        mask,
        scale,
        by_row: [is_by_row, false],
        parts,
    };
    // All or none: where queries and keys are rotated in between, to exchange the values as well
    // costs less than to read them by row.
    let inner: Vec<OpId> = covers.iter().copied().chain([id]).collect();
    let given = [query, key, value].map(|v| {
        let is_inside = |made: &OpId| {
            let users = p.users(v);
            users
                .iter()
                .all(|user| inner.contains(user) && made != user)
        };
        let made = p.definer(v).filter(is_inside)?;
        Some((made, exchanged(p, made)?))
    });
    let given = if by_head { [None; 3] } else { given };
    let parts = [key, value].map(|v| halves_of(p, v, id, &inner));
    if let [Some((key, k_covers)), Some((value, v_covers))] = parts {
        covers.extend([k_covers, v_covers].concat());
        let given = [query, key.value, value.value];
        return Some((covers, attend(given, false, Some([key, value]))));
    }
    let [Some(q), Some(k), Some(v)] = given else {
        return Some((covers, attend([query, key, value], false, None)));
    };
    covers.extend([q.0, k.0, v.0]);
    Some((covers, attend([q.1, k.1, v.1], true, None)))
}

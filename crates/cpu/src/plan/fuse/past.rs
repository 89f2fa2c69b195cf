//! Attention over what a state holds and what a call adds to it, as programs for the Neural Engine
//! have it: the state is written at the end, once for all layers.

use thane_mil::program::{Op, OpId, ValueId};
use thane_mil::types::DType;

use super::attention::transposed;
use super::{Found, constant_arg, is_float32, joined_last, made_by, one, slice_bounds};
use crate::plan::Planner;
use crate::step::{Fused, Kept, Past, PastAttention, StateUpdate};

/// `add(matmul(w_past, v_past), matmul(w_new, v_new))`, where the weights are the two parts of
/// `softmax(add(concat(matmul(q, k_past^T), matmul(q, k_new^T)), mask))`.
pub(super) fn past_attention(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let (past_id, past) = made_by(p, op.value_arg("x")?, "matmul")?;
    let (new_id, new) = made_by(p, op.value_arg("y")?, "matmul")?;
    let weights = [past.value_arg("x")?, new.value_arg("x")?];
    let mut covers = vec![past_id, new_id];
    let (weights, parts) = parted(p, weights, &mut covers)?;
    let weights = through_reshape(p, weights, &mut covers);
    let (softmax_id, softmax) = made_by(p, weights, "softmax")?;
    let (masked_id, masked) = made_by(p, softmax.value_arg("x")?, "add")?;
    let mask = masked.value_arg("y")?;
    covers.extend([softmax_id, masked_id]);
    let scores = through_reshape(p, masked.value_arg("x")?, &mut covers);
    let (joined_id, joined) = made_by(p, scores, "concat")?;
    let (past_scores, new_scores) = joined_last(p, joined)?;
    let (past_scores_id, past_scores) = made_by(p, past_scores, "matmul")?;
    let (new_scores_id, new_scores) = made_by(p, new_scores, "matmul")?;
    covers.extend([joined_id, past_scores_id, new_scores_id]);
    let query = past_scores
        .value_arg("x")
        .filter(|q| new_scores.value_arg("x") == Some(*q) && is_float32(p, *q))?;
    let (key, value) = (new_scores.value_arg("y")?, new.value_arg("y")?);
    let turned = [
        transposed(p, past_scores)? == [false, true],
        transposed(p, new_scores)? == [false, true],
        transposed(p, past)? == [false; 2],
        transposed(p, new)? == [false; 2],
    ];
    let states = [past_scores.value_arg("y")?, past.value_arg("y")?];
    let states = [
        kept(p, states[0], root, &mut covers)?,
        kept(p, states[1], root, &mut covers)?,
    ];
    let [n_heads, n_rows, head_dim] = heads(p, query)?;
    let [past_heads, n_past, past_dim] = states[0].shape;
    let [new_heads, n_new, new_dim] = heads(p, key)?;
    let sizes = turned == [true; 4]
        && states[0].shape == states[1].shape
        && heads(p, value)? == [new_heads, n_new, new_dim]
        && [past_heads, new_heads] == [n_heads; 2]
        && [past_dim, new_dim] == [head_dim; 2]
        && is_float32(p, key)
        && is_float32(p, value);
    let n_keys = n_past + n_new;
    let rows = mask_rows(p, mask, n_keys)?;
    let axis = p.f.literal_arg(softmax, "axis").and_then(|l| l.to_ints());
    let rank = p.f.value(softmax.value_arg("x")?).ty.tensor()?.rank() as i64;
    let is_last = axis.is_none_or(|axis| axis == [-1] || axis == [rank - 1]);
    // Rows of a head are those of the query heads that share it, each of all tokens.
    if !sizes || parts != [n_past, n_new] || !is_last || rows == 0 || n_rows % rows != 0 {
        return None;
    }
    if !fits_rows(p, softmax.value_arg("x")?, [rows, n_keys])? {
        return None;
    }
    let attention = PastAttention {
        query,
        past: states,
        key,
        value,
        mask,
    };
    one(root, covers, Fused::PastAttention(Box::new(attention)))
}

/// What a reshape is given, where there is one.
fn through_reshape(p: &Planner<'_>, value: ValueId, covers: &mut Vec<OpId>) -> ValueId {
    match made_by(p, value, "reshape").and_then(|(id, op)| Some((id, op.value_arg("x")?))) {
        Some((id, x)) => {
            covers.push(id);
            x
        }
        None => value,
    }
}

/// The sizes of [1, heads, rows, elements].
fn heads(p: &Planner<'_>, value: ValueId) -> Option<[usize; 3]> {
    match p.f.value(value).ty.tensor()?.known_shape()?[..] {
        [1, heads, rows, elements] => Some([heads, rows, elements]),
        _ => None,
    }
}

/// `cast(slice_by_index(read_state(..)))` of a part that lies together, where nothing writes the
/// state between that and `root`; or `cast` of an input.
fn kept(p: &Planner<'_>, value: ValueId, root: OpId, covers: &mut Vec<OpId>) -> Option<Past> {
    let (cast_id, cast) = made_by(p, value, "cast")?;
    let given = cast.value_arg("x")?;
    if p.f.body().inputs.contains(&given) {
        covers.push(cast_id);
        let is_half = p.f.value(given).ty.tensor()?.dtype == DType::Fp16;
        return is_half.then_some(Past {
            kept: Kept::Value(given),
            first: 0,
            shape: heads(p, given)?,
        });
    }
    let (slice_id, read) = match made_by(p, given, "slice_by_index") {
        Some((id, slice)) => (Some(id), slice.value_arg("x")?),
        None => (None, given),
    };
    let (read_id, read_op) = made_by(p, read, "read_state")?;
    let state_value = read_op.value_arg("input")?;
    let state = p.state(state_value)?;
    let ty = p.state_type(state);
    let shape = ty.known_shape()?;
    let &[n, heads, n_keys, head_dim] = shape.as_slice() else {
        return None;
    };
    let first = match slice_id {
        None => (n == 1).then_some(0),
        Some(id) => {
            let bounds = slice_bounds(p, p.f.op(id))?;
            let whole = shape[1..]
                .iter()
                .zip(&bounds[1..])
                .all(|(n, bounds)| *bounds == [0, *n as i64, 1]);
            let [begin, end, step] = bounds[0];
            (whole && end == begin + 1 && step == 1).then_some(usize::try_from(begin).ok()?)
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
    covers.push(cast_id);
    covers.extend(slice_id);
    Some(Past {
        kept: Kept::State(state),
        first: first * heads * n_keys * head_dim,
        shape: [heads, n_keys, head_dim],
    })
}

/// The value whose last axis is divided into these two parts, by slices or by a split, and how many
/// elements each takes.
fn parted(
    p: &Planner<'_>,
    parts: [ValueId; 2],
    covers: &mut Vec<OpId>,
) -> Option<(ValueId, [usize; 2])> {
    if let Some((id, split)) = made_by(p, parts[0], "split") {
        let x = split.value_arg("x")?;
        let shape = p.f.value(x).ty.tensor()?.known_shape()?;
        let axis = p.f.literal_arg(split, "axis")?.to_ints()?;
        let is_last = axis == [-1] || axis == [shape.len() as i64 - 1];
        if split.results != parts || !is_last {
            return None;
        }
        covers.push(id);
        let size = |part: ValueId| p.f.value(part).ty.tensor()?.known_shape()?.last().copied();
        return Some((x, [size(parts[0])?, size(parts[1])?]));
    }
    let [(first_id, first), (second_id, second)] = [
        made_by(p, parts[0], "slice_by_index")?,
        made_by(p, parts[1], "slice_by_index")?,
    ];
    let x = first.value_arg("x")?;
    let n = *p.f.value(x).ty.tensor()?.known_shape()?.last()?;
    let [begin, middle] = of_last_axis(p, first)?;
    if second.value_arg("x") != Some(x) || begin != 0 || of_last_axis(p, second)? != [middle, n] {
        return None;
    }
    covers.extend([first_id, second_id]);
    Some((x, [middle, n - middle]))
}

/// The elements of the last axis that a slice takes, if it takes all of the others.
fn of_last_axis(p: &Planner<'_>, slice: &Op) -> Option<[usize; 2]> {
    let x = slice.value_arg("x")?;
    let shape = p.f.value(x).ty.tensor()?.known_shape()?;
    let bounds = slice_bounds(p, slice)?;
    let (last, outer) = bounds.split_last()?;
    let mut outer = outer.iter().zip(&shape);
    let whole = outer.all(|(bounds, n)| *bounds == [0, *n as i64, 1]);
    let [begin, end, step] = *last;
    let range = [usize::try_from(begin).ok()?, usize::try_from(end).ok()?];
    (whole && step == 1).then_some(range)
}

/// The rows of a mask [1, 1, rows, keys].
fn mask_rows(p: &Planner<'_>, mask: ValueId, n_keys: usize) -> Option<usize> {
    let shape = p.f.value(mask).ty.tensor()?.known_shape()?;
    match shape[..] {
        [1, 1, rows, keys] if keys == n_keys && is_float32(p, mask) => Some(rows),
        _ => None,
    }
}

/// Whether scores are [.., rows, keys], so that the mask is of the rows of each query head, or all
/// rows have the same mask.
fn fits_rows(p: &Planner<'_>, scores: ValueId, [rows, n_keys]: [usize; 2]) -> Option<bool> {
    let shape = p.f.value(scores).ty.tensor()?.known_shape()?;
    Some(shape.ends_with(&[rows, n_keys]) || (rows == 1 && shape.last() == Some(&n_keys)))
}

/// `coreml_update_state(s, slice_update(old, update))`, where `old` is what the state holds:
/// written in place where nothing needs it any more.
pub(super) fn state_update(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let input = op.value_arg("state")?;
    let (write_id, write) = made_by(p, op.value_arg("value")?, "slice_update")?;
    let old = write.value_arg("x")?;
    let old_id = p.definer(old)?;
    let made = p.f.op(old_id);
    let is_read = made.def.name == "read_state" && made.value_arg("input") == Some(input);
    let is_stored =
        made.def.name == "coreml_update_state" && made.value_arg("state") == Some(input);
    let place = |id: OpId| p.f.body().ops.iter().position(|op| *op == id);
    let between = place(old_id)?..place(root)?;
    let is_kept = p.users(input).iter().all(|user| {
        *user == old_id
            || p.f.op(*user).def.name == "read_state"
            || !place(*user).is_some_and(|at| between.contains(&at))
    });
    if !(is_read || is_stored) || !is_kept || !p.is_closed(root, &[write_id]) {
        return None;
    }
    let mask = |p: &mut Planner<'_>, name: &str| constant_arg(p, write, name);
    let stored = op.results[0];
    let mut covers = vec![write_id];
    let mut values = write.value_arg("update")?;
    let narrowed = narrowed(p, values).filter(|(id, _)| p.is_closed(root, &[write_id, *id]));
    if let Some((id, wide)) = narrowed {
        covers.push(id);
        values = wide;
    }
    let update = StateUpdate {
        state: p.state(input)?,
        old,
        update: values,
        narrows: narrowed.is_some(),
        begin: write.value_arg("begin")?,
        end: write.value_arg("end")?,
        masks: [
            mask(p, "begin_mask")?,
            mask(p, "end_mask")?,
            mask(p, "squeeze_mask")?,
        ],
        is_used: p.is_output(stored) || !p.users(stored).is_empty(),
    };
    let steps = constant_arg(p, write, "stride")?;
    let is_plain = steps.is_none_or(|s| s.to_ints().is_some_and(|s| s.iter().all(|s| *s == 1)));
    is_plain.then(|| one(root, covers, Fused::StateUpdate(Box::new(update))))?
}

/// The cast from fp32 to fp16 that made a value, and what it was given.
fn narrowed(p: &Planner<'_>, value: ValueId) -> Option<(OpId, ValueId)> {
    let (id, cast) = made_by(p, value, "cast")?;
    let wide = cast.value_arg("x").filter(|x| is_float32(p, *x))?;
    let is_half = p.f.value(value).ty.tensor()?.dtype == DType::Fp16;
    is_half.then_some((id, wide))
}

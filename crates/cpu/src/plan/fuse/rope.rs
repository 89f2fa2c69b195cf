//! Rotary embeddings, of heads and of rows of heads.

use thane_kernels::rope::RopeStyle;
use thane_mil::program::{Op, OpId, ValueId};

use super::{Found, constant_arg, is_float32, joined_last, made_by, one, slice_bounds};
use crate::plan::Planner;
use crate::step::Fused;

/// What `(a cos - b sin, b cos + a sin)` rotates.
struct Rotation {
    a: ValueId,
    b: ValueId,
    cos: ValueId,
    sin: ValueId,
    covers: Vec<OpId>,
}

fn rotation(p: &Planner<'_>, left: ValueId, right: ValueId) -> Option<Rotation> {
    let (left_id, left) = made_by(p, left, "sub")?;
    let (right_id, right) = made_by(p, right, "add")?;
    let product = |op: &Op, name: &str| -> Option<(OpId, ValueId, ValueId)> {
        let (id, mul) = made_by(p, op.value_arg(name)?, "mul")?;
        Some((id, mul.value_arg("x")?, mul.value_arg("y")?))
    };
    let (ac_id, a, cos) = product(left, "x")?;
    let (bs_id, b, sin) = product(left, "y")?;
    let (bc_id, b2, cos2) = product(right, "x")?;
    let (as_id, a2, sin2) = product(right, "y")?;
    let same = a == a2 && b == b2 && cos == cos2 && sin == sin2 && is_float32(p, a);
    same.then(|| Rotation {
        a,
        b,
        cos,
        sin,
        covers: vec![left_id, right_id, ac_id, bs_id, bc_id, as_id],
    })
}

/// Both halves of the split whose results are `a` and `b`, in order.
fn halves<'a>(p: &Planner<'a>, a: ValueId, b: ValueId) -> Option<(OpId, &'a Op)> {
    let (id, split) = made_by(p, a, "split")?;
    let rank = p.f.value(a).ty.tensor()?.rank() as i64;
    let axis = p.f.literal_arg(split, "axis")?.to_ints()?;
    let last = axis == [-1] || axis == [rank - 1];
    (last && split.results == [a, b]).then_some((id, split))
}

/// Whether x is [batch, heads, tokens, head_dim] and cosines are [tokens, head_dim / 2], not one
/// row for all.
fn is_rotary(p: &Planner<'_>, x: ValueId, cos: ValueId) -> bool {
    let dims = |v: ValueId| {
        p.f.value(v)
            .ty
            .tensor()
            .map(|t| t.shape.clone())
            .unwrap_or_default()
    };
    let (x, cos) = (dims(x), dims(cos));
    matches!((x.as_slice(), cos.as_slice()), ([_, heads, tokens, d], [rows, half])
        if heads.known().is_some() && d.known().is_some() && d.known() == half.known().map(|h| 2 * h)
            && (rows.known() != Some(1) || tokens.known() == Some(1)))
}

pub(super) fn rope_half(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (left, right) = joined_last(p, p.f.op(root))?;
    let r = rotation(p, left, right)?;
    let (split_id, split) = halves(p, r.a, r.b)?;
    let x = split.value_arg("x").filter(|x| is_rotary(p, *x, r.cos))?;
    let covers = [r.covers, vec![split_id]].concat();
    one(
        root,
        covers,
        Fused::Rope {
            x,
            cos: r.cos,
            sin: r.sin,
            style: RopeStyle::Half,
        },
    )
}

/// `reshape(stack(rotated pairs))`, of `reshape(x, [.., head_dim / 2, 2])` split and squeezed.
pub(super) fn rope_interleaved(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let (stack_id, stack) = made_by(p, f.op(root).value_arg("x")?, "stack")?;
    let (left, right) = joined_last(p, stack)?;
    let r = rotation(p, left, right)?;
    let (a_id, a) = made_by(p, r.a, "squeeze")?;
    let (b_id, b) = made_by(p, r.b, "squeeze")?;
    let (split_id, split) = halves(p, a.value_arg("x")?, b.value_arg("x")?)?;
    let (pairs_id, pairs) = made_by(p, split.value_arg("x")?, "reshape")?;
    let x = pairs.value_arg("x").filter(|x| is_rotary(p, *x, r.cos))?;
    let dims = |v: ValueId| {
        f.value(v)
            .ty
            .tensor()
            .map(|t| t.shape.iter().map(|d| d.known()).collect::<Vec<_>>())
    };
    let (whole, paired) = (dims(x)?, dims(pairs.results[0])?);
    let half = whole.last().copied().flatten().map(|d| d / 2);
    // One axis, the tokens, may be unknown, and a symbol of its own after each reshape: it is the
    // same, for the elements are.
    let same =
        dims(f.op(root).results[0])? == whole && whole.iter().filter(|d| d.is_none()).count() <= 1;
    let is_paired =
        paired.len() == 5 && paired[..2] == whole[..2] && paired[3..] == [half, Some(2)];
    let covers = [r.covers, vec![stack_id, a_id, b_id, split_id, pairs_id]].concat();
    if !same || !is_paired {
        return None;
    }
    one(
        root,
        covers,
        Fused::Rope {
            x,
            cos: r.cos,
            sin: r.sin,
            style: RopeStyle::Interleaved,
        },
    )
}

/// `concat(a cos - b sin, b cos + a sin)` of x [.., tokens, heads, head_dim], where a and b are the
/// even and odd elements of each head, or its halves, and cosines are
/// [.., tokens, 1, head_dim / 2].
pub(super) fn rope_rows(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let (left, right) = joined_last(p, p.f.op(root))?;
    let r = rotation(p, left, right)?;
    let dims = |v: ValueId| p.f.value(v).ty.tensor()?.known_shape();
    let (a_id, b_id) = (p.definer(r.a)?, p.definer(r.b)?);
    let (x, is_interleaved) = pairs(p, p.f.op(a_id), p.f.op(b_id))?;
    let (shape, cos) = (dims(x)?, dims(r.cos)?);
    let [outer @ .., n_heads, head_dim] = shape.as_slice() else {
        return None;
    };
    let angles: usize = cos.iter().product();
    let n_tokens: usize = outer.iter().product();
    let half = head_dim / 2;
    // One row of angles for each token, which all of its heads share; a single one serves all.
    let [cos_outer @ .., 1, last] = cos.as_slice() else {
        return None;
    };
    let is_row = cos_outer.len() <= outer.len()
        && outer.ends_with(cos_outer)
        && *last == half
        && angles == n_tokens * half
        && dims(r.sin)? == cos
        && half > 0
        && *n_heads > 0;
    is_row.then(|| {
        let covers = [r.covers, vec![a_id, b_id]].concat();
        let fused = Fused::RopeRows {
            x,
            cos: r.cos,
            sin: r.sin,
            is_interleaved,
        };
        one(root, covers, fused)
    })?
}

/// What two slices take the even and odd elements, or the halves, of the last axis of.
fn pairs(p: &Planner<'_>, a: &Op, b: &Op) -> Option<(ValueId, bool)> {
    let x = a.value_arg("x").filter(|x| b.value_arg("x") == Some(*x))?;
    let shape = p.f.value(x).ty.tensor()?.known_shape()?;
    let (a, b) = (slice_bounds(p, a)?, slice_bounds(p, b)?);
    let (last, outer) = shape.split_last()?;
    let (last, half) = (*last as i64, *last as i64 / 2);
    let whole = outer.iter().zip(a.iter().zip(&b)).all(|(n, (a, b))| {
        let whole = [0, *n as i64, 1];
        *a == whole && *b == whole
    });
    let of_last = [*a.last()?, *b.last()?];
    let is_interleaved = of_last == [[0, last, 2], [1, last, 2]];
    let is_halves = of_last == [[0, half, 1], [half, last, 1]];
    (whole && last % 2 == 0 && (is_interleaved || is_halves)).then_some((x, is_interleaved))
}

/// `x cos + (-b, a) sin` with cosines and sines for every element of a head, as Hugging Face writes
/// it: the halves `(a, b)` of x are those of a split or two slices.
pub(super) fn rope_halves(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let (left, right) = (op.value_arg("x")?, op.value_arg("y")?);
    [(left, right), (right, left)]
        .into_iter()
        .find_map(|(straight, turned)| halves_turned(p, root, straight, turned))
}

fn halves_turned(
    p: &mut Planner<'_>,
    root: OpId,
    straight: ValueId,
    turned: ValueId,
) -> Option<Vec<Found>> {
    let (straight_id, straight) = made_by(p, straight, "mul")?;
    let (turned_id, turned) = made_by(p, turned, "mul")?;
    let factors = |op: &Op| -> Option<[(ValueId, ValueId); 2]> {
        let (x, y) = (op.value_arg("x")?, op.value_arg("y")?);
        Some([(x, y), (y, x)])
    };
    let ((joined_id, joined), sin) = factors(turned)?
        .into_iter()
        .find_map(|(joined, sin)| Some((made_by(p, joined, "concat")?, sin)))?;
    let (negated, a) = joined_last(p, joined)?;
    let (negated_id, b) = negated_by(p, negated)?;
    let (mut covers, x) = match halves(p, a, b) {
        Some((id, split)) => (vec![id], split.value_arg("x")?),
        None => {
            let (a_id, b_id) = (p.definer(a)?, p.definer(b)?);
            let (x, is_interleaved) = pairs(p, p.f.op(a_id), p.f.op(b_id))?;
            (vec![a_id, b_id], (!is_interleaved).then_some(x)?)
        }
    };
    let (_, cos) = factors(straight)?.into_iter().find(|(of, _)| *of == x)?;
    let is_row = is_float32(p, x) && [cos, sin].iter().all(|v| repeats_to(p, *v, x));
    covers.extend([straight_id, turned_id, joined_id, negated_id]);
    let fused = Fused::RopeHalves { x, cos, sin };
    is_row.then(|| one(root, covers, fused))?
}

/// What is multiplied with -1.
fn negated_by(p: &mut Planner<'_>, value: ValueId) -> Option<(OpId, ValueId)> {
    let (id, op) = made_by(p, value, "mul")?;
    let minus = constant_arg(p, op, "y")??;
    (minus.f32s()? == [-1.0]).then_some((id, op.value_arg("x")?))
}

/// Whether x has the shape that it has with these angles, which are as long as its rows.
fn repeats_to(p: &Planner<'_>, angles: ValueId, x: ValueId) -> bool {
    let dims = |v: ValueId| p.f.value(v).ty.tensor().map(|t| t.shape.clone());
    let (Some(own), Some(all)) = (dims(angles), dims(x)) else {
        return false;
    };
    let Some(pad) = all.len().checked_sub(own.len()) else {
        return false;
    };
    let last = all.last().and_then(|n| n.known());
    let fits = own.iter().zip(&all[pad..]);
    last.is_some_and(|n| n > 0 && n % 2 == 0)
        && own.last() == all.last()
        && fits.fold(true, |fits, (a, n)| {
            fits && (a == n || a.known() == Some(1))
        })
}

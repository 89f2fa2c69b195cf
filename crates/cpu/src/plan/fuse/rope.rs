//! Rotary embeddings of heads [batch, heads, tokens, head_dim].

use thane_kernels::rope::{RopeShape, RopeStyle};

use super::*;

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new("rope_half", ROTATION, |p, found| {
        let (found, rope) = half(p, found)?;
        one(found, rope)
    }),
    Fusion::new("rope_interleaved", INTERLEAVED, |p, found| {
        let (found, rope) = interleaved(p, found)?;
        one(found, rope)
    }),
];

/// `(a cos - b sin, b cos + a sin)`, joined along the last axis by the op.
pub(super) const ROTATION: Pattern = pattern!(joined @ concat(
    sub(mul(a, cos), mul(b, sin)),
    add(mul(b, cos), mul(a, sin))
));

/// The same of `reshape(x, [.., head_dim / 2, 2])` split and squeezed.
const INTERLEAVED: Pattern = pattern!(
    reshape(
        joined @ stack(
            sub(mul(a @ squeeze(left), cos), mul(b @ squeeze(right), sin)),
            add(mul(b, cos), mul(a, sin)),
        ),
    )
);

/// Pairs of x rotated.
#[derive(Debug)]
pub(super) struct Rope {
    pub x: ValueId,
    /// Cosines and sines.
    pub angles: [ValueId; 2],
    pub style: RopeStyle,
}

/// The rotation that ends in an op, and the ops that it stands for.
pub(super) fn rope(p: &Planner<'_>, root: OpId) -> Option<(Vec<OpId>, Rope)> {
    let found = OneOf(&[ROTATION, INTERLEAVED]).at(p, root)?;
    let (found, rope) = match p.op(root).def.name {
        "concat" => half(p, found),
        _ => interleaved(p, found),
    }?;
    Some((found.ops, rope))
}

/// The parts of x, cosines and sines of a rotation along the last axis.
pub(super) fn rotation(p: &Planner<'_>, found: &Match<'_>) -> Option<[ValueId; 4]> {
    joined_last(p, found.op("joined")?)?;
    let values = found.values(["a", "b", "cos", "sin"])?;
    is_float32(p, values[0]).then_some(values)
}

/// What a split along the last axis parts into `a` and `b`, in order, and the split.
fn split(p: &Planner<'_>, a: ValueId, b: ValueId) -> Option<(OpId, ValueId)> {
    let id = p.maker(a).filter(|id| p.op(*id).def.name == "split")?;
    parted(p, [a, b]).map(|(x, ..)| (id, x))
}

/// Whether x is [batch, heads, tokens, head_dim] and cosines are [tokens, head_dim / 2], not one
/// row for all.
fn is_rotary(p: &Planner<'_>, x: ValueId, cos: ValueId) -> bool {
    matches!((&dims(p, x)[..], &dims(p, cos)[..]), ([_, Some(_), tokens, Some(d)], [rows, Some(half)])
        if *d == 2 * half && (*rows != Some(1) || *tokens == Some(1)))
}

fn half<'a>(p: &Planner<'_>, mut found: Match<'a>) -> Option<(Match<'a>, Rope)> {
    let [a, b, cos, sin] = rotation(p, &found)?;
    let (split_id, x) = split(p, a, b).filter(|(_, x)| is_rotary(p, *x, cos))?;
    found.ops.push(split_id);
    let (angles, style) = ([cos, sin], RopeStyle::Half);
    Some((found, Rope { x, angles, style }))
}

fn interleaved<'a>(p: &Planner<'_>, mut found: Match<'a>) -> Option<(Match<'a>, Rope)> {
    let [_, _, cos, sin] = rotation(p, &found)?;
    let (split_id, joined) = split(p, found.value("left")?, found.value("right")?)?;
    let pairs = pattern!(reshape(x)).made(p, joined)?;
    let x = pairs.value("x").filter(|x| is_rotary(p, *x, cos))?;
    let (whole, paired) = (dims(p, x), dims(p, joined));
    let half = whole.last().copied().flatten().map(|d| d / 2);
    // One axis, the tokens, may be unknown, and a symbol of its own after each reshape: it is the
    // same, for the elements are.
    let same = dims(p, p.op(found.root).results[0]) == whole
        && whole.iter().filter(|d| d.is_none()).count() <= 1;
    let is_paired =
        paired.len() == 5 && paired[..2] == whole[..2] && paired[3..] == [half, Some(2)];
    found.ops.extend([pairs.root, split_id]);
    let (angles, style) = ([cos, sin], RopeStyle::Interleaved);
    (same && is_paired).then_some((found, Rope { x, angles, style }))
}

impl Kernel for Rope {
    fn facts(&self) -> Facts<'_> {
        Facts::new("rope", [self.x].into_iter().chain(self.angles))
    }

    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        let mut x = frame.take(step, self.x)?;
        let &[batch, n_heads, n_tokens, head_dim] = x.shape.as_slice() else {
            return Err("x is not of rank 4".to_owned());
        };
        let shape = RopeShape {
            n_heads: batch * n_heads,
            n_tokens,
            rotary_dim: head_dim,
            head_stride: n_tokens * head_dim,
            token_stride: head_dim,
        };
        let values = floats_mut(&mut x, frame.pool)?;
        frame.rotate(values, shape, self.angles, self.style)?;
        Ok(vec![x])
    }
}

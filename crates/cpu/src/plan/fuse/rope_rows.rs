//! Rotary embeddings of rows of heads [.., tokens, heads, head_dim].

use super::rope::{ROTATION, rotation};
use super::*;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new("rope_rows", ROTATION, rope_rows)];

/// Pairs of x rotated, the even and odd elements of each head or its halves; they become its
/// halves.
#[derive(Debug)]
struct RopeRows {
    x: ValueId,
    /// Cosines and sines.
    angles: [ValueId; 2],
    is_interleaved: bool,
}

/// `concat(a cos - b sin, b cos + a sin)`, where a and b are the even and odd elements of each
/// head, or its halves, and cosines are [.., tokens, 1, head_dim / 2].
fn rope_rows(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    let [a, b, cos, sin] = rotation(p, &found)?;
    let (a_id, b_id) = (p.maker(a)?, p.maker(b)?);
    let (x, is_interleaved) = pairs(p, p.f.op(a_id), p.f.op(b_id))?;
    let (shape, of_cos) = (p.known_shape(x)?, p.known_shape(cos)?);
    let [outer @ .., n_heads, head_dim] = shape.as_slice() else {
        return None;
    };
    let half = head_dim / 2;
    let n_tokens: usize = outer.iter().product();
    // One row of angles for each token, which all of its heads share; a single one serves all.
    let [cos_outer @ .., 1, last] = of_cos.as_slice() else {
        return None;
    };
    let is_row = cos_outer.len() <= outer.len()
        && outer.ends_with(cos_outer)
        && *last == half
        && of_cos.iter().product::<usize>() == n_tokens * half
        && p.known_shape(sin)? == of_cos
        && half > 0
        && *n_heads > 0;
    let rope = RopeRows {
        x,
        angles: [cos, sin],
        is_interleaved,
    };
    found.ops.extend([a_id, b_id]);
    is_row.then(|| one(found, rope))?
}

/// What two slices take the even and odd elements, or the halves, of the last axis of.
fn pairs(p: &Planner<'_>, a: &Op, b: &Op) -> Option<(ValueId, bool)> {
    let x = a.value_arg("x").filter(|x| b.value_arg("x") == Some(*x))?;
    let last = *p.known_shape(x)?.last()?;
    let ranges = [last_range(p, a)?, last_range(p, b)?];
    let taken = ranges.map(|range| (range.start, range.step, range.len()));
    let half = last / 2;
    let is_interleaved = taken == [(0, 2, half), (1, 2, half)];
    let is_halves = taken == [(0, 1, half), (half, 1, half)];
    (last % 2 == 0 && (is_interleaved || is_halves)).then_some((x, is_interleaved))
}

impl Kernel for RopeRows {
    fn facts(&self) -> Facts<'_> {
        Facts::new("rope", [self.x].into_iter().chain(self.angles))
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let x = frame.get(self.x)?.clone();
        let [cos, sin] = self.angles.map(|v| frame.get(v).cloned());
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
        let (mut out, n) = frame.pool.take_checked(&x.shape)?;
        let token_len = n_heads * head_dim;
        frame
            .context
            .pool()
            .run_chunks(&mut out[..n], token_len, |token, out| {
                let (cos, sin) = (&cos[token * half..][..half], &sin[token * half..][..half]);
                let heads = values[token * token_len..].chunks_exact(head_dim);
                for (x, out) in heads.zip(out.chunks_exact_mut(head_dim)) {
                    turn(x, [cos, sin], self.is_interleaved, out);
                }
            });
        Ok(vec![Tensor::fp32(x.shape, out)])
    }
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

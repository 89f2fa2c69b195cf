//! Attention over caches from the rows of products to rows of the same kind: what lies between is
//! done on each frame's own part of them.

use thane_kernels::Context;
use thane_kernels::norm::rms_norm;
use thane_kernels::rope::{RopeShape, RopeStyle};

use super::attend::exchanged;
use super::attention::{Append, Attending, Attention, attention};
use super::norm::rms;
use super::rope::rope;
use super::*;
use crate::exec::{Cached, Parts, Rows};

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "rows_attention",
    pattern!(
        reshape(
            turned @ transpose(
                by_head @ reshape(
                    attention @ scaled_dot_product_attention(query @ reshape(queries), key, value),
                ),
            ),
        )
    ),
    rows_attention,
)];

/// Heads among rows [1, tokens, heads * head_dim], and what becomes of each before it attends or is
/// kept.
#[derive(Debug)]
struct Heads {
    x: ValueId,
    /// The weight and the epsilon of an RMS norm.
    norm: Option<(Tensor, f32)>,
    /// Cosines and sines, and the pairs that they rotate.
    angles: Option<([ValueId; 2], RopeStyle)>,
}

/// Attention of rows [1, tokens, heads * head_dim]: keys and values are written to states from
/// `begin[2]` on, and queries attend over the first `end[2]` entries of these.
#[derive(Debug)]
struct RowsAttention {
    query: Heads,
    key: Heads,
    value: ValueId,
    /// Heads of the queries.
    n_heads: usize,
    begin: ValueId,
    cached: Cached,
}

fn rows_attention(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    exchanged(p, found.maker("turned")?)?;
    let [by_head, mut queries] = found.values(["by_head", "queries"])?;
    let Attending {
        covers,
        attention: Attention { query, mut cached },
        appends: [(k_id, k_covers, k_append), (v_id, v_covers, v_append)],
    } = attention(p, &found)?;
    let Append {
        update: k, begin, ..
    } = k_append;
    let v = v_append.update;
    found.ops.extend([k_id, v_id]);
    if let Some(scaled) = pattern!(mul(x, #factor)).made(p, queries)
        && let Some(factor) = number(p, &scaled, "factor", 4)
    {
        found.ops.push(scaled.root);
        queries = scaled.value("x")?;
        cached.scale *= factor;
    }
    // Rows of a key head are those of the queries that share it, head after head; the result is
    // split as the queries were.
    let ([kv_heads, head_dim], [n_heads, _]) = (of_heads(p, k)?, of_heads(p, queries)?);
    let (width, result) = (n_heads.checked_mul(head_dim), p.op(found.root).results[0]);
    let has = |all: [ValueId; 2], sizes| all.iter().all(|v| of_heads(p, *v) == Some(sizes));
    let fits = has([query, v], [kv_heads, head_dim])
        && has([queries, by_head], [n_heads, head_dim])
        && kv_heads > 0
        && n_heads.is_multiple_of(kv_heads)
        && matches!(dims(p, result)[..], [Some(1), _, Some(n)] if Some(n) == width)
        && p.state_type(cached.states[0])
            .known_shape()
            .is_some_and(|s| s[1] == kv_heads && s[3] == head_dim)
        && v_append.begin == begin;
    if !fits {
        return None;
    }
    let ((query, q_own), (key, k_own), (value, v_own)) =
        (heads(p, queries)?, heads(p, k)?, heads(p, v)?);
    let is_plain = value.norm.is_none() && value.angles.is_none();
    // Queries and keys are changed where they are.
    if !is_plain || query.x == key.x || query.x == value.x || key.x == value.x {
        return None;
    }
    let given = [covers, k_covers, v_covers, q_own, k_own, v_own];
    found.ops.extend(given.concat());
    let rows = RowsAttention {
        query,
        key,
        value: value.x,
        n_heads,
        begin,
        cached,
    };
    one(found, rows)
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
    while let Some(id) = p.maker(x) {
        let turned = rope(p, id).filter(|_| angles.is_none() && norm.is_none());
        let inner = if let Some((inner, rope)) = turned {
            (x, angles) = (rope.x, Some((rope.angles, rope.style)));
            inner
        } else if let Some((inner, rms)) = rms(p, id).filter(|_| norm.is_none()) {
            (x, norm) = (rms.x, Some((rms.weight, rms.epsilon)));
            inner
        } else {
            break;
        };
        p.is_closed(id, &inner).then_some(())?;
        covers.push(id);
        covers.extend(inner);
    }
    let found = pattern!(transpose(split @ reshape(row))).made(p, x)?;
    exchanged(p, found.root)?;
    let [split, row] = found.values(["split", "row"])?;
    let is_row = match (&dims(p, row)[..], &dims(p, split)[..]) {
        (&[Some(1), _, Some(width)], &[Some(1), _, Some(n), Some(dim)]) => {
            n.checked_mul(dim) == Some(width)
        }
        _ => false,
    };
    covers.extend(found.ops);
    let heads = Heads {
        x: row,
        norm,
        angles,
    };
    (is_row && is_float32(p, row)).then_some((heads, covers))
}

impl Kernel for RowsAttention {
    fn facts(&self) -> Facts<'_> {
        Facts {
            batching: Batching::Parts(self),
            writes_states: true,
            ..Facts::new(
                "rope, append, attention",
                self.rows().into_iter().chain(self.own()),
            )
        }
    }

    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        let (mut q, mut k) = (
            frame.take(step, self.query.x)?,
            frame.take(step, self.key.x)?,
        );
        let v = frame.get(self.value)?.clone();
        let shape = q.shape.clone();
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let rows = Rows {
            q: floats_mut(&mut q, frame.pool)?,
            k: floats_mut(&mut k, frame.pool)?,
            v: floats(&v)?,
            out: &mut out[..n],
        };
        self.run_part(frame, rows)?;
        frame.pool.give(q);
        frame.pool.give(k);
        Ok(vec![Tensor::fp32(shape, out)])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        self.part_work(frame, frame.n_elements(self.query.x))
    }
}

impl Parts for RowsAttention {
    fn rows(&self) -> [ValueId; 3] {
        [self.query.x, self.key.x, self.value]
    }

    fn own(&self) -> Vec<ValueId> {
        let heads = [&self.query, &self.key].into_iter();
        let angles = heads
            .filter_map(|heads| heads.angles)
            .flat_map(|(angles, _)| angles);
        let bounds = [self.begin, self.cached.end];
        angles.chain(bounds).chain(self.cached.mask).collect()
    }

    /// Keeps keys and values, and attends over all that are kept.
    fn run_part(&self, frame: &mut Frame<'_>, rows: Rows<'_>) -> Result<(), Fault> {
        let RowsAttention {
            query,
            key,
            begin,
            cached,
            ..
        } = self;
        let &[1, n_kv_heads, _, head_dim] = frame.states[cached.states[0]].shape.as_slice() else {
            return Err("the state is not [1, ..]".to_owned());
        };
        let Rows { q, k, v, out } = rows;
        let n_heads = self.n_heads;
        let n_tokens = q.len() / (n_heads * head_dim).max(1);
        let (bounds, n_k) = ([*begin, cached.end], k.len());
        let own = key.finish(frame, k, [n_kv_heads, head_dim])?;
        frame.append_rows(
            cached.states[0],
            &own.as_deref().unwrap_or(k)[..n_k],
            bounds,
        )?;
        frame.append_rows(cached.states[1], v, bounds)?;
        own.into_iter().for_each(|own| frame.pool.give_f32(own));
        let own = query.finish(frame, q, [n_heads, head_dim])?;
        let q = own.as_deref().unwrap_or(q);
        let shape = [
            1,
            n_kv_heads,
            n_heads / n_kv_heads.max(1) * n_tokens,
            head_dim,
        ];
        if n_tokens <= 1 {
            // One token's heads lie as by head.
            frame.attention_to((&shape, &q[..out.len()]), *cached, out)?;
        } else {
            let (mut by_head, mut result) =
                (frame.pool.take(out.len())?, frame.pool.take(out.len())?);
            exchange(
                frame.context,
                &q[..out.len()],
                [n_tokens, n_heads, head_dim],
                &mut by_head,
            );
            frame.attention_to(
                (&shape, &by_head[..out.len()]),
                *cached,
                &mut result[..out.len()],
            )?;
            exchange(frame.context, &result, [n_heads, n_tokens, head_dim], out);
            frame.pool.give_f32(by_head);
            frame.pool.give_f32(result);
        }
        own.into_iter().for_each(|own| frame.pool.give_f32(own));
        Ok(())
    }

    fn part_work(&self, frame: &Frame<'_>, query_len: f64) -> Work {
        frame.attention_work(&self.cached, query_len)
    }
}

impl Heads {
    /// Normalizes and rotates heads [tokens, heads, head_dim], in place where no buffer of their
    /// own is given back.
    fn finish(
        &self,
        frame: &mut Frame<'_>,
        x: &mut [f32],
        [n_heads, head_dim]: [usize; 2],
    ) -> Result<Option<Floats>, Fault> {
        let n = x.len();
        let mut own = None;
        if let Some((weight, epsilon)) = &self.norm {
            let mut normed = frame.pool.take(n)?;
            let (weight, width) = (weight.f32s(), weight.len());
            rms_norm(frame.context, x, weight, *epsilon, width, &mut normed[..n]);
            own = Some(normed);
        }
        if let Some((angles, style)) = self.angles {
            let token_stride = n_heads * head_dim;
            let n_tokens = n / token_stride.max(1);
            let shape = RopeShape {
                n_heads,
                n_tokens,
                rotary_dim: head_dim,
                head_stride: head_dim,
                token_stride,
            };
            frame.rotate(
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

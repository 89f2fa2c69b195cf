//! Attention over caches: keys and values written to states, and attention over what these hold so
//! far.

use super::*;
use crate::exec::Cached;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new("attention", ATTENTION, |p, found| {
    let Attending {
        covers,
        attention,
        appends,
    } = attention(p, &found)?;
    let attention = Found::new(found.root, covers, attention);
    let appends = appends.map(|(root, covers, append)| Found::new(root, covers, append));
    Some([attention].into_iter().chain(appends).collect())
})];

pub(super) const ATTENTION: Pattern =
    pattern!(attention @ scaled_dot_product_attention(query, key, value));

/// A cache that is read, written, and taken from its beginning.
const KEPT: Pattern = pattern!(slice @ slice_by_index(
    update @ coreml_update_state(
        state,
        write @ slice_update(read @ read_state(state), values, begin, end)
    ),
    _,
    end
));

/// Attention over the first `end[2]` entries of two states.
#[derive(Debug)]
pub(super) struct Attention {
    pub query: ValueId,
    pub cached: Cached,
}

/// A state [1, heads, context, head_dim] written from `begin[2]` on.
#[derive(Debug)]
pub(super) struct Append {
    pub state: usize,
    pub update: ValueId,
    pub begin: ValueId,
    pub end: ValueId,
}

/// Attention with the updates of its caches: each with its op, the others that it stands for, and
/// what it does.
pub(super) struct Attending {
    pub covers: Vec<OpId>,
    pub attention: Attention,
    pub appends: [(OpId, Vec<OpId>, Append); 2],
}

/// A cache on its way from its update to attention: the update, and the ops behind it.
struct Remembered {
    append: (OpId, Vec<OpId>, Append),
    covers: Vec<OpId>,
}

/// Whether the masks of a slice leave only the third of four axes to `begin` and `end`.
fn masks(p: &Planner<'_>, op: &Op, begin: &[i64], end: &[i64]) -> bool {
    let is = |name: &str, flags: &[i64]| ints(p, op, name).is_some_and(|v| v == flags);
    is("begin_mask", begin)
        && is("end_mask", end)
        && op.arg("stride").is_none()
        && op.arg("squeeze_mask").is_none()
}

fn remembered(p: &Planner<'_>, value: ValueId) -> Option<Remembered> {
    let found = OneOf(&[pattern!(cast((KEPT))), KEPT]).made(p, value)?;
    let [input, begin, end, mut update] = found.values(["state", "begin", "end", "values"])?;
    let of = |name: &str| found.maker(name);
    let (update_id, write_id, read_id) = (of("update")?, of("write")?, of("read")?);
    let tokens = [1, 1, 0, 1];
    let plain = masks(p, found.op("slice")?, &[1; 4], &tokens)
        && masks(p, found.op("write")?, &tokens, &tokens);
    // Read, written and sliced here only, so that nobody sees the state between.
    let ty = p.f.value(input).ty.tensor_or_state()?;
    let alone = p.users(input).len() == 2
        && p.users(found.value("update")?) == [of("slice")?]
        && ty.rank() == 4
        && ty.shape[0].known() == Some(1);
    if !plain || !alone {
        return None;
    }
    let mut appended = vec![write_id, read_id];
    // A cache rounds what it is given; where nothing else needs the rounded numbers, they are not
    // kept.
    let narrowed = narrowed(p, update).filter(|(id, _)| p.is_closed(write_id, &[*id]));
    if let Some((id, x)) = narrowed {
        appended.push(id);
        update = x;
    }
    let append = Append {
        state: p.state(input)?,
        update,
        begin,
        end,
    };
    let mut covers = found.ops;
    covers.retain(|op| *op != update_id && !appended.contains(op));
    Some(Remembered {
        append: (update_id, appended, append),
        covers,
    })
}

/// The attention over caches that is named so.
pub(super) fn attention(p: &Planner<'_>, found: &Match<'_>) -> Option<Attending> {
    let [query, key, value] = found.values(["query", "key", "value"])?;
    let (key, value) = (remembered(p, key)?, remembered(p, value)?);
    let mask = found.op("attention")?.value_arg("attn_mask");
    let mask_fits = mask.is_none_or(|m| {
        is_float32(p, m) && p.f.value(m).ty.tensor().is_some_and(|t| t.rank() == 2)
    });
    let appends = [key.append, value.append];
    let states = appends.each_ref().map(|(.., append)| append.state);
    let ends = appends.each_ref().map(|(.., append)| append.end);
    let types = states.map(|s| p.state_type(s));
    if ends[0] != ends[1]
        || !mask_fits
        || !is_float32(p, query)
        || types[0] != types[1]
        || p.f.value(query).ty.tensor()?.rank() != 4
    {
        return None;
    }
    let head_dim = types[0].shape[3].known()?;
    let cached = Cached {
        states,
        mask,
        end: ends[0],
        scale: (head_dim as f32).sqrt().recip(),
    };
    Some(Attending {
        covers: [key.covers, value.covers].concat(),
        attention: Attention { query, cached },
        appends,
    })
}

impl Kernel for Attention {
    fn facts(&self) -> Facts<'_> {
        let Attention { query, cached } = self;
        let reads = [*query, cached.end].into_iter().chain(cached.mask);
        Facts::new("attention", reads)
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let query = frame.get(self.query)?.clone();
        let (mut out, n) = frame.pool.take_checked(&query.shape)?;
        let rows = (query.shape.as_slice(), floats(&query)?);
        frame.attention_to(rows, self.cached, &mut out[..n])?;
        let shape = query.shape;
        Ok(vec![Tensor::fp32(shape, out)])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        frame.attention_work(&self.cached, frame.n_elements(self.query))
    }
}

impl Kernel for Append {
    fn facts(&self) -> Facts<'_> {
        Facts {
            writes_states: true,
            gives: false,
            ..Facts::new("append to cache", [self.update, self.begin, self.end])
        }
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        frame.append(self.state, self.update, [self.begin, self.end])?;
        Ok(Vec::new())
    }
}

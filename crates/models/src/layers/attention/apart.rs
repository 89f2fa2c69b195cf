//! Products in functions of fixed length, where the cache and the tokens of the call are apart: at
//! once, in tiles of the cache, and of heads that see different parts of it.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::layout::HeadLayout;
use super::segments::Segment;
use super::{Apart, Attention, StreamingHeads};
use crate::graph::{Graph, ValueResult};

impl Attention {
    /// What queries [1, kv_heads, group * tokens, head_dim] see of the cache and of the keys and
    /// values of the call's tokens, as features [1, heads * head_dim, 1, tokens].
    pub(super) fn attend_apart(
        &self,
        g: &mut Graph,
        q: ValueId,
        own: [ValueId; 2],
        (past, mask): (Apart<'_>, ValueId),
    ) -> ValueResult {
        let n = g.len_along(q, 2) / self.group();
        let tile = past.tile.filter(|tile| *tile < past.context);
        let layout = match past.in_lanes {
            true => HeadLayout::lanes(self, n),
            false => HeadLayout::fixed(self, n, tile.is_some()),
        };
        let segments = match tile {
            None => vec![Segment::new(&[[past.keys, past.values], own], mask)],
            Some(tile) => tiles(g, own, (past, tile), mask)?,
        };
        layout.attend(g, q, &segments)
    }

    /// Like [`Self::attend_apart`], for heads that see all tokens, and heads that see some, each
    /// with a cache of its own. Their results go back to the order of the heads.
    pub(super) fn attend_by_heads(
        &self,
        g: &mut Graph,
        q: ValueId,
        [k, v]: [ValueId; 2],
        (past, mask): (Apart<'_>, ValueId),
        streaming: StreamingHeads<'_>,
    ) -> ValueResult {
        let (group, retrieval) = (self.group(), streaming.retrieval);
        let q = by_kind(g, q, retrieval)?;
        let (k, v) = (by_kind(g, k, retrieval)?, by_kind(g, v, retrieval)?);
        let n_full = retrieval.iter().filter(|keeps_all| **keeps_all).count();
        let kept = Apart {
            keys: streaming.keys,
            values: streaming.values,
            context: streaming.context,
            ..past
        };
        let kinds = [
            (n_full, past, mask),
            (retrieval.len() - n_full, kept, streaming.mask),
        ];
        let mut attended = Vec::new();
        for (i, (n_kv_heads, past, mask)) in kinds.into_iter().enumerate() {
            let heads = Self {
                n_heads: n_kv_heads * group,
                n_kv_heads,
                ..*self
            };
            let own = [k[i], v[i]];
            past.new.borrow_mut().push(own);
            let out = heads.attend_apart(g, q[i], own, (past, mask))?;
            let sizes = vec![(group * self.head_dim) as i32; n_kv_heads];
            attended.push(g.split_sizes(out, &sizes, 1)?.into_iter());
        }
        let next = |keeps_all: &bool| attended[usize::from(!keeps_all)].next();
        let in_order: Vec<ValueId> = retrieval.iter().filter_map(next).collect();
        g.join("concat", &in_order, 1)
    }
}

/// A segment for every `tile` rows of the cache, and one for the tokens of the call.
fn tiles(
    g: &mut Graph,
    own: [ValueId; 2],
    (past, tile): (Apart<'_>, usize),
    mask: ValueId,
) -> Result<Vec<Segment>, BuildError> {
    let starts = (0..past.context).step_by(tile);
    let sizes = starts.map(|start| tile.min(past.context - start) as i32);
    let mut sizes: Vec<i32> = sizes.collect();
    let keys = g.split_sizes(past.keys, &sizes, 2)?;
    let values = g.split_sizes(past.values, &sizes, 2)?;
    sizes.push(g.len_along(own[0], 2) as i32);
    let masks = g.split_sizes(mask, &sizes, -1)?;
    let cached = keys.into_iter().zip(values).map(|(k, v)| [k, v]);
    let parts = cached.chain([own]).zip(masks);
    let segments = parts.map(|(part, mask)| Segment::new(&[part], mask));
    Ok(segments.collect())
}

/// The key heads of `x` [1, kv_heads, ..] that see all tokens, and those that do not.
fn by_kind(g: &mut Graph, x: ValueId, retrieval: &[bool]) -> Result<[ValueId; 2], BuildError> {
    let runs: Vec<&[bool]> = retrieval.chunk_by(|a, b| a == b).collect();
    let sizes: Vec<i32> = runs.iter().map(|run| run.len() as i32).collect();
    let parts = g.split_sizes(x, &sizes, 1)?;
    let mut of_kind = |keeps_all: bool| {
        let all = runs.iter().zip(&parts);
        let all = all.filter(|(run, _)| run[0] == keeps_all);
        let chosen: Vec<ValueId> = all.map(|(_, part)| *part).collect();
        match chosen.as_slice() {
            [one] => Ok(*one),
            several => g.join("concat", several, 1),
        }
    };
    Ok([of_kind(true)?, of_kind(false)?])
}

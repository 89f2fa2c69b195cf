//! The KV cache of functions of fixed length: one state, or an input for the keys and one for the
//! values of each layer, with the masks that say which of their rows a token sees.

use thane_calls::CacheForm;
use thane_mil::program::ValueId;
use thane_mil::types::TensorType;

use super::Mask;
use super::fixed::FixedIo;
use super::function::{Streams, numbered};
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{
    Apart, Attention, AttentionInputs, Past, Remembered, StreamingHeads,
};
use crate::layers::rope::Rotary;

impl FixedIo {
    /// The contents of the cache before the call. The state is read after the embedding lookup,
    /// whose integers a host may compute elsewhere, so that the ops on fp16 behind it are one
    /// piece.
    pub(super) fn past(&self, g: &mut Graph, state: ValueId) -> ValueResult {
        if let Some(past) = self.past.get() {
            return Ok(past);
        }
        let past = g.op("read_state", "past", [("input", state)])?;
        self.past.set(Some(past));
        Ok(past)
    }

    /// The inputs of the attention of layer `layer`.
    pub(super) fn inputs_of_attention<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        attention: &Attention,
        rotary: Option<&'r Rotary>,
        (mask, shares, shared): (Mask, Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError> {
        let f = &self.function;
        let (mask, heads) = match f.streams(shares.unwrap_or(layer), mask) {
            Streams::No => (mask, None),
            Streams::All => (Mask::Streaming, None),
            Streams::AllBut(heads) => (mask, Some(heads)),
        };
        if heads.is_some() && shares.is_some() {
            return Err(ModelError::SharedHeads { layer });
        }
        let counted = |n: usize| Attention {
            n_kv_heads: n,
            ..*attention
        };
        let keep_all = heads.iter().copied().flatten();
        let n_streams = keep_all.filter(|keeps_all| !**keeps_all).count();
        let full = counted(attention.n_kv_heads - n_streams);
        let past = match (shares, shared) {
            (Some(_), Some(shared)) => shared,
            (Some(from), None) => self.of_earlier_chunk(g, from, (&full, mask))?,
            (None, _) => self.own_past(g, layer, (&full, mask))?,
        };
        let mask_input = self.mask(g, mask);
        let streaming = match heads {
            None => None,
            Some(retrieval) => {
                let kept = self.own_past(g, layer, (&counted(n_streams), Mask::Streaming))?;
                Some(StreamingHeads {
                    retrieval,
                    keys: kept.keys,
                    values: kept.values,
                    context: f.rows(Mask::Streaming),
                    mask: self.mask(g, Mask::Streaming),
                })
            }
        };
        let past = Past::Apart(Apart {
            keys: past.keys,
            values: past.values,
            context: f.rows(mask),
            in_lanes: f.in_lanes,
            shared: past.new,
            new: &self.new,
            streaming,
            tile: f.form.attention.tile,
        });
        Ok(AttentionInputs {
            rotary,
            mask: mask_input,
            past: Some(past),
            last: None,
        })
    }

    /// The mask of a layer. A chunk has the masks that its layers need.
    fn mask(&self, g: &mut Graph, mask: Mask) -> ValueId {
        let f = &self.function;
        let (name, cell) = match (mask, f.window) {
            (Mask::Sliding, Some(_)) => ("sliding_mask", &self.sliding),
            (Mask::Streaming, _) => ("streaming_mask", &self.streaming),
            _ => ("full_mask", &self.full),
        };
        cell.get().unwrap_or_else(|| {
            let seen = match f.in_lanes {
                true => [1, f.tokens, 1, f.rows(mask) + 1],
                false => [1, 1, f.tokens, f.rows(mask) + f.tokens],
            };
            let input = g.input(name, TensorType::new(g.spelling().float, seen));
            cell.set(Some(input));
            input
        })
    }

    /// The cache of a layer with keys and values of its own.
    fn own_past(
        &self,
        g: &mut Graph,
        layer: usize,
        (attention, mask): (&Attention, Mask),
    ) -> Result<Remembered, ModelError> {
        let slot = self.own.borrow().len();
        self.own.borrow_mut().push((layer, mask));
        let state = *self.state.borrow();
        let [keys, values] = match state {
            None => self.cache_inputs(g, layer, (attention, mask)),
            Some(state) => {
                let past = self.past(g, state)?;
                let mut part = |at: usize| g.element("past", past, 0, at);
                [part(2 * slot)?, part(2 * slot + 1)?]
            }
        };
        let new = None;
        Ok(Remembered { keys, values, new })
    }

    /// Declares the inputs that hold the keys and values of a layer before the call.
    fn cache_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        (attention, mask): (&Attention, Mask),
    ) -> [ValueId; 2] {
        let rows = self.function.rows(mask);
        let shape = [
            1,
            self.function.lanes() * attention.n_kv_heads,
            rows,
            attention.head_dim,
        ];
        ["k", "v"].map(|part| {
            let ty = TensorType::new(g.spelling().float, shape);
            g.input(&format!("{part}_cache_{}", numbered(layer, mask)), ty)
        })
    }

    /// The keys and values of layer `layer`, which an earlier chunk computes.
    fn of_earlier_chunk(
        &self,
        g: &mut Graph,
        layer: usize,
        (attention, mask): (&Attention, Mask),
    ) -> Result<Remembered, ModelError> {
        if let Some(shared) = self.shared.borrow().get(&layer) {
            return Ok(*shared);
        }
        if self.function.form.cache == CacheForm::State {
            return Err(ModelError::SharedAcrossChunks { layer });
        }
        let [keys, values] = self.cache_inputs(g, layer, (attention, mask));
        let lanes = self.function.lanes();
        let tokens = self.function.tokens / lanes;
        let shape = [1, lanes * attention.n_kv_heads, tokens, attention.head_dim];
        let new = ["k", "v"].map(|part| {
            let ty = TensorType::new(g.spelling().float, shape);
            g.input(&format!("given_{part}_{layer}"), ty)
        });
        let new = Some(new);
        let shared = Remembered { keys, values, new };
        self.shared.borrow_mut().insert(layer, shared);
        Ok(shared)
    }
}

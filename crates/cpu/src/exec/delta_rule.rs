//! Running delta nets: the convolution, and the delta rule for all tokens of a call.

use std::sync::Arc;

use thane_kernels::delta::{DeltaRows, DeltaShape, delta_rule};
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::ops::Fault;
use crate::step::{DeltaRule, Step};
use crate::tensor::{Buffer, Tensor, floats, floats_mut};

/// Channels that a task convolves.
const CHANNELS: usize = 64;

impl Frame<'_> {
    /// The index behind the last token, the memories, and the outputs.
    pub fn delta_rule(&mut self, step: &Step, rule: &DeltaRule) -> Result<Vec<Tensor>, Fault> {
        let [query, key, value, decay, beta] =
            [rule.query, rule.key, rule.value, rule.decay, rule.beta].map(|v| self.get(v).cloned());
        let (query, key, value, decay, beta) = (query?, key?, value?, decay?, beta?);
        let n_tokens = self.n_tokens(rule)?;
        let mut memory = self.take(step, rule.memory)?;
        let &[_, n_heads, key_len, value_len] = memory.shape.as_slice() else {
            return Err("the memories have no four axes".to_owned());
        };
        let shape = DeltaShape {
            n_tokens,
            n_heads,
            key_len,
            value_len,
        };
        let part = |t: &Tensor, len: usize| -> Result<usize, Fault> {
            let n = n_tokens * n_heads * len;
            if floats(t)?.len() < n {
                return Err(format!(
                    "{:?} has no row for each of {n_tokens} tokens",
                    t.shape
                ));
            }
            Ok(n)
        };
        let rows = DeltaRows {
            query: &floats(&query)?[..part(&query, key_len)?],
            key: &floats(&key)?[..part(&key, key_len)?],
            value: &floats(&value)?[..part(&value, value_len)?],
            decay: &floats(&decay)?[..part(&decay, 1)?],
            beta: &floats(&beta)?[..part(&beta, 1)?],
        };
        let (mut heads, n) = self.pool.take_checked(&[n_heads, shape.head_len()])?;
        let len = key_len * value_len;
        let own = heads[..n].chunks_exact_mut(shape.head_len().max(1));
        for (head, memory) in own.zip(floats(&memory)?.chunks_exact(len.max(1))) {
            head[..len].copy_from_slice(memory);
        }
        delta_rule(self.context, shape, rows, &mut heads[..n]);
        let mut outputs = self.take(step, rule.outputs)?;
        part(&outputs, value_len)?;
        let (all, out) = (
            floats_mut(&mut memory, self.pool)?,
            floats_mut(&mut outputs, self.pool)?,
        );
        for (i, head) in heads[..n].chunks_exact(shape.head_len().max(1)).enumerate() {
            all[i * len..][..len].copy_from_slice(&head[..len]);
            for (token, row) in head[len..].chunks_exact(value_len.max(1)).enumerate() {
                out[(token * n_heads + i) * value_len..][..value_len].copy_from_slice(row);
            }
        }
        self.pool.give_f32(heads);
        Ok(vec![self.index(n_tokens)?, memory, outputs])
    }

    /// Each channel of x convolved with its taps.
    pub fn depthwise(&mut self, x: ValueId, taps: &Tensor) -> Result<Tensor, Fault> {
        let x = self.get(x)?.clone();
        let (&[batch, channels, n], &[_, _, n_taps]) = (x.shape.as_slice(), taps.shape.as_slice())
        else {
            return Err("the convolution is not of one axis".to_owned());
        };
        let len = (n + 1).saturating_sub(n_taps);
        if len == 0 || channels * n_taps != taps.len() {
            return Err(format!(
                "{:?} has no place for taps {:?}",
                x.shape, taps.shape
            ));
        }
        let shape = vec![batch, channels, len];
        let (mut out, size) = self.pool.take_checked(&shape)?;
        let (from, taps) = (floats(&x)?, floats(taps)?);
        let pool = self.context.pool();
        pool.run_chunks(&mut out[..size], len * CHANNELS, |task, out| {
            for (i, out) in out.chunks_exact_mut(len).enumerate() {
                let channel = task * CHANNELS + i;
                let own = &taps[channel % channels * n_taps..][..n_taps];
                let row = &from[channel * n..][..n];
                out.fill(0.0);
                for (tap, row) in own.iter().zip(row.windows(len)) {
                    out.iter_mut().zip(row).for_each(|(out, v)| *out += tap * v);
                }
            }
        });
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// How many tokens the loop runs over.
    fn n_tokens(&self, rule: &DeltaRule) -> Result<usize, Fault> {
        let n = self.get(rule.n_tokens)?.to_ints();
        let n = n.and_then(|n| n.first().copied());
        let n = n.ok_or("the end of the loop is no integer")?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    fn index(&mut self, n: usize) -> Result<Tensor, Fault> {
        let mut index = self.pool.tensor(DType::Int32, vec![1])?;
        let Some(Buffer::I32(value)) = Arc::get_mut(&mut index.data) else {
            return Err("a fresh buffer is shared".to_owned());
        };
        value[0] = i32::try_from(n).map_err(|_| "there are too many tokens".to_owned())?;
        Ok(index)
    }
}

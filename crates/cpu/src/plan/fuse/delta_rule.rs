//! Delta nets: a loop over tokens that read and write memories.

use std::sync::Arc;

use thane_kernels::delta::{DeltaRows, DeltaShape, delta_rule as compute};

use super::*;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "delta_rule",
    pattern!(while_loop()),
    delta_rule,
)];

const NEW: Pattern = pattern!(
    add(
        faded @ mul(old, decay),
        mul(column @ transpose(key), mul(sub(value, known @ matmul(key, faded)), beta)),
    )
);
const WRITTEN: Pattern = pattern!(scatter(rows, token, read @ matmul(query, new)));

/// For each of the first tokens: `S = decay * S; S = S + key^T (beta * (value - key S))`, and then
/// `query S` as its row of the outputs.
#[derive(Debug)]
struct DeltaRule {
    /// [tokens, heads, 1, k].
    query: ValueId,
    /// [tokens, heads, 1, k].
    key: ValueId,
    /// [tokens, heads, 1, v].
    value: ValueId,
    /// [tokens, heads, 1, 1].
    decay: ValueId,
    /// [tokens, heads, 1, 1].
    beta: ValueId,
    /// S, [1, heads, k, v].
    memory: ValueId,
    /// What the outputs are where no token gives any, [tokens, heads, 1, v].
    outputs: ValueId,
    /// Number of tokens, int32 [1].
    n_tokens: ValueId,
}

/// A `while_loop` whose variables are the index of a token, the memories S, and the outputs, and
/// whose body is
///
/// ```text
/// faded = S * decay;  S = faded + key^T * ((value - key @ faded) * beta)
/// outputs = scatter(outputs, query @ S)
/// ```
///
/// with the rows of query, key, value, decay and beta that `gather` takes for the token.
fn delta_rule(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (f, op) = (p.f, p.f.op(found.root));
    let Arg::Values(initial) = op.arg("loop_vars")? else {
        return None;
    };
    let (&[first, memory, outputs], &[more, body]) = (initial.as_slice(), op.blocks.as_slice())
    else {
        return None;
    };
    let n_tokens = loop_end(p, more)?;
    let block = f.block(body);
    let (&[token, old, rows], &[next, new, written]) =
        (block.inputs.as_slice(), block.outputs.as_slice())
    else {
        return None;
    };
    let next = pattern!(add(token, #one)).made(p, next)?;
    let one_more = constant(p, &next, "one")?.to_ints()? == [1] && next.value("token")? == token;
    let written = WRITTEN.made(p, written)?;
    let scatter = f.op(written.root);
    let updates = written.values(["rows", "token", "new"])? == [rows, token, new]
        && is_all(p, scatter, "axis", 0)
        && f.literal_arg(scatter, "mode")?.as_str() == Some("update");
    if !one_more || !updates || p.constant(first)?.to_ints()? != [0] {
        return None;
    }
    let new = NEW.made(p, new)?;
    let wired = new.value("old")? == old
        && ints(p, new.op("column")?, "perm")? == [0, 1, 3, 2]
        && transposed(p, new.op("known")?)? == [false; 2]
        && transposed(p, written.op("read")?)? == [false; 2];
    let row = |value: ValueId| {
        let row = pattern!(gather(x, token)).made(p, value)?;
        let plain = takes_rows(p, f.op(row.root));
        (plain && row.value("token")? == token).then(|| row.value("x"))?
    };
    let rule = DeltaRule {
        query: row(written.value("query")?)?,
        key: row(new.value("key")?)?,
        value: row(new.value("value")?)?,
        decay: row(new.value("decay")?)?,
        beta: row(new.value("beta")?)?,
        memory,
        outputs,
        n_tokens,
    };
    (wired && fit(p, &rule)).then(|| one(found, rule))?
}

/// The `n` of a condition `squeeze(less(token, n))`.
fn loop_end(p: &Planner<'_>, more: BlockId) -> Option<ValueId> {
    let block = p.f.block(more);
    let end = pattern!(squeeze(less(token, n))).made(p, *block.outputs.first()?)?;
    (end.value("token") == block.inputs.first().copied()).then(|| end.value("n"))?
}

/// Whether query and key are [tokens, heads, 1, k], values and outputs [tokens, heads, 1, v], decay
/// and beta [tokens, heads, 1, 1], and the memories [1, heads, k, v], all of fp32.
fn fit(p: &Planner<'_>, rule: &DeltaRule) -> bool {
    let row = |v: ValueId, heads: Option<usize>, len: Option<usize>| {
        is_float32(p, v)
            && matches!(dims(p, v)[..], [_, n, one, k] if (n, one, k) == (heads, Some(1), len))
    };
    let [batch, heads, keys, values] = dims(p, rule.memory)[..] else {
        return false;
    };
    let sizes = batch == Some(1) && [heads, keys, values].iter().all(Option::is_some);
    sizes
        && is_float32(p, rule.memory)
        && [rule.query, rule.key].iter().all(|v| row(*v, heads, keys))
        && [rule.value, rule.outputs]
            .iter()
            .all(|v| row(*v, heads, values))
        && [rule.decay, rule.beta]
            .iter()
            .all(|v| row(*v, heads, Some(1)))
}

impl Kernel for DeltaRule {
    fn facts(&self) -> Facts<'_> {
        let rows = [self.query, self.key, self.value, self.decay, self.beta];
        let others = [self.memory, self.outputs, self.n_tokens];
        Facts::new("delta rule", rows.into_iter().chain(others))
    }

    /// The index behind the last token, the memories, and the outputs.
    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        let [query, key, value, decay, beta] =
            [self.query, self.key, self.value, self.decay, self.beta]
                .map(|v| frame.get(v).cloned());
        let (query, key, value, decay, beta) = (query?, key?, value?, decay?, beta?);
        let n_tokens = self.count(frame)?;
        let mut memory = frame.take(step, self.memory)?;
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
        let (mut heads, n) = frame.pool.take_checked(&[n_heads, shape.head_len()])?;
        let len = key_len * value_len;
        let own = heads[..n].chunks_exact_mut(shape.head_len().max(1));
        for (head, memory) in own.zip(floats(&memory)?.chunks_exact(len.max(1))) {
            head[..len].copy_from_slice(memory);
        }
        compute(frame.context, shape, rows, &mut heads[..n]);
        let mut outputs = frame.take(step, self.outputs)?;
        part(&outputs, value_len)?;
        let (all, out) = (
            floats_mut(&mut memory, frame.pool)?,
            floats_mut(&mut outputs, frame.pool)?,
        );
        for (i, head) in heads[..n].chunks_exact(shape.head_len().max(1)).enumerate() {
            all[i * len..][..len].copy_from_slice(&head[..len]);
            for (token, row) in head[len..].chunks_exact(value_len.max(1)).enumerate() {
                out[(token * n_heads + i) * value_len..][..value_len].copy_from_slice(row);
            }
        }
        frame.pool.give_f32(heads);
        Ok(vec![index(frame, n_tokens)?, memory, outputs])
    }

    /// A product with the key, one with the query, and what is written.
    fn work(&self, frame: &Frame<'_>) -> Work {
        let value_len = frame.shape(self.memory).last().map_or(0.0, |n| *n as f64);
        Work::flops(7.0 * frame.n_elements(self.key) * value_len)
    }
}

impl DeltaRule {
    /// How many tokens the loop runs over.
    fn count(&self, frame: &Frame<'_>) -> Result<usize, Fault> {
        let n = frame.get(self.n_tokens)?.to_ints();
        let n = n.and_then(|n| n.first().copied());
        let n = n.ok_or("the end of the loop is no integer")?;
        Ok(usize::try_from(n).unwrap_or(0))
    }
}

fn index(frame: &mut Frame<'_>, n: usize) -> Result<Tensor, Fault> {
    let mut index = frame.pool.tensor(DType::Int32, vec![1])?;
    let Some(Buffer::I32(value)) = Arc::get_mut(&mut index.data) else {
        return Err("a fresh buffer is shared".to_owned());
    };
    value[0] = i32::try_from(n).map_err(|_| "there are too many tokens".to_owned())?;
    Ok(index)
}

//! What a call of a language model takes: the sum over its functions, which run one after another.

use serde::Serialize;
use thane_calls::Call;

use super::{FunctionRow, TargetRow};
use crate::calls::{PricedCall, PricedCalls, Span};

/// The functions that one call of a model runs.
#[derive(Clone, Debug)]
pub struct ChainCall {
    /// Position of the first token that it can take.
    pub from: usize,
    /// The call; its functions are `PACKAGE/FUNCTION` where there are several packages.
    pub call: Call,
}

impl From<Call> for ChainCall {
    fn from(call: Call) -> Self {
        Self { from: 0, call }
    }
}

/// What a call of a chain takes.
#[derive(Clone, Debug, Serialize)]
pub struct ChainRow {
    /// The target.
    pub target: String,
    /// Tokens of a call.
    pub tokens: usize,
    /// Position of the first token that the call can take.
    pub from: usize,
    /// The position after the last token that the call can take.
    pub to: usize,
    /// Package and function, in the order in which they run.
    pub functions: Vec<String>,
    /// Ops that compute.
    pub ops: usize,
    /// How many of them run on the Neural Engine.
    pub ane_ops: usize,
    /// Bytes of weights that the call reads.
    pub weight_bytes: f64,
    /// Expected milliseconds, the sum over the functions.
    pub ms: f64,
    /// Sum of the low bounds.
    pub low_ms: f64,
    /// Sum of the high bounds.
    pub high_ms: f64,
    /// Tokens in a second.
    pub tokens_per_second: f64,
}

/// The rows of calls on a target. A call has no row if one of its functions is not in the report.
pub fn rows(target: &TargetRow, calls: &[ChainCall], priced: &PricedCalls) -> Vec<ChainRow> {
    let rows = calls.iter().filter_map(|chain| {
        let price = priced.calls.iter().find(|price| price.call == chain.call)?;
        Some(row(target, chain, price))
    });
    rows.collect()
}

fn row(target: &TargetRow, chain: &ChainCall, price: &PricedCall) -> ChainRow {
    let call = &chain.call;
    let weights = |f: &FunctionRow| match call.functions.contains(&f.name) {
        true => f.latency.weight_bytes,
        false => 0.0,
    };
    let Span {
        ms,
        low_ms,
        high_ms,
    } = price.time;
    ChainRow {
        target: target.target.clone(),
        tokens: call.tokens,
        from: chain.from,
        to: call.context,
        functions: call.functions.clone(),
        ops: price.ops,
        ane_ops: price.ane_ops,
        weight_bytes: target.functions.iter().map(weights).sum(),
        ms,
        low_ms,
        high_ms,
        tokens_per_second: price.tokens_per_second(),
    }
}

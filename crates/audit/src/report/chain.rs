//! What a call of a chain of packages takes: the sum over its functions, which run one after
//! another.

use serde::Serialize;

use super::TargetRow;

/// The functions that one call of a chain runs.
#[derive(Clone, Debug)]
pub struct ChainCall {
    /// Tokens of a call.
    pub tokens: usize,
    /// Position of the first token that it can take.
    pub from: usize,
    /// The position after the last token that it can take.
    pub to: usize,
    /// Package and function, as `PACKAGE/FUNCTION`, in order.
    pub functions: Vec<String>,
}

/// What a call of a chain takes.
#[derive(Debug, Serialize)]
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

/// The rows of these calls for each target. A call has no row if one of its functions is not in the
/// report.
pub fn rows(targets: &[TargetRow], calls: &[ChainCall]) -> Vec<ChainRow> {
    let rows = targets
        .iter()
        .flat_map(|target| calls.iter().filter_map(|call| row(target, call)));
    rows.collect()
}

fn row(target: &TargetRow, call: &ChainCall) -> Option<ChainRow> {
    let find = |name: &String| target.functions.iter().find(|f| f.name == *name);
    let functions: Vec<_> = call.functions.iter().map(find).collect::<Option<_>>()?;
    let sum = |of: &dyn Fn(usize) -> f64| (0..functions.len()).map(of).sum::<f64>();
    let ms = sum(&|i| functions[i].latency.ms);
    Some(ChainRow {
        target: target.target.clone(),
        tokens: call.tokens,
        from: call.from,
        to: call.to,
        functions: call.functions.clone(),
        ops: functions.iter().map(|f| f.ops).sum(),
        ane_ops: functions.iter().map(|f| f.ane_ops).sum(),
        weight_bytes: sum(&|i| functions[i].latency.weight_bytes),
        ms,
        low_ms: sum(&|i| functions[i].latency.low_ms),
        high_ms: sum(&|i| functions[i].latency.high_ms),
        tokens_per_second: if ms > 0.0 {
            call.tokens as f64 * 1e3 / ms
        } else {
            0.0
        },
    })
}

//! Chooses the lengths that get a function of their own, as `thane buckets` does with `--histogram`
//! and `--times`.

use serde::{Deserialize, Serialize};
use thane_audit::plan::bucket::{self, Histogram, PlanRow, Tradeoff};
use thane_audit::plan::times::Times;

use crate::Answer;

/// A plan that is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Numbers of texts by their length in tokens, as JSON: `{"128": 5}`.
    histogram: String,
    /// Milliseconds of calls by their length, two or more, measured or predicted. Beyond them, a
    /// call takes time in proportion to its length.
    times: Vec<(usize, f64)>,
    /// Buckets are rounded up to multiples of so many tokens.
    #[serde(default = "usual_align")]
    align: usize,
    /// Most buckets to try.
    #[serde(default = "usual_count")]
    count: usize,
    /// Most tokens that the model takes; longer texts count as cut.
    max_tokens: usize,
}

/// The fields of `thane buckets --json` that do not name a model or its command.
#[derive(Serialize)]
struct Report {
    texts: u64,
    truncated: u64,
    tokens: u64,
    longest: usize,
    max_tokens: usize,
    align: usize,
    plans: Vec<PlanRow>,
    knee: usize,
    unlimited: PlanRow,
}

fn usual_align() -> usize {
    32
}

fn usual_count() -> usize {
    6
}

pub fn answer(ask: Ask) -> Result<Answer, String> {
    let Ask {
        align,
        count,
        max_tokens,
        ..
    } = ask;
    for (what, n, most) in [
        ("multiple", align, 4096),
        ("number of buckets", count, 64),
        ("longest text in tokens", max_tokens, 1 << 20),
    ] {
        if n == 0 || n > most {
            return Err(format!("expected a {what} from 1 to {most}, found {n}"));
        }
    }
    let histogram = Histogram::from_json(ask.histogram.as_bytes());
    let mut histogram = histogram.map_err(|faults| format!("the lengths of texts: {faults}"))?;
    let times = Times::new(ask.times).map_err(|e| format!("the times: {e}"))?;
    let truncated = histogram.shorten(max_tokens);
    let candidates = histogram.candidates(align, max_tokens);
    let cost = |length: usize| times.ms(length, &|length| length as f64);
    let planned = bucket::plan(&histogram, &candidates, count, &cost);
    let Tradeoff {
        plans,
        unlimited,
        knee,
    } = planned.ok_or("the lengths of texts: expected some texts, found none")?;
    let best = unlimited.cost;
    let report = Report {
        texts: histogram.n_sequences(),
        truncated,
        tokens: histogram.total() as u64,
        longest: histogram.longest().unwrap_or_default(),
        max_tokens,
        align,
        knee: plans[knee].buckets.len(),
        plans: plans
            .into_iter()
            .map(|plan| PlanRow::new(plan, best))
            .collect(),
        unlimited: PlanRow::new(unlimited, best),
    };
    Ok(serde_json::to_string(&report)
        .map_err(|e| e.to_string())?
        .into())
}

//! Finds the cheapest way through a chain of ops, as Core ML's segmenter does.
//!
//! ```text
//!     cost = sum of estimates + 0.125 ms for each segment of the engine that is entered
//!          + 0.125 ms for each change of backend, the first op excepted
//!          + 0.125 ms if the last op is on the engine
//! ```
//!
//! Measured by the M6 study (macOS 27, M4 and M6): the form gives 440 of 482 probe programs as they
//! were placed, 41 are ties and one is a miss. Ops stand in file order; how values flow between
//! them does not count.

use thane_mil::program::OpId;

use super::estimate::HOP_US;
use super::{Backend, Placed, Segment};

/// [`HOP_US`] in milliseconds, as estimates are.
pub const HOP_MS: f64 = HOP_US.value / 1e3;

/// Sums of the same estimates in another order are no further apart.
const SAME_MS: f64 = 1e-9;

const N: usize = Backend::ALL.len();

/// Choose a backend for each op. Ops that nothing may run go to the CPU, and are given back.
pub fn choose(ops: &mut [Placed]) -> Vec<OpId> {
    let stranded: Vec<OpId> = ops
        .iter()
        .filter(|op| op.estimates.is_empty())
        .map(|op| op.op)
        .collect();
    let costs: Vec<[f64; N]> = ops.iter().map(costs).collect();
    for (op, backend) in ops.iter_mut().zip(cheapest(&costs)) {
        op.chosen = backend;
    }
    stranded
}

/// What an op costs on each backend; infinite where it cannot run.
fn costs(op: &Placed) -> [f64; N] {
    Backend::ALL.map(|b| match op.estimate(b) {
        Some(ms) if ms.is_finite() => ms,
        // A program that is not to run anywhere is still told apart from one that runs on the
        // engine.
        None if op.estimates.is_empty() && b == Backend::Bnns => 0.0,
        _ => f64::INFINITY,
    })
}

/// The backends of the cheapest way, by each op's costs.
pub fn cheapest(costs: &[[f64; N]]) -> Vec<Backend> {
    let mut total = [0.0; N];
    // For each op and backend, the backend of the op before.
    let mut before: Vec<[usize; N]> = Vec::with_capacity(costs.len());
    for (at, cost) in costs.iter().enumerate() {
        let mut next = [f64::INFINITY; N];
        let mut from = [0; N];
        for (to, backend) in Backend::ALL.into_iter().enumerate() {
            let way = |start: usize| total[start] + hop(Backend::ALL[start], backend);
            // Where ways cost the same, staying is preferred.
            let mut best = to;
            for start in 0..N {
                if way(start) < way(best) {
                    best = start;
                }
            }
            let start = if at == 0 { launch(backend) } else { way(best) };
            next[to] = start + cost[to];
            from[to] = best;
        }
        total = next;
        before.push(from);
    }
    let end = |b: usize| total[b] + launch(Backend::ALL[b]);
    // Leaving the engine before elementwise ops, which cost the same everywhere, costs what ending
    // on it does. Chains of layers were seen to end on it, but for those of 32 and 34, and so were
    // decoders (1058 of 1058 ops, CoreML-LLM).
    let order = [3, 1, 2, 0];
    let mut last = order.into_iter().fold(3, |best, b| {
        if end(b) < end(best) - SAME_MS {
            b
        } else {
            best
        }
    });
    let mut chosen: Vec<Backend> = Vec::with_capacity(costs.len());
    for from in before.iter().rev() {
        chosen.push(Backend::ALL[last]);
        last = from[last];
    }
    chosen.reverse();
    chosen
}

fn launch(backend: Backend) -> f64 {
    if backend == Backend::Ane { HOP_MS } else { 0.0 }
}

fn hop(from: Backend, to: Backend) -> f64 {
    if from == to { 0.0 } else { HOP_MS + launch(to) }
}

/// Runs of ops on one backend.
pub fn runs(ops: &[Placed]) -> Vec<Segment> {
    let mut runs: Vec<Segment> = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.backend == op.chosen => run.n_ops += 1,
            _ => runs.push(Segment {
                backend: op.chosen,
                first: at,
                n_ops: 1,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: f64 = f64::INFINITY;

    /// Costs of an op on the CPU and on the engine.
    fn op(cpu: f64, ane: f64) -> [f64; N] {
        [NO, cpu, NO, ane]
    }

    fn on_ane(costs: &[[f64; N]]) -> Vec<bool> {
        cheapest(costs)
            .into_iter()
            .map(|b| b == Backend::Ane)
            .collect()
    }

    /// The whole program and its head must save 0.25 ms, the middle 0.375. A tail pays for
    /// entering, changing and ending: 0.375 by the form, where the text beside it in the study says
    /// 0.25.
    #[test]
    fn what_a_segment_must_save() {
        // Ops that stay on the CPU, before and after.
        let cases = [
            ("whole", 0, 0, 0.25),
            ("head", 0, 1, 0.25),
            ("middle", 1, 1, 0.375),
            ("tail", 1, 0, 0.375),
        ];
        for (name, before, after, knee) in cases {
            let costs = |ms: f64| {
                [
                    vec![op(1.0, NO); before],
                    vec![op(ms, 0.0)],
                    vec![op(1.0, NO); after],
                ]
                .concat()
            };
            assert!(!on_ane(&costs(knee - 1e-6))[before], "{name} below");
            assert!(on_ane(&costs(knee + 1e-6))[before], "{name} above");
        }
    }

    /// Chains of layers end on the engine though their last op costs the same elsewhere.
    #[test]
    fn a_tie_at_the_end_stays() {
        assert_eq!(
            on_ane(&[op(1.0, 0.1), op(0.01, 0.01), op(0.02, 0.02)]),
            [true; 3]
        );
        assert_eq!(on_ane(&[op(1.0, 0.1), op(0.02, 0.021)]), [true, false]);
    }

    #[test]
    fn a_small_op_between_large_ones_comes_along() {
        assert_eq!(
            on_ane(&[op(1.0, 0.0), op(0.01, 0.1), op(1.0, 0.0)]),
            [true; 3]
        );
        // Two segments cost 0.125 each to leave and 0.25 to enter again.
        assert_eq!(
            on_ane(&[op(1.0, 0.0), op(0.01, 0.5), op(1.0, 0.0)]),
            [true, false, true]
        );
    }

    /// Every way of up to six ops, costed by the form as it is written.
    #[test]
    fn no_way_is_cheaper() {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f64 / (1u64 << 24) as f64
        };
        let total = |way: &[Backend], costs: &[[f64; N]]| -> f64 {
            let ops: f64 = way.iter().zip(costs).map(|(b, c)| c[*b as usize]).sum();
            let entered = (0..way.len())
                .filter(|i| way[*i] == Backend::Ane && (*i == 0 || way[i - 1] != Backend::Ane));
            let changes = way.windows(2).filter(|w| w[0] != w[1]).count();
            let last = usize::from(way.last() == Some(&Backend::Ane));
            ops + HOP_MS * (entered.count() + changes + last) as f64
        };
        for round in 0..200 {
            let n = round % 6 + 1;
            let costs: Vec<[f64; N]> = (0..n).map(|_| [(); N].map(|()| 0.6 * random())).collect();
            let least = (0..N.pow(n as u32))
                .map(|code| {
                    (0..n)
                        .map(|i| Backend::ALL[code / N.pow(i as u32) % N])
                        .collect::<Vec<_>>()
                })
                .map(|way| total(&way, &costs))
                .fold(f64::INFINITY, f64::min);
            assert!(
                (total(&cheapest(&costs), &costs) - least).abs() < 1e-12,
                "round {round}"
            );
        }
    }

    #[test]
    fn a_long_chain_takes_no_longer_an_op() {
        let costs = vec![op(0.01, 0.0001); 100_000];
        assert!(on_ane(&costs).into_iter().all(|ane| ane));
        assert!(on_ane(&[]).is_empty());
    }
}

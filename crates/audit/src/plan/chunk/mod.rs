//! Chooses where to cut a chain of layers into programs, so that each program stays within the
//! limits and the calls together take the least time.
//!
//! A cut costs one more call, and its tensors are written and read again. [`layers`] finds the
//! places where a function can be cut; [`plan`] chooses among them exactly; [`of_function`] does
//! both for a target.

mod layers;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

pub use layers::layers;

use thane_mil::program::{Function, OpId};

use crate::target::Target;

/// The ops between two places where a chain can be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// Bytes of its weights.
    pub weight_bytes: f64,
    /// Its ops.
    pub n_ops: usize,
    /// Inputs and outputs of the function that it uses or makes.
    pub n_io: usize,
    /// Tensors that pass from it, or through it, to later layers.
    pub n_out: usize,
    /// Their bytes.
    pub out_bytes: f64,
}

/// Limits of one program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Ops.
    pub n_ops: usize,
    /// Inputs and outputs, those of cuts included.
    pub n_io: usize,
}

/// Costs of a cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Milliseconds of a call.
    pub call_ms: f64,
    /// Milliseconds of a byte that is written and read again.
    pub byte_ms: f64,
}

/// The cheapest way to cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The layers of each program, in order.
    pub chunks: Vec<Range<usize>>,
    /// Milliseconds of all calls and cuts.
    pub cost_ms: f64,
}

/// Why a chain cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A layer alone has more than a program may have.
    #[error("layer {layer} alone has more {what} than a program may have")]
    TooLarge {
        /// The layer.
        layer: usize,
        /// Weights, ops, or inputs and outputs.
        what: &'static str,
    },
    /// Each layer fits, but no way to cut keeps inputs and outputs under their limit.
    #[error("wherever layers up to {layer} are cut, a program has too many inputs and outputs")]
    TooManyEnds {
        /// The last layer that no program can end with.
        layer: usize,
    },
}

/// Sums over the layers before each, and over all.
struct Sums(Vec<Layer>);

impl Sums {
    fn of(layers: &[Layer]) -> Self {
        let mut sums = vec![Layer::default()];
        for (at, layer) in layers.iter().enumerate() {
            let before = sums[at];
            sums.push(Layer {
                weight_bytes: before.weight_bytes + layer.weight_bytes,
                n_ops: before.n_ops.saturating_add(layer.n_ops),
                n_io: before.n_io.saturating_add(layer.n_io),
                ..before
            });
        }
        Self(sums)
    }

    /// Whether layers have too many weights, ops or ends of the function; a longer run of them has,
    /// too.
    fn is_too_much(&self, run: &Range<usize>, limits: &Limits) -> bool {
        let (from, to) = (&self.0[run.start], &self.0[run.end]);
        // Sums of floats are off by their last digits.
        to.weight_bytes - from.weight_bytes > limits.weight_bytes * (1.0 + 1e-9)
            || to.n_ops - from.n_ops > limits.n_ops
            || to.n_io - from.n_io > limits.n_io
    }

    /// Inputs and outputs of a program of these layers.
    fn ends(&self, run: &Range<usize>, layers: &[Layer]) -> usize {
        let before = run.start.checked_sub(1).map_or(0, |at| layers[at].n_out);
        let is_last = run.end == layers.len();
        let behind = if is_last {
            0
        } else {
            layers[run.end - 1].n_out
        };
        (self.0[run.end].n_io - self.0[run.start].n_io)
            .saturating_add(before)
            .saturating_add(behind)
    }
}

/// The cheapest way to cut layers into programs that keep the limits.
pub fn plan(layers: &[Layer], limits: &Limits, costs: &Costs) -> Result<Plan, ChunkError> {
    check(layers, limits)?;
    let sums = Sums::of(layers);
    // Of the layers before each place: the cost, and where the last of their programs starts.
    let mut best: Vec<Option<(f64, usize)>> = vec![Some((0.0, 0))];
    // Starts of programs with what everything before them costs: the cheapest comes first, of equal
    // ones that with the longest program. Costs are not negative, so that their bits are in order.
    let mut starts = BinaryHeap::from([Reverse((0.0f64.to_bits(), 0))]);
    for end in 1..=layers.len() {
        let mut passed_over = Vec::new();
        let mut found = None;
        while let Some(Reverse((cost, start))) = starts.pop() {
            let run = start..end;
            // It is too much for every later end as well, and need not be looked at again.
            if sums.is_too_much(&run, limits) {
                continue;
            }
            let fits = sums.ends(&run, layers) <= limits.n_io;
            found = fits.then_some((f64::from_bits(cost) + costs.call_ms, start));
            passed_over.push(Reverse((cost, start)));
            if fits {
                break;
            }
        }
        starts.extend(passed_over);
        best.push(found);
        if let Some((cost, _)) = found {
            let cost = cost + costs.byte_ms * layers[end - 1].out_bytes;
            starts.push(Reverse((cost.to_bits(), end)));
        }
    }
    collect(&best)
}

/// A program of some of a function's ops.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Its last op.
    pub last: OpId,
    /// Ops, constants not counted.
    pub n_ops: usize,
    /// Bytes of its weights, as stored.
    pub weight_bytes: f64,
    /// Bytes that pass from it to the next program.
    pub out_bytes: f64,
}

/// Tensors that may go over a cut: a stream and what all layers share, such as masks and rotary
/// angles.
const MOST_TENSORS: usize = 8;
/// Inputs and outputs of a program; more were not seen to work.
const MOST_IO: usize = 64;

/// The programs that a function is best cut into for a target, so that none has more weights than
/// any source doubts.
pub fn of_function(f: &Function, target: &Target) -> Result<Vec<Chunk>, ChunkError> {
    let chip = target.chip;
    let limits = Limits {
        weight_bytes: target.release.program_bytes(target.is_mobile()).low,
        n_ops: usize::MAX,
        n_io: MOST_IO,
    };
    // Written by one program, read by the next.
    let byte_ms = 2.0 / (chip.activation_gbps.value * 1e6);
    let costs = Costs {
        call_ms: chip.dispatch_seconds(target.route, 0.0) * 1e3,
        byte_ms,
    };
    let found = layers(f, MOST_TENSORS);
    let only: Vec<Layer> = found.iter().map(|(layer, _)| *layer).collect();
    let ops = layers::computing(f);
    let chunk = |run: Range<usize>| {
        let last = run.end - 1;
        let sum = |of: &dyn Fn(&Layer) -> f64| only[run.clone()].iter().map(of).sum::<f64>();
        Chunk {
            last: ops[found[last].1.end - 1],
            n_ops: only[run.clone()].iter().map(|l| l.n_ops).sum(),
            weight_bytes: sum(&|l| l.weight_bytes),
            out_bytes: only[last].out_bytes,
        }
    };
    let chunks = plan(&only, &limits, &costs)?.chunks;
    Ok(chunks.into_iter().map(chunk).collect())
}

fn collect(best: &[Option<(f64, usize)>]) -> Result<Plan, ChunkError> {
    let mut end = best.len() - 1;
    let Some((cost_ms, _)) = best[end] else {
        return Err(ChunkError::TooManyEnds {
            layer: end.saturating_sub(1),
        });
    };
    let mut chunks = Vec::new();
    while let (1.., Some((_, start))) = (end, best[end]) {
        chunks.push(start..end);
        end = start;
    }
    chunks.reverse();
    Ok(Plan { chunks, cost_ms })
}

fn check(layers: &[Layer], limits: &Limits) -> Result<(), ChunkError> {
    for (layer, l) in layers.iter().enumerate() {
        let what = match () {
            () if l.weight_bytes > limits.weight_bytes => "weights",
            () if l.n_ops > limits.n_ops => "ops",
            () if l.n_io > limits.n_io => "inputs and outputs",
            () => continue,
        };
        return Err(ChunkError::TooLarge { layer, what });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        call_ms: 0.3,
        byte_ms: 0.01,
    };

    /// The least cost over all ways to cut, by the definition above.
    fn least(layers: &[Layer], limits: &Limits) -> Option<f64> {
        let n = layers.len();
        let ways = (0..1usize << n.saturating_sub(1)).filter_map(|cuts| {
            let mut cost = 0.0;
            let mut start = 0;
            for end in 1..=n {
                let is_cut = end == n || cuts >> (end - 1) & 1 == 1;
                if !is_cut {
                    continue;
                }
                let run = &layers[start..end];
                let entering = if start > 0 {
                    layers[start - 1].n_out
                } else {
                    0
                };
                let leaving = if end < n { layers[end - 1].n_out } else { 0 };
                let io: usize = run.iter().map(|l| l.n_io).sum::<usize>() + entering + leaving;
                let fits = run.iter().map(|l| l.weight_bytes).sum::<f64>() <= limits.weight_bytes
                    && run.iter().map(|l| l.n_ops).sum::<usize>() <= limits.n_ops
                    && io <= limits.n_io;
                if !fits {
                    return None;
                }
                cost += COSTS.call_ms
                    + if end < n {
                        COSTS.byte_ms * layers[end - 1].out_bytes
                    } else {
                        0.0
                    };
                start = end;
            }
            Some(cost)
        });
        ways.min_by(f64::total_cmp)
    }

    #[test]
    fn no_way_to_cut_is_cheaper() {
        let mut seed = 7u64;
        let mut random = move |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let mut n_possible = 0;
        for round in 0..400 {
            let layers: Vec<Layer> = (0..round % 11 + 1)
                .map(|_| Layer {
                    weight_bytes: random(8) as f64,
                    n_ops: random(6) as usize,
                    n_io: random(3) as usize,
                    n_out: random(4) as usize + 1,
                    out_bytes: random(50) as f64,
                })
                .collect();
            let limits = Limits {
                weight_bytes: random(20) as f64 + 7.0,
                n_ops: random(12) as usize + 5,
                n_io: random(8) as usize + 2,
            };
            match (plan(&layers, &limits, &COSTS), least(&layers, &limits)) {
                (Ok(found), Some(cost)) => {
                    n_possible += 1;
                    assert!(
                        (found.cost_ms - cost).abs() < 1e-9,
                        "round {round}: {found:?}, the least is {cost}"
                    );
                    assert_eq!(
                        found.chunks.iter().map(|c| c.len()).sum::<usize>(),
                        layers.len()
                    );
                }
                (Err(_), None) => {}
                (found, least) => panic!("round {round}: {found:?} and {least:?}"),
            }
        }
        assert!(n_possible > 200, "{n_possible} of 400 can be cut");
    }

    #[test]
    fn a_long_chain_is_cut_evenly() {
        let layers = vec![
            Layer {
                weight_bytes: 1.0,
                n_ops: 3,
                n_io: 0,
                n_out: 1,
                out_bytes: 1.0
            };
            20_000
        ];
        let limits = Limits {
            weight_bytes: 5000.0,
            n_ops: usize::MAX,
            n_io: 4,
        };
        let found = plan(&layers, &limits, &COSTS).unwrap();
        assert_eq!(found.chunks.len(), 4);
        assert!((found.cost_ms - (4.0 * 0.3 + 3.0 * 0.01)).abs() < 1e-9);
    }

    #[test]
    fn what_cannot_be_cut_is_named() {
        let limits = Limits {
            weight_bytes: 5.0,
            n_ops: 5,
            n_io: 3,
        };
        let layer = Layer {
            weight_bytes: 1.0,
            n_ops: 1,
            n_io: 1,
            n_out: 1,
            out_bytes: 1.0,
        };
        let cases = [
            (
                vec![
                    layer,
                    Layer {
                        weight_bytes: 6.0,
                        ..layer
                    },
                ],
                "layer 1 alone has more weights",
            ),
            (
                vec![Layer { n_ops: 6, ..layer }],
                "layer 0 alone has more ops",
            ),
            (
                vec![Layer { n_io: 4, ..layer }],
                "layer 0 alone has more inputs and outputs",
            ),
            (
                vec![
                    Layer {
                        n_io: 2,
                        n_out: 2,
                        ..layer
                    };
                    2
                ],
                "layers up to 1 are cut",
            ),
        ];
        for (layers, text) in cases {
            let said = plan(&layers, &limits, &COSTS).unwrap_err().to_string();
            assert!(said.contains(text), "{said}");
        }
        assert_eq!(plan(&[], &limits, &COSTS).unwrap().chunks, []);
    }
}

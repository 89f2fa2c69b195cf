//! Chooses the lengths that get a function of their own. A sequence goes to the shortest bucket
//! that holds it and is padded to that length.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most faults of a histogram that one error lists.
const MOST_FAULTS: usize = 8;
/// How far from the best a cost may be and still be as good: more buckets than that are not worth
/// their memory and the time that a device takes to compile them, neither of which is counted here.
pub const KNEE: f64 = 1.05;

/// How many sequences there are of each length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: BTreeMap<usize, u64>,
}

impl Histogram {
    /// Reads a histogram such as `{"128": 5}`: five sequences of length 128.
    ///
    /// # Errors
    ///
    /// Lists keys that are no lengths and values that are no counts.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        let Pairs(pairs) = serde_json::from_slice(text)
            .map_err(|e| format!("expected an object of lengths and counts: {e}"))?;
        let (mut histogram, mut faults) = (Self::default(), Vec::new());
        for (key, value) in pairs {
            match (key.parse::<usize>(), value.as_u64()) {
                (Ok(length), Some(n)) if length > 0 => histogram.add(length, n),
                (Ok(length), _) if length > 0 => {
                    faults.push(format!("expected a count for `{key}`, found {value}"));
                }
                _ => faults.push(format!("expected a length above 0, found `{key}`")),
            }
            if faults.len() == MOST_FAULTS {
                break;
            }
        }
        match faults.is_empty() {
            true => Ok(histogram),
            false => Err(faults.join("\n  ")),
        }
    }

    /// Count `n` sequences more of this length.
    pub fn add(&mut self, length: usize, n: u64) {
        if n > 0 {
            let count = self.counts.entry(length).or_default();
            *count = count.saturating_add(n);
        }
    }

    /// Sequences.
    pub fn n_sequences(&self) -> u64 {
        self.counts
            .values()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The longest length; none without sequences.
    pub fn longest(&self) -> Option<usize> {
        self.counts.last_key_value().map(|(length, _)| *length)
    }

    /// Lengths of all sequences together.
    pub fn total(&self) -> f64 {
        self.counts
            .iter()
            .map(|(length, n)| *length as f64 * *n as f64)
            .sum()
    }

    /// Let sequences that are longer than `most` be that long. How many there were.
    pub fn shorten(&mut self, most: usize) -> u64 {
        let longer = self.counts.split_off(&most.saturating_add(1));
        let n = longer.values().fold(0u64, |sum, n| sum.saturating_add(*n));
        self.add(most, n);
        n
    }

    /// The lengths worth a bucket: what lengths are rounded up to, multiples of `align` and at most
    /// `most`. Others would only pad more, where a longer call costs no less.
    pub fn candidates(&self, align: usize, most: usize) -> Vec<usize> {
        let round = |length: usize| {
            length
                .div_ceil(align.max(1))
                .saturating_mul(align.max(1))
                .min(most)
        };
        let mut candidates: Vec<usize> = self.counts.keys().map(|length| round(*length)).collect();
        candidates.dedup();
        candidates
    }
}

/// The pairs of an object in order, repeated keys included.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object such as {\"128\": 5}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(Collect)
    }
}

/// A plan as JSON, of costs in milliseconds.
#[derive(Debug, Serialize)]
pub struct PlanRow {
    /// See [`Plan::buckets`].
    pub buckets: Vec<usize>,
    /// Mean milliseconds of a sequence.
    pub ms_per_text: f64,
    /// How many of the tokens that are computed are padding, 0 to 1.
    pub padded: f64,
    /// Cost over that of the unlimited plan, less 1.
    pub loss: f64,
}

impl PlanRow {
    /// The row of a plan, beside the cost of the unlimited one.
    pub fn new(plan: Plan, unlimited: f64) -> Self {
        let Plan {
            buckets,
            cost,
            padded,
        } = plan;
        Self {
            buckets,
            ms_per_text: cost,
            padded,
            loss: (cost / unlimited - 1.0).max(0.0),
        }
    }
}

/// Some buckets and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Lengths, rising; the last holds the longest sequence.
    pub buckets: Vec<usize>,
    /// Mean cost of a sequence, in the unit of the costs that were given.
    pub cost: f64,
    /// How much of what is computed is padding, 0 to 1.
    pub padded: f64,
}

/// The best plans of each number of buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Tradeoff {
    /// With one bucket, two, and so on; it ends where one more gains nothing.
    pub plans: Vec<Plan>,
    /// With as many buckets as help.
    pub unlimited: Plan,
    /// Index of the first plan that costs at most [`KNEE`] times the last.
    pub knee: usize,
}

/// The cheapest buckets out of `candidates`, which rise, for each number of them up to `most`.
/// `cost` is that of a call of some length. None where there are no sequences, or no candidate
/// holds the longest.
pub fn plan(
    histogram: &Histogram,
    candidates: &[usize],
    most: usize,
    cost: &dyn Fn(usize) -> f64,
) -> Option<Tradeoff> {
    let longest = histogram.longest()?;
    let last = candidates.iter().position(|length| *length >= longest)?;
    let table = Table::new(histogram, &candidates[..=last], cost);
    let mut plans: Vec<Plan> = Vec::new();
    let mut row = table.first();
    let mut choices = vec![vec![None; row.len()]];
    while plans.len() < most {
        let plan = table.plan(&choices);
        if plans.last().is_some_and(|best| best.cost <= plan.cost) {
            break;
        }
        plans.push(plan);
        if choices.len() > last {
            break;
        }
        let next: Vec<(f64, Option<usize>)> =
            (0..row.len()).map(|j| table.extend(&row, j)).collect();
        choices.push(next.iter().map(|(_, before)| *before).collect());
        row = next.into_iter().map(|(cost, _)| cost).collect();
    }
    let knee = plans
        .last()
        .and_then(|best| plans.iter().position(|p| p.cost <= best.cost * KNEE))?;
    Some(Tradeoff {
        plans,
        unlimited: table.unlimited(),
        knee,
    })
}

/// Figures of each candidate.
struct Table<'a> {
    lengths: &'a [usize],
    costs: Vec<f64>,
    /// Sequences that it holds.
    held: Vec<f64>,
    total: f64,
}

impl<'a> Table<'a> {
    fn new(histogram: &Histogram, lengths: &'a [usize], cost: &dyn Fn(usize) -> f64) -> Self {
        let (mut held, mut n) = (Vec::with_capacity(lengths.len()), 0.0);
        let mut counts = histogram.counts.iter().peekable();
        for length in lengths {
            while let Some((_, count)) = counts.next_if(|(l, _)| *l <= length) {
                n += *count as f64;
            }
            held.push(n);
        }
        Self {
            lengths,
            costs: lengths.iter().map(|length| cost(*length)).collect(),
            held,
            total: histogram.total(),
        }
    }

    /// For each candidate, the cost of all it holds in one bucket.
    fn first(&self) -> Vec<f64> {
        self.costs
            .iter()
            .zip(&self.held)
            .map(|(cost, held)| cost * held)
            .collect()
    }

    /// The cost of all that candidate `j` holds, where `row` has that of the shorter ones, and the
    /// best of them.
    fn extend(&self, row: &[f64], j: usize) -> (f64, Option<usize>) {
        let through = |i: usize| row[i] + self.costs[j] * (self.held[j] - self.held[i]);
        let best = (0..j)
            .map(|i| (through(i), Some(i)))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        best.unwrap_or((f64::INFINITY, None))
    }

    /// The plan that the choices lead to, from the longest candidate back: the last of them is for
    /// the longest bucket.
    fn plan(&self, choices: &[Vec<Option<usize>>]) -> Plan {
        let mut picked = Vec::with_capacity(choices.len());
        let mut at = self.lengths.len().checked_sub(1);
        for choice in choices.iter().rev() {
            let Some(j) = at else { break };
            picked.push(j);
            at = choice[j];
        }
        picked.reverse();
        self.of(&picked)
    }

    /// The cheapest plan of any number of buckets.
    fn unlimited(&self) -> Plan {
        let (mut row, mut before) = (Vec::with_capacity(self.lengths.len()), Vec::new());
        for j in 0..self.lengths.len() {
            let alone = (self.costs[j] * self.held[j], None);
            let (cost, choice) = self.extend(&row, j);
            let best = if cost < alone.0 {
                (cost, choice)
            } else {
                alone
            };
            row.push(best.0);
            before.push(best.1);
        }
        let mut picked = Vec::new();
        let mut at = self.lengths.len().checked_sub(1);
        while let Some(j) = at {
            picked.push(j);
            at = before[j];
        }
        picked.reverse();
        self.of(&picked)
    }

    /// The plan of these candidates.
    fn of(&self, picked: &[usize]) -> Plan {
        let (mut cost, mut computed, mut held) = (0.0, 0.0, 0.0);
        for j in picked {
            let n = self.held[*j] - held;
            cost += self.costs[*j] * n;
            computed += self.lengths[*j] as f64 * n;
            held = self.held[*j];
        }
        let padded = if computed > 0.0 {
            1.0 - self.total / computed
        } else {
            0.0
        };
        Plan {
            buckets: picked.iter().map(|j| self.lengths[*j]).collect(),
            cost: cost / held.max(1.0),
            padded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64
    struct Noise(u64);

    impl Noise {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % n
        }
    }

    /// Mean cost of sequences in the shortest bucket that holds each; none where one is too long.
    fn mean(histogram: &Histogram, buckets: &[usize], cost: &dyn Fn(usize) -> f64) -> Option<f64> {
        let of = |(length, n): (&usize, &u64)| {
            Some(cost(*buckets.iter().find(|b| *b >= length)?) * *n as f64)
        };
        let sum: f64 = histogram.counts.iter().map(of).sum::<Option<f64>>()?;
        Some(sum / histogram.n_sequences() as f64)
    }

    /// The least of all subsets of `lengths` with `n` members at most.
    fn brute(histogram: &Histogram, lengths: &[usize], n: u32, cost: &dyn Fn(usize) -> f64) -> f64 {
        let subsets = (1u32..1 << lengths.len()).filter(|bits| bits.count_ones() <= n);
        let chosen = |bits: u32| -> Vec<usize> {
            lengths
                .iter()
                .enumerate()
                .filter(|(i, _)| bits >> i & 1 == 1)
                .map(|(_, l)| *l)
                .collect()
        };
        subsets
            .filter_map(|bits| mean(histogram, &chosen(bits), cost))
            .fold(f64::INFINITY, f64::min)
    }

    fn random(noise: &mut Noise, most: usize) -> Histogram {
        let mut histogram = Histogram::default();
        for _ in 0..=noise.below(9) {
            let length = 1 + noise.below(most as u64) as usize;
            histogram.add(length, 1 + noise.below(20));
        }
        histogram
    }

    #[test]
    fn no_choice_of_lengths_is_cheaper() {
        let mut noise = Noise(4);
        let costs: [&dyn Fn(usize) -> f64; 4] = [
            &|l| 1.0 + l as f64,
            &|l| 20.0 + 0.1 * (l * l) as f64,
            &|_| 3.0,
            // Steps, as where weights are read once more.
            &|l| (1 + l / 13) as f64,
        ];
        for case in 0..200 {
            let (align, most) = (1 + noise.below(8) as usize, 40);
            let histogram = random(&mut noise, most);
            let cost = costs[case % costs.len()];
            // All multiples, those too that no length is rounded up to.
            let mut all: Vec<usize> = (1..)
                .map(|i| i * align)
                .take_while(|l| *l < most)
                .chain([most])
                .collect();
            if all.len() > 12 {
                all = histogram.candidates(align, most);
            }
            let found = plan(&histogram, &histogram.candidates(align, most), 5, cost).unwrap();
            for (n, plan) in (1..).zip(&found.plans) {
                let least = brute(&histogram, &all, n, cost);
                assert!(
                    (plan.cost - least).abs() < 1e-9,
                    "case {case}, {n} buckets: {plan:?}, {least} is had"
                );
                let mean = mean(&histogram, &plan.buckets, cost).unwrap();
                assert!(
                    (plan.cost - mean).abs() < 1e-9,
                    "case {case}, {n} buckets: {plan:?}, and {mean}"
                );
                assert_eq!(plan.buckets.len(), n as usize);
            }
            let best = brute(&histogram, &all, 32, cost);
            assert!(
                (found.unlimited.cost - best).abs() < 1e-9,
                "case {case}: {:?}, {best} is had",
                found.unlimited
            );
        }
    }

    #[test]
    fn more_buckets_cost_less_and_one_is_the_longest() {
        let mut noise = Noise(9);
        for _ in 0..50 {
            let histogram = random(&mut noise, 3000);
            let found = plan(&histogram, &histogram.candidates(32, 2990), 8, &|l| {
                5.0 + l as f64
            });
            let Some(found) = found else {
                assert!(histogram.longest() > Some(2990));
                continue;
            };
            let longest = histogram.longest().unwrap().div_ceil(32) * 32;
            assert_eq!(found.plans[0].buckets, [longest.min(2990)]);
            assert!(found.plans.is_sorted_by(|a, b| a.cost > b.cost));
            assert!(
                found
                    .plans
                    .iter()
                    .all(|p| p.buckets.last() == Some(&longest.min(2990)))
            );
            assert!(
                found.plans.iter().all(
                    |p| p.cost >= found.unlimited.cost - 1e-9 && (0.0..1.0).contains(&p.padded)
                )
            );
            let (knee, last) = (&found.plans[found.knee], found.plans.last().unwrap());
            assert!(knee.cost <= last.cost * KNEE);
            assert!(found.knee == 0 || found.plans[found.knee - 1].cost > last.cost * KNEE);
        }
    }

    #[test]
    fn the_edges() {
        let linear = |l: usize| l as f64;
        assert_eq!(plan(&Histogram::default(), &[32], 3, &linear), None);
        let mut one = Histogram::default();
        one.add(7, 3);
        one.add(9, 0);
        assert_eq!(
            (one.longest(), one.n_sequences(), one.total()),
            (Some(7), 3, 21.0)
        );
        assert_eq!(plan(&one, &[4], 3, &linear), None);
        assert_eq!(plan(&one, &[], 3, &linear), None);
        let found = plan(&one, &one.candidates(8, 100), 3, &linear).unwrap();
        assert_eq!(
            found.plans,
            [Plan {
                buckets: vec![8],
                cost: 8.0,
                padded: 0.125
            }]
        );
        assert_eq!((found.knee, found.unlimited.buckets.len()), (0, 1));
        one.add(200, 2);
        assert_eq!(one.shorten(100), 2);
        assert_eq!(one.candidates(32, 100), [32, 100]);
        assert_eq!(one.candidates(0, 100), [7, 100]);
        // Where all lengths cost the same, a second bucket gains nothing.
        assert_eq!(plan(&one, &[32, 100], 3, &|_| 1.0).unwrap().plans.len(), 1);
    }
}

//! Chooses the next token from logits.
//!
//! The steps are: repetition penalty, frequency and presence penalty, temperature, top-k, top-p,
//! min-p, draw. This is the order of the samplers of `transformers`, so top-p and min-p apply to
//! the distribution after the temperature. At temperature 0 the token with the greatest logit after
//! the penalties is chosen (greedy).

use std::cmp::Ordering;

/// How the next token is chosen. `Default` is greedy without penalties.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOptions {
    /// Divides the logits; 0 always chooses the greatest logit (greedy).
    pub temperature: f32,
    /// Keeps only this many of the most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most probable tokens whose probabilities sum to at least this; 1
    /// keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the greatest probability; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive logits of tokens in the history, and multiplies their negative logits;
    /// 1 turns the penalty off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token in the history; 0 turns the penalty off.
    pub presence_penalty: f32,
    /// Subtracted from a logit once for each occurrence of its token in the history; 0 turns the
    /// penalty off.
    pub frequency_penalty: f32,
    /// Number of last tokens in the history that the penalties consider; `None` for all.
    pub repeat_last_n: Option<usize>,
    /// Seed of the random numbers. Equal seeds, options and logits give equal tokens.
    pub seed: u64,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: Some(64),
            seed: 0,
        }
    }
}

impl SampleOptions {
    /// How many of the greatest logits [`Sampler::sample`] needs with a history of `n_history`
    /// tokens, or `None` if it needs all. With all other logits at minus infinity it chooses the
    /// same token.
    pub fn n_greatest(&self, n_history: usize) -> Option<usize> {
        let n = match (self.temperature == 0.0, self.top_k) {
            (true, _) => 1,
            (false, 0) => return None,
            (false, k) => k,
        };
        if !self.penalizes() {
            return Some(n);
        }
        // The penalties may lower the logit of each token in the history below the others.
        let lowers = self.repetition_penalty >= 1.0
            && self.presence_penalty >= 0.0
            && self.frequency_penalty >= 0.0;
        lowers.then(|| n.saturating_add(self.repeat_last_n.unwrap_or(n_history).min(n_history)))
    }

    /// Whether tokens of the history lose or gain.
    pub fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// Errors in options or logits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An option is out of range.
    #[error("option {option}: expected {range}, found {value}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: f32,
        /// The valid range.
        range: &'static str,
    },
    /// A logit is NaN or plus infinity.
    #[error("expected finite logits, found {value} for token {id}")]
    NotFinite {
        /// Id of the token.
        id: usize,
        /// Logit of the token.
        value: f32,
    },
    /// There are no logits, or all are minus infinity.
    #[error("expected a logit above minus infinity, found none among {0} logits")]
    Empty(usize),
    /// A token in the history has no logit.
    #[error("expected token ids below {n_vocab}, the number of logits, found {id} in the history")]
    History {
        /// Id of the token.
        id: u32,
        /// Number of logits.
        n_vocab: usize,
    },
}

/// Chooses tokens. Holds the state of the random number generator and scratch memory.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    random: Random,
    candidates: Vec<Candidate>,
    recent: Vec<u32>,
}

/// A token that can still be drawn. `weight` is proportional to its probability.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f32,
}

impl Candidate {
    /// Orders by descending logit, then by ascending id.
    fn best_first(a: &Self, b: &Self) -> Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }
}

impl Sampler {
    /// Creates a sampler.
    ///
    /// # Errors
    ///
    /// [`SampleError::Option`] if an option is out of range.
    pub fn new(options: SampleOptions) -> Result<Self, SampleError> {
        let o = &options;
        let finite = |value: f32| value.is_finite();
        let checks = [
            (
                "temperature",
                o.temperature,
                o.temperature >= 0.0,
                "0 or more",
            ),
            (
                "top_p",
                o.top_p,
                o.top_p > 0.0 && o.top_p <= 1.0,
                "above 0 and at most 1",
            ),
            (
                "min_p",
                o.min_p,
                (0.0..=1.0).contains(&o.min_p),
                "from 0 to 1",
            ),
            (
                "repetition_penalty",
                o.repetition_penalty,
                o.repetition_penalty > 0.0,
                "above 0",
            ),
            (
                "presence_penalty",
                o.presence_penalty,
                true,
                "a finite number",
            ),
            (
                "frequency_penalty",
                o.frequency_penalty,
                true,
                "a finite number",
            ),
        ];
        for (option, value, ok, range) in checks {
            if !ok || !finite(value) {
                return Err(SampleError::Option {
                    option,
                    value,
                    range,
                });
            }
        }
        let random = Random::new(options.seed);
        Ok(Self {
            options,
            random,
            candidates: Vec::new(),
            recent: Vec::new(),
        })
    }

    /// The options of this sampler.
    pub fn options(&self) -> &SampleOptions {
        &self.options
    }

    /// [`SampleOptions::n_greatest`] of the options.
    pub fn n_greatest(&self, n_history: usize) -> Option<usize> {
        self.options.n_greatest(n_history)
    }

    /// Chooses the next token. `history` is the prompt and the answer so far. The penalties modify
    /// `logits` in place.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, SampleError> {
        if let Some(id) = logits
            .iter()
            .position(|logit| logit.is_nan() || *logit == f32::INFINITY)
        {
            return Err(SampleError::NotFinite {
                id,
                value: logits[id],
            });
        }
        self.penalize(logits, history)?;
        let best = argmax(logits).ok_or(SampleError::Empty(logits.len()))?;
        if self.options.temperature == 0.0 {
            return Ok(best as u32);
        }
        self.collect(logits, logits[best]);
        self.keep_top_k();
        self.keep_top_p();
        self.keep_min_p();
        Ok(self.draw())
    }

    /// The tokens that [`Sampler::sample`] would draw from, with their probabilities.
    pub fn distribution(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
    ) -> Result<Vec<(u32, f32)>, SampleError> {
        let state = self.random.clone();
        let token = self.sample(logits, history)?;
        self.random = state;
        if self.options.temperature == 0.0 {
            return Ok(vec![(token, 1.0)]);
        }
        let sum: f64 = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
        Ok(self
            .candidates
            .iter()
            .map(|c| (c.id, (f64::from(c.weight) / sum) as f32))
            .collect())
    }

    fn penalize(&mut self, logits: &mut [f32], history: &[u32]) -> Result<(), SampleError> {
        let o = &self.options;
        if !o.penalizes() {
            return Ok(());
        }
        let n_last = o.repeat_last_n.unwrap_or(history.len()).min(history.len());
        self.recent.clear();
        self.recent
            .extend_from_slice(&history[history.len() - n_last..]);
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            let n_vocab = logits.len();
            let logit = logits
                .get_mut(same[0] as usize)
                .ok_or(SampleError::History {
                    id: same[0],
                    n_vocab,
                })?;
            if *logit > 0.0 {
                *logit /= o.repetition_penalty;
            } else {
                *logit *= o.repetition_penalty;
            }
            *logit -= o.frequency_penalty * same.len() as f32 + o.presence_penalty;
        }
        Ok(())
    }

    /// Weights relative to the greatest logit, so that `exp` cannot overflow.
    fn collect(&mut self, logits: &[f32], best: f32) {
        let temperature = self.options.temperature;
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().enumerate().filter_map(|(id, &logit)| {
                let weight = ((logit - best) / temperature).exp();
                (weight > 0.0).then_some(Candidate {
                    id: id as u32,
                    logit,
                    weight,
                })
            }));
    }

    fn keep_top_k(&mut self) {
        let k = self.options.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates
                .select_nth_unstable_by(k - 1, Candidate::best_first);
            self.candidates.truncate(k);
        }
    }

    /// Sorts only as many of the best candidates as the sum needs.
    fn keep_top_p(&mut self) {
        if self.options.top_p >= 1.0 {
            return;
        }
        let all: f64 = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
        let wanted = all * f64::from(self.options.top_p);
        let (mut sum, mut done, mut step) = (0.0, 0, 128);
        while done < self.candidates.len() {
            let rest = &mut self.candidates[done..];
            let n = step.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n - 1, Candidate::best_first);
            }
            rest[..n].sort_unstable_by(Candidate::best_first);
            for candidate in &rest[..n] {
                sum += f64::from(candidate.weight);
                done += 1;
                if sum >= wanted {
                    self.candidates.truncate(done);
                    return;
                }
            }
            step *= 4;
        }
    }

    fn keep_min_p(&mut self) {
        // The greatest weight is 1, because weights are relative to the best token, which no step
        // removes.
        let min_p = self.options.min_p;
        if min_p > 0.0 {
            self.candidates
                .retain(|candidate| candidate.weight >= min_p);
        }
    }

    /// Draws a token with a probability proportional to its weight.
    fn draw(&mut self) -> u32 {
        // Sorting by id makes the draw independent of the order that the selection algorithms
        // leave.
        self.candidates
            .sort_unstable_by_key(|candidate| candidate.id);
        let all: f64 = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
        let mut left = self.random.unit() * all;
        for candidate in &self.candidates {
            left -= f64::from(candidate.weight);
            if left < 0.0 {
                return candidate.id;
            }
        }
        self.candidates.last().map_or(0, |candidate| candidate.id)
    }
}

/// The index of the greatest logit, the lowest index among equals. NaN is ignored. `None` if no
/// logit is above minus infinity.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    /// Logits that are compared together: a chunk without a new maximum costs one comparison per
    /// logit.
    const CHUNK_LEN: usize = 64;
    let (mut best, mut most) = (None, f32::NEG_INFINITY);
    for (chunk_idx, chunk) in logits.chunks(CHUNK_LEN).enumerate() {
        // Independent lanes, which the compiler vectorizes.
        let (eights, rest) = chunk.as_chunks::<8>();
        let mut lanes = [f32::NEG_INFINITY; 8];
        for eight in eights {
            for (lane, logit) in lanes.iter_mut().zip(eight) {
                *lane = if *logit > *lane { *logit } else { *lane };
            }
        }
        if lanes
            .iter()
            .chain(rest)
            .all(|logit| logit.partial_cmp(&most) != Some(Ordering::Greater))
        {
            continue;
        }
        for (i, &logit) in chunk.iter().enumerate() {
            if logit > most {
                (best, most) = (Some(chunk_idx * CHUNK_LEN + i), logit);
            }
        }
    }
    best
}

/// xoshiro256++, seeded by splitmix64 (Blackman and Vigna). It gives the same numbers on every
/// machine.
#[derive(Debug, Clone)]
struct Random([u64; 4]);

impl Random {
    fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.0;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.0 = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A uniform random number in [0, 1) with 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_equal_the_published_formulas() {
        // make_goldens.py computes them with Python's integers.
        let json: serde_json::Value =
            serde_json::from_str(include_str!("../tests/data/sampling.json")).unwrap();
        let mut random = Random::new(json["random"]["seed"].as_u64().unwrap());
        let values = json["random"]["values"].as_array().unwrap();
        assert_eq!(values.len(), 5);
        for value in values {
            assert_eq!(random.next().to_string(), value.as_str().unwrap());
        }
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&random.unit()));
        }
    }
}

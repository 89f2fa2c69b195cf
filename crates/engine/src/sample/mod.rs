//! Chooses the next token from logits.
//!
//! The steps, in the default order of llama.cpp's samplers: logit bias, penalties (repetition, then
//! frequency and presence), DRY, top-k, typical, top-p, min-p, XTC, temperature, draw. Filters work
//! on probabilities at temperature 1, each on what the one before it kept. Mirostat 2 takes the
//! place of all filters: temperature, then mirostat. At temperature 0 the token with the greatest
//! logit after bias, penalties and DRY is chosen (greedy), and no filter applies.

mod candidates;
mod dry;
mod logprobs;
mod options;
mod random;

use std::cmp::Ordering;

pub use dry::Dry;
pub use logprobs::{Logprobs, TokenLogprob, log_sum_exp};
pub use options::{Mirostat, SampleError, SampleOptions};

use candidates::Candidates;
use random::Random;

/// Chooses tokens. Holds the state of the random number generator and scratch memory.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    random: Random,
    /// Mirostat's limit of the surprise of a token, in bits.
    most_surprise: f32,
    candidates: Candidates,
    recent: Vec<u32>,
}

impl Sampler {
    /// Creates a sampler.
    ///
    /// # Errors
    ///
    /// [`SampleError::Option`] if an option is out of range.
    pub fn new(mut options: SampleOptions) -> Result<Self, SampleError> {
        options.check()?;
        options.dry.breakers.sort_unstable();
        Ok(Self {
            random: Random::new(options.seed),
            most_surprise: options.mirostat.map_or(0.0, |mirostat| 2.0 * mirostat.tau),
            candidates: Candidates::default(),
            recent: Vec::new(),
            options,
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

    /// Chooses the next token. `history` is the prompt and the answer so far. Bias and penalties
    /// modify `logits` in place.
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
        self.bias(logits)?;
        self.penalize(logits, history)?;
        let best = argmax(logits).ok_or(SampleError::Empty(logits.len()))?;
        if self.options.temperature == 0.0 {
            return Ok(best as u32);
        }
        self.filter(logits);
        let (token, surprise) = self.candidates.draw(&mut self.random);
        if let Some(mirostat) = self.options.mirostat {
            self.most_surprise -= mirostat.eta * (surprise - mirostat.tau);
        }
        Ok(token)
    }

    /// The tokens that [`Sampler::sample`] would draw from, with their probabilities.
    pub fn distribution(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
    ) -> Result<Vec<(u32, f32)>, SampleError> {
        let (random, most_surprise) = (self.random.clone(), self.most_surprise);
        let token = self.sample(logits, history)?;
        (self.random, self.most_surprise) = (random, most_surprise);
        if self.options.temperature == 0.0 {
            return Ok(vec![(token, 1.0)]);
        }
        Ok(self.candidates.probabilities())
    }

    /// Collects the tokens to draw from, with their weights.
    fn filter(&mut self, logits: &[f32]) {
        let (o, candidates) = (&self.options, &mut self.candidates);
        candidates.collect(logits);
        if o.mirostat.is_some() {
            candidates.weigh(o.temperature);
            candidates.keep_unsurprising(self.most_surprise);
            return;
        }
        candidates.keep_top_k(o.top_k);
        if o.filters_probabilities() {
            candidates.weigh(1.0);
            candidates.keep_typical(o.typical_p);
            candidates.keep_top_p(o.top_p);
            candidates.keep_min_p(o.min_p);
        }
        if o.xtc_probability > 0.0 && self.random.unit() < f64::from(o.xtc_probability) {
            candidates.exclude_top(o.xtc_threshold);
        }
        candidates.weigh(o.temperature);
    }

    fn bias(&self, logits: &mut [f32]) -> Result<(), SampleError> {
        let n_vocab = logits.len();
        for &(id, bias) in &self.options.logit_bias {
            let logit = logits.get_mut(id as usize);
            *logit.ok_or(SampleError::Bias { id, n_vocab })? += bias;
        }
        Ok(())
    }

    fn penalize(&mut self, logits: &mut [f32], history: &[u32]) -> Result<(), SampleError> {
        let (o, n_vocab) = (&self.options, logits.len());
        let unknown = |id| SampleError::History { id, n_vocab };
        if o.penalizes() {
            let n_last = o.repeat_last_n.unwrap_or(history.len()).min(history.len());
            self.recent.clear();
            self.recent
                .extend_from_slice(&history[history.len() - n_last..]);
            self.recent.sort_unstable();
            for same in self.recent.chunk_by(|a, b| a == b) {
                let logit = logits.get_mut(same[0] as usize);
                let logit = logit.ok_or_else(|| unknown(same[0]))?;
                if *logit > 0.0 {
                    *logit /= o.repetition_penalty;
                } else {
                    *logit *= o.repetition_penalty;
                }
                *logit -= o.frequency_penalty * same.len() as f32 + o.presence_penalty;
            }
        }
        if o.dry.is_on() {
            for (id, penalty) in o.dry.penalties(history) {
                *logits.get_mut(id as usize).ok_or_else(|| unknown(id))? -= penalty;
            }
        }
        Ok(())
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

//! Chooses the next token from logits.
//!
//! The steps, in the default order of llama.cpp's samplers: logit bias, penalties (repetition, then
//! frequency and presence), DRY, the rules of the model's files, top-k, typical, top-p, min-p, XTC,
//! temperature, draw. Filters work on probabilities at temperature 1, each on what the one before
//! it kept. Mirostat 2 takes the place of all filters: temperature, then mirostat. At temperature 0
//! the token with the greatest logit after bias, penalties, DRY and rules is chosen (greedy), and
//! no filter applies.
//!
//! With [`SampleOptions::temperature_first`], filters work on probabilities at the temperature, in
//! the order of transformers: top-H, top-k, top-p, min-p, typical, epsilon, eta, draw.

mod candidates;
mod dry;
mod logprobs;
mod options;
mod random;
mod rules;

use std::cmp::Ordering;
use std::sync::Arc;

pub use dry::Dry;
pub use logprobs::{Logprobs, TokenLogprob, log_sum_exp};
pub use options::{Mirostat, SampleError, SampleOptions};
pub use rules::{LengthPenalty, Rules};

use candidates::Candidates;
pub(crate) use random::Random;

/// Chooses tokens. Holds the state of the random number generator and scratch memory.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    random: Random,
    /// Mirostat's limit of the surprise of a token, in bits.
    most_surprise: f32,
    candidates: Candidates,
    recent: Vec<u32>,
    /// Tokens of the prompt, from the first choice on.
    n_prompt: Option<usize>,
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
            n_prompt: None,
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

    /// Chooses the next token. `history` is the prompt and the answer so far; the first call begins
    /// the answer. Bias, penalties and rules modify `logits` in place.
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
        let n_prompt = *self.n_prompt.get_or_insert(history.len());
        let rules = Arc::clone(&self.options.rules);
        let n_prompt = n_prompt.min(history.len());
        rules.bias(logits, history, n_prompt);
        self.penalize(logits, history)?;
        rules.apply(logits, history, n_prompt);
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
        if o.temperature_first {
            candidates.weigh(o.temperature);
            candidates.keep_top_h(o.top_h, SampleOptions::TOP_H_TOKENS);
            candidates.keep_top_k(o.top_k);
            candidates.keep_top_p(o.top_p);
            candidates.keep_min_p(o.min_p);
            candidates.keep_typical(o.typical_p);
            candidates.keep_probable(o.epsilon_cutoff);
            candidates.keep_eta(o.eta_cutoff);
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
        let recent = &mut self.recent;
        if o.repetition_penalty != 1.0 {
            sort_last(recent, history, o.repetition_last_n);
            recent.dedup();
            for token in recent {
                let logit = logits.get_mut(*token as usize);
                let logit = logit.ok_or_else(|| unknown(*token))?;
                if *logit > 0.0 {
                    *logit /= o.repetition_penalty;
                } else {
                    *logit *= o.repetition_penalty;
                }
            }
        }
        let recent = &mut self.recent;
        if o.subtracts() {
            sort_last(recent, history, o.repeat_last_n);
            for same in recent.chunk_by(|a, b| a == b) {
                let logit = logits.get_mut(same[0] as usize);
                let logit = logit.ok_or_else(|| unknown(same[0]))?;
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

/// The last tokens of `history`, sorted, in the memory of `recent`; `None` for all tokens.
fn sort_last(recent: &mut Vec<u32>, history: &[u32], last_n: Option<usize>) {
    let n_last = last_n.unwrap_or(history.len()).min(history.len());
    recent.clear();
    recent.extend_from_slice(&history[history.len() - n_last..]);
    recent.sort_unstable();
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

//! Log probabilities of tokens.

use std::cmp::Ordering;

/// The log probability of a token of an answer or a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability; minus infinity if the model excludes the token.
    /// `None` for the first token of a prompt, which follows nothing.
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, in falling order.
    pub top: Vec<(u32, f32)>,
}

/// Log probabilities in the place of one token: what the model says, before bias, penalties,
/// grammars and temperature.
#[derive(Debug, Clone, Default)]
pub struct Logprobs {
    logits: Vec<f32>,
    /// The logarithm of the sum of `exp(logit)`.
    log_sum: f64,
}

/// The logarithm of the sum of `exp(logit)`: a logit less this is a log probability.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let best = f64::from(best);
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - best).exp()).sum();
    best + sum.ln()
}

impl Logprobs {
    /// Takes the logits, whose memory is reused.
    pub fn set(&mut self, logits: &[f32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.log_sum = log_sum_exp(logits);
    }

    /// The log probability of `token`, and the `n_top` most likely tokens.
    pub fn of(&self, token: u32, n_top: usize) -> TokenLogprob {
        let logprob = |logit: f32| (f64::from(logit) - self.log_sum) as f32;
        let by_logit = |a: &u32, b: &u32| -> Ordering {
            let (x, y) = (self.logits[*a as usize], self.logits[*b as usize]);
            y.total_cmp(&x).then(a.cmp(b))
        };
        let n_top = n_top.min(self.logits.len());
        let mut ids: Vec<u32> = Vec::new();
        if n_top > 0 {
            ids.extend(0..self.logits.len() as u32);
            ids.select_nth_unstable_by(n_top - 1, by_logit);
            ids.truncate(n_top);
            ids.sort_unstable_by(by_logit);
        }
        let top = ids
            .iter()
            .map(|id| (*id, logprob(self.logits[*id as usize])));
        TokenLogprob {
            token,
            logprob: self.logits.get(token as usize).map(|logit| logprob(*logit)),
            top: top.collect(),
        }
    }
}

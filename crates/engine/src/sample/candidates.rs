//! The tokens that can still be chosen, and the filters that remove the unlikely ones.
//!
//! Filters of probabilities work on weights at temperature 1, relative to the best logit. No filter
//! removes the last token.

use std::cmp::Ordering;

use super::random::Random;

/// A token that can still be drawn. `weight` is proportional to its probability.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub id: u32,
    pub logit: f32,
    pub weight: f32,
}

impl Candidate {
    /// Orders by descending logit, then by ascending id.
    fn best_first(a: &Self, b: &Self) -> Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }
}

/// Candidates, whose memory is reused.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// All tokens with a logit above minus infinity, without weights.
    pub fn collect(&mut self, logits: &[f32]) {
        self.0.clear();
        let tokens = logits.iter().enumerate();
        let tokens = tokens.filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        self.0.extend(tokens.map(|(id, &logit)| Candidate {
            id: id as u32,
            logit,
            weight: 0.0,
        }));
    }

    /// Sets weights at a temperature, relative to the best logit, so that `exp` cannot overflow.
    pub fn weigh(&mut self, temperature: f32) {
        let best = |best: f32, c: &Candidate| best.max(c.logit);
        let best = self.0.iter().fold(f32::NEG_INFINITY, best);
        for candidate in &mut self.0 {
            candidate.weight = ((candidate.logit - best) / temperature).exp();
        }
        self.0.retain(|candidate| candidate.weight > 0.0);
    }

    pub fn keep_top_k(&mut self, k: usize) {
        if k > 0 && k < self.0.len() {
            self.0.select_nth_unstable_by(k - 1, Candidate::best_first);
            self.0.truncate(k);
        }
    }

    /// Sorts only as many of the best candidates as the sum needs.
    pub fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 {
            return;
        }
        let wanted = self.sum() * f64::from(top_p);
        let (mut sum, mut done, mut step) = (0.0, 0, 128);
        while done < self.0.len() {
            let rest = &mut self.0[done..];
            let n = step.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n - 1, Candidate::best_first);
            }
            rest[..n].sort_unstable_by(Candidate::best_first);
            for candidate in &rest[..n] {
                sum += f64::from(candidate.weight);
                done += 1;
                if sum >= wanted {
                    self.0.truncate(done);
                    return;
                }
            }
            step *= 4;
        }
    }

    /// Keeps tokens with at least this fraction of the greatest probability. The greatest weight is
    /// 1, unless an earlier filter removed the best token.
    pub fn keep_min_p(&mut self, min_p: f32) {
        if min_p > 0.0 {
            let most = self.0.iter().fold(0.0f32, |most, c| most.max(c.weight));
            self.0.retain(|c| c.weight >= min_p * most);
        }
    }

    /// Locally typical sampling (Meister et al. 2022): keeps the tokens whose surprise is closest
    /// to the expected one, until their probabilities sum to more than `typical_p`.
    pub fn keep_typical(&mut self, typical_p: f32) {
        if typical_p >= 1.0 {
            return;
        }
        let sum = self.sum();
        let surprise = |c: &Candidate| -(f64::from(c.weight) / sum).ln();
        let expected: f64 = self
            .0
            .iter()
            .map(|c| f64::from(c.weight) / sum * surprise(c))
            .sum();
        let distance = |c: &Candidate| (surprise(c) - expected).abs();
        self.0.sort_unstable_by(|a, b| {
            let order = distance(a).total_cmp(&distance(b));
            order.then(Candidate::best_first(a, b))
        });
        let mut kept = 0.0;
        let enough = self.0.iter().position(|c| {
            kept += f64::from(c.weight) / sum;
            kept > f64::from(typical_p)
        });
        self.0
            .truncate(enough.map_or(self.0.len(), |last| last + 1));
    }

    /// Top-H sampling: of the `n` best tokens, keeps the best ones whose shares of the entropy of
    /// these tokens sum to at most `top_h` of it.
    pub fn keep_top_h(&mut self, top_h: f32, n: usize) {
        if top_h >= 1.0 {
            return;
        }
        self.keep_top_k(n);
        self.0.sort_unstable_by(Candidate::best_first);
        let most = self.entropy() * f64::from(top_h);
        let (sum, mut kept) = (self.sum(), 0.0);
        let is_over = |c: &Candidate| {
            let share = f64::from(c.weight) / sum;
            kept -= share * share.ln();
            kept > most
        };
        let end = self.0.iter().position(is_over);
        self.0.truncate(end.unwrap_or(self.0.len()).max(1));
    }

    /// Keeps the tokens with at least this probability, or the best one.
    pub fn keep_probable(&mut self, least: f32) {
        if least > 0.0 {
            let wanted = self.sum() * f64::from(least);
            let most = self.0.iter().fold(0.0f32, |most, c| most.max(c.weight));
            self.0
                .retain(|c| f64::from(c.weight) >= wanted || c.weight == most);
        }
    }

    /// Eta sampling: the least probability falls with the entropy.
    pub fn keep_eta(&mut self, eta: f32) {
        if eta > 0.0 {
            let falling = f64::from(eta).sqrt() * (-self.entropy()).exp();
            self.keep_probable(f64::from(eta).min(falling) as f32);
        }
    }

    /// The entropy in nats.
    fn entropy(&self) -> f64 {
        let sum = self.sum();
        let share = |c: &Candidate| f64::from(c.weight) / sum;
        self.0.iter().map(|c| -share(c) * share(c).ln()).sum()
    }

    /// "Exclude top choices": of the tokens with at least the probability `threshold`, keeps only
    /// the least likely.
    pub fn exclude_top(&mut self, threshold: f32) {
        let wanted = self.sum() * f64::from(threshold);
        let is_top = |c: &&Candidate| f64::from(c.weight) >= wanted;
        let least = self
            .0
            .iter()
            .filter(is_top)
            .max_by(|a, b| Candidate::best_first(a, b));
        if let Some(least) = least.copied() {
            self.0
                .retain(|c| Candidate::best_first(c, &least) != Ordering::Less);
        }
    }

    /// Mirostat 2: keeps the tokens whose surprise is at most `most` bits, or the best one.
    pub fn keep_unsurprising(&mut self, most: f32) {
        let sum = self.sum();
        self.0.sort_unstable_by(Candidate::best_first);
        let is_over = |c: &Candidate| surprise(c, sum) > f64::from(most);
        let n = self.0.iter().position(is_over).unwrap_or(self.0.len());
        self.0.truncate(n.max(1));
    }

    /// Draws a token with a probability proportional to its weight; also its surprise in bits.
    pub fn draw(&mut self, random: &mut Random) -> (u32, f32) {
        // Sorting by id makes the draw independent of the order that the selection algorithms
        // leave.
        self.0.sort_unstable_by_key(|candidate| candidate.id);
        let sum = self.sum();
        let mut left = random.unit() * sum;
        let drawn = self.0.iter().find(|candidate| {
            left -= f64::from(candidate.weight);
            left < 0.0
        });
        let drawn = drawn.or(self.0.last());
        drawn.map_or((0, 0.0), |c| (c.id, surprise(c, sum) as f32))
    }

    /// Tokens with their probabilities.
    pub fn probabilities(&self) -> Vec<(u32, f32)> {
        let sum = self.sum();
        let share = |c: &Candidate| (c.id, (f64::from(c.weight) / sum) as f32);
        self.0.iter().map(share).collect()
    }

    fn sum(&self) -> f64 {
        self.0.iter().map(|c| f64::from(c.weight)).sum()
    }
}

fn surprise(candidate: &Candidate, sum: f64) -> f64 {
    -(f64::from(candidate.weight) / sum).log2()
}

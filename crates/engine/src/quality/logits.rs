//! Compares the logits that two models give at the same position.

use crate::embed::similarity::Similarity;
use crate::sample::log_sum_exp;

/// Tokens of [`Pair::same_five`].
const N_TOP: usize = 5;

/// A model beside the reference at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Negative log-likelihood of the token that follows, by the model.
    pub nll: f64,
    /// The same, by the reference.
    pub reference_nll: f64,
    /// `KL(P || Q) = sum(p * (ln p - ln q))`, at least 0; infinite if `Q` excludes a token of `P`.
    pub kl: f64,
    /// Whether both find the same token most likely.
    pub same_first: bool,
    /// How many of the reference's five most likely tokens are among the model's five, 0 to 1.
    pub same_five: f64,
    /// Cosine of the logits.
    pub cosine: f64,
}

/// Compares two rows of logits, one for each token of the vocabulary, where `next` follows; `None`
/// if the rows differ in length, lack `next`, or hold NaN or positive infinity.
///
/// Minus infinity is the logit of a token that cannot follow. It is left out of the cosine.
pub fn compare(model: &[f32], reference: &[f32], next: u32) -> Option<Pair> {
    let is_fine = |row: &[f32]| {
        let is_logit = |x: &f32| x.is_finite() || *x == f32::NEG_INFINITY;
        row.iter().all(is_logit) && row.iter().any(|x| x.is_finite())
    };
    let next = next as usize;
    if model.len() != reference.len() || next >= model.len() {
        return None;
    }
    if !is_fine(model) || !is_fine(reference) {
        return None;
    }
    let (sum, reference_sum) = (log_sum_exp(model), log_sum_exp(reference));
    let first = [greatest(model, N_TOP), greatest(reference, N_TOP)];
    let n_same = first[1].iter().filter(|id| first[0].contains(id)).count();
    Some(Pair {
        nll: sum - f64::from(model[next]),
        reference_nll: reference_sum - f64::from(reference[next]),
        kl: divergence((model, sum), (reference, reference_sum)),
        same_first: first[0].first() == first[1].first(),
        same_five: n_same as f64 / first[1].len() as f64,
        cosine: cosine(model, reference),
    })
}

/// `KL(P || Q)` of logits with the logarithms of the sums of their exponentials.
fn divergence((model, sum): (&[f32], f64), (reference, reference_sum): (&[f32], f64)) -> f64 {
    let mut kl = 0.0;
    for (q, p) in model.iter().zip(reference) {
        let log_p = f64::from(*p) - reference_sum;
        let share = log_p.exp();
        // The limit of p ln p at 0 is 0.
        if share > 0.0 {
            kl += share * (log_p - (f64::from(*q) - sum));
        }
    }
    // Of equal distributions, rounding may leave less than 0.
    kl.max(0.0)
}

/// `KL(P || Q)` where only some tokens of `P` are known: they, and all others together. `logprobs`
/// are the natural logarithms of their probabilities. It is at most the divergence of all tokens;
/// infinite if `Q` excludes a token. `None` if the row has no such token, NaN or positive infinity.
pub fn coarse_divergence(model: &[f32], tokens: &[u32], logprobs: &[f64]) -> Option<f64> {
    let is_no_logit = |x: &f32| x.is_nan() || *x == f32::INFINITY;
    if model.iter().any(is_no_logit) || model.iter().all(|x| x.is_infinite()) {
        return None;
    }
    let sum = log_sum_exp(model);
    let (mut kl, mut known, mut known_q) = (0.0, 0.0, 0.0);
    for (id, log_p) in tokens.iter().zip(logprobs) {
        let log_q = f64::from(*model.get(*id as usize)?) - sum;
        let share = log_p.exp();
        if share > 0.0 {
            kl += share * (log_p - log_q);
        }
        known += share;
        known_q += log_q.exp();
    }
    // What rounding leaves of nothing counts as nothing.
    let (rest, rest_q) = (1.0 - known, 1.0 - known_q);
    if rest > 1e-9 {
        kl += rest * (rest.ln() - rest_q.max(f64::MIN_POSITIVE).ln());
    }
    Some(kl.max(0.0))
}

fn cosine(model: &[f32], reference: &[f32]) -> f64 {
    if model.iter().chain(reference).all(|x| x.is_finite()) {
        return Similarity::Cosine.compare(model, reference);
    }
    let both = model.iter().zip(reference);
    let both = both.filter(|(x, y)| x.is_finite() && y.is_finite());
    let (x, y): (Vec<f32>, Vec<f32>) = both.map(|(x, y)| (*x, *y)).unzip();
    Similarity::Cosine.compare(&x, &y)
}

/// The `n` tokens with the greatest logits, the greatest first; of equal logits the lowest token
/// first. Fewer if the row is shorter.
pub fn greatest(row: &[f32], n: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(n + 1);
    for (id, logit) in (0..).zip(row) {
        let is_full = best.len() == n;
        if is_full && best.last().is_none_or(|last| *logit <= row[*last as usize]) {
            continue;
        }
        let place = best.partition_point(|other| row[*other as usize] >= *logit);
        best.insert(place, id);
        best.truncate(n);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_cannot_be_compared_are_refused() {
        let row = [1.0, 2.0, 3.0];
        assert!(compare(&row, &row, 2).is_some());
        for (other, next) in [
            (&[1.0, 2.0][..], 0),
            (&row[..], 3),
            (&[1.0, f32::NAN, 0.0], 0),
            (&[1.0, f32::INFINITY, 0.0], 0),
            (&[f32::NEG_INFINITY; 3], 0),
        ] {
            assert_eq!(compare(&row, other, next), None, "{other:?} {next}");
        }
    }

    #[test]
    fn a_token_that_only_the_model_excludes_makes_the_divergence_infinite() {
        let excludes = [0.0, f32::NEG_INFINITY, 0.0];
        let allows = [0.0, 0.0, 0.0];
        let pair = compare(&excludes, &allows, 0).unwrap();
        assert_eq!(pair.kl, f64::INFINITY);
        let pair = compare(&allows, &excludes, 0).unwrap();
        // Two tokens of probability 1/2 beside three of 1/3.
        assert!((pair.kl - 1.5f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn a_divergence_of_some_tokens_is_at_most_that_of_all() {
        let (model, reference) = ([0.5, 2.0, -1.0, 0.0, 1.0], [1.0, 1.5, -0.5, 0.0, 0.5]);
        let whole = compare(&model, &reference, 0).unwrap().kl;
        let sum = log_sum_exp(&reference);
        let mut last = -1.0;
        for n in [0, 1, 2, 3, 5] {
            let tokens = greatest(&reference, n);
            let logprob = |id: &u32| f64::from(reference[*id as usize]) - sum;
            let logprobs: Vec<f64> = tokens.iter().map(logprob).collect();
            let kl = coarse_divergence(&model, &tokens, &logprobs).unwrap();
            assert!(last < kl && kl <= whole + 1e-12, "{n}: {kl} of {whole}");
            last = kl;
        }
        assert!((last - whole).abs() < 1e-12);
        assert_eq!(coarse_divergence(&[f32::NAN, 0.0], &[0], &[-1.0]), None);
        assert_eq!(coarse_divergence(&[0.0], &[7], &[-1.0]), None);
    }

    #[test]
    fn the_greatest_come_first_and_of_equal_ones_the_lowest() {
        let row = [1.0, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        assert_eq!(greatest(&row, 3), [1, 3, 2]);
        assert_eq!(greatest(&row, 9), [1, 3, 2, 0, 4]);
        assert_eq!(greatest(&row, 0), [0; 0]);
    }
}

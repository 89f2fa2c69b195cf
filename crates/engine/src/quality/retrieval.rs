//! How well a ranking of documents finds those that are relevant.

use std::cmp::Ordering;

/// The `k` documents with the greatest scores, the best first; of equal scores the lowest index
/// first.
pub fn ranked(scores: &[f64], k: usize) -> Vec<usize> {
    let by_score = |a: &usize, b: &usize| -> Ordering {
        scores[*b].total_cmp(&scores[*a]).then_with(|| a.cmp(b))
    };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if k < order.len() {
        order.select_nth_unstable_by(k, by_score);
        order.truncate(k);
    }
    order.sort_unstable_by(by_score);
    order
}

/// nDCG@k: `DCG = sum over ranks i from 1 of gain_i / log2(i + 1)`, over the DCG of the best order.
/// `ranked` has the gain of each document in the order of the ranking, `relevant` the gains of all
/// relevant documents. 0 if nothing is relevant.
pub fn ndcg(ranked: &[f64], relevant: &[f64], k: usize) -> f64 {
    let dcg = |gains: &[f64]| -> f64 {
        let ranks = gains.iter().take(k).zip(1u32..);
        ranks.map(|(gain, i)| gain / f64::from(i + 1).log2()).sum()
    };
    let mut best = relevant.to_vec();
    best.sort_by(|a, b| b.total_cmp(a));
    let most = dcg(&best);
    if most > 0.0 { dcg(ranked) / most } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_of_equal_ones_the_lowest() {
        let scores = [0.5, 0.9, 0.5, -1.0, 0.9];
        assert_eq!(ranked(&scores, 3), [1, 4, 0]);
        assert_eq!(ranked(&scores, 9), [1, 4, 0, 2, 3]);
        assert_eq!(ranked(&scores, 0), [0; 0]);
        assert_eq!(ndcg(&[1.0], &[], 10), 0.0);
    }
}

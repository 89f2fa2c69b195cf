//! Decides which sequences share a program call.

/// Maximum product of tokens and tokens in a call. Without fused attention, scores take 4 bytes for
/// each pair and each head, so 12 heads take 192 MB. A single sequence may exceed the limit.
const MAX_SCORES: usize = 1 << 22;

/// The fixed cost of a call, in tokens: the weights are read once more. Reading a weight takes 9
/// times as long as multiplying a token by the weight (4 bytes / 20 GB/s over 2 operations / 90
/// GFLOP/s). all-MiniLM-L6-v2 in f32 took 3.4 ms per call and 0.31 ms per token, a ratio of 11 (one
/// thread of an EPYC with AVX2, November 2026), and 13 with two threads.
const CALL_TOKENS: usize = 12;

/// Groups indices into `lengths` into batches. The longest sequences come first, so that memory is
/// allocated once. Each batch has at most `batch_tokens` tokens with padding, and the total cost of
/// padding and calls is minimal.
pub(super) fn plan(lengths: &[usize], batch_tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|idx| std::cmp::Reverse(lengths[*idx]));
    // least[i]: the minimal cost of the sequences from the i-th on, and the size of their first
    // batch.
    let mut least = vec![(0, 0); order.len() + 1];
    for start in (0..order.len()).rev() {
        let length = lengths[order[start]];
        let max_len = batch_len(length, batch_tokens).min(order.len() - start);
        let cost = |n: usize| {
            CALL_TOKENS
                .saturating_add(length.saturating_mul(n))
                .saturating_add(least[start + n].0)
        };
        // Among batches of equal cost the larger one wins, because fewer calls remain.
        least[start] = (1..=max_len)
            .rev()
            .map(|n| (cost(n), n))
            .min_by_key(|(cost, _)| *cost)
            .unwrap_or((0, 1));
    }
    let mut batches = Vec::new();
    let mut start = 0;
    while start < order.len() {
        let end = start + least[start].1.max(1);
        batches.push(order[start..end].to_vec());
        start = end;
    }
    batches
}

/// Maximum number of sequences in a batch whose longest sequence has `length` tokens.
fn batch_len(length: usize, batch_tokens: usize) -> usize {
    let length = length.max(1);
    (batch_tokens / length)
        .min(MAX_SCORES / length.saturating_mul(length))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_every_sequence_once_and_keep_the_budget() {
        let lengths: Vec<usize> = (0..500).map(|i| 1 + i * 7919 % 300).collect();
        for budget in [1, 64, 300, 4096] {
            let batches = plan(&lengths, budget);
            let mut seen: Vec<usize> = batches.concat();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..lengths.len()), "{budget}");
            for batch in &batches {
                let longest = batch.iter().map(|i| lengths[*i]).max().unwrap();
                assert!(
                    batch.len() == 1 || batch.len() * longest <= budget,
                    "{budget}: {batch:?}"
                );
            }
        }
        assert_eq!(plan(&[], 10), Vec::<Vec<usize>>::new());
        assert_eq!(
            plan(&[3, 3, 5], 6),
            [vec![2], vec![0, 1]],
            "equal lengths keep their order"
        );
    }

    #[test]
    fn padding_and_calls_cost_the_least_that_they_can() {
        /// The least cost of sorted lengths, by trying every way to cut them.
        fn tried(lengths: &[usize], batch_tokens: usize) -> usize {
            let Some(&longest) = lengths.first() else {
                return 0;
            };
            let fits = |n: &usize| *n == 1 || n * longest <= batch_tokens;
            let cost = |n: usize| CALL_TOKENS + longest * n + tried(&lengths[n..], batch_tokens);
            (1..=lengths.len()).filter(fits).map(cost).min().unwrap()
        }
        for seed in 0..40 {
            let lengths: Vec<usize> = (0..11)
                .map(|i| 1 + (i * 7919 + seed * 104_729) % 61)
                .collect();
            let mut sorted = lengths.clone();
            sorted.sort_unstable_by_key(|n| std::cmp::Reverse(*n));
            for budget in [1, 70, 200, 4096] {
                let cost = |batch: Vec<usize>| {
                    CALL_TOKENS + batch.len() * batch.iter().map(|i| lengths[*i]).max().unwrap()
                };
                let batches = plan(&lengths, budget);
                for batch in &batches {
                    // `Embedder::batches` promises it.
                    let alone: Vec<usize> = batch.iter().map(|i| lengths[*i]).collect();
                    assert_eq!(plan(&alone, budget).len(), 1, "{alone:?}, {budget}");
                }
                let found: usize = batches.into_iter().map(cost).sum();
                assert_eq!(found, tried(&sorted, budget), "{lengths:?}, {budget}");
            }
        }
    }

    #[test]
    fn long_sequences_share_no_call() {
        assert_eq!(batch_len(2048, usize::MAX), 1);
        assert_eq!(batch_len(512, usize::MAX), 16);
        assert_eq!(batch_len(usize::MAX, usize::MAX), 1);
    }
}

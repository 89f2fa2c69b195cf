//! Which sequences share a call.

/// Tokens times tokens of a call at most: where attention is not fused, its scores take 4 bytes for each of them and each
/// head, so that 12 heads take 192 MB. A single sequence may have more.
const MOST_SCORES: usize = 1 << 22;

/// Batches of indices into `lengths`: longest first, so that memory is taken once, each within `batch_tokens` with padding.
pub(super) fn plan(lengths: &[usize], batch_tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|idx| std::cmp::Reverse(lengths[*idx]));
    let mut batches = Vec::new();
    let mut rest = &order[..];
    while let Some(&longest) = rest.first() {
        let (batch, after) = rest.split_at(batch_len(lengths[longest], batch_tokens).min(rest.len()));
        batches.push(batch.to_vec());
        rest = after;
    }
    batches
}

/// Sequences of a batch whose longest has `length` tokens.
fn batch_len(length: usize, batch_tokens: usize) -> usize {
    let length = length.max(1);
    (batch_tokens / length).min(MOST_SCORES / length.saturating_mul(length)).max(1)
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
                assert!(batch.len() == 1 || batch.len() * longest <= budget, "{budget}: {batch:?}");
            }
        }
        assert_eq!(plan(&[], 10), Vec::<Vec<usize>>::new());
        assert_eq!(plan(&[3, 3, 5], 6), [vec![2], vec![0, 1]], "equal lengths keep their order");
    }

    #[test]
    fn long_sequences_share_no_call() {
        assert_eq!(batch_len(2048, usize::MAX), 1);
        assert_eq!(batch_len(512, usize::MAX), 16);
        assert_eq!(batch_len(usize::MAX, usize::MAX), 1);
    }
}

//! Pseudo-random texts, which are the same in every run.

use super::Length;

/// The high bits of a linear congruential generator (Knuth's MMIX constants).
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Pseudo-random tokens, which depend on `seed` only.
pub fn ids(n: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    // The first tokens of most vocabularies are control tokens.
    let first = if vocab_size > 2000 { 1000 } else { 0 };
    (0..n)
        .map(|_| first + (next(&mut state) % (vocab_size - first as usize).max(1) as u64) as u32)
        .collect()
}

/// Lengths in a range, uniform on a logarithmic scale, like those of sentences and paragraphs.
pub fn lengths(Length(from, to): Length, n: usize) -> Vec<usize> {
    let mut state = 5;
    let (low, high) = ((from as f64).ln(), (to as f64).ln());
    let mut at = || low + (high - low) * (next(&mut state) as f64 / (1u64 << 31) as f64);
    (0..n)
        .map(|_| (at().exp().round() as usize).clamp(from, to))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lie_between_and_differ() {
        let all = lengths(Length(8, 256), 128);
        assert!(all.iter().all(|n| (8..=256).contains(n)), "{all:?}");
        let short = all.iter().filter(|n| **n < 45).count();
        // Half of them below the geometric mean.
        assert!((40..90).contains(&short), "{short}");
        assert_eq!(lengths(Length(12, 12), 5), vec![12; 5]);
    }

    #[test]
    fn tokens_are_of_the_vocabulary() {
        for vocab in [1, 100, 3000] {
            assert!(ids(200, vocab, 3).iter().all(|id| (*id as usize) < vocab));
        }
    }
}

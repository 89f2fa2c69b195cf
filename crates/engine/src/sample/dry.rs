//! DRY ("don't repeat yourself"): lowers the logit of a token that would continue a sequence which
//! the history already contains, the more the longer that sequence is.
//!
//! A penalty is `multiplier * base^(length - allowed_length)`, where `length` is the longest end of
//! the history that also occurs before the token's earlier occurrence. This is the sampler of
//! llama.cpp for breakers of one token.

use std::collections::BTreeMap;

/// Options of DRY.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Scale of the penalty; 0 turns DRY off.
    pub multiplier: f32,
    /// Factor of the penalty for each further token of a repeated sequence; at least 1.
    pub base: f32,
    /// Sequences shorter than this may repeat.
    pub allowed_length: usize,
    /// Number of last tokens in the history that count; `None` for all.
    pub last_n: Option<usize>,
    /// Tokens over which no sequence is continued, such as line breaks. They get no penalty.
    pub breakers: Vec<u32>,
}

impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: None,
            breakers: Vec::new(),
        }
    }
}

impl Dry {
    /// Whether any token can get a penalty.
    pub(super) fn is_on(&self) -> bool {
        self.multiplier != 0.0
    }

    /// What to subtract from the logits of tokens, after `history`. The breakers are sorted.
    pub(super) fn penalties(&self, history: &[u32]) -> Vec<(u32, f32)> {
        let n_last = self.last_n.unwrap_or(history.len()).min(history.len());
        let recent = &history[history.len() - n_last..];
        let is_breaker = |token: &u32| self.breakers.binary_search(token).is_ok();
        // A sequence does not reach beyond the last breaker.
        let longest = recent.iter().rev().position(is_breaker).unwrap_or(n_last);
        if n_last <= self.allowed_length || longest < self.allowed_length {
            return Vec::new();
        }
        let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
        for (before, length) in ends_again(recent).into_iter().enumerate() {
            let (token, length) = (recent[before + 1], length.min(longest));
            if length >= self.allowed_length && !is_breaker(&token) {
                let known = lengths.entry(token).or_default();
                *known = length.max(*known);
            }
        }
        let penalty = |length: usize| {
            let exponent = (length - self.allowed_length) as f32;
            // Finite, however long the sequence is.
            (self.multiplier * self.base.powf(exponent)).min(f32::MAX)
        };
        lengths.into_iter().map(|(t, n)| (t, penalty(n))).collect()
    }
}

/// For each token but the last, the length of the longest sequence that ends there and also ends
/// the whole (the Z algorithm on the reversed tokens, linear in their number).
fn ends_again(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let at = |i: usize| tokens[n - 1 - i];
    let mut z = vec![0; n];
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut length = if i < right {
            z[i - left].min(right - i)
        } else {
            0
        };
        while i + length < n && at(length) == at(i + length) {
            length += 1;
        }
        z[i] = length;
        if i + length > right {
            (left, right) = (i, i + length);
        }
    }
    (0..n.saturating_sub(1))
        .map(|before| z[n - 1 - before])
        .collect()
}

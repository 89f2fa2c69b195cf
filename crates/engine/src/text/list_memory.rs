//! The memory that a tokenizer takes which is made of lists, as a GGUF file has them.

use serde_json::Value;
use thane_mil::footprint::{buckets, list, piece, table};

use super::Vocab;
use super::memory::{ENTRY, FIXED, MERGE, Searched, growing_table_bytes, table_bytes};
use super::vocab::TokenKind;

/// The memory of a tokenizer that is made of lists.
pub(super) struct MakingOfLists {
    /// Bytes of the lists.
    pub(super) lists: usize,
    /// Bytes of the tokenizer once it is made.
    pub(super) kept: usize,
    /// Most bytes at once, the lists included. Where the lists become a `tokenizer.json` first,
    /// that one counts for itself.
    pub(super) most: usize,
}

impl MakingOfLists {
    pub(super) fn new(vocab: &Vocab, kinds: &[TokenKind]) -> Self {
        let (n, n_bytes) = (vocab.tokens.len(), vocab.tokens.n_bytes());
        let mut added = Searched::default();
        let searched = vocab
            .tokens
            .iter()
            .zip(kinds)
            .filter(|(_, kind)| matches!(kind, TokenKind::Control | TokenKind::UserDefined));
        searched.for_each(|(token, _)| added.add(token.len()));
        let merges = vocab.merges.as_ref();
        let n_merges = merges.map_or(0, |merges| merges.len());
        let template = vocab.chat_template.as_ref().map_or(0, String::len);
        let of_scores = vocab
            .scores
            .as_ref()
            .map_or(0, |scores| piece(scores.len() * 4));
        let of_types = vocab
            .token_types
            .as_ref()
            .map_or(0, |types| piece(types.len() * 4));
        let of_merges = merges.map_or(0, |merges| merges.held_bytes());
        let tokens = vocab.tokens.held_bytes();
        let lists = tokens + of_scores + of_types + of_merges + template;
        if let "bert" | "gemma4" = vocab.model.as_str() {
            let document = document_bytes(vocab, n_merges, added);
            return Self {
                lists,
                kept: 0,
                most: lists + document,
            };
        }
        // Of all tokens, and of those that are searched for.
        let index = |n: usize| piece((2 * n).next_power_of_two() * size_of::<u32>());
        let made = table_bytes(n, n_bytes) + index(n) + 2 * index(added.n) + n * 4;
        let kept = match vocab.model.as_str() {
            "gpt2" => tokens + made + table(n_merges, MERGE) + added.n_bytes() + FIXED,
            _ => of_scores + made + table(vocab.inner.len(), 4) + FIXED,
        };
        // The kinds, and lists of ids.
        let beside = growing_table_bytes(n, n_bytes) + 4 * n * size_of::<u32>();
        Self {
            lists,
            kept,
            most: lists + kept + beside,
        }
    }
}

/// Bytes of the document that lists become, as a value and as text.
fn document_bytes(vocab: &Vocab, n_merges: usize, added: Searched) -> usize {
    /// A value of an added token has eight keys.
    const OF_ADDED: usize = 14 * ENTRY + 9 * 64;
    /// The text grows: the old one and the new one are there at once.
    const GROWTH: usize = 3;
    /// Marks, spaces and numbers around a token or a merge.
    const AROUND: usize = 24;
    let merges = || vocab.merges.iter().flat_map(|merges| merges.iter());
    let texts = || vocab.tokens.iter().chain(merges());
    let (n, written) = (vocab.tokens.len(), texts().map(escaped_len).sum::<usize>());
    let keys: usize = vocab
        .tokens
        .iter()
        .map(|token| 2 * piece(token.len() + 2))
        .sum();
    let ids = piece(buckets(n) / 8 * 7 * ENTRY).max(list(n, ENTRY)) + table(n, 8) + keys;
    let halves: usize = merges().map(|merge| 2 * piece(merge.len())).sum();
    let pair = piece(2 * size_of::<Value>());
    let of_merges = list(n_merges, size_of::<Value>()) + n_merges * (pair + 32) + halves;
    let of_added = added.n * OF_ADDED + 2 * added.bytes;
    let text = written + (n + n_merges) * AROUND + added.n * 160 + added.bytes * 6;
    ids + ids / 2 + of_merges + of_added + GROWTH * text + FIXED
}

/// Bytes of a text in JSON.
fn escaped_len(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}

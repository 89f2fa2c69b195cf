//! The memory that a tokenizer takes, counted from its files before it is made.
//!
//! A tokenizer takes many times the bytes of its file. The `tokenizers` crate (0.22) reads the
//! model of a `tokenizer.json` with serde, which keeps all of it in a buffer, copies the buffer,
//! makes a JSON value of the copy and the model of the value; the model has each token twice, and a
//! Unigram model has a hash table for each byte that tokens have in common. [`parsing_bytes`]
//! counts the former, [`Sizes`] the latter, both as the allocator does ([`footprint`]). Where they
//! cannot tell, they count too much.
//!
//! [`footprint`]: thane_mil::footprint

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use thane_mil::budget::{OverBudget, Reservation};
use thane_mil::footprint::{buckets, list, piece, table};

use super::TextError;

/// Bytes of the pairs of characters that follow one another in pieces of a Unigram model.
pub(super) const PAIRS_BYTES: usize = 1 << 20;

/// Bytes of a value in the buffers of serde.
const BUFFERED: usize = 32;
/// Bytes of an entry of an object of JSON: its hash, its key and its value.
pub(super) const ENTRY: usize = size_of::<(u64, String, Value)>();
/// Bytes of an entry of a map from tokens to ids, or back.
const TOKEN: usize = size_of::<(String, u32)>();
/// Bytes of an entry of the map of merges.
pub(super) const MERGE: usize = size_of::<[u32; 4]>();
/// Normalizers, patterns and whatever else does not grow with the vocabulary.
pub(super) const FIXED: usize = 256 << 10;
/// Words that a model remembers, with their tokens, for which it makes room at once.
const REMEMBERED: usize = 10_000;
const WORD: usize = size_of::<(String, Vec<u32>)>();

/// Makes a reservation one of so many bytes, of the tokenizer in `file`.
pub(super) fn hold(held: &mut Reservation, n_bytes: usize, file: &str) -> Result<(), TextError> {
    held.shrink(held.bytes().saturating_sub(n_bytes));
    let more = n_bytes - held.bytes();
    Ok(held.grow(more, || format!("the tokenizer of {file}"))?)
}

impl From<OverBudget> for TextError {
    fn from(over: OverBudget) -> Self {
        Self::Memory(over)
    }
}

/// At least as many bytes as reading a JSON text takes, the text apart: where the types of its
/// values depend on other keys, as in a `tokenizer.json`.
pub(super) fn parsing_bytes(json: &[u8]) -> serde_json::Result<usize> {
    let parsed: Parsed = serde_json::from_slice(json)?;
    // Texts of merges are copied once more when the buffers are gone, and others are not.
    let kept = parsed.buffered.saturating_add(parsed.value);
    let kept = kept.saturating_add(parsed.texts);
    Ok(kept.saturating_add(parsed.largest / 2))
}

/// At least as many bytes as the value of a JSON text takes; 0 if it is none.
pub fn value_bytes(json: &[u8]) -> usize {
    serde_json::from_slice(json).map_or(0, |parsed: Parsed| {
        parsed.value.saturating_add(parsed.largest / 2)
    })
}

/// Bytes beside a value of JSON: in the two buffers of serde, and as a [`Value`].
#[derive(Clone, Copy, Default)]
struct Parsed {
    buffered: usize,
    value: usize,
    /// Bytes of the texts in the value.
    texts: usize,
    /// The largest list: the old one and the new one are there at once where it grows.
    largest: usize,
}

impl Parsed {
    fn add(&mut self, other: Self) {
        self.buffered = self.buffered.saturating_add(other.buffered);
        self.value = self.value.saturating_add(other.value);
        self.texts = self.texts.saturating_add(other.texts);
        self.largest = self.largest.max(other.largest);
    }

    /// Adds the lists of so many elements. The second buffer has no room to spare.
    fn add_lists(&mut self, n: usize, buffered: usize, value: usize) {
        self.add(Self {
            buffered: list(n, buffered) + piece(n * buffered),
            value,
            texts: 0,
            largest: value,
        });
    }
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Parsed;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E: Error>(self) -> Result<Parsed, E> {
                Ok(Parsed::default())
            }
            fn visit_bool<E: Error>(self, _: bool) -> Result<Parsed, E> {
                Ok(Parsed::default())
            }
            fn visit_i64<E: Error>(self, _: i64) -> Result<Parsed, E> {
                Ok(Parsed::default())
            }
            fn visit_u64<E: Error>(self, _: u64) -> Result<Parsed, E> {
                Ok(Parsed::default())
            }
            fn visit_f64<E: Error>(self, _: f64) -> Result<Parsed, E> {
                Ok(Parsed::default())
            }
            // The buffers borrow texts without escapes from the file.
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Parsed, E> {
                Ok(Parsed {
                    value: piece(text.len()),
                    texts: piece(text.len()),
                    ..Parsed::default()
                })
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Parsed, E> {
                Ok(Parsed {
                    buffered: 2 * piece(text.len()),
                    value: piece(text.len()),
                    texts: piece(text.len()),
                    largest: 0,
                })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parsed, A::Error> {
                let (mut all, mut n) = (Parsed::default(), 0);
                while let Some(one) = seq.next_element()? {
                    all.add(one);
                    n += 1;
                }
                all.add_lists(n, BUFFERED, list(n, size_of::<Value>()));
                Ok(all)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
                let (mut all, mut n) = (Parsed::default(), 0);
                while let Some((key, value)) = map.next_entry::<Parsed, Parsed>()? {
                    all.add(key);
                    all.add(value);
                    n += 1;
                }
                // The list of entries has as much room as the table of their places.
                let entries = piece(buckets(n) / 8 * 7 * ENTRY).max(list(n, ENTRY));
                let value = entries + table(n, size_of::<usize>());
                all.add_lists(n, 2 * BUFFERED, value);
                Ok(all)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The sizes of a vocabulary, which is a map of tokens or a list of tokens with scores.
#[derive(Default)]
pub(super) struct Sizes {
    n: usize,
    /// The highest id.
    last: u64,
    /// Bytes of all tokens, and of the longest.
    pub(super) all: usize,
    pub(super) longest: usize,
    /// Bytes that all tokens take as texts of their own.
    pieces: usize,
    /// Bytes of the tree of a list of tokens.
    tree: Option<usize>,
}

impl Sizes {
    fn add(&mut self, token: &str) {
        self.n += 1;
        self.all += token.len();
        self.longest = self.longest.max(token.len());
        self.pieces += piece(token.len());
    }

    /// Bytes of a model with this vocabulary and so many merges.
    fn model_bytes(&self, n_merges: usize) -> usize {
        let words = table(REMEMBERED, WORD);
        let map = table(self.n, TOKEN) + self.pieces;
        match self.tree {
            Some(tree) => {
                let list = list(self.n, size_of::<(String, f64)>()) + self.pieces;
                list + map + tree + words + PAIRS_BYTES
            }
            None => 2 * map + table(n_merges, MERGE) + words,
        }
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Both;
        impl<'de> Visitor<'de> for Both {
            type Value = Sizes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tokens, or a list of tokens with scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sizes, A::Error> {
                let mut sizes = Sizes::default();
                while let Some((token, id)) = map.next_entry::<Text<'_>, Value>()? {
                    sizes.add(&token.0);
                    sizes.last = sizes.last.max(id.as_u64().unwrap_or(0));
                }
                Ok(sizes)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Sizes, A::Error> {
                let (mut sizes, mut tokens) = (Sizes::default(), Vec::new());
                while let Some((token, _)) = seq.next_element::<(Text<'_>, IgnoredAny)>()? {
                    sizes.add(&token.0);
                    tokens.push(token.0);
                }
                sizes.tree = Some(tree_bytes(tokens));
                Ok(sizes)
            }
        }
        deserializer.deserialize_any(Both)
    }
}

/// A text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A list of which only the number of elements counts.
#[derive(Default)]
pub(super) struct Length(usize);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = Length;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Length, A::Error> {
                let mut n = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    n += 1;
                }
                Ok(Length(n))
            }
        }
        deserializer.deserialize_seq(Elements)
    }
}

/// Bytes of the tree of a Unigram model: each node that has children has a hash table of them by
/// their bytes. In sorted order, a token adds the nodes behind what it has in common with the token
/// before it.
fn tree_bytes(mut tokens: Vec<Cow<'_, str>>) -> usize {
    /// A child: its byte, whether a token ends there, and its own table.
    const CHILD: usize = 80;
    tokens.sort_unstable();
    // The number of children of each node on the way to the last token.
    let (mut open, mut before, mut sum) = (vec![0], &b""[..], 0usize);
    for token in &tokens {
        let token = token.as_bytes();
        let common = before.iter().zip(token).take_while(|(a, b)| a == b);
        let n_common = common.count();
        open.drain(n_common + 1..)
            .for_each(|n| sum += table(n, CHILD));
        if token.len() > n_common {
            open[n_common] += 1;
            open.resize(token.len(), 1);
            open.push(0);
        }
        before = token;
    }
    open.into_iter().for_each(|n| sum += table(n, CHILD));
    sum
}

/// The number and bytes of the tokens that are searched for in each text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Searched {
    pub(super) n: usize,
    pub(super) bytes: usize,
}

impl Searched {
    pub(super) fn add(&mut self, n_bytes: usize) {
        self.n += 1;
        self.bytes += n_bytes;
    }

    /// Bytes of the tokens in all lists and maps, and of the automaton that searches for them: a
    /// node for each byte, of which those near the root and all of a few tokens have a row of all
    /// bytes.
    pub(super) fn n_bytes(self) -> usize {
        const OF_TOKEN: usize = 1200;
        const COPIES: usize = 12;
        const NODE: usize = 120;
        const ROW: usize = 256 * size_of::<u32>();
        const MOST_NEAR_ROOT: usize = 1 + 256 + (1 << 16);
        /// With more of them, the automaton has no rows far from the root.
        const FEW: usize = 100;
        let near_root = (1 + 2 * self.n).min(MOST_NEAR_ROOT);
        let n_rows = near_root + if self.n <= FEW { self.bytes } else { 0 };
        let automaton = self.bytes * NODE + n_rows * ROW;
        self.n * OF_TOKEN + self.bytes * COPIES + automaton
    }
}

/// The memory of a tokenizer that is made of a `tokenizer.json`.
#[derive(Debug)]
pub(super) struct Making {
    /// Bytes of the model alone.
    pub(super) model: usize,
    /// Bytes of the tokenizer once it is made.
    pub(super) kept: usize,
    /// Most bytes at once after the file was parsed.
    pub(super) most: usize,
}

impl Making {
    /// Of a vocabulary, so many merges, the added tokens, and the texts of the normalizer.
    pub(super) fn new(
        vocab: &Sizes,
        n_merges: &Length,
        added: Searched,
        normalizer: usize,
    ) -> Self {
        let model = vocab.model_bytes(n_merges.0);
        let last = usize::try_from(vocab.last).unwrap_or(usize::MAX);
        let n_tokens = last.saturating_add(1).max(vocab.n + added.n);
        let searched = added.n_bytes();
        let beside = searched + 3 * normalizer + FIXED;
        let kept = model.saturating_add(table_bytes(n_tokens, vocab.all + added.bytes)) + beside;
        // The bytes of tokens are made from a copy of the vocabulary, which is a map twice, and a
        // list by ids. The map of a model grows before that.
        let copy = 2 * table(vocab.n + added.n, TOKEN) + vocab.pieces;
        let by_id = n_tokens.saturating_mul(size_of::<&str>());
        let growth = growing_table_bytes(n_tokens, vocab.all + added.bytes);
        let listed = copy.saturating_add(by_id).saturating_add(growth);
        Self {
            model,
            kept,
            // Added tokens may be replaced by others.
            most: kept.saturating_add(listed.max(table(vocab.n, TOKEN) / 2)) + searched,
        }
    }
}

/// Bytes of a table of tokens.
pub(super) fn table_bytes(n_tokens: usize, n_bytes: usize) -> usize {
    let of_token = size_of::<u32>() + size_of::<u8>();
    n_tokens.saturating_mul(of_token).saturating_add(n_bytes)
}

/// What the table takes more while it is filled.
pub(super) fn growing_table_bytes(n_tokens: usize, n_bytes: usize) -> usize {
    /// It begins with so many bytes for each token.
    const USUAL: usize = 6;
    n_tokens
        .saturating_mul(USUAL)
        .saturating_add(n_bytes.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree of `a`, `ab`, `ac` and `b` has tables of two and of two children.
    #[test]
    fn a_tree_has_a_table_where_tokens_go_on() {
        let tokens = |texts: &[&'static str]| texts.iter().map(|text| (*text).into()).collect();
        let small = table(2, 80);
        for (texts, n_tables) in [
            (&["ac", "a", "b", "ab", "a"][..], 2),
            (&["abc"], 3),
            (&["abc", "abd", "x"], 3),
            (&["", "a"], 1),
            (&[], 0),
        ] {
            assert_eq!(tree_bytes(tokens(texts)), n_tables * small, "{texts:?}");
        }
        // A table of one to three children has four places, one of four has eight.
        let many = tree_bytes(tokens(&["a", "b", "c", "d"]));
        assert_eq!(many, table(4, 80));
    }
}

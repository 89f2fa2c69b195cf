//! Protects against hostile and damaged `tokenizer.json` files, which the `tokenizers` crate
//! trusts: sizes are checked before the crate sees the file, its panics are caught, and texts that
//! would need too much memory or time are rejected.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;
use thane_mil::budget::{Budget, Reservation};
use tokenizers::AddedToken;

use super::TextError;
use super::memory::{self, Length, Making, Searched, Sizes};
use super::ruby;

const FILE: &str = "tokenizer.json";
/// Largest accepted file in bytes. The largest in use have 35 MB.
pub(super) const MAX_FILE_BYTES: usize = 256 << 20;
/// Maximum total bytes of all tokens. (Gemma's 262,144 tokens have 2 MB.)
pub(super) const MAX_VOCAB_BYTES: usize = 64 << 20;
/// The same for Unigram models, which build a tree with a node for each byte.
pub(super) const MAX_UNIGRAM_BYTES: usize = 8 << 20;
/// Maximum bytes of a token.
pub(super) const MAX_TOKEN_BYTES: usize = 16 << 10;
/// The same for Unigram models. (The trainer of SentencePiece allows 512 characters.)
pub(super) const MAX_UNIGRAM_TOKEN_BYTES: usize = 2 << 10;
/// Maximum bytes of an added token, which is searched for in every text.
pub(super) const MAX_ADDED_BYTES: usize = 512;
/// Maximum total bytes of all added tokens.
pub(super) const MAX_ALL_ADDED_BYTES: usize = 4 << 20;
/// Maximum number of normalizers and pre-tokenizers.
const MAX_STEPS: usize = 64;
/// Maximum bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 4 << 10;
/// The same for a choice of plain texts, which is searched in linear time.
pub(super) const MAX_LITERALS_BYTES: usize = 128 << 10;
/// Patterns and what replaces them: no spaces around a text, one space between words, and a second
/// U+2581 before the first one. None makes a text longer than by that.
pub(super) const TRIM: (&str, &str) = (r"\A +| +\z", "");
pub(super) const ONE_SPACE: (&str, &str) = (" {2,}", " ");
pub(super) const DOUBLE_FIRST: (&str, &str) = ("\\A\u{2581}", "\u{2581}\u{2581}");
/// Maximum bytes of a text after normalization; the crate holds about 20 bytes for each of them.
const MAX_NORMALIZED_BYTES: usize = 64 << 20;
/// Maximum characters of a word that is looked up piece by piece.
const MAX_WORD_CHARS: u64 = 10_000;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a call whose panics are caught, so that a panic hook should not print
/// them.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Runs `work` and converts a panic of the `tokenizers` crate to an error.
pub(super) fn catch_panics<T>(work: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    let outer = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    done.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        Err(TextError::Broken(
            text.unwrap_or("no reason given")
                .chars()
                .take(200)
                .collect(),
        ))
    })
}

/// The cost of a checked tokenizer for the texts that it encodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextCost {
    growth: Growth,
    /// Whether a pattern can backtrack far in a text.
    pub(super) is_slow: bool,
}

/// An upper bound for the bytes of a text after normalization: `times` the bytes before, plus
/// `plus`.
#[derive(Debug, Clone, Copy)]
struct Growth {
    times: usize,
    plus: usize,
}

impl Growth {
    /// The most bytes that a text of `len` bytes becomes.
    fn of(self, len: usize) -> usize {
        len.saturating_mul(self.times).saturating_add(self.plus)
    }
}

impl TextCost {
    /// The cost of tokenizers whose normalizers and patterns are built in: at most they compose
    /// characters.
    pub(super) const BUILT_IN: Self = Self {
        growth: Growth { times: 3, plus: 0 },
        is_slow: false,
    };

    /// Rejects a text that would become too long.
    pub(super) fn check(&self, text: &str) -> Result<(), TextError> {
        let most = self.growth.of(text.len());
        if most > MAX_NORMALIZED_BYTES {
            let most = MAX_NORMALIZED_BYTES.saturating_sub(self.growth.plus) / self.growth.times;
            return Err(TextError::TooLong {
                found: text.len(),
                most,
            });
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    id: u32,
    #[serde(default)]
    content: String,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    max_input_chars_per_word: Option<u64>,
    unk_id: Option<usize>,
    byte_fallback: Option<bool>,
    #[serde(default)]
    vocab: Sizes,
    #[serde(default)]
    merges: Length,
}

/// What is known of a checked tokenizer.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) cost: TextCost,
    /// The unknown token of a Unigram model.
    pub(super) unk_id: Option<usize>,
    pub(super) byte_fallback: bool,
    /// The ids that the file gives its added tokens. The crate (0.22) numbers the tokens that the
    /// vocabulary lacks in the order of the file instead.
    pub(super) added_ids: HashMap<String, u32>,
    /// Normalizer, pre-tokenizer and decoder, if their patterns mean something else here.
    pub(super) parts: Option<[Value; 3]>,
    /// What making the tokenizer takes.
    pub(super) making: Making,
    /// The memory for it.
    pub(super) held: Reservation,
}

impl Checked {
    /// Reserves the memory of a copy of the model, which takes the place of the first one.
    pub(super) fn hold_copy(&mut self) -> Result<(), TextError> {
        let n_bytes = self.making.most.saturating_add(self.making.model);
        let n_bytes = n_bytes.max(self.held.bytes());
        memory::hold(&mut self.held, n_bytes, FILE)
    }
}

/// Checks a `tokenizer.json` before the crate reads it, and reserves the memory that making the
/// tokenizer takes, with tokens that other files add.
pub(super) fn check(json: &[u8], others: Searched, budget: &Budget) -> Result<Checked, TextError> {
    let bad = |reason: String| TextError::Json { file: FILE, reason };
    at_most("the file", json.len(), MAX_FILE_BYTES)?;
    let parsing = memory::parsing_bytes(json).map_err(|error| bad(error.to_string()))?;
    let parsing = json.len().saturating_add(parsing);
    let mut held = budget.reserve(0, String::new)?;
    memory::hold(&mut held, parsing, FILE)?;
    let mut file: File = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
    let parts = [
        &mut file.normalizer,
        &mut file.pre_tokenizer,
        &mut file.decoder,
    ];
    let is_changed = ruby::translate(parts).map_err(bad)?;
    let (most, longest) = vocab_limits(file.model.kind == "Unigram");
    at_most("the tokens together", file.model.vocab.all, most)?;
    at_most("a token", file.model.vocab.longest, longest)?;
    if let Some(n) = file
        .model
        .max_input_chars_per_word
        .filter(|n| *n > MAX_WORD_CHARS)
    {
        return Err(bad(format!(
            "max_input_chars_per_word: expected at most {MAX_WORD_CHARS}, found {n}"
        )));
    }
    let cost = cost_of(&file.normalizer, &file.pre_tokenizer)?;
    let added = file.added_tokens.iter();
    check_sizes(
        added.map(|token| (token.content.len(), token.normalized)),
        cost,
    )?;
    let mut searched = others;
    (file.added_tokens.iter()).for_each(|token| searched.add(token.content.len()));
    let texts = texts_len(&file.normalizer);
    let making = Making::new(&file.model.vocab, &file.model.merges, searched, texts);
    let copies = 1 + 2 * usize::from(is_changed);
    let most = (json.len() * copies).saturating_add(making.most);
    memory::hold(&mut held, parsing.max(most), FILE)?;
    let parts = [file.normalizer, file.pre_tokenizer, file.decoder];
    Ok(Checked {
        parts: is_changed.then_some(parts),
        making,
        held,
        cost,
        unk_id: file.model.unk_id,
        byte_fallback: file.model.byte_fallback.unwrap_or(false),
        added_ids: (file.added_tokens.into_iter())
            .map(|token| (token.content, token.id))
            .collect(),
    })
}

/// Bytes of all texts in a value.
fn texts_len(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(texts_len).sum(),
        Value::Object(values) => values.values().map(texts_len).sum(),
        _ => 0,
    }
}

/// Maximum bytes of all tokens, and of one.
pub(super) fn vocab_limits(is_unigram: bool) -> (usize, usize) {
    match is_unigram {
        true => (MAX_UNIGRAM_BYTES, MAX_UNIGRAM_TOKEN_BYTES),
        false => (MAX_VOCAB_BYTES, MAX_TOKEN_BYTES),
    }
}

/// What texts cost by a normalizer and a pre-tokenizer.
pub(super) fn cost_of(normalizer: &Value, pre_tokenizer: &Value) -> Result<TextCost, TextError> {
    let bad = |reason: String| TextError::Json { file: FILE, reason };
    let mut steps = Steps::default();
    let growth = steps.growth(normalizer).map_err(bad)?;
    steps.patterns(pre_tokenizer).map_err(bad)?;
    Ok(TextCost {
        growth,
        is_slow: steps.is_slow,
    })
}

/// Checks the tokens that are added to a tokenizer.
pub(super) fn check_added<'a>(
    tokens: impl Iterator<Item = &'a AddedToken>,
    cost: TextCost,
) -> Result<(), TextError> {
    check_sizes(
        tokens.map(|token| (token.content.len(), token.normalized)),
        cost,
    )
}

/// Checks the lengths of added tokens, with whether each is normalized.
fn check_sizes(
    tokens: impl Iterator<Item = (usize, bool)>,
    cost: TextCost,
) -> Result<(), TextError> {
    let (mut longest, mut all) = (0, 0usize);
    for (len, normalized) in tokens {
        longest = longest.max(len);
        all = all.saturating_add(if normalized { cost.growth.of(len) } else { len });
    }
    at_most("an added token", longest, MAX_ADDED_BYTES)?;
    at_most("the added tokens together", all, MAX_ALL_ADDED_BYTES)
}

/// An error if `what` has more than `most` bytes.
pub(super) fn at_most(what: &str, found: usize, most: usize) -> Result<(), TextError> {
    if found <= most {
        return Ok(());
    }
    Err(TextError::Json {
        file: FILE,
        reason: format!("{what}: expected at most {most} bytes, found {found}"),
    })
}

/// Counts normalizers and pre-tokenizers, and finds patterns that can backtrack.
#[derive(Default)]
struct Steps {
    n: usize,
    is_slow: bool,
}

impl Steps {
    fn step(&mut self) -> Result<(), String> {
        self.n += 1;
        if self.n > MAX_STEPS {
            return Err(format!(
                "expected at most {MAX_STEPS} normalizers and pre-tokenizers, found more"
            ));
        }
        Ok(())
    }

    /// An upper bound for the growth of a text by a normalizer.
    fn growth(&mut self, normalizer: &Value) -> Result<Growth, String> {
        self.step()?;
        let times = |times| Growth { times, plus: 0 };
        let len = |key: &str| normalizer[key].as_str().map_or(0, str::len);
        Ok(match normalizer["type"].as_str().unwrap_or_default() {
            "Sequence" => {
                let mut all = times(1);
                for part in normalizer["normalizers"].as_array().into_iter().flatten() {
                    let one = self.growth(part)?;
                    all.times = all.times.saturating_mul(one.times);
                    all.plus = all.plus.saturating_mul(one.times).saturating_add(one.plus);
                }
                all
            }
            "Prepend" => Growth {
                times: 1,
                plus: len("prepend"),
            },
            "Replace" if replaces(normalizer, TRIM) || replaces(normalizer, ONE_SPACE) => times(1),
            "Replace" if replaces(normalizer, DOUBLE_FIRST) => Growth {
                times: 1,
                plus: '\u{2581}'.len_utf8(),
            },
            "Replace" => match self.pattern(&normalizer["pattern"])? {
                // A pattern that matches the empty string inserts the content after each character.
                None => times(len("content").saturating_add(1)),
                Some(pattern) => times(len("content").div_ceil(pattern).max(1)),
            },
            // The worst case is one character of three bytes that becomes 33 bytes; other
            // characters double or triple.
            "NFKC" | "NFKD" => times(11),
            "NFC" | "NFD" | "Lowercase" => times(3),
            "ByteLevel" => times(2),
            "BertNormalizer" => times(9),
            "Precompiled" => times(longest_replacement(&normalizer["precompiled_charsmap"])?),
            _ => times(1),
        })
    }

    /// Checks the patterns of a pre-tokenizer.
    fn patterns(&mut self, pre_tokenizer: &Value) -> Result<(), String> {
        self.step()?;
        for part in pre_tokenizer["pretokenizers"]
            .as_array()
            .into_iter()
            .flatten()
        {
            self.patterns(part)?;
        }
        match pre_tokenizer.get("pattern") {
            Some(pattern) if pre_tokenizer["type"] == "Split" => self.pattern(pattern).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Checks a pattern; returns its length in bytes if it is a literal string.
    fn pattern(&mut self, pattern: &Value) -> Result<Option<usize>, String> {
        let (text, is_regex) = match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
            (Some(regex), _) => (regex, true),
            (None, Some(text)) => (text, false),
            _ => return Err("a pattern: expected a string or a regex".to_owned()),
        };
        if text.is_empty() {
            return Err("a pattern: expected at least one character, found none".to_owned());
        }
        let most = if is_literals(text) {
            MAX_LITERALS_BYTES
        } else {
            MAX_PATTERN_BYTES
        };
        if text.len() > most {
            let found = text.len();
            return Err(format!(
                "a pattern: expected at most {most} bytes, found {found}"
            ));
        }
        if !is_regex {
            return Ok(Some(text.len()));
        }
        if repetitions(text) > 10_000 {
            return Err(format!(
                "the pattern '{text:.60}' repeats its parts too often"
            ));
        }
        // All tokenizers that attach a space to the following word use this pattern, which never
        // backtracks far.
        let rest = text.replace(r"\s+(?!\S)", "");
        let goes_back = ["(?=", "(?!", "(?<", "(?>", "\\G", "\\K"]
            .iter()
            .any(|word| rest.contains(word));
        let refers_back = rest
            .as_bytes()
            .windows(2)
            .any(|two| two[0] == b'\\' && matches!(two[1], b'1'..=b'9' | b'k' | b'g'));
        self.is_slow |= goes_back || refers_back;
        Ok(None)
    }
}

/// Whether a normalizer replaces this pattern by this text.
fn replaces(normalizer: &Value, (pattern, content): (&str, &str)) -> bool {
    normalizer["pattern"]["Regex"] == pattern && normalizer["content"] == content
}

/// The characters that have a meaning in patterns.
const META: &str = r".+*?()[]{}^$|\";

/// The pattern of a plain text.
pub(super) fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if META.contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Whether a pattern is a choice of plain texts, as [`literal`] makes them.
fn is_literals(pattern: &str) -> bool {
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '|' => {}
            '\\' if chars.next().is_some_and(|next| META.contains(next)) => {}
            c if META.contains(c) => return false,
            _ => {}
        }
    }
    true
}

/// The product of all repetition bounds in a pattern, an upper bound for any nesting of them.
fn repetitions(pattern: &str) -> u64 {
    let mut product = 1u64;
    for part in pattern.split('{').skip(1) {
        let Some((bounds, _)) = part.split_once('}') else {
            continue;
        };
        let bounds = bounds
            .split(',')
            .filter_map(|bound| bound.trim().parse::<u64>().ok());
        product = product.saturating_mul(bounds.max().unwrap_or(1).max(1));
    }
    product
}

/// The longest replacement in a SentencePiece character map, decoded from base64.
fn longest_replacement(charsmap: &Value) -> Result<usize, String> {
    let broken = || "the precompiled_charsmap is damaged".to_owned();
    let text = charsmap.as_str().ok_or_else(broken)?;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(broken()),
        };
        bits = (bits << 6) | u32::from(six);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
            bits &= (1 << n_bits) - 1;
        }
    }
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
    let trie = u32::from_le_bytes(*head) as usize;
    let replacements = rest
        .get(trie..)
        .filter(|_| trie > 0 && trie.is_multiple_of(4))
        .ok_or_else(broken)?;
    Ok(replacements
        .split(|byte| *byte == 0)
        .map(<[u8]>::len)
        .max()
        .unwrap_or(0)
        .max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_multiply() {
        for (pattern, n) in [
            ("a{3}", 3),
            (r"\p{L}{1,3}|b{1000}", 3000),
            ("(a{1000}){1000}", 1_000_000),
            ("a", 1),
            ("{", 1),
        ] {
            assert_eq!(repetitions(pattern), n, "{pattern}");
        }
    }

    #[test]
    fn a_charsmap_has_a_longest_replacement() {
        // Four bytes of trie, then `abc` and `de`, each followed by a zero.
        let charsmap = Value::from("BAAAAAAAAABhYmMAZGUA");
        assert_eq!(longest_replacement(&charsmap), Ok(3));
        for text in ["", "AAAA", "AAAAAA==", "////", "BAAAAAAA", "?"] {
            assert!(longest_replacement(&Value::from(text)).is_err(), "{text}");
        }
    }
}

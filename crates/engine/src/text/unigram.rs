//! Bounds the cost of a pass of the Unigram model of the `tokenizers` crate, which cannot be asked
//! within a pass to stop.
//!
//! The model copies, for each byte of a word, all pieces that begin there. Where many pieces begin
//! with one another, a pass over a long word would take minutes. A long word is tokenized in parts,
//! divided where no piece can lie across: no way to divide the word into pieces leaves such a place
//! out, so the best way is the best of each part.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::OnceLock;

use tokenizers::models::unigram::Unigram;
use tokenizers::{Model, Token};

use super::TextError;
use super::memory::PAIRS_BYTES;
use super::stop::Stop;

/// Cost of a piece that begins at a byte, in bytes to copy, beside its own bytes.
const PIECE_COST: usize = 512;
/// Cost of a step in the tree of pieces, in bytes to copy.
const STEP_COST: usize = 256;
/// Cost of a part, in bytes to copy: about a tenth of a second.
const PART_COST: usize = 1 << 30;
/// Highest cost of a part that cannot be divided.
const MAX_COST: usize = 1 << 34;

/// The pairs of characters that follow one another in pieces, as a set of their hashes: a text is
/// divided between two characters that are no such pair. Pairs with the hash of another one count
/// too, so a text may be divided at fewer places, and never at a wrong one.
#[derive(Debug)]
pub(super) struct Pairs {
    bits: Vec<u64>,
    // Random keys, so that no file can give a text no place.
    hasher: RandomState,
}

impl Pairs {
    fn of(model: &Unigram) -> Self {
        let mut pairs = Self {
            bits: vec![0; PAIRS_BYTES / size_of::<u64>()],
            hasher: RandomState::new(),
        };
        for (piece, _) in model.iter() {
            for pair in neighbors(piece) {
                let (word, bit) = pairs.place(pair);
                pairs.bits[word] |= bit;
            }
        }
        pairs
    }

    fn has(&self, pair: (char, char)) -> bool {
        let (word, bit) = self.place(pair);
        self.bits[word] & bit != 0
    }

    fn place(&self, pair: (char, char)) -> (usize, u64) {
        let hash = self.hasher.hash_one(pair) as usize;
        let n_bits = u64::BITS as usize;
        (hash / n_bits % self.bits.len(), 1 << (hash % n_bits))
    }
}

/// The highest cost of a byte in a pass, in bytes to copy.
pub(super) fn cost_per_byte(model: &Unigram) -> usize {
    let mut pieces: Vec<&str> = model.iter().map(|(piece, _)| piece.as_str()).collect();
    pieces.sort_unstable();
    // The pieces that the current one begins with, each with the cost of all up to it.
    let mut starts: Vec<(&str, usize)> = Vec::new();
    let (mut most, mut longest) = (0, 0);
    for piece in pieces {
        while starts.last().is_some_and(|(s, _)| !piece.starts_with(s)) {
            starts.pop();
        }
        let cost = starts.last().map_or(0, |(_, cost)| *cost) + PIECE_COST + piece.len();
        starts.push((piece, cost));
        most = most.max(cost);
        longest = longest.max(piece.len());
    }
    most + longest * STEP_COST
}

/// The tokens of a word, a byte of which costs up to `cost_per_byte`. `pairs` are those of the
/// model, once they were needed.
pub(super) fn tokenize(
    (model, pairs): (&Unigram, &OnceLock<Pairs>),
    word: &str,
    cost_per_byte: usize,
    stop: &Stop,
) -> tokenizers::Result<Vec<Token>> {
    let [part_len, most] = [PART_COST, MAX_COST].map(|cost| (cost / cost_per_byte.max(1)).max(4));
    if word.len() <= part_len {
        stop.note(word.len())?;
        return model.tokenize(word);
    }
    let pairs = pairs.get_or_init(|| Pairs::of(model));
    let (mut tokens, mut start) = (Vec::new(), 0);
    while start < word.len() {
        stop.ask()?;
        let rest = &word[start..];
        let Some(len) = first_part((model, pairs), rest, (part_len, most), stop)? else {
            return Err(Box::new(TextError::Whole {
                found: rest.len(),
                most,
            }));
        };
        let part = model.tokenize(&rest[..len])?;
        tokens.extend(part.into_iter().map(|mut token| {
            token.offsets = (token.offsets.0 + start, token.offsets.1 + start);
            token
        }));
        start += len;
    }
    Ok(tokens)
}

/// The length of the first part of a text: of `part_len` bytes or fewer if the text can be divided
/// there, of no more than `most`; `None` if it cannot be divided within them.
fn first_part(
    model: (&Unigram, &Pairs),
    text: &str,
    (part_len, most): (usize, usize),
    stop: &Stop,
) -> Result<Option<usize>, TextError> {
    let mut end = part_len;
    while end < text.len() && end <= most {
        let start = text.floor_char_boundary(end.saturating_sub(part_len));
        // The character before the start is that before the first place.
        let before = text[..start].chars().next_back().map_or(0, char::len_utf8);
        let place = last_place(model, text, start - before..text.floor_char_boundary(end));
        if place.is_some() {
            return Ok(place);
        }
        stop.ask()?;
        end += part_len;
    }
    Ok((text.len() <= most).then_some(text.len()))
}

/// The last place within a range of a text that no piece can lie across.
fn last_place(
    (model, pairs): (&Unigram, &Pairs),
    text: &str,
    range: Range<usize>,
) -> Option<usize> {
    let start = range.start;
    let text = &text[range];
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    // Unknown characters in a row may be one token.
    let is_known = |c: char| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_some();
    let places = ends.zip(neighbors(text));
    let places = places.filter(|(_, pair)| !pairs.has(*pair) && is_known(pair.0));
    places.last().map(|(end, _)| start + end)
}

/// Each two characters of a text that follow one another.
fn neighbors(text: &str) -> impl Iterator<Item = (char, char)> {
    text.chars().zip(text.chars().skip(1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn model(pieces: impl IntoIterator<Item = String>) -> Unigram {
        let pieces = pieces.into_iter().enumerate();
        let scored = pieces.map(|(id, piece)| (piece, -1.0 - (id % 7) as f64 / 8.0));
        let unknown = ("<unk>".to_owned(), 0.0);
        Unigram::from(
            std::iter::once(unknown).chain(scored).collect(),
            Some(0),
            false,
        )
        .unwrap()
    }

    /// The parts of a word give the tokens of the whole word, which the crate tokenizes at once.
    #[test]
    fn parts_give_the_tokens_of_the_whole() {
        let pieces = [
            "a",
            "b",
            "\u{2581}",
            "ab",
            "ba",
            "\u{2581}a",
            "\u{2581}ab",
            "abba",
            "é",
        ];
        let model = model(pieces.map(str::to_owned));
        let words = [
            "abba", "bab", "éab", "a漢字b", "b", "漢", "aab", "éé", "ba字",
        ];
        let word: String = (0..500)
            .map(|n| format!("\u{2581}{}", words[n * n % 17 % words.len()]))
            .collect();
        let whole = model.tokenize(&word).unwrap();
        for part_len in [4, 7, 20, 100, 1000] {
            let cost = PART_COST / part_len;
            let pairs = OnceLock::new();
            let parts = tokenize((&model, &pairs), &word, cost, &Stop::new(&|| false)).unwrap();
            assert_eq!(parts, whole, "{part_len}");
        }
    }

    /// Pieces that begin with one another cost as many copies as there are of them.
    #[test]
    fn a_byte_costs_the_pieces_that_begin_there() {
        let nested = model((1..=3).map(|n| "h".repeat(n)));
        let unknown = PIECE_COST + 5 + 5 * STEP_COST;
        assert_eq!(cost_per_byte(&nested), 3 * PIECE_COST + 6 + 5 * STEP_COST);
        assert_eq!(cost_per_byte(&model(["h".to_owned()])), unknown);
    }

    /// A word of 300 kB is left after the first part, and one that no place divides is refused.
    #[test]
    fn a_word_of_nested_pieces_ends_when_nobody_waits() {
        let model = model((1..700).map(|n| "h".repeat(n)).chain(["e".to_owned()]));
        let cost = cost_per_byte(&model);
        let (asked, pairs) = (Cell::new(0), OnceLock::new());
        let is_stopped = || asked.replace(asked.get() + 1) == 2;
        let long = format!("{}e", "h".repeat(1000)).repeat(300);
        let found = tokenize((&model, &pairs), &long, cost, &Stop::new(&is_stopped)).unwrap_err();
        assert!(matches!(*found.downcast().unwrap(), TextError::Interrupted));
        assert!(asked.get() == 3, "{}", asked.get());
        let whole = "h".repeat(300_000);
        let found = tokenize((&model, &pairs), &whole, cost, &Stop::new(&|| false)).unwrap_err();
        let found = found.downcast().unwrap();
        assert!(
            matches!(*found, TextError::Whole { found: 300_000, .. }),
            "{found}"
        );
    }

    /// Each pair of a piece is found, and few others are.
    #[test]
    fn pairs_of_pieces_are_kept() {
        let pieces = (0..20_000).map(|n| format!("{n:05x}é"));
        let model = model(pieces);
        let pairs = Pairs::of(&model);
        let mut of_pieces = model.iter().flat_map(|(piece, _)| neighbors(piece));
        assert!(of_pieces.all(|pair| pairs.has(pair)));
        let n_wrong = ('A'..='Z').filter(|c| pairs.has((*c, 'é'))).count();
        assert!(n_wrong < 3, "{n_wrong}");
    }
}

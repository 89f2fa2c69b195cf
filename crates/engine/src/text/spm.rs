//! SentencePiece BPE: of all adjacent pairs whose joined text is a token, the pair with the best
//! score is merged first (the leftmost among equals), until no pair is left. Text that is no token
//! then is encoded byte by byte.
//!
//! A space and U+2581 are the same character here, stored as a space, so that the arena of
//! [`TokenTable`] serves as the dictionary. A fragment of n characters takes O(n log n) time.

use super::stop::Stop;
use super::table::TokenTable;
use super::texts::Index;
use super::vocab::TokenKind;
use super::{TextError, Vocab};
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// Dictionary, scores and rules of one SentencePiece vocabulary.
#[derive(Debug)]
pub(super) struct Spm {
    /// Tokens that merging may produce: normal, user-defined and unused tokens.
    pieces: Index,
    /// Tokens that are cut out of the text before merging.
    user_defined: PrefixMatcher,
    control: PrefixMatcher,
    /// User-defined tokens that are found in a fragment and never merged with what is beside them.
    inner: PrefixMatcher,
    /// Tokens that take the white space behind them.
    rstrip: HashSet<u32>,
    scores: Vec<f32>,
    unused: Vec<u32>,
    byte_ids: [u32; 256],
    unk: Option<u32>,
    add_space_prefix: bool,
}

impl Spm {
    /// Of the lists of a file, which must say the types of its tokens.
    pub(super) fn of_lists(
        vocab: &mut Vocab,
        kinds: &[TokenKind],
        table: &TokenTable,
    ) -> Result<Self, TextError> {
        if vocab.token_types.is_none() {
            return Err(TextError::Missing("token types"));
        }
        if vocab.remove_extra_whitespaces == Some(true) {
            return Err(TextError::Unsupported(
                "tokenizer.ggml.remove_extra_whitespaces",
            ));
        }
        Self::new(table, kinds, vocab)
    }

    /// Builds the tables. `kinds` and the scores are parallel to `table`.
    fn new(table: &TokenTable, kinds: &[TokenKind], vocab: &mut Vocab) -> Result<Self, TextError> {
        let mut scores = vocab.scores.take().ok_or(TextError::Missing("scores"))?;
        for (id, score) in scores.iter_mut().enumerate() {
            if score.is_nan() {
                let token = String::from_utf8_lossy(table.get(id as u32)).into_owned();
                return Err(TextError::BadToken {
                    id,
                    token,
                    reason: "expected a score, found NaN".into(),
                });
            }
            // -0.0 (the best token in Gemma's file) must not compare below 0.0.
            *score += 0.0;
        }
        let ids_of = |wanted: &[TokenKind]| -> Vec<u32> {
            (0..kinds.len() as u32)
                .filter(|&id| wanted.contains(&kinds[id as usize]) && !table.get(id).is_empty())
                .collect()
        };
        let mut byte_ids = [NONE; 256];
        for id in ids_of(&[TokenKind::Byte]) {
            match table.get(id) {
                [byte] => byte_ids[*byte as usize] = id,
                other => {
                    let token = String::from_utf8_lossy(other).into_owned();
                    let reason = "expected a byte token from <0x00> to <0xFF>".into();
                    return Err(TextError::BadToken {
                        id: id as usize,
                        token,
                        reason,
                    });
                }
            }
        }
        let inner: HashSet<u32> = vocab.inner.iter().copied().collect();
        let (inner, outer): (Vec<u32>, Vec<u32>) = ids_of(&[TokenKind::UserDefined])
            .iter()
            .partition(|id| inner.contains(id));
        let mergeable = [TokenKind::Normal, TokenKind::UserDefined, TokenKind::Unused];
        Ok(Self {
            pieces: Index::new(table, ids_of(&mergeable).into_iter()),
            user_defined: PrefixMatcher::new(table, &outer),
            inner: PrefixMatcher::new(table, &inner),
            control: PrefixMatcher::new(table, &ids_of(&[TokenKind::Control])),
            rstrip: vocab.rstrip.iter().copied().collect(),
            scores,
            unused: ids_of(&[TokenKind::Unused]),
            byte_ids,
            unk: vocab.unk,
            add_space_prefix: vocab.add_space_prefix.unwrap_or(true),
        })
    }

    /// The id of a control, user-defined, normal or byte token with this text.
    pub(super) fn id_of(&self, table: &TokenTable, text: &str) -> Option<u32> {
        let text = text.replace('\u{2581}', " ");
        let text = text.as_bytes();
        let found = self
            .control
            .index
            .get(table, text)
            .or_else(|| self.pieces.get(table, text));
        found.or_else(|| {
            let byte = super::table::byte_of_piece(std::str::from_utf8(text).ok()?)?;
            Some(self.byte_ids[byte as usize]).filter(|&id| id != NONE)
        })
    }

    /// Appends the token ids of `text` to `out`.
    pub(super) fn encode(
        &self,
        table: &TokenTable,
        text: &str,
        controls: Controls<'_>,
        stop: &Stop,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let most = (u32::MAX / 2) as usize;
        if text.len() > most {
            return Err(TextError::TooLong {
                found: text.len(),
                most,
            });
        }
        let controls = controls.blocked_ranges(text);
        let text = text.replace('\u{2581}', " ");
        let (mut start, mut pos) = (0, 0);
        while pos < text.len() {
            let rest = &text.as_bytes()[pos..];
            let mut found = self.user_defined.longest(table, rest);
            if let Some(control) = self
                .control
                .longest(table, rest)
                .filter(|(len, _)| controls.allow(pos, pos + len))
            {
                found = found.max(Some(control));
            }
            if let Some((len, id)) = found {
                self.encode_fragment(table, &text[start..pos], stop, out)?;
                out.push(id);
                pos += len;
                if self.rstrip.contains(&id) {
                    pos += n_white(&text.as_bytes()[pos..]);
                }
                start = pos;
            } else {
                pos += utf8_len(rest[0]);
            }
            stop.note(1)?;
        }
        self.encode_fragment(table, &text[start..], stop, out)
    }

    /// Encodes a fragment without user-defined tokens. Like in the models' published tokenizers,
    /// the space prefix precedes each fragment and not only the first.
    fn encode_fragment(
        &self,
        table: &TokenTable,
        text: &str,
        stop: &Stop,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        if !self.add_space_prefix {
            return self.merge(table, text, stop, out);
        }
        self.merge(table, &format!(" {text}"), stop, out)
    }

    fn merge(
        &self,
        table: &TokenTable,
        text: &str,
        stop: &Stop,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut merger = Merger::new(self, table, text);
        merger.run(stop)?;
        let Merger {
            symbols, splits, ..
        } = merger;
        let mut previous_unknown = false;
        let mut at = 0;
        while at != NONE {
            let symbol = symbols[at as usize];
            let (start, end) = (symbol.start as usize, (symbol.start + symbol.len) as usize);
            let piece = &text[start..end];
            previous_unknown = self.emit(table, piece, &splits, previous_unknown, out)?;
            at = symbol.next;
        }
        Ok(())
    }

    /// Appends the ids of one symbol; returns whether the last id is the unknown token.
    fn emit(
        &self,
        table: &TokenTable,
        piece: &str,
        splits: &HashMap<u32, u32>,
        previous_unknown: bool,
        out: &mut Vec<u32>,
    ) -> Result<bool, TextError> {
        let mut stack = vec![piece];
        let mut unknown = previous_unknown;
        while let Some(piece) = stack.pop() {
            match self.pieces.get(table, piece.as_bytes()) {
                // An unused token is split again in the way it was merged.
                Some(id) if splits.contains_key(&id) => {
                    let (left, right) = piece.split_at(splits[&id] as usize);
                    stack.push(right);
                    stack.push(left);
                }
                Some(id) => {
                    out.push(id);
                    unknown = false;
                }
                None => unknown = self.emit_unknown(piece, unknown, out)?,
            }
        }
        Ok(unknown)
    }

    fn emit_unknown(
        &self,
        piece: &str,
        previous_unknown: bool,
        out: &mut Vec<u32>,
    ) -> Result<bool, TextError> {
        if piece
            .bytes()
            .all(|byte| self.byte_ids[byte as usize] != NONE)
        {
            out.extend(piece.bytes().map(|byte| self.byte_ids[byte as usize]));
            return Ok(false);
        }
        let character = piece.chars().next().unwrap_or_default();
        let unk = self.unk.ok_or(TextError::Unencodable { character })?;
        if !previous_unknown {
            out.push(unk);
        }
        Ok(true)
    }
}

/// A part of the text that is a token or may become part of one. `len` 0 means merged away.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    prev: u32,
    next: u32,
    start: u32,
    len: u32,
    /// Whether it is a user-defined token, which is not merged.
    is_whole: bool,
}

/// Two adjacent symbols whose joined text is a token.
#[derive(Debug, Clone, Copy)]
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    /// Joined length. If it no longer matches, one of the symbols has changed since.
    len: u32,
    id: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

/// The merge loop over one fragment.
struct Merger<'a> {
    spm: &'a Spm,
    table: &'a TokenTable,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
    /// For each unused token that was produced: the length of its left part.
    splits: HashMap<u32, u32>,
}

impl<'a> Merger<'a> {
    fn new(spm: &'a Spm, table: &'a TokenTable, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut start = 0;
        while start < text.len() {
            let rest = &text.as_bytes()[start..];
            let inner = spm.inner.longest(table, rest).map(|(len, _)| len);
            let len = inner.unwrap_or(utf8_len(rest[0]));
            let index = symbols.len() as u32;
            symbols.push(Symbol {
                prev: index.checked_sub(1).unwrap_or(NONE),
                next: index + 1,
                start: start as u32,
                len: len as u32,
                is_whole: inner.is_some(),
            });
            start += len;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let queue = BinaryHeap::with_capacity(symbols.len());
        Self {
            spm,
            table,
            text,
            symbols,
            queue,
            splits: HashMap::new(),
        }
    }

    fn run(&mut self, stop: &Stop) -> Result<(), TextError> {
        for right in 1..self.symbols.len() as u32 {
            stop.note(1)?;
            self.push(right - 1, right);
        }
        while let Some(pair) = self.queue.pop() {
            stop.note(1)?;
            let (left, right) = (
                self.symbols[pair.left as usize],
                self.symbols[pair.right as usize],
            );
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            if self.spm.unused.binary_search(&pair.id).is_ok() {
                self.splits.insert(pair.id, left.len);
            }
            self.symbols[pair.right as usize].len = 0;
            let merged = &mut self.symbols[pair.left as usize];
            merged.len = pair.len;
            merged.next = right.next;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = pair.left;
                self.push(pair.left, right.next);
            }
            if left.prev != NONE {
                self.push(left.prev, pair.left);
            }
        }
        Ok(())
    }

    fn push(&mut self, left: u32, right: u32) {
        let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
        if a.is_whole || b.is_whole {
            return;
        }
        let len = a.len + b.len;
        let piece = &self.text.as_bytes()[a.start as usize..(a.start + len) as usize];
        if let Some(id) = self.spm.pieces.get(self.table, piece) {
            let score = self.spm.scores[id as usize];
            self.queue.push(Pair {
                score,
                left,
                right,
                len,
                id,
            });
        }
    }
}

/// Which control tokens in a text are recognized.
#[derive(Debug, Clone, Copy)]
pub(super) enum Controls<'a> {
    None,
    All,
    /// Control tokens that have no byte in these ranges of the text.
    Outside(&'a [Range<usize>]),
}

/// Ranges without control tokens, in coordinates of the text after U+2581 was replaced by spaces.
enum BlockedRanges {
    All,
    Ranges(Vec<Range<usize>>),
}

impl Controls<'_> {
    fn blocked_ranges(self, text: &str) -> BlockedRanges {
        let ranges = match self {
            Controls::None => return BlockedRanges::All,
            Controls::All => &[],
            Controls::Outside(ranges) => ranges,
        };
        // Each U+2581 has two bytes more than a space.
        let places: Vec<usize> = text.match_indices('\u{2581}').map(|(at, _)| at).collect();
        let place = |at: usize| at - 2 * places.partition_point(|found| *found < at);
        BlockedRanges::Ranges(
            ranges
                .iter()
                .map(|range| place(range.start)..place(range.end))
                .collect(),
        )
    }
}

impl BlockedRanges {
    fn allow(&self, start: usize, end: usize) -> bool {
        let BlockedRanges::Ranges(ranges) = self else {
            return false;
        };
        let first = ranges.partition_point(|range| range.end <= start);
        ranges.get(first).is_none_or(|range| range.start >= end)
    }
}

/// Finds the longest token at the start of a text.
#[derive(Debug)]
struct PrefixMatcher {
    index: Index,
    /// For each first byte, the lengths of the tokens that begin with it, longest first.
    lens: Vec<Vec<u32>>,
}

impl PrefixMatcher {
    fn new(table: &TokenTable, ids: &[u32]) -> Self {
        let mut lens = vec![Vec::new(); 256];
        for &id in ids {
            let token = table.get(id);
            let lens: &mut Vec<u32> = &mut lens[token[0] as usize];
            if !lens.contains(&(token.len() as u32)) {
                lens.push(token.len() as u32);
            }
        }
        for lens in &mut lens {
            lens.sort_unstable_by(|a, b| b.cmp(a));
        }
        Self {
            index: Index::new(table, ids.iter().copied()),
            lens,
        }
    }

    /// Length and id of the longest token at the start of `text`, which is not empty.
    fn longest(&self, table: &TokenTable, text: &[u8]) -> Option<(usize, u32)> {
        self.lens[text[0] as usize].iter().find_map(|&len| {
            let id = self.index.get(table, text.get(..len as usize)?)?;
            Some((len as usize, id))
        })
    }
}

/// Bytes of white space at the start of a text, as C's `isspace` has it.
fn n_white(text: &[u8]) -> usize {
    let is_white = |byte: &&u8| matches!(byte, b' ' | b'\t'..=b'\r');
    text.iter().take_while(is_white).count()
}

/// Length in bytes of the UTF-8 character that begins with this byte.
fn utf8_len(first: u8) -> usize {
    match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

//! Byte-level BPE from the vocabulary of a GGUF file. It is a model for the `tokenizers` crate,
//! which does everything around the model, so that the result is the tokenizer that a
//! `tokenizer.json` of the same model describes.
//!
//! The model is our own because building the crate's model takes a fifth of the time to first token
//! of a small language model: it copies each text several times. [`Bpe`] merges by the same rules:
//! of all adjacent pairs that can be merged, the pair that comes first in the merge list is merged
//! first, the leftmost among equals. Characters without a token are dropped.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::TextError;
use super::guard::TextCost;
use super::hf::{Hf, HfTokenizer, StoppableModel};
use super::pre::PreRule;
use super::stop::Stop;
use super::texts::{Index, Texts};
use super::vocab::{TokenKind, Vocab};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{AddedToken, Model, Token};

const NONE: usize = usize::MAX;

/// Builds the tokenizer. Tokens and merges are moved out of `vocab`, not copied.
pub(super) fn build(
    vocab: &mut Vocab,
    kinds: &[TokenKind],
    rule: PreRule,
) -> Result<Hf<Bpe>, TextError> {
    let merges = vocab.merges.take().ok_or(TextError::Missing("merges"))?;
    let tokens = std::mem::take(&mut vocab.tokens);
    let rstrip: HashSet<u32> = vocab.rstrip.iter().copied().collect();
    let mut added = Vec::new();
    for ((token, kind), id) in tokens.iter().zip(kinds).zip(0..) {
        let special = *kind == TokenKind::Control;
        if special || *kind == TokenKind::UserDefined {
            let token = AddedToken::from(token.to_owned(), special).normalized(false);
            added.push(token.rstrip(rstrip.contains(&id)));
        }
    }
    let mut tokenizer = HfTokenizer::new(Bpe::new(tokens, &merges, rule.ignore_merges)?);
    tokenizer
        .with_normalizer(rule.normalizer())
        .with_pre_tokenizer(Some(rule.pre_tokenizer()?))
        .with_decoder(Some(ByteLevel::default()));
    tokenizer.add_tokens(&added);
    Ok(Hf::new(tokenizer, TextCost::BUILT_IN))
}

/// The BPE model; clones share the tables.
#[derive(Debug, Clone)]
pub(super) struct Bpe(Arc<Tables>);

#[derive(Debug)]
struct Tables {
    tokens: Texts,
    ids: Index,
    merges: HashMap<(u32, u32), Merge>,
    /// Whether a word that is a token is taken as it is, without merging.
    ignores_merges: bool,
}

/// The result of merging two adjacent tokens.
#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    id: u32,
}

impl Bpe {
    fn new(tokens: Texts, merges: &Texts, ignores_merges: bool) -> Result<Self, TextError> {
        // Among tokens with the same text, the lowest id wins.
        let ids = Index::new(&tokens, 0..u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        let mut joined = HashMap::with_capacity(merges.len());
        let mut both = String::new();
        for (index, merge) in merges.iter().enumerate() {
            let bad = |reason| TextError::BadMerge {
                index,
                merge: merge.to_owned(),
                reason,
            };
            let (left, right) = match merge.split_once(' ') {
                Some((left, right))
                    if !left.is_empty() && !right.is_empty() && !right.contains(' ') =>
                {
                    (left, right)
                }
                _ => return Err(bad("expected two tokens separated by one space".to_owned())),
            };
            let id = |text: &str| {
                let id = ids.get(&tokens, text.as_bytes());
                id.ok_or_else(|| bad(format!("the vocabulary has no token '{text}'")))
            };
            both.clear();
            both.extend([left, right]);
            joined.insert(
                (id(left)?, id(right)?),
                Merge {
                    rank: index as u32,
                    id: id(&both)?,
                },
            );
        }
        Ok(Self(Arc::new(Tables {
            tokens,
            ids,
            merges: joined,
            ignores_merges,
        })))
    }

    /// The tokens of a word.
    fn merge(&self, word: &str, stop: &Stop) -> Result<Vec<Symbol>, TextError> {
        let mut symbols = Vec::with_capacity(word.len());
        for (start, c) in word.char_indices() {
            let end = start + c.len_utf8();
            if let Some(id) = self.token_to_id(&word[start..end]) {
                let at = symbols.len();
                symbols.push(Symbol {
                    id,
                    prev: at.checked_sub(1).unwrap_or(NONE),
                    next: at + 1,
                    start,
                    end,
                });
            }
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut merger = Merger {
            merges: &self.0.merges,
            queue: BinaryHeap::with_capacity(symbols.len()),
            symbols,
        };
        merger.run(stop)?;
        let mut symbols = merger.symbols;
        symbols.retain(|symbol| symbol.start < symbol.end);
        Ok(symbols)
    }
}

impl StoppableModel for Bpe {
    fn tokenize_until(&self, word: &str, _: usize, stop: &Stop) -> tokenizers::Result<Vec<Token>> {
        stop.note(word.len())?;
        let token = |id, start, end| Token::new(id, word[start..end].to_owned(), (start, end));
        if self.0.ignores_merges
            && let Some(id) = self.token_to_id(word)
        {
            return Ok(vec![token(id, 0, word.len())]);
        }
        Ok(self
            .merge(word, stop)?
            .into_iter()
            .map(|symbol| token(symbol.id, symbol.start, symbol.end))
            .collect())
    }
}

impl Model for Bpe {
    type Trainer = BpeTrainer;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        self.tokenize_until(word, 0, &Stop::new(&|| false))
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.ids.get(&self.0.tokens, token.as_bytes())
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.tokens.get(id as usize).map(str::to_owned)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        (0..)
            .zip(self.0.tokens.iter())
            .map(|(id, token)| (token.to_owned(), id))
            .collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.tokens.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a vocabulary from a GGUF file cannot be saved as a model file".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

/// A part of a word. It is empty after being merged into the part before it.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    prev: usize,
    next: usize,
    start: usize,
    end: usize,
}

/// The merge loop over one word.
struct Merger<'a> {
    merges: &'a HashMap<(u32, u32), Merge>,
    symbols: Vec<Symbol>,
    /// Rank, position of the left symbol, and resulting id; the lowest rank and position are at the
    /// top.
    queue: BinaryHeap<std::cmp::Reverse<(u32, usize, u32)>>,
}

impl Merger<'_> {
    fn run(&mut self, stop: &Stop) -> Result<(), TextError> {
        (1..self.symbols.len()).for_each(|right| self.push(right - 1, right));
        while let Some(std::cmp::Reverse((_, left, id))) = self.queue.pop() {
            stop.note(1)?;
            let right = self.symbols[left].next;
            // Either symbol may have changed since. The pair is still valid if both now merge to
            // the same id.
            if self.symbols[left].start == self.symbols[left].end
                || right == NONE
                || self.found(left, right).is_none_or(|merge| merge.id != id)
            {
                continue;
            }
            let Symbol { next, end, .. } = self.symbols[right];
            self.symbols[right].end = self.symbols[right].start;
            let merged = &mut self.symbols[left];
            (merged.id, merged.next, merged.end) = (id, next, end);
            let prev = merged.prev;
            if next != NONE {
                self.symbols[next].prev = left;
                self.push(left, next);
            }
            if prev != NONE {
                self.push(prev, left);
            }
        }
        Ok(())
    }

    fn found(&self, left: usize, right: usize) -> Option<Merge> {
        self.merges
            .get(&(self.symbols[left].id, self.symbols[right].id))
            .copied()
    }

    fn push(&mut self, left: usize, right: usize) {
        if let Some(Merge { rank, id }) = self.found(left, right) {
            self.queue.push(std::cmp::Reverse((rank, left, id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::models::bpe::BPE;

    /// Random numbers below `n`.
    fn random(state: &mut u64, n: usize) -> usize {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) as usize) % n
    }

    /// Tokens of four letters that can be built in several ways, and merges in random order, some
    /// of them repeated.
    fn lists(state: &mut u64) -> (Vec<String>, Vec<(String, String)>) {
        let mut tokens: Vec<String> = ["a", "b", "ł", "語"].map(str::to_owned).into();
        let mut merges = Vec::new();
        while merges.len() < 60 {
            let mut pick = || tokens[random(state, tokens.len())].clone();
            let (left, right) = (pick(), pick());
            let joined = [left.as_str(), &right].concat();
            if joined.chars().count() > 6 {
                continue;
            }
            if !tokens.contains(&joined) {
                tokens.push(joined);
            }
            let at = random(state, merges.len() + 1);
            merges.insert(at, (left, right));
        }
        (tokens, merges)
    }

    #[test]
    fn words_are_split_like_in_the_library() {
        let mut state = 5;
        for ignores_merges in [false, true] {
            for _ in 0..20 {
                let (tokens, merges) = lists(&mut state);
                let spelled: Texts = merges
                    .iter()
                    .map(|(left, right)| format!("{left} {right}"))
                    .collect();
                let ours = Bpe::new(tokens.iter().collect(), &spelled, ignores_merges).unwrap();
                let ids: tokenizers::models::bpe::Vocab = (0..)
                    .zip(&tokens)
                    .map(|(id, token)| (token.clone(), id))
                    .collect();
                let library = BPE::builder()
                    .vocab_and_merges(ids, merges)
                    .ignore_merges(ignores_merges);
                let library = library.build().unwrap();
                for _ in 0..200 {
                    let n_chars = random(&mut state, 30);
                    // The last letter occurs in no token.
                    let word: String = (0..n_chars)
                        .map(|_| ['a', 'b', 'ł', '語', 'z'][random(&mut state, 21) / 5])
                        .collect();
                    let ids = |tokens: Vec<Token>| {
                        tokens.into_iter().map(|token| token.id).collect::<Vec<_>>()
                    };
                    assert_eq!(
                        ids(ours.tokenize(&word).unwrap()),
                        ids(library.tokenize(&word).unwrap()),
                        "{word}: {spelled:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_long_word_does_not_take_quadratic_time() {
        let tokens = ["a", "b", "ab", "ba", "abab"].into_iter().collect();
        let bpe = Bpe::new(
            tokens,
            &["a b", "ab ab", "b a"].into_iter().collect(),
            false,
        )
        .unwrap();
        assert_eq!(
            bpe.tokenize(&"ab".repeat(1_000_000)).unwrap().len(),
            500_000
        );
    }
}

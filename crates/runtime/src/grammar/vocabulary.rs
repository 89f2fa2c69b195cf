//! The tokens of a model as llguidance sees them.

use std::io::{self, Read, Write};
use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenizerEnv};
use serde::{Deserialize, Serialize};
use thane_engine::text::{EncodeOptions, Tokenizer};

use super::call::{read_bytes, read_json, write_bytes, write_json};

/// Finds the tokens that spell bytes.
pub(super) type Tokenize = dyn Fn(&[u8]) -> Option<Vec<u32>> + Send + Sync;

/// The tokens of a model.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Words {
    n_vocab: u32,
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
    /// Whether a text has the same tokens in the midst of an answer.
    is_canonical: bool,
    /// The bytes of each token, behind their number in two bytes.
    #[serde(skip)]
    spelled: Vec<u8>,
}

impl Words {
    /// Longer tokens are never chosen under a grammar; the trie cannot hold them.
    const MAX_TOKEN_BYTES: usize = 512;

    pub fn new(tokenizer: &Tokenizer) -> Self {
        let n_vocab = u32::try_from(tokenizer.n_vocab()).unwrap_or(u32::MAX);
        let mut spelled = Vec::new();
        for id in 0..n_vocab {
            let marker = TokTrie::SPECIAL_TOKEN_MARKER;
            let (mark, bytes): (&[u8], &[u8]) = match tokenizer.token_bytes(id) {
                bytes if bytes.len() > Self::MAX_TOKEN_BYTES => (&[], &[]),
                bytes if tokenizer.is_special(id) => (&[marker], bytes),
                // No text has this byte, which marks control tokens.
                bytes if bytes.first() == Some(&marker) => (&[], &[]),
                bytes => (&[], bytes),
            };
            let n = u16::try_from(mark.len() + bytes.len()).unwrap_or(0);
            spelled.extend_from_slice(&n.to_le_bytes());
            spelled.extend_from_slice(mark);
            spelled.extend_from_slice(bytes);
        }
        Self {
            n_vocab,
            ends: tokenizer.end_ids().to_vec(),
            is_canonical: !tokenizer.has_space_prefix(),
            spelled,
        }
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write_json(to, self)?;
        write_bytes(to, &self.spelled)
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let words: Self = read_json(from)?;
        let spelled = read_bytes(from)?;
        Ok(Self { spelled, ..words })
    }

    fn trie(&self) -> TokTrie {
        let mut rest = self.spelled.as_slice();
        let mut words = Vec::new();
        while let Some((n, after)) = rest.split_first_chunk() {
            let n = usize::from(u16::from_le_bytes(*n)).min(after.len());
            let (word, after) = after.split_at(n);
            words.push(word.to_vec());
            rest = after;
        }
        let first = self.ends.first().copied().unwrap_or(0);
        let info = TokRxInfo::new(self.n_vocab, first);
        TokTrie::from(&info, &words).with_eos_tokens(&self.ends)
    }
}

/// The tokens of bytes. A tokenizer may change a text, which cannot be done in the midst of an
/// answer: there are none then.
pub(super) fn tokens_of(tokenizer: &Tokenizer, bytes: &[u8]) -> Option<Vec<u32>> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let text = std::str::from_utf8(bytes).ok()?;
    let tokens = tokenizer.encode(text, options).ok()?;
    let spelled = tokens.iter().flat_map(|id| tokenizer.token_bytes(*id));
    spelled.eq(bytes).then_some(tokens)
}

/// The tokens of a model, and its tokenizer.
pub(super) struct Vocabulary {
    trie: TokTrie,
    is_canonical: bool,
    tokenize: Arc<Tokenize>,
}

impl Vocabulary {
    pub fn new(words: &Words, tokenize: Arc<Tokenize>) -> Self {
        Self {
            trie: words.trie(),
            is_canonical: words.is_canonical,
            tokenize,
        }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        (self.tokenize)(bytes).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}

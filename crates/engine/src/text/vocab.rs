//! The vocabulary in a GGUF file: parallel lists and a few ids.

use serde::{Deserialize, Serialize};

use super::guard::{MAX_ADDED_BYTES, MAX_ALL_ADDED_BYTES};
use super::{TextError, Texts};

/// A tokenizer as plain lists, as in the `tokenizer.*` keys of a GGUF file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vocab {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, `bert` or `gemma4`.
    pub model: String,
    /// `tokenizer.ggml.pre`: name of the rule that splits text into words (`gpt2` only).
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Texts,
    /// `tokenizer.ggml.scores`, one per token (`llama` only).
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`, one per token.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`, best first (`gpt2` and `gemma4` only).
    pub merges: Option<Texts>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// Further tokens that end a generation.
    #[serde(default)]
    pub ends: Vec<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.cls_token_id` (`bert` only).
    #[serde(default)]
    pub cls: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`, spelled so (`bert` only).
    #[serde(default)]
    pub sep: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; if absent, the kind of tokenizer and the pre-tokenizer
    /// decide.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; if absent, false.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix` (`llama` only); if absent, true.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces` (`llama` only); true is not supported.
    pub remove_extra_whitespaces: Option<bool>,
    /// User-defined tokens that are parts of the text around them, as in the SentencePiece library
    /// (`llama` only). The other user-defined tokens cut a text into parts that get a space prefix
    /// each, as in llama.cpp.
    #[serde(default)]
    pub inner: Vec<u32>,
    /// `tokenizer.ggml.normalizer.lowercase` (`bert` only); if absent, true, as in llama.cpp.
    #[serde(default)]
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents` (`bert` only); if absent, as `lowercase`.
    #[serde(default)]
    pub strip_accents: Option<bool>,
    /// Control and user-defined tokens that take the white space behind them (`gpt2` and `llama`
    /// only).
    #[serde(default)]
    pub rstrip: Vec<u32>,
    /// The chat templates of the file, which are searched for the end-of-turn tokens that they
    /// write.
    pub chat_template: Option<String>,
    /// Number of rows of the model's embedding.
    pub n_vocab: usize,
}

/// `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TokenKind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

impl TokenKind {
    /// The kind with this number, or `None` if the format does not define the number.
    pub(super) fn from_gguf(value: i32) -> Option<Self> {
        Some(match value {
            // 0 means "undefined" in files that were written before types existed.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

impl Vocab {
    /// The ids of the tokens that the file names.
    pub(super) fn named(&self) -> Vec<u32> {
        let ids = [self.bos, self.eos, self.unk, self.pad, self.cls, self.sep];
        ids.into_iter().flatten().collect()
    }

    /// Checks that the lists have equal lengths and fit the model, and that all ids exist.
    pub(super) fn check(&self) -> Result<(), TextError> {
        let n_tokens = self.tokens.len();
        if n_tokens != self.n_vocab {
            return Err(TextError::VocabSize {
                tokenizer: n_tokens,
                model: self.n_vocab,
            });
        }
        let lists = [
            ("scores", self.scores.as_ref().map(Vec::len)),
            ("token types", self.token_types.as_ref().map(Vec::len)),
        ];
        for (list, found) in lists {
            if let Some(found) = found.filter(|&found| found != n_tokens) {
                return Err(TextError::ListLength {
                    list,
                    tokens: n_tokens,
                    found,
                });
            }
        }
        let inner = self.inner.iter().map(|id| ("inner", Some(*id)));
        let rstrip = self.rstrip.iter().map(|id| ("rstrip", Some(*id)));
        let ids = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unk),
            ("padding_token_id", self.pad),
            ("cls_token_id", self.cls),
            ("seperator_token_id", self.sep),
        ];
        for (what, id) in ids.into_iter().chain(inner).chain(rstrip) {
            if let Some(id) = id.filter(|&id| id as usize >= n_tokens) {
                return Err(TextError::IdOutOfRange {
                    what,
                    id,
                    n_vocab: n_tokens,
                });
            }
        }
        Ok(())
    }

    /// Checks the tokens that are searched for in every text. Their number and lengths determine
    /// the cost of a search.
    pub(super) fn check_searched(&self, kinds: &[TokenKind]) -> Result<(), TextError> {
        let mut all = 0;
        for (id, (token, kind)) in self.tokens.iter().zip(kinds).enumerate() {
            if !matches!(kind, TokenKind::Control | TokenKind::UserDefined) {
                continue;
            }
            all += token.len();
            if token.len() > MAX_ADDED_BYTES || all > MAX_ALL_ADDED_BYTES {
                let reason = format!(
                    "expected control and user-defined tokens of at most {MAX_ADDED_BYTES} bytes, \
                     {MAX_ALL_ADDED_BYTES} together, found more"
                );
                return Err(TextError::BadToken {
                    id,
                    token: token.chars().take(40).collect(),
                    reason,
                });
            }
        }
        Ok(())
    }

    /// The kind of each token; all tokens are normal if the file does not have types.
    pub(super) fn kinds(&self) -> Result<Vec<TokenKind>, TextError> {
        let Some(types) = &self.token_types else {
            return Ok(vec![TokenKind::Normal; self.tokens.len()]);
        };
        types
            .iter()
            .enumerate()
            .map(|(id, &value)| {
                TokenKind::from_gguf(value).ok_or_else(|| TextError::BadToken {
                    id,
                    token: self.tokens.get(id).unwrap_or_default().to_owned(),
                    reason: format!("expected a token type from 0 to 6, found {value}"),
                })
            })
            .collect()
    }
}

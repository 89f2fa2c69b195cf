//! Text in and out of a model: tokenizers, chat templates and streaming of generated text.
//!
//! This module knows no checkpoints: the caller passes the bytes of `tokenizer.json`, the pieces of
//! a `tokenizer.model` or the plain lists of a GGUF file. Start reading at
//! [`tokenizer::Tokenizer`].

mod bpe;
pub mod class;
pub mod config;
mod decoding;
mod gemma4;
pub mod guard;
mod hf;
mod jinja;
mod list_memory;
mod memory;
mod pair;
mod pre;
mod ruby;
mod spm;
mod stop;
pub mod stream;
mod table;
pub mod template;

pub mod texts;
pub mod tokenizer;
mod unigram;
pub mod vocab;
mod wordpiece;

use thane_mil::budget::OverBudget;

pub use config::{TokenizerConfig, TokenizerFiles};
pub use memory::value_bytes;
pub use pair::{Cut, Pair};
pub use stream::{StreamOptions, TextStream};
pub use template::{ChatTemplate, Message, NamedTemplates, Rendered, TemplateError, TemplateInput};
pub use texts::Texts;
pub use tokenizer::{EncodeOptions, SpecialTokens, Tokenizer};
pub use vocab::Vocab;

/// Errors in the files of a tokenizer, or in a text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file names a kind of tokenizer that is not supported.
    #[error(
        "expected a tokenizer of kind 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE), \
         'gemma4' (BPE with bytes) or 'bert' (WordPiece), found '{0}'"
    )]
    UnknownModel(String),
    /// The file names a pre-tokenizer whose splitting rule is not known.
    #[error("pre-tokenizer '{name}' is not supported: expected one of {supported}")]
    UnknownPre {
        /// The name in the file.
        name: String,
        /// The supported names.
        supported: String,
    },
    /// The vocabulary lacks a list or a key that this kind of tokenizer needs.
    #[error("the vocabulary has no {0}")]
    Missing(&'static str),
    /// A list of the vocabulary has another length than the list of tokens.
    #[error("the vocabulary: expected {tokens} {list}, one per token, found {found}")]
    ListLength {
        /// Name of the list.
        list: &'static str,
        /// Number of tokens.
        tokens: usize,
        /// Number of entries in the list.
        found: usize,
    },
    /// The tokenizer has another number of tokens than the model.
    #[error(
        "expected {model} tokens in the tokenizer, the number of rows of the model's embedding, \
         found {tokenizer}"
    )]
    VocabSize {
        /// Number of tokens in the tokenizer.
        tokenizer: usize,
        /// Number of rows of the embedding.
        model: usize,
    },
    /// A key names a token id that does not exist.
    #[error("{what}: expected a token id below {n_vocab}, the number of tokens, found {id}")]
    IdOutOfRange {
        /// Name of the key.
        what: &'static str,
        /// The token id.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// An entry of the vocabulary is not valid.
    #[error("token {id} ('{token}'): {reason}")]
    BadToken {
        /// Id of the token.
        id: usize,
        /// Spelling of the token in the file.
        token: String,
        /// What is wrong with the token.
        reason: String,
    },
    /// An entry of the merge list is not valid.
    #[error("merge {index} ('{merge}'): {reason}")]
    BadMerge {
        /// Index in the list.
        index: usize,
        /// The entry in the file.
        merge: String,
        /// What is wrong with the entry.
        reason: String,
    },
    /// A key has a value that is not supported for this kind of tokenizer.
    #[error("'{0}' is set, which is not supported for this kind of tokenizer")]
    Unsupported(&'static str),
    /// A key names a token that is not in the vocabulary.
    #[error("{what}: expected a token of the vocabulary, found '{token}'")]
    UnknownToken {
        /// Name of the key.
        what: &'static str,
        /// Text of the token.
        token: String,
    },
    /// `tokenizer.json`, `tokenizer_config.json` or `generation_config.json` is not valid.
    #[error("{file}: {reason}")]
    Json {
        /// Name of the file.
        file: &'static str,
        /// What is wrong with the file.
        reason: String,
    },
    /// The decoder in `tokenizer.json` does not support streaming.
    #[error("tokenizer.json: decoder '{0}' is not supported")]
    UnknownDecoder(String),
    /// The vocabulary can express a character neither as a token nor as bytes.
    #[error(
        "the tokenizer cannot express {character:?}: it has no token for the character, no byte \
         tokens and no unknown token"
    )]
    Unencodable {
        /// The character.
        character: char,
    },
    /// The tokenizer library panicked or took too long because of what the file contains.
    #[error("tokenizer.json is damaged: {0}")]
    Broken(String),
    /// The text would take too much memory.
    #[error("expected a text of at most {most} bytes for this tokenizer, found {found}")]
    TooLong {
        /// Bytes of the text.
        found: usize,
        /// Maximum bytes of a text.
        most: usize,
    },
    /// The tokenizer takes more memory than there is.
    #[error("there is too little memory")]
    Memory(#[source] OverBudget),
    /// A word would take too long.
    #[error(
        "expected text that this tokenizer can divide after at most {most} bytes, found {found} \
         bytes that are one word: divide them by spaces, or send less"
    )]
    Whole {
        /// Bytes of the word that are left.
        found: usize,
        /// Maximum bytes that are tokenized at once.
        most: usize,
    },
    /// The tokenizer does not say how two texts become one sequence.
    #[error(
        "expected a tokenizer.json, which says how two texts become one sequence, found the \
         vocabulary of a GGUF file: use the model's Hugging Face folder"
    )]
    NoPairs,
    /// The caller interrupted.
    #[error("tokenizing was interrupted: nobody waits for it any more")]
    Interrupted,
    /// The tokenizer library reported an error.
    #[error("tokenizing failed: {0}")]
    Encode(String),
}

//! Text in and out of a model: tokenizers, chat templates and streaming of generated text.
//!
//! Knows nothing of checkpoints: the caller hands over the bytes of `tokenizer.json` or the plain
//! lists that a GGUF file carries. Start reading at [`tokenizer::Tokenizer`].

mod bpe;
pub mod config;
pub mod guard;
mod hf;
mod jinja;
mod pre;
mod spm;
pub mod stream;
mod table;
pub mod template;

pub mod texts;
pub mod tokenizer;
pub mod vocab;

pub use config::TokenizerConfig;
pub use stream::{StreamOptions, TextStream};
pub use template::{ChatTemplate, Message, Rendered, TemplateError};
pub use texts::Texts;
pub use tokenizer::{EncodeOptions, Surroundings, Tokenizer};
pub use vocab::Vocab;

/// What can be wrong with a tokenizer or with what it is asked to do.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file names a kind of tokenizer that is not implemented.
    #[error(
        "tokenizer kind '{0}' is not supported (supported: 'gpt2' byte-level BPE, 'llama' \
         SentencePiece BPE)"
    )]
    UnknownModel(String),
    /// The file names a pre-tokenizer whose splitting rule is not known.
    #[error("pre-tokenizer '{name}' is not supported (supported: {supported})")]
    UnknownPre {
        /// The name in the file.
        name: String,
        /// The names that would have been understood.
        supported: String,
    },
    /// A list or a key that this kind of tokenizer needs is absent.
    #[error("the vocabulary has no {0}")]
    Missing(&'static str),
    /// Two parallel lists of the vocabulary differ in length.
    #[error("the vocabulary has {tokens} tokens but {found} {list}")]
    ListLength {
        /// Which list.
        list: &'static str,
        /// Number of tokens.
        tokens: usize,
        /// Number of entries in the other list.
        found: usize,
    },
    /// The tokenizer and the embedding table do not belong together.
    #[error("the tokenizer has {tokenizer} tokens but the model's embedding has {model} rows")]
    VocabSize {
        /// Number of tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// A token id that no token has.
    #[error("{what} is token {id}, but there are only {n_vocab} tokens")]
    IdOutOfRange {
        /// Which id.
        what: &'static str,
        /// The id.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// An entry of the vocabulary that cannot be used.
    #[error("token {id} ('{token}'): {reason}")]
    BadToken {
        /// Position in the vocabulary.
        id: usize,
        /// The token as the file spells it.
        token: String,
        /// What is wrong.
        reason: String,
    },
    /// An entry of the merge list that cannot be used.
    #[error("merge {index} ('{merge}'): {reason}")]
    BadMerge {
        /// Position in the list.
        index: usize,
        /// The merge as the file spells it.
        merge: String,
        /// What is wrong.
        reason: String,
    },
    /// A key that changes the tokenizer in a way that is not implemented.
    #[error("'{0}' is set, which is not supported for this kind of tokenizer")]
    Unsupported(&'static str),
    /// A token is named that the vocabulary lacks.
    #[error("{what} is '{token}', which is not in the vocabulary")]
    UnknownToken {
        /// Which token.
        what: &'static str,
        /// Its text.
        token: String,
    },
    /// `tokenizer.json`, `tokenizer_config.json` or `generation_config.json` cannot be read.
    #[error("{file}: {reason}")]
    Json {
        /// Which file.
        file: &'static str,
        /// The parser's message.
        reason: String,
    },
    /// A decoder in `tokenizer.json` that cannot be streamed.
    #[error("tokenizer.json: decoder '{0}' is not supported")]
    UnknownDecoder(String),
    /// Text with a character that the vocabulary can express neither as token nor as bytes.
    #[error("the tokenizer has no token for {character:?}, no byte tokens and no unknown token")]
    Unencodable {
        /// The character.
        character: char,
    },
    /// The tokenizer library failed on what the file holds.
    #[error("tokenizer.json is damaged: {0}")]
    Broken(String),
    /// A text that would take too much memory.
    #[error("the text has {found} bytes, and this tokenizer takes at most {most}")]
    TooLong {
        /// Bytes of the text.
        found: usize,
        /// Bytes that it may have.
        most: usize,
    },
    /// The tokenizer library refused the text.
    #[error("tokenizing failed: {0}")]
    Encode(String),
}

//! What can be wrong with a model's tokenizer and chat template.

use std::path::PathBuf;

use thane_engine::text::{TemplateError, TextError};
use thane_models::checkpoint::{CheckpointError, ConfigError, MetadataError};

use super::contract::ContractError;

/// Why tokenizer or chat template cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LanguageError {
    /// The model's files have no tokenizer.
    #[error("{0}")]
    NoTokenizer(&'static str),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A reranker's chat template leaves out one of the two texts.
    #[error(
        "expected a chat template that renders messages with the roles query and document, found \
         one that leaves out {0:?}: put a template for pairs into chat_template.jinja"
    )]
    LostRole(&'static str),
    /// A reranker renders pairs by a chat template and has none.
    #[error(
        "expected a chat template, because sentence_bert_config.json has the modality `message`, \
         found none: put one into chat_template.jinja"
    )]
    NoTemplate,
    /// A key of the GGUF file has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A key of the configuration has the wrong type.
    #[error("config.json: {0}")]
    Config(#[from] ConfigError),
    /// `tokenizer.model` cannot be used.
    #[error("tokenizer.model: {0}: a tokenizer.json of the same model can be used instead")]
    SentencePiece(String),
    /// A file is not UTF-8.
    #[error("{}: expected UTF-8", .0.display())]
    NotUtf8(PathBuf),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] ContractError),
    /// The vocabulary beside a checkpoint cannot be read.
    #[error(transparent)]
    Vocabulary(#[from] Box<CheckpointError>),
}

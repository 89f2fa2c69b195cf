//! Reads the files of sentence-transformers that describe a reranker (`CrossEncoder`).
//!
//! `CrossEncoder` saves `modules.json` and the files beside it like an embedding model, and tells
//! itself apart by `model_type` in `config_sentence_transformers.json`. Of a folder without
//! `modules.json`, or with that of another class, it makes a sequence classifier and reads none of
//! these files: neither lengths nor prompts nor an activation.

use std::path::Path;

use super::super::config::{Config, ConfigError};
use super::super::error::CheckpointError;
use super::super::keys;
use super::modules::{self, ScoreTokens};
use super::transformer::{Given, PairMessages};
use super::{
    MAX_BYTES, MaxTokens, PaddingSide, SentenceConfig, in_file, parse, read_opt_config,
    read_tokenizer_config, tokenizer_length,
};

/// The `model_type` of rerankers.
const CLASS: &str = "CrossEncoder";

/// The settings of a reranker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RerankConfig {
    /// Maximum number of tokens of a pair of texts.
    pub max_tokens: MaxTokens,
    /// Where pairs are padded to more than the longest of their batch, if they are.
    pub padding: Option<PaddingSide>,
    /// Whether text is lowercased before tokenization.
    pub lower_case: bool,
    /// The class of torch.nn that makes a score of a logit.
    pub activation: Option<String>,
    /// The prompt that precedes each query, or that is a system message before its message.
    pub prompt: Option<String>,
    /// The tokens of whose logits a score is made, if the model is a language model.
    pub tokens: Option<ScoreTokens>,
    /// How pairs become messages, if they do.
    pub messages: Option<PairMessages>,
}

/// Whether the class of sentence-transformers that saved a folder is that of rerankers; `None` if
/// the folder has no `modules.json`. Files of old versions name no class: embedding models.
pub(crate) fn is_saved_reranker(folder: &Path) -> Result<Option<bool>, CheckpointError> {
    if !folder.join("modules.json").is_file() {
        return Ok(None);
    }
    let path = folder.join(keys::SENTENCE_TRANSFORMERS.file);
    if !path.is_file() {
        return Ok(Some(false));
    }
    let config = parse(&path, MAX_BYTES)?;
    let class = in_file(&path, config.opt_str("model_type"))?;
    Ok(Some(class == Some(CLASS)))
}

impl RerankConfig {
    /// Reads the files of a folder.
    ///
    /// # Errors
    ///
    /// If a file is not valid or describes a module that is not supported.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        if is_saved_reranker(folder)? != Some(true) {
            return Ok(Self {
                max_tokens: MaxTokens {
                    given: None,
                    by_tokenizer: tokenizer_length(folder)?,
                },
                messages: Some(without_mask(folder, PairMessages::default())?),
                ..Self::default()
            });
        }
        let tokens = modules::read_reranker(folder, &folder.join("modules.json"))?;
        let given = match tokens {
            Some(_) => Given::Vocabulary,
            None => Given::Labels,
        };
        let mut texts = SentenceConfig::default();
        let messages = texts.read_transformer(folder, given)?;
        let messages = messages
            .map(|form| without_mask(folder, form))
            .transpose()?;
        let path = folder.join(keys::SENTENCE_TRANSFORMERS.file);
        let activation = read_opt_config(&path, &keys::SENTENCE_TRANSFORMERS, |c| {
            texts.read_prompts(c)?;
            c.acknowledge(&["model_type", "truncate_dim"]);
            Ok(c.opt_str("activation_fn")?.map(str::to_owned))
        })?;
        Ok(Self {
            max_tokens: texts.max_tokens,
            padding: texts.padding,
            lower_case: texts.lower_case,
            activation,
            prompt: in_file(&path, default_prompt(&texts))?,
            tokens,
            messages,
        })
    }
}

/// How pairs become messages where the tokenizer gives no mask of tokens, by which
/// sentence-transformers finds the end of a pair to put back that of the template.
fn without_mask(folder: &Path, mut form: PairMessages) -> Result<PairMessages, CheckpointError> {
    let names = |c: &Config| {
        let names = c.opt_strs("model_input_names")?;
        Ok(names.is_some_and(|names| !names.contains(&"attention_mask")))
    };
    form.cuts_end |= read_tokenizer_config(folder, names)?;
    Ok(form)
}

/// The text of the default prompt, unless it is empty.
fn default_prompt(texts: &SentenceConfig) -> Result<Option<String>, ConfigError> {
    let Some(name) = &texts.default_prompt else {
        return Ok(None);
    };
    let prompt = texts.prompts.get(name).ok_or_else(|| ConfigError::Value {
        file: keys::SENTENCE_TRANSFORMERS.file,
        key: "default_prompt_name".to_owned(),
        expected: "a name in `prompts`",
        found: format!("{name:?}"),
    })?;
    Ok(Some(prompt.clone()).filter(|prompt| !prompt.is_empty()))
}

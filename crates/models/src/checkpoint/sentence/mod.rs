//! Reads the files of sentence-transformers that describe an embedding model: how hidden states
//! become one vector, and which prompts precede a text.
//!
//! `modules.json` lists the modules in order: the transformer, a pooling, dense layers, a
//! normalization ([`modules`]). `config_sentence_transformers.json` holds prompts and the
//! similarity function, `sentence_bert_config.json` the maximum length; since sentence-transformers
//! 6, `tokenizer_config.json` holds that length.

mod cross;
mod modules;
mod transformer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config::{Config, ConfigError};
use super::error::CheckpointError;
use super::folder::{HuggingFace, parse_weights};
use super::keys::{self, Class, FileKeys};
use super::{Tensors, map};
use crate::error::ModelError;
use crate::pooling::Poolings;

pub(crate) use cross::{RerankConfig, is_saved_reranker};
pub(crate) use modules::ScoreTokens;
pub use modules::{Dense, DenseActivation, Step};
use transformer::Given;
pub use transformer::PairMessages;

/// Largest accepted file; published ones are below 20 KB.
const MAX_BYTES: u64 = 1 << 20;
/// Largest accepted `tokenizer_config.json`; Gemma's has 1.2 MB.
const MAX_TOKENIZER_BYTES: u64 = 16 << 20;

/// The settings that the files of sentence-transformers describe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentenceConfig {
    /// What changes the vector of each token before the pooling, in order.
    pub token_steps: Vec<Step>,
    /// How token vectors are pooled into one vector.
    pub pooling: Option<Poolings>,
    /// Whether pooling includes the tokens of the prompt.
    pub include_prompt: bool,
    /// What changes the vector behind the pooling, in order.
    pub steps: Vec<Step>,
    /// Whether a module of the model quantizes the vector to int8 or to bits.
    pub quantize: bool,
    /// How many elements of a vector are kept unless the caller says otherwise; `None` for all.
    pub truncate_dim: Option<usize>,
    /// Maximum number of tokens of a text.
    pub max_tokens: MaxTokens,
    /// Where texts are padded to more than the longest of their batch, if they are.
    pub padding: Option<PaddingSide>,
    /// Whether text is lowercased before tokenization.
    pub lower_case: bool,
    /// Prompts by task name; a prompt precedes the text.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt that is used by default.
    pub default_prompt: Option<String>,
    /// The similarity function, such as `cosine`.
    pub similarity: Option<String>,
}

/// Where padding tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddingSide {
    /// Before the text.
    Left,
    /// Behind the text.
    Right,
}

impl PaddingSide {
    /// Refuses padding before texts that shifts them, in a model that counts padding as tokens.
    pub(crate) fn check(side: Option<Self>) -> Result<(), ModelError> {
        if side != Some(Self::Left) {
            return Ok(());
        }
        let reason = "texts are padded to a fixed length, and this model takes padding before a \
                      text for tokens: pad behind it, or remove `padding` and \
                      `pad_to_multiple_of` of sentence_bert_config.json";
        Err(ModelError::unsupported("padding_side", "left", reason))
    }
}

/// The maximum number of tokens of a text, by the files that may say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxTokens {
    /// A setting of sentence-transformers, which counts where positions are computed even if the
    /// model was trained with fewer.
    pub given: Option<usize>,
    /// `tokenizer_config.json`, which counts up to the positions of the model.
    pub by_tokenizer: Option<usize>,
}

/// The files that describe the transformer. The first that is not empty counts.
const TRANSFORMER_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

impl SentenceConfig {
    /// Reads the files of a folder; `None` if the folder has no `modules.json`, or that of a
    /// reranker.
    ///
    /// # Errors
    ///
    /// If a file is not valid or describes a module that is not supported.
    pub fn read(folder: &HuggingFace) -> Result<Option<Self>, CheckpointError> {
        let list = folder.folder.join("modules.json");
        if is_saved_reranker(&folder.folder)? != Some(false) {
            return Ok(None);
        }
        let mut sentence = Self {
            include_prompt: true,
            ..Self::default()
        };
        sentence.read_transformer(&folder.folder, Given::Tokens)?;
        let path = folder.folder.join(keys::SENTENCE_TRANSFORMERS.file);
        read_opt_config(&path, &keys::SENTENCE_TRANSFORMERS, |c| {
            sentence.read_settings(c)
        })?;
        modules::read(&mut sentence, folder, &list)?;
        if sentence.padding.is_some() && !sentence.include_prompt {
            let reason = "padding to a fixed length counts as tokens of the prompt, which \
                          `include_prompt: false` leaves out: remove `padding` and \
                          `pad_to_multiple_of` of sentence_bert_config.json";
            return Err(unusable(&folder.folder, reason.to_owned()));
        }
        Ok(Some(sentence))
    }

    /// Whether vectors have length 1.
    pub fn normalizes(&self) -> bool {
        self.steps.last() == Some(&Step::Normalize)
    }

    /// Reads `config_sentence_transformers.json` of an embedding model.
    fn read_settings(&mut self, c: &Config) -> Result<(), ConfigError> {
        // To sentence-transformers, null is another class, whose modules it does not read.
        refuse_null(c, "model_type")?;
        check_name(c, "model_type", "SentenceTransformer")?;
        self.read_prompts(c)?;
        // The score of a reranker.
        c.value("activation_fn");
        self.truncate_dim = c.opt_usize("truncate_dim")?;
        if self.truncate_dim == Some(0) {
            let (key, expected) = ("truncate_dim".to_owned(), "at least one element, or null");
            let found = "0".to_owned();
            return Err(ConfigError::Value {
                file: keys::SENTENCE_TRANSFORMERS.file,
                key,
                expected,
                found,
            });
        }
        Ok(())
    }

    fn read_prompts(&mut self, c: &Config) -> Result<(), ConfigError> {
        refuse_null(c, "prompts")?;
        if let Some(prompts) = c.opt_object("prompts")? {
            for name in prompts.keys() {
                let text = prompts.opt_str(name)?.unwrap_or_default();
                self.prompts.insert(name.to_owned(), text.to_owned());
            }
        }
        self.default_prompt = c.opt_str("default_prompt_name")?.map(str::to_owned);
        self.similarity = c.opt_str("similarity_fn_name")?.map(str::to_owned);
        Ok(())
    }

    /// Reads the first file that describes the transformer, and the length in
    /// `tokenizer_config.json` if that file has none. Gives how texts become messages, if they do.
    fn read_transformer(
        &mut self,
        folder: &Path,
        given: Given,
    ) -> Result<Option<PairMessages>, CheckpointError> {
        let (mut messages, mut side) = (None, None);
        for name in TRANSFORMER_FILES {
            let path = folder.join(name);
            let is_empty = read_opt_config(&path, &keys::SENTENCE_BERT, |c| {
                self.read_limits(c)?;
                side = padding_side(c)?;
                self.padding = pads(c)?.then_some(PaddingSide::Right);
                messages = transformer::read(c, given)?;
                Ok(c.keys().next().is_none())
            })?;
            if !is_empty {
                break;
            }
        }
        if self.max_tokens.given.is_none() {
            self.max_tokens.by_tokenizer = tokenizer_length(folder)?;
        }
        if self.padding.is_some() {
            let of_tokenizer = || read_tokenizer_config(folder, read_side);
            self.padding = Some(match side {
                Some(side) => side,
                None => of_tokenizer()?.unwrap_or(PaddingSide::Right),
            });
        }
        Ok(messages)
    }

    /// Length and case of texts. What a call of the tokenizer is given counts first, then what the
    /// tokenizer is made with.
    fn read_limits(&mut self, c: &Config) -> Result<(), ConfigError> {
        self.lower_case = c.bool_or("do_lower_case", false)?;
        let mut given = c.opt_usize("max_seq_length")?;
        for key in ["tokenizer_args", "processor_kwargs"] {
            let Some(made_with) = c.opt_object(key)? else {
                continue;
            };
            refuse_null(&made_with, "model_max_length")?;
            given = made_with.opt_usize("model_max_length")?.or(given);
        }
        self.max_tokens.given = given;
        let Some(processing) = c.opt_object("processing_kwargs")? else {
            return Ok(());
        };
        // None of its keys is read, and those that change nothing have rows.
        if let Some(common) = processing.opt_object("common")? {
            refuse_nulls(&common, None)?;
        }
        let Some(text) = processing.opt_object("text")? else {
            return Ok(());
        };
        // A length that is null is the tokenizer's own, as without the key.
        refuse_nulls(&text, Some("max_length"))?;
        match text.value("truncation") {
            None | Some(Value::Bool(true)) => {}
            Some(Value::String(how)) if how == "longest_first" => {}
            Some(other) => {
                return Err(ConfigError::Value {
                    file: keys::SENTENCE_BERT.file,
                    key: text.path("truncation"),
                    expected: "longest_first",
                    found: other.to_string(),
                });
            }
        }
        self.max_tokens.given = text.opt_usize("max_length")?.or(given);
        Ok(())
    }

    /// The tensors of the modules, by names that begin with the module's folder.
    pub fn tensors(&self, folder: &Path) -> Result<Tensors, CheckpointError> {
        let mut all = Tensors::new();
        for step in self.token_steps.iter().chain(&self.steps) {
            let (Step::Dense(Dense { folder: name, .. }) | Step::LayerNorm { folder: name, .. }) =
                step
            else {
                continue;
            };
            let path = folder.join(name).join("model.safetensors");
            if !path.is_file() && folder.join(name).join("pytorch_model.bin").is_file() {
                let reason = "expected model.safetensors, found pytorch_model.bin, which is not \
                              supported: convert the model to safetensors";
                return Err(unusable(&folder.join(name), reason.to_owned()));
            }
            let tensors = parse_weights(&path, &map::map(&path)?)?;
            all.extend(tensors.into_iter().map(|(tensor_name, mut tensor)| {
                let full = format!("{name}.{tensor_name}");
                tensor.name.clone_from(&full);
                (full, tensor)
            }));
        }
        Ok(all)
    }
}

/// Whether a text alone is padded.
fn pads(c: &Config) -> Result<bool, ConfigError> {
    let processing = c.opt_object("processing_kwargs")?;
    let text = processing.map(|all| all.opt_object("text"));
    let Some(text) = text.transpose()?.flatten() else {
        return Ok(false);
    };
    let multiple = text.opt_usize("pad_to_multiple_of")?.unwrap_or(1);
    Ok(match text.value("padding") {
        Some(Value::String(how)) if how == "max_length" => true,
        Some(Value::String(how)) if how == "do_not_pad" => false,
        Some(Value::Bool(false)) => false,
        _ => multiple > 1,
    })
}

/// The side of padding in what the tokenizer is made with.
fn padding_side(c: &Config) -> Result<Option<PaddingSide>, ConfigError> {
    let mut side = None;
    for key in ["tokenizer_args", "processor_kwargs"] {
        let made_with = c.opt_object(key)?;
        let given = made_with.map(|made_with| read_side(&made_with));
        side = given.transpose()?.flatten().or(side);
    }
    Ok(side)
}

fn read_side(c: &Config) -> Result<Option<PaddingSide>, ConfigError> {
    match c.opt_str("padding_side")? {
        None => Ok(None),
        Some("left") => Ok(Some(PaddingSide::Left)),
        Some("right") => Ok(Some(PaddingSide::Right)),
        Some(_) => Err(c.refused("padding_side", "left or right")),
    }
}

/// Refuses arguments of a call that are null and may change something. Where sentence-transformers
/// cuts texts, a `truncation` that is null cuts none.
fn refuse_nulls(arguments: &Config, like_default: Option<&str>) -> Result<(), ConfigError> {
    let is_harmless = |key: &str| {
        let row = keys::SENTENCE_BERT.row(&arguments.path(key));
        row.is_some_and(|row| row.class == Class::Harmless) || Some(key) == like_default
    };
    let mut keys = arguments.keys().filter(|key| !is_harmless(key));
    keys.try_for_each(|key| refuse_null(arguments, key))
}

/// Refuses a key that is null, where a null takes the place of a default.
fn refuse_null(c: &Config, key: &str) -> Result<(), ConfigError> {
    match c.is_null(key) {
        false => Ok(()),
        true => Err(ConfigError::Value {
            file: c.file(),
            key: c.path(key),
            expected: "no such key, because null is not its default",
            found: "null".to_owned(),
        }),
    }
}

/// Refuses a value other than `expected`; a key that is absent or null is accepted.
fn check_name(c: &Config, key: &str, expected: &str) -> Result<(), ConfigError> {
    match c.opt_str(key)? {
        Some(found) if found != expected => Err(ConfigError::Keys {
            file: c.file(),
            faults: vec![format!(
                "key {:?}: expected {expected:?}, found {found:?}: models of another kind are not \
                 supported here",
                c.path(key)
            )],
        }),
        _ => Ok(()),
    }
}

/// The maximum length in `tokenizer_config.json`.
fn tokenizer_length(folder: &Path) -> Result<Option<usize>, CheckpointError> {
    let length = read_tokenizer_config(folder, |c| {
        let (length, old) = (c.opt_f64("model_max_length")?, c.opt_f64("max_len")?);
        // A null takes the place of the old name too.
        Ok(length.or(old.filter(|_| !c.is_null("model_max_length"))))
    });
    // Files of tokenizers without a limit have 1e30.
    let plausible = length?.filter(|n| *n >= 1.0 && *n < 1e9);
    Ok(plausible.map(|n| n as usize))
}

/// Reads some keys of `tokenizer_config.json`, and refuses those that are not supported. A file
/// that is absent counts as empty.
pub(crate) fn read_tokenizer_config<T>(
    folder: &Path,
    read: impl FnOnce(&Config) -> Result<T, ConfigError>,
) -> Result<T, CheckpointError> {
    let path = folder.join("tokenizer_config.json");
    let config = if path.is_file() {
        parse(&path, MAX_TOKENIZER_BYTES)?
    } else {
        Config::of("tokenizer_config.json", Map::new())
    };
    let value = in_file(&path, read(&config))?;
    in_file(&path, keys::TOKENIZER.refuse(&config))?;
    Ok(value)
}

/// Reads a file by its table of keys.
fn read_config<T>(
    path: &Path,
    table: &FileKeys,
    read: impl FnOnce(&Config) -> Result<T, ConfigError>,
) -> Result<T, CheckpointError> {
    settle(path, &parse(path, MAX_BYTES)?, table, read)
}

/// Like [`read_config`]; a file that is absent counts as empty.
fn read_opt_config<T>(
    path: &Path,
    table: &FileKeys,
    read: impl FnOnce(&Config) -> Result<T, ConfigError>,
) -> Result<T, CheckpointError> {
    if path.is_file() {
        read_config(path, table, read)
    } else {
        settle(path, &Config::of(table.file, Map::new()), table, read)
    }
}

fn settle<T>(
    path: &Path,
    config: &Config,
    table: &FileKeys,
    read: impl FnOnce(&Config) -> Result<T, ConfigError>,
) -> Result<T, CheckpointError> {
    let value = in_file(path, read(config))?;
    in_file(path, table.settle(config))?;
    Ok(value)
}

fn parse(path: &Path, most: u64) -> Result<Config, CheckpointError> {
    in_file(path, Config::parse(&map::read_small(path, most)?))
}

/// Names the file of a fault.
fn in_file<T>(path: &Path, value: Result<T, ConfigError>) -> Result<T, CheckpointError> {
    value.map_err(|fault| CheckpointError::Config {
        path: path.to_owned(),
        fault,
    })
}

fn unusable(path: &Path, reason: String) -> CheckpointError {
    let path: PathBuf = path.to_owned();
    CheckpointError::Unusable { path, reason }
}

fn wrong(path: &Path, key: &str, expected: &str, found: &str) -> CheckpointError {
    unusable(path, format!("{key}: expected {expected}, found {found:?}"))
}

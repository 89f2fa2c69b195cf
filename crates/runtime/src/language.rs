//! The tokenizer and the chat template of a model, from the files of a checkpoint or of a package.

mod gguf;

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thane_engine::text::{self, TextError, Tokenizer, TokenizerConfig, Vocab};
use thane_kernels::heap::return_freed_memory;
use thane_mil::budget::{Budget, OverBudget, Reservation};
use thane_models::checkpoint::llama2c::read_tokenizer;
use thane_models::checkpoint::{Checkpoint, HuggingFace, Source};

use crate::error::LanguageError;
use crate::files::read;
use crate::sentencepiece;
use crate::template_source::{self, TemplateSource};

/// Memory that tokenizing takes for each byte of a text, in bytes. all-MiniLM-L6-v2's tokenizer
/// took 122 for words, 224 for single letters, 149 for Chinese and 444 for punctuation (peak of the
/// process at 5 MB of text less the peak at 1 MB, November 2026).
pub const TOKENIZER_BYTES: usize = 450;

/// The memory for tokenizing a text. That of a long one goes back to the system with it: the
/// allocator would keep it for the thread, where it counts against nobody's limit.
pub struct TokenizerMemory(Reservation);

impl TokenizerMemory {
    /// Less than this is worth more to the next text than to others.
    const LARGE_BYTES: usize = 64 << 20;

    /// Reserves the memory for a text of so many bytes. `what` has the text, as errors say.
    pub fn reserve(budget: &Budget, n_bytes: usize, what: &str) -> Result<Self, OverBudget> {
        let what = || format!("the tokens of a {what} of {n_bytes} bytes");
        let reserved = budget.reserve(n_bytes.saturating_mul(TOKENIZER_BYTES), what);
        reserved.map(Self)
    }
}

impl Drop for TokenizerMemory {
    fn drop(&mut self) {
        if self.0.bytes() >= Self::LARGE_BYTES {
            return_freed_memory();
        }
    }
}

/// A tokenizer, and the chat template that is parsed when a conversation needs it.
pub struct Language {
    /// Turns text into tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Turns messages into text; `None` if the model has none.
    pub template: Option<TemplateSource>,
}

/// The data that a [`Language`] is made of, as a package stores it in `language.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguageData {
    /// Data of the tokenizer.
    #[serde(rename = "words")]
    pub tokenizer: TokenizerData,
    /// Source of the chat template.
    pub template: Option<TemplateSource>,
}

/// The data that a tokenizer is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerData {
    /// The lists of a GGUF file.
    Lists(Vocab),
    /// A `tokenizer.json`, or what transformers makes of a `tokenizer.model`, which a package keeps
    /// in a file of its own, and the settings of the files beside it.
    Json {
        /// Bytes of `tokenizer.json`.
        #[serde(skip)]
        tokenizer: Vec<u8>,
        /// Settings of `tokenizer_config.json` and `generation_config.json`.
        config: TokenizerConfig,
    },
}

impl LanguageData {
    /// Reads the data from a checkpoint whose embedding table has `n_vocab` rows; `None` if the
    /// checkpoint has no tokenizer. What reading takes fits `budget`.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        n_vocab: usize,
        budget: &Budget,
    ) -> Result<Option<Self>, LanguageError> {
        match &checkpoint.source {
            Source::Gguf(gguf) => gguf::read(gguf, n_vocab),
            Source::HuggingFace(folder) => {
                if let Some(path) = folder.tokenizer_bin.as_deref() {
                    return from_llama2c(path, n_vocab).map(Some);
                }
                let ends = folder.eos_token_ids()?;
                TokenizerFiles::of(folder).read(ends, n_vocab, budget)
            }
        }
    }

    /// Reads the data from the tokenizer files of a folder; `None` if it has no tokenizer.
    /// `generation_config.json` and `config.json` may name tokens that end a generation.
    /// What reading takes fits `budget`.
    pub fn from_folder(
        folder: &Path,
        n_vocab: usize,
        budget: &Budget,
    ) -> Result<Option<Self>, LanguageError> {
        let file = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
        let (json, model) = (file("tokenizer.json"), file("tokenizer.model"));
        let (config, template) = (file("tokenizer_config.json"), file("chat_template.jinja"));
        let of_model = match file("config.json") {
            Some(path) => serde_json::from_slice(&read(&path)?).unwrap_or_default(),
            None => Value::Null,
        };
        let files = TokenizerFiles {
            folder,
            json: json.as_deref(),
            model: model.as_deref(),
            config: config.as_deref(),
            template: template.as_deref(),
            model_type: of_model["model_type"].as_str(),
            class: of_model["tokenizer_class"].as_str(),
            version: of_model["transformers_version"].as_str(),
        };
        let mut ends = TokenizerConfig::default();
        let text_part = &of_model["text_config"];
        if let Some(path) = file("generation_config.json") {
            ends.add_generation_config(&read(&path)?)?;
        } else if of_model["eos_token_id"].is_null() && text_part.is_object() {
            // As transformers: the text part may have what the whole has not.
            ends.add_generation_config(text_part.to_string().as_bytes())?;
        } else if let Some(path) = file("config.json") {
            ends.add_generation_config(&read(&path)?)?;
        }
        files.read(ends.eos_ids, n_vocab, budget)
    }

    /// Makes the tokenizer, within a memory limit.
    pub fn into_language(self, budget: &Budget) -> Result<Language, LanguageError> {
        Ok(Language {
            tokenizer: Arc::new(self.tokenizer.into_tokenizer(budget)?),
            template: self.template,
        })
    }
}

impl TokenizerData {
    /// Makes the tokenizer, within a memory limit, against which the tokenizer counts as long as it
    /// is there.
    pub fn into_tokenizer(self, budget: &Budget) -> Result<Tokenizer, LanguageError> {
        Ok(match self {
            Self::Lists(vocab) => Tokenizer::from_vocab_within(vocab, budget)?,
            Self::Json { tokenizer, config } => {
                Tokenizer::from_json_within(&tokenizer, config, budget)?
            }
        })
    }
}

/// Paths of tokenizer files, each if there is one, and what `config.json` says of the tokenizer.
struct TokenizerFiles<'a> {
    folder: &'a Path,
    json: Option<&'a Path>,
    model: Option<&'a Path>,
    config: Option<&'a Path>,
    template: Option<&'a Path>,
    model_type: Option<&'a str>,
    class: Option<&'a str>,
    version: Option<&'a str>,
}

impl<'a> TokenizerFiles<'a> {
    fn of(folder: &'a HuggingFace) -> Self {
        let key = |name: &str| folder.config.value(name).and_then(Value::as_str);
        Self {
            folder: &folder.folder,
            json: folder.tokenizer_json.as_deref(),
            model: folder.tokenizer_model.as_deref(),
            config: folder.tokenizer_config.as_deref(),
            template: folder.chat_template.as_deref(),
            model_type: key("model_type"),
            class: key("tokenizer_class"),
            version: key("transformers_version"),
        }
    }

    /// Reads the files. `ends` are the ids of tokens that end a generation.
    fn read(
        &self,
        ends: Vec<u32>,
        n_vocab: usize,
        budget: &Budget,
    ) -> Result<Option<LanguageData>, LanguageError> {
        let held = &mut budget.reserve(0, String::new).map_err(TextError::from)?;
        let mut beside = |name: &str| {
            let path = Some(self.folder.join(name)).filter(|path| path.is_file());
            path.map(|path| read_settings(&path, held)).transpose()
        };
        let map = beside("special_tokens_map.json")?;
        let added = beside("added_tokens.json")?;
        let of_config = self
            .config
            .map(|path| read_settings(path, held))
            .transpose()?;
        let files = |tokenizer| text::TokenizerFiles {
            tokenizer,
            config: of_config.as_deref(),
            special_tokens_map: map.as_deref(),
            added_tokens: added.as_deref(),
            model_type: self.model_type,
            class: self.class,
            version: self.version,
        };
        let (tokenizer, mut config) = match (self.json, self.model) {
            (Some(json), _) => {
                let json = read_counted(json, held)?;
                let config = TokenizerConfig::from_files(&files(&json), n_vocab)?;
                (json, config)
            }
            (None, Some(model)) => {
                let model = sentencepiece::parse(&read_counted(model, held)?, n_vocab, held)?;
                TokenizerConfig::from_sentencepiece(&model, &files(&[]), n_vocab, held)?
            }
            (None, None) => return Ok(None),
        };
        template_source::read_files(&mut config, self.folder, self.template)?;
        config.eos_ids.extend(ends);
        Ok(Some(LanguageData {
            template: TemplateSource::of(&config),
            tokenizer: TokenizerData::Json { tokenizer, config },
        }))
    }
}

/// Reads a file; its bytes are added to `held` before.
fn read_counted(path: &Path, held: &mut Reservation) -> Result<Vec<u8>, LanguageError> {
    let n_bytes = path.metadata().map_or(0, |file| file.len());
    let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
    held.grow(n_bytes, || format!("the file {}", path.display()))
        .map_err(TextError::from)?;
    Ok(read(path)?)
}

/// Reads a file of settings, with room for what is made of it: its value, a part of which is
/// copied, and lists of tokens.
fn read_settings(path: &Path, held: &mut Reservation) -> Result<Vec<u8>, LanguageError> {
    const COPIES: usize = 3;
    let json = read_counted(path, held)?;
    let n_bytes = text::value_bytes(&json).saturating_mul(COPIES);
    let what = || format!("the settings in {}", path.display());
    held.grow(n_bytes, what).map_err(TextError::from)?;
    Ok(json)
}

/// The vocabulary of llama2.c, which is that of a SentencePiece model.
fn from_llama2c(path: &Path, n_vocab: usize) -> Result<LanguageData, LanguageError> {
    let tokens = read_tokenizer(path, n_vocab).map_err(Box::new)?;
    let vocab = Vocab {
        model: "llama".to_owned(),
        scores: Some(tokens.iter().map(|token| token.score).collect()),
        token_types: Some(tokens.iter().map(|token| token.kind).collect()),
        tokens: tokens.into_iter().map(|token| token.text).collect(),
        unk: Some(0),
        bos: Some(1),
        eos: Some(2),
        n_vocab,
        ..Vocab::default()
    };
    Ok(LanguageData {
        tokenizer: TokenizerData::Lists(vocab),
        template: None,
    })
}

//! How text becomes tokens and conversations become text: from the files of a checkpoint, or from
//! those of a package.

use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use thane_engine::text::{ChatTemplate, TemplateError, Texts, Tokenizer, TokenizerConfig, Vocab};
use thane_mil::package;
use thane_models::checkpoint::{Checkpoint, Gguf, HuggingFace, Source};

/// Bytes that a tokenizer takes for each byte of a text. all-MiniLM-L6-v2's took 122 where the text
/// was words, 224 for single letters, 149 for Chinese and 444 for punctuation (peak of the process
/// at 5 MB less that at 1 MB, November 2026).
pub const TOKENIZER_BYTES: usize = 450;

/// A tokenizer, ready for use, and a chat template, which only a conversation reads: other verbs,
/// and `--raw`, do without it.
pub struct Language {
    pub tokenizer: Tokenizer,
    pub template: Option<Template>,
}

/// What they are made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    pub words: Words,
    pub template: Option<Template>,
}

/// What a tokenizer is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Words {
    /// The lists of a GGUF file.
    Lists(Vocab),
    /// A `tokenizer.json`, which stands in a file of its own, and what the files beside it add.
    Json {
        #[serde(skip)]
        tokenizer: Vec<u8>,
        config: TokenizerConfig,
    },
}

/// A chat template and what it calls the tokens that begin and end a text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    pub text: String,
    pub bos: String,
    pub eos: String,
}

impl Template {
    /// Reads it.
    pub fn parse(&self) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new(&self.text, &self.bos, &self.eos)
    }
}

impl Parts {
    /// Those of a checkpoint whose embedding has `n_vocab` rows; none where it has no tokenizer.
    pub fn of(checkpoint: &Checkpoint, n_vocab: usize) -> anyhow::Result<Option<Self>> {
        match &checkpoint.source {
            Source::Gguf(gguf) => from_gguf(gguf, n_vocab),
            Source::HuggingFace(folder) => from_folder(folder, n_vocab),
        }
    }

    /// Ready for use.
    pub fn language(self) -> anyhow::Result<Language> {
        let tokenizer = match self.words {
            Words::Lists(vocab) => Tokenizer::from_vocab(vocab)?,
            Words::Json { tokenizer, config } => Tokenizer::from_json(&tokenizer, config)?,
        };
        Ok(Language {
            tokenizer,
            template: self.template,
        })
    }
}

fn from_gguf(gguf: &Gguf, n_vocab: usize) -> anyhow::Result<Option<Parts>> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| gguf.opt_u32(&key(name));
    let texts = |name: &str| -> anyhow::Result<Option<Texts>> {
        Ok(gguf
            .opt_strings(&key(name))?
            .map(|texts| texts.into_iter().collect()))
    };
    let source = gguf.opt_str("tokenizer.chat_template")?;
    let Some(tokens) = texts("tokens")? else {
        return Ok(None);
    };
    let (bos, eos) = (id("bos_token_id")?, id("eos_token_id")?);
    let spelled = |id: Option<u32>| {
        id.and_then(|id| tokens.get(id as usize))
            .unwrap_or_default()
            .to_owned()
    };
    let template = source.map(|s| Template {
        text: s.to_owned(),
        bos: spelled(bos),
        eos: spelled(eos),
    });
    let vocab = Vocab {
        model: gguf.str(&key("model"))?.to_owned(),
        pre: gguf.opt_str(&key("pre"))?.map(str::to_owned),
        tokens,
        scores: gguf.opt_f32s(&key("scores"))?,
        token_types: gguf.opt_i32s(&key("token_type"))?,
        merges: texts("merges")?,
        bos,
        eos,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: gguf.opt_bool(&key("add_bos_token"))?,
        add_eos: gguf.opt_bool(&key("add_eos_token"))?,
        add_space_prefix: gguf.opt_bool(&key("add_space_prefix"))?,
        remove_extra_whitespaces: gguf.opt_bool(&key("remove_extra_whitespaces"))?,
        chat_template: source.map(str::to_owned),
        n_vocab,
    };
    Ok(Some(Parts {
        words: Words::Lists(vocab),
        template,
    }))
}

/// Largest side file; vocabularies take tens of megabytes.
const MOST_BYTES: u64 = 1 << 28;

/// A file beside the weights.
pub fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes =
        package::read_small(path, MOST_BYTES).with_context(|| path.display().to_string())?;
    match package::lfs_pointer(&bytes) {
        Some(pointer) => bail!("{} {pointer}", path.display()),
        None => Ok(bytes),
    }
}

fn from_folder(folder: &HuggingFace, n_vocab: usize) -> anyhow::Result<Option<Parts>> {
    let Some(json) = folder.tokenizer_json.as_deref() else {
        return Ok(None);
    };
    let mut config = match folder.tokenizer_config.as_deref() {
        Some(path) => TokenizerConfig::from_tokenizer_config(&read(path)?, n_vocab)?,
        None => TokenizerConfig {
            n_vocab,
            ..TokenizerConfig::default()
        },
    };
    if let Some(path) = folder.chat_template.as_deref() {
        config.chat_template = Some(String::from_utf8(read(path)?)?);
    }
    config.eos_ids.extend(folder.eos_token_ids()?);
    let spelled = |token: &Option<String>| token.clone().unwrap_or_default();
    let (bos, eos) = (spelled(&config.bos_token), spelled(&config.eos_token));
    let template = config
        .chat_template
        .clone()
        .map(|text| Template { text, bos, eos });
    Ok(Some(Parts {
        words: Words::Json {
            tokenizer: read(json)?,
            config,
        },
        template,
    }))
}

//! The settings in the small JSON files beside `tokenizer.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::class::{self, Class, Declared, SentencePiece, Settings};
use super::{Cut, NamedTemplates, TextError};
use serde_json::{Map, Value};
use thane_mil::budget::Reservation;

/// The files that describe a tokenizer, and what `config.json` says of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`.
    pub config: Option<&'a [u8]>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<&'a [u8]>,
    /// `added_tokens.json`.
    pub added_tokens: Option<&'a [u8]>,
    /// `model_type` of `config.json`.
    pub model_type: Option<&'a str>,
    /// `tokenizer_class` of `config.json`.
    pub class: Option<&'a str>,
    /// `transformers_version` of `config.json`.
    pub version: Option<&'a str>,
}

/// The keys of a file.
type Keys = Map<String, Value>;

impl<'a> TokenizerFiles<'a> {
    /// The keys of `tokenizer_config.json` and `special_tokens_map.json` together, from which
    /// `prepare` may remove some, and those of `added_tokens.json`.
    fn keys(
        &self,
        prepare: impl FnOnce(&mut Keys, Option<&mut Keys>),
    ) -> Result<(Keys, Option<Keys>), TextError> {
        let read = |file, json: Option<&[u8]>| json.map(|json| object(file, json)).transpose();
        let mut config = read(CONFIG, self.config)?.unwrap_or_default();
        let mut special = read("special_tokens_map.json", self.special_tokens_map)?;
        prepare(&mut config, special.as_mut());
        let added = read("added_tokens.json", self.added_tokens)?;
        Ok((class::merge(config, special), added))
    }

    /// What the files say about the class.
    fn declared<'b>(&self, keys: &'b Map<String, Value>) -> Declared<'b>
    where
        'a: 'b,
    {
        Declared {
            model_type: self.model_type,
            in_config: self.class,
            in_tokenizer_config: keys.get("tokenizer_class").and_then(Value::as_str),
            has_code: keys.get("auto_map").is_some_and(has_code),
        }
    }
}

/// The settings that `tokenizer_config.json`, `generation_config.json` and `config.json` add to a
/// `tokenizer.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerConfig {
    /// Beginning-of-text token.
    pub bos_token: Option<String>,
    /// End-of-text token.
    pub eos_token: Option<String>,
    /// Unknown token.
    pub unk_token: Option<String>,
    /// Padding token.
    pub pad_token: Option<String>,
    /// The token that separates the parts of a text.
    pub sep_token: Option<String>,
    /// All tokens that the files name, these and others: what transformers calls special.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_tokens: Vec<String>,
    /// Whether to add the beginning-of-text token. This and `add_eos_token` apply only if
    /// `tokenizer.json` has no post-processor, which otherwise decides, and there are no
    /// [`Settings`]: transformers (5.24) ignores both if there is a `tokenizer.json`, and the
    /// settings have both where there is a `tokenizer.model`.
    pub add_bos_token: Option<bool>,
    /// Whether to add the end-of-text token; see `add_bos_token` and
    /// [`Tokenizer::end_texts`](super::Tokenizer::end_texts).
    pub add_eos_token: Option<bool>,
    /// The chat template, or the one named `default` of several.
    pub chat_template: Option<String>,
    /// The chat template named `tool_use` of several, which conversations with tools take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_template: Option<String>,
    /// The chat templates of `tokenizer_config.json`, if none of them is named `default`.
    #[serde(skip)]
    pub named_templates: Option<NamedTemplates>,
    /// `eos_token_id` of `generation_config.json` or `config.json`; every one of these ids ends a
    /// generation.
    pub eos_ids: Vec<u32>,
    /// The side of texts that loses tokens where they are too long. If `None`, `tokenizer.json`
    /// may say.
    #[serde(default)]
    pub truncation_side: Option<Cut>,
    /// What transformers makes of a `tokenizer.json`; `None` if the file counts as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// Number of rows of the model's embedding.
    pub n_vocab: usize,
}

impl TokenizerConfig {
    /// Reads the files beside a `tokenizer.json` as transformers (5.24) does. If there are several
    /// chat templates, the one named `default` is used, and `tool_use` where there are tools.
    ///
    /// # Errors
    ///
    /// If a file is not valid.
    pub fn from_files(files: &TokenizerFiles, n_vocab: usize) -> Result<Self, TextError> {
        let (mut keys, added) = files.keys(|_, _| {})?;
        let declared = files.declared(&keys);
        let is_byte_level = || {
            let name = br#""ByteLevel""#;
            files
                .tokenizer
                .windows(name.len())
                .any(|bytes| bytes == name)
        };
        let class = Class::of(&declared, is_byte_level);
        if class == Class::Unmade {
            let name = declared.in_tokenizer_config.or(declared.in_config);
            class::check_made(name.unwrap_or_default(), files.tokenizer)?;
        }
        if class == Class::Backend && !keys.contains_key("pad_token") {
            let token = padding_token(files.tokenizer);
            keys.extend(token.map(|token| ("pad_token".to_owned(), token.into())));
        }
        let mut settings = Settings::read(class, &keys, added.as_ref())?;
        settings.read_mistral(&keys, files.model_type, files.version);
        Self::with_settings(settings, keys, n_vocab)
    }

    /// Reads the files beside a `tokenizer.model` as transformers (5.24) does, which makes of it
    /// the `tokenizer.json` whose bytes are returned. `tokenizer` of the files does not count. What
    /// that takes is added to `held` before, the bytes included.
    ///
    /// # Errors
    ///
    /// If a file is not valid, or would take too much memory or time, or if transformers cannot
    /// make a tokenizer of them.
    pub fn from_sentencepiece(
        model: &SentencePiece,
        files: &TokenizerFiles,
        n_vocab: usize,
        held: &mut Reservation,
    ) -> Result<(Vec<u8>, Self), TextError> {
        let (mut keys, added) = files.keys(class::drop_replaced)?;
        let declared = files.declared(&keys);
        let name = declared.in_tokenizer_config.or(declared.in_config);
        let name = name.map(str::to_owned);
        let class = (Class::of(&declared, || false), name.as_deref());
        let keys_of = (&mut keys, added.as_ref());
        let (settings, json) = Settings::of_pieces(class, model, keys_of, held)?;
        Ok((json, Self::with_settings(settings, keys, n_vocab)?))
    }

    fn with_settings(
        settings: Settings,
        keys: Map<String, Value>,
        n_vocab: usize,
    ) -> Result<Self, TextError> {
        let mut config = Self::of(&Value::Object(keys), n_vocab)?;
        config.named_tokens = settings.all_named().map(str::to_owned).collect();
        config.settings = Some(settings);
        Ok(config)
    }

    /// Reads `tokenizer_config.json` alone.
    ///
    /// # Errors
    ///
    /// If the file is not valid.
    pub fn from_tokenizer_config(json: &[u8], n_vocab: usize) -> Result<Self, TextError> {
        Self::of(&Value::Object(object(CONFIG, json)?), n_vocab)
    }

    fn of(json: &Value, n_vocab: usize) -> Result<Self, TextError> {
        check_file(json)?;
        let templates = chat_templates(&json["chat_template"]);
        Ok(Self {
            bos_token: token(json, "bos_token"),
            eos_token: token(json, "eos_token"),
            unk_token: token(json, "unk_token"),
            pad_token: token(json, "pad_token"),
            sep_token: token(json, "sep_token"),
            named_tokens: named_tokens(json),
            add_bos_token: json["add_bos_token"].as_bool(),
            add_eos_token: json["add_eos_token"].as_bool(),
            chat_template: templates.default,
            tool_template: templates.tool_use,
            named_templates: templates.no_default,
            eos_ids: Vec::new(),
            truncation_side: side(&json["truncation_side"])?,
            settings: None,
            n_vocab,
        })
    }

    /// The text of the beginning-of-text token, which the class of the tokenizer may name.
    pub fn bos_text(&self) -> &str {
        self.text_of(self.bos_token.as_deref(), "bos_token")
    }

    /// The text of the end-of-text token, which the class of the tokenizer may name.
    pub fn eos_text(&self) -> &str {
        self.text_of(self.eos_token.as_deref(), "eos_token")
    }

    fn text_of<'a>(&'a self, in_file: Option<&'a str>, key: &str) -> &'a str {
        let named = self
            .settings
            .as_ref()
            .and_then(|settings| settings.token(key));
        in_file.or(named).unwrap_or_default()
    }

    /// The texts of the named tokens by their keys, such as `pad_token`. Chat templates get them as
    /// variables, as they get the `special_tokens_map` of transformers. Without [`Settings`], those
    /// that have a field here.
    pub fn special_tokens(&self) -> BTreeMap<String, String> {
        if let Some(settings) = &self.settings {
            let tokens = settings.by_key();
            return tokens
                .map(|(key, text)| (key.to_owned(), text.to_owned()))
                .collect();
        }
        let fields = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("pad_token", &self.pad_token),
            ("sep_token", &self.sep_token),
        ];
        let named = |(key, text): (&str, &Option<String>)| Some((key.to_owned(), text.clone()?));
        fields.into_iter().filter_map(named).collect()
    }

    /// Adds the `eos_token_id` (one id or a list) of `generation_config.json` or `config.json`.
    pub fn add_generation_config(&mut self, json: &[u8]) -> Result<(), TextError> {
        const FILE: &str = "generation_config.json";
        let json = parse(FILE, json)?;
        let ids = match &json["eos_token_id"] {
            Value::Null => return Ok(()),
            Value::Array(ids) => ids.clone(),
            id => vec![id.clone()],
        };
        for id in ids {
            let id = id
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| TextError::Json {
                    file: FILE,
                    reason: format!("eos_token_id: expected a token id, found {id}"),
                })?;
            if !self.eos_ids.contains(&id) {
                self.eos_ids.push(id);
            }
        }
        Ok(())
    }
}

const CONFIG: &str = "tokenizer_config.json";

/// Refuses files of tokenizers for versions of transformers, one of which it would read in place of
/// `tokenizer.json`: `tokenizer.4.0.0.json` from 4.0.0 on.
fn check_file(json: &Value) -> Result<(), TextError> {
    let is_versioned = |name: &Value| {
        let rest = name.as_str().and_then(|name| name.split_once("tokenizer."));
        rest.is_some_and(|(_, rest)| rest.contains(".json"))
    };
    match json.get("fast_tokenizer_files") {
        None => Ok(()),
        Some(Value::Array(names)) if !names.iter().any(is_versioned) => Ok(()),
        Some(found) => Err(TextError::Json {
            file: CONFIG,
            reason: format!(
                "fast_tokenizer_files: expected tokenizer.json alone, found {found:.200}: rename \
                 the file of the newest version to tokenizer.json, and remove the key"
            ),
        }),
    }
}

/// Whether an `auto_map` names code for the tokenizer.
fn has_code(map: &Value) -> bool {
    map.is_array() || !map["AutoTokenizer"].is_null()
}

/// The object in a file.
fn object(file: &'static str, json: &[u8]) -> Result<Map<String, Value>, TextError> {
    match parse(file, json)? {
        Value::Object(keys) => Ok(keys),
        _ => Err(TextError::Json {
            file,
            reason: "expected a JSON object".to_owned(),
        }),
    }
}

fn parse(file: &'static str, json: &[u8]) -> Result<Value, TextError> {
    serde_json::from_slice(json).map_err(|error| TextError::Json {
        file,
        reason: error.to_string(),
    })
}

/// The side that loses tokens.
fn side(value: &Value) -> Result<Option<Cut>, TextError> {
    serde_json::from_value(value.clone()).map_err(|_| TextError::Json {
        file: "tokenizer_config.json",
        reason: format!("truncation_side: expected \"left\" or \"right\", found {value}"),
    })
}

/// The text of a token, which is a string or an object with the text in `content`.
fn token(json: &Value, key: &str) -> Option<String> {
    let value = &json[key];
    value
        .as_str()
        .or_else(|| value["content"].as_str())
        .map(str::to_owned)
}

/// The `pad_token` of `padding` in a `tokenizer.json`.
fn padding_token(tokenizer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct File {
        padding: Option<Padding>,
    }
    #[derive(Deserialize)]
    struct Padding {
        pad_token: String,
    }
    // A file that is damaged is refused where it is read.
    let file: File = serde_json::from_slice(tokenizer).ok()?;
    file.padding.map(|padding| padding.pad_token)
}

/// The texts of all tokens that a file names: those of keys that end in `_token`, and those of its
/// lists and tables of further ones.
fn named_tokens(json: &Value) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut add = |value: &Value| {
        let text = value.as_str().or_else(|| value["content"].as_str());
        tokens.extend(text.map(str::to_owned));
    };
    for (key, value) in json.as_object().into_iter().flatten() {
        match value {
            _ if key.ends_with("_token") => add(value),
            Value::Array(values) if EXTRA_TOKENS.contains(&key.as_str()) => {
                values.iter().for_each(&mut add);
            }
            Value::Object(values) if EXTRA_TOKENS.contains(&key.as_str()) => {
                values.values().for_each(&mut add);
            }
            _ => {}
        }
    }
    tokens
}

/// The keys of further tokens, by their names before transformers 5 and since.
const EXTRA_TOKENS: [&str; 3] = [
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
];

/// The chat templates of `tokenizer_config.json`.
#[derive(Default)]
struct Templates {
    default: Option<String>,
    tool_use: Option<String>,
    /// All of them, if none is named `default`: transformers refuses to choose.
    no_default: Option<NamedTemplates>,
}

/// The source of the chat template, which may be one of several named ones, as a list of names and
/// sources or as an object.
fn chat_templates(value: &Value) -> Templates {
    let named: BTreeMap<&str, &Value> = match value {
        Value::Array(templates) => {
            let rows = templates.iter();
            rows.filter_map(|row| Some((row["name"].as_str()?, &row["template"])))
                .collect()
        }
        Value::Object(templates) => templates.iter().map(|(k, v)| (k.as_str(), v)).collect(),
        value => {
            return Templates {
                default: value.as_str().map(str::to_owned),
                ..Templates::default()
            };
        }
    };
    let source = |name: &str| Some(named.get(name)?.as_str()?.to_owned());
    let default = source("default");
    let no_default = default.is_none().then(|| NamedTemplates {
        file: format!("chat_template of {CONFIG}"),
        names: named.keys().map(|name| (*name).to_owned()).collect(),
    });
    Templates {
        default,
        tool_use: source("tool_use"),
        no_default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_old_and_new_spellings() {
        let json = br#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null,
            "add_bos_token": true, "chat_template": [{"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"}]}"#;
        let mut config = TokenizerConfig::from_tokenizer_config(json, 7).unwrap();
        assert_eq!(config.bos_token.as_deref(), Some("<s>"));
        assert_eq!(config.eos_token.as_deref(), Some("</s>"));
        assert_eq!(
            (
                config.pad_token.as_deref(),
                config.add_bos_token,
                config.add_eos_token
            ),
            (None, Some(true), None)
        );
        assert_eq!(config.chat_template.as_deref(), Some("d"));
        assert_eq!(config.tool_template.as_deref(), Some("t"));
        config
            .add_generation_config(br#"{"eos_token_id": [1, 106]}"#)
            .unwrap();
        config
            .add_generation_config(br#"{"eos_token_id": 1}"#)
            .unwrap();
        config
            .add_generation_config(br#"{"temperature": 1.0}"#)
            .unwrap();
        assert_eq!(config.eos_ids, [1, 106]);
        let message = config
            .add_generation_config(br#"{"eos_token_id": -1}"#)
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "generation_config.json: eos_token_id: expected a token id, found -1"
        );
        let names = |json: &str| {
            let config = TokenizerConfig::from_tokenizer_config(json.as_bytes(), 7).unwrap();
            config.named_templates.map(|templates| templates.names)
        };
        for (json, expected) in [
            (r#"{"chat_template": {"default": "d", "a": "b"}}"#, None),
            (
                r#"{"chat_template": {"rag": "t"}}"#,
                Some(vec!["rag".to_owned()]),
            ),
            (r#"{"chat_template": []}"#, Some(vec![])),
            (r#"{"chat_template": null}"#, None),
        ] {
            assert_eq!(names(json), expected, "{json}");
        }
        assert!(TokenizerConfig::from_tokenizer_config(b"{", 7).is_err());
        let side = |json: &str| TokenizerConfig::from_tokenizer_config(json.as_bytes(), 7);
        let left = side(r#"{"truncation_side": "left"}"#).unwrap();
        assert_eq!(left.truncation_side, Some(Cut::Start));
        assert_eq!(side("{}").unwrap().truncation_side, None);
        assert_eq!(
            side(r#"{"truncation_side": "top"}"#)
                .unwrap_err()
                .to_string(),
            "tokenizer_config.json: truncation_side: expected \"left\" or \"right\", found \"top\""
        );
    }
}

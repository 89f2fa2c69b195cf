//! What transformers (5.24) makes of a `tokenizer.json` and the files beside it.
//!
//! There, most classes of tokenizers take the vocabulary, the merges and often the post-processor
//! from `tokenizer.json`, and make all else themselves, some of it by keys of
//! `tokenizer_config.json`. Start reading at [`Class`]; [`parts`] has what each class makes, and
//! [`rebuild`] puts it in place. Source: `tokenization_utils_base.py`,
//! `tokenization_utils_tokenizers.py` and `models/*/tokenization_*.py`.

mod choose;
mod document;
mod mistral;
mod parts;
mod rebuild;
mod sentencepiece;

pub(super) use choose::check_made;
pub use choose::{Class, Declared};
pub(super) use sentencepiece::drop_replaced;
pub use sentencepiece::{NamedPiece, Piece, PieceKind, SentencePiece};

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::TextError;
use super::memory::Searched;

/// The class of a tokenizer, and the settings that it is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    class: Class,
    lower_case: bool,
    strip_accents: Option<bool>,
    chinese_chars: bool,
    prefix_space: bool,
    legacy: bool,
    /// Whether special tokens in a text are encoded as text.
    split_special: bool,
    /// Whether a large vocabulary gets the pattern of [`mistral`].
    #[serde(default)]
    mistral_pattern: bool,
    /// The tokens that the files or the class name.
    named: Vec<Named>,
    /// Further special tokens.
    extra: Vec<AddedToken>,
    /// Tokens by their ids: `added_tokens_decoder` of `tokenizer_config.json`, or
    /// `added_tokens.json`.
    added: BTreeMap<u32, AddedToken>,
    /// Whether `added` counts in place of the added tokens of `tokenizer.json`, not beside them.
    replaces_added: bool,
    /// The tokens around texts, where the tokenizer is made of a `tokenizer.model`; `None` where
    /// `tokenizer.json` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adds: Option<sentencepiece::Adds>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    key: String,
    token: AddedToken,
    /// Whether only the class names the token.
    is_default: bool,
}

/// Keys of the tokens that every class has.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl Settings {
    /// The settings of a class in `tokenizer_config.json`, into which `special_tokens_map.json` is
    /// [merged](merge). `added_tokens` is the content of `added_tokens.json`.
    pub(super) fn read(
        class: Class,
        keys: &Map<String, Value>,
        added_tokens: Option<&Map<String, Value>>,
    ) -> Result<Self, TextError> {
        let flag =
            |key: &str, default: bool| keys.get(key).and_then(Value::as_bool).unwrap_or(default);
        let mut settings = Self {
            class,
            lower_case: class == Class::Dpr || flag("do_lower_case", true),
            strip_accents: keys.get("strip_accents").and_then(Value::as_bool),
            chinese_chars: flag("tokenize_chinese_chars", true),
            prefix_space: match keys.get("add_prefix_space") {
                Some(Value::Bool(adds)) => *adds,
                Some(Value::Null) if !class.takes_no_prefix_for_null() => class.adds_prefix_space(),
                Some(_) => false,
                None => class.adds_prefix_space(),
            },
            legacy: flag("legacy", false),
            split_special: flag("split_special_tokens", false),
            named: class.named_tokens(keys),
            extra: class.extra_tokens(keys),
            ..Self::default()
        };
        if let Some(Value::Object(tokens)) = keys.get(DECODER) {
            settings.replaces_added = true;
            for (id, token) in tokens {
                settings.added.insert(token_id(id)?, added_token(token)?);
            }
        } else {
            settings.add_legacy(added_tokens)?;
        }
        Ok(settings)
    }

    /// Adds the tokens of `added_tokens.json`; those that are named are special.
    fn add_legacy(&mut self, tokens: Option<&Map<String, Value>>) -> Result<(), TextError> {
        let is_one = |named: &&Named| !named.is_default && NAMES.contains(&&*named.key);
        let named = self.named.iter().filter(is_one);
        let special = named.map(|named| &named.token).chain(&self.extra);
        let special: HashSet<&str> = special.map(|token| &*token.content).collect();
        for (content, id) in tokens.into_iter().flatten() {
            let special = special.contains(&**content);
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = number.ok_or_else(|| {
                let reason = format!("{content:?}: expected a token id, found {id}");
                bad("added_tokens.json", reason)
            })?;
            self.added
                .insert(id, AddedToken::from(content.clone(), special));
        }
        Ok(())
    }

    /// The text of a token that the files or the class name, such as `eos_token`.
    pub(super) fn token(&self, key: &str) -> Option<&str> {
        let named = self.named.iter().find(|named| named.key == key);
        named.map(|named| named.token.content.as_str())
    }

    /// The key and the text of each token that the files or the class name. Of tokens with the same
    /// key, the last one counts.
    pub(super) fn by_key(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.named.iter();
        named.map(|named| (named.key.as_str(), named.token.content.as_str()))
    }

    /// The tokens that are searched for in texts because of the settings.
    pub(super) fn added(&self) -> Searched {
        let mut all = Searched::default();
        let named = self.all_named().map(str::len);
        let others = self.added.values().map(|token| token.content.len());
        named.chain(others).for_each(|n_bytes| all.add(n_bytes));
        all
    }

    /// The texts of all tokens that the files or the class name.
    pub(super) fn all_named(&self) -> impl Iterator<Item = &str> {
        let named = self.named.iter().map(|named| &named.token);
        named.chain(&self.extra).map(|token| token.content.as_str())
    }
}

/// The key of tokens by their ids.
const DECODER: &str = "added_tokens_decoder";
/// The keys of further special tokens, since transformers 5 and before.
const EXTRA: &str = "extra_special_tokens";
const OLD_EXTRA: &str = "additional_special_tokens";
/// The key of tokens with names of their own.
const OTHERS: &str = "model_specific_special_tokens";
/// What marks the object of a token in `tokenizer_config.json`; those of `special_tokens_map.json`
/// need no mark.
const TYPE: &str = "__type";
const ADDED_TOKEN: &str = "AddedToken";

/// `tokenizer_config.json` with the keys of `special_tokens_map.json`, which count only where the
/// former has no [`DECODER`]. They count first, except for tokens of other keys than [`NAMES`].
pub(super) fn merge(
    mut config: Map<String, Value>,
    special: Option<Map<String, Value>>,
) -> Map<String, Value> {
    let is_empty = |value: Option<&Value>| match value {
        Some(Value::Array(tokens)) => tokens.is_empty(),
        Some(Value::Object(tokens)) => tokens.is_empty(),
        other => other.is_none_or(Value::is_null),
    };
    let new_name = |keys: &mut Map<String, Value>| {
        if is_empty(keys.get(EXTRA))
            && let Some(tokens) = keys.shift_remove(OLD_EXTRA)
        {
            keys.insert(EXTRA.to_owned(), tokens);
        }
    };
    new_name(&mut config);
    let is_own = |key: &str| key.ends_with("_token") && !NAMES.contains(&key);
    let names = config.get(EXTRA).and_then(Value::as_object);
    let has_names = names.is_some_and(|names| !names.is_empty());
    let mut keys = config.iter();
    if has_names || keys.any(|(key, value)| is_own(key) && value.is_string()) {
        // transformers replaces them by what it finds here.
        config.shift_remove(OTHERS);
    }
    take_dict(&mut config);
    if config.contains_key(DECODER) {
        return config;
    }
    for (key, mut value) in special.into_iter().flatten() {
        if key.ends_with("_token") {
            mark_special(&mut value);
        }
        if is_own(&key) && config.get(&key).is_some_and(Value::is_string) {
            continue;
        }
        let value = match (key.as_str(), config.get(EXTRA), value) {
            (EXTRA, old, Value::Array(mut new)) => {
                new.iter_mut().for_each(mark_special);
                let old = old.and_then(Value::as_array).cloned().unwrap_or_default();
                let new = new.into_iter().filter(|token| !old.contains(token));
                Value::Array(old.iter().cloned().chain(new).collect())
            }
            (_, _, value) => value,
        };
        config.insert(key, value);
    }
    new_name(&mut config);
    take_dict(&mut config);
    config
}

/// Marks the object of a token in `special_tokens_map.json`, all of which are special.
fn mark_special(token: &mut Value) {
    if let Value::Object(keys) = token {
        keys.insert(TYPE.to_owned(), ADDED_TOKEN.into());
        keys.insert("special".to_owned(), Value::Bool(true));
    }
}

/// Moves [`EXTRA`], if it has names, to the tokens of other keys, which it replaces. The older key
/// counts then, if it is there.
fn take_dict(config: &mut Map<String, Value>) {
    let Some(Value::Object(tokens)) = config.get(EXTRA).cloned() else {
        return;
    };
    for key in tokens.keys() {
        if !NAMES.contains(&key.as_str()) {
            config.shift_remove(key);
        }
    }
    match config.get_mut(OTHERS) {
        Some(Value::Object(others)) => others.extend(tokens),
        _ => {
            config.insert(OTHERS.to_owned(), Value::Object(tokens));
        }
    }
    let list = config.shift_remove(OLD_EXTRA);
    config.insert(
        EXTRA.to_owned(),
        list.unwrap_or_else(|| Value::Object(Map::new())),
    );
}

impl Class {
    /// The tokens of keys in the file, those that the class names otherwise, and those of other
    /// keys that end in `_token`.
    fn named_tokens(self, keys: &Map<String, Value>) -> Vec<Named> {
        let named = |key: &str, token, is_default| Named {
            key: key.to_owned(),
            token,
            is_default,
        };
        let mut tokens = Vec::new();
        for key in NAMES {
            match keys.get(key) {
                Some(Value::Null) => {}
                Some(value) => tokens.extend(
                    self.named_token(key, value)
                        .map(|token| named(key, token, false)),
                ),
                None => tokens.extend(
                    self.default_token(key)
                        .map(|text| named(key, self.token_of_text(key, text), true)),
                ),
            }
        }
        let is_token = |value: &Value| value.is_string() || value[TYPE] == ADDED_TOKEN;
        let others = keys.iter().filter(|(key, value)| {
            key.ends_with("_token") && !NAMES.contains(&key.as_str()) && is_token(value)
        });
        let table = keys.get(OTHERS).and_then(Value::as_object);
        for (key, value) in others.chain(table.into_iter().flatten()) {
            tokens.extend(
                self.named_token(key, value)
                    .map(|token| named(key, token, false)),
            );
        }
        tokens.extend(
            self.infilling_tokens(keys)
                .map(|(key, text)| named(key, AddedToken::from(text, true), true)),
        );
        tokens
    }

    fn named_token(self, key: &str, value: &Value) -> Option<AddedToken> {
        match value {
            Value::String(text) => Some(self.token_of_text(key, text)),
            value => added_token(value).ok().map(|token| token.special(true)),
        }
    }

    /// What a class makes of the text of a token.
    fn token_of_text(self, key: &str, text: &str) -> AddedToken {
        let takes_space = matches!(self, Self::Mpnet | Self::Camembert) && key == "mask_token";
        AddedToken::from(text, true).lstrip(takes_space)
    }

    fn extra_tokens(self, keys: &Map<String, Value>) -> Vec<AddedToken> {
        let Some(Value::Array(tokens)) = keys.get(EXTRA) else {
            let tokens = if keys.get(EXTRA).is_some_and(Value::is_object) {
                Vec::new()
            } else {
                self.default_extra(keys)
            };
            return tokens
                .into_iter()
                .map(|text| AddedToken::from(text, true))
                .collect();
        };
        let token = |value: &Value| match value {
            Value::String(text) => Some(self.token_of_text(EXTRA, text)),
            // Such a token may say that it is not special.
            value => added_token(value).ok(),
        };
        tokens.iter().filter_map(token).collect()
    }
}

/// A token with its properties; `null` and absent ones have the defaults of the `tokenizers` crate.
fn added_token(value: &Value) -> Result<AddedToken, TextError> {
    let flag = |key: &str| value[key].as_bool();
    let Some(content) = value["content"].as_str() else {
        return Err(bad(
            CONFIG,
            format!("{DECODER}: expected a token with `content`, found {value}"),
        ));
    };
    let mut token = AddedToken::from(content, flag("special").unwrap_or(false));
    token = token
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false));
    token = token.single_word(flag("single_word").unwrap_or(false));
    Ok(match flag("normalized") {
        Some(normalized) => token.normalized(normalized),
        None => token,
    })
}

fn token_id(text: &str) -> Result<u32, TextError> {
    text.parse().map_err(|_| {
        bad(
            CONFIG,
            format!("{DECODER}: expected token ids as keys, found {text:?}"),
        )
    })
}

const CONFIG: &str = "tokenizer_config.json";

fn bad(file: &'static str, reason: String) -> TextError {
    TextError::Json { file, reason }
}

/// The error, in this file.
fn in_file(file: &'static str, error: TextError) -> TextError {
    match error {
        TextError::Json { reason, .. } => bad(file, reason),
        error => error,
    }
}

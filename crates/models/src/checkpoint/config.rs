//! Typed access to `config.json` and to the files beside it, with a record of the keys that were
//! read.
//!
//! A family reads the keys that it knows and then calls [`Config::unread`]. A key that nobody read
//! may change the computation, so the family must reject it or call [`Config::acknowledge`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use super::json;

/// Why a key of a JSON file cannot be read. Keys of nested objects are dotted:
/// `text_config.hidden_size`. Who reports the error names the file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the messages describe the fields
pub enum ConfigError {
    #[error("not valid JSON: {fault}; fetch the file again")]
    Json { fault: String },
    #[error("key {key:?} is missing: expected {expected}: fetch the model's own file")]
    Missing { key: String, expected: &'static str },
    #[error("key {key:?}: expected {expected}, found {found}")]
    Type {
        file: &'static str,
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("keys {first:?} and {second:?} contradict each other ({detail}): remove the wrong one")]
    Contradiction {
        first: String,
        second: String,
        detail: String,
    },
    #[error("key {key:?}: expected {expected}, found {found}")]
    Value {
        file: &'static str,
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("{}", faults.join("; "))]
    Keys {
        file: &'static str,
        faults: Vec<String>,
    },
}

impl ConfigError {
    /// Name of the file.
    pub fn file(&self) -> &'static str {
        match self {
            Self::Type { file, .. } | Self::Value { file, .. } | Self::Keys { file, .. } => file,
            _ => "config.json",
        }
    }
}

/// An object of a JSON file. Clones and nested objects share one record of the keys that were
/// read.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the file.
    file: &'static str,
    map: Arc<Map<String, Value>>,
    /// Dotted path to this object, ending in a dot; empty for the whole file.
    prefix: String,
    seen: Arc<Mutex<ReadKeys>>,
}

#[derive(Debug, Default)]
struct ReadKeys {
    /// Dotted keys that were read or acknowledged.
    read: BTreeSet<String>,
    /// Dotted keys that were opened as objects; the keys inside of them are tracked one by one.
    opened: BTreeSet<String>,
    /// Notes for the user on keys that change nothing.
    notes: BTreeSet<String>,
}

impl Config {
    /// Parses the text of a file. Repeated keys are an error.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        Self::parse_file("config.json", text)
    }

    /// Parses the text of a file like `config.json`.
    pub(super) fn parse_file(file: &'static str, text: &[u8]) -> Result<Self, ConfigError> {
        let map = json::parse_object(text).map_err(|fault| ConfigError::Json {
            fault: fault.to_string(),
        })?;
        Ok(Self::of(file, map))
    }

    /// An object of `file` that was parsed.
    pub(super) fn of(file: &'static str, map: Map<String, Value>) -> Self {
        Self {
            file,
            map: Arc::new(map),
            prefix: String::new(),
            seen: Arc::default(),
        }
    }

    /// A non-negative integer.
    pub fn usize(&self, key: &str) -> Result<usize, ConfigError> {
        self.required(self.opt_usize(key), key, "a whole number")
    }

    /// Like [`Self::usize`], but `None` if the key is absent or null.
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number", as_usize)
    }

    /// A number.
    pub fn f64(&self, key: &str) -> Result<f64, ConfigError> {
        self.required(self.opt_f64(key), key, "a number")
    }

    /// Like [`Self::f64`], but `None` if the key is absent or null.
    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, ConfigError> {
        self.required(self.opt_bool(key), key, "a bool")
    }

    /// A boolean, or `default` if the key is absent or null.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.opt_bool(key)?.unwrap_or(default))
    }

    /// Like [`Self::bool`], but `None` if the key is absent or null.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str, ConfigError> {
        self.required(self.opt_str(key), key, "a string")
    }

    /// Like [`Self::str`], but `None` if the key is absent or null.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A list of strings, or `None` if the key is absent or null.
    pub fn opt_strs(&self, key: &str) -> Result<Option<Vec<&str>>, ConfigError> {
        self.typed(key, "a list of strings", |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    /// A list of non-negative integers, or `None` if the key is absent or null.
    pub fn opt_usizes(&self, key: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        self.typed(key, "a list of whole numbers", |value| {
            value.as_array()?.iter().map(as_usize).collect()
        })
    }

    /// A list of numbers, or `None` if the key is absent or null.
    pub fn opt_f64s(&self, key: &str) -> Result<Option<Vec<f64>>, ConfigError> {
        self.typed(key, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// Token ids, given as one number or as a list; empty if the key is absent or null.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        Ok(self
            .typed(key, "a token id or a list of them", as_token_ids)?
            .unwrap_or_default())
    }

    /// Refuses nulls of keys that have a default where they are absent, as transformers 5 does.
    pub fn check_not_null(&self, keys: &[&str]) -> Result<(), ConfigError> {
        let null = keys.iter().find(|key| self.is_null(key));
        null.map_or(Ok(()), |key| {
            Err(ConfigError::Value {
                file: self.file,
                key: self.path(key),
                expected: "a value, or no such key for the default",
                found: "null".to_owned(),
            })
        })
    }

    /// A nested object, whose keys are then tracked one by one.
    pub fn object(&self, key: &str) -> Result<Self, ConfigError> {
        self.required(self.opt_object(key), key, "an object")
    }

    /// Like [`Self::object`], but `None` if the key is absent or null.
    pub fn opt_object(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        let Some(map) = self.typed(key, "an object", Value::as_object)? else {
            return Ok(None);
        };
        let path = self.path(key);
        self.seen().opened.insert(path.clone());
        Ok(Some(Self {
            file: self.file,
            map: Arc::new(map.clone()),
            prefix: path + ".",
            seen: Arc::clone(&self.seen),
        }))
    }

    /// A value of any type, or `None` if the key is absent or null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let value = self.map.get(key)?;
        self.seen().read.insert(self.path(key));
        if value.is_null() { None } else { Some(value) }
    }

    /// Whether the key is present and not null. This does not count as reading the key.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Whether the key is present and null. This does not count as reading the key.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// This object with `value` for `key`, unless it has the key. The record of the keys that were
    /// read stays the same.
    pub(crate) fn or_default(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut map = Map::clone(&self.map);
        map.entry(key).or_insert_with(|| value.into());
        Self {
            map: Arc::new(map),
            ..self.clone()
        }
    }

    /// Whether the key is present and an object. This does not count as reading the key.
    pub(crate) fn is_object(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_object)
    }

    /// The keys of this object, in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Whether the value of a dotted key is null, false or empty.
    pub(crate) fn says_nothing(&self, key: &str) -> bool {
        let mut parts = key.split('.');
        let first = parts.next().and_then(|part| self.map.get(part));
        match parts.fold(first, |value, part| value?.get(part)) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::Object(map)) => map.is_empty(),
            Some(value) => has_nothing(value),
        }
    }

    /// Marks keys as read that are known not to change the computation.
    pub fn acknowledge(&self, keys: &[&str]) {
        let mut seen = self.seen();
        seen.read.extend(keys.iter().map(|key| self.path(key)));
    }

    /// Marks a key as read that changes nothing, although its name says otherwise. If the file has
    /// the key, a note gives the reason.
    pub(crate) fn note_unused(&self, key: &str, reason: &str) {
        if self.has(key) {
            self.acknowledge(&[key]);
            let note = format!("{}: `{}` is not used: {reason}", self.file, self.path(key));
            self.seen().notes.insert(note);
        }
    }

    /// Notes for the user on keys that change nothing.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.seen().notes.iter().cloned().collect()
    }

    /// Dotted keys of this object that were neither read nor acknowledged, in file order. Null,
    /// empty texts and empty lists are left out because they say nothing; `false` may turn off what
    /// is usual, as that of `is_causal` does, and an empty object may ask for the defaults of a
    /// part, as `audio_config` does. An object that was never opened counts as one key.
    pub fn unread(&self) -> Vec<String> {
        let mut unread = Vec::new();
        collect_unread(&self.map, &self.prefix, &self.seen(), &mut unread);
        unread
    }

    /// The dotted path of `key`, for messages.
    pub(crate) fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn seen(&self) -> MutexGuard<'_, ReadKeys> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object with the values of `keys` in the first of `parts` that has each.
    pub(crate) fn first_of<'k>(parts: &[&Self], keys: impl Iterator<Item = &'k str>) -> Self {
        let value = |key: &str| {
            let has = parts.iter().find(|part| part.has(key))?;
            Some((key.to_owned(), has.map.get(key)?.clone()))
        };
        Self {
            file: "config.json",
            map: Arc::new(keys.filter_map(value).collect()),
            prefix: String::new(),
            seen: Arc::default(),
        }
    }

    /// Name of the file.
    pub(crate) fn file(&self) -> &'static str {
        self.file
    }

    /// The error of a value that is not what is expected.
    pub(crate) fn refused(&self, key: &str, expected: &'static str) -> ConfigError {
        ConfigError::Value {
            file: self.file,
            key: self.path(key),
            expected,
            found: self.map.get(key).map(shorten).unwrap_or_default(),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let typed = read(value);
        if typed.is_none() {
            return Err(ConfigError::Type {
                file: self.file,
                key: self.path(key),
                expected,
                found: shorten(value),
            });
        }
        Ok(typed)
    }

    fn required<T>(
        &self,
        value: Result<Option<T>, ConfigError>,
        key: &str,
        expected: &'static str,
    ) -> Result<T, ConfigError> {
        value?.ok_or_else(|| ConfigError::Missing {
            key: self.path(key),
            expected,
        })
    }
}

fn as_usize(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// One token id, or a list of token ids; `None` for any other value.
pub(crate) fn as_token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    match value {
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => Some(vec![id(one)?]),
    }
}

fn collect_unread(
    map: &Map<String, Value>,
    prefix: &str,
    seen: &ReadKeys,
    unread: &mut Vec<String>,
) {
    for (key, value) in map.iter().filter(|(_, value)| !has_nothing(value)) {
        let path = format!("{prefix}{key}");
        match value {
            Value::Object(inner) if seen.opened.contains(&path) => {
                collect_unread(inner, &format!("{path}."), seen, unread);
            }
            _ if seen.read.contains(&path) => {}
            _ => unread.push(path),
        }
    }
}

/// Whether a value is null, an empty text or an empty list.
fn has_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A value as JSON text, cut to 60 characters for messages.
pub(crate) fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

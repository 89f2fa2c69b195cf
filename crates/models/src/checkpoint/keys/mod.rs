//! Which keys of a checkpoint's JSON files are read, which change no number, and which are refused:
//! one table for each file, by which the files are read.
//!
//! A reader takes the keys that it knows from a [`Config`] and then calls [`FileKeys::settle`],
//! which refuses every key that nobody read unless its row says that it is harmless, or its value
//! is null, an empty text or an empty list. The tests hold these tables to the source of
//! transformers and sentence-transformers, which `tests/oracle/make_keys.py` reads.

mod common;
mod generation;
mod gguf;
mod sentence;
mod tokenizer;

use super::config::{Config, ConfigError};

pub use common::CONFIG;
pub use generation::GENERATION;
pub use gguf::GGUF_TOKENIZER;
pub use sentence::{
    DENSE, DROPOUT, LAYER_NORM, LOGIT_SCORE, MODULES, NORMALIZE, POOLING, SENTENCE_BERT,
    SENTENCE_TRANSFORMERS, WEIGHTED_LAYERS,
};
pub use tokenizer::{SPECIAL_TOKENS, TOKENIZER};

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Its value is read. A value that is not supported is refused.
    Read,
    /// It changes no number that is computed here.
    Harmless,
    /// It would change numbers and is refused, unless its value is null, false or empty.
    Refused,
    /// It changes answers of other software and not those of Thane, of which a note tells the user,
    /// unless its value is null, false, empty or this number.
    Noted(Option<i64>),
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key; keys of nested objects are dotted. A row for an object holds for all keys in it
    /// that have no row.
    pub name: &'static str,
    /// What becomes of it.
    pub class: Class,
    /// What it does; of a refused key, what to do; of a noted key, what it asks for.
    pub note: &'static str,
}

/// The keys of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileKeys {
    /// The name of the file.
    pub file: &'static str,
    /// All known keys. Others are refused.
    pub keys: &'static [Key],
}

const fn read(name: &'static str, note: &'static str) -> Key {
    let class = Class::Read;
    Key { name, class, note }
}

const fn harmless(name: &'static str, note: &'static str) -> Key {
    let class = Class::Harmless;
    Key { name, class, note }
}

const fn refused(name: &'static str, note: &'static str) -> Key {
    let class = Class::Refused;
    Key { name, class, note }
}

const fn noted(name: &'static str, unless: Option<i64>, note: &'static str) -> Key {
    let class = Class::Noted(unless);
    Key { name, class, note }
}

impl FileKeys {
    /// The row of a dotted key: its own, or that of the nearest object around it.
    pub fn row(&self, key: &str) -> Option<&'static Key> {
        let mut name = key;
        loop {
            if let Some(row) = self.keys.iter().find(|row| row.name == name) {
                return Some(row);
            }
            name = name.rsplit_once('.')?.0;
        }
    }

    /// Refuses the keys that the table refuses, for files whose other keys change nothing.
    pub fn refuse(&self, config: &Config) -> Result<(), ConfigError> {
        fail(config, self.refusals(config).collect())
    }

    /// Refuses the keys of the file that were not read and are not harmless, all in one error.
    pub fn settle(&self, config: &Config) -> Result<(), ConfigError> {
        let is_unknown = |key: &String| self.row(key).is_none_or(|row| row.class == Class::Read);
        let unknown = config.unread().into_iter().filter(is_unknown);
        let unknown = unknown
            .map(|key| format!("`{key}` may change the computation; remove it if it does not"));
        fail(config, self.refusals(config).chain(unknown).collect())
    }

    fn refusals(&self, config: &Config) -> impl Iterator<Item = String> {
        config.unread().into_iter().filter_map(|key| {
            let row = self.row(&key).filter(|row| row.class == Class::Refused)?;
            let says = !config.says_nothing(&key);
            says.then(|| format!("`{key}` is not supported: {}", row.note))
        })
    }
}

fn fail(config: &Config, faults: Vec<String>) -> Result<(), ConfigError> {
    let file = config.file();
    match faults.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::Keys { file, faults }),
    }
}

//! Which keys of a checkpoint's JSON files are read, which change no number, and which are refused:
//! one table for each file, by which the files are read.
//!
//! A reader takes the keys that it knows from a [`Config`] and then calls [`FileKeys::settle`],
//! which refuses every key that nobody read unless its row says that it is harmless.

mod sentence;

use super::config::{Config, ConfigError};

pub use sentence::{
    DENSE, DROPOUT, LAYER_NORM, LOGIT_SCORE, MODULES, NORMALIZE, POOLING, SENTENCE_BERT,
    SENTENCE_TRANSFORMERS, WEIGHTED_LAYERS,
};

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Its value is read. A value that is not supported is refused.
    Read,
    /// It changes no number that is computed here.
    Harmless,
    /// It would change numbers and is refused, unless its value is null, false or empty.
    Refused,
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key; keys of nested objects are dotted. A row for an object holds for all keys in it
    /// that have no row.
    pub name: &'static str,
    /// What becomes of it.
    pub class: Class,
    /// What it does; of a refused key, what to do.
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

    /// Refuses the keys of the file that were not read and are not harmless, all in one error.
    pub fn settle(&self, config: &Config) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        for key in config.unread() {
            match self.row(&key) {
                Some(row) if row.class == Class::Harmless => {}
                Some(row) if row.class == Class::Refused => {
                    if !config.says_nothing(&key) {
                        faults.push(format!("`{key}` is not supported: {}", row.note));
                    }
                }
                _ => faults.push(format!("`{key}` may change the computation")),
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::Keys { faults })
        }
    }
}

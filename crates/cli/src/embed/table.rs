//! The vectors that are written to a file, whatever its format.

use serde_json::Value;
use thane_engine::embed::output::Format;

use super::journal::Journal;
use super::records::{Counts, Stored};

/// What becomes of a row without a text: of one whose field is null or missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnNull {
    /// It ends the run before anything is computed.
    #[default]
    Error,
    /// It is left out.
    Skip,
    /// It has null for its vector.
    Keep,
}

/// The vectors of a finished run, and what a file says about them.
pub struct Table<'a> {
    /// Has the rows.
    pub journal: &'a Journal,
    /// How vectors are stored.
    pub format: Format,
    /// Dimensions of a vector.
    pub dim: usize,
    /// Whether rows have several vectors each.
    pub is_ragged: bool,
    /// What becomes of rows without a text.
    pub on_null: OnNull,
    /// The model's name.
    pub model: &'a str,
    /// Whether the user interrupted the run.
    pub interrupted: &'a dyn Fn() -> bool,
}

impl Table<'_> {
    /// Calls `take` with every row that is written, in order.
    pub fn each_row(
        &self,
        take: &mut dyn FnMut(&Stored) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.journal.each_row(&mut |row| {
            anyhow::ensure!(!(self.interrupted)(), "interrupted");
            match row.vectors.is_empty() && self.on_null == OnNull::Skip {
                true => Ok(()),
                false => take(row),
            }
        })
    }

    /// Number of rows that are written.
    pub fn n_rows(&self) -> u64 {
        let Counts { rows, nulls, .. } = self.journal.done();
        match self.on_null {
            OnNull::Skip => rows - nulls,
            OnNull::Error | OnNull::Keep => *rows,
        }
    }

    /// Whether rows without a vector are written.
    pub fn has_nulls(&self) -> bool {
        self.on_null == OnNull::Keep && self.journal.done().nulls > 0
    }

    /// Metadata that a reader needs. All values are strings, as safetensors requires.
    pub fn metadata(&self) -> serde_json::Map<String, Value> {
        let mut map = serde_json::Map::new();
        map.insert("model".to_owned(), self.model.into());
        map.insert("format".to_owned(), self.format.kind().into());
        map.insert("dimensions".to_owned(), self.dim.to_string().into());
        if let Some(packing) = self.format.packing() {
            map.insert("packing".to_owned(), packing.into());
        }
        map
    }
}

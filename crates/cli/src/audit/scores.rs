//! Scores of the audit's predictions on files of published data.

use std::path::{Path, PathBuf};

use thane_audit::labeled::score::Scores;
use thane_audit::target::Target;
use thane_mil::budget::Budget;

use crate::exit::{Failure, usage_in};
use crate::source::read_parsed;

/// Bytes of the longest table of labeled data.
const MOST_TABLE_BYTES: u64 = 1 << 26;

/// Score files, or the published data that the audit carries.
pub fn scores(files: &[PathBuf], target: &Target, budget: &Budget) -> Result<Scores, Failure> {
    if files.is_empty() {
        let scores = Scores::of_carried(target).map_err(anyhow::Error::new);
        return scores.map_err(usage_in(Path::new("the published data")));
    }
    let mut scores = Scores::default();
    for file in files {
        let mut add = || -> anyhow::Result<()> {
            let (text, _held) = read_parsed(file, MOST_TABLE_BYTES, parsed_bytes, budget)?;
            let text = String::from_utf8(text)?;
            Ok(scores.add(&file.display().to_string(), &text, target)?)
        };
        add().map_err(usage_in(file))?;
    }
    Ok(scores)
}

/// Memory of the fields of a table, which is parsed twice: strings and lists that double.
fn parsed_bytes(table: &[u8]) -> usize {
    const FIELD_BYTES: usize = 128;
    let ends = table.iter().filter(|byte| matches!(byte, b',' | b'\n'));
    (table.len() + ends.count() * FIELD_BYTES).saturating_mul(2)
}

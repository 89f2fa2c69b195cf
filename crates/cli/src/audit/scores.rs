//! Scores of the audit's predictions on files of published data.

use std::path::{Path, PathBuf};

use thane_audit::labeled::score::Scores;
use thane_audit::target::Target;
use thane_mil::package::read_small;

use crate::exit::{Failure, usage_in};

/// Bytes of the longest table of labeled data.
const MOST_TABLE_BYTES: u64 = 1 << 26;

/// Score files, or the published data that the audit carries.
pub fn scores(files: &[PathBuf], target: &Target) -> Result<Scores, Failure> {
    if files.is_empty() {
        let scores = Scores::of_carried(target).map_err(anyhow::Error::new);
        return scores.map_err(usage_in(Path::new("the published data")));
    }
    let mut scores = Scores::default();
    for file in files {
        let mut add = || -> anyhow::Result<()> {
            let text = String::from_utf8(read_small(file, MOST_TABLE_BYTES)?)?;
            Ok(scores.add(&file.display().to_string(), &text, target)?)
        };
        add().map_err(usage_in(file))?;
    }
    Ok(scores)
}

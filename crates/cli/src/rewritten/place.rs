//! Writes rewritten and cut programs to their place, whole or not at all.

use std::fs;
use std::path::Path;

use thane_mil::package::{Partial, create_folders, read_small, source_weights};

use crate::exit::{Failure, Outcome};
use crate::out::{self, Kind};

/// Whether a path is one of MIL text.
pub fn is_text(path: &Path) -> bool {
    out::has_extension(path, &["mil"])
}

/// Refuses an output before minutes of work: one whose name says that it is something else, one
/// that exists, unless `force` is set, and one that is the input.
pub fn check(to: &Path, force: bool, from: &Path) -> Outcome {
    out::check_made(to, Kind::of_program(to)?, force, &[from])?;
    if !is_text(to) {
        return Ok(());
    }
    let weights = source_weights(to);
    // A text may name any file of the folder beside it as its weights.
    let is_input = is_text(from)
        && weights.exists()
        && read_small(from, u64::MAX).is_ok_and(|t| names(&t, &weights));
    let inputs = is_input.then_some(weights.as_path());
    out::check(&weights, force, inputs.as_slice())
}

fn names(text: &[u8], weights: &Path) -> bool {
    let name = weights.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("@model_path/weights/{name}\"");
    text.windows(name.len()).any(|at| at == name.as_bytes())
}

/// Has a package, folder or text written under another name beside `to`, then gives it its name.
/// What was there before is there until the new one is, and still after an error, or if `fill` says
/// that there is nothing to write; without `force` nothing may be there.
pub fn write(to: &Path, force: bool, fill: impl FnOnce(&Path) -> Result<bool, Failure>) -> Outcome {
    let partial = Partial::folder(to).map_err(|e| out::unwritten(to, e))?;
    let made = partial.path().join(to.file_name().unwrap_or_default());
    if !fill(&made)? {
        return Ok(());
    }
    let written = put_weights(to, &made, force).and_then(|()| {
        if force {
            partial.replace_with(&made)
        } else {
            partial.put_with(&made)
        }
    });
    written.map_err(|e| out::unwritten(to, e))
}

/// The weights of a text come first, so that a text which is there can be read.
fn put_weights(to: &Path, made: &Path, force: bool) -> std::io::Result<()> {
    let (made, place) = (source_weights(made), source_weights(to));
    if !is_text(to) || !made.is_file() {
        return Ok(());
    }
    create_folders(place.parent().unwrap_or(Path::new(".")))?;
    if !force && place.symlink_metadata().is_ok() {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(made, place)
}

//! Where rewritten and cut programs go: whole, or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use thane_mil::package::Partial;

use crate::exit::{Code, Failure, Outcome};
use crate::out;

/// Whether a path is one of MIL text.
pub fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "mil")
}

/// The file that the larger constants of a text are in.
fn weights(text: &Path) -> PathBuf {
    text.with_file_name("weights").join("weight.bin")
}

/// Refuses an output before minutes of work: one that exists, unless `force` is set, and one that is the input.
pub fn check(to: &Path, force: bool, from: &Path) -> Outcome {
    let beside = weights(from);
    let inputs: Vec<&Path> = if is_text(from) { vec![from, &beside] } else { vec![from] };
    out::check(to, force, &inputs)?;
    // A text has its weights beside it, where those of another may be.
    if is_text(to) { out::check(&weights(to), force, &inputs) } else { Ok(()) }
}

/// Has a package, folder or text written under another name beside `to`, then gives it its name. What was there before is
/// there until the new one is, and still after an error.
pub fn write(to: &Path, fill: impl FnOnce(&Path) -> Outcome) -> Outcome {
    let failed = |e: std::io::Error| {
        Failure::new(Code::Other, anyhow::Error::new(e).context(format!("{} is not written", to.display())))
    };
    let partial = Partial::folder(to).map_err(failed)?;
    let made = partial.path().join(to.file_name().unwrap_or_default());
    fill(&made)?;
    if is_text(to) && weights(&made).is_file() {
        let beside = weights(to);
        fs::create_dir_all(beside.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        fs::rename(weights(&made), beside).map_err(failed)?;
    }
    partial.replace_with(&made).map_err(failed)
}

//! Opens programs in files: packages, compiled models, and MIL text with or without its weights.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use thane_mil::budget::{Budget, Reservation};
use thane_mil::package::{Package, PackageError, read_small, read_source};
use thane_runtime::ForeignLayout;

use crate::app::App;
use crate::exit::{Failure, usage};
use crate::out::has_extension;
use crate::output::counted;
use crate::small::refuse_named_pipe;

/// A program that was read.
pub struct Source {
    /// The package; one of MIL text only has the program.
    pub package: Package,
    /// Constants of MIL text whose weight file is missing; they read as zeros.
    pub n_absent: usize,
}

/// Whether a path is a file of MIL text.
pub fn is_text(path: &Path) -> bool {
    has_extension(path, &["mil"]) && path.is_file()
}

/// Reads the program at `path`.
pub fn open(path: &Path) -> Result<Source, PackageError> {
    let text = path.join("model.mil");
    let is_part = |name: &str| path.join(name).exists();
    // Some compiled models are published without their description.
    let bare = !is_part("Manifest.json") && !is_part("coremldata.bin") && text.is_file();
    if is_text(path) || bare {
        let source = read_source(if bare { &text } else { path })?;
        return Ok(Source {
            package: Package::new(source.program),
            n_absent: source.n_absent,
        });
    }
    Ok(Source {
        package: Package::open(path)?,
        n_absent: 0,
    })
}

/// Refuses a path that does not exist. Verbs that take programs do not take names of models.
pub fn expect(path: &Path, app: &App) -> Result<(), Failure> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let shown = path.to_string_lossy();
    let expected = "expected a Core ML package, a compiled model or a .mil file";
    if !app.hub.is_model_name(&shown) {
        return Err(usage!("{shown}: {expected}, found no such file or folder"));
    }
    let stem = shown.rsplit('/').next().unwrap_or_default();
    Err(
        usage!("{shown}: {expected}, found the name of a model").remedy(format!(
            "thane convert {shown} -o {stem}.mlpackage, then that package"
        )),
    )
}

/// Reads the program at `path` to run it, which needs all weights.
pub fn open_whole(path: &Path, app: &App) -> Result<Package, Failure> {
    expect(path, app)?;
    refuse_foreign_bundle(path)?;
    let source = open(path).map_err(usage)?;
    if source.n_absent == 0 {
        return Ok(source.package);
    }
    let absent = counted(source.n_absent, "constant");
    let error = anyhow::anyhow!(
        "{}: the weights of {absent} are not beside the text",
        path.display()
    );
    let looked = path.with_file_name("weights").join("weight.bin");
    let failure = usage(error);
    Err(failure
        .remedy(format!(
            "put them where the text says, as a rule {}",
            looked.display()
        ))
        .remedy(format!(
            "thane inspect {0} or thane audit {0}, which need no weights",
            path.display()
        )))
}

/// Refuses the bundle of another project: a folder with several packages, which run as one chain.
fn refuse_foreign_bundle(path: &Path) -> Result<(), Failure> {
    let Some(layout) = ForeignLayout::of(path).filter(|_| !path.join("Manifest.json").exists())
    else {
        return Ok(());
    };
    let (shown, project) = (path.display(), layout.name);
    Err(usage!(
        "{shown}: expected one Core ML package, found a bundle of {project}, a folder of packages"
    )
    .remedy(format!(
        "thane run {shown} PROMPT, which runs the chain of its packages"
    ))
    .remedy(format!(
        "the path of a package in {shown}; thane inspect {shown} lists them"
    )))
}

/// Reads a text file, or a pipe that the program has already, within the memory budget.
pub fn read_text(path: &Path, budget: &Budget) -> anyhow::Result<(String, Reservation)> {
    let in_file = || path.display().to_string();
    refuse_named_pipe(path).with_context(in_file)?;
    read_within(File::open(path).with_context(in_file)?, budget).with_context(in_file)
}

/// Reads a file of at most `most_bytes` that is parsed as a whole, and reserves its memory: that of
/// its bytes, and that of what `parsed_bytes` says they become.
pub fn read_parsed(
    path: &Path,
    most_bytes: u64,
    parsed_bytes: fn(&[u8]) -> usize,
    budget: &Budget,
) -> anyhow::Result<(Vec<u8>, Reservation)> {
    let what = || "the parsed file".to_owned();
    let len = std::fs::metadata(path).map_or(0, |found| found.len().min(most_bytes));
    let mut held = budget.reserve(len as usize, what)?;
    let bytes = read_small(path, most_bytes)?;
    held.grow(parsed_bytes(&bytes), what)?;
    Ok((bytes, held))
}

fn read_within(mut file: impl Read, budget: &Budget) -> anyhow::Result<(String, Reservation)> {
    /// Bytes per read.
    const PIECE: usize = 1 << 20;
    let mut held = budget.reserve(0, String::new)?;
    let mut bytes = Vec::new();
    loop {
        held.grow(PIECE, || "the text".to_owned())?;
        if file.by_ref().take(PIECE as u64).read_to_end(&mut bytes)? == 0 {
            break;
        }
    }
    Ok((
        String::from_utf8(bytes).context("expected UTF-8 text")?,
        held,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file becomes counts, and not only its bytes.
    #[test]
    fn a_parsed_file_counts_against_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, vec![b','; 1000]).unwrap();
        let read = |limit: usize| {
            let budget = Budget::new(limit);
            let read = read_parsed(&path, 1 << 20, |bytes| bytes.len() * 9, &budget);
            read.map(|(bytes, held)| (bytes.len(), held.bytes()))
        };
        assert_eq!(read(10_000).unwrap(), (1000, 10_000));
        for limit in [9_999, 999] {
            assert!(
                read(limit)
                    .unwrap_err()
                    .is::<thane_mil::budget::OverBudget>()
            );
        }
    }

    /// Issue 30, 3.5.
    #[test]
    fn a_text_without_an_end_is_refused() {
        let budget = Budget::new(9 << 20);
        let error = read_within(std::io::repeat(b'a'), &budget)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the text needs 1.0 MB of memory, but 9.4 MB"),
            "{error}"
        );
        let (text, held) = read_within("abc".as_bytes(), &budget).unwrap();
        assert_eq!((text.as_str(), held.bytes()), ("abc", 2 << 20));
        assert!(read_within(&b"\xff"[..], &budget).is_err());
    }
}

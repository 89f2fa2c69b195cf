//! Where verbs write: one rule for `-o` and `--force`, and files that appear whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thane_mil::package::Partial;

use crate::exit::{Code, Failure};

/// Refuses an output that is, holds or lies in one of the `inputs`, whatever `force` says, and one that exists unless
/// `force` is set. Pipes, terminals and devices take what is written to them and replace nothing.
pub fn check(out: &Path, force: bool, inputs: &[&Path]) -> Result<(), Failure> {
    let refuse = |text: String| Failure::new(Code::Usage, anyhow::anyhow!(text));
    if let Some(input) = inputs.iter().find(|input| overlap(out, input)) {
        let error = format!("{} is not written: it would replace the input {}", out.display(), input.display());
        return Err(refuse(error).remedy("another path for -o"));
    }
    match out.symlink_metadata() {
        Ok(found) if !force && (found.is_file() || found.is_dir() || found.is_symlink() && !leads_to_stream(out)) => {
            Err(refuse(format!("{} exists already", out.display())).remedy("--force, to replace it"))
        }
        _ => Ok(()),
    }
}

/// Whether writing `out` would touch `input`: the same file or folder, or one inside of the other.
fn overlap(out: &Path, input: &Path) -> bool {
    let (Some(out), Some(input)) = (resolved(out), resolved(input)) else { return false };
    let is_folder = |path: &Path| path.is_dir();
    out == input || is_folder(&out) && input.starts_with(&out) || is_package(&input) && out.starts_with(&input)
}

/// Packages and compiled models are folders that hold nothing but themselves; a file may be written into other folders.
fn is_package(path: &Path) -> bool {
    path.is_dir() && path.extension().is_some_and(|e| e == "mlpackage" || e == "mlmodelc")
}

/// The path without links; of one that does not exist yet, its folder's with its name.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(parent.canonicalize().ok()?.join(path.file_name()?))
}

/// `/dev/stdout` is a link.
fn leads_to_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Writes a file that appears under its name when it is whole; after an error what was there before is there still.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_with(path, |out| out.write_all(bytes))
}

/// As [`write`], by a function that is given the file.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> Result<(), Failure> {
    try_write(path, fill).map_err(|fault| {
        Failure::new(Code::Other, anyhow::Error::new(fault).context(format!("{} is not written", path.display())))
    })
}

fn try_write(path: &Path, fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> io::Result<()> {
    if leads_to_stream(path) {
        return fill(&mut fs::OpenOptions::new().write(true).open(path)?);
    }
    let partial = Partial::file(path)?;
    let mut out = io::BufWriter::new(fs::OpenOptions::new().write(true).open(partial.path())?);
    fill(&mut out)?;
    // What was there before goes only when this is on the disk.
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
    partial.replace()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn an_output_that_exists_needs_force() {
        let folder = folder();
        let file = folder.path().join("a.json");
        check(&file, false, &[]).unwrap();
        write(&file, b"old").unwrap();
        let failure = check(&file, false, &[]).unwrap_err();
        let mut text = Vec::new();
        failure.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("a.json exists already\n  try: --force, to replace it"), "{text}");
        check(&file, true, &[]).unwrap();
        check(folder.path(), false, &[]).unwrap_err();
        check(Path::new("/dev/null"), false, &[]).unwrap();
    }

    #[test]
    fn no_input_is_replaced_whatever_its_spelling() {
        let folder = folder();
        let package = folder.path().join("in.mlpackage");
        fs::create_dir(&package).unwrap();
        let file = folder.path().join("in.mil");
        fs::write(&file, "program").unwrap();
        let other = folder.path().join("in.mlpackage/../in.mil");
        for (out, input) in [(&file, &file), (&other, &file), (&package, &package), (&package.join("x.json"), &package)]
        {
            check(out, true, &[input]).unwrap_err();
        }
        // The folder of the input would go with all that is in it.
        check(folder.path(), true, &[&file]).unwrap_err();
        check(&folder.path().join("out.mil"), false, &[&file, &package]).unwrap();
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = folder();
        let file = folder.path().join("out.txt");
        let half = |out: &mut (dyn Write + Send)| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        write_with(&file, half).unwrap_err();
        assert!(!file.exists());
        write(&file, b"old").unwrap();
        write_with(&file, half).unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

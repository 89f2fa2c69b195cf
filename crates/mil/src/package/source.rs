//! Programs in files of MIL text, with or without their weight file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::blob::zeros;
use super::compiled::parsed;
use super::description::Interface;
use super::error::PackageError;
use super::files::{Files, MAX_MODEL_BYTES, MODEL_PATH, Weights, read_capped};
use super::partial::create_folders;
use super::write::create;
use crate::data::Bytes;
use crate::program::Program;
use crate::text::{Blobs, Lines, lines, print};
use crate::types::TensorType;
use crate::watch::Watch;

/// A program read from a file of MIL text.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The program.
    pub program: Program,
    /// Number of constants whose weight file is missing; they read as zeros.
    pub n_absent: usize,
    /// The input shapes that functions declare, by function name.
    pub interfaces: BTreeMap<String, Interface>,
}

/// The weight file of a text file: `weights/NAME.bin` beside `NAME.mil`. Each text file in a folder
/// has a weight file of its own.
pub fn source_weights(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(".bin");
    path.with_file_name("weights").join(name)
}

/// Writes a program as text to `path`, where nothing may exist, and its large constants to
/// [`source_weights`]. Returns the size of the weight file in bytes.
pub fn write_source(path: &Path, program: &Program) -> Result<u64, PackageError> {
    crate::valid::check(program).map_err(|violations| PackageError::Invalid {
        path: path.to_owned(),
        violations,
    })?;
    let weights = source_weights(path);
    let mut blobs = Blobs::at(&format!(
        "{MODEL_PATH}weights/{}",
        weights.file_name().unwrap_or_default().display()
    ));
    let text = print(program, &mut blobs);
    let taken = [path, &weights]
        .into_iter()
        .take(1 + usize::from(!blobs.is_empty()))
        .find(|p| p.exists());
    if let Some(taken) = taken {
        return Err(PackageError::Exists {
            path: taken.to_owned(),
        });
    }
    let folder = if blobs.is_empty() {
        path.parent()
    } else {
        weights.parent()
    };
    folder
        .map_or(Ok(()), create_folders)
        .map_err(PackageError::io(path))?;
    let n = if blobs.is_empty() {
        0
    } else {
        create(&weights, |out| blobs.plan().write(out))?
    };
    create(path, |out| out.write_all(text.as_bytes()))?;
    Ok(n)
}

/// The lines on which the text file at `path` declares functions and values.
pub fn read_lines(path: &Path) -> Result<Lines, PackageError> {
    Ok(lines(&read_text(path)?))
}

fn read_text(path: &Path) -> Result<String, PackageError> {
    text_of(path, read_capped(path, MAX_MODEL_BYTES)?)
}

fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String, PackageError> {
    String::from_utf8(bytes)
        .map_err(|_| PackageError::unusable(path, "is not MIL text: expected UTF-8"))
}

/// Reads a program from a text file. A weight file is looked up relative to the text, as in
/// `@model_path/weights/weight.bin`. Constants in a missing file are counted; constants in a
/// present file must match the text.
pub fn read_source(path: &Path) -> Result<SourceFile, PackageError> {
    let text = read_text(path)?;
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    parse_source(path, &text, Files::Folder(folder), &|relative| {
        folder.join(relative).exists()
    })
}

/// As [`read_source`], of the text `name` among files in memory, by their paths in its folder.
pub fn source_from_files(
    name: &str,
    files: &BTreeMap<String, Bytes>,
) -> Result<SourceFile, PackageError> {
    let folder = Files::Memory(Path::new(""), files);
    let (path, bytes) = folder.read(Path::new(""), Path::new(name), MAX_MODEL_BYTES)?;
    parse_source(&path, &text_of(&path, bytes)?, folder, &|relative| {
        folder.has(relative)
    })
}

/// A program from its text; `has` says whether its folder has a file.
fn parse_source(
    path: &Path,
    text: &str,
    folder: Files<'_>,
    has: &dyn Fn(&str) -> bool,
) -> Result<SourceFile, PackageError> {
    let mut weights = Weights::new(folder, Path::new(""));
    let mut n_absent = 0;
    let constant = &mut |name: &str, offset, ty: &TensorType| {
        let relative = name.strip_prefix(MODEL_PATH).unwrap_or(name);
        if relative != name && has(relative) {
            return weights.constant(name, offset, ty);
        }
        n_absent += 1;
        zeros(ty).map_err(|reason| {
            PackageError::unusable(path, format!("{reason}, in the missing file {relative:?}"))
        })
    };
    let watch = Watch::new(&|| false);
    let (program, interfaces) = parsed(text, path, constant, &watch)?;
    crate::valid::check(&program).map_err(|violations| PackageError::Invalid {
        path: path.to_owned(),
        violations,
    })?;
    Ok(SourceFile {
        program,
        n_absent,
        interfaces,
    })
}

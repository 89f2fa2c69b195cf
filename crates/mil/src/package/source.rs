//! A program in a file of MIL text, with or without its weights.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::blob::code;
use super::compiled::parsed;
use super::description::Interface;
use super::error::PackageError;
use super::files::{Files, MAX_MODEL_BYTES, MODEL_PATH, Weights, read_capped};
use super::partial::create_folders;
use super::write::create;
use crate::data::Data;
use crate::program::Program;
use crate::text::{Blobs, Lines, lines, print};
use crate::types::TensorType;

/// The largest constant that is believed to be in a file that is not there: three times the largest
/// embedding known.
const MOST_ABSENT_BYTES: u64 = 1 << 33;
/// The same of wide integers, which are indices and sizes.
const MOST_ABSENT_INDEX_BYTES: u64 = 1 << 26;

/// A program that was read from text.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The program.
    pub program: Program,
    /// Constants whose file is not there: their numbers read as zeros.
    pub n_absent: usize,
    /// The shapes that functions say they take, by their names.
    pub interfaces: BTreeMap<String, Interface>,
}

/// The file that the larger constants of a text are written to: `weights/NAME.bin` beside
/// `NAME.mil`, so that each text in a folder has a weight file of its own.
pub fn source_weights(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(".bin");
    path.with_file_name("weights").join(name)
}

/// Write a program as text to `path`, where nothing may be yet, and its larger constants to
/// [`source_weights`]; the bytes of constants that were written.
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

/// The lines on which a text declares functions and values.
pub fn read_lines(path: &Path) -> Result<Lines, PackageError> {
    Ok(lines(&read_text(path)?))
}

fn read_text(path: &Path) -> Result<String, PackageError> {
    let bytes = read_capped(path, MAX_MODEL_BYTES)?;
    String::from_utf8(bytes)
        .map_err(|_| PackageError::unusable(path, "is no text: MIL text is UTF-8"))
}

/// Read the program of a text. Weights are looked for beside it, as
/// `@model_path/weights/weight.bin` says; what is not there is counted, and what is there must be
/// what the text says.
pub fn read_source(path: &Path) -> Result<SourceFile, PackageError> {
    let text = read_text(path)?;
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut weights = Weights::new(Files::Folder(folder), Path::new(""));
    let mut n_absent = 0;
    let (program, interfaces) = parsed(&text, path, &mut |name, offset, ty: &TensorType| {
        let relative = name.strip_prefix(MODEL_PATH).unwrap_or(name);
        if relative != name && folder.join(relative).exists() {
            return weights.constant(name, offset, ty);
        }
        n_absent += 1;
        let len = ty.byte_len();
        let len = len.ok_or_else(|| {
            PackageError::unusable(path, format!("has a constant of type {ty}, no size"))
        })?;
        // Nothing of them is in memory, but the small ones are read where shapes and rules need
        // them.
        let most = if ty.dtype.is_float() || ty.dtype.bits() <= 8 {
            MOST_ABSENT_BYTES
        } else {
            MOST_ABSENT_INDEX_BYTES
        };
        if len as u64 > most || code(ty.dtype).is_none() {
            let reason = format!(
                "has a constant of type {ty}, which no weight file holds; {relative:?} is not beside it"
            );
            return Err(PackageError::unusable(path, reason));
        }
        Ok(Data::zeros(len))
    })?;
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

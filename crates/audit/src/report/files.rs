//! What is audited, from the bytes of its files: a package, a compiled model, a folder of packages,
//! or MIL text.
//!
//! [`open`] finds it among the files that somebody dropped on a page; [`package`] reads one whose
//! folder is known. Of what Thane wrote beside programs, only what an audit needs is read here.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thane_calls::names::{
    AUTHOR, CONTRACT, CONTRACT_SCHEMAS, MANIFEST, MANIFEST_SCHEMA, table_file,
};
use thane_calls::{Calls, Head};
use thane_mil::data::Bytes;
use thane_mil::package::{Package, PackageError, source_from_files};
use thane_mil::program::Function;

use super::subject::{Part, Subject, catch_all, is_flexible};
use crate::target::Target;

/// Files by their paths, with slashes.
pub type Files = BTreeMap<String, Bytes>;

/// A file that only a package or only a compiled model has in its folder.
const MARKERS: [&str; 2] = ["Manifest.json", "coremldata.bin"];
/// Files that describe bundles of other projects, whose parts only the command line puts together.
pub const FOREIGN: [&str; 2] = ["meta.yaml", "model_config.json"];
/// Names that an error lists.
const MOST_NAMES: usize = 3;

/// What is audited, and what was written about it.
#[derive(Debug)]
pub struct Opened {
    /// The programs.
    pub subject: Subject,
    /// The targets that a package was written for; empty where it does not say.
    pub targets: Vec<Target>,
}

/// Why files cannot be audited.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A package cannot be read.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// There is nothing to audit.
    #[error(
        "{name}: expected a .mlpackage (with Manifest.json), a .mlmodelc (with coremldata.bin), a \
         folder of them, or a .mil file; found {found}"
    )]
    Nothing {
        /// What was given.
        name: String,
        /// Some of the files.
        found: String,
    },
    /// There is more than one thing to audit.
    #[error("{name}: expected one model, found {found}: choose one of them")]
    Several {
        /// What was given.
        name: String,
        /// Some of them.
        found: String,
    },
    /// The folder is a bundle of another project.
    #[error(
        "{name}: {file} says that its packages are a bundle of another project: audit one of them, \
         or run `thane audit` on the folder"
    )]
    Foreign {
        /// The folder.
        name: String,
        /// The file that describes the bundle.
        file: &'static str,
    },
    /// What Thane wrote beside the program cannot be read.
    #[error("{path} {reason}: convert the model again, and copy it whole")]
    Beside {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

/// What the contract of a package says that matters here.
#[derive(Deserialize)]
struct Contract {
    model: Model,
}

/// What the manifest of a folder of packages says that matters here.
#[derive(Deserialize)]
struct Manifest {
    model: Model,
    packages: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    path: String,
    tokens: Option<usize>,
}

/// What a model is, by its task.
#[derive(Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
enum Model {
    Generate { fixed: Option<Calls> },
    Embed { flexible: bool },
}

/// Finds the model among files of this folder or archive and reads it.
///
/// # Errors
///
/// If there is none, or several that are no folder of packages. Ends with some error if
/// `interrupted` returns true, which is asked now and then.
pub fn open(
    name: &str,
    files: &Files,
    interrupted: &dyn Fn() -> bool,
) -> Result<Opened, FilesError> {
    let is_noise = |path: &str| path.starts_with("__MACOSX/") || path.ends_with(".DS_Store");
    let files = files.iter().filter(|(path, _)| !is_noise(path));
    let files: Files = files.map(|(path, b)| (path.clone(), b.clone())).collect();
    let roots = roots(&files);
    let Some(first) = roots.first() else {
        return text(name, &files);
    };
    let (folder, _) = split(first);
    let has = |file: &str| files.contains_key(&format!("{folder}{file}"));
    let folder_name = match folder.is_empty() {
        true => name,
        false => last(folder),
    };
    if let Some(file) = FOREIGN.into_iter().find(|file| has(file)) {
        let name = folder_name.to_owned();
        return Err(FilesError::Foreign { name, file });
    }
    let are_together = roots.iter().all(|root| split(root).0 == folder);
    if are_together && !first.is_empty() && (roots.len() > 1 || has(MANIFEST)) {
        return packages(folder_name, &inside(&files, folder), interrupted);
    }
    match roots.as_slice() {
        [""] => package(name, &files, interrupted),
        [root] => package(last(root), &inside(&files, root), interrupted),
        _ => Err(FilesError::Several {
            name: name.to_owned(),
            found: listed(roots.iter().map(|root| root.trim_end_matches('/'))),
        }),
    }
}

/// Reads the package or compiled model with these files, by their paths inside it.
pub fn package(
    name: &str,
    files: &Files,
    interrupted: &dyn Fn() -> bool,
) -> Result<Opened, FilesError> {
    let kind = match files.contains_key("Manifest.json") {
        true => "package",
        false => "compiled",
    };
    let package = Package::from_files_until(name, files, interrupted)?;
    let targets = Target::written_for(&package);
    let contract = format!("Data/{AUTHOR}/{CONTRACT}");
    let contract: Option<Contract> = match files.get(&contract) {
        Some(json) if kind == "package" => {
            let path = format!("{name}/{contract}");
            Some(beside(&path, json, CONTRACT_SCHEMAS, interrupted)?)
        }
        _ => None,
    };
    let model = contract.map(|contract| contract.model);
    let is_bundle = matches!(model, Some(Model::Embed { flexible: true }));
    let part = Part {
        catch_all: is_bundle.then(|| catch_all(&package.program)).flatten(),
        ..Part::from(package)
    };
    let mut subject = Subject {
        disk_bytes: byte_len(files.values()),
        ..Subject::new(name, kind, vec![part])
    };
    if let Some(model) = &model {
        subject.table_bytes = table_bytes(files, "");
        set_calls(&mut subject, model, files, "")?;
    }
    Ok(Opened { subject, targets })
}

/// Reads the packages of a folder, in the order of names.
fn packages(
    name: &str,
    files: &Files,
    interrupted: &dyn Fn() -> bool,
) -> Result<Opened, FilesError> {
    let manifest: Option<Manifest> = match files.get(MANIFEST) {
        Some(json) => {
            let known = MANIFEST_SCHEMA..=MANIFEST_SCHEMA;
            let path = format!("{name}/{MANIFEST}");
            Some(beside(&path, json, known, interrupted)?)
        }
        None => None,
    };
    let entries = manifest.as_ref().map_or(&[][..], |m| &m.packages);
    let has_buckets = entries.iter().any(|e| e.tokens.is_some());
    let takes_any = |package: &str| {
        let mut others = entries.iter().filter(|e| e.tokens.is_none());
        has_buckets && others.any(|e| e.path == package)
    };
    let (mut parts, mut targets) = (Vec::new(), Vec::new());
    for root in roots(files) {
        let package = last(root).to_owned();
        let read = Package::from_files_until(&package, &inside(files, root), interrupted)?;
        targets = Target::written_for(&read);
        let is_any = |f: &&Function| takes_any(&package) && is_flexible(f);
        let any = read.program.functions().iter().find(is_any);
        let catch_all = any.map(|f| f.name.clone());
        parts.push(Part {
            package,
            catch_all,
            ..Part::from(read)
        });
    }
    let mut subject = Subject {
        disk_bytes: byte_len(files.values()),
        ..Subject::new(name, "folder", parts)
    };
    if let Some((manifest, first)) = manifest.as_ref().zip(entries.first()) {
        // Packages share the tables, or only the first has some.
        let first = format!("{}/", first.path);
        subject.table_bytes = table_bytes(files, &first);
        set_calls(&mut subject, &manifest.model, files, &first)?;
    }
    Ok(Opened { subject, targets })
}

/// Reads the only MIL text among files.
fn text(name: &str, files: &Files) -> Result<Opened, FilesError> {
    let mut texts = files.keys().filter(|path| path.ends_with(".mil"));
    let (path, others) = (texts.next(), texts.count());
    let Some(path) = path else {
        let found = match files.is_empty() {
            true => "no file".to_owned(),
            false => listed(files.keys().map(String::as_str)),
        };
        let name = name.to_owned();
        return Err(FilesError::Nothing { name, found });
    };
    if others > 0 {
        let texts = files.keys().filter(|path| path.ends_with(".mil"));
        let found = listed(texts.map(String::as_str));
        let name = name.to_owned();
        return Err(FilesError::Several { name, found });
    }
    let (folder, file) = split(path);
    let source = source_from_files(file, &inside(files, folder))?;
    let part = Part {
        interfaces: source.interfaces,
        ..Part::new(source.program)
    };
    Ok(Opened {
        subject: Subject {
            n_absent: source.n_absent,
            ..Subject::new(file, "text", vec![part])
        },
        targets: Vec::new(),
    })
}

/// Says how the functions of a language model are called; the tables that the host looks up are in
/// the package whose paths begin with `package`.
fn set_calls(
    subject: &mut Subject,
    model: &Model,
    files: &Files,
    package: &str,
) -> Result<(), FilesError> {
    let Model::Generate { fixed: Some(calls) } = model else {
        return Ok(());
    };
    subject.set_calls(calls);
    if let Head::Host(head) = &calls.head {
        let path = format!("{package}Data/{AUTHOR}/{}", table_file(&head.matrix));
        let matrix = files.get(&path).map(|npy| {
            array_bytes(npy).ok_or_else(|| FilesError::Beside {
                path,
                reason: "is no NumPy array".to_owned(),
            })
        });
        subject.host_bytes = matrix.transpose()?.unwrap_or(0) as f64;
    }
    Ok(())
}

/// Bytes of the tables that the host looks up, in the package whose paths begin with `package`.
fn table_bytes(files: &Files, package: &str) -> u64 {
    let folder = format!("{package}Data/{AUTHOR}/");
    let is_table = |path: &str| {
        let name = path.strip_prefix(&folder);
        name.is_some_and(|name| [".npy", ".bin"].iter().any(|end| name.ends_with(end)))
    };
    let tables = files.iter().filter(|(path, _)| is_table(path));
    byte_len(tables.map(|(_, bytes)| bytes))
}

fn byte_len<'a>(files: impl Iterator<Item = &'a Bytes>) -> u64 {
    files.map(|bytes| bytes.len() as u64).sum()
}

/// Bytes behind the header of a NumPy file.
fn array_bytes(npy: &Bytes) -> Option<usize> {
    let mut head = [0; 12];
    let is_read = npy.read(0, &mut head) && head.starts_with(b"\x93NUMPY");
    let [.., version, _, a, b, c, d] = head;
    let start = match (is_read, version) {
        (false, _) => return None,
        (true, 1) => 10 + usize::from(u16::from_le_bytes([a, b])),
        (true, _) => usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()? + 12,
    };
    npy.len().checked_sub(start)
}

/// A file that Thane wrote, as JSON, of one of these versions.
fn beside<T: DeserializeOwned>(
    path: &str,
    json: &Bytes,
    known: std::ops::RangeInclusive<u32>,
    interrupted: &dyn Fn() -> bool,
) -> Result<T, FilesError> {
    let fault = |reason: String| FilesError::Beside {
        path: path.to_owned(),
        reason,
    };
    let steps = Steps {
        rest: json.as_slice(),
        interrupted,
    };
    let json: serde_json::Value = serde_json::from_reader(BufReader::with_capacity(1 << 20, steps))
        .map_err(|e| fault(format!("is not the JSON that is expected: {e}")))?;
    let schema = json["schema"].as_u64().and_then(|n| u32::try_from(n).ok());
    if !schema.is_some_and(|n| known.contains(&n)) {
        let (first, last) = known.into_inner();
        let found = &json["schema"];
        return Err(fault(format!(
            "expected schema {first} to {last}, found {found}"
        )));
    }
    serde_json::from_value(json)
        .map_err(|e| fault(format!("is not the JSON that is expected: {e}")))
}

/// Bytes that are read in steps, each of which asks before.
struct Steps<'a> {
    rest: &'a [u8],
    interrupted: &'a dyn Fn() -> bool,
}

impl Read for Steps<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if (self.interrupted)() {
            return Err(io::Error::other("reading was interrupted"));
        }
        self.rest.read(to)
    }
}

/// The folders that are packages or compiled models, each with a slash at its end unless it is the
/// whole. A compiled model has files of such names in folders of its own too, which are left out.
fn roots(files: &Files) -> Vec<&str> {
    let folder = |path: &&String| {
        let ends = MARKERS.iter().find_map(|marker| path.strip_suffix(marker));
        ends.is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
    };
    let marked = files.keys().filter(folder).map(|path| {
        let end = path.rfind('/').map_or(0, |at| at + 1);
        &path[..end]
    });
    let mut folders: Vec<&str> = marked.collect();
    folders.sort_unstable();
    folders.dedup();
    let mut roots: Vec<&str> = Vec::new();
    for folder in folders {
        if !roots.iter().any(|root| folder.starts_with(root)) {
            roots.push(folder);
        }
    }
    roots
}

/// The files below a folder, by their paths in it.
fn inside(files: &Files, folder: &str) -> Files {
    let below = files.iter().filter_map(|(path, bytes)| {
        let path = path.strip_prefix(folder)?;
        Some((path.to_owned(), bytes.clone()))
    });
    below.collect()
}

/// The folder of a path, with its slash, and the name in it; of a folder, the one around it and its
/// own name.
fn split(path: &str) -> (&str, &str) {
    let end = path.trim_end_matches('/');
    let at = end.rfind('/').map_or(0, |at| at + 1);
    (&end[..at], &end[at..])
}

/// The name of a folder.
fn last(folder: &str) -> &str {
    split(folder).1
}

/// The first of some names, and how many more there are.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

//! Output files: the rules for `-o` and `--force`, and files that appear complete or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thane_mil::package::{Partial, create_folders};
use thane_runtime::ForeignWriter;

use crate::exit::{Failure, other};

/// The path with `end` appended to its file name.
pub fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    path.with_file_name(name)
}

/// The name of a file or folder, without those that it lies in.
pub fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

pub fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let own = path.extension().and_then(|e| e.to_str());
    own.is_some_and(|own| extensions.contains(&own))
}

/// The kind of an output that is a folder or a program.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// MIL text.
    Text,
    Package,
    Compiled,
    /// A folder of packages.
    Folder,
    /// A bundle of another project.
    Foreign(&'static ForeignWriter),
}

impl Kind {
    /// The kind of a program's output, by the extension of its name.
    pub fn of_program(out: &Path) -> Result<Self, Failure> {
        match out.extension().and_then(|e| e.to_str()) {
            Some("mil") => Ok(Self::Text),
            Some("mlpackage") => Ok(Self::Package),
            _ => Err(misnamed(
                out,
                "a package (.mlpackage) or MIL text (.mil)",
                "-o NAME.mlpackage",
            )),
        }
    }

    fn name(self) -> String {
        let name = match self {
            Self::Text => "MIL text",
            Self::Package => "package",
            Self::Compiled => "compiled model",
            Self::Folder => "folder of packages",
            Self::Foreign(writer) => return format!("{} bundle", writer.project),
        };
        name.to_owned()
    }

    /// Whether what exists at a path is of this kind.
    fn is_at(self, path: &Path) -> bool {
        match self {
            Self::Text => path.is_file() && has_extension(path, &["mil"]),
            Self::Package => path.join("Manifest.json").is_file(),
            Self::Compiled => path.join("coremldata.bin").is_file(),
            Self::Folder => holds_only(path, |name| name == "manifest.json"),
            Self::Foreign(writer) => holds_only(path, |name| writer.owns(path, name)),
        }
    }
}

/// Whether a path is a folder that holds nothing but packages and such files.
fn holds_only(path: &Path, is_file: impl Fn(&str) -> bool) -> bool {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    let is_named = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(&is_file)
    };
    path.is_dir() && paths.all(|path| is_package(&path) || is_named(&path))
}

/// The failure of an output whose extension is that of another kind.
pub fn misnamed(out: &Path, expected: &str, remedy: &str) -> Failure {
    usage!("expected {expected} as the output, found {}", out.display()).remedy(remedy)
}

/// As [`check`], for folders and programs: they only replace their own kind, and never a device or
/// a pipe.
pub fn check_made(out: &Path, kind: Kind, force: bool, inputs: &[&Path]) -> Result<(), Failure> {
    let refuse = |text: String| Err(usage!(text));
    if leads_to_stream(out) {
        return refuse(format!(
            "{} is a device or a pipe, which no {} can replace",
            out.display(),
            kind.name()
        ));
    }
    check(out, force, inputs)?;
    if out.symlink_metadata().is_err() || kind.is_at(out) {
        return Ok(());
    }
    Err(usage!(
        "{} exists and is no {}, which is written here",
        out.display(),
        kind.name()
    )
    .remedy("remove it, or write elsewhere"))
}

/// The failure of an output that cannot be written, also because another process wrote it first.
pub fn unwritten(out: &Path, fault: io::Error) -> Failure {
    if fault.kind() == io::ErrorKind::AlreadyExists {
        return exists(out);
    }
    other(anyhow::Error::new(fault).context(format!("{} is not written", out.display())))
}

fn exists(out: &Path) -> Failure {
    usage!("{} exists already", out.display()).remedy("--force, to replace it")
}

/// Refuses an output that is, contains or lies in one of the `inputs`, even with `force`, and one
/// that exists unless `force` is set. Pipes, terminals and devices are fine: writing to them
/// replaces nothing.
pub fn check(out: &Path, force: bool, inputs: &[&Path]) -> Result<(), Failure> {
    let refuse = |text: String| usage!(text);
    if let Some(input) = inputs.iter().find(|input| overlap(out, input)) {
        let error = format!(
            "{} is not written: it would replace the input {}",
            out.display(),
            input.display()
        );
        return Err(refuse(error).remedy("another path for -o"));
    }
    match out.symlink_metadata() {
        Ok(found)
            if !force
                && (found.is_file()
                    || found.is_dir()
                    || found.is_symlink() && !leads_to_stream(out)) =>
        {
            Err(exists(out))
        }
        _ => Ok(()),
    }
}

/// Refuses an output that lies in a folder that is read, whose files are copied.
pub fn check_outside(out: &Path, folder: &Path) -> Result<(), Failure> {
    let is_inside = |(out, folder): (PathBuf, PathBuf)| out.starts_with(folder);
    if !resolved(out).zip(resolved(folder)).is_some_and(is_inside) {
        return Ok(());
    }
    let error = usage!(
        "{} is not written: it would lie in the input {}",
        out.display(),
        folder.display()
    );
    Err(error.remedy("another path for -o"))
}

/// Whether writing `out` would change `input`: both are the same, or one lies in the other.
fn overlap(out: &Path, input: &Path) -> bool {
    let (Some(out), Some(input)) = (resolved(out), resolved(input)) else {
        return false;
    };
    let is_folder = |path: &Path| path.is_dir();
    let is_inside = out.starts_with(&input);
    out == input
        || is_folder(&out) && input.starts_with(&out)
        || is_inside && (is_package(&input) || is_checkpoint(&input) && out.exists())
}

/// Whether a folder is a package or a compiled model, into which no other file may be written.
fn is_package(path: &Path) -> bool {
    path.is_dir() && has_extension(path, &["mlpackage", "mlmodelc"])
}

/// Whether a folder is a Hugging Face checkpoint, whose files are the model.
fn is_checkpoint(path: &Path) -> bool {
    path.join("config.json").is_file()
}

/// The path with links resolved, as far as it exists yet.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut whole = path.ancestors().filter_map(|at| {
        let known = if at.as_os_str().is_empty() {
            Path::new(".")
        } else {
            at
        };
        Some(known.canonicalize().ok()?.join(path.strip_prefix(at).ok()?))
    });
    // Nothing is joined as a trailing separator.
    whole.next().map(|path| path.components().collect())
}

/// The folder of a path.
fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Creates the folder of an output.
pub fn create_parent(out: &Path) -> Result<(), Failure> {
    create_folders(parent(out)).map_err(|fault| unwritten(out, fault))
}

/// Whether a path is a link to a stream, such as `/dev/stdout`.
fn leads_to_stream(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Writes a file that gets its name when it is complete; after an error, a file that existed is
/// unchanged. Without `force` no file may exist.
pub fn write(path: &Path, force: bool, bytes: &[u8]) -> Result<(), Failure> {
    write_with(path, force, |out| out.write_all(bytes))
}

/// As [`write`], with a function that writes to the file.
pub fn write_with(
    path: &Path,
    force: bool,
    fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
) -> Result<(), Failure> {
    let written = Pending::new(path, fill).and_then(|pending| pending.put(force));
    written.map_err(|fault| unwritten(path, fault))
}

/// A complete file that is not renamed to its path yet. It is removed when dropped. Output to a
/// stream was written already.
pub struct Pending(Option<Partial>);

impl Pending {
    /// Writes the file beside its path.
    pub fn new(
        path: &Path,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
    ) -> io::Result<Self> {
        if leads_to_stream(path) {
            fill(&mut fs::OpenOptions::new().write(true).open(path)?)?;
            return Ok(Self(None));
        }
        Ok(Self(Some(filled(path, fill)?)))
    }

    /// Renames the file to its path.
    pub fn put(self, force: bool) -> io::Result<()> {
        self.0.map_or(Ok(()), |partial| match force {
            true => partial.replace(),
            false => partial.put(),
        })
    }
}

fn filled(
    path: &Path,
    fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
) -> io::Result<Partial> {
    let partial = Partial::file(path)?;
    let mut out = io::BufWriter::new(fs::OpenOptions::new().write(true).open(partial.path())?);
    fill(&mut out)?;
    // A file that exists is replaced only after this one is on the disk.
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_data()?;
    Ok(partial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[test]
    fn a_package_replaces_packages_only() {
        let folder = folder();
        let (package, other) = (
            folder.path().join("a.mlpackage"),
            folder.path().join("precious.mlpackage"),
        );
        [&package, &other]
            .iter()
            .for_each(|path| fs::create_dir(path).unwrap());
        fs::write(package.join("Manifest.json"), "{}").unwrap();
        fs::write(other.join("thesis.tex"), "x").unwrap();
        check_made(&package, Kind::Package, true, &[]).unwrap();
        check_made(&package, Kind::Package, false, &[]).unwrap_err();
        for out in [
            other.as_path(),
            Path::new("/dev/null"),
            &other.join("thesis.tex"),
        ] {
            check_made(out, Kind::Package, true, &[]).unwrap_err();
        }
        check_made(
            &folder.path().join("new.mlpackage"),
            Kind::Package,
            false,
            &[],
        )
        .unwrap();
        for (name, kind) in [
            ("a.mil", Some(Kind::Text)),
            ("a.mlpackage", Some(Kind::Package)),
            ("a.sarif", None),
            ("a", None),
        ] {
            let found = Kind::of_program(Path::new(name)).ok();
            assert_eq!(found.map(Kind::name), kind.map(Kind::name));
        }
    }

    #[test]
    fn a_file_of_a_checkpoint_is_not_replaced() {
        let folder = folder();
        for name in ["config.json", "model.safetensors"] {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        check(
            &folder.path().join("model.safetensors"),
            true,
            &[folder.path()],
        )
        .unwrap_err();
        check(&folder.path().join("vectors.npy"), true, &[folder.path()]).unwrap();
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn an_output_that_exists_needs_force() {
        let folder = folder();
        let file = folder.path().join("a.json");
        check(&file, false, &[]).unwrap();
        write(&file, false, b"old").unwrap();
        let failure = check(&file, false, &[]).unwrap_err();
        let mut text = Vec::new();
        failure.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("a.json exists already\n  try: --force, to replace it"),
            "{text}"
        );
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
        for (out, input) in [
            (&file, &file),
            (&other, &file),
            (&package, &package),
            (&package.join("x.json"), &package),
        ] {
            check(out, true, &[input]).unwrap_err();
        }
        // The folder of the input would go with all that is in it.
        check(folder.path(), true, &[&file]).unwrap_err();
        check(&folder.path().join("out.mil"), false, &[&file, &package]).unwrap();
    }

    #[test]
    fn no_output_lies_in_a_folder_that_is_copied() {
        let folder = folder();
        let input = folder.path().join("in");
        fs::create_dir(&input).unwrap();
        for out in ["in", "in/out", "in/new/out", "in/../in/out"] {
            check_outside(&folder.path().join(out), &input).unwrap_err();
        }
        for out in ["out", "in.mlpackage", "new/in", "in/../out"] {
            check_outside(&folder.path().join(out), &input).unwrap();
        }
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = folder();
        let file = folder.path().join("out.txt");
        let half = |out: &mut (dyn Write + Send)| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        write_with(&file, false, half).unwrap_err();
        assert!(!file.exists());
        write(&file, false, b"old").unwrap();
        write_with(&file, true, half).unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        // Another writer was faster.
        let failure = write(&file, false, b"new").unwrap_err();
        assert_eq!(
            (failure.code(), fs::read(&file).unwrap()),
            (Code::Usage, b"old".to_vec())
        );
        write(&file, true, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

//! Files of texts: their formats by extension, patterns that name several, and gzip.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::bufread::MultiGzDecoder;
use glob::{MatchOptions, Pattern};
use thane_mil::nearest::did_you_mean;
use thane_mil::package::open_regular;

/// Extensions of files of texts.
const KINDS: [&str; 7] = ["txt", "jsonl", "ndjson", "csv", "tsv", "parquet", "gz"];

/// A file of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    pub path: PathBuf,
    pub kind: Kind,
    is_gzip: bool,
}

/// The format of a file of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text per line.
    Lines,
    /// JSON lines.
    Json,
    /// Columns with a header; the byte separates columns.
    Csv(u8),
    Parquet,
}

impl TextFile {
    /// The file at `path`, whose format its extension tells; `.gz` behind it means gzip.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let lower = |path: &Path| {
            let extension = path.extension().and_then(|e| e.to_str());
            extension.unwrap_or_default().to_ascii_lowercase()
        };
        let is_gzip = lower(path) == "gz";
        let unpacked = if is_gzip {
            path.with_extension("")
        } else {
            path.to_owned()
        };
        let kind = match lower(&unpacked).as_str() {
            "txt" => Kind::Lines,
            "jsonl" | "ndjson" => Kind::Json,
            "csv" => Kind::Csv(b','),
            "tsv" => Kind::Csv(b'\t'),
            "parquet" if is_gzip => anyhow::bail!(
                "{}: a Parquet file is read at many places, which gzip does not allow; unpack it \
                 (its pages can be compressed themselves)",
                path.display()
            ),
            "parquet" => Kind::Parquet,
            other => anyhow::bail!(
                "{}: texts are read from .txt, .jsonl, .csv, .tsv and .parquet files, and from \
                 .txt.gz, .jsonl.gz, .csv.gz and .tsv.gz{}",
                path.display(),
                did_you_mean(other, KINDS)
            ),
        };
        Ok(Self {
            path: path.to_owned(),
            kind,
            is_gzip,
        })
    }

    /// Opens the file, and decompresses what is read.
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn Read>> {
        // A file is read twice, to find faults before anything is computed.
        let file = open_regular(&self.path).map_err(|e| match e.kind() {
            ErrorKind::InvalidInput => anyhow::anyhow!("{e}; other sources are read from stdin"),
            _ => e.into(),
        });
        let file = file.with_context(|| self.path.display().to_string())?;
        let file = BufReader::new(file);
        Ok(match self.is_gzip {
            true => Box::new(Unpacked(MultiGzDecoder::new(file))),
            false => Box::new(file),
        })
    }
}

/// What a gzip file holds. The decoder has a window of 32 KiB, whatever the file unpacks to.
struct Unpacked(MultiGzDecoder<BufReader<File>>);

impl Read for Unpacked {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to).map_err(|e| {
            let why = match e.kind() {
                ErrorKind::UnexpectedEof => "the gzip data ends too early".to_owned(),
                ErrorKind::InvalidInput | ErrorKind::InvalidData => {
                    format!("the gzip data is damaged: {e}")
                }
                ErrorKind::Interrupted => return e,
                _ => e.to_string(),
            };
            io::Error::new(e.kind(), format!("{why}; compress or fetch the file again"))
        })
    }
}

/// The files that `names` stand for, in their order. A name with `*`, `?` or `[` that is no file is
/// a pattern, whose files are in the order of their names. Each error that a name has is listed.
pub fn named(names: &[PathBuf]) -> anyhow::Result<Vec<TextFile>> {
    let (mut files, mut faults) = (Vec::new(), Vec::new());
    for name in names {
        let paths = match is_pattern(name) {
            true => matching(name),
            false => Ok(vec![name.clone()]),
        };
        let found = paths.and_then(|paths| paths.iter().map(|p| TextFile::new(p)).collect());
        match found {
            Ok(found) => files.extend::<Vec<_>>(found),
            Err(fault) => faults.push(format!("{fault:#}")),
        }
    }
    anyhow::ensure!(faults.is_empty(), "{}", faults.join("\n  "));
    Ok(files)
}

/// Whether a name stands for the files that match. A file of that very name is meant itself.
fn is_pattern(name: &Path) -> bool {
    let text = name.to_string_lossy();
    text.contains(['*', '?', '[']) && name.symlink_metadata().is_err()
}

/// The paths that match a pattern, of which there is at least one.
fn matching(pattern: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = pattern
        .to_str()
        .with_context(|| format!("{}: expected a pattern in UTF-8", pattern.display()))?;
    let mut paths = BTreeSet::new();
    find(text, &mut paths)?;
    anyhow::ensure!(!paths.is_empty(), "{text}: no file matches this pattern");
    Ok(paths.into_iter().collect())
}

/// Adds the paths that match a pattern. `**` stands for folders at any depth, but follows no links,
/// which may lead back.
fn find(pattern: &str, paths: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let Some((before, behind)) = split_at_any_depth(pattern) else {
        paths.extend(expand(pattern)?);
        return Ok(());
    };
    let bases = match before {
        "" => vec![PathBuf::from(".")],
        before => expand(before)?,
    };
    let mut folders: Vec<PathBuf> = bases.into_iter().filter(|base| base.is_dir()).collect();
    while let Some(folder) = folders.pop() {
        let shown = folder.to_str();
        let shown = shown.with_context(|| format!("{}: expected UTF-8", folder.display()))?;
        let here = match before {
            "" => Pattern::escape(shown.strip_prefix("./").unwrap_or(shown)),
            _ => Pattern::escape(shown),
        };
        match (before, here.as_str()) {
            ("", ".") => find(behind, paths)?,
            _ => find(&format!("{}/{behind}", here.trim_end_matches('/')), paths)?,
        }
        let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry.with_context(|| folder.display().to_string())?;
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !is_hidden && entry.file_type().is_ok_and(|found| found.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

/// What is before and behind the first `**` of a pattern that stands for folders at any depth.
fn split_at_any_depth(pattern: &str) -> Option<(&str, &str)> {
    let within = pattern.match_indices("**/");
    let within = within.map(|(at, mark)| (&pattern[..at], &pattern[at + mark.len()..]));
    let last = pattern.strip_suffix("**").map(|before| (before, ""));
    within
        .chain(last)
        .find(|(before, _)| before.is_empty() || before.ends_with('/'))
}

/// The paths that match a pattern, by name.
fn expand(pattern: &str) -> anyhow::Result<Vec<PathBuf>> {
    // As in shells, so that the hidden files that systems make are not texts.
    let options = MatchOptions {
        require_literal_leading_dot: true,
        ..MatchOptions::new()
    };
    let paths = glob::glob_with(pattern, options);
    let paths = paths.with_context(|| format!("{pattern}: invalid pattern"))?;
    Ok(paths.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_those_of_extensions() {
        for (name, kind, is_gzip) in [
            ("a.txt", Kind::Lines, false),
            ("a.b/c.NDJSON", Kind::Json, false),
            ("a.jsonl.gz", Kind::Json, true),
            ("a.CSV.GZ", Kind::Csv(b','), true),
            ("a.tsv", Kind::Csv(b'\t'), false),
            ("a.parquet", Kind::Parquet, false),
        ] {
            let file = TextFile::new(Path::new(name)).unwrap();
            assert_eq!((file.kind, file.is_gzip), (kind, is_gzip), "{name}");
        }
        for (name, why) in [
            ("a.gz", "a.gz: texts are read from .txt, .jsonl"),
            (
                "a.parquet.gz",
                "a.parquet.gz: a Parquet file is read at many places",
            ),
            ("a.jsonll", "did you mean"),
            ("gz", "gz: texts are read from"),
        ] {
            let error = TextFile::new(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn patterns_stand_for_files_in_the_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["b.txt", "a.txt", "c.jsonl", "[d].txt", ".e.txt", "._f.txt"] {
            std::fs::write(path(name), "x\n").unwrap();
        }
        let found = |names: &[&str]| -> Result<Vec<String>, String> {
            let names: Vec<PathBuf> = names.iter().map(|name| path(name)).collect();
            let files = named(&names).map_err(|e| e.to_string())?;
            let name = |file: TextFile| file.path.file_name().unwrap().to_str().unwrap().to_owned();
            Ok(files.into_iter().map(name).collect())
        };
        assert_eq!(
            found(&["c.*", "?.txt", "*.txt"]).unwrap(),
            ["c.jsonl", "a.txt", "b.txt", "[d].txt", "a.txt", "b.txt"]
        );
        assert_eq!(
            found(&["[d].txt"]).unwrap(),
            ["[d].txt"],
            "a file's own name"
        );
        for name in ["g/h/i.txt", "g/.k/l.txt"] {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), "x\n").unwrap();
        }
        #[cfg(unix)]
        for (to, name) in [(".", "g/loop"), ("..", "g/h/up"), ("b.txt", "g/m.txt")] {
            std::os::unix::fs::symlink(to, path(name)).unwrap();
        }
        let below: &[&str] = match cfg!(unix) {
            true => &["[d].txt", "a.txt", "b.txt", "i.txt", "m.txt"],
            false => &["[d].txt", "a.txt", "b.txt", "i.txt"],
        };
        assert_eq!(found(&["**/*.txt"]).unwrap(), below);
        assert_eq!(found(&["**/h/**/*.txt"]).unwrap(), ["i.txt"]);
        let error = found(&["x*.txt", "a.txt", "a.doc"]).unwrap_err();
        assert!(
            error.contains("x*.txt: no file matches this pattern\n  "),
            "{error}"
        );
        assert!(error.contains("a.doc: texts are read from"), "{error}");
    }
}

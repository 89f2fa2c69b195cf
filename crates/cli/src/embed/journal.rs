//! What a run has done so far: a file beside the output that grows by a window at a time, so that a run that was killed goes
//! on where it stopped, with no row lost and none twice.
//!
//! Its first line says in JSON what was asked for. Each window is a line of JSON, with counts and hashes, and the bytes of its
//! rows: for each row the number of its vectors as u32, then the vectors as they are stored. A window that is not whole counts
//! as not written, and so does all that is behind it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::exit::{Code, Failure};

/// Bytes of a line of JSON at most.
const MOST_LINE_BYTES: u64 = 1 << 16;

/// What was asked for, by flag; a run with other settings is another run.
pub type Settings = BTreeMap<String, String>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    /// Version of this format.
    thane_embed: u32,
    settings: Settings,
}

const VERSION: u32 = 1;

/// Counts of rows that are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub rows: u64,
    pub vectors: u64,
    pub tokens: u64,
    /// Rows that were longer than the model takes, and were cut.
    pub truncated: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.rows += other.rows;
        self.vectors += other.vectors;
        self.tokens += other.tokens;
        self.truncated += other.truncated;
    }
}

/// The line before a window's rows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    counts: Counts,
    /// Bytes of the rows, and their hash.
    bytes: u64,
    sha256: String,
    /// Hash of all texts up to the end of this window.
    texts: String,
}

/// The file.
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Where the first window begins.
    start: u64,
    done: Counts,
    texts: String,
}

impl Journal {
    /// Begin one, or go on with what is there, for which nobody else must be writing it.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, Failure> {
        let in_file = || path.display().to_string();
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = options.with_context(in_file)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let error = anyhow::anyhow!("{} is being written by another thane", path.display());
                return Err(Failure::new(Code::Usage, error).remedy("another --out"));
            }
            Err(TryLockError::Error(e)) => return Err(anyhow::Error::new(e).context(in_file()).into()),
        }
        let mut this = Self { file, path: path.to_owned(), start: 0, done: Counts::default(), texts: String::new() };
        if this.file.metadata().with_context(in_file)?.len() == 0 {
            this.begin(settings).with_context(in_file)?;
        } else {
            this.go_on(settings)?;
        }
        Ok(this)
    }

    /// What is done.
    pub fn done(&self) -> &Counts {
        &self.done
    }

    /// The hash of the texts that are done; empty where none are.
    pub fn texts(&self) -> &str {
        &self.texts
    }

    /// Add rows, whose texts and all before them have the hash `texts`. When this returns they are on the disk.
    pub fn append(&mut self, counts: &Counts, rows: &[u8], texts: &Sha256) -> io::Result<()> {
        let texts = hex(texts.clone());
        let sha256 = hex(Sha256::new_with_prefix(rows));
        let window = Window { counts: counts.clone(), bytes: rows.len() as u64, sha256, texts: texts.clone() };
        let mut bytes = serde_json::to_vec(&window)?;
        bytes.push(b'\n');
        bytes.extend(rows);
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        self.done.add(counts);
        self.texts = texts;
        Ok(())
    }

    /// Every row in order, `stored_bytes` a vector.
    pub fn each_row(
        &self,
        stored_bytes: usize,
        take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut reader = BufReader::new(&self.file);
        reader.seek(SeekFrom::Start(self.start))?;
        let mut row = Vec::new();
        while let Some(window) = read_window(&mut reader)? {
            for _ in 0..window.counts.rows {
                let mut n = [0; 4];
                reader.read_exact(&mut n)?;
                row.resize(u32::from_le_bytes(n) as usize * stored_bytes, 0);
                reader.read_exact(&mut row)?;
                take(&row)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let mut head = serde_json::to_vec(&Head { thane_embed: VERSION, settings: settings.clone() })?;
        head.push(b'\n');
        self.file.write_all(&head)?;
        self.start = head.len() as u64;
        Ok(())
    }

    fn go_on(&mut self, settings: &Settings) -> Result<(), Failure> {
        let path = self.path.display();
        let anew = format!("remove {path}, to begin anew");
        let mut reader = BufReader::new(&self.file);
        let head = read_line(&mut reader).with_context(|| path.to_string())?;
        let head: Option<Head> = head.and_then(|(line, _)| serde_json::from_slice(&line).ok());
        let head = head.filter(|head| head.thane_embed == VERSION).ok_or_else(|| {
            let error = anyhow::anyhow!("{path} is not what this version of thane embed writes");
            Failure::new(Code::Usage, error).remedy(anew.clone())
        })?;
        let differ = differences(&head.settings, settings);
        if !differ.is_empty() {
            let error = anyhow::anyhow!("{path} was begun otherwise: {}", differ.join(", "));
            return Err(Failure::new(Code::Usage, error).remedy("the flags that it was begun with").remedy(anew));
        }
        let in_file = |e: io::Error| Failure::from(anyhow::Error::new(e).context(path.to_string()));
        self.start = reader.stream_position().map_err(in_file)?;
        let mut end = self.start;
        while let Some(window) = whole_window(&mut reader).map_err(in_file)? {
            end = reader.stream_position().map_err(in_file)?;
            self.done.add(&window.counts);
            self.texts = window.texts;
        }
        self.file.set_len(end).and_then(|()| self.file.seek(SeekFrom::Start(end))).map_err(in_file)?;
        Ok(())
    }
}

/// Rows as a window has them, `stored_bytes` a vector.
pub fn frame(rows: &[Vec<u8>], stored_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for row in rows {
        out.extend(((row.len() / stored_bytes) as u32).to_le_bytes());
        out.extend(row);
    }
    out
}

/// What two runs were asked for that is not the same.
fn differences(before: &Settings, now: &Settings) -> Vec<String> {
    let value = |settings: &Settings, key: &str| settings.get(key).cloned().unwrap_or_else(|| "nothing".to_owned());
    let keys = before.keys().chain(now.keys().filter(|key| !before.contains_key(*key)));
    let differ = keys.filter(|key| before.get(*key) != now.get(*key));
    differ.map(|key| format!("{key} was {}, now it is {}", value(before, key), value(now, key))).collect()
}

/// A line and its length with the line break; none at the end, or where it is not whole.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, u64)>> {
    let mut line = Vec::new();
    let n = reader.take(MOST_LINE_BYTES).read_until(b'\n', &mut line)?;
    Ok(line.ends_with(b"\n").then_some((line, n as u64)))
}

fn read_window(reader: &mut impl BufRead) -> io::Result<Option<Window>> {
    Ok(read_line(reader)?.and_then(|(line, _)| serde_json::from_slice(&line).ok()))
}

/// The next window, if all of it is there, its rows read over.
fn whole_window(reader: &mut impl BufRead) -> io::Result<Option<Window>> {
    let Some(window) = read_window(reader)? else { return Ok(None) };
    let mut sha = Sha256::new();
    let n = io::copy(&mut reader.take(window.bytes), &mut sha)?;
    Ok((n == window.bytes && hex(sha) == window.sha256).then_some(window))
}

/// A hash as it is written.
pub fn hex(sha: Sha256) -> String {
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(format: &str) -> Settings {
        Settings::from([("--format".to_owned(), format.to_owned())])
    }

    fn append(journal: &mut Journal, rows: &[&[u8]], texts: &str) {
        let counts = Counts { rows: rows.len() as u64, vectors: 1, tokens: 5, truncated: 0 };
        let rows: Vec<Vec<u8>> = rows.iter().map(|row| row.to_vec()).collect();
        journal.append(&counts, &frame(&rows, 2), &Sha256::new_with_prefix(texts)).unwrap();
    }

    fn rows(journal: &Journal) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        journal.each_row(2, &mut |row| Ok(out.push(row.to_vec()))).unwrap();
        out
    }

    #[test]
    fn wherever_it_is_cut_whole_windows_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let mut journal = Journal::open(&path, &settings("int8")).unwrap();
        let head = journal.start as usize;
        append(&mut journal, &[b"ab", b"cdef"], "a");
        let first = std::fs::metadata(&path).unwrap().len() as usize;
        append(&mut journal, &[b"", b"gh"], "ab");
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for cut in head..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&path, &settings("int8")).unwrap();
            let (n_rows, texts) = if cut == whole.len() {
                (4, "ab")
            } else if cut >= first {
                (2, "a")
            } else {
                (0, "")
            };
            assert_eq!(journal.done().rows, n_rows, "cut at {cut}");
            let hash = hex(Sha256::new_with_prefix(texts));
            assert_eq!(journal.texts(), if n_rows == 0 { "" } else { &hash });
            append(&mut journal, &[b"xy"], "z");
            let expected = [&[&b"ab"[..], b"cdef", b"", b"gh"][..n_rows as usize], &[b"xy"]].concat();
            assert_eq!(rows(&journal), expected, "cut at {cut}");
        }
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(Journal::open(&path, &settings("int8")).unwrap().done().rows, 2);
    }

    #[test]
    fn what_is_not_its_own_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let refusal = || {
            let mut text = Vec::new();
            Journal::open(&path, &settings("int8")).err().unwrap().print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        std::fs::write(&path, "my notes\n").unwrap();
        assert!(refusal().contains("is not what this version of thane embed writes"), "{}", refusal());
        assert_eq!(std::fs::read(&path).unwrap(), b"my notes\n");
        std::fs::remove_file(&path).unwrap();
        let held = Journal::open(&path, &settings("float")).unwrap();
        assert!(refusal().contains("is being written by another thane"), "{}", refusal());
        drop(held);
        assert!(refusal().contains("--format was float, now it is int8"), "{}", refusal());
    }
}

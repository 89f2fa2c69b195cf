//! The journal of a run: a file beside the output with the rows so far, so that a run that was
//! killed continues where it stopped, without losing or repeating a row.
//!
//! The first line has the settings of the run as JSON. Each window is a line of JSON with counts
//! and hashes, and the bytes of its rows. A row has the number of its vectors and the length of its
//! id as u32, the id as JSON, then the vectors in their stored format. An incomplete window, or one
//! whose counts are wrong, is ignored with everything after it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use thane_mil::budget::Budget;

use crate::begun::{self, Begun, Kind, Settings, read_line};
use crate::exit::Failure;
use thane_texts::row::MAX_ROW_BYTES;

/// Most bytes of an id: each byte of a row can take six bytes of JSON.
const MAX_ID_BYTES: u64 = MAX_ROW_BYTES * 6 + 2;

const KIND: Kind = Kind {
    verb: "embed",
    version: 2,
};

/// Counts of rows that were embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub rows: u64,
    pub vectors: u64,
    pub tokens: u64,
    /// Rows that were too long and were truncated.
    pub truncated: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.rows = self.rows.saturating_add(other.rows);
        self.vectors = self.vectors.saturating_add(other.vectors);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.truncated = self.truncated.saturating_add(other.truncated);
    }
}

/// A row that was embedded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// See [`thane_texts::row::Row`].
    pub id: Option<Value>,
    /// The vectors, concatenated.
    pub vectors: Vec<u8>,
}

/// The line before the rows of a window.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    counts: Counts,
    /// Bytes and hash of the rows.
    bytes: u64,
    sha256: String,
    /// Hash of all texts up to the end of this window.
    texts: String,
}

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Bytes of a vector.
    vector_bytes: usize,
    budget: Budget,
    /// Offset of the first window.
    start: u64,
    done: Counts,
    texts: String,
}

impl Journal {
    /// Creates a journal, or opens an existing one, which no other process may be writing.
    pub fn open(
        path: &Path,
        settings: &Settings,
        vector_bytes: usize,
        budget: &Budget,
    ) -> Result<Self, Failure> {
        let Begun {
            file,
            start,
            goes_on,
        } = begun::open(path, KIND, settings)?;
        let mut this = Self {
            file,
            path: path.to_owned(),
            vector_bytes,
            budget: budget.clone(),
            start,
            done: Counts::default(),
            texts: String::new(),
        };
        if goes_on {
            this.go_on().map_err(|e| {
                Failure::from(anyhow::Error::new(e).context(path.display().to_string()))
            })?;
        }
        Ok(this)
    }

    /// Counts of all rows so far.
    pub fn done(&self) -> &Counts {
        &self.done
    }

    /// Hash of the texts so far; empty if there are none.
    pub fn texts(&self) -> &str {
        &self.texts
    }

    /// Appends rows; `texts` is the hash of all texts so far. The rows are on the disk when this
    /// returns.
    pub fn append(&mut self, counts: &Counts, rows: &[u8], texts: &Sha256) -> io::Result<()> {
        let texts = hex(texts.clone());
        let sha256 = hex(Sha256::new_with_prefix(rows));
        let window = Window {
            counts: counts.clone(),
            bytes: rows.len() as u64,
            sha256,
            texts: texts.clone(),
        };
        let mut bytes = serde_json::to_vec(&window)?;
        bytes.push(b'\n');
        bytes.extend(rows);
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        self.done.add(counts);
        self.texts = texts;
        Ok(())
    }

    /// Calls `take` with every row, in order. Lengths were checked when the file was opened.
    pub fn each_row(
        &self,
        take: &mut dyn FnMut(&Stored) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut reader = BufReader::new(&self.file);
        reader.seek(SeekFrom::Start(self.start))?;
        let mut held = self.budget.reserve(0, String::new)?;
        while let Some(window) = read_window(&mut reader)? {
            for _ in 0..window.counts.rows {
                let (n_vectors, id_bytes) = read_lengths(&mut reader)?;
                let len = n_vectors as usize * self.vector_bytes;
                let more = (len + id_bytes.unwrap_or(0) as usize * 2).saturating_sub(held.bytes());
                held.grow(more, || format!("a row of {}", self.path.display()))?;
                let id = id_bytes
                    .map(|n| read_bytes(&mut reader, n as usize))
                    .transpose()?;
                let id = id.map(|id| serde_json::from_slice(&id)).transpose()?;
                take(&Stored {
                    id,
                    vectors: read_bytes(&mut reader, len)?,
                })?;
            }
        }
        Ok(())
    }

    fn go_on(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(&self.file);
        reader.seek(SeekFrom::Start(self.start))?;
        let mut end = self.start;
        while let Some(window) = whole_window(&mut reader, self.vector_bytes)? {
            end = reader.stream_position()?;
            self.done.add(&window.counts);
            self.texts = window.texts;
        }
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::Start(end))?;
        Ok(())
    }
}

/// The length of the id of a row without one.
const NO_ID: u32 = u32::MAX;

/// The bytes of rows in a window; a vector has `vector_bytes` bytes.
pub fn frame(rows: &[Stored], vector_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for row in rows {
        let id = row.id.as_ref().map(Value::to_string);
        out.extend(((row.vectors.len() / vector_bytes) as u32).to_le_bytes());
        out.extend(
            id.as_ref()
                .map_or(NO_ID, |id| id.len() as u32)
                .to_le_bytes(),
        );
        out.extend(id.unwrap_or_default().as_bytes());
        out.extend(&row.vectors);
    }
    out
}

/// Number of vectors of a row, and bytes of its id if it has one.
fn read_lengths(reader: &mut impl Read) -> io::Result<(u32, Option<u32>)> {
    let mut read = || -> io::Result<u32> {
        let mut n = [0; 4];
        reader.read_exact(&mut n)?;
        Ok(u32::from_le_bytes(n))
    };
    Ok((read()?, Some(read()?).filter(|n| *n != NO_ID)))
}

fn read_bytes(reader: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_window(reader: &mut impl BufRead) -> io::Result<Option<Window>> {
    Ok(read_line(reader)?.and_then(|(line, _)| serde_json::from_slice(&line).ok()))
}

/// The next window, if it is complete and its counts are right. Skips its rows.
fn whole_window(reader: &mut impl BufRead, vector_bytes: usize) -> io::Result<Option<Window>> {
    let Some(window) = read_window(reader)? else {
        return Ok(None);
    };
    let mut rows = Hashing {
        from: reader.take(window.bytes),
        sha: Sha256::new(),
    };
    let counted = count_rows(&mut rows, &window.counts, vector_bytes);
    let n_left = io::copy(&mut rows, &mut io::sink())?;
    let is_whole = match counted {
        Ok(is_counted) => is_counted && n_left == 0 && rows.from.limit() == 0,
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
        Err(e) => return Err(e),
    };
    Ok((is_whole && hex(rows.sha) == window.sha256).then_some(window))
}

/// Whether the numbers of rows and vectors are those of `counts`.
fn count_rows(reader: &mut impl Read, counts: &Counts, vector_bytes: usize) -> io::Result<bool> {
    let mut n_vectors = 0u64;
    for _ in 0..counts.rows {
        let (n, id_bytes) = read_lengths(reader)?;
        let id_bytes = u64::from(id_bytes.unwrap_or(0));
        n_vectors += u64::from(n);
        let len = id_bytes + u64::from(n) * vector_bytes as u64;
        if id_bytes > MAX_ID_BYTES || io::copy(&mut reader.take(len), &mut io::sink())? != len {
            return Ok(false);
        }
    }
    Ok(n_vectors == counts.vectors)
}

/// Hashes what is read.
struct Hashing<R> {
    from: R,
    sha: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buf)?;
        self.sha.update(&buf[..n]);
        Ok(n)
    }
}

/// A hash in hexadecimal.
pub fn hex(sha: Sha256) -> String {
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(format: &str) -> Settings {
        Settings::from([("--format".to_owned(), format.to_owned())])
    }

    fn open(path: &Path, format: &str) -> Result<Journal, Failure> {
        Journal::open(path, &settings(format), 2, &Budget::new(1 << 20))
    }

    fn append(journal: &mut Journal, rows: &[&[u8]], texts: &str) {
        let vectors = rows.iter().map(|row| row.len() as u64 / 2).sum();
        let counts = Counts {
            rows: rows.len() as u64,
            vectors,
            tokens: 5,
            truncated: 0,
        };
        let id = |row: &[u8]| (row.len() == 4).then(|| Value::from("four"));
        let rows: Vec<Stored> = rows
            .iter()
            .map(|row| Stored {
                id: id(row),
                vectors: row.to_vec(),
            })
            .collect();
        journal
            .append(&counts, &frame(&rows, 2), &Sha256::new_with_prefix(texts))
            .unwrap();
    }

    fn rows(journal: &Journal) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let mut take = |row: &Stored| {
            assert_eq!(
                row.id,
                (row.vectors.len() == 4).then(|| Value::from("four"))
            );
            out.push(row.vectors.clone());
            Ok(())
        };
        journal.each_row(&mut take).unwrap();
        out
    }

    #[test]
    fn wherever_it_is_cut_whole_windows_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let mut journal = open(&path, "int8").unwrap();
        let head = journal.start as usize;
        append(&mut journal, &[b"ab", b"cdef"], "a");
        let first = std::fs::metadata(&path).unwrap().len() as usize;
        append(&mut journal, &[b"", b"gh"], "ab");
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for cut in head..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = open(&path, "int8").unwrap();
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
            let expected = [
                &[&b"ab"[..], b"cdef", b"", b"gh"][..n_rows as usize],
                &[b"xy"],
            ]
            .concat();
            assert_eq!(rows(&journal), expected, "cut at {cut}");
        }
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(open(&path, "int8").unwrap().done().rows, 2);
    }

    #[test]
    fn what_is_not_its_own_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let refusal = || {
            let mut text = Vec::new();
            open(&path, "int8").err().unwrap().print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        std::fs::write(&path, "my notes\n").unwrap();
        assert!(
            refusal().contains("is not what this version of thane embed writes"),
            "{}",
            refusal()
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"my notes\n");
        std::fs::remove_file(&path).unwrap();
        let held = open(&path, "float").unwrap();
        assert!(
            refusal().contains("is being written by another thane"),
            "{}",
            refusal()
        );
        drop(held);
        assert!(
            refusal().contains("--format was float, now it is int8"),
            "{}",
            refusal()
        );
    }

    /// Issue 30, 3.5: a journal whose window says that a row has 2^32 - 2 vectors, with the hash of
    /// just these bytes.
    #[test]
    fn a_crafted_journal_asks_for_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let craft = |counts: &Counts, rows: &[u8]| {
            drop(open(&path, "int8").unwrap());
            let sha256 = hex(Sha256::new_with_prefix(rows));
            let window = Window {
                counts: counts.clone(),
                bytes: rows.len() as u64,
                sha256,
                texts: "0".repeat(64),
            };
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.extend(serde_json::to_vec(&window).unwrap());
            bytes.push(b'\n');
            bytes.extend(rows);
            std::fs::write(&path, bytes).unwrap();
            let journal = open(&path, "int8").unwrap();
            let done = journal.done().clone();
            assert_eq!(rows_of(&journal), done.rows);
            std::fs::remove_file(&path).unwrap();
            done.rows
        };
        let counts = |rows: u64, vectors: u64| Counts {
            rows,
            vectors,
            tokens: 1,
            truncated: 0,
        };
        let row = |n_vectors: u32, id: u32, rest: &[u8]| {
            [&n_vectors.to_le_bytes(), &id.to_le_bytes(), rest].concat()
        };
        assert_eq!(
            craft(&counts(1, 1), &row(1, NO_ID, b"ab")),
            1,
            "as it should be"
        );
        for (counts, rows) in [
            (counts(1, 0xffff_fffe), row(0xffff_fffe, NO_ID, b"ab")),
            (counts(1, 1), row(1, 0xffff_fffe, b"ab")),
            (counts(u64::MAX, 1), row(1, NO_ID, b"ab")),
            (counts(1, 2), row(1, NO_ID, b"ab")),
            (counts(1, 1), row(1, NO_ID, b"abcd")),
            (counts(0, 0), row(0, NO_ID, b"")),
        ] {
            assert_eq!(craft(&counts, &rows), 0, "{counts:?}");
        }
        // A row that is there, and larger than what may be allocated.
        let large = vec![7; 3 << 20];
        append(&mut open(&path, "int8").unwrap(), &[&large], "a");
        let error = open(&path, "int8")
            .unwrap()
            .each_row(&mut |_| Ok(()))
            .unwrap_err();
        assert!(error.is::<thane_mil::budget::OverBudget>(), "{error:#}");
    }

    fn rows_of(journal: &Journal) -> u64 {
        let mut n = 0;
        let mut count = |_: &Stored| {
            n += 1;
            Ok(())
        };
        journal.each_row(&mut count).unwrap();
        n
    }
}

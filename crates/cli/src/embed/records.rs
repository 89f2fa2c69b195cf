//! How a journal stores the rows of a batch.
//!
//! A batch is a line of JSON with counts, length and hash, and the bytes of its rows. A row has its
//! index as u64, the hash of its text, the number of its vectors and the length of its id as u32,
//! the id as JSON, then the vectors in their stored format.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thane_texts::row::MAX_ROW_BYTES;

use crate::begun::read_line;

/// Most rows from the first that is not done to the last that is.
pub const WINDOW_ROWS: u64 = 4096;
/// Most bytes of an id: each byte of a row can take six bytes of JSON.
const MAX_ID_BYTES: u64 = MAX_ROW_BYTES * 6 + 2;

/// The hash of a row's text and id.
pub type TextHash = [u8; 32];

/// Counts of rows that were embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub rows: u64,
    pub vectors: u64,
    pub tokens: u64,
    /// Rows that were too long and were truncated.
    pub truncated: u64,
    /// Rows without a text, which have no vector.
    pub nulls: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.rows = self.rows.saturating_add(other.rows);
        self.vectors = self.vectors.saturating_add(other.vectors);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.truncated = self.truncated.saturating_add(other.truncated);
        self.nulls = self.nulls.saturating_add(other.nulls);
    }
}

/// A row that was embedded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// Index of the row, from 0.
    pub index: u64,
    pub text: TextHash,
    /// See [`thane_texts::row::Row`].
    pub id: Option<Value>,
    /// The vectors, concatenated; none if the row has no text.
    pub vectors: Vec<u8>,
}

/// The line before the rows of a batch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    counts: Counts,
    /// Bytes of the rows.
    bytes: u64,
    /// Hash of the counts as JSON and of the rows.
    sha256: String,
}

impl Batch {
    /// The hash of the counts, to which the rows are added.
    fn hash(counts: &Counts) -> io::Result<Sha256> {
        Ok(Sha256::new_with_prefix(serde_json::to_vec(counts)?))
    }
}

/// Writes a batch, and returns its length; a vector has `vector_bytes` bytes. Rows are encoded once
/// for their hash and once for the file, so that there is no copy of long ids.
pub fn write(
    to: &mut dyn Write,
    counts: &Counts,
    rows: &[Stored],
    vector_bytes: usize,
) -> io::Result<u64> {
    let frames = |to: &mut dyn Write| {
        let mut rows = rows.iter();
        rows.try_for_each(|row| frame(row, vector_bytes, to))
    };
    let (line, n_bytes) = line(counts, frames)?;
    to.write_all(&line)?;
    frames(to)?;
    Ok(line.len() as u64 + n_bytes)
}

/// The line before the rows that `write` writes, and the number of their bytes.
pub fn line(
    counts: &Counts,
    write: impl Fn(&mut dyn Write) -> io::Result<()>,
) -> io::Result<(Vec<u8>, u64)> {
    let mut rows = Counted {
        to: Batch::hash(counts)?,
        n_bytes: 0,
    };
    write(&mut rows)?;
    let batch = Batch {
        counts: counts.clone(),
        bytes: rows.n_bytes,
        sha256: hex(rows.to),
    };
    let mut line = serde_json::to_vec(&batch)?;
    line.push(b'\n');
    Ok((line, rows.n_bytes))
}

/// Bytes of an id as JSON.
pub fn json_bytes(id: &Value) -> io::Result<u64> {
    let mut json = Counted {
        to: io::sink(),
        n_bytes: 0,
    };
    serde_json::to_writer(&mut json, id)?;
    Ok(json.n_bytes)
}

/// Counts what is written.
struct Counted<W> {
    to: W,
    n_bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.n_bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Reads rows in the order of their indices.
pub struct InOrder<'a> {
    reader: BufReader<&'a File>,
    /// Where the reader is, where the next batch begins, and where the last one ends.
    offset: u64,
    batch: u64,
    end: u64,
    vector_bytes: u64,
    /// Offsets of the rows that wait for the row `next`, by index.
    found: BTreeMap<u64, u64>,
    next: u64,
}

impl<'a> InOrder<'a> {
    /// The rows of the batches from `start` to `end`.
    pub fn new(file: &'a File, start: u64, end: u64, vector_bytes: usize) -> io::Result<Self> {
        let mut reader = BufReader::new(file);
        reader.seek(SeekFrom::Start(start))?;
        Ok(Self {
            reader,
            offset: start,
            batch: start,
            end,
            vector_bytes: vector_bytes as u64,
            found: BTreeMap::new(),
            next: 0,
        })
    }

    /// The next row without its id and vectors, which the reader has next.
    pub fn next(&mut self) -> io::Result<Option<RowHead>> {
        while !self.found.contains_key(&self.next) && self.batch < self.end {
            self.find_rows()?;
        }
        let Some((index, offset)) = self.found.pop_first() else {
            return Ok(None);
        };
        self.next = index + 1;
        self.seek(offset)?;
        self.head().map(Some)
    }

    /// Finds the rows of the next batch.
    fn find_rows(&mut self) -> io::Result<()> {
        self.seek(self.batch)?;
        let (batch, n) = read_batch(&mut self.reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.offset += n;
        self.batch = self.offset + batch.bytes;
        for _ in 0..batch.counts.rows {
            let offset = self.offset;
            let head = self.head()?;
            self.found.insert(head.index, offset);
            self.seek(self.offset + head.rest(self.vector_bytes))?;
        }
        Ok(())
    }

    /// Moves the reader, which keeps its buffer where it can.
    fn seek(&mut self, to: u64) -> io::Result<()> {
        self.reader.seek_relative(to as i64 - self.offset as i64)?;
        self.offset = to;
        Ok(())
    }

    fn head(&mut self) -> io::Result<RowHead> {
        self.offset += HEAD_BYTES as u64;
        RowHead::read(&mut self.reader)
    }

    /// The next bytes.
    pub fn read(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes)?;
        self.offset += len as u64;
        Ok(bytes)
    }
}

/// The length of the id of a row without one.
const NO_ID: u32 = u32::MAX;
/// Bytes of a row before its id.
const HEAD_BYTES: usize = 48;

/// What a row begins with.
pub struct RowHead {
    pub index: u64,
    pub text: TextHash,
    pub n_vectors: u32,
    /// Bytes of the id, if the row has one.
    pub id_bytes: Option<u32>,
}

impl RowHead {
    fn read(reader: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; HEAD_BYTES];
        reader.read_exact(&mut bytes)?;
        let (mut index, mut text) = ([0; 8], [0; 32]);
        let (mut n_vectors, mut id_bytes) = ([0; 4], [0; 4]);
        index.copy_from_slice(&bytes[..8]);
        text.copy_from_slice(&bytes[8..40]);
        n_vectors.copy_from_slice(&bytes[40..44]);
        id_bytes.copy_from_slice(&bytes[44..]);
        Ok(Self {
            index: u64::from_le_bytes(index),
            text,
            n_vectors: u32::from_le_bytes(n_vectors),
            id_bytes: Some(u32::from_le_bytes(id_bytes)).filter(|n| *n != NO_ID),
        })
    }

    /// Bytes of id and vectors.
    fn rest(&self, vector_bytes: u64) -> u64 {
        u64::from(self.id_bytes.unwrap_or(0)) + u64::from(self.n_vectors) * vector_bytes
    }
}

/// Writes a row of a batch; a vector has `vector_bytes` bytes.
fn frame(row: &Stored, vector_bytes: usize, to: &mut dyn Write) -> io::Result<()> {
    let id_bytes = row.id.as_ref().map(json_bytes).transpose()?;
    let id_bytes = id_bytes.map_or(NO_ID, |n| n as u32);
    to.write_all(&row.index.to_le_bytes())?;
    to.write_all(&row.text)?;
    to.write_all(&((row.vectors.len() / vector_bytes) as u32).to_le_bytes())?;
    to.write_all(&id_bytes.to_le_bytes())?;
    if let Some(id) = &row.id {
        serde_json::to_writer(&mut *to, id)?;
    }
    to.write_all(&row.vectors)
}

/// The line before the rows of a batch, and its length.
fn read_batch(reader: &mut impl BufRead) -> io::Result<Option<(Batch, u64)>> {
    let line = read_line(reader)?;
    Ok(line.and_then(|(line, n)| Some((serde_json::from_slice(&line).ok()?, n))))
}

/// The counts of the next batch and the indices of its rows, if it is complete and undamaged.
pub fn whole_batch(
    reader: &mut impl BufRead,
    vector_bytes: usize,
) -> io::Result<Option<(Counts, Vec<u64>)>> {
    let Some((batch, _)) = read_batch(reader)? else {
        return Ok(None);
    };
    let mut rows = Hashing {
        from: reader.take(batch.bytes),
        sha: Batch::hash(&batch.counts)?,
    };
    let indices = match indices(&mut rows, &batch.counts, vector_bytes) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
        indices => indices?,
    };
    let n_left = io::copy(&mut rows, &mut io::sink())?;
    let is_whole = n_left == 0 && rows.from.limit() == 0 && hex(rows.sha) == batch.sha256;
    Ok(indices
        .filter(|_| is_whole)
        .map(|indices| (batch.counts, indices)))
}

/// The indices of rows, if there are as many rows and vectors as `counts` says. Skips the rows.
fn indices(
    reader: &mut impl Read,
    counts: &Counts,
    vector_bytes: usize,
) -> io::Result<Option<Vec<u64>>> {
    let (mut indices, mut n_vectors) = (Vec::new(), 0);
    if counts.rows > WINDOW_ROWS {
        return Ok(None);
    }
    for _ in 0..counts.rows {
        let head = RowHead::read(reader)?;
        let len = head.rest(vector_bytes as u64);
        let is_id = u64::from(head.id_bytes.unwrap_or(0)) <= MAX_ID_BYTES;
        if !is_id || io::copy(&mut reader.take(len), &mut io::sink())? != len {
            return Ok(None);
        }
        n_vectors += u64::from(head.n_vectors);
        indices.push(head.index);
    }
    Ok(Some(indices).filter(|_| n_vectors == counts.vectors))
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
fn hex(sha: Sha256) -> String {
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

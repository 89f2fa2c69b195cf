//! The journal of a run: a file beside the output with the rows that are done, so that a run that
//! stopped for any reason continues where it stopped, without losing or repeating a row.
//!
//! The first line has the settings of the run as JSON, then follow batches ([`super::records`]) in
//! the order in which they were finished. A batch that is incomplete or damaged is ignored with
//! everything after it. Until a row is done, no row [`WINDOW_ROWS`] or more behind it is, so
//! reading rows in order takes bounded memory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use thane_mil::budget::{Budget, Reservation};

use super::records::{self, Counts, InOrder, Stored, WINDOW_ROWS, whole_batch};
use crate::begun::{self, Begun, Kind, Settings};
use crate::exit::Failure;

/// Rows or tokens after which the journal is flushed to the disk. A program that is killed loses
/// nothing of what was written; a machine that loses power loses at most this.
const FLUSH_ROWS: u64 = 256;
const FLUSH_TOKENS: u64 = 1 << 13;

const KIND: Kind = Kind {
    verb: "embed",
    version: 4,
};

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
    vector_bytes: usize,
    budget: Budget,
    /// Offsets of the first batch and of the end of the last one.
    start: u64,
    end: u64,
    done: Counts,
    /// Rows and tokens that were appended since the last flush.
    unflushed: Counts,
    /// Number of rows before the first that is not done.
    n_leading: u64,
    /// Indices of the rows behind it that are done.
    ahead: BTreeSet<u64>,
    /// Offset of the last batch, if it only has the last of all rows.
    last_alone: Option<u64>,
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
            end: start,
            done: Counts::default(),
            unflushed: Counts::default(),
            n_leading: 0,
            ahead: BTreeSet::new(),
            last_alone: None,
        };
        if goes_on {
            this.go_on().map_err(|e| this.fault(e))?;
        }
        Ok(this)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What memory of rows counts against.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The failure of reading or writing the file.
    pub fn fault(&self, error: io::Error) -> Failure {
        let path = self.path.display().to_string();
        Failure::from(anyhow::Error::new(error).context(path))
    }

    /// Counts of all rows so far.
    pub fn done(&self) -> &Counts {
        &self.done
    }

    /// Number of rows before the first that is not done.
    pub fn n_leading(&self) -> u64 {
        self.n_leading
    }

    pub fn append(&mut self, counts: &Counts, rows: &[Stored]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        let mut to = BufWriter::new(&self.file);
        let n_bytes = records::write(&mut to, counts, rows, self.vector_bytes)?;
        to.flush()?;
        drop(to);
        self.unflushed.add(counts);
        if self.unflushed.rows >= FLUSH_ROWS || self.unflushed.tokens >= FLUSH_TOKENS {
            self.file.sync_data()?;
            self.unflushed = Counts::default();
        }
        let indices: Vec<u64> = rows.iter().map(|row| row.index).collect();
        let is_new = self.admit(&indices, counts, self.end + n_bytes);
        debug_assert!(is_new, "a window has rows that are not done");
        Ok(())
    }

    /// Removes the last batch if it only has the row before the first that is not done, which is
    /// the last row of all. False if there is no such batch.
    pub fn forget_last(&mut self) -> io::Result<bool> {
        let Some(offset) = self.last_alone else {
            return Ok(false);
        };
        self.file.set_len(offset)?;
        self.go_on()?;
        Ok(true)
    }

    /// The rows so far, in the order of their indices.
    pub fn in_order(&self) -> io::Result<InOrder<'_>> {
        InOrder::new(&self.file, self.start, self.end, self.vector_bytes)
    }

    /// Calls `take` with every row, in order. Lengths were checked when the file was opened.
    pub fn each_row(
        &self,
        take: &mut dyn FnMut(&Stored) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut rows = self.in_order()?;
        let mut held = self.budget.reserve(0, String::new)?;
        while let Some(row) = self.next_row(&mut rows, &mut held)? {
            take(&row)?;
        }
        Ok(())
    }

    /// The row with the least index that has a vector.
    pub fn first_row(&self) -> anyhow::Result<Option<Stored>> {
        let mut held = self.budget.reserve(0, String::new)?;
        let mut rows = self.in_order()?;
        while let Some(row) = self.next_row(&mut rows, &mut held)? {
            if !row.vectors.is_empty() {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The next row, whose memory is `held`.
    fn next_row(
        &self,
        rows: &mut InOrder<'_>,
        held: &mut Reservation,
    ) -> anyhow::Result<Option<Stored>> {
        let Some(head) = rows.next()? else {
            return Ok(None);
        };
        let (len, id_bytes) = (head.n_vectors as usize * self.vector_bytes, head.id_bytes);
        let more = (len + id_bytes.unwrap_or(0) as usize * 2).saturating_sub(held.bytes());
        held.grow(more, || format!("a row of {}", self.path.display()))?;
        let id = id_bytes.map(|n| rows.read(n as usize)).transpose()?;
        let id = id.map(|id| serde_json::from_slice(&id)).transpose()?;
        Ok(Some(Stored {
            index: head.index,
            text: head.text,
            id,
            vectors: rows.read(len)?,
        }))
    }

    /// Finds the batches, and cuts off what is behind the last whole one.
    fn go_on(&mut self) -> io::Result<()> {
        (self.end, self.done) = (self.start, Counts::default());
        (self.n_leading, self.ahead, self.last_alone) = (0, BTreeSet::new(), None);
        let file = self.file.try_clone()?;
        let mut reader = BufReader::new(&file);
        reader.seek(SeekFrom::Start(self.start))?;
        while let Some((counts, indices)) = whole_batch(&mut reader, self.vector_bytes)? {
            let end = reader.stream_position()?;
            if !self.admit(&indices, &counts, end) {
                break;
            }
        }
        self.file.set_len(self.end)
    }

    /// Counts the rows of a batch that ends at `end`; false if they cannot be there, because they
    /// are done already or too far behind a row that is not.
    fn admit(&mut self, indices: &[u64], counts: &Counts, end: u64) -> bool {
        let unique: BTreeSet<u64> = indices.iter().copied().collect();
        let fits = |index: &u64| {
            index
                .checked_sub(self.n_leading)
                .is_some_and(|n| n < WINDOW_ROWS)
                && !self.ahead.contains(index)
        };
        if unique.len() != indices.len() || !unique.iter().all(fits) {
            return false;
        }
        let is_last = indices == [self.n_leading] && self.ahead.is_empty();
        self.last_alone = is_last.then_some(self.end);
        self.ahead.extend(unique);
        while self.ahead.remove(&self.n_leading) {
            self.n_leading += 1;
        }
        self.done.add(counts);
        self.end = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn settings(format: &str) -> Settings {
        Settings::from([("--format".to_owned(), format.to_owned())])
    }

    fn open(path: &Path, format: &str) -> Result<Journal, Failure> {
        Journal::open(path, &settings(format), 2, &Budget::new(1 << 20))
    }

    /// Rows whose vectors tell their index; those of odd index have an id and two vectors.
    fn stored(index: u64) -> Stored {
        let id = (index % 2 == 1).then(|| index.into());
        let vectors = [index as u8; 2].repeat(1 + index as usize % 2);
        Stored {
            index,
            text: [index as u8; 32],
            id,
            vectors,
        }
    }

    fn batch(indices: &[u64]) -> (Counts, Vec<Stored>) {
        let rows: Vec<Stored> = indices.iter().copied().map(stored).collect();
        let counts = Counts {
            rows: rows.len() as u64,
            vectors: rows.iter().map(|row| row.vectors.len() as u64 / 2).sum(),
            tokens: 5,
            truncated: 0,
            nulls: 0,
        };
        (counts, rows)
    }

    fn append(journal: &mut Journal, indices: &[u64]) {
        let (counts, rows) = batch(indices);
        journal.append(&counts, &rows).unwrap();
    }

    fn rows(journal: &Journal) -> Vec<Stored> {
        let mut out = Vec::new();
        let mut take = |row: &Stored| {
            out.push(row.clone());
            Ok(())
        };
        journal.each_row(&mut take).unwrap();
        out
    }

    fn all(indices: Range<u64>) -> Vec<Stored> {
        indices.map(stored).collect()
    }

    #[test]
    fn wherever_it_is_cut_whole_batches_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let mut journal = open(&path, "int8").unwrap();
        let head = journal.start as usize;
        append(&mut journal, &[3, 1]);
        let first = journal.end as usize;
        append(&mut journal, &[0, 4]);
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for cut in head..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = open(&path, "int8").unwrap();
            let (n_rows, n_leading, left) = match cut {
                _ if cut == whole.len() => (4, 2, &[2][..]),
                _ if cut >= first => (2, 0, &[2, 0, 4][..]),
                _ => (0, 0, &[4, 0, 2, 3, 1][..]),
            };
            assert_eq!(
                (journal.done().rows, journal.n_leading()),
                (n_rows, n_leading),
                "cut at {cut}"
            );
            append(&mut journal, left);
            assert_eq!(rows(&journal), all(0..5), "cut at {cut}");
            assert_eq!(journal.n_leading(), 5);
        }
        for damaged in [whole.len() - 1, first + 20] {
            let mut bytes = whole.clone();
            bytes[damaged] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(open(&path, "int8").unwrap().done().rows, 2, "{damaged}");
        }
    }

    /// The next batch overwrites the bytes of a write that failed, as on a full disk.
    #[test]
    fn a_failed_write_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let mut journal = open(&path, "int8").unwrap();
        append(&mut journal, &[0]);
        journal.file.write_all(b"half of a batch").unwrap();
        append(&mut journal, &[1, 2]);
        drop(journal);
        assert_eq!(rows(&open(&path, "int8").unwrap()), all(0..3));
    }

    #[test]
    fn only_the_last_row_is_forgotten_and_only_if_it_is_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        for (batches, is_forgotten) in [
            (&[&[1, 0][..], &[2]][..], true),
            (&[&[0], &[2], &[1]], false),
            (&[&[0], &[2, 1]], false),
            (&[&[0], &[2]], false),
        ] {
            let mut journal = open(&path, "int8").unwrap();
            batches.iter().for_each(|batch| append(&mut journal, batch));
            drop(journal);
            let mut journal = open(&path, "int8").unwrap();
            let n_rows = journal.done().rows;
            assert_eq!(journal.forget_last().unwrap(), is_forgotten, "{batches:?}");
            assert_eq!(journal.done().rows, n_rows - u64::from(is_forgotten));
            if is_forgotten {
                append(&mut journal, &[3, 2]);
                assert_eq!(rows(&journal), all(0..4));
            }
            std::fs::remove_file(&path).unwrap();
        }
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

    /// Issue 30, 3.5: a journal whose batch says that a row has 2^32 - 2 vectors, with the hash of
    /// just these bytes.
    #[test]
    fn a_crafted_journal_asks_for_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let craft = |counts: &Counts, crafted: &[u8]| {
            let mut bytes = {
                drop(open(&path, "int8").unwrap());
                std::fs::read(&path).unwrap()
            };
            let (line, n_bytes) = records::line(counts, |to| to.write_all(crafted)).unwrap();
            assert_eq!(n_bytes, crafted.len() as u64);
            bytes.extend([&line, crafted].concat());
            std::fs::write(&path, bytes).unwrap();
            let journal = open(&path, "int8").unwrap();
            let n_rows = journal.done().rows;
            assert_eq!(rows(&journal).len() as u64, n_rows);
            std::fs::remove_file(&path).unwrap();
            n_rows
        };
        let counts = |rows: u64, vectors: u64| Counts {
            rows,
            vectors,
            tokens: 1,
            truncated: 0,
            nulls: 0,
        };
        let row = |index: u64, n_vectors: u32, id: u32, rest: &[u8]| {
            let lengths = [n_vectors.to_le_bytes(), id.to_le_bytes()].concat();
            [&index.to_le_bytes(), &[0; 32][..], &lengths, rest].concat()
        };
        let none = u32::MAX;
        let good = row(0, 1, none, b"ab");
        assert_eq!(craft(&counts(1, 1), &good), 1, "as it should be");
        for (counts, rows) in [
            (counts(1, 0xffff_fffe), row(0, 0xffff_fffe, none, b"ab")),
            (counts(1, 1), row(0, 1, 0xffff_fffe, b"ab")),
            (counts(u64::MAX, 1), good.clone()),
            (counts(1, 2), good.clone()),
            (counts(1, 1), row(0, 1, none, b"abcd")),
            (counts(0, 0), row(0, 0, none, b"")),
            (counts(2, 2), good.repeat(2)),
            (counts(1, 1), row(WINDOW_ROWS, 1, none, b"ab")),
            (counts(1, 1), row(u64::MAX, 1, none, b"ab")),
        ] {
            assert_eq!(craft(&counts, &rows), 0, "{counts:?}");
        }
        // A row that is there, and larger than what may be allocated.
        let (mut counts, mut large) = batch(&[0]);
        large[0].vectors = vec![7; 3 << 20];
        counts.vectors = 3 << 19;
        open(&path, "int8")
            .unwrap()
            .append(&counts, &large)
            .unwrap();
        let error = open(&path, "int8")
            .unwrap()
            .each_row(&mut |_| Ok(()))
            .unwrap_err();
        assert!(error.is::<thane_mil::budget::OverBudget>(), "{error:#}");
    }
}

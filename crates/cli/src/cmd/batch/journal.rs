//! The answers so far, beside the output, so that a run that was killed goes on without losing or
//! repeating a row. Behind the settings, each line is a row of the output as it came; a line that
//! is not whole is dropped with everything after it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::begun::{self, Begun, Kind, Settings};
use crate::exit::Failure;

const KIND: Kind = Kind {
    verb: "batch",
    version: 1,
};

/// What is before the number of the line in the id of a row.
pub const ID_PREFIX: &str = "batch_req_";

/// Most bytes of a row: 2,048 vectors of 16,384 numbers are less.
const MAX_ROW_BYTES: u64 = 1 << 30;

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
    /// The place of each row, by the line of its request.
    rows: BTreeMap<u64, RowSpan>,
    end: u64,
    n_failed: u64,
}

/// Where a row is, with its line break.
#[derive(Clone, Copy)]
struct RowSpan {
    offset: u64,
    bytes: u64,
}

/// What is read of a row.
#[derive(Deserialize)]
struct Row {
    id: String,
    response: Option<Response>,
}

#[derive(Deserialize)]
struct Response {
    status_code: u16,
}

impl Row {
    fn line(&self) -> Option<u64> {
        self.id.strip_prefix(ID_PREFIX)?.parse().ok()
    }

    fn has_failed(&self) -> bool {
        self.response.as_ref().is_none_or(|r| r.status_code >= 400)
    }
}

impl Journal {
    /// Creates a journal, or opens an existing one, which no other process may be writing.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, Failure> {
        let Begun { file, start, .. } = begun::open(path, KIND, settings)?;
        let mut this = Self {
            file,
            path: path.to_owned(),
            rows: BTreeMap::new(),
            end: start,
            n_failed: 0,
        };
        this.read().map_err(|e| this.fault(e))?;
        Ok(this)
    }

    /// Finds the rows, and cuts off what is behind the last whole one.
    fn read(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(&self.file);
        reader.seek(SeekFrom::Start(self.end))?;
        let mut line = Vec::new();
        loop {
            line.clear();
            let n = (&mut reader)
                .take(MAX_ROW_BYTES)
                .read_until(b'\n', &mut line)?;
            let row: Option<Row> = serde_json::from_slice(&line).ok();
            let row = row.filter(|_| line.ends_with(b"\n"));
            let found = row.and_then(|row| Some((row.line()?, row.has_failed())));
            let Some((number, has_failed)) = found.filter(|(n, _)| !self.rows.contains_key(n))
            else {
                break;
            };
            let place = RowSpan {
                offset: self.end,
                bytes: n as u64,
            };
            self.rows.insert(number, place);
            self.end += n as u64;
            self.n_failed += u64::from(has_failed);
        }
        self.file.set_len(self.end)?;
        self.file.seek(SeekFrom::Start(self.end))?;
        Ok(())
    }

    /// Number of rows.
    pub fn n(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Number of rows without an answer.
    pub fn n_failed(&self) -> u64 {
        self.n_failed
    }

    /// Whether the request of this line has a row.
    pub fn has(&self, line: u64) -> bool {
        self.rows.contains_key(&line)
    }

    /// Appends the row of a line, which says itself whether it failed.
    pub fn append(&mut self, line: u64, mut row: String, has_failed: bool) -> Result<(), Failure> {
        row.push('\n');
        self.file
            .write_all(row.as_bytes())
            .map_err(|e| self.fault(e))?;
        let bytes = row.len() as u64;
        let offset = self.end;
        self.rows.insert(line, RowSpan { offset, bytes });
        self.end += bytes;
        self.n_failed += u64::from(has_failed);
        Ok(())
    }

    /// Writes all rows, in the order of their requests, unless `is_stopped` returns true.
    pub fn write(&self, out: &mut dyn Write, is_stopped: &dyn Fn() -> bool) -> io::Result<()> {
        let mut file = &self.file;
        for place in self.rows.values() {
            if is_stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.seek(SeekFrom::Start(place.offset))?;
            if io::copy(&mut file.take(place.bytes), out)? != place.bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Removes the file.
    pub fn remove(self) -> Result<(), Failure> {
        std::fs::remove_file(&self.path).map_err(|e| self.fault(e))
    }

    fn fault(&self, error: io::Error) -> Failure {
        anyhow::Error::new(error)
            .context(self.path.display().to_string())
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: u64, status: u16) -> String {
        format!(
            r#"{{"id":"{ID_PREFIX}{line}","custom_id":"é","response":{{"status_code":{status}}}}}"#
        )
    }

    #[test]
    fn wherever_it_is_cut_whole_rows_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        let open = || Journal::open(&path, &Settings::new()).unwrap();
        let mut journal = open();
        let mut ends = vec![journal.end];
        for (line, status) in [(3, 200), (1, 400), (8, 200)] {
            journal
                .append(line, row(line, status), status >= 400)
                .unwrap();
            ends.push(journal.end);
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for cut in ends[0]..=ends[3] {
            std::fs::write(&path, &whole[..cut as usize]).unwrap();
            let mut journal = open();
            let n = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(journal.n(), n as u64, "cut at {cut}");
            assert_eq!(journal.n_failed(), u64::from(n >= 2), "cut at {cut}");
            journal.append(2, row(2, 200), false).unwrap();
            let mut out = Vec::new();
            journal.write(&mut out, &|| false).unwrap();
            let mut lines = [&[3, 1, 8][..n], &[2]].concat();
            lines.sort_unstable();
            let expected = |line: &u64| row(*line, if *line == 1 { 400 } else { 200 }) + "\n";
            let expected: String = lines.iter().map(expected).collect();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "cut at {cut}");
        }
        // A row that is there twice, and one that is damaged, end what is kept.
        for (from, to) in [("req_8", "req_3"), ("req_1", "req_x"), ("{", "[")] {
            let text = String::from_utf8(whole.clone()).unwrap();
            let (head, rows) = text.split_at(ends[0] as usize);
            std::fs::write(&path, [head, &rows.replace(from, to)].concat()).unwrap();
            assert!(open().n() < 3, "{to}");
        }
    }
}

//! Reads the rows of a run that are not done.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use thane_mil::budget::OverBudget;
use thane_texts::row::{Row, Rows};
use thane_texts::rows::{Source, Texts};

use super::journal::Journal;
use super::records::TextHash;
use crate::app::App;
use crate::exit::{Failure, usage};

/// The flags that name texts.
#[derive(Debug, clap::Args)]
pub struct TextFlags {
    /// The texts [default: the lines of stdin].
    #[arg(conflicts_with = "file")]
    pub texts: Vec<String>,
    /// Read texts from .txt, .jsonl, .csv, .tsv and .parquet files.
    ///
    /// Several are read one after the other. A .txt file has a text per line, the others a text per
    /// row. All but .parquet may be compressed (.jsonl.gz). A name that is no file and has *, ? or
    /// [ is a pattern, such as 'data/**/*.jsonl'.
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub file: Vec<PathBuf>,
    /// Character between the columns of .csv and .tsv files: ';', '|', tab
    /// [default: a comma, or a tab in .tsv].
    #[arg(long, value_name = "CHAR", requires = "file", value_parser = separator)]
    pub separator: Option<u8>,
    /// Field or column that has the text [default: text]; with it, stdin has JSON lines.
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
}

impl TextFlags {
    /// The field that has the text.
    pub fn field(&self) -> &str {
        self.field.as_deref().unwrap_or("text")
    }

    /// The texts; `None` if there are none, and stdin is a terminal. Stdin has JSON lines with
    /// `is_json` or a field.
    pub fn source(&self, is_json: bool) -> Result<Option<Source>, Failure> {
        Ok(Some(match self.file.as_slice() {
            [] if !self.texts.is_empty() => Source::CommandLine(self.texts.clone()),
            [] if io::stdin().is_terminal() => return Ok(None),
            [] if is_json || self.field.is_some() => Source::JsonStdin,
            [] => Source::Stdin,
            files => Source::files(files, self.separator).map_err(usage)?,
        }))
    }
}

/// Says what was found in the rows that were read and is no fault, such as ids that are not kept.
pub fn say_notes(texts: &Texts, app: &App) {
    let notes = texts.new_notes();
    notes
        .iter()
        .for_each(|note| app.output.say(&format!("thane: {note}")));
}

/// Parses `--separator`: a character that no quoting rule uses.
fn separator(value: &str) -> Result<u8, String> {
    match value.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !b"\"\r\n\0".contains(byte) => Ok(*byte),
        _ => Err("expected one ASCII character other than a quote, or tab".to_owned()),
    }
}

/// The rows of a run that are not done.
pub struct Reader<'a> {
    texts: &'a Texts,
    rows: Rows<'a>,
    /// A row that was read and not returned, because it may be done.
    peeked: Option<(TextHash, Row)>,
    n_read: u64,
    /// Rows not read yet that are done, by index.
    kept: BTreeMap<u64, TextHash>,
    /// Number of rows with a text that were skipped, and the first of them until it is taken.
    n_skipped: u64,
    first_skipped: Option<Row>,
    /// The journal's file.
    journal: String,
}

impl<'a> Reader<'a> {
    /// All rows.
    pub fn new(texts: &'a Texts) -> Self {
        Self {
            texts,
            rows: texts.rows(),
            peeked: None,
            n_read: 0,
            kept: BTreeMap::new(),
            n_skipped: 0,
            first_skipped: None,
            journal: String::new(),
        }
    }

    /// The rows that a journal lacks. Other texts than those that it has are an error; only the
    /// last one may have changed, or be gone, because it may have been half a line.
    pub fn behind(texts: &'a Texts, journal: &mut Journal) -> Result<Self, Failure> {
        let mut this = Self::new(texts);
        this.journal = journal.path().display().to_string();
        if !this.skip(journal)? {
            let is_last = this.n_read + 1 == journal.n_leading();
            if !is_last || !journal.forget_last().map_err(|e| journal.fault(e))? {
                return Err(this.changed());
            }
        }
        Ok(this)
    }

    /// Skips the rows that are done, up to one that is not. False at a row that has changed.
    fn skip(&mut self, journal: &Journal) -> Result<bool, Failure> {
        let fault = |e| journal.fault(e);
        let mut rows = journal.in_order().map_err(fault)?;
        while let Some(done) = rows.next().map_err(fault)? {
            if done.index >= journal.n_leading() {
                self.kept.insert(done.index, done.text);
                continue;
            }
            if !self.skip_one(&done.text)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next row that is not done, with its index, which is below `end`, and the hash of its
    /// text.
    pub fn next(&mut self, end: u64) -> Result<Option<(u64, TextHash, Row)>, Failure> {
        while let Some(kept) = self.kept.remove(&self.n_read) {
            if !self.skip_one(&kept)? {
                return Err(self.changed());
            }
        }
        if self.n_read >= end {
            return Ok(None);
        }
        self.peek()?;
        let Some((text, row)) = self.peeked.take() else {
            return match self.kept.is_empty() {
                true => Ok(None),
                // Finished rows are there no more.
                false => Err(self.changed()),
            };
        };
        self.n_read += 1;
        Ok(Some((self.n_read - 1, text, row)))
    }

    /// Skips the next row if its text has this hash.
    fn skip_one(&mut self, done: &TextHash) -> Result<bool, Failure> {
        self.peek()?;
        let is_same = self.peeked.as_ref().is_some_and(|(text, _)| text == done);
        if is_same {
            let row = self.peeked.take().map(|(_, row)| row);
            if let Some(row) = row.filter(|row| !row.is_null()) {
                if self.n_skipped == 0 {
                    self.first_skipped = Some(row);
                }
                self.n_skipped += 1;
            }
            self.n_read += 1;
        }
        Ok(is_same)
    }

    /// Takes the first row that is done, once it was read.
    pub fn take_first_done(&mut self) -> Option<Row> {
        self.first_skipped.take()
    }

    /// Number of rows that were read, done ones included.
    pub fn n_read(&self) -> u64 {
        self.n_read
    }

    /// Whether the journal has rows that the reader has not reached yet.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    fn peek(&mut self) -> Result<(), Failure> {
        if self.peeked.is_some() {
            return Ok(());
        }
        let row = self.rows.next().transpose();
        let row = row.map_err(|e| usage(in_a_line(e)))?;
        self.peeked = row.map(|row| (hash(&row), row));
        Ok(())
    }

    /// The failure of a finished row whose vector another model made.
    pub fn other_model(&self, row: &Row) -> Failure {
        let place = self.texts.place(row.place);
        usage!(
            "{place}: expected the vector that {} keeps, found another: the model has changed",
            self.journal
        )
        .remedy("the model that the run was started with")
        .remedy(format!("remove {}, to start over", self.journal))
    }

    /// The failure of a finished row that is another now, or gone.
    fn changed(&self) -> Failure {
        let place = match &self.peeked {
            Some((_, row)) => self.texts.place(row.place),
            None => format!("{}, text {}", self.texts.name(), self.n_read + 1),
        };
        usage!("{place}: this is not the text that was embedded")
            .remedy("the texts that the run was started with")
            .remedy(format!("remove {}, to start over", self.journal))
    }
}

/// Joins an error and its causes into one line. An error of memory is kept, since it has its own
/// exit code.
pub fn in_a_line(error: anyhow::Error) -> anyhow::Error {
    match error.chain().any(|cause| cause.is::<OverBudget>()) {
        true => error,
        false => anyhow::anyhow!("{error:#}"),
    }
}

/// The hash of the texts and the id of a row.
fn hash(row: &Row) -> TextHash {
    let mut sha = Sha256::new_with_prefix((row.texts.len() as u64).to_le_bytes());
    for text in &row.texts {
        sha.update((text.len() as u64).to_le_bytes());
        sha.update(text);
    }
    if let Some(id) = &row.id {
        serde_json::to_writer(&mut sha, id).expect("a hash takes all bytes");
    }
    sha.finalize().into()
}

#[cfg(test)]
mod tests {
    use thane_mil::budget::Budget;
    use thane_texts::row::Fields;

    use super::*;
    use crate::begun::Settings;
    use crate::embed::records::{Counts, Stored, WINDOW_ROWS};

    fn texts(n: u64) -> Texts {
        let texts = (0..n).map(|i| i.to_string()).collect();
        let source = Source::CommandLine(texts);
        Texts::new(source, Fields::text("text"), false, &Budget::unlimited()).unwrap()
    }

    /// The indices of the rows that are left before `end`, if these rows of `texts(n)` are done.
    fn left(n: u64, batches: &[Vec<u64>], now: &Texts, end: u64) -> Result<Vec<u64>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.partial");
        let (before, budget) = (texts(n), Budget::unlimited());
        let rows: Vec<Row> = before.rows().map(Result::unwrap).collect();
        let mut journal = Journal::open(&path, &Settings::new(), 1, &budget).unwrap();
        for batch in batches {
            let stored = |index: &u64| Stored {
                index: *index,
                text: hash(&rows[*index as usize]),
                id: None,
                vectors: Vec::new(),
            };
            let counts = Counts {
                rows: batch.len() as u64,
                ..Counts::default()
            };
            let rows: Vec<Stored> = batch.iter().map(stored).collect();
            journal.append(&counts, &rows).unwrap();
        }
        let said = |failure: Failure| failure.error().to_string();
        let mut reader = Reader::behind(now, &mut journal).map_err(said)?;
        let mut left = Vec::new();
        while let Some((index, ..)) = reader.next(end).map_err(said)? {
            left.push(index);
        }
        Ok(left)
    }

    #[test]
    fn rows_that_are_left_are_those_that_are_not_done() {
        let done = [vec![3, 1], vec![0, 5], vec![6]];
        assert_eq!(left(9, &done, &texts(9), 99), Ok(vec![2, 4, 7, 8]));
        assert_eq!(left(9, &[], &texts(3), 99), Ok(vec![0, 1, 2]));
        // As far ahead as a row can be done: no row behind it may be embedded before the first.
        let done: Vec<u64> = (1..WINDOW_ROWS).collect();
        let now = texts(WINDOW_ROWS + 9);
        assert_eq!(left(WINDOW_ROWS, &[done], &now, WINDOW_ROWS), Ok(vec![0]));
    }

    #[test]
    fn finished_texts_that_changed_are_named() {
        let named = |number: &str| {
            Err(format!(
                "the command line, text {number}: this is not the text that was embedded"
            ))
        };
        let other = |n: u64, changed: usize| {
            let mut texts: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            texts[changed].push('x');
            let source = Source::CommandLine(texts);
            Texts::new(source, Fields::text("text"), false, &Budget::unlimited()).unwrap()
        };
        let done = [vec![3, 1], vec![0, 5]];
        for changed in [0, 1, 3, 5] {
            let name = (changed + 1).to_string();
            assert_eq!(left(9, &done, &other(9, changed), 99), named(&name));
        }
        assert_eq!(left(9, &done, &other(9, 2), 99), Ok(vec![2, 4, 6, 7, 8]));
        assert_eq!(left(9, &done, &texts(4), 99), named("5"));
        assert_eq!(left(9, &done, &texts(1), 99), named("2"));
        // The last text, alone in its batch, may have been half a line.
        let done = [vec![1, 0], vec![2]];
        assert_eq!(left(3, &done, &other(4, 2), 99), Ok(vec![2, 3]));
        assert_eq!(left(3, &done, &texts(2), 99), Ok(vec![]));
        assert_eq!(left(3, &done, &other(4, 1), 99), named("2"));
        assert_eq!(left(3, &[vec![1, 0, 2]], &other(4, 2), 99), named("3"));
    }
}

//! Reads the texts to embed, one row at a time: from the command line, from lines, JSON lines, CSV
//! or Parquet.
//!
//! Whatever a file claims about itself, a row has at most
//! [`MAX_ROW_BYTES`](super::row::MAX_ROW_BYTES), and its memory is reserved from the budget.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use serde_json::Value;
use thane_mil::budget::{Budget, OverBudget};

use super::chain::Chain;
use super::faults::Faults;
use super::files::{Kind, TextFile, named};
use super::meter::Meter;
use super::row::{Fields, Place, Row, Rows};
use super::{csv, lines, parquet};

/// The rows of a source.
#[derive(Debug)]
pub struct Texts {
    from: Source,
    fields: Fields,
    /// Whether a row is a list of chunks.
    chunks: bool,
    budget: Budget,
    /// What was found that is no fault, and how much of that was given.
    notes: Mutex<(Vec<String>, usize)>,
}

/// Where rows come from.
#[derive(Debug)]
pub enum Source {
    /// The texts of the command line, or the chunks of one document.
    CommandLine(Vec<String>),
    /// Files, one after the other.
    Files(Vec<TextFile>),
    /// Lines on stdin.
    Stdin,
    /// JSON lines on stdin.
    JsonStdin,
}

impl Source {
    /// The source of a file, by its extension.
    pub fn file(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::Files(vec![TextFile::new(path)?]))
    }

    /// The source of several files, or of patterns that stand for some. `separator` replaces the
    /// one of .csv and .tsv files, of which there must be one.
    pub fn files(names: &[PathBuf], separator: Option<u8>) -> anyhow::Result<Self> {
        let mut files = named(names)?;
        if let Some(separator) = separator {
            let kinds = files.iter_mut().map(|file| &mut file.kind);
            let tables: Vec<_> = kinds.filter(|kind| matches!(kind, Kind::Csv(_))).collect();
            anyhow::ensure!(
                !tables.is_empty(),
                "--separator is of .csv and .tsv files, and there is none"
            );
            tables
                .into_iter()
                .for_each(|kind| *kind = Kind::Csv(separator));
        }
        Ok(Self::Files(files))
    }

    /// Whether texts are lines, which have no fields.
    pub fn has_lines(&self) -> bool {
        match self {
            Self::CommandLine(_) | Self::Stdin => true,
            Self::Files(files) => files.iter().any(|file| file.kind == Kind::Lines),
            Self::JsonStdin => false,
        }
    }
}

impl Texts {
    /// The rows of a source; a row is a list of chunks if `chunks`.
    pub fn new(
        from: Source,
        fields: Fields,
        chunks: bool,
        budget: &Budget,
    ) -> anyhow::Result<Self> {
        if chunks && let Source::Files(files) = &from {
            files.iter().try_for_each(has_lists)?;
        }
        anyhow::ensure!(
            !(from.has_lines() && fields.needs_id()),
            "--id names a field of rows, and lines have none; rows of .jsonl, .csv and .parquet do"
        );
        anyhow::ensure!(
            !(chunks && fields.id_is_text()),
            "--id names the chunks, and an id is a string or a number; name another field"
        );
        Ok(Self {
            from,
            fields,
            chunks,
            budget: budget.clone(),
            notes: Mutex::default(),
        })
    }

    /// What was found so far that is no fault, such as ids that are not kept, each once.
    pub fn new_notes(&self) -> Vec<String> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, given) = &mut *notes;
        let new = all[*given..].to_vec();
        *given = all.len();
        new
    }

    fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.0.contains(&note) {
            notes.0.push(note);
        }
    }

    /// The paths of the files.
    pub fn paths(&self) -> Vec<&Path> {
        match &self.from {
            Source::Files(files) => files.iter().map(|file| file.path.as_path()).collect(),
            _ => Vec::new(),
        }
    }

    /// Name of the source, for the user.
    pub fn name(&self) -> String {
        match &self.from {
            Source::CommandLine(_) => "the command line".to_owned(),
            Source::Stdin | Source::JsonStdin => "stdin".to_owned(),
            Source::Files(files) => match files.as_slice() {
                [] => "no file".to_owned(),
                [one] => one.path.display().to_string(),
                [first, more @ ..] => {
                    format!("{} and {} more", first.path.display(), more.len())
                }
            },
        }
    }

    /// Name of a row, for the user.
    pub fn place(&self, place: Place) -> String {
        let number = place.number;
        match &self.from {
            Source::CommandLine(_) => format!("{}, text {number}", self.name()),
            Source::Files(files) if let Some(file) = files.get(place.file) => {
                let what = if file.kind == Kind::Parquet {
                    "row"
                } else {
                    "line"
                };
                format!("{}, {what} {number}", file.path.display())
            }
            _ => format!("{}, line {number}", self.name()),
        }
    }

    /// Reads every row once and counts them; the error lists rows that cannot be read. `None` for
    /// stdin, which can only be read once.
    pub fn check(&self) -> anyhow::Result<Option<u64>> {
        if matches!(self.from, Source::Stdin | Source::JsonStdin) {
            return Ok(None);
        }
        let (mut n, mut n_nulls, mut faults) = (0, 0, Faults::default());
        for row in self.rows() {
            match row {
                Ok(row) => {
                    n += 1;
                    n_nulls += u64::from(row.is_null());
                }
                Err(fault) if fault.chain().any(|cause| cause.is::<OverBudget>()) => {
                    return Err(fault);
                }
                Err(fault) => faults.add(&fault),
            }
        }
        anyhow::ensure!(faults.is_empty(), "{}", faults.text());
        anyhow::ensure!(n == 0 || n_nulls < n, self.all_null(n));
        Ok(Some(n))
    }

    /// What is wrong with rows that all lack a text, as with a name that no row has.
    pub fn all_null(&self, n: u64) -> String {
        format!(
            "{}: expected texts in `{}`, found none in all {n} rows; --field NAME names another",
            self.name(),
            self.fields.text
        )
    }

    /// The rows in order. The memory of a row is reserved until the next row is read.
    pub fn rows(&self) -> Rows<'_> {
        match &self.from {
            Source::CommandLine(texts) if self.chunks => {
                Box::new([Ok(Row::new(1, texts.clone(), None))].into_iter())
            }
            Source::CommandLine(texts) => {
                let row =
                    |(text, number): (&String, u64)| Ok(Row::new(number, vec![text.clone()], None));
                Box::new(texts.iter().zip(1..).map(row))
            }
            Source::Files(files) => {
                let open = |index| self.of_file(index, &files[index]);
                Box::new(Chain::new(files, &self.fields.id, open))
            }
            Source::Stdin => Box::new(self.plain(0, io::stdin())),
            Source::JsonStdin => Box::new(self.json(0, io::stdin())),
        }
    }

    /// The rows of the file with this index.
    fn of_file(&self, index: usize, file: &TextFile) -> anyhow::Result<Rows<'_>> {
        let name = || file.path.display().to_string();
        Ok(match file.kind {
            Kind::Lines => Box::new(self.plain(index, file.open()?)),
            Kind::Json => Box::new(self.json(index, file.open()?)),
            Kind::Csv(separator) => {
                let meter = Meter::new(&self.budget, 4, name);
                let rows =
                    csv::rows(file.open()?, separator, &self.fields, meter).with_context(name)?;
                Box::new(rows.map(move |(number, row)| self.named(index, number, row)))
            }
            Kind::Parquet => {
                let rows = parquet::read::rows(&file.path, &self.fields, &self.budget);
                let (rows, lost) = rows.with_context(name)?;
                if let Some(why) = lost {
                    self.note(format!("{}: ids are not kept: {why}", name()));
                }
                Box::new(rows.map(move |(number, row)| self.named(index, number, row)))
            }
        })
    }

    /// Puts a row, or its fault, into the file with this index.
    fn named(&self, file: usize, number: u64, row: anyhow::Result<Row>) -> anyhow::Result<Row> {
        let place = Place { file, number };
        let mut row = row.with_context(|| self.place(place))?;
        if self.fields.id_is_text() {
            row.id = Some(
                row.texts
                    .first()
                    .map_or(Value::Null, |text| text.as_str().into()),
            );
        }
        Ok(Row { place, ..row })
    }

    /// Name of a file or of stdin, for the user.
    fn name_of(&self, file: usize) -> String {
        match &self.from {
            Source::Files(files) if let Some(file) = files.get(file) => {
                file.path.display().to_string()
            }
            _ => self.name(),
        }
    }

    /// Lines as texts. An empty line is an empty text.
    fn plain<'a>(
        &'a self,
        file: usize,
        from: impl Read + 'a,
    ) -> impl Iterator<Item = anyhow::Result<Row>> + 'a {
        let meter = Meter::new(&self.budget, 3, || self.name_of(file));
        lines::lines(from, meter).map(move |(number, line)| {
            let row = line.map(|line| Row {
                is_whole: line.is_whole,
                ..Row::new(number, vec![line.text], None)
            });
            self.named(file, number, row)
        })
    }

    /// Lines as JSON objects. Empty lines are skipped.
    fn json<'a>(
        &'a self,
        file: usize,
        from: impl Read + 'a,
    ) -> impl Iterator<Item = anyhow::Result<Row>> + 'a {
        // A chunk of one byte takes four bytes of the line, with quotes and comma, and in memory a
        // string of 24 bytes and its heap.
        let meter = Meter::new(&self.budget, if self.chunks { 20 } else { 4 }, || {
            self.name_of(file)
        });
        let mut parser = lines::JsonRows::new(&self.fields, self.chunks);
        lines::lines(from, meter).filter_map(move |(number, line)| {
            let row = match line {
                Ok(line) if line.text.trim().is_empty() => return None,
                Ok(line) => {
                    let had_lost = parser.lost_id().is_some();
                    let row = parser.row(number, &line.text);
                    if let (false, Some(kind)) = (had_lost, parser.lost_id()) {
                        let place = self.place(Place { file, number });
                        self.note(format!(
                            "{place}: the id is not kept: it is {kind}; make it a string, or \
                             --id \"\" for none"
                        ));
                    }
                    row
                }
                Err(e) => Err(e),
            };
            Some(self.named(file, number, row))
        })
    }
}

/// Refuses a file whose rows cannot be lists of chunks.
fn has_lists(file: &TextFile) -> anyhow::Result<()> {
    let why = match file.kind {
        Kind::Json => return Ok(()),
        Kind::Lines => "a line is no list of chunks",
        Kind::Csv(_) => "a field is no list of chunks",
        Kind::Parquet => "lists are not read from Parquet",
    };
    let path = file.path.display();
    anyhow::bail!("{path}: {why}; a row of a .jsonl file can be one")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::row::Id;

    fn texts(from: Source, chunks: bool, id: Id) -> Texts {
        Texts::new(
            from,
            Fields {
                id,
                ..Fields::text("text")
            },
            chunks,
            &Budget::unlimited(),
        )
        .unwrap()
    }

    fn read(chunks: bool, json: bool, bytes: &[u8]) -> Vec<Result<Row, String>> {
        let texts = texts(Source::Stdin, chunks, Id::None);
        let rows: Vec<_> = if json {
            texts.json(0, bytes).collect()
        } else {
            texts.plain(0, bytes).collect()
        };
        rows.into_iter()
            .map(|row| row.map_err(|e| format!("{e:#}")))
            .collect()
    }

    fn row(number: u64, texts: &[&str], is_whole: bool) -> Result<Row, String> {
        let texts = texts.iter().map(|t| (*t).to_owned()).collect();
        Ok(Row {
            is_whole,
            ..Row::new(number, texts, None)
        })
    }

    #[test]
    fn lines_are_texts() {
        let rows = read(false, false, b"\xef\xbb\xbfone\r\n\n two \n\xff\nlast");
        let bad = Err("stdin, line 4: invalid UTF-8 at byte 1".to_owned());
        assert_eq!(
            rows,
            [
                row(1, &["one"], true),
                row(2, &[""], true),
                row(3, &[" two "], true),
                bad,
                row(5, &["last"], false)
            ]
        );
        assert!(read(false, false, b"").is_empty());
    }

    /// A file that grows behind its last line, which was half written, when it was read.
    #[test]
    fn what_follows_the_end_is_not_read() {
        struct Growing<'a>(std::slice::Iter<'a, &'a [u8]>);
        impl Read for Growing<'_> {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                self.0.next().map_or(Ok(0), |part| {
                    let mut part = *part;
                    part.read(to)
                })
            }
        }
        let texts = texts(Source::Stdin, false, Id::None);
        for parts in [
            &[&b"one\ntw"[..], b"", b"o\nthree\n"],
            &[b"one\n", b"tw", b""],
        ] {
            let rows = texts.plain(0, Growing(parts.iter()));
            let rows: Vec<_> = rows.map(|row| Ok(row.unwrap())).collect();
            assert_eq!(rows, [row(1, &["one"], true), row(2, &["tw"], false)]);
        }
        for (parts, is_whole) in [
            (&[&b"text\na\nb"[..], b"", b"c\nd\n"][..], [true, false]),
            (&[b"text\na\n\"b\"\n"], [true, true]),
        ] {
            let meter = Meter::new(&texts.budget, 4, String::new);
            let rows = csv::rows(Growing(parts.iter()), b',', &texts.fields, meter).unwrap();
            let rows: Vec<bool> = rows.map(|(_, row)| row.unwrap().is_whole).collect();
            assert_eq!(rows, is_whole);
        }
    }

    #[test]
    fn json_lines_are_named_where_they_are_wrong() {
        let rows = read(
            false,
            true,
            b"{\"text\": \"a\", \"id\": 1}\n\n{\"id\": 2, \"body\": \"b\"}\n{\"text\": 3}\n{\n[]\n{\"text\": [\"a\"]}",
        );
        let said: Vec<&str> = rows
            .iter()
            .filter_map(|r| r.as_ref().err())
            .map(String::as_str)
            .collect();
        assert_eq!(rows[0], row(1, &["a"], true));
        assert_eq!(
            said,
            [
                "stdin, line 3: it has no field `text`, it has id, body; --field NAME names another",
                "stdin, line 4: expected `text` to be a string, found a number",
                "stdin, line 5: invalid JSON: EOF while parsing an object at column 1",
                "stdin, line 6: expected an object, found a list",
                "stdin, line 7: expected `text` to be a string, found a list; --chunks takes lists",
            ]
        );
        let chunks = read(
            true,
            true,
            b"{\"text\": [\"a\", \"\"]}\n{\"text\": \"a\"}\n{\"text\": []}\n{\"text\": [1]}",
        );
        assert_eq!(chunks[0], row(1, &["a", ""], true));
        let said: Vec<&str> = chunks
            .iter()
            .filter_map(|r| r.as_ref().err())
            .map(String::as_str)
            .collect();
        assert_eq!(
            said,
            [
                "stdin, line 2: expected `text` to be a list of strings, found a string",
                "stdin, line 3: expected `text` to have items, found an empty list",
                "stdin, line 4: expected `text` to be a list of strings, found another item in it",
            ]
        );
    }

    #[test]
    fn ids_of_json_lines_are_kept_where_the_first_has_one() {
        let ids = |id: Id, bytes: &[u8]| -> Vec<Result<Option<Value>, String>> {
            let texts = texts(Source::JsonStdin, false, id);
            texts
                .json(0, bytes)
                .map(|row| row.map(|row| row.id).map_err(|e| format!("{e:#}")))
                .collect()
        };
        let lines = b"{\"id\": 7, \"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\", \"id\": \"x\"}\n{\"id\": {}, \"text\": \"\"}";
        let (seven, x) = (Some(Value::from(7)), Some(Value::from("x")));
        assert_eq!(
            ids(Id::IfAny, lines),
            [
                Ok(seven.clone()),
                Ok(Some(Value::Null)),
                Ok(x.clone()),
                Ok(Some(Value::Null))
            ]
        );
        assert_eq!(
            ids(
                Id::IfAny,
                b"{\"text\": \"a\"}\n{\"id\": 7, \"text\": \"a\"}"
            ),
            [Ok(None), Ok(None)]
        );
        assert_eq!(
            ids(Id::None, lines),
            [Ok(None), Ok(None), Ok(None), Ok(None)]
        );
        // Numbers keep their digits: others are refused.
        for (number, kept) in [
            ("18446744073709551615", Some("18446744073709551615")),
            ("-9223372036854775808", Some("-9223372036854775808")),
            ("1.0", Some("1.0")),
            ("0.25", Some("0.25")),
            ("18446744073709551616", None),
            ("-9223372036854775809", None),
            ("12345678901234567890123", None),
        ] {
            let line = format!("{{\"id\": {number}, \"text\": \"a\"}}");
            match &ids(Id::IfAny, line.as_bytes())[0] {
                Ok(id) => assert_eq!(id.as_ref().unwrap().to_string(), kept.unwrap()),
                Err(said) => {
                    assert!(
                        kept.is_none() && said.contains("write it in quotes"),
                        "{said}"
                    )
                }
            }
        }
        let named = ids(Id::Named("id".into()), lines);
        assert_eq!((&named[0], &named[2]), (&Ok(seven), &Ok(x)));
        assert_eq!(
            named[1],
            Err("stdin, line 2: it has no field `id`, it has text; --id NAME names another".into())
        );
        assert_eq!(
            named[3],
            Err("stdin, line 4: expected `id` to be a string or a number, found an object".into())
        );
    }

    #[test]
    fn long_names_are_cut_in_errors() {
        let line = format!("{{\"{}\": 1}}\n", "\u{e9}".repeat(100_000));
        let said = read(false, true, line.as_bytes()).remove(0).unwrap_err();
        assert!(said.len() < 300 && said.contains("\u{e9}..;"), "{said}");
    }

    #[test]
    fn ids_that_are_lists_are_said_and_names_are_there_once() {
        let lines = b"{\"id\": 1, \"text\": \"a\"}\n{\"id\": [2], \"text\": \"b\"}\n{\"id\": {}, \"text\": \"c\"}";
        let source = texts(Source::JsonStdin, false, Id::IfAny);
        let rows: Vec<Row> = source.json(0, &lines[..]).map(Result::unwrap).collect();
        assert_eq!((rows.len(), &rows[1].id), (3, &Some(Value::Null)));
        let said = "stdin, line 2: the id is not kept: it is a list; make it a string, or --id \"\" for none";
        assert_eq!(source.new_notes(), [said]);
        for line in [
            "{\"text\": \"a\", \"id\": 1, \"text\": \"b\"}",
            "{\"id\": 1, \"text\": \"a\", \"id\": 1}",
        ] {
            let said = read(false, true, line.as_bytes()).remove(0);
            let is_id = line.starts_with("{\"id");
            let fields = texts(Source::JsonStdin, false, Id::IfAny);
            let with_ids = fields.json(0, line.as_bytes()).next().unwrap();
            let error = format!("{:#}", with_ids.unwrap_err());
            assert!(error.contains("several times"), "{error}");
            // Without ids, their key is no field.
            assert_eq!(said.is_ok(), is_id, "{said:?}");
        }
        let text = "text,id,text\n".as_bytes();
        let meter = Meter::new(&source.budget, 4, String::new);
        let error = csv::rows(text, b',', &source.fields, meter).err().unwrap();
        assert_eq!(
            error.to_string(),
            "it has column `text` several times; give each another name"
        );
    }

    /// An id that is the text is kept.
    #[test]
    fn the_text_can_be_the_id() {
        let source = texts(Source::JsonStdin, false, Id::Named("text".into()));
        let rows = source.json(0, &b"{\"text\": \"a\"}\n{\"text\": \"b\", \"id\": 7}"[..]);
        let ids: Vec<Option<Value>> = rows.map(|row| row.unwrap().id).collect();
        assert_eq!(ids, [Some("a".into()), Some("b".into())]);
        let fields = Fields {
            id: Id::Named("text".into()),
            ..Fields::text("text")
        };
        let error = Texts::new(Source::JsonStdin, fields, true, &Budget::unlimited()).unwrap_err();
        assert!(error.to_string().contains("name another field"), "{error}");
    }

    /// Issue 30, 3.5: what a line takes is reserved, and a value that nobody asked for takes
    /// nothing.
    #[test]
    fn a_long_line_counts_against_the_budget() {
        let line = |n: usize| [b"{\"text\": \"".as_slice(), &vec![b'a'; n], b"\"}\n"].concat();
        let read = |limit: usize, bytes: Vec<u8>| {
            let budget = Budget::new(limit);
            let texts = Texts::new(Source::Stdin, Fields::text("text"), false, &budget).unwrap();
            let rows: Vec<_> = texts.json(0, &bytes[..]).collect();
            assert_eq!(budget.used_bytes(), 0, "all is given back");
            rows
        };
        let rows = read(2_000_000, line(1_000_000));
        let error = rows[0].as_ref().unwrap_err();
        assert!(
            error.chain().any(|cause| cause.is::<OverBudget>()),
            "{error:#}"
        );
        assert!(
            format!("{error:#}").contains("stdin, line 1: a row of stdin needs"),
            "{error:#}"
        );
        // Rows one after the other take what the longest takes.
        let many = line(100_000).repeat(50);
        assert!(read(2_000_000, many).iter().all(Result::is_ok));
        let numbers = format!(
            "{{\"other\": [{}0], \"text\": \"a\"}}",
            "0,".repeat(200_000)
        );
        assert!(read(3_000_000, numbers.into_bytes())[0].is_ok());
    }
}

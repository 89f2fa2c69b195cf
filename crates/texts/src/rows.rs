//! Reads the texts to embed, one row at a time: from the command line, from lines, JSON lines, CSV
//! or Parquet.
//!
//! Whatever a file claims about itself, a row has at most
//! [`MAX_ROW_BYTES`](super::row::MAX_ROW_BYTES), and its memory is reserved from the budget.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use thane_mil::budget::{Budget, OverBudget};

use super::meter::Meter;
use super::row::{Fields, Row};
use super::{csv, lines, parquet};
use thane_mil::nearest::did_you_mean;
use thane_mil::package::open_regular;

/// Most faults that one error lists.
const MAX_FAULTS: usize = 8;

/// The rows of a source.
#[derive(Debug)]
pub struct Texts {
    from: Source,
    fields: Fields,
    /// Whether a row is a list of chunks.
    chunks: bool,
    budget: Budget,
}

/// Extensions of files of texts.
const KINDS: [&str; 6] = ["txt", "jsonl", "ndjson", "csv", "tsv", "parquet"];

/// Where rows come from.
#[derive(Debug)]
pub enum Source {
    /// The texts of the command line, or the chunks of one document.
    CommandLine(Vec<String>),
    /// A file of lines.
    Lines(PathBuf),
    /// A file of JSON lines.
    Json(PathBuf),
    /// A file of columns with a header; the byte separates columns.
    Csv(PathBuf, u8),
    /// A Parquet file.
    Parquet(PathBuf),
    /// Lines on stdin.
    Stdin,
    /// JSON lines on stdin.
    JsonStdin,
}

impl Source {
    /// The source of a file, by its extension.
    pub fn file(path: &Path) -> anyhow::Result<Self> {
        let path = path.to_owned();
        match path
            .extension()
            .and_then(|e| e.to_str())
            .map(str::to_ascii_lowercase)
            .as_deref()
        {
            Some("txt") => Ok(Self::Lines(path)),
            Some("jsonl" | "ndjson") => Ok(Self::Json(path)),
            Some("csv") => Ok(Self::Csv(path, b',')),
            Some("tsv") => Ok(Self::Csv(path, b'\t')),
            Some("parquet") => Ok(Self::Parquet(path)),
            other => anyhow::bail!(
                "{}: texts are read from .txt, .jsonl, .csv, .tsv and .parquet files{}",
                path.display(),
                did_you_mean(other.unwrap_or_default(), KINDS)
            ),
        }
    }
}

/// Rows, or why one cannot be read.
pub type Rows<'a> = Box<dyn Iterator<Item = anyhow::Result<Row>> + 'a>;

impl Texts {
    /// The rows of a source; a row is a list of chunks if `chunks`.
    pub fn new(
        from: Source,
        fields: Fields,
        chunks: bool,
        budget: &Budget,
    ) -> anyhow::Result<Self> {
        let lists = "a row of a .jsonl file can be one";
        match &from {
            Source::Lines(path) if chunks => {
                anyhow::bail!("{}: a line is no list of chunks; {lists}", path.display())
            }
            Source::Csv(path, _) if chunks => {
                anyhow::bail!("{}: a field is no list of chunks; {lists}", path.display())
            }
            Source::Parquet(path) if chunks => {
                anyhow::bail!(
                    "{}: lists are not read from Parquet; {lists}",
                    path.display()
                )
            }
            Source::CommandLine(_) | Source::Lines(_) | Source::Stdin if fields.needs_id() => {
                anyhow::bail!(
                    "--id names a field of rows, and lines have none; rows of .jsonl, .csv and .parquet do"
                )
            }
            _ => Ok(Self {
                from,
                fields,
                chunks,
                budget: budget.clone(),
            }),
        }
    }

    /// Name of the source, for the user.
    pub fn name(&self) -> String {
        match &self.from {
            Source::CommandLine(_) => "the command line".to_owned(),
            Source::Lines(path)
            | Source::Json(path)
            | Source::Csv(path, _)
            | Source::Parquet(path) => path.display().to_string(),
            Source::Stdin | Source::JsonStdin => "stdin".to_owned(),
        }
    }

    /// Name of a row, for the user.
    pub fn place(&self, number: u64) -> String {
        let what = match &self.from {
            Source::CommandLine(_) => "text",
            Source::Parquet(_) => "row",
            _ => "line",
        };
        format!("{}, {what} {number}", self.name())
    }

    /// Reads every row once and counts them; the error lists rows that cannot be read. `None` for
    /// stdin, which can only be read once.
    pub fn check(&self) -> anyhow::Result<Option<u64>> {
        if matches!(self.from, Source::Stdin | Source::JsonStdin) {
            return Ok(None);
        }
        let (mut n, mut faults) = (0, Vec::new());
        for row in self.rows()? {
            match row {
                Ok(_) => n += 1,
                Err(fault) if fault.chain().any(|cause| cause.is::<OverBudget>()) => {
                    return Err(fault);
                }
                Err(fault) => faults.push(format!("{fault:#}")),
            }
            if faults.len() == MAX_FAULTS {
                break;
            }
        }
        anyhow::ensure!(faults.is_empty(), "{}", faults.join("\n  "));
        Ok(Some(n))
    }

    /// The rows in order. The memory of a row is reserved until the next row is read.
    pub fn rows(&self) -> anyhow::Result<Rows<'_>> {
        Ok(match &self.from {
            Source::CommandLine(texts) if self.chunks => Box::new(
                [Ok(Row {
                    number: 1,
                    texts: texts.clone(),
                    id: None,
                    is_whole: true,
                })]
                .into_iter(),
            ),
            Source::CommandLine(texts) => {
                let row = |(text, number): (&String, u64)| {
                    Ok(Row {
                        number,
                        texts: vec![text.clone()],
                        id: None,
                        is_whole: true,
                    })
                };
                Box::new(texts.iter().zip(1..).map(row))
            }
            Source::Lines(path) => Box::new(self.plain(open(path)?)),
            Source::Json(path) => Box::new(self.json(open(path)?)),
            Source::Csv(path, separator) => {
                let meter = Meter::new(&self.budget, 4, || self.name());
                let rows = csv::rows(open(path)?, *separator, &self.fields, meter)
                    .with_context(|| self.name())?;
                Box::new(rows.map(|(number, row)| self.named(number, row)))
            }
            Source::Parquet(path) => {
                let rows = parquet::read::rows(path, &self.fields, &self.budget)
                    .with_context(|| self.name())?;
                Box::new(rows.map(|(number, row)| self.named(number, row)))
            }
            Source::Stdin => Box::new(self.plain(io::stdin())),
            Source::JsonStdin => Box::new(self.json(io::stdin())),
        })
    }

    fn named(&self, number: u64, row: anyhow::Result<Row>) -> anyhow::Result<Row> {
        row.with_context(|| self.place(number))
    }

    /// Lines as texts. An empty line is an empty text.
    fn plain<'a>(&'a self, from: impl Read + 'a) -> impl Iterator<Item = anyhow::Result<Row>> + 'a {
        let meter = Meter::new(&self.budget, 3, || self.name());
        lines::lines(from, meter).map(|(number, line)| {
            let row = line.map(|line| Row {
                number,
                texts: vec![line.text],
                id: None,
                is_whole: line.is_whole,
            });
            self.named(number, row)
        })
    }

    /// Lines as JSON objects. Empty lines are skipped.
    fn json<'a>(&'a self, from: impl Read + 'a) -> impl Iterator<Item = anyhow::Result<Row>> + 'a {
        // A chunk of one byte takes four bytes of the line, with quotes and comma, and in memory a
        // string of 24 bytes and its heap.
        let meter = Meter::new(&self.budget, if self.chunks { 20 } else { 4 }, || {
            self.name()
        });
        let mut parser = lines::JsonRows::new(&self.fields, self.chunks);
        lines::lines(from, meter).filter_map(move |(number, line)| {
            let row = match line {
                Ok(line) if line.text.trim().is_empty() => return None,
                Ok(line) => parser.row(number, &line.text),
                Err(e) => Err(e),
            };
            Some(self.named(number, row))
        })
    }
}

/// Opens a regular file.
fn open(path: &Path) -> anyhow::Result<BufReader<File>> {
    // A file is read twice, to find faults before anything is computed.
    let file = open_regular(path).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => anyhow::anyhow!("{e}; other sources are read from stdin"),
        _ => e.into(),
    });
    Ok(BufReader::new(
        file.with_context(|| path.display().to_string())?,
    ))
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
                text: "text".to_owned(),
                id,
            },
            chunks,
            &Budget::unlimited(),
        )
        .unwrap()
    }

    fn read(chunks: bool, json: bool, bytes: &[u8]) -> Vec<Result<Row, String>> {
        let texts = texts(Source::Stdin, chunks, Id::None);
        let rows: Vec<_> = if json {
            texts.json(bytes).collect()
        } else {
            texts.plain(bytes).collect()
        };
        rows.into_iter()
            .map(|row| row.map_err(|e| format!("{e:#}")))
            .collect()
    }

    fn row(number: u64, texts: &[&str], is_whole: bool) -> Result<Row, String> {
        Ok(Row {
            number,
            texts: texts.iter().map(|t| (*t).to_owned()).collect(),
            id: None,
            is_whole,
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
            let rows = texts.plain(Growing(parts.iter()));
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
                .json(bytes)
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

    /// Issue 30, 3.5: what a line takes is reserved, and a value that nobody asked for takes
    /// nothing.
    #[test]
    fn a_long_line_counts_against_the_budget() {
        let line = |n: usize| [b"{\"text\": \"".as_slice(), &vec![b'a'; n], b"\"}\n"].concat();
        let read = |limit: usize, bytes: Vec<u8>| {
            let budget = Budget::new(limit);
            let texts = Texts::new(Source::Stdin, Fields::text("text"), false, &budget).unwrap();
            let rows: Vec<_> = texts.json(&bytes[..]).collect();
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

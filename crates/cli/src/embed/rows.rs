//! The texts to embed: from the command line, from lines, JSON lines or Parquet, one row at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Bytes of a line at most: a text of a million tokens has a few megabytes.
const MOST_LINE_BYTES: u64 = 1 << 26;
/// Faults that are listed before the rest is left to be found.
const MOST_FAULTS: usize = 8;

/// A row: a text, or with `--chunks` the chunks of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its line or number, from 1.
    pub number: u64,
    pub texts: Vec<String>,
}

/// Where rows come from.
#[derive(Debug)]
pub struct Texts {
    from: Source,
    /// The field of JSON and Parquet rows that holds the text.
    field: String,
    /// Whether a row is a list of chunks.
    chunks: bool,
}

/// A source of rows.
#[derive(Debug)]
pub enum Source {
    /// The texts of the command line; with `--chunks` they are one document.
    CommandLine(Vec<String>),
    Lines(PathBuf),
    Json(PathBuf),
    Parquet(PathBuf),
    /// Lines on stdin.
    Stdin,
    /// JSON lines on stdin.
    JsonStdin,
}

impl Source {
    /// The kind of a file by its name.
    pub fn file(path: &Path) -> anyhow::Result<Self> {
        let path = path.to_owned();
        match path.extension().and_then(|e| e.to_str()) {
            Some("txt") => Ok(Self::Lines(path)),
            Some("jsonl" | "ndjson") => Ok(Self::Json(path)),
            Some("parquet") => Ok(Self::Parquet(path)),
            _ => anyhow::bail!("{}: texts are read from .txt, .jsonl and .parquet files", path.display()),
        }
    }
}

/// Rows, or why one cannot be read.
pub type Rows<'a> = Box<dyn Iterator<Item = anyhow::Result<Row>> + 'a>;

impl Texts {
    pub fn new(from: Source, field: String, chunks: bool) -> anyhow::Result<Self> {
        match &from {
            Source::Lines(path) if chunks => {
                anyhow::bail!("{}: a line is no list of chunks; a row of a .jsonl file can be one", path.display())
            }
            Source::Parquet(path) if chunks => {
                anyhow::bail!("{}: lists are not read from Parquet; a row of a .jsonl file can be one", path.display())
            }
            _ => Ok(Self { from, field, chunks }),
        }
    }

    /// What the user calls the source.
    pub fn name(&self) -> String {
        match &self.from {
            Source::CommandLine(_) => "the command line".to_owned(),
            Source::Lines(path) | Source::Json(path) | Source::Parquet(path) => path.display().to_string(),
            Source::Stdin | Source::JsonStdin => "stdin".to_owned(),
        }
    }

    /// What the user calls a row of it.
    pub fn place(&self, number: u64) -> String {
        let what = match &self.from {
            Source::CommandLine(_) => "text",
            Source::Parquet(_) => "row",
            _ => "line",
        };
        format!("{}, {what} {number}", self.name())
    }

    /// Read every row once and name those that cannot be read; how many there are. Nothing for stdin, which is read once.
    pub fn check(&self) -> anyhow::Result<Option<u64>> {
        if matches!(self.from, Source::Stdin | Source::JsonStdin) {
            return Ok(None);
        }
        let (mut n, mut faults) = (0, Vec::new());
        for row in self.rows()? {
            match row {
                Ok(_) => n += 1,
                Err(fault) => faults.push(format!("{fault:#}")),
            }
            if faults.len() == MOST_FAULTS {
                break;
            }
        }
        anyhow::ensure!(faults.is_empty(), "{}", faults.join("\n  "));
        Ok(Some(n))
    }

    /// The rows in order.
    pub fn rows(&self) -> anyhow::Result<Rows<'_>> {
        let open =
            |path: &Path| File::open(path).map_err(|e| anyhow::Error::new(e).context(path.display().to_string()));
        Ok(match &self.from {
            Source::CommandLine(texts) if self.chunks => {
                Box::new([Ok(Row { number: 1, texts: texts.clone() })].into_iter())
            }
            Source::CommandLine(texts) => {
                let row = |(text, number): (&String, u64)| Ok(Row { number, texts: vec![text.clone()] });
                Box::new(texts.iter().zip(1..).map(row))
            }
            Source::Lines(path) => Box::new(self.lines(BufReader::new(open(path)?), false)),
            Source::Json(path) => Box::new(self.lines(BufReader::new(open(path)?), true)),
            Source::Parquet(path) => super::parquet::rows(path, &self.field)?,
            Source::Stdin => Box::new(self.lines(io::stdin().lock(), false)),
            Source::JsonStdin => Box::new(self.lines(io::stdin().lock(), true)),
        })
    }

    fn lines<'a>(&'a self, from: impl BufRead + 'a, json: bool) -> impl Iterator<Item = anyhow::Result<Row>> + 'a {
        let lines = Lines { from, number: 0, failed: false };
        lines.filter_map(move |(number, line)| {
            let in_line = |e: anyhow::Error| e.context(self.place(number));
            let text = match line {
                Ok(text) => text,
                Err(e) => return Some(Err(in_line(e))),
            };
            // An empty line of a text file is an empty text; JSON lines may be set apart by them.
            if json && text.trim().is_empty() {
                return None;
            }
            let texts = if json { self.json(&text) } else { Ok(vec![text]) };
            Some(texts.map(|texts| Row { number, texts }).map_err(in_line))
        })
    }

    /// The texts of a JSON row.
    fn json(&self, line: &str) -> anyhow::Result<Vec<String>> {
        let row: Value = serde_json::from_str(line).map_err(|e| anyhow::anyhow!("it is no JSON: {e}"))?;
        let map = row.as_object().ok_or_else(|| anyhow::anyhow!("it is {}, an object is due", kind(&row)))?;
        let field = &self.field;
        let value = map.get(field).ok_or_else(|| {
            let fields: Vec<&str> = map.keys().take(8).map(String::as_str).collect();
            anyhow::anyhow!("it has no field `{field}`, it has {}; --field NAME names another", fields.join(", "))
        })?;
        match (value, self.chunks) {
            (Value::String(text), false) => Ok(vec![text.clone()]),
            (Value::Array(items), true) if !items.is_empty() => {
                let texts = items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>();
                texts.ok_or_else(|| anyhow::anyhow!("`{field}` holds something that is no string"))
            }
            (Value::Array(_), true) => anyhow::bail!("`{field}` is an empty list"),
            (Value::Array(_), false) => anyhow::bail!("`{field}` is a list, a string is due; --chunks takes lists"),
            (_, false) => anyhow::bail!("`{field}` is {}, a string is due", kind(value)),
            (_, true) => anyhow::bail!("`{field}` is {}, a list of strings is due", kind(value)),
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Lines with their numbers, without what ends them.
struct Lines<R> {
    from: R,
    number: u64,
    failed: bool,
}

impl<R: BufRead> Lines<R> {
    fn read(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = Vec::new();
        let n = (&mut self.from).take(MOST_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
        if n == 0 {
            return Ok(None);
        }
        if n as u64 > MOST_LINE_BYTES {
            // What is left of it is no row.
            self.failed = true;
            anyhow::bail!("it is longer than {MOST_LINE_BYTES} bytes");
        }
        if line.ends_with(b"\n") {
            line.pop();
            line.pop_if(|last| *last == b'\r');
        }
        let text = String::from_utf8(line)
            .map_err(|e| anyhow::anyhow!("it is no UTF-8 from byte {} on", e.utf8_error().valid_up_to() + 1))?;
        // Some editors begin a file with a byte order mark.
        Ok(Some(match text.strip_prefix('\u{feff}') {
            Some(rest) if self.number == 1 => rest.to_owned(),
            _ => text,
        }))
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = (u64, anyhow::Result<String>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.number += 1;
        match self.read() {
            Ok(line) => line.map(|line| (self.number, Ok(line))),
            Err(e) => {
                // A disk that fails would fail for ever.
                self.failed |= e.downcast_ref::<io::Error>().is_some();
                Some((self.number, Err(e)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: bool, json: bool, bytes: &[u8]) -> Vec<Result<Row, String>> {
        let from = if json { Source::JsonStdin } else { Source::Stdin };
        let texts = Texts::new(from, "text".to_owned(), chunks).unwrap();
        texts.lines(bytes, json).map(|row| row.map_err(|e| format!("{e:#}"))).collect()
    }

    fn row(number: u64, texts: &[&str]) -> Result<Row, String> {
        Ok(Row { number, texts: texts.iter().map(|t| (*t).to_owned()).collect() })
    }

    #[test]
    fn lines_are_texts() {
        let rows = read(false, false, b"\xef\xbb\xbfone\r\n\n two \n\xff\nlast");
        let bad = Err("stdin, line 4: it is no UTF-8 from byte 1 on".to_owned());
        assert_eq!(rows, [row(1, &["one"]), row(2, &[""]), row(3, &[" two "]), bad, row(5, &["last"])]);
        assert!(read(false, false, b"").is_empty());
    }

    #[test]
    fn json_lines_are_named_where_they_are_wrong() {
        let rows = read(
            false,
            true,
            b"{\"text\": \"a\", \"id\": 1}\n\n{\"id\": 2, \"body\": \"b\"}\n{\"text\": 3}\n{\n[]\n{\"text\": [\"a\"]}",
        );
        let said: Vec<&str> = rows.iter().filter_map(|r| r.as_ref().err()).map(String::as_str).collect();
        assert_eq!(rows[0], row(1, &["a"]));
        assert_eq!(
            said,
            [
                "stdin, line 3: it has no field `text`, it has id, body; --field NAME names another",
                "stdin, line 4: `text` is a number, a string is due",
                "stdin, line 5: it is no JSON: EOF while parsing an object at line 1 column 1",
                "stdin, line 6: it is a list, an object is due",
                "stdin, line 7: `text` is a list, a string is due; --chunks takes lists",
            ]
        );
        let chunks = read(true, true, b"{\"text\": [\"a\", \"\"]}\n{\"text\": \"a\"}\n{\"text\": []}\n{\"text\": [1]}");
        assert_eq!(chunks[0], row(1, &["a", ""]));
        let said: Vec<&str> = chunks.iter().filter_map(|r| r.as_ref().err()).map(String::as_str).collect();
        assert_eq!(
            said,
            [
                "stdin, line 2: `text` is a string, a list of strings is due",
                "stdin, line 3: `text` is an empty list",
                "stdin, line 4: `text` holds something that is no string",
            ]
        );
    }
}

//! Reads rows of CSV files. A header names the columns; quoted fields may hold separators and line
//! breaks.

use std::borrow::Cow;
use std::io::{self, Read};

use anyhow::Context;
use csv::{ByteRecord, Reader, ReaderBuilder};
use serde_json::Value;

use super::meter::{BUFFER_BYTES, Meter, Metered, too_long};
use super::row::{Fields, MAX_ROW_BYTES, Row};

/// The rows after the header, each with the number of its first line.
pub fn rows<R: Read>(
    from: R,
    separator: u8,
    fields: &Fields,
    meter: Meter,
) -> anyhow::Result<impl Iterator<Item = (u64, anyhow::Result<Row>)> + use<R>> {
    let mut from = ReaderBuilder::new()
        .has_headers(false)
        .delimiter(separator)
        .buffer_capacity(BUFFER_BYTES)
        .from_reader(Quotes::new(meter.reader(from), separator, meter.clone()));
    let mut header = ByteRecord::new();
    let read = from.read_byte_record(&mut header);
    anyhow::ensure!(!from.get_ref().is_open(), "line 1: {}", Unclosed);
    read.map_err(|e| fault(e, &meter))?;
    // `csv` keeps two copies of the header.
    meter.keep(header.as_slice().len() * 2 + header.len() * 2 * size_of::<usize>());
    let names = || header.iter().enumerate().map(column_name);
    let find = |name: &str| -> anyhow::Result<Option<usize>> {
        let mut found = names().enumerate().filter(|(_, other)| *other == name);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(Fields::twice("column", name)),
            (first, _) => Ok(first.map(|(i, _)| i)),
        }
    };
    let missing = |field: &str, flag: &str| {
        let first: Vec<String> = names().take(8).map(Cow::into_owned).collect();
        let error = Fields::missing("column", field, flag, &first);
        match first.as_slice() {
            [one] => with_separator(error, one),
            _ => error,
        }
    };
    let text = match find(&fields.text)? {
        Some(text) => text,
        // An empty file has no header and no rows.
        None if header.is_empty() => 0,
        None => return Err(missing(&fields.text, "--field")),
    };
    // If lines end with \r\n, the \n counts as part of the next row.
    let header_lines = 2 + header
        .as_slice()
        .iter()
        .filter(|byte| **byte == b'\n')
        .count() as u64;
    let shift = header_lines.saturating_sub(from.position().line());
    let id = match fields.id_name() {
        Some(name) => match find(name)? {
            None if fields.needs_id() => return Err(missing(name, "--id")),
            found => found,
        },
        None => None,
    };
    Ok(Rows {
        from,
        meter,
        record: ByteRecord::new(),
        text,
        id,
        takes_null: fields.takes_null,
        shift,
        failed: false,
    })
}

/// Adds a hint to the error of a header with one column that holds another separator.
fn with_separator(error: anyhow::Error, header: &str) -> anyhow::Error {
    match [";", "\t", "|", ","]
        .into_iter()
        .find(|s| header.contains(s))
    {
        Some("\t") => anyhow::anyhow!("{error}; --separator tab splits it"),
        Some(separator) => anyhow::anyhow!("{error}; --separator '{separator}' splits it"),
        None => error,
    }
}

/// The name of a column, without the byte order mark that spreadsheets put first.
fn column_name((i, name): (usize, &[u8])) -> Cow<'_, str> {
    let name = if i == 0 {
        name.strip_prefix(b"\xef\xbb\xbf").unwrap_or(name)
    } else {
        name
    };
    match String::from_utf8_lossy(name) {
        Cow::Borrowed(name) => Cow::Borrowed(name.trim()),
        Cow::Owned(name) => Cow::Owned(name.trim().to_owned()),
    }
}

struct Rows<R: Read> {
    from: Reader<Quotes<Metered<R>>>,
    meter: Meter,
    record: ByteRecord,
    /// Columns of text and id.
    text: usize,
    id: Option<usize>,
    /// Whether a row with an empty text has none.
    takes_null: bool,
    /// Difference between the first line of a row and the line that `csv` counts.
    shift: u64,
    failed: bool,
}

impl<R: Read> Rows<R> {
    fn read(&mut self) -> anyhow::Result<Option<Row>> {
        let read = self.from.read_byte_record(&mut self.record);
        // The rest of the file is in this row, whatever the number of its fields.
        if self.from.get_ref().is_open() {
            return Err(Unclosed.into());
        }
        if !read.map_err(|e| fault(e, &self.meter))? {
            return Ok(None);
        }
        if self.record.as_slice().len() as u64 > MAX_ROW_BYTES {
            return Err(too_long());
        }
        let field = |i: usize| -> anyhow::Result<String> {
            let bytes = self.record.get(i).unwrap_or_default();
            let text = std::str::from_utf8(bytes)
                .with_context(|| format!("column {} is no UTF-8", i + 1))?;
            Ok(text.to_owned())
        };
        let id = self.id.map(field).transpose()?.map(Value::String);
        let text = field(self.text)?;
        let texts = match self.takes_null && text.is_empty() {
            true => Vec::new(),
            false => vec![text],
        };
        Ok(Some(Row {
            // A line break ends a row before the end of the file is seen.
            is_whole: !self.from.get_ref().ended,
            ..Row::new(self.line(), texts, id)
        }))
    }

    /// First line of the row.
    fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line) + self.shift
    }
}

impl<R: Read> Iterator for Rows<R> {
    type Item = (u64, anyhow::Result<Row>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.meter.next_row();
        let begins = self.from.position().line() + self.shift;
        match self.read() {
            Ok(row) => row.map(|row| (row.place.number, Ok(row))),
            Err(e) => {
                // Reading continues after a row with a wrong number of fields, but not after other
                // errors.
                let goes_on =
                    e.is::<Uneven>() || e.chain().any(|cause| cause.is::<std::str::Utf8Error>());
                self.failed = !goes_on;
                let number = match goes_on || e.is::<Unclosed>() {
                    true => self.line(),
                    false => begins,
                };
                if e.is::<Uneven>() {
                    // It may have had any number of fields, for which the record keeps room.
                    self.record = ByteRecord::new();
                }
                Some((number, Err(e)))
            }
        }
    }
}

/// A row with another number of fields than the header.
#[derive(Debug, thiserror::Error)]
#[error(
    "it has {found} fields, the header has {expected}; a field with separators or line breaks needs quotes"
)]
struct Uneven {
    expected: u64,
    found: u64,
}

/// The file ends in a quoted field. `csv` takes the rest of the file for that field.
#[derive(Debug, thiserror::Error)]
#[error(
    "a quoted field that begins in this row is not closed: the file ends in it; write a quote in a field as \"\""
)]
struct Unclosed;

/// Detects that the file ends in a quoted field, which `csv` does not report.
///
/// Reserves memory for the end of each field, of which one byte of the file may be enough.
struct Quotes<R> {
    from: R,
    meter: Meter,
    separator: u8,
    at: Place,
    /// Bytes of a byte order mark that may still follow.
    mark: &'static [u8],
    /// Whether the file ended. What is written behind its first end is not read.
    ended: bool,
}

/// Bytes for the end of a field: those of a list that doubles, and those of the copies of a header.
const FIELD_BYTES: usize = 4 * size_of::<usize>();

/// State of the parser before the next byte, by the rules of `csv`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    FieldStart,
    Field,
    Quoted,
    /// After a quote in a quoted field, which ends the field or is an escaped quote.
    Quote,
}

impl<R> Quotes<R> {
    fn new(from: R, separator: u8, meter: Meter) -> Self {
        Self {
            from,
            meter,
            separator,
            at: Place::FieldStart,
            mark: b"\xef\xbb\xbf",
            ended: false,
        }
    }

    /// Whether the file ended in a quoted field.
    fn is_open(&self) -> bool {
        self.ended && self.at == Place::Quoted
    }

    fn pass(&mut self, byte: u8) {
        if let [first, rest @ ..] = self.mark {
            self.mark = if byte == *first { rest } else { &[] };
            if byte == *first {
                return;
            }
        }
        let ends = byte == self.separator || byte == b'\n' || byte == b'\r';
        self.at = match self.at {
            Place::FieldStart | Place::Quote if byte == b'"' => Place::Quoted,
            Place::Quoted if byte == b'"' => Place::Quote,
            Place::Quoted => Place::Quoted,
            _ if ends => Place::FieldStart,
            _ => Place::Field,
        };
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let n = self.from.read(buf)?;
        buf[..n].iter().for_each(|byte| self.pass(*byte));
        let separators = buf[..n].iter().filter(|byte| **byte == self.separator);
        self.meter.hold(separators.count() * FIELD_BYTES)?;
        self.ended = n == 0;
        Ok(n)
    }
}

fn fault(error: csv::Error, meter: &Meter) -> anyhow::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(e) => meter.fault(e),
        csv::ErrorKind::UnequalLengths {
            expected_len: expected,
            len: found,
            ..
        } => Uneven { expected, found }.into(),
        other => io::Error::new(io::ErrorKind::InvalidData, format!("{other:?}")).into(),
    }
}

#[cfg(test)]
mod tests {
    use thane_mil::budget::{Budget, OverBudget};

    use super::*;
    use crate::row::Id;

    /// The line, text and id of a row, or what is said of it.
    type Read = Result<(u64, String, Option<Value>), String>;

    fn read(bytes: &[u8], text: &str, id: Id) -> Vec<Read> {
        let fields = Fields {
            id,
            ..Fields::text(text)
        };
        let meter = Meter::new(&Budget::unlimited(), 4, || "x.csv".into());
        match rows(bytes, b',', &fields, meter) {
            Ok(rows) => rows
                .map(|(number, row)| match row {
                    Ok(mut row) => Ok((row.place.number, row.texts.remove(0), row.id)),
                    Err(e) => Err(format!("{number}: {e:#}")),
                })
                .collect(),
            Err(e) => vec![Err(format!("{e:#}"))],
        }
    }

    #[test]
    fn quoted_fields_hold_separators_quotes_and_line_breaks() {
        let bytes = b"\xef\xbb\xbfid,text\r\n7,\"a, b\r\nc \"\"d\"\"\"\r\n007,\"\"\r\n,plain\r\n";
        let row =
            |line: u64, text: &str, id: &str| Ok((line, text.to_owned(), Some(Value::from(id))));
        let expected = [
            row(2, "a, b\r\nc \"d\"", "7"),
            row(4, "", "007"),
            row(5, "plain", ""),
        ];
        assert_eq!(read(bytes, "text", Id::IfAny), expected);
        let none = read(bytes, "id", Id::IfAny);
        assert_eq!(
            none[0],
            Ok((2, "7".into(), None)),
            "the text's own column is no id"
        );
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        let uneven = "3: it has 1 fields, the header has 2; a field with separators or line breaks needs quotes";
        let bytes = b"text,n\na,1\nb\n\xff,2\nc,3\n";
        let rows = read(bytes, "text", Id::IfAny);
        assert_eq!(rows[1], Err(uneven.into()));
        assert!(
            rows[2]
                .as_ref()
                .unwrap_err()
                .starts_with("4: column 1 is no UTF-8"),
            "{:?}",
            rows[2]
        );
        assert_eq!(rows[3], Ok((5, "c".into(), None)));
        let missing = "it has no column `body`, it has text, n; --field NAME names another";
        assert_eq!(read(bytes, "body", Id::IfAny), [Err(missing.into())]);
        let missing = "it has no column `key`, it has text, n; --id NAME names another";
        assert_eq!(
            read(bytes, "text", Id::Named("key".into())),
            [Err(missing.into())]
        );
        let missing = "it has no column `text`, it has text;n; --field NAME names another";
        let hinted = format!("{missing}; --separator ';' splits it");
        assert_eq!(read(b"text;n\na;1\n", "text", Id::IfAny), [Err(hinted)]);
        assert_eq!(read(b"", "text", Id::IfAny), []);
        assert_eq!(read(b"text,n\n", "text", Id::IfAny), []);
    }

    #[test]
    fn an_open_quote_is_refused_by_its_line() {
        let unclosed = |line: u64| {
            let why = "a quoted field that begins in this row is not closed: the file ends in it";
            format!("{line}: {why}; write a quote in a field as \"\"")
        };
        let bytes = b"text,n\nfirst,1\n\"second,2\nthird,3\n";
        assert_eq!(read(bytes, "text", Id::IfAny)[1..], [Err(unclosed(3))]);
        let long = [b"text\n\"a".as_slice(), b"\nrow".repeat(40_000).as_slice()].concat();
        assert_eq!(read(&long, "text", Id::IfAny), [Err(unclosed(2))]);
        assert_eq!(
            read(b"\"text\n1\n", "text", Id::IfAny),
            [Err(format!("line {}", unclosed(1)))]
        );
        // Quotes that open nothing: in a field, and behind a byte order mark.
        assert!(read(b"text\na\"b\n", "text", Id::IfAny)[0].is_ok());
        assert!(read(b"\xef\xbb\xbf\"text\"\n\"a\"\"\"", "text", Id::IfAny)[0].is_ok());
    }

    /// A quote that nobody closes makes one field of the rest of the file.
    #[test]
    fn an_open_quote_is_bounded() {
        let bytes = [b"text\n\"".as_slice(), &vec![b'a'; 1_000_000]].concat();
        let meter = Meter::new(&Budget::new(1_000_000), 4, || "x.csv".into());
        let fields = Fields::text("text");
        let rows: Vec<_> = rows(&bytes[..], b',', &fields, meter).unwrap().collect();
        assert!(
            rows[0]
                .1
                .as_ref()
                .unwrap_err()
                .chain()
                .any(|cause| cause.is::<OverBudget>()),
            "{:?}",
            rows[0]
        );
        assert_eq!(rows.len(), 1);
    }

    /// A field may be one byte long, and the place where it ends takes more.
    #[test]
    fn many_columns_count_against_the_budget() {
        let commas = ",".repeat(100_000);
        let file = format!("text{commas}\na{commas}\n");
        let read = |limit: usize, bytes: &[u8]| -> Vec<Result<u64, bool>> {
            let budget = Budget::new(limit);
            let meter = Meter::new(&budget, 4, || "x.csv".into());
            let is_over = |e: anyhow::Error| e.chain().any(|cause| cause.is::<OverBudget>());
            match rows(bytes, b',', &Fields::text("text"), meter) {
                Ok(rows) => rows
                    .map(|(number, row)| row.map(|_| number).map_err(is_over))
                    .collect(),
                Err(e) => vec![Err(is_over(e))],
            }
        };
        assert_eq!(read(3_000_000, file.as_bytes()), [Err(true)]);
        assert_eq!(read(9_000_000, file.as_bytes()), [Ok(2)]);
        // A row with more fields than the header, too.
        let wide = format!("text\na{commas}\nb\n");
        assert_eq!(read(2_000_000, wide.as_bytes()), [Err(true)]);
        assert_eq!(read(9_000_000, wide.as_bytes()), [Err(false), Ok(3)]);
    }
}

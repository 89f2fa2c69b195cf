//! Comma-separated values as in RFC 4180: quotes around a field, and a doubled quote for a quote.

/// Why a text is not comma-separated values with the columns asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// A quoted field has no end.
    #[error("line {line}: a quoted field has no end")]
    Unclosed {
        /// Where the field begins, from 1.
        line: usize,
    },
    /// Something stands between the end of a quoted field and the next comma.
    #[error("line {line}: text after the closing quote of a field")]
    AfterQuote {
        /// Where, from 1.
        line: usize,
    },
    /// A row has more or fewer fields than the header.
    #[error("row {row} has {n_fields} fields, the header {n_columns}")]
    Width {
        /// Which row, from 1, the header not counted.
        row: usize,
        /// Its fields.
        n_fields: usize,
        /// Fields of the header.
        n_columns: usize,
    },
    /// The header lacks a column.
    #[error("no column {0:?}")]
    NoColumn(String),
    /// A column of 0 and 1 has something else.
    #[error("row {row}: expected 0 or 1, found {found:?}")]
    Flag {
        /// Which row, from 1, the header not counted.
        row: usize,
        /// What stands there.
        found: String,
    },
    /// There is no header.
    #[error("no header")]
    Empty,
}

/// The rows of a text, a header among them; lines that hold nothing are left out.
pub fn rows(text: &str) -> Result<Vec<Vec<String>>, CsvError> {
    let mut rows = Vec::new();
    let mut row = Vec::new();
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut line = 1;
    while !rest.is_empty() {
        let (field, n_lines, after) = field(rest, line)?;
        let is_blank_line =
            row.is_empty() && field.is_empty() && !after.starts_with(',') && !rest.starts_with('"');
        row.push(field);
        line += n_lines;
        if let Some(more) = after.strip_prefix(',') {
            rest = more;
            if !rest.is_empty() {
                continue;
            }
            row.push(String::new());
        } else {
            rest = after
                .strip_prefix("\r\n")
                .or_else(|| after.strip_prefix('\n'))
                .unwrap_or(after);
            line += 1;
        }
        let ended = std::mem::take(&mut row);
        if !is_blank_line {
            rows.push(ended);
        }
    }
    Ok(rows)
}

/// The field that a text begins with, the line ends in it, and what follows: nothing, a comma or
/// the end of a line.
fn field(text: &str, line: usize) -> Result<(String, usize, &str), CsvError> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', '\n']).unwrap_or(text.len());
        let end = if text[..end].ends_with('\r') && text[end..].starts_with('\n') {
            end - 1
        } else {
            end
        };
        return Ok((text[..end].to_owned(), 0, &text[end..]));
    };
    let mut value = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('"').ok_or(CsvError::Unclosed { line })?;
        value.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        let Some(more) = rest.strip_prefix('"') else {
            break;
        };
        value.push('"');
        rest = more;
    }
    let n_lines = value.matches('\n').count();
    let ends = rest.is_empty() || [",", "\n", "\r\n"].iter().any(|end| rest.starts_with(end));
    if ends {
        Ok((value, n_lines, rest))
    } else {
        Err(CsvError::AfterQuote {
            line: line + n_lines,
        })
    }
}

/// Rows under a header, each as wide as it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Read a text whose first row names the columns.
    pub fn parse(text: &str) -> Result<Self, CsvError> {
        let mut all = rows(text)?.into_iter();
        let header = all.next().ok_or(CsvError::Empty)?;
        let rows: Vec<Vec<String>> = all.collect();
        match rows
            .iter()
            .enumerate()
            .find(|(_, r)| r.len() != header.len())
        {
            Some((i, r)) => Err(CsvError::Width {
                row: i + 1,
                n_fields: r.len(),
                n_columns: header.len(),
            }),
            None => Ok(Self { header, rows }),
        }
    }

    /// The rows, without the header.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Where the column of that name is in each row.
    pub fn column(&self, name: &str) -> Result<usize, CsvError> {
        self.header
            .iter()
            .position(|h| h == name)
            .ok_or_else(|| CsvError::NoColumn(name.to_owned()))
    }

    /// The field of a row in the column of that name; empty without that column.
    pub fn text(&self, row: &[String], name: &str) -> String {
        let at = self.column(name).ok();
        at.and_then(|at| row.get(at).cloned()).unwrap_or_default()
    }

    /// Where the columns of those names are in each row.
    pub fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], CsvError> {
        let mut at = [0; N];
        for (at, name) in at.iter_mut().zip(names) {
            *at = self.column(name)?;
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        let cases: &[(&str, &[&[&str]])] = &[
            ("", &[]),
            ("\n", &[]),
            ("a", &[&["a"]]),
            ("a,b\n1,2\n", &[&["a", "b"], &["1", "2"]]),
            ("a,b\r\n1,2", &[&["a", "b"], &["1", "2"]]),
            ("a,\n,b\n", &[&["a", ""], &["", "b"]]),
            ("a,", &[&["a", ""]]),
            ("\"\"\n", &[&[""]]),
            ("\"a,b\",\"say \"\"no\"\"\"\n", &[&["a,b", "say \"no\""]]),
            ("\"a\nb\",c\n\nd,e\n", &[&["a\nb", "c"], &["d", "e"]]),
            ("\u{feff}a\n", &[&["a"]]),
        ];
        for (text, want) in cases {
            assert_eq!(&rows(text).unwrap(), want, "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(rows("a\n\"b"), Err(CsvError::Unclosed { line: 2 }));
        assert_eq!(rows("\"b\"c"), Err(CsvError::AfterQuote { line: 1 }));
        assert_eq!(Table::parse(""), Err(CsvError::Empty));
        assert_eq!(
            Table::parse("a,b\n1\n"),
            Err(CsvError::Width {
                row: 1,
                n_fields: 1,
                n_columns: 2
            })
        );
        let table = Table::parse("a,b\n1,2\n").unwrap();
        assert_eq!(table.columns(["b", "a"]), Ok([1, 0]));
        assert_eq!(table.column("c"), Err(CsvError::NoColumn("c".to_owned())));
        assert_eq!(table.rows(), [["1", "2"]]);
    }
}

//! Reads the rows of several files, one after the other, of which one is open at a time.

use super::files::TextFile;
use super::row::{Id, Row, Rows};

/// The rows of files.
pub struct Chain<'a, F> {
    files: &'a [TextFile],
    id: &'a Id,
    /// Opens the file with this index.
    open: F,
    /// Index of the next file.
    next: usize,
    /// The rows of the file before, without those that were read.
    rows: Option<Rows<'a>>,
    /// Whether rows have ids; `None` before the first row of all.
    has_ids: Option<bool>,
}

impl<'a, F: Fn(usize) -> anyhow::Result<Rows<'a>>> Chain<'a, F> {
    /// The rows of `files`, which `open` gives one by one.
    pub fn new(files: &'a [TextFile], id: &'a Id, open: F) -> Self {
        Self {
            files,
            id,
            open,
            next: 0,
            rows: None,
            has_ids: None,
        }
    }

    /// Opens the next file; `None` behind the last one.
    fn advance(&mut self) -> Option<anyhow::Result<()>> {
        let file = self.files.get(self.next)?;
        let rows = (self.open)(self.next);
        self.next += 1;
        Some(rows.and_then(|rows| self.begin(file, rows)))
    }

    fn begin(&mut self, file: &TextFile, rows: Rows<'a>) -> anyhow::Result<()> {
        let mut rows = rows.peekable();
        if let Some(Ok(first)) = rows.peek() {
            let has_ids = first.id.is_some();
            self.check_ids(has_ids, file)?;
            self.has_ids = Some(has_ids);
        }
        self.rows = Some(Box::new(rows));
        Ok(())
    }

    /// Refuses a file with ids behind one without, and the reverse: an output has ids or none.
    fn check_ids(&self, has_ids: bool, file: &TextFile) -> anyhow::Result<()> {
        let (expected, found) = match self.has_ids {
            Some(false) if has_ids => ("no ids", "some"),
            Some(true) if !has_ids => ("ids", "none"),
            _ => return Ok(()),
        };
        let name = match self.id {
            Id::Named(name) => name,
            Id::IfAny | Id::None => "id",
        };
        anyhow::bail!(
            "{}: expected {expected} in `{name}`, as in the file before, found {found}; --id \"\" \
             drops ids",
            file.path.display()
        )
    }
}

impl<'a, F: Fn(usize) -> anyhow::Result<Rows<'a>>> Iterator for Chain<'a, F> {
    type Item = anyhow::Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.as_mut().and_then(Iterator::next) {
                // Only the last line of all may be half written and still be embedded again.
                let is_last = self.next == self.files.len();
                return Some(row.map(|row| Row {
                    is_whole: row.is_whole || !is_last,
                    ..row
                }));
            }
            self.rows = None;
            if let Err(fault) = self.advance()? {
                return Some(Err(fault));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::{Path, PathBuf};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use thane_mil::budget::Budget;

    use crate::row::{Fields, Id};
    use crate::rows::{Source, Texts};

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut to = GzEncoder::new(Vec::new(), Compression::default());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    /// Files in a folder of their own.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[(&str, &[u8])]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (name, bytes) in files {
                std::fs::write(folder.path().join(name), bytes).unwrap();
            }
            Self(folder)
        }

        fn texts(&self, names: &[&str], fields: Fields, separator: Option<u8>) -> Texts {
            let names: Vec<PathBuf> = names.iter().map(|name| self.0.path().join(name)).collect();
            let source = Source::files(&names, separator).unwrap();
            Texts::new(source, fields, false, &Budget::new(1 << 20)).unwrap()
        }

        /// Place, text and id of each row, or what is said of it.
        fn read(&self, names: &[&str], fields: Fields, separator: Option<u8>) -> Vec<String> {
            let folder = format!("{}{}", self.0.path().display(), std::path::MAIN_SEPARATOR);
            let texts = self.texts(names, fields, separator);
            let row = |row: anyhow::Result<crate::row::Row>| match row {
                Ok(row) => {
                    let id = row.id.map(|id| format!(" {id}")).unwrap_or_default();
                    let half = if row.is_whole { "" } else { " half" };
                    format!("{}: {:?}{id}{half}", texts.place(row.place), row.texts)
                }
                Err(e) => format!("{e:#}"),
            };
            texts
                .rows()
                .map(row)
                .map(|said| said.replace(&folder, ""))
                .collect()
        }
    }

    fn fields(id: Id, takes_null: bool) -> Fields {
        Fields {
            id,
            takes_null,
            ..Fields::text("text")
        }
    }

    #[test]
    fn rows_of_files_are_placed_in_their_files() {
        let csv = gzip(b"text;n\nb;1\n\"c;\nd\";2\n");
        let folder = Folder::new(&[
            ("1.txt", b"half a line"),
            ("2.csv.gz", &csv),
            (
                "3.jsonl.gz",
                &[gzip(b"{\"text\": \"e\"}\n"), gzip(b"{\"text\": \"f\"}")].concat(),
            ),
            ("4.txt", b""),
            ("5.txt", b"x\ny"),
        ]);
        let names = ["1.txt", "2.csv.gz", "3.jsonl.gz", "4.txt", "5.txt"];
        let rows = folder.read(&names, fields(Id::IfAny, false), Some(b';'));
        assert_eq!(
            rows,
            [
                "1.txt, line 1: [\"half a line\"]",
                "2.csv.gz, line 2: [\"b\"]",
                "2.csv.gz, line 3: [\"c;\\nd\"]",
                "3.jsonl.gz, line 1: [\"e\"]",
                "3.jsonl.gz, line 2: [\"f\"]",
                "5.txt, line 1: [\"x\"]",
                "5.txt, line 2: [\"y\"] half",
            ]
        );
        let name = folder.texts(&names, fields(Id::IfAny, false), None).name();
        assert!(name.ends_with("1.txt and 4 more"), "{name}");
        let found = Source::files(&[Path::new("a.txt").to_owned()], Some(b';'));
        let error = found.unwrap_err().to_string();
        assert!(
            error.contains("--separator is of .csv and .tsv files"),
            "{error}"
        );
    }

    #[test]
    fn the_faults_of_all_files_are_named() {
        let whole = gzip(&b"{\"text\": \"a line of JSON\"}\n".repeat(100));
        let folder = Folder::new(&[
            ("a.jsonl", b"{\"text\": \"a\", \"id\": 1}\n"),
            ("cut.jsonl.gz", &whole[..whole.len() - 4]),
            ("damaged.txt.gz", b"no gzip at all"),
            ("none.jsonl", b"{\"text\": \"a\"}\n"),
            ("some.csv", b"id,text\n1,a\n"),
        ]);
        let names = [
            "a.jsonl",
            "cut.jsonl.gz",
            "gone.txt",
            "damaged.txt.gz",
            "none.jsonl",
        ];
        let texts = folder.texts(&names, fields(Id::None, false), None);
        let said = texts.check().unwrap_err().to_string();
        for expected in [
            "cut.jsonl.gz, line 101: the gzip data ends too early",
            "gone.txt: ",
            "damaged.txt.gz, line 1: the gzip data is damaged",
        ] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        for (names, expected) in [
            (
                ["a.jsonl", "none.jsonl"],
                "none.jsonl: expected ids in `id`, as in the file before",
            ),
            (
                ["none.jsonl", "some.csv"],
                "some.csv: expected no ids in `id`",
            ),
        ] {
            let rows = folder.read(&names, fields(Id::IfAny, false), None);
            assert_eq!(rows.len(), 2, "{rows:?}");
            assert!(rows[1].starts_with(expected), "{rows:?}");
        }
    }

    #[test]
    fn rows_without_a_text_are_faults_or_rows() {
        let folder = Folder::new(&[
            (
                "a.jsonl",
                b"{\"text\": null}\n{\"n\": 1}\n{\"text\": \"\"}\n{\"text\": 7}\n",
            ),
            ("b.csv", b"n,text\n1,\n2,b\n"),
            ("c.txt", b"\n"),
            ("d.jsonl", b"{\"n\": 1}\n{\"n\": 2}\n"),
        ]);
        let read = |takes_null| {
            let names = ["a.jsonl", "b.csv", "c.txt"];
            folder.read(&names, fields(Id::None, takes_null), None)
        };
        let seven = "a.jsonl, line 4: expected `text` to be a string, found a number";
        let faults = read(false);
        assert_eq!(
            faults,
            [
                "a.jsonl, line 1: expected `text` to be a string, found null",
                "a.jsonl, line 2: it has no field `text`, it has n; --field NAME names another",
                "a.jsonl, line 3: [\"\"]",
                seven,
                "b.csv, line 2: [\"\"]",
                "b.csv, line 3: [\"b\"]",
                "c.txt, line 1: [\"\"]",
            ]
        );
        let rows = read(true);
        assert_eq!(rows[..2], ["a.jsonl, line 1: []", "a.jsonl, line 2: []"]);
        assert_eq!(rows[2..4], faults[2..4]);
        assert_eq!(rows[4], "b.csv, line 2: []");
        assert_eq!(rows[5..], faults[5..]);
        let none = folder.texts(&["d.jsonl"], fields(Id::None, true), None);
        let said = none.check().unwrap_err().to_string();
        assert!(
            said.contains("expected texts in `text`, found none in all 2 rows"),
            "{said}"
        );
    }

    /// A line of 64 MiB in a file of some kB: what a row takes is bounded.
    #[test]
    fn a_line_that_unpacks_without_end_is_refused() {
        let packed = gzip(&vec![b'a'; 64 << 20]);
        assert!(packed.len() < 100_000);
        let folder = Folder::new(&[("bomb.txt.gz", &packed)]);
        let rows = folder.read(&["bomb.txt.gz"], fields(Id::None, false), None);
        assert_eq!(rows.len(), 1);
        assert!(
            rows[0].starts_with("bomb.txt.gz, line 1: a row of "),
            "{rows:?}"
        );
    }
}

//! A row of texts to embed, and the fields of files that it is read from.

use serde_json::Value;

/// Most bytes of a row. A text of a million tokens has a few megabytes.
pub const MAX_ROW_BYTES: u64 = 1 << 26;

/// Where a row is in its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the file, if the source has several.
    pub file: usize,
    /// Number of the row or of its line, from 1.
    pub number: u64,
}

/// A row: a text, or with `--chunks` the chunks of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub place: Place,
    /// The text, or the chunks; none if the row has null (see [`Fields::takes_null`]).
    pub texts: Vec<String>,
    /// The row's id: a string, number, boolean or null. `None` if the source has no ids.
    pub id: Option<Value>,
    /// False if the source ends in the row's line, which may be half written.
    pub is_whole: bool,
}

impl Row {
    /// A whole row of the first file.
    pub fn new(number: u64, texts: Vec<String>, id: Option<Value>) -> Self {
        Self {
            place: Place { file: 0, number },
            texts,
            id,
            is_whole: true,
        }
    }

    /// Whether the row has no text.
    pub fn is_null(&self) -> bool {
        self.texts.is_empty()
    }

    /// Bytes of the id, which whoever keeps it reserves: a file may repeat a long one for each row.
    pub fn id_bytes(&self) -> usize {
        self.id.as_ref().and_then(Value::as_str).map_or(0, str::len)
    }
}

/// Rows, or why one cannot be read.
pub type Rows<'a> = Box<dyn Iterator<Item = anyhow::Result<Row>> + 'a>;

/// The fields of a row that are read.
#[derive(Clone, Debug)]
pub struct Fields {
    /// Name of the field with the text.
    pub text: String,
    /// The field with the id.
    pub id: Id,
    /// Whether a row may lack its text: the field is null or missing, or empty in CSV, which has no
    /// null. Such a row is an error otherwise, except that an empty field of CSV is an empty text.
    pub takes_null: bool,
}

impl Fields {
    /// The text field of this name, and ids where rows have them.
    pub fn text(name: &str) -> Self {
        Self {
            text: name.to_owned(),
            id: Id::IfAny,
            takes_null: false,
        }
    }

    /// Whether the text is the id, too.
    pub fn id_is_text(&self) -> bool {
        matches!(&self.id, Id::Named(name) if *name == self.text)
    }

    /// Name of the id field, if it is not the text field.
    pub fn id_name(&self) -> Option<&str> {
        let name = match &self.id {
            Id::IfAny => "id",
            Id::Named(name) => name,
            Id::None => return None,
        };
        (name != self.text).then_some(name)
    }

    /// Whether rows must have an id.
    pub fn needs_id(&self) -> bool {
        matches!(self.id, Id::Named(_))
    }

    /// The error of a field that a row or file has several times.
    pub fn twice(what: &str, field: &str) -> anyhow::Error {
        anyhow::anyhow!("it has {what} `{field}` several times; give each another name")
    }

    /// The error of a row or file without a field of this name; lists the fields that it has.
    pub fn missing(what: &str, field: &str, flag: &str, names: &[String]) -> anyhow::Error {
        /// Characters of a name that are shown.
        const SHOWN: usize = 64;
        let shown = |name: &String| match name.char_indices().nth(SHOWN) {
            Some((at, _)) => format!("{}..", &name[..at]),
            None => name.clone(),
        };
        let names: Vec<String> = names.iter().take(8).map(shown).collect();
        if names.is_empty() {
            return anyhow::anyhow!("it has no {what} `{field}`, and no other");
        }
        anyhow::anyhow!(
            "it has no {what} `{field}`, it has {}; {flag} NAME names another",
            names.join(", ")
        )
    }
}

/// The field that has the id of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// `id`, if the first row has it.
    IfAny,
    /// The field of this name, which every row must have.
    Named(String),
    /// No field.
    None,
}

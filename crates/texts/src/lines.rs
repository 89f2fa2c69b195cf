//! Reads lines, and rows that are a JSON object per line. Only the fields that are needed are kept;
//! other values are skipped.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use thane_mil::budget::OverBudget;

use super::meter::{BUFFER_BYTES, Meter, Metered, too_long};
use super::row::{Fields, Id, MAX_ROW_BYTES, Row};

/// Lines with their numbers from 1.
pub fn lines<R: Read>(from: R, meter: Meter) -> impl Iterator<Item = (u64, anyhow::Result<Line>)> {
    let from = BufReader::with_capacity(BUFFER_BYTES, meter.reader(from));
    Lines {
        from,
        meter,
        number: 0,
        ended: false,
    }
}

/// A line without its line break.
pub struct Line {
    pub text: String,
    /// Whether there was a line break.
    pub is_whole: bool,
}

struct Lines<R> {
    from: BufReader<Metered<R>>,
    meter: Meter,
    number: u64,
    ended: bool,
}

impl<R: Read> Lines<R> {
    fn read(&mut self) -> anyhow::Result<Option<Line>> {
        let mut line = Vec::new();
        let read = (&mut self.from)
            .take(MAX_ROW_BYTES + 1)
            .read_until(b'\n', &mut line);
        let n = read.map_err(|e| self.meter.fault(e))?;
        // A file may grow while it is read. What is behind its first end is not read, because it
        // may be the rest of a line whose first half was taken for a line.
        let is_whole = line.ends_with(b"\n");
        self.ended = !is_whole;
        if n == 0 {
            return Ok(None);
        }
        if n as u64 > MAX_ROW_BYTES {
            // The rest of the line is no row.
            self.ended = true;
            return Err(too_long());
        }
        if is_whole {
            line.pop();
            line.pop_if(|last| *last == b'\r');
        }
        let text = String::from_utf8(line).map_err(|e| {
            anyhow::anyhow!("invalid UTF-8 at byte {}", e.utf8_error().valid_up_to() + 1)
        })?;
        // Some editors put a byte order mark first.
        let text = match text.strip_prefix('\u{feff}') {
            Some(rest) if self.number == 1 => rest.to_owned(),
            _ => text,
        };
        Ok(Some(Line { text, is_whole }))
    }
}

impl<R: Read> Iterator for Lines<R> {
    type Item = (u64, anyhow::Result<Line>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        self.meter.next_row();
        self.number += 1;
        match self.read() {
            Ok(line) => line.map(|line| (self.number, Ok(line))),
            Err(e) => {
                // Errors of disk and memory would occur again.
                self.ended |= e
                    .chain()
                    .any(|cause| cause.is::<io::Error>() || cause.is::<OverBudget>());
                Some((self.number, Err(e)))
            }
        }
    }
}

/// Parses lines as rows.
pub struct JsonRows<'a> {
    fields: &'a Fields,
    chunks: bool,
    /// Whether rows have ids; `None` until the first row, which decides if no flag does.
    has_ids: Option<bool>,
    /// What the first id is that is none, which is not kept.
    lost: Option<&'static str>,
}

impl<'a> JsonRows<'a> {
    pub fn new(fields: &'a Fields, chunks: bool) -> Self {
        let has_ids = match fields.id {
            Id::IfAny => None,
            Id::Named(_) => Some(true),
            Id::None => Some(false),
        };
        Self {
            fields,
            chunks,
            has_ids,
            lost: None,
        }
    }

    /// What the first id was that is neither a string nor a number, if there was one: `a list`.
    pub fn lost_id(&self) -> Option<&'static str> {
        self.lost
    }

    pub fn row(&mut self, number: u64, line: &str) -> anyhow::Result<Row> {
        let object = self.object(line)?;
        if let Some(name) = &object.twice {
            return Err(Fields::twice("field", name));
        }
        let field = &self.fields.text;
        let text = match object.text {
            None if self.fields.takes_null => Seen::Scalar(Value::Null),
            text => {
                text.ok_or_else(|| Fields::missing("field", field, "--field", &object.names))?
            }
        };
        let texts = match (text, self.chunks) {
            (Seen::Scalar(Value::Null), _) if self.fields.takes_null => Vec::new(),
            (Seen::Scalar(Value::String(text)), false) => vec![text],
            (Seen::List(items), true) => {
                let items = items.ok_or_else(|| {
                    anyhow::anyhow!(
                        "expected `{field}` to be a list of strings, found another item in it"
                    )
                })?;
                anyhow::ensure!(
                    !items.is_empty(),
                    "expected `{field}` to have items, found an empty list"
                );
                items
            }
            (Seen::List(_), false) => {
                anyhow::bail!(
                    "expected `{field}` to be a string, found a list; --chunks takes lists"
                )
            }
            (other, false) => {
                anyhow::bail!("expected `{field}` to be a string, found {}", other.kind())
            }
            (other, true) => {
                anyhow::bail!(
                    "expected `{field}` to be a list of strings, found {}",
                    other.kind()
                )
            }
        };
        let has_ids = *self.has_ids.get_or_insert(object.id.is_some());
        let id = match self.fields.id_name().filter(|_| has_ids) {
            Some(name) => Some(self.id(name, object.id, &object.names)?),
            None => None,
        };
        // JSON of which a part is missing is invalid, so the row is whole.
        Ok(Row::new(number, texts, id))
    }

    fn id(&mut self, name: &str, found: Option<Seen>, names: &[String]) -> anyhow::Result<Value> {
        /// 2^63: an integer beyond 64 bits becomes a float of at least that, and loses digits.
        const MOST_FLOAT: f64 = 9_223_372_036_854_775_808.0;
        match found {
            Some(Seen::Scalar(value))
                if value.is_f64() && value.as_f64().is_some_and(|v| v.abs() >= MOST_FLOAT) =>
            {
                anyhow::bail!(
                    "expected `{name}` to be a string, or a number that 64 bits hold, found about \
                     {value}; write it in quotes"
                )
            }
            Some(Seen::Scalar(value)) => Ok(value),
            None if self.fields.needs_id() => Err(Fields::missing("field", name, "--id", names)),
            Some(other) if self.fields.needs_id() => {
                anyhow::bail!(
                    "expected `{name}` to be a string or a number, found {}",
                    other.kind()
                )
            }
            Some(other) => {
                self.lost.get_or_insert(other.kind());
                Ok(Value::Null)
            }
            None => Ok(Value::Null),
        }
    }

    fn object(&self, line: &str) -> anyhow::Result<Object> {
        let no_json = |e: serde_json::Error| {
            // serde_json counts lines from this one.
            let place = format!(" at line {} column {}", e.line(), e.column());
            let what = e
                .to_string()
                .replace("expected ident", "expected a value (text needs quotes)");
            match what.strip_suffix(&place) {
                Some(what) => anyhow::anyhow!("invalid JSON: {what} at column {}", e.column()),
                None => anyhow::anyhow!("invalid JSON: {what}"),
            }
        };
        let mut from = serde_json::Deserializer::from_str(line);
        if !line.trim_start().starts_with(['{', '[', '"'])
            && serde_json::from_str::<IgnoredAny>(line).is_err()
        {
            anyhow::bail!(
                "expected an object such as {{\"{}\": \"..\"}}, found text that is not JSON",
                self.fields.text
            );
        }
        if !line.trim_start().starts_with('{') {
            let other = ValueSeed { chunks: false }
                .deserialize(&mut from)
                .map_err(no_json)?;
            from.end().map_err(no_json)?;
            anyhow::bail!("expected an object, found {}", other.kind());
        }
        let seed = ObjectSeed {
            text: &self.fields.text,
            id: self.fields.id_name(),
            chunks: self.chunks,
        };
        let object = seed.deserialize(&mut from).map_err(no_json)?;
        from.end().map_err(no_json)?;
        Ok(object)
    }
}

/// The needed fields of an object.
#[derive(Default)]
struct Object {
    text: Option<Seen>,
    id: Option<Seen>,
    /// Names of the first fields, for an error.
    names: Vec<String>,
    /// A needed field that is there more than once.
    twice: Option<String>,
}

/// A value, as far as it is needed.
enum Seen {
    /// A value that is no list or object.
    Scalar(Value),
    /// The strings of a list, if they are needed and it has no other items.
    List(Option<Vec<String>>),
    Object,
}

impl Seen {
    fn kind(&self) -> &'static str {
        match self {
            Self::Scalar(Value::Null) => "null",
            Self::Scalar(Value::Bool(_)) => "a truth value",
            Self::Scalar(Value::Number(_)) => "a number",
            Self::Scalar(_) => "a string",
            Self::List(_) => "a list",
            Self::Object => "an object",
        }
    }
}

struct ObjectSeed<'a> {
    text: &'a str,
    id: Option<&'a str>,
    chunks: bool,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Object, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = Object::default();
        while let Some(name) = map.next_key::<String>()? {
            let is_twice = match () {
                () if name == self.text => object.text.is_some(),
                () if Some(name.as_str()) == self.id => object.id.is_some(),
                () => false,
            };
            if is_twice {
                object.twice = Some(name.clone());
            }
            if name == self.text {
                object.text = Some(map.next_value_seed(ValueSeed {
                    chunks: self.chunks,
                })?);
            } else if Some(name.as_str()) == self.id {
                object.id = Some(map.next_value_seed(ValueSeed { chunks: false })?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            if object.names.len() < 8 {
                object.names.push(name);
            }
        }
        Ok(object)
    }
}

struct ValueSeed {
    /// Whether the strings of a list are needed.
    chunks: bool,
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Seen;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Seen, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = Seen;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Seen, E> {
        Ok(Seen::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Seen, E> {
        Ok(Seen::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Seen, E> {
        Ok(Seen::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Seen, E> {
        Ok(Seen::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Seen, E> {
        Ok(Seen::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Seen, E> {
        Ok(Seen::Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Seen, A::Error> {
        let (mut strings, mut is_pure) = (Vec::new(), self.chunks);
        while is_pure && let Some(item) = items.next_element_seed(Self { chunks: false })? {
            match item {
                Seen::Scalar(Value::String(text)) => strings.push(text),
                _ => is_pure = false,
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Seen::List(is_pure.then_some(strings)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Seen, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Seen::Object)
    }
}

//! Reads the body of a request and takes its fields one by one. What no route takes is refused by
//! name, because it could change the answer.

use std::fmt::Display;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thane_mil::budget::{Budget, Reservation};

use crate::error::ApiError;
use crate::log::{current_budget, hold, note_arrival};

/// The fields of a request that no one has taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    rest: Map<String, Value>,
    /// What is before the names of fields in errors, such as `options.`.
    prefix: String,
}

impl Fields {
    /// Reads a JSON object of at most so many bytes, which must be there within a time. Its memory
    /// counts before it is parsed, which may take a hundred times its bytes, and until the request
    /// has its answer.
    pub async fn read(body: Body, limits: (usize, Duration)) -> Result<Self, ApiError> {
        let too_large = || {
            let message = format!("expected a body of at most {} bytes, found more", limits.0);
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let (bytes, mut held) = collect(body, limits, &current_budget(), too_large).await?;
        let most = most_memory_of(&bytes);
        held.grow(most, || "the fields of a body".to_owned())?;
        let fields = Self::parse(&bytes)?;
        let of_fields = fields
            .rest
            .iter()
            .map(|(name, value)| name.len() + memory_of(value));
        held.shrink(bytes.len() + most.saturating_sub(of_fields.sum()));
        hold(held);
        Ok(fields)
    }

    /// Fields of an object, whose names errors show behind `prefix`.
    pub fn new(rest: Map<String, Value>, prefix: String) -> Self {
        Self { rest, prefix }
    }

    fn parse(body: &Bytes) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(rest)) => Ok(Self {
                rest,
                prefix: String::new(),
            }),
            Ok(other) => Err(ApiError::invalid(format!(
                "expected a JSON object, found {}",
                kind(&other)
            ))),
            Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
        }
    }

    /// Takes a field; `None` if it is missing or null.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.rest.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value).map(Some).map_err(|e| {
                let name = self.full(name);
                ApiError::field(&name, format!("`{name}`: {e}"))
            }),
        }
    }

    /// A field that may be taken later; null if it is missing.
    pub fn peek(&self, name: &str) -> &Value {
        self.rest.get(name).unwrap_or(&Value::Null)
    }

    /// Takes the fields of an object; none if the field is missing.
    pub fn nested(&mut self, name: &str) -> Result<Self, ApiError> {
        Ok(Self {
            rest: self.take(name)?.unwrap_or_default(),
            prefix: self.full(name) + ".",
        })
    }

    /// The name of a field in errors.
    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Takes a field that must be there.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let taken = self.take(name)?;
        let name = self.full(name);
        let missing = || format!("expected the field `{name}`, found none");
        taken.ok_or_else(|| ApiError::field(&name, missing()))
    }

    /// Refuses fields that are left, apart from those in `ignored`, which do not change the answer,
    /// those in `neutral` with a value beside them, and null.
    pub fn finish(mut self, ignored: &[&str], neutral: &[(&str, Value)]) -> Result<(), ApiError> {
        self.rest.retain(|name, value| {
            let is_neutral = |(n, v): &(&str, Value)| n == name && is_same(v, value);
            !(value.is_null() || ignored.contains(&name.as_str()) || neutral.iter().any(is_neutral))
        });
        let Some((name, value)) = self.rest.iter().next() else {
            return Ok(());
        };
        let taken = neutral.iter().filter(|(n, _)| n == name);
        let taken: Vec<String> = taken.map(|(_, value)| value.to_string()).collect();
        let name = self.full(name);
        let message = match &taken[..] {
            [] => format!("the field `{name}` is not supported"),
            taken => {
                let (taken, found) = (taken.join(" or "), shown(value));
                format!("`{name}`: expected {taken}, found {found}")
            }
        };
        Err(ApiError::field(name, message).with_code("unsupported_parameter"))
    }
}

/// Reads a body of at most `max_bytes`, which must be there within `time`. What has come counts
/// against `budget`, also of a body that never ends.
pub(crate) async fn collect(
    body: Body,
    (max_bytes, time): (usize, Duration),
    budget: &Budget,
    too_large: impl Fn() -> ApiError,
) -> Result<(Bytes, Reservation), ApiError> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > max_bytes {
        return Err(too_large());
    }
    // Refuses a body without room before it is sent. It takes memory as it comes, which it may not.
    budget.check(declared, a_body)?;
    let reading = read_whole(Limited::new(body, max_bytes), budget, too_large);
    let read = tokio::time::timeout(time, reading).await.map_err(|_| {
        let message = format!("expected the body within {} s", time.as_secs_f32());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    })?;
    note_arrival();
    read
}

/// Copies the pieces as they come: a piece of one byte may hold a buffer of thousands.
async fn read_whole(
    mut body: Limited<Body>,
    budget: &Budget,
    too_large: impl Fn() -> ApiError,
) -> Result<(Bytes, Reservation), ApiError> {
    let mut held = budget.reserve(0, a_body)?;
    let declared = body.size_hint().exact().unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => too_large(),
            false => ApiError::invalid("the body ended before its length"),
        })?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if bytes.len() + piece.len() > bytes.capacity() {
            let left = declared.saturating_sub(bytes.len() as u64);
            let more = piece.len().max(left.min(bytes.len() as u64) as usize);
            held.grow(more, a_body)?;
            bytes.reserve_exact(more);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes.into(), held))
}

fn a_body() -> String {
    "a body".to_owned()
}

/// Of an entry of an object: its name, its hash, and its place in the table.
const ENTRY: usize = size_of::<String>() + 3 * size_of::<usize>();
/// Lists and objects that are not empty have room for four.
const LEAST: usize = 4;

/// Bytes of memory that a value takes, or a few more.
pub(crate) fn memory_of(value: &Value) -> usize {
    let beside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.capacity(),
        Value::Array(list) => {
            let spare = (list.capacity() - list.len()) * size_of::<Value>();
            spare + list.iter().map(memory_of).sum::<usize>()
        }
        Value::Object(map) => {
            let n_entries = match map.len() {
                0 => 0,
                n => n.next_power_of_two().max(LEAST),
            };
            let spare = (n_entries - map.len()) * size_of::<Value>();
            let values = map
                .iter()
                .map(|(name, value)| name.len() + memory_of(value));
            n_entries * ENTRY + spare + values.sum::<usize>()
        }
    };
    size_of::<Value>() + beside
}

/// At least as many bytes as [`memory_of`] the value of a JSON text: its strings, and what its
/// lists and objects have room for.
pub fn most_memory_of(json: &[u8]) -> usize {
    /// The parser refuses a text that is nested deeper.
    const MOST_NESTED: usize = 128;
    let room = |bracket: u8, n_values: usize| {
        let of_value = size_of::<Value>() + if bracket == b'{' { ENTRY } else { 0 };
        n_values
            .next_power_of_two()
            .max(LEAST)
            .saturating_mul(of_value)
    };
    let mut most = size_of::<Value>();
    // Brackets that are open, and the commas in them.
    let mut open: Vec<(u8, usize)> = Vec::new();
    let (mut is_string, mut is_escaped, mut before) = (false, false, b' ');
    for byte in json {
        match byte {
            _ if is_string => {
                most += 1;
                is_string = is_escaped || *byte != b'"';
                is_escaped = *byte == b'\\' && !is_escaped;
            }
            b'"' => is_string = true,
            b'[' | b'{' if open.len() == MOST_NESTED => break,
            b'[' | b'{' => open.push((*byte, 0)),
            b',' => {
                if let Some((_, n_commas)) = open.last_mut() {
                    *n_commas += 1;
                }
            }
            b']' | b'}' => {
                let closed = open.pop().filter(|(bracket, _)| *bracket != before);
                most = most.saturating_add(closed.map_or(0, |(bracket, n)| room(bracket, n + 1)));
            }
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            before = *byte;
        }
    }
    let unclosed = open.iter().map(|(bracket, n)| room(*bracket, n + 1));
    unclosed.fold(most, usize::saturating_add)
}

/// Whether values are equal; 0 and 0.0 are.
fn is_same(a: &Value, b: &Value) -> bool {
    let numbers = a.as_f64().zip(b.as_f64());
    numbers.map_or(a == b, |(a, b)| a == b)
}

/// A value as an error shows it.
fn shown(value: &Value) -> String {
    const MAX_BYTES: usize = 64;
    match value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.len() <= MAX_BYTES => value.to_string(),
        _ => kind(value).to_owned(),
    }
}

/// The error of a field, or a part of one, that has another value than it can have.
pub(crate) fn refused(
    place: impl Display,
    expected: impl Display,
    found: impl Display,
) -> ApiError {
    let message = format!("`{place}`: expected {expected}, found {found}");
    ApiError::field(place.to_string(), message)
}

/// What a value is.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The memory of a body is reserved before it is parsed, from its text.
    #[test]
    fn a_text_tells_the_memory_of_its_values() {
        for text in [
            "1".to_owned(),
            "[]".to_owned(),
            r#"{"a":"\\\"[[,,,{\\","b":[],"[":"\u005b"}"#.to_owned(),
            format!("[{}0]", "[],".repeat(1000)),
            format!("[{}0]", " [ [ ] ] ,".repeat(1000)),
            format!("[{}0]", "[0,0,0,0,0],".repeat(1000)),
            format!("[{}0]", r#"{"a":{},"b":[{"":0}]},"#.repeat(999)),
            format!(
                "{{{}}}",
                (0..1000)
                    .map(|n| format!("\"{n}\":[0]"))
                    .collect::<Vec<_>>()
                    .join(",")
            ),
            format!("{}{}", "[".repeat(100), "]".repeat(100)),
            format!("[{}]", vec!["0"; 1025].join(",")),
            format!(r#"["{}"]"#, "text, [more] ".repeat(1000)),
        ] {
            let value = serde_json::from_str(&text).unwrap();
            let (most, found) = (most_memory_of(text.as_bytes()), memory_of(&value));
            let start: String = text.chars().take(40).collect();
            assert!(found <= most, "{start}: {found} <= {most}");
            assert!(most <= found + text.len(), "{start}: {most}, {found}");
        }
        // What is not closed may have been read before that is seen.
        let unclosed = "[0,".repeat(1 << 20);
        assert!(most_memory_of(unclosed.as_bytes()) > 128 * size_of::<Value>());
    }

    #[test]
    fn what_is_left_is_refused_by_name() {
        let check = |body: Value| {
            let mut fields = Fields::parse(&Bytes::from(body.to_string())).unwrap();
            fields.take::<String>("a").unwrap();
            let neutral = [
                ("n", json!(1)),
                ("list", json!([])),
                ("side", json!("a")),
                ("side", json!("b")),
            ];
            match fields.finish(&["user"], &neutral) {
                Ok(()) => "fine".to_owned(),
                Err(error) => error.body()["error"]["message"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            }
        };
        assert_eq!(
            check(json!({"a": "x", "user": 3, "n": 1.0, "list": [], "z": null})),
            "fine"
        );
        assert_eq!(check(json!({"side": "b"})), "fine");
        assert_eq!(check(json!({"n": 2})), "`n`: expected 1, found 2");
        assert_eq!(
            check(json!({"side": "up"})),
            "`side`: expected \"a\" or \"b\", found \"up\""
        );
        assert_eq!(
            check(json!({"side": "x".repeat(65)})),
            "`side`: expected \"a\" or \"b\", found a string"
        );
        assert_eq!(
            check(json!({"list": [1]})),
            "`list`: expected [], found a list"
        );
        assert_eq!(
            check(json!({"tools": []})),
            "the field `tools` is not supported"
        );
    }
}

//! Python's `json.dumps` as transformers provides it to templates: nothing is escaped for HTML.

use super::meter::{Error, Result};
use super::print;
use super::text::Text;
use super::value::Value;

/// Formatting options of JSON.
pub(super) struct Layout {
    /// The indentation of one level; `None` writes everything on one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

/// Appends a value as JSON.
pub(super) fn write(value: &Value, layout: &Layout, depth: usize, out: &mut Text) -> Result<()> {
    match value {
        Value::None => out.push("null", false),
        Value::Bool(true) => out.push("true", false),
        Value::Bool(false) => out.push("false", false),
        Value::Int(n) => out.push(&n.to_string(), false),
        Value::Float(x) => out.push(
            &match x {
                x if x.is_nan() => "NaN".to_owned(),
                x if x.is_infinite() => if *x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
                x => print::float(*x),
            },
            false,
        ),
        Value::Str(text) => string(text, layout.ensure_ascii, out),
        Value::List(list) => {
            let items = list.values().iter();
            write_all(items, ["[", "]"], layout, depth, out, |value, out| {
                write(value, layout, depth + 1, out)
            })
        }
        Value::Dict(dict) => {
            let mut pairs: Vec<_> = dict.pairs().iter().collect();
            if layout.sort_keys {
                pairs.sort_by(|a, b| key_text(&a.0).cmp(key_text(&b.0)));
            }
            write_all(
                pairs.into_iter(),
                ["{", "}"],
                layout,
                depth,
                out,
                |(key, value), out| {
                    match key {
                        Value::Str(text) => string(text, layout.ensure_ascii, out)?,
                        other => {
                            out.push("\"", false)?;
                            write(other, layout, depth, out)?;
                            out.push("\"", false)?;
                        }
                    }
                    out.push(&layout.key_separator, false)?;
                    write(value, layout, depth + 1, out)
                },
            )
        }
        other => Err(Error::new(format!(
            "tojson: expected a JSON value, found {}",
            other.type_name()
        ))),
    }
}

fn key_text(key: &Value) -> &str {
    match key {
        Value::Str(text) => text.as_str(),
        _ => "",
    }
}

/// Appends the items of a list or dict between brackets.
fn write_all<T>(
    items: impl ExactSizeIterator<Item = T>,
    brackets: [&str; 2],
    layout: &Layout,
    depth: usize,
    out: &mut Text,
    mut item: impl FnMut(T, &mut Text) -> Result<()>,
) -> Result<()> {
    out.push(brackets[0], false)?;
    let is_empty = items.len() == 0;
    for (idx, value) in items.enumerate() {
        if idx > 0 {
            out.push(&layout.item_separator, false)?;
        }
        line(layout, depth + 1, out)?;
        item(value, out)?;
    }
    if !is_empty {
        line(layout, depth, out)?;
    }
    out.push(brackets[1], false)
}

/// Starts a new line if there is an indentation.
fn line(layout: &Layout, depth: usize, out: &mut Text) -> Result<()> {
    let Some(indent) = &layout.indent else {
        return Ok(());
    };
    out.push("\n", false)?;
    for _ in 0..depth {
        out.push(indent, false)?;
    }
    Ok(())
}

/// Appends a JSON string.
fn string(text: &Text, ensure_ascii: bool, out: &mut Text) -> Result<()> {
    out.push("\"", false)?;
    let mut plain_from = 0;
    for (at, c) in text.as_str().char_indices() {
        let escaped = match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            c if (c as u32) < 0x20 || (ensure_ascii && c == '\u{7f}') => {
                format!("\\u{:04x}", c as u32)
            }
            c if ensure_ascii && !c.is_ascii() => c
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect(),
            _ => continue,
        };
        out.push_part(text, plain_from, at)?;
        out.push(&escaped, text.is_from_message_at(at))?;
        plain_from = at + c.len_utf8();
    }
    out.push_part(text, plain_from, text.as_str().len())?;
    out.push("\"", false)
}

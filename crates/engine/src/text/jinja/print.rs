//! Python's `str` and `repr`.

use super::cases::is_printed;
use super::meter::Result;
use super::text::Text;
use super::value::{Kind, Value};

/// Appends `str(value)`, the output of `{{ value }}`.
pub(super) fn display(value: &Value, out: &mut Text) -> Result<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Str(text) => out.push_text(text),
        other => repr(other, out),
    }
}

/// `str(value)`.
pub(super) fn text_of(value: &Value, meter: &std::rc::Rc<super::meter::Meter>) -> Result<Text> {
    let mut out = Text::new(meter);
    display(value, &mut out)?;
    Ok(out)
}

/// Appends `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut Text) -> Result<()> {
    match value {
        Value::Undefined(_) => out.push("Undefined", false),
        Value::None => out.push("None", false),
        Value::Bool(true) => out.push("True", false),
        Value::Bool(false) => out.push("False", false),
        Value::Int(n) => out.push(&n.to_string(), false),
        Value::Float(x) => out.push(&float(*x), false),
        Value::Str(text) => quoted(text, out),
        Value::List(list) => {
            let (open, close) = match list.kind {
                Kind::List => ("[", "]"),
                Kind::Tuple | Kind::Group => ("(", ")"),
                Kind::Keys => ("dict_keys([", "])"),
                Kind::Values => ("dict_values([", "])"),
                Kind::Items => ("dict_items([", "])"),
            };
            out.push(open, false)?;
            for (idx, value) in list.values().iter().enumerate() {
                if idx > 0 {
                    out.push(", ", false)?;
                }
                repr(value, out)?;
            }
            if list.is_tuple() && list.values().len() == 1 {
                out.push(",", false)?;
            }
            out.push(close, false)
        }
        Value::Dict(dict) => {
            out.push("{", false)?;
            for (idx, (key, value)) in dict.pairs().iter().enumerate() {
                if idx > 0 {
                    out.push(", ", false)?;
                }
                repr(key, out)?;
                out.push(": ", false)?;
                repr(value, out)?;
            }
            out.push("}", false)
        }
        other => out.push(&format!("<{}>", other.type_name()), false),
    }
}

/// Appends the `repr` of a string.
fn quoted(text: &Text, out: &mut Text) -> Result<()> {
    let quote = if text.as_str().contains('\'') && !text.as_str().contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote.encode_utf8(&mut [0; 4]), false)?;
    for (at, c) in text.as_str().char_indices() {
        let is_from_message = text.is_from_message_at(at);
        match c {
            '\n' => out.push("\\n", is_from_message)?,
            '\r' => out.push("\\r", is_from_message)?,
            '\t' => out.push("\\t", is_from_message)?,
            '\\' => out.push("\\\\", is_from_message)?,
            c if c == quote => {
                out.push("\\", is_from_message)?;
                out.push(c.encode_utf8(&mut [0; 4]), is_from_message)?;
            }
            c if is_printed(c) => out.push(c.encode_utf8(&mut [0; 4]), is_from_message)?,
            c => {
                let escaped = match u32::from(c) {
                    code @ ..0x100 => format!("\\x{code:02x}"),
                    code @ ..0x10000 => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                };
                out.push(&escaped, is_from_message)?;
            }
        }
    }
    out.push(quote.encode_utf8(&mut [0; 4]), false)
}

/// Python's `repr` of a float: the shortest decimal that converts back to the same float, with an
/// exponent from 1e16 up and below 1e-4.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = x.to_string();
    if text.contains('.') {
        text
    } else {
        format!("{text}.0")
    }
}

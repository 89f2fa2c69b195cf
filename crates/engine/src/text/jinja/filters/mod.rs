//! Filters: the functions after `|`.

mod collections;
mod rounding;
mod text;

use std::borrow::Cow;
use std::rc::Rc;

use super::args::Args;
use super::interpreter::Interpreter;
use super::json::{self, Layout};
use super::many::Many;
use super::meter::{Error, Meter, Result};
use super::text::Text;
use super::value::{List, Value};
use super::{cases, lists, methods, predicates, print, strings};

/// Applies the filter `name` to a value.
pub(super) fn apply(
    interpreter: &mut Interpreter,
    name: &str,
    value: &Value,
    mut args: Args,
) -> Result<Value> {
    let meter = &Rc::clone(&interpreter.meter);
    let done = match name {
        "default" | "d" => {
            let default = args
                .take("default_value")
                .map_or_else(|| Value::text("", meter), Ok)?;
            let or_false = args.flag("boolean");
            let is_missing = matches!(value, Value::Undefined(_)) || (or_false && !value.is_true());
            if is_missing { default } else { value.clone() }
        }
        "abs" => match (value, value.as_int()) {
            (Value::Float(x), _) => Value::Float(x.abs()),
            (_, Some(n)) => Value::Int(
                n.checked_abs()
                    .ok_or_else(|| Error::new("abs: the result does not fit 64 bits"))?,
            ),
            _ => {
                return Err(Error::new(format!(
                    "abs: expected a number, found {}",
                    value.type_name()
                )));
            }
        },
        "int" | "float" => number(name, value, &mut args, meter)?,
        "round" => rounding::round(value, &mut args)?,
        "attr" => {
            let attr = args.need(name, "name")?;
            let attr = attr.as_text(name)?.as_str();
            // A key of a dict is no attribute.
            match value {
                Value::Dict(_) if !methods::has(value, attr) => Value::undefined(attr),
                _ => interpreter.attr(value, attr)?,
            }
        }
        "length" | "count" => Value::Int(lists::len(value, meter)? as i64),
        "list" => Value::list(lists::values(value, meter)?.iter().cloned(), meter)?,
        "items" if matches!(value, Value::Undefined(_)) => Value::list([], meter)?,
        "items" => methods::pairs_of(value, meter)?,
        "join" => {
            let separator = args.take("d").map_or_else(|| Value::text("", meter), Ok)?;
            let attribute = args.take("attribute");
            let mut values = lists::values(value, meter)?;
            if let Some(attribute) = attribute {
                let of = |value| attribute_by_path(interpreter, value, &attribute);
                values = Many::of(values.iter().map(of), meter)?;
            }
            strings::join(&values, &print::text_of(&separator, meter)?, meter)?
        }
        "first" | "last" | "min" | "max" | "sum" | "reverse" | "sort" | "unique" | "groupby"
        | "dictsort" | "batch" | "slice" => {
            collections::apply(interpreter, name, value, &mut args)?
        }
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            return map_or_select(interpreter, name, value, args);
        }
        "tojson" => to_json(value, &mut args, meter)?,
        _ => text::apply(name, value, &mut args, meter)?,
    };
    args.finish(name)?;
    Ok(done)
}

/// The filter `tojson`.
fn to_json(value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    // The filter of transformers, whose first parameter is another than that of Jinja's.
    let ensure_ascii = args.flag("ensure_ascii");
    let indent = match args.take("indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.as_str().to_owned()),
        Some(value) => {
            let n = value
                .as_int()
                .ok_or_else(|| Error::new("tojson: expected an integer as indent"))?;
            let n = usize::try_from(n).unwrap_or(0);
            meter.spend_bytes(n)?;
            meter.hold(n)?;
            let indent = " ".repeat(n);
            meter.release(n);
            Some(indent)
        }
    };
    let separators = args
        .take("separators")
        .filter(|value| !matches!(value, Value::None))
        .map(|value| lists::values(&value, meter))
        .transpose()?;
    let separator =
        |idx: usize, default: &str| match separators.as_ref().and_then(|list| list.get(idx)) {
            Some(value) => value.as_text("tojson").map(|text| text.as_str().to_owned()),
            None => Ok(default.to_owned()),
        };
    let layout = Layout {
        item_separator: separator(0, if indent.is_some() { "," } else { ", " })?,
        key_separator: separator(1, ": ")?,
        indent,
        ensure_ascii,
        sort_keys: args.flag("sort_keys"),
    };
    let mut out = Text::new(meter);
    json::write(value, &layout, 0, &mut out)?;
    Ok(out.into())
}

/// The filters `int` and `float`.
fn number(name: &str, value: &Value, args: &mut Args, meter: &Meter) -> Result<Value> {
    let default = args.take("default");
    let base = if name == "int" {
        args.int(name, "base")?.unwrap_or(10)
    } else {
        10
    };
    let found = match value {
        Value::Str(text) => {
            meter.spend_bytes(text.as_str().len())?;
            let text = text.as_str().trim_matches(cases::is_space).replace('_', "");
            let ascii = |c| {
                cases::decimal(c)
                    .and_then(|n| char::from_digit(n, 10))
                    .unwrap_or(c)
            };
            let text: String = text.chars().map(ascii).collect();
            let base = u32::try_from(base)
                .ok()
                .filter(|base| (2..=36).contains(base))
                .unwrap_or(10);
            let int = i64::from_str_radix(&without_prefix(&text, base), base);
            let int = int.ok().map(Value::Int);
            let float = || text.parse().ok().map(Value::Float);
            if name == "int" {
                int.or_else(float)
            } else {
                float()
            }
        }
        Value::Float(_) | Value::Int(_) | Value::Bool(_) => Some(value.clone()),
        other => {
            other.defined()?;
            None
        }
    };
    let found = found.and_then(|found| match (name, &found) {
        ("int", Value::Float(x)) => {
            (x.is_finite() && x.abs() < 9e18).then(|| Value::Int(x.trunc() as i64))
        }
        ("int", other) => other.as_int().map(Value::Int),
        (_, other) => other.as_float().map(Value::Float),
    });
    Ok(found.or(default).unwrap_or(if name == "int" {
        Value::Int(0)
    } else {
        Value::Float(0.0)
    }))
}

/// A number without the prefix of its base, such as `0x`.
fn without_prefix(text: &str, base: u32) -> Cow<'_, str> {
    let prefix = match base {
        2 => 'b',
        8 => 'o',
        16 => 'x',
        _ => return text.into(),
    };
    let digits = text.trim_start_matches(['+', '-']);
    let sign = &text[..text.len() - digits.len()];
    match digits
        .strip_prefix('0')
        .and_then(|rest| rest.strip_prefix([prefix, prefix.to_ascii_uppercase()]))
    {
        Some(rest) => format!("{sign}{rest}").into(),
        None => text.into(),
    }
}

/// An attribute of a value, given by a path such as `a.b.0`.
fn attribute_by_path(interpreter: &mut Interpreter, value: &Value, path: &Value) -> Result<Value> {
    if path.as_int().is_some() {
        return interpreter.item(value, path);
    }
    let mut value = value.clone();
    for name in path.as_text("attribute")?.as_str().split('.') {
        let key = match name.parse() {
            Ok(idx) => Value::Int(idx),
            Err(_) => Value::text(name, &interpreter.meter)?,
        };
        value = match &value {
            // A key takes precedence over a method: `map(attribute='items')` means the key.
            Value::Dict(_) | Value::List(_) | Value::Str(_) => interpreter.item(&value, &key)?,
            Value::Undefined(_) => value,
            other => interpreter.attr(other, name)?,
        };
    }
    Ok(value)
}

/// The filters `map`, `select`, `reject`, `selectattr` and `rejectattr`.
fn map_or_select(
    interpreter: &mut Interpreter,
    name: &str,
    value: &Value,
    mut args: Args,
) -> Result<Value> {
    let meter = &Rc::clone(&interpreter.meter);
    let values = lists::values(value, meter)?;
    let mut out = List::new(meter);
    if name == "map" {
        if let Some(path) = args.named("attribute") {
            let default = args
                .named("default")
                .filter(|value| !matches!(value, Value::None));
            args.finish(name)?;
            for value in values.iter() {
                let found = attribute_by_path(interpreter, value, &path)?;
                out.push(match (&found, &default) {
                    (Value::Undefined(_), Some(default)) => default.clone(),
                    _ => found,
                })?;
            }
            return Ok(out.into());
        }
        let filter = args.need(name, "filter")?;
        let filter = filter.as_text(name)?;
        for value in values.iter() {
            let args = Args {
                positional: args.positional.clone(),
                named: args.named.clone(),
            };
            meter.enter()?;
            out.push(apply(interpreter, filter.as_str(), value, args)?)?;
            meter.leave();
        }
        return Ok(out.into());
    }
    let path = name
        .ends_with("attr")
        .then(|| args.need(name, "attribute"))
        .transpose()?;
    let test = args.take("test");
    for value in values.iter() {
        let subject = match &path {
            Some(path) => attribute_by_path(interpreter, value, path)?,
            None => value.clone(),
        };
        let is = match &test {
            Some(test) => {
                let args = Args {
                    positional: args.positional.clone(),
                    named: args.named.clone(),
                };
                predicates::test(interpreter, test.as_text(name)?.as_str(), &subject, args)?
            }
            None => subject.is_true(),
        };
        if is == name.starts_with("select") {
            out.push(value.clone())?;
        }
    }
    Ok(out.into())
}

//! Filters: what stands behind `|`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::args::Args;
use super::eval::Run;
use super::json::{self, Layout};
use super::meter::{Error, Meter, Result};
use super::strings::{self, Ends};
use super::value::{List, Text, Value};
use super::{lists, methods, ops, print, tests};

const KNOWN: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

/// Whether there is a filter of this name.
pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

/// What the filter of this name makes of a value.
pub(super) fn apply(run: &mut Run, name: &str, value: &Value, mut args: Args) -> Result<Value> {
    let meter = &Rc::clone(&run.meter);
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
                    .ok_or_else(|| Error::new("the number is too large"))?,
            ),
            _ => {
                return Err(Error::new(format!(
                    "abs: expected a number, found {}",
                    value.type_name()
                )));
            }
        },
        "int" | "float" | "round" => number(name, value, &mut args, meter)?,
        "attr" => {
            let attr = args.need(name, "name")?;
            run.attr(value, attr.as_text(name)?.as_str())?
        }
        "length" | "count" => Value::Int(lists::len(value, meter)? as i64),
        "list" => Value::list(lists::values(value, meter)?, meter)?,
        "items" if matches!(value, Value::Undefined(_)) => Value::list([], meter)?,
        "items" => methods::pairs_of(value, meter)?,
        "join" => {
            let separator = args.take("d").map_or_else(|| Value::text("", meter), Ok)?;
            let attribute = args.take("attribute");
            let mut values = lists::values(value, meter)?;
            if let Some(attribute) = attribute {
                values = values
                    .iter()
                    .map(|value| by_path(run, value, &attribute))
                    .collect::<Result<_>>()?;
            }
            strings::join(&values, &print::text_of(&separator, meter)?, meter)?
        }
        "first" | "last" | "min" | "max" | "sum" | "reverse" | "sort" | "unique" | "groupby"
        | "dictsort" | "batch" | "slice" => of_list(run, name, value, &mut args)?,
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            return over_all(run, name, value, args);
        }
        "tojson" => to_json(value, &mut args, meter)?,
        _ => of_text(name, value, &mut args, meter)?,
    };
    args.finish(name)?;
    Ok(done)
}

/// Filters that make text of everything first.
fn of_text(name: &str, value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let text = Rc::new(print::text_of(value, meter)?);
    let method =
        |name: &str, args: Args| methods::call(&Value::Str(Rc::clone(&text)), name, args, meter);
    match name {
        "string" | "safe" | "pprint" => Ok(Value::Str(text)),
        "upper" | "lower" | "capitalize" => method(name, Args::default()),
        "title" => strings::title_of_words(&text),
        "trim" => match args.take("chars") {
            None | Some(Value::None) => strings::trim(&text, None, Ends::Both),
            Some(chars) => strings::trim(&text, Some(chars.as_text(name)?.as_str()), Ends::Both),
        },
        "replace" => {
            let (old, new) = (args.need(name, "old")?, args.need(name, "new")?);
            let most = args.int(name, "count")?;
            strings::replace(&text, old.as_text(name)?.as_str(), new.as_text(name)?, most)
        }
        "center" => {
            let width = args.int(name, "width")?.unwrap_or(80);
            strings::pad(&text, width, " ", |n| n / 2)
        }
        "format" => {
            if args.named.is_empty() {
                return super::format::percent(&text, &std::mem::take(&mut args.positional), meter);
            }
            Err(Error::new("format: names are not supported"))
        }
        "indent" => indent(&text, args, meter),
        "wordcount" => Ok(Value::Int(text.as_str().split_whitespace().count() as i64)),
        "escape" | "e" | "forceescape" => escape(&text),
        "truncate" => truncate(&text, args, meter),
        other => Err(Error::new(format!("the filter `{other:.40}` is unknown"))),
    }
}

fn escape(text: &Text) -> Result<Value> {
    let mut out = Text::new(text.meter());
    let mut start = 0;
    for (at, c) in text.as_str().char_indices() {
        let escaped = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '\'' => "&#39;",
            '"' => "&#34;",
            _ => continue,
        };
        out.push_part(text, start, at)?;
        out.push(escaped, text.is_typed_at(at))?;
        start = at + 1;
    }
    out.push_part(text, start, text.as_str().len())?;
    Ok(out.into())
}

fn truncate(text: &Text, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let length = usize::try_from(args.int("truncate", "length")?.unwrap_or(255)).unwrap_or(0);
    let kills_words = args.flag("killwords");
    let end = args
        .take("end")
        .map_or_else(|| Value::text("...", meter), Ok)?;
    let leeway = usize::try_from(args.int("truncate", "leeway")?.unwrap_or(5)).unwrap_or(0);
    let end = end.as_text("truncate")?;
    let whole = text.as_str();
    meter.spend_bytes(whole.len())?;
    let ends: Vec<usize> = whole
        .char_indices()
        .map(|(at, _)| at)
        .chain([whole.len()])
        .collect();
    let mut out = Text::new(meter);
    if ends.len() - 1 <= length.saturating_add(leeway) {
        out.push_text(text)?;
        return Ok(out.into());
    }
    let cut = ends[length.saturating_sub(end.as_str().chars().count())];
    let cut = if kills_words {
        cut
    } else {
        whole[..cut].rfind(' ').unwrap_or(cut)
    };
    out.push_part(text, 0, cut)?;
    out.push_text(end)?;
    Ok(out.into())
}

/// Indents all lines but the first; empty ones are left out.
fn indent(text: &Text, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let width = args.take("width").unwrap_or(Value::Int(4));
    let (first, blank) = (args.flag("first"), args.flag("blank"));
    let mut step = Text::new(meter);
    match (&width, width.as_int()) {
        (Value::Str(text), _) => step.push_text(text)?,
        (_, Some(n)) => {
            for _ in 0..n.max(0) {
                step.push(" ", false)?;
            }
        }
        _ => {
            return Err(Error::new(format!(
                "indent: expected a width, found {}",
                width.type_name()
            )));
        }
    }
    let mut out = Text::new(meter);
    let mut start = 0;
    for (idx, line) in text.as_str().split('\n').enumerate() {
        if idx > 0 {
            out.push_part(text, start - 1, start)?;
        }
        if (idx > 0 || first) && (blank || !line.is_empty()) {
            out.push_text(&step)?;
        }
        out.push_part(text, start, start + line.len())?;
        start += line.len() + 1;
    }
    Ok(out.into())
}

fn to_json(value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let indent = match args.named("indent").or_else(|| args.take("indent")) {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.as_str().to_owned()),
        Some(value) => {
            let n = value
                .as_int()
                .ok_or_else(|| Error::new("tojson: the indent is no integer"))?;
            let n = usize::try_from(n).unwrap_or(0);
            meter.spend_bytes(n)?;
            meter.hold(n)?;
            let indent = " ".repeat(n);
            meter.release(n);
            Some(indent)
        }
    };
    let separators = args
        .named("separators")
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
        ensure_ascii: args
            .named("ensure_ascii")
            .is_some_and(|value| value.is_true()),
        sort_keys: args.named("sort_keys").is_some_and(|value| value.is_true()),
    };
    let mut out = Text::new(meter);
    json::write(value, &layout, 0, &mut out)?;
    Ok(out.into())
}

fn number(name: &str, value: &Value, args: &mut Args, meter: &Meter) -> Result<Value> {
    if name == "round" {
        let precision = args.int(name, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
        let method = args.take("method");
        let method = method
            .as_ref()
            .map(|method| method.as_text(name))
            .transpose()?
            .map_or("common", |m| m.as_str());
        let x = value
            .as_float()
            .ok_or_else(|| Error::new("round: expected a number"))?;
        let scale = 10f64.powi(precision);
        let x = match method {
            "ceil" => (x * scale).ceil() / scale,
            "floor" => (x * scale).floor() / scale,
            // Python rounds halves to even numbers.
            _ => (x * scale).round_ties_even() / scale,
        };
        return Ok(Value::Float(x));
    }
    let default = args.take("default");
    let base = if name == "int" {
        args.int(name, "base")?.unwrap_or(10)
    } else {
        10
    };
    let found = match value {
        Value::Str(text) => {
            meter.spend_bytes(text.as_str().len())?;
            let text = text.as_str().trim().replace('_', "");
            let base = u32::try_from(base)
                .ok()
                .filter(|base| (2..=36).contains(base))
                .unwrap_or(10);
            let int = i64::from_str_radix(&text, base).ok().map(Value::Int);
            let float = || text.parse().ok().map(Value::Float);
            if name == "int" {
                int.or_else(float)
            } else {
                float()
            }
        }
        Value::Float(_) | Value::Int(_) | Value::Bool(_) => Some(value.clone()),
        _ => None,
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

/// A value's attribute, `a.b.0` by way of others.
fn by_path(run: &mut Run, value: &Value, path: &Value) -> Result<Value> {
    if path.as_int().is_some() {
        return run.item(value, path);
    }
    let mut value = value.clone();
    for name in path.as_text("attribute")?.as_str().split('.') {
        let key = match name.parse() {
            Ok(idx) => Value::Int(idx),
            Err(_) => Value::text(name, &run.meter)?,
        };
        value = match &value {
            // A key before a method: `map(attribute='items')` means the key.
            Value::Dict(_) | Value::List(_) | Value::Str(_) => run.item(&value, &key)?,
            Value::Undefined(_) => value,
            other => run.attr(other, name)?,
        };
    }
    Ok(value)
}

/// What sorting goes by: small letters, unless case counts.
fn sort_key(value: &Value, case_counts: bool) -> Result<Value> {
    match value {
        Value::Str(text) if !case_counts => strings::map_chars(text, |c, _| c.to_lowercase()),
        other => Ok(other.clone()),
    }
}

/// Values in the order of their keys, of equals the first one first. (The library's sort may panic
/// where numbers that are none have no order.)
fn sorted(values: Vec<(Value, Value)>, is_reverse: bool, meter: &Meter) -> Result<Vec<Value>> {
    let mut out: Vec<(Value, Value)> = Vec::new();
    for (key, value) in values {
        let (mut low, mut high) = (0, out.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let order = ops::compare(&out[middle].0, &key, meter)?;
            let order = if is_reverse { order.reverse() } else { order };
            if order == Ordering::Greater {
                high = middle
            } else {
                low = middle + 1
            }
        }
        meter.spend_bytes(out.len() - low)?;
        out.insert(low, (key, value));
    }
    Ok(out.into_iter().map(|(_, value)| value).collect())
}

fn of_list(run: &mut Run, name: &str, value: &Value, args: &mut Args) -> Result<Value> {
    let meter = &Rc::clone(&run.meter);
    if name == "dictsort" {
        let case_counts = args.flag("case_sensitive");
        let by = args.take("by");
        let by_value = matches!(&by, Some(Value::Str(text)) if text.as_str() == "value");
        let is_reverse = args.flag("reverse");
        let pairs = lists::values(&methods::pairs_of(value, meter)?, meter)?;
        let keyed: Result<Vec<_>> = pairs
            .into_iter()
            .map(|pair| {
                let key = lists::item(&pair, i64::from(by_value), meter)?.unwrap_or(Value::None);
                Ok((sort_key(&key, case_counts)?, pair))
            })
            .collect();
        return Value::list(sorted(keyed?, is_reverse, meter)?, meter);
    }
    if let ("reverse", Value::Str(text)) = (name, value) {
        let mut chars = lists::values(&Value::Str(Rc::clone(text)), meter)?;
        chars.reverse();
        return strings::join(&chars, &Text::new(meter), meter);
    }
    let mut values = lists::values(value, meter)?;
    match name {
        "first" => Ok(values
            .into_iter()
            .next()
            .unwrap_or_else(|| Value::undefined("first"))),
        "last" => Ok(values.pop().unwrap_or_else(|| Value::undefined("last"))),
        "reverse" => {
            values.reverse();
            Value::list(values, meter)
        }
        "sum" => {
            let attribute = args.take("attribute");
            let mut sum = args.take("start").unwrap_or(Value::Int(0));
            for value in values {
                let value = match &attribute {
                    Some(path) => by_path(run, &value, path)?,
                    None => value,
                };
                sum = ops::binary(super::ast::BinaryOp::Add, &sum, &value, meter)?;
            }
            Ok(sum)
        }
        "batch" | "slice" => parts(name, values, args, meter),
        _ => by_key(run, name, values, args),
    }
}

fn parts(name: &str, values: Vec<Value>, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let n = args
        .int(name, "count")?
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0);
    let n = n.ok_or_else(|| Error::new(format!("{name}: expected a count above 0")))?;
    let fill = args
        .take("fill_with")
        .filter(|fill| !matches!(fill, Value::None));
    let mut out = List::new(meter);
    let (mut start, len) = (0, values.len());
    let n_parts = if name == "slice" { n } else { len.div_ceil(n) };
    for idx in 0..n_parts {
        let extra = idx < len % n;
        let size = if name == "slice" {
            len / n + usize::from(extra)
        } else {
            n.min(len - start)
        };
        let mut part = List::new(meter);
        values[start..start + size]
            .iter()
            .try_for_each(|value| part.push(value.clone()))?;
        let missing = if name == "slice" {
            usize::from(!extra && len % n > 0)
        } else {
            n - size
        };
        for fill in std::iter::repeat_n(&fill, missing).flatten() {
            part.push(fill.clone())?;
        }
        out.push(part.into())?;
        start += size;
    }
    Ok(out.into())
}

/// `sort`, `min`, `max`, `unique` and `groupby`.
fn by_key(run: &mut Run, name: &str, values: Vec<Value>, args: &mut Args) -> Result<Value> {
    let meter = &Rc::clone(&run.meter);
    let is_reverse = name == "sort" && args.flag("reverse");
    let attribute = if name == "groupby" {
        args.take("attribute")
    } else {
        args.named("attribute")
    };
    let default = args.named("default");
    let case_counts = args.flag("case_sensitive");
    let mut keyed = Vec::new();
    for value in values {
        let key = match &attribute {
            Some(path) => by_path(run, &value, path)?,
            None => value.clone(),
        };
        let key = match (&key, &default) {
            (Value::Undefined(_), Some(default)) => default.clone(),
            _ => key,
        };
        keyed.push((sort_key(&key, case_counts)?, value));
    }
    match name {
        "sort" => Value::list(sorted(keyed, is_reverse, meter)?, meter),
        "min" => Ok(sorted(keyed, false, meter)?
            .into_iter()
            .next()
            .unwrap_or_else(|| Value::undefined("min"))),
        "max" => Ok(sorted(keyed, true, meter)?
            .into_iter()
            .next()
            .unwrap_or_else(|| Value::undefined("max"))),
        "unique" => {
            let mut seen: Vec<Value> = Vec::new();
            let mut out = List::new(meter);
            for (key, value) in keyed {
                let mut is_new = true;
                for other in &seen {
                    is_new &= !ops::equal(other, &key, meter)?;
                }
                if is_new {
                    seen.push(key);
                    out.push(value)?;
                }
            }
            Ok(out.into())
        }
        _ => {
            let keys = keyed
                .iter()
                .map(|(key, _)| (key.clone(), key.clone()))
                .collect();
            let mut out = List::new(meter);
            let mut last: Option<Value> = None;
            for key in sorted(keys, false, meter)? {
                if let Some(last) = &last
                    && ops::equal(last, &key, meter)?
                {
                    continue;
                }
                let mut group = List::new(meter);
                for (other, value) in &keyed {
                    if ops::equal(other, &key, meter)? {
                        group.push(value.clone())?;
                    }
                }
                out.push(Value::tuple([key.clone(), group.into()], meter)?)?;
                last = Some(key);
            }
            Ok(out.into())
        }
    }
}

/// `map`, `select`, `reject` and those by attribute.
fn over_all(run: &mut Run, name: &str, value: &Value, mut args: Args) -> Result<Value> {
    let meter = &Rc::clone(&run.meter);
    let values = lists::values(value, meter)?;
    let mut out = List::new(meter);
    if name == "map" {
        if let Some(path) = args.named("attribute") {
            let default = args.named("default");
            args.finish(name)?;
            for value in values {
                let found = by_path(run, &value, &path)?;
                out.push(match (&found, &default) {
                    (Value::Undefined(_), Some(default)) => default.clone(),
                    _ => found,
                })?;
            }
            return Ok(out.into());
        }
        let filter = args.need(name, "filter")?;
        let filter = filter.as_text(name)?;
        for value in values {
            let args = Args {
                positional: args.positional.clone(),
                named: args.named.clone(),
            };
            meter.enter()?;
            out.push(apply(run, filter.as_str(), &value, args)?)?;
            meter.leave();
        }
        return Ok(out.into());
    }
    let path = name
        .ends_with("attr")
        .then(|| args.need(name, "attribute"))
        .transpose()?;
    let test = args.take("test");
    for value in values {
        let subject = match &path {
            Some(path) => by_path(run, &value, path)?,
            None => value.clone(),
        };
        let is = match &test {
            Some(test) => {
                let args = Args {
                    positional: args.positional.clone(),
                    named: args.named.clone(),
                };
                tests::holds(run, test.as_text(name)?.as_str(), &subject, args)?
            }
            None => subject.is_true(),
        };
        if is == name.starts_with("select") {
            out.push(value)?;
        }
    }
    Ok(out.into())
}

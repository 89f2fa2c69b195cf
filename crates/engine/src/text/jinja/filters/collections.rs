//! Filters of lists and dicts.

use std::cmp::Ordering;
use std::rc::Rc;

use super::attribute_by_path;
use crate::text::jinja::args::Args;
use crate::text::jinja::ast::BinaryOp;
use crate::text::jinja::interpreter::Interpreter;
use crate::text::jinja::meter::{Error, Meter, Result};
use crate::text::jinja::text::Text;
use crate::text::jinja::value::{List, Value, equal};
use crate::text::jinja::{lists, methods, ops, strings};

/// Applies a filter of lists or dicts.
pub(super) fn apply(
    interpreter: &mut Interpreter,
    name: &str,
    value: &Value,
    args: &mut Args,
) -> Result<Value> {
    let meter = &Rc::clone(&interpreter.meter);
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
                    Some(path) => attribute_by_path(interpreter, &value, path)?,
                    None => value,
                };
                sum = ops::binary(BinaryOp::Add, &sum, &value, meter)?;
            }
            Ok(sum)
        }
        "batch" | "slice" => batch_or_slice(name, values, args, meter),
        _ => by_key(interpreter, name, values, args),
    }
}

/// Splits a list into parts of `count` items (`batch`) or into `count` parts (`slice`).
fn batch_or_slice(
    name: &str,
    values: Vec<Value>,
    args: &mut Args,
    meter: &Rc<Meter>,
) -> Result<Value> {
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
fn by_key(
    interpreter: &mut Interpreter,
    name: &str,
    values: Vec<Value>,
    args: &mut Args,
) -> Result<Value> {
    let meter = &Rc::clone(&interpreter.meter);
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
            Some(path) => attribute_by_path(interpreter, &value, path)?,
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
                    is_new &= !equal(other, &key, meter)?;
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
                    && equal(last, &key, meter)?
                {
                    continue;
                }
                let mut group = List::new(meter);
                for (other, value) in &keyed {
                    if equal(other, &key, meter)? {
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

/// The sort key: lowercase text, unless case counts.
fn sort_key(value: &Value, case_counts: bool) -> Result<Value> {
    match value {
        Value::Str(text) if !case_counts => strings::map_chars(text, |c, _| c.to_lowercase()),
        other => Ok(other.clone()),
    }
}

/// Sorts values by their keys. The sort is stable. (The standard library's sort may panic for NaN,
/// which has no order.)
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

//! Filters of lists and dicts.

use std::cmp::Ordering;
use std::rc::Rc;

use super::attribute_by_path;
use crate::text::jinja::args::Args;
use crate::text::jinja::ast::BinaryOp;
use crate::text::jinja::interpreter::Interpreter;
use crate::text::jinja::many::Many;
use crate::text::jinja::meter::{Error, Meter, Result};
use crate::text::jinja::text::Text;
use crate::text::jinja::value::{Kind, List, Value, equal};
use crate::text::jinja::{cases, lists, methods, ops, strings};

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
        let keyed = |pair: &Value| {
            let key = lists::item(pair, i64::from(by_value), meter)?.unwrap_or(Value::None);
            Ok((sort_key(&key, case_counts)?, pair.clone()))
        };
        let mut keyed = Many::of(pairs.iter().map(keyed), meter)?;
        sort(&mut keyed, is_reverse, meter)?;
        return values_of(&keyed, meter);
    }
    if let ("reverse", Value::Str(text)) = (name, value) {
        let mut chars = lists::values(&Value::Str(Rc::clone(text)), meter)?;
        chars.reverse();
        return strings::join(&chars, &Text::new(meter), meter);
    }
    let values = lists::values(value, meter)?;
    let missing = || Value::undefined(name);
    match name {
        "first" => Ok(values.first().cloned().unwrap_or_else(missing)),
        "last" => Ok(values.last().cloned().unwrap_or_else(missing)),
        "reverse" => Value::list(values.iter().rev().cloned(), meter),
        "sum" => {
            let attribute = args.take("attribute");
            let mut sum = args.take("start").unwrap_or(Value::Int(0));
            for value in values.iter() {
                let value = match &attribute {
                    Some(path) => attribute_by_path(interpreter, value, path)?,
                    None => value.clone(),
                };
                sum = ops::binary(BinaryOp::Add, &sum, &value, meter)?;
            }
            Ok(sum)
        }
        "batch" | "slice" => batch_or_slice(name, &values, args, meter),
        _ => by_key(interpreter, name, &values, args),
    }
}

/// Splits a list into parts of `count` items (`batch`) or into `count` parts (`slice`).
fn batch_or_slice(
    name: &str,
    values: &[Value],
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
    values: &[Value],
    args: &mut Args,
) -> Result<Value> {
    let meter = &Rc::clone(&interpreter.meter);
    let is_reverse = name == "sort" && args.flag("reverse");
    let attribute = if name == "groupby" {
        args.take("attribute")
    } else {
        args.named("attribute")
    };
    let default = args
        .named("default")
        .filter(|value| !matches!(value, Value::None));
    let case_counts = args.flag("case_sensitive");
    let mut key_of = |value: &Value| {
        let key = match &attribute {
            Some(path) => attribute_by_path(interpreter, value, path)?,
            None => value.clone(),
        };
        Ok(match (&key, &default) {
            (Value::Undefined(_), Some(default)) => default.clone(),
            _ => key,
        })
    };
    let mut keyed = Many::new(meter);
    for value in values {
        keyed.push((sort_key(&key_of(value)?, case_counts)?, value.clone()))?;
    }
    match name {
        "sort" | "min" | "max" => {
            sort(&mut keyed, is_reverse || name == "max", meter)?;
            if name == "sort" {
                return values_of(&keyed, meter);
            }
            let first = keyed.first().map(|(_, value)| value.clone());
            Ok(first.unwrap_or_else(|| Value::undefined(name)))
        }
        "unique" => {
            let (mut seen, mut out) = (List::new(meter), List::new(meter));
            for (key, value) in keyed.iter() {
                let mut is_new = true;
                for other in seen.values() {
                    is_new &= !equal(other, key, meter)?;
                }
                if is_new {
                    seen.push(key.clone())?;
                    out.push(value.clone())?;
                }
            }
            Ok(out.into())
        }
        _ => {
            sort(&mut keyed, false, meter)?;
            let (mut out, mut rest) = (List::new(meter), &keyed[..]);
            while let Some((_, first)) = rest.first() {
                let (group, n) = group(rest, meter)?;
                // The key that a group shows is that of its first value, in its own case.
                out.push(Value::of(Kind::Group, [key_of(first)?, group], meter)?)?;
                rest = &rest[n..];
            }
            Ok(out.into())
        }
    }
}

/// The first of these values and those behind it with an equal key, and how many they are.
fn group(keyed: &[(Value, Value)], meter: &Rc<Meter>) -> Result<(Value, usize)> {
    let mut group = List::new(meter);
    for (key, value) in keyed {
        if !group.values().is_empty() && !equal(key, &keyed[0].0, meter)? {
            break;
        }
        group.push(value.clone())?;
    }
    let n = group.values().len();
    Ok((group.into(), n))
}

/// The sort key: lowercase text, unless case counts.
fn sort_key(value: &Value, case_counts: bool) -> Result<Value> {
    match value {
        Value::Str(text) if !case_counts => cases::lower(text),
        other => Ok(other.clone()),
    }
}

/// The values behind their keys.
fn values_of(keyed: &[(Value, Value)], meter: &Rc<Meter>) -> Result<Value> {
    Value::list(keyed.iter().map(|(_, value)| value.clone()), meter)
}

/// Sorts values by their keys. The sort is stable. (The standard library's sort may panic for NaN,
/// which has no order.)
fn sort(values: &mut [(Value, Value)], is_reverse: bool, meter: &Meter) -> Result<()> {
    for idx in 1..values.len() {
        let (mut low, mut high) = (0, idx);
        while low < high {
            let middle = usize::midpoint(low, high);
            let order = ops::compare(&values[middle].0, &values[idx].0, meter)?;
            let order = if is_reverse { order.reverse() } else { order };
            if order == Ordering::Greater {
                high = middle
            } else {
                low = middle + 1
            }
        }
        meter.spend_bytes(idx - low)?;
        values[low..=idx].rotate_right(1);
    }
    Ok(())
}

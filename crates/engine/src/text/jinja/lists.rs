//! Items, slices and iteration of lists, tuples, dicts and strings.

use std::rc::Rc;

use super::args::Args;
use super::many::Many;
use super::meter::{Error, Meter, Result};
use super::text::Text;
use super::value::{Kind, List, Value};

/// The values of an iteration: items of a list, keys of a dict, characters of a string.
pub(super) fn values(value: &Value, meter: &Rc<Meter>) -> Result<Many<Value>> {
    match value {
        Value::Undefined(_) => Ok(Many::new(meter)),
        Value::List(list) => {
            meter.spend(list.values().len() as u64)?;
            Many::of(list.values().iter().cloned().map(Ok), meter)
        }
        Value::Dict(dict) => {
            meter.spend(dict.pairs().len() as u64)?;
            Many::of(dict.pairs().iter().map(|(key, _)| Ok(key.clone())), meter)
        }
        Value::Str(text) => {
            let chars = text.as_str().char_indices();
            let chars = chars.map(|(at, c)| substring(text, at, at + c.len_utf8()));
            Many::of(chars, meter)
        }
        other => Err(Error::new(format!(
            "a value of type {} cannot be iterated over",
            other.type_name()
        ))),
    }
}

/// The bytes `start..end` of a text.
pub(super) fn substring(text: &Text, start: usize, end: usize) -> Result<Value> {
    let mut out = Text::new(text.meter());
    out.push_part(text, start, end)?;
    Ok(out.into())
}

/// The number of items or characters.
pub(super) fn len(value: &Value, meter: &Meter) -> Result<usize> {
    Ok(match value {
        Value::Undefined(_) => 0,
        Value::Str(text) => {
            meter.spend_bytes(text.as_str().len())?;
            text.as_str().chars().count()
        }
        Value::List(list) => list.values().len(),
        Value::Dict(dict) => dict.pairs().len(),
        other => {
            return Err(Error::new(format!(
                "a value of type {} has no length",
                other.type_name()
            )));
        }
    })
}

/// The item at `index`; negative indices count from the end. `None` if there is none.
pub(super) fn item(value: &Value, index: i64, meter: &Rc<Meter>) -> Result<Option<Value>> {
    let n = len(value, meter)? as i64;
    let index = if index < 0 {
        index.saturating_add(n)
    } else {
        index
    };
    if !(0..n).contains(&index) {
        return Ok(None);
    }
    match value {
        Value::List(list) => Ok(list.values().get(index as usize).cloned()),
        Value::Str(text) => {
            let found = text.as_str().char_indices().nth(index as usize);
            found
                .map(|(at, c)| substring(text, at, at + c.len_utf8()))
                .transpose()
        }
        _ => Ok(None),
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, bounds: [Option<i64>; 3], meter: &Rc<Meter>) -> Result<Value> {
    if !matches!(value, Value::List(_) | Value::Str(_)) {
        return Err(Error::new(format!(
            "a value of type {} cannot be sliced",
            value.defined()?.type_name()
        )));
    }
    let step = bounds[2].unwrap_or(1);
    if step == 0 {
        return Err(Error::new("slice: expected a step other than 0"));
    }
    let len = len(value, meter)? as i64;
    // Given bounds are clamped to the range from the first position to the one after the last
    // position in the direction of the slice.
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: i64| {
        if bound < 0 {
            bound.saturating_add(len)
        } else {
            bound
        }
        .clamp(lowest, highest)
    };
    let start = bounds[0].map_or(if step > 0 { lowest } else { highest }, place);
    let stop = bounds[1].map_or(if step > 0 { highest } else { lowest }, place);
    let mut places = Many::new(meter);
    let mut at = start;
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        meter.spend(1)?;
        places.push(at as usize)?;
        at = at.saturating_add(step);
    }
    if let Value::List(list) = value {
        let mut out = List::new(meter);
        if list.is_tuple() {
            out.kind = Kind::Tuple;
        }
        places
            .iter()
            .try_for_each(|at| out.push(list.values()[*at].clone()))?;
        return Ok(out.into());
    }
    let text = value.as_text("slice")?;
    let starts = text.as_str().char_indices().map(|(at, _)| at);
    let starts = Many::of(starts.chain([text.as_str().len()]).map(Ok), meter)?;
    if step == 1 {
        let (first, last) = (start as usize, stop.max(start) as usize);
        return substring(text, starts[first], starts[last]);
    }
    let mut out = Text::new(meter);
    places
        .iter()
        .try_for_each(|at| out.push_part(text, starts[*at], starts[*at + 1]))?;
    Ok(out.into())
}

/// The function `range`.
pub(super) fn range(args: &Args, meter: &Rc<Meter>) -> Result<Value> {
    let ints: Option<Vec<i64>> = args.positional.iter().map(Value::as_int).collect();
    let (start, stop, step) = match (ints.as_deref(), args.named.is_empty()) {
        (Some([stop]), true) => (0, *stop, 1),
        (Some([start, stop]), true) => (*start, *stop, 1),
        (Some([start, stop, step]), true) => (*start, *stop, *step),
        _ => return Err(Error::new("range: expected one to three integers")),
    };
    if step == 0 {
        return Err(Error::new("range: expected a step other than 0"));
    }
    let mut out = List::new(meter);
    let mut at = start;
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        out.push(Value::Int(at))?;
        at = match at.checked_add(step) {
            Some(next) => next,
            None => break,
        };
    }
    Ok(out.into())
}

//! Operators.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::{BinaryOp, CompareOp};
use super::lists;
use super::meter::{Error, Meter, Result};
use super::text::Text;
use super::value::{List, Value, equal};

/// Python's ordering; an error for values without an order.
pub(super) fn compare(a: &Value, b: &Value, meter: &Meter) -> Result<Ordering> {
    meter.spend(1)?;
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Ok(a.cmp(&b));
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return Ok(a.partial_cmp(&b).unwrap_or(Ordering::Equal));
    }
    match (a.defined()?, b.defined()?) {
        (Value::Str(a), Value::Str(b)) => {
            meter.spend_bytes(a.as_str().len().min(b.as_str().len()))?;
            Ok(a.as_str().cmp(b.as_str()))
        }
        (Value::List(a), Value::List(b)) => {
            for (a, b) in a.values().iter().zip(b.values()) {
                let order = compare(a, b, meter)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a.values().len().cmp(&b.values().len()))
        }
        (a, b) => Err(Error::new(format!(
            "`<`: cannot compare {} with {}",
            a.type_name(),
            b.type_name()
        ))),
    }
}

/// Python's comparison operators and `in`.
pub(super) fn compare_with(op: CompareOp, a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<bool> {
    Ok(match op {
        CompareOp::Eq => equal(a, b, meter)?,
        CompareOp::Ne => !equal(a, b, meter)?,
        CompareOp::Lt => compare(a, b, meter)?.is_lt(),
        CompareOp::Le => compare(a, b, meter)?.is_le(),
        CompareOp::Gt => compare(a, b, meter)?.is_gt(),
        CompareOp::Ge => compare(a, b, meter)?.is_ge(),
        CompareOp::In => contains(b, a, meter)?,
        CompareOp::NotIn => !contains(b, a, meter)?,
    })
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value, meter: &Rc<Meter>) -> Result<bool> {
    match container {
        Value::Str(text) => {
            let part = item.as_text("in")?;
            meter.spend_bytes(text.as_str().len())?;
            Ok(text.as_str().contains(part.as_str()))
        }
        Value::Dict(dict) => Ok(dict.get(item)?.is_some()),
        other => {
            for value in lists::values(other, meter)?.iter() {
                if equal(value, item, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Python's arithmetic operators, including those of strings and lists.
pub(super) fn binary(op: BinaryOp, a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<Value> {
    let (a, b) = (a.defined()?, b.defined()?);
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return ints(op, a, b);
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return floats(op, a, b);
    }
    match (op, a, b) {
        (BinaryOp::Add, Value::Str(a), Value::Str(b)) => {
            let mut out = Text::new(meter);
            out.push_text(a)?;
            out.push_text(b)?;
            Ok(out.into())
        }
        (BinaryOp::Add, Value::List(a), Value::List(b)) if a.is_tuple() == b.is_tuple() => {
            let mut out = List::new(meter);
            out.kind = a.kind;
            a.values()
                .iter()
                .chain(b.values())
                .try_for_each(|value| out.push(value.clone()))?;
            Ok(out.into())
        }
        (BinaryOp::Mul, Value::Str(text), n) | (BinaryOp::Mul, n, Value::Str(text))
            if n.as_int().is_some() =>
        {
            let mut out = Text::new(meter);
            for _ in 0..n.as_int().unwrap_or_default().max(0) {
                meter.spend(1)?;
                out.push_text(text)?;
            }
            Ok(out.into())
        }
        (BinaryOp::Mul, Value::List(list), n) | (BinaryOp::Mul, n, Value::List(list))
            if n.as_int().is_some() =>
        {
            let mut out = List::new(meter);
            out.kind = list.kind;
            for _ in 0..n.as_int().unwrap_or_default().max(0) {
                meter.spend(1)?;
                list.values()
                    .iter()
                    .try_for_each(|value| out.push(value.clone()))?;
            }
            Ok(out.into())
        }
        (BinaryOp::Rem, Value::Str(format), args) => {
            let args: Vec<Value> = match args {
                Value::List(list) if list.is_tuple() => list.values().to_vec(),
                other => vec![other.clone()],
            };
            super::format::percent(format, &args, meter)
        }
        (op, a, b) => {
            let sign = match op {
                BinaryOp::Add => "+",
                BinaryOp::Sub => "-",
                BinaryOp::Mul => "*",
                BinaryOp::Div => "/",
                BinaryOp::FloorDiv => "//",
                BinaryOp::Rem => "%",
                BinaryOp::Pow => "**",
            };
            Err(Error::new(format!(
                "`{sign}`: unsupported operands {} and {}",
                a.type_name(),
                b.type_name()
            )))
        }
    }
}

fn ints(op: BinaryOp, a: i64, b: i64) -> Result<Value> {
    let large = || Error::new("the result does not fit 64 bits");
    if b == 0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Rem) {
        return Err(Error::new("division by zero"));
    }
    let value = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div => return Ok(Value::Float(a as f64 / b as f64)),
        // Python rounds down, and the remainder has the sign of the divisor.
        BinaryOp::FloorDiv => a.checked_div(b).map(|q| {
            if a % b != 0 && (a < 0) != (b < 0) {
                q - 1
            } else {
                q
            }
        }),
        BinaryOp::Rem => a.checked_rem(b).map(|r| {
            if r != 0 && (r < 0) != (b < 0) {
                r + b
            } else {
                r
            }
        }),
        BinaryOp::Pow if b < 0 => return floats(op, a as f64, b as f64),
        BinaryOp::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    value.map(Value::Int).ok_or_else(large)
}

fn floats(op: BinaryOp, a: f64, b: f64) -> Result<Value> {
    if b == 0.0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Rem) {
        return Err(Error::new("division by zero"));
    }
    Ok(Value::Float(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv => (a / b).floor(),
        BinaryOp::Rem => a - b * (a / b).floor(),
        BinaryOp::Pow => a.powf(b),
    }))
}

/// Python's unary minus.
pub(super) fn negate(value: &Value) -> Result<Value> {
    match value.defined()? {
        Value::Float(x) => Ok(Value::Float(-x)),
        other => match other.as_int() {
            Some(n) => n
                .checked_neg()
                .map(Value::Int)
                .ok_or_else(|| Error::new("the result does not fit 64 bits")),
            None => Err(Error::new(format!(
                "`-`: expected a number, found {}",
                other.type_name()
            ))),
        },
    }
}

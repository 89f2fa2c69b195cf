//! Jinja tests: the predicates after `is`.

use super::args::Args;
use super::ast::CompareOp;
use super::interpreter::Interpreter;
use super::meter::{Error, Result};
use super::ops;
use super::value::{Value, equal};
use super::{methods, names};

/// Whether the test `name` holds for a value.
pub(super) fn test(
    interpreter: &mut Interpreter,
    name: &str,
    value: &Value,
    mut args: Args,
) -> Result<bool> {
    let compared = match name {
        "eq" | "equalto" | "==" => Some(CompareOp::Eq),
        "ne" | "!=" => Some(CompareOp::Ne),
        "lt" | "lessthan" | "<" => Some(CompareOp::Lt),
        "le" | "<=" => Some(CompareOp::Le),
        "gt" | "greaterthan" | ">" => Some(CompareOp::Gt),
        "ge" | ">=" => Some(CompareOp::Ge),
        "in" => Some(CompareOp::In),
        _ => None,
    };
    let is = match (compared, name) {
        (Some(op), _) => {
            let other = args.need(name, "other")?;
            ops::compare_with(op, value, &other, &interpreter.meter)?
        }
        (_, "sameas") => {
            let other = args.need(name, "other")?;
            // True for None, booleans and the undefined value, of which Python has one object each,
            // and for equal numbers.
            value.type_name() == other.type_name() && equal(value, &other, &interpreter.meter)?
        }
        (_, "divisibleby") => {
            let by = args.int(name, "num")?;
            match (value.as_int(), by) {
                (Some(n), Some(by)) if by != 0 => n.checked_rem(by).unwrap_or(0) == 0,
                _ => {
                    return Err(Error::new(
                        "divisibleby: expected two integers, the second other than 0",
                    ));
                }
            }
        }
        (_, "even" | "odd") => match value.as_int() {
            Some(n) => (n % 2 == 0) == (name == "even"),
            None => {
                return Err(Error::new(format!(
                    "{name}: expected an integer, found {}",
                    value.type_name()
                )));
            }
        },
        (_, "filter") => names::is_filter(value.as_text(name)?.as_str()),
        (_, "test") => names::is_test(value.as_text(name)?.as_str()),
        (_, "lower" | "upper") => {
            let text = value.as_text(name)?.as_str().to_owned();
            interpreter.meter.spend_bytes(text.len())?;
            let method = if name == "lower" {
                "islower"
            } else {
                "isupper"
            };
            methods::call(value, method, Args::default(), &interpreter.meter)?.is_true()
        }
        _ => is_of_type(name, value)?,
    };
    args.finish(name)?;
    Ok(is)
}

fn is_of_type(name: &str, value: &Value) -> Result<bool> {
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::List(_) | Value::Dict(_) | Value::Str(_) | Value::Undefined(_)
        ),
        "iterable" => matches!(
            value,
            Value::List(_) | Value::Dict(_) | Value::Str(_) | Value::Undefined(_)
        ),
        "callable" => matches!(
            value,
            Value::Function(_)
                | Value::Macro(_)
                | Value::Method(_)
                | Value::Joiner(_)
                | Value::Undefined(_)
        ),
        "escaped" => false,
        other => return Err(Error::new(format!("unknown test `{other:.40}`"))),
    })
}

//! JSON that comes with messages, as values of a template.

use std::rc::Rc;

use serde_json::Value as Json;

use super::meter::{Meter, Result};
use super::text::Text;
use super::value::{Dict, List, Value};

/// The value of JSON. Its strings came with a message, names of fields included.
pub(super) fn value_of(json: &Json, meter: &Rc<Meter>) -> Result<Value> {
    let text = |given: &str| -> Result<Value> {
        let mut text = Text::new(meter);
        text.push(given, true)?;
        Ok(text.into())
    };
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(value) => Value::Int(value),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(given) => text(given)?,
        Json::Array(items) => {
            let mut list = List::new(meter);
            for item in items {
                list.push(value_of(item, meter)?)?;
            }
            list.into()
        }
        Json::Object(fields) => {
            let mut dict = Dict::new(meter);
            for (name, field) in fields {
                dict.set(text(name)?, value_of(field, meter)?)?;
            }
            dict.into()
        }
    })
}

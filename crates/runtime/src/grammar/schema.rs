//! JSON schemas as they are compiled.

use percent_encoding::percent_decode_str;
use serde_json::{Number, Value, json};
use thane_engine::choose::GrammarError;

/// Longest JSON schema, as text.
pub(super) const MAX_BYTES: usize = 256 << 10;

/// Fields that hold values, not schemas.
const VALUES: [&str; 4] = ["const", "default", "enum", "examples"];
/// Fields that hold schemas by names, which are not fields.
const NAMED: [&str; 5] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];
/// Whole numbers up to here are doubles, in which schemas are compiled.
const MOST_WHOLE: f64 = (1u64 << 53) as f64;

/// Hands over the fields of a schema and of those in it, each with its name.
fn for_each_field(schema: &mut Value, act: &mut impl FnMut(&str, &mut Value)) {
    match schema {
        Value::Object(fields) => {
            for (name, field) in fields {
                act(name, field);
                match field {
                    _ if VALUES.contains(&name.as_str()) => {}
                    Value::Object(named) if NAMED.contains(&name.as_str()) => {
                        for schema in named.values_mut() {
                            for_each_field(schema, act);
                        }
                    }
                    _ => for_each_field(field, act),
                }
            }
        }
        Value::Array(schemas) => {
            for schema in schemas {
                for_each_field(schema, act);
            }
        }
        _ => {}
    }
}

/// Refuses values of `const` and `enum` with whole numbers that a double would round.
pub(crate) fn check_numbers(schema: &Value) -> Result<(), GrammarError> {
    let mut found = None;
    for_each_field(&mut schema.clone(), &mut |name, field| {
        if name == "const" || name == "enum" {
            found = found
                .take()
                .or_else(|| rounded(field).map(|n| (name.to_owned(), n)));
        }
    });
    match found {
        None => Ok(()),
        Some((name, number)) => Err(GrammarError(format!(
            "`{name}` has the number {number}: expected whole numbers up to {MOST_WHOLE}; larger \
             ones are exact as strings"
        ))),
    }
}

/// Refuses divisors whose remainders are more states than this process compiles: nothing ends it,
/// and each `multipleOf` of a schema multiplies the states.
pub(super) fn check_divisors(schema: &Value) -> Result<(), GrammarError> {
    const MOST: f64 = 10_000.0;
    let mut states = 1.0;
    for_each_field(&mut schema.clone(), &mut |name, field| {
        if let Some(divisor) = field.as_f64().filter(|_| name == "multipleOf") {
            let digits = field.to_string();
            let decimals = digits.split_once('.').map_or(0, |(_, rest)| rest.len());
            states *= (divisor.abs() * 10f64.powi(decimals as i32)).max(1.0);
        }
    });
    match states <= MOST {
        true => Ok(()),
        false => Err(GrammarError(format!(
            "`multipleOf`: expected divisors of at most {MOST} together, found {states}"
        ))),
    }
}

/// A whole number that a double may have rounded.
fn rounded(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => {
            let whole = number.as_i64().map(i64::unsigned_abs).or(number.as_u64());
            let is_rounded = match (whole, number.as_f64()) {
                (Some(n), _) => n > MOST_WHOLE as u64,
                (None, Some(x)) => x.abs() > MOST_WHOLE && x.fract() == 0.0,
                (None, None) => true,
            };
            is_rounded.then(|| number.clone())
        }
        Value::Array(values) => values.iter().find_map(rounded),
        Value::Object(fields) => fields.values().find_map(rounded),
        _ => None,
    }
}

/// A limit as the nearest double within it, where a double rounds it.
fn limit_within(name: &str, limit: &mut Value) {
    let up = name.ends_with("inimum");
    let whole = limit
        .as_i64()
        .map(i128::from)
        .or(limit.as_u64().map(i128::from));
    let Some(n) = whole.filter(|_| up || name.ends_with("aximum")) else {
        return;
    };
    let x = n as f64;
    let nearest = match (x as i128).cmp(&n) {
        std::cmp::Ordering::Less if up => x.next_up(),
        std::cmp::Ordering::Greater if !up => x.next_down(),
        _ => x,
    };
    if nearest.abs() > MOST_WHOLE {
        let exact = i64::try_from(nearest as i128);
        *limit = exact.map_or_else(|_| json!(nearest), |n| json!(n));
    }
}

/// Gives what is referred to by a path with escapes a plain name, by which the compiler finds it.
fn name_escaped_references(schema: &mut Value) {
    let mut names: Vec<(String, String)> = Vec::new();
    for_each_field(schema, &mut |name, field| {
        let Value::String(path) = field else { return };
        if name != "$ref" || !path.starts_with("#/") || !path.contains(['~', '%']) {
            return;
        }
        let known = names.iter().find(|(known, _)| known == path);
        let plain = match known {
            Some((_, plain)) => plain.clone(),
            None => {
                let plain = format!("referred-{}", names.len());
                names.push((path.clone(), plain.clone()));
                plain
            }
        };
        *path = format!("#/$defs/{plain}");
    });
    let mut n_bytes = 0;
    for (path, plain) in names {
        let decoded = percent_decode_str(&path[1..]).decode_utf8_lossy();
        let Some(target) = schema.pointer(&decoded).cloned() else {
            continue;
        };
        n_bytes += target.to_string().len();
        let defs = schema.as_object_mut().map(|fields| {
            let defs = fields.entry("$defs").or_insert_with(|| json!({}));
            defs.as_object_mut()
        });
        if let Some(Some(defs)) = defs
            && n_bytes <= MAX_BYTES
        {
            defs.insert(plain, target);
        }
    }
}

/// Values of `format` that a grammar holds strings to.
const FORMATS: &[&str] = &[
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

/// Removes other formats from a schema: in JSON Schema, a format that nobody knows is an
/// annotation.
fn drop_unknown_formats(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let format = fields.get("format").and_then(Value::as_str);
            if format.is_some_and(|format| !FORMATS.contains(&format)) {
                fields.remove("format");
            }
            for (name, field) in fields {
                match field {
                    _ if VALUES.contains(&name.as_str()) => {}
                    Value::Object(named) if NAMED.contains(&name.as_str()) => {
                        named.values_mut().for_each(drop_unknown_formats);
                    }
                    _ => drop_unknown_formats(field),
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(drop_unknown_formats),
        _ => {}
    }
}

/// A schema that can be compiled, whose JSON is spaced as Python writes it. Models that may write
/// any space can write spaces forever.
pub(crate) fn with_spacing(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    drop_unknown_formats(&mut schema);
    for_each_field(&mut schema, &mut |name, field| limit_within(name, field));
    name_escaped_references(&mut schema);
    if let Value::Object(fields) = &mut schema {
        let spacing = json!({
            "whitespace_flexible": false,
            "item_separator": ", ",
            "key_separator": ": ",
        });
        fields.entry("x-guidance").or_insert(spacing);
    }
    schema
}

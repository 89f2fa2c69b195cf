//! Methods of Python's strings, lists and dicts that do not modify the value.

use std::rc::Rc;

use super::args::Args;
use super::cases;
use super::lists;
use super::meter::{Error, Meter, Result};
use super::strings::{self, Ends, Pad};
use super::text::Text;
use super::value::{Kind, Value, equal};

const STRING_METHODS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

const LIST_METHODS: &[&str] = &["copy", "count", "index"];
const DICT_METHODS: &[&str] = &["copy", "get", "items", "keys", "values"];

/// Whether a value has a method with this name.
pub(super) fn has(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => STRING_METHODS.contains(&name),
        Value::List(_) => LIST_METHODS.contains(&name),
        Value::Dict(_) => DICT_METHODS.contains(&name),
        _ => false,
    }
}

/// Calls a method of a string, list or dict.
pub(super) fn call(value: &Value, name: &str, mut args: Args, meter: &Rc<Meter>) -> Result<Value> {
    let done = match value {
        Value::Str(text) => call_string_method(text, name, &mut args, meter)?,
        Value::List(list) => match name {
            "copy" => value.clone(),
            _ => {
                let wanted = args.need(name, "value")?;
                let mut places = Vec::new();
                for (idx, found) in list.values().iter().enumerate() {
                    if equal(found, &wanted, meter)? {
                        places.push(idx);
                    }
                }
                match (name, places.first()) {
                    ("count", _) => Value::Int(places.len() as i64),
                    (_, Some(first)) => Value::Int(*first as i64),
                    (_, None) => return Err(Error::new("index: expected an item of the list")),
                }
            }
        },
        Value::Dict(dict) => {
            let pairs = dict.pairs().iter();
            meter.spend(pairs.len() as u64)?;
            match name {
                "copy" => value.clone(),
                "get" => {
                    let key = args.need(name, "key")?;
                    let default = args.take("default").unwrap_or(Value::None);
                    dict.get(&key)?.cloned().unwrap_or(default)
                }
                "keys" => Value::of(Kind::Keys, pairs.map(|(key, _)| key.clone()), meter)?,
                "values" => Value::of(Kind::Values, pairs.map(|(_, v)| v.clone()), meter)?,
                _ => pairs_of(value, meter)?,
            }
        }
        other => {
            return Err(Error::new(format!(
                "a value of type {} has no `{name}`",
                other.type_name()
            )));
        }
    };
    args.finish(name)?;
    Ok(done)
}

/// The items of a dict as a list of pairs.
pub(super) fn pairs_of(value: &Value, meter: &Rc<Meter>) -> Result<Value> {
    let Value::Dict(dict) = value else {
        return Err(Error::new(format!(
            "items: expected a dict, found {}",
            value.defined()?.type_name()
        )));
    };
    let pairs: Result<Vec<Value>> = dict
        .pairs()
        .iter()
        .map(|(key, value)| Value::tuple([key.clone(), value.clone()], meter))
        .collect();
    Value::of(Kind::Items, pairs?, meter)
}

fn call_string_method(
    text: &Rc<Text>,
    name: &str,
    args: &mut Args,
    meter: &Rc<Meter>,
) -> Result<Value> {
    let whole = text.as_str();
    meter.spend_bytes(whole.len())?;
    let all = |is: &dyn Fn(char) -> bool| Value::Bool(!whole.is_empty() && whole.chars().all(is));
    // Whether there are cased letters and `is` holds for all of them.
    let cased = |is: &dyn Fn(char) -> bool| {
        let mut letters = whole
            .chars()
            .filter(|c| c.is_lowercase() || c.is_uppercase())
            .peekable();
        Value::Bool(letters.peek().is_some() && letters.all(is))
    };
    Ok(match name {
        "upper" => strings::map_chars(text, |c, _| c.to_uppercase())?,
        "lower" => cases::lower(text)?,
        "casefold" => cases::casefold(text)?,
        "swapcase" => strings::map_chars(text, |c, _| {
            let (large, small) = (c.to_uppercase(), c.to_lowercase());
            let is_small = c.is_lowercase();
            is_small
                .then_some(large)
                .into_iter()
                .flatten()
                .chain((!is_small).then_some(small).into_iter().flatten())
        })?,
        "capitalize" => cases::capitalize(text)?,
        "title" => cases::title(text)?,
        "isalnum" => all(&char::is_alphanumeric),
        "isalpha" => all(&char::is_alphabetic),
        "isascii" => Value::Bool(whole.is_ascii()),
        "isdecimal" => all(&|c| cases::decimal(c).is_some()),
        "isdigit" => all(&cases::is_digit),
        "isnumeric" => all(&char::is_numeric),
        "isspace" => all(&cases::is_space),
        "islower" => cased(&char::is_lowercase),
        "isupper" => cased(&char::is_uppercase),
        "istitle" => Value::Bool(
            matches!(&cases::title(text)?, Value::Str(title) if title.as_str() == whole),
        ),
        "strip" | "lstrip" | "rstrip" => {
            let ends = match name {
                "strip" => Ends::Both,
                "lstrip" => Ends::Left,
                _ => Ends::Right,
            };
            match args.take("chars") {
                None | Some(Value::None) => strings::trim(text, None, ends)?,
                Some(chars) => strings::trim(text, Some(chars.as_text(name)?.as_str()), ends)?,
            }
        }
        "join" => {
            let values = lists::values(&args.need(name, "iterable")?, meter)?;
            strings::join(&values, text, meter)?
        }
        "format" => super::format::braces(text, args, meter)?,
        "replace" => {
            let (old, new) = (args.need(name, "old")?, args.need(name, "new")?);
            let most = args.int(name, "count")?;
            strings::replace(text, old.as_text(name)?.as_str(), new.as_text(name)?, most)?
        }
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => {
            split_method(text, name, args)?
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let width = args.int(name, "width")?.unwrap_or(0);
            let fill = args.take("fillchar");
            let fill = fill
                .as_ref()
                .map(|fill| fill.as_text(name))
                .transpose()?
                .map_or(" ", |fill| fill.as_str());
            match name {
                "center" => strings::pad(text, width, fill, Pad::Both)?,
                "ljust" => strings::pad(text, width, fill, Pad::Right)?,
                "rjust" => strings::pad(text, width, fill, Pad::Left)?,
                _ => strings::pad_zeros(text, width)?,
            }
        }
        _ => search_method(text, name, args)?,
    })
}

/// `split`, `rsplit`, `splitlines`, `partition` and `rpartition`.
fn split_method(text: &Rc<Text>, name: &str, args: &mut Args) -> Result<Value> {
    if name == "splitlines" {
        return strings::lines(text, args.flag("keepends"));
    }
    let separator = args
        .take("sep")
        .filter(|value| !matches!(value, Value::None));
    let separator = separator
        .as_ref()
        .map(|value| value.as_text(name))
        .transpose()?
        .map(|text| text.as_str());
    if separator == Some("") {
        return Err(Error::new(format!(
            "{name}: expected a separator that is not empty"
        )));
    }
    if name == "split" || name == "rsplit" {
        let most = args.int(name, "maxsplit")?;
        return strings::split(text, separator, most, name == "rsplit");
    }
    let separator =
        separator.ok_or_else(|| Error::new(format!("{name}: expected a separator, found none")))?;
    let whole = text.as_str();
    let (found, parted_from_right) = match name {
        "partition" => (whole.find(separator), false),
        _ => (whole.rfind(separator), true),
    };
    let (start, end) = match (found, parted_from_right) {
        (Some(at), _) => (at, at + separator.len()),
        (None, false) => (whole.len(), whole.len()),
        (None, true) => (0, 0),
    };
    let parts = [(0, start), (start, end), (end, whole.len())];
    let parts: Result<Vec<Value>> = parts
        .into_iter()
        .map(|(start, end)| lists::substring(text, start, end))
        .collect();
    Value::tuple(parts?, text.meter())
}

/// The methods that search for a substring.
fn search_method(text: &Rc<Text>, name: &str, args: &mut Args) -> Result<Value> {
    let whole = text.as_str();
    let wanted = args.need(name, "value")?;
    if name == "startswith" || name == "endswith" {
        let candidates = match &wanted {
            Value::List(list) => list.values().to_vec(),
            other => vec![other.clone()],
        };
        for candidate in candidates {
            let candidate = candidate.as_text(name)?;
            let is = if name == "startswith" {
                str::starts_with
            } else {
                str::ends_with
            };
            text.meter().spend_bytes(candidate.as_str().len())?;
            if is(whole, candidate.as_str()) {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let wanted = wanted.as_text(name)?.as_str();
    let place = |at: Option<usize>| at.map_or(-1, |at| whole[..at].chars().count() as i64);
    Ok(match name {
        "count" if wanted.is_empty() => Value::Int(whole.chars().count() as i64 + 1),
        "count" => Value::Int(whole.matches(wanted).count() as i64),
        "find" => Value::Int(place(whole.find(wanted))),
        "rfind" => Value::Int(place(whole.rfind(wanted))),
        "index" | "rindex" => {
            let at = if name == "index" {
                whole.find(wanted)
            } else {
                whole.rfind(wanted)
            };
            match at {
                Some(at) => Value::Int(place(Some(at))),
                None => {
                    return Err(Error::new(format!(
                        "{name}: expected a substring of the string"
                    )));
                }
            }
        }
        "removeprefix" => lists::substring(
            text,
            if whole.starts_with(wanted) {
                wanted.len()
            } else {
                0
            },
            whole.len(),
        )?,
        "removesuffix" => {
            let end = if whole.ends_with(wanted) {
                whole.len() - wanted.len()
            } else {
                whole.len()
            };
            lists::substring(text, 0, end)?
        }
        other => return Err(Error::new(format!("a string has no method `{other:.40}`"))),
    })
}

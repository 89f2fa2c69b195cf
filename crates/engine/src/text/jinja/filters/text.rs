//! Filters that convert their value to text first.

use std::rc::Rc;

use crate::text::jinja::args::Args;
use crate::text::jinja::meter::{Error, Meter, Result};
use crate::text::jinja::strings::{self, Ends, Pad};
use crate::text::jinja::text::Text;
use crate::text::jinja::value::Value;
use crate::text::jinja::{cases, format, lists, methods, print};

/// Applies a filter of texts, or reports an unknown filter.
pub(super) fn apply(
    name: &str,
    value: &Value,
    args: &mut Args,
    meter: &Rc<Meter>,
) -> Result<Value> {
    let text = Rc::new(print::text_of(value, meter)?);
    let method =
        |name: &str, args: Args| methods::call(&Value::Str(Rc::clone(&text)), name, args, meter);
    match name {
        "string" | "safe" => Ok(Value::Str(text)),
        "upper" | "lower" | "capitalize" => method(name, Args::default()),
        "title" => cases::title_of_words(&text),
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
            strings::pad(&text, width, " ", Pad::Both)
        }
        "format" => {
            if args.named.is_empty() {
                return format::percent(&text, &std::mem::take(&mut args.positional), meter);
            }
            Err(Error::new("format: expected positional arguments only"))
        }
        "indent" => indent(&text, args, meter),
        "wordcount" => {
            let words = text
                .as_str()
                .split(|c: char| !c.is_alphanumeric() && c != '_');
            Ok(Value::Int(
                words.filter(|word| !word.is_empty()).count() as i64
            ))
        }
        "escape" | "e" | "forceescape" => escape(&text),
        "truncate" => truncate(&text, args, meter),
        other => Err(Error::new(format!("unknown filter `{other:.40}`"))),
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
        out.push(escaped, text.is_from_message_at(at))?;
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

/// Indents all lines but the first; empty lines are not indented. Each line break becomes `\n`.
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
    // The line break keeps an empty line at the end.
    let mut ended = Text::new(meter);
    ended.push_text(text)?;
    ended.push("\n", false)?;
    let mut out = Text::new(meter);
    let lines = lists::values(&strings::lines(&ended, false)?, meter)?;
    for (idx, line) in lines.iter().enumerate() {
        let line = line.as_text("indent")?;
        if idx > 0 {
            out.push("\n", false)?;
        }
        if (idx > 0 && (blank || !line.as_str().is_empty())) || (idx == 0 && first) {
            out.push_text(&step)?;
        }
        out.push_text(line)?;
    }
    Ok(out.into())
}

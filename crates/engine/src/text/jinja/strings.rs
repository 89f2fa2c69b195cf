//! Operations on strings. The results keep track of the characters that came with a message.

use std::rc::Rc;

use super::cases::is_space;
use super::lists::substring;
use super::meter::{Meter, Result};
use super::text::Text;
use super::value::{List, Value};

/// The ends of a string to trim.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ends {
    Left,
    Right,
    Both,
}

/// Removes whitespace, or the characters `chars`, from the ends.
pub(super) fn trim(text: &Text, chars: Option<&str>, ends: Ends) -> Result<Value> {
    text.meter()
        .spend_bytes(text.as_str().len() * chars.map_or(1, |chars| chars.len().max(1)))?;
    let goes = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let whole = text.as_str();
    let left = if ends == Ends::Right {
        whole
    } else {
        whole.trim_start_matches(goes)
    };
    let start = whole.len() - left.len();
    let len = if ends == Ends::Left {
        left.len()
    } else {
        left.trim_end_matches(goes).len()
    };
    substring(text, start, start + len)
}

/// Python's `split` and `rsplit`; splits at whitespace if there is no separator.
pub(super) fn split(
    text: &Text,
    separator: Option<&str>,
    most: Option<i64>,
    from_right: bool,
) -> Result<Value> {
    let whole = text.as_str();
    text.meter().spend_bytes(whole.len())?;
    let most = most.filter(|n| *n >= 0).map_or(usize::MAX, |n| n as usize);
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    let mut bounds = (0, whole.len());
    match separator {
        Some(separator) if from_right => {
            cuts.extend(whole.rmatch_indices(separator).take(most).map(end_of))
        }
        Some(separator) => cuts.extend(whole.match_indices(separator).take(most).map(end_of)),
        None => {
            let inner = whole.trim_start_matches(is_space);
            let trimmed = (
                whole.len() - inner.len(),
                whole.trim_end_matches(is_space).len(),
            );
            if inner.is_empty() {
                return Ok(List::new(text.meter()).into());
            }
            cuts.extend(whitespace_runs(whole, trimmed, most, from_right));
            // After the last allowed split, the rest keeps its spaces.
            let is_cut_short = cuts.len() == most;
            bounds = match (is_cut_short, from_right) {
                (true, true) => (0, trimmed.1),
                (true, false) => (trimmed.0, whole.len()),
                (false, _) => trimmed,
            };
        }
    }
    if from_right {
        cuts.reverse();
    }
    let mut out = List::new(text.meter());
    let mut start = bounds.0;
    for (cut_start, cut_end) in cuts {
        out.push(substring(text, start, cut_start)?)?;
        start = cut_end;
    }
    out.push(substring(text, start, bounds.1)?)?;
    Ok(out.into())
}

fn end_of((at, found): (usize, &str)) -> (usize, usize) {
    (at, at + found.len())
}

/// The runs of whitespace between words.
fn whitespace_runs(
    whole: &str,
    bounds: (usize, usize),
    most: usize,
    from_right: bool,
) -> Vec<(usize, usize)> {
    let mut whitespace_runs: Vec<(usize, usize)> = Vec::new();
    for (at, c) in whole[bounds.0..bounds.1]
        .char_indices()
        .filter(|(_, c)| is_space(*c))
    {
        let at = at + bounds.0;
        match whitespace_runs.last_mut() {
            Some(last) if last.1 == at => last.1 = at + c.len_utf8(),
            _ => whitespace_runs.push((at, at + c.len_utf8())),
        }
    }
    if from_right {
        whitespace_runs.reverse();
    }
    whitespace_runs.truncate(most);
    whitespace_runs
}

/// Python's `splitlines`.
pub(super) fn lines(text: &Text, keep_ends: bool) -> Result<Value> {
    let mut out = List::new(text.meter());
    let whole = text.as_str();
    text.meter().spend_bytes(whole.len())?;
    let mut start = 0;
    let mut chars = whole.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let is_end = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !is_end {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|(_, next)| *next == '\n') {
            chars.next();
            end += 1;
        }
        out.push(substring(text, start, if keep_ends { end } else { at })?)?;
        start = end;
    }
    if start < whole.len() {
        out.push(substring(text, start, whole.len())?)?;
    }
    Ok(out.into())
}

/// Python's `replace`; an empty `old` matches between all characters.
pub(super) fn replace(text: &Text, old: &str, new: &Text, most: Option<i64>) -> Result<Value> {
    let most = most.filter(|n| *n >= 0).map_or(usize::MAX, |n| n as usize);
    text.meter().spend_bytes(text.as_str().len())?;
    let mut out = Text::new(text.meter());
    let mut start = 0;
    for (at, found) in text.as_str().match_indices(old).take(most) {
        out.push_part(text, start, at)?;
        out.push_text(new)?;
        start = at + found.len();
    }
    out.push_part(text, start, text.as_str().len())?;
    Ok(out.into())
}

/// Joins values with a separator.
pub(super) fn join(values: &[Value], separator: &Text, meter: &Rc<Meter>) -> Result<Value> {
    let mut out = Text::new(meter);
    for (idx, value) in values.iter().enumerate() {
        if idx > 0 {
            out.push_text(separator)?;
        }
        super::print::display(value, &mut out)?;
    }
    Ok(out.into())
}

/// Maps each character to a sequence of characters; `map` learns whether a letter precedes it.
pub(super) fn map_chars<I: Iterator<Item = char>>(
    text: &Text,
    map: impl Fn(char, bool) -> I,
) -> Result<Value> {
    let mut out = Text::new(text.meter());
    let mut buffer = String::new();
    let (mut is_from_message, mut behind_letter) = (false, false);
    for (at, c) in text.as_str().char_indices() {
        let now_from_message = text.is_from_message_at(at);
        if now_from_message != is_from_message {
            out.push(&buffer, is_from_message)?;
            buffer.clear();
            is_from_message = now_from_message;
        }
        buffer.extend(map(c, behind_letter));
        behind_letter = c.is_alphabetic();
    }
    out.push(&buffer, is_from_message)?;
    Ok(out.into())
}

/// Which side of a text is padded.
#[derive(Clone, Copy)]
pub(super) enum Pad {
    Left,
    Right,
    Both,
}

/// Pads a string to `width` characters.
pub(super) fn pad(text: &Text, width: i64, fill: &str, side: Pad) -> Result<Value> {
    text.meter().spend_bytes(text.as_str().len())?;
    let len = text.as_str().chars().count();
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(len);
    let left = match side {
        Pad::Left => missing,
        Pad::Right => 0,
        // As CPython's `pad`: the odd one goes to the left of a text in an odd width.
        Pad::Both => missing / 2 + (missing & width & 1),
    };
    let mut out = Text::new(text.meter());
    for _ in 0..left {
        out.push(fill, false)?;
    }
    out.push_text(text)?;
    for _ in left..missing {
        out.push(fill, false)?;
    }
    Ok(out.into())
}

/// Pads a number with zeros behind its sign.
pub(super) fn pad_zeros(text: &Text, width: i64) -> Result<Value> {
    let sign = usize::from(text.as_str().starts_with(['+', '-']));
    let mut out = Text::new(text.meter());
    out.push_part(text, 0, sign)?;
    let mut digits = Text::new(text.meter());
    digits.push_part(text, sign, text.as_str().len())?;
    if let Value::Str(padded) = pad(&digits, width - sign as i64, "0", Pad::Left)? {
        out.push_text(&padded)?;
    }
    Ok(out.into())
}

//! Python's string formatting: `'%s' % x`, `'%s'|format(x)` and `'{}'.format(x)`.

use std::rc::Rc;

use super::args::Args;
use super::lists;
use super::meter::{Error, Meter, Result};
use super::print;
use super::strings::{self, Pad};
use super::text::Text;
use super::value::Value;

/// A format specification such as `08.2f`.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    plus: bool,
    zero: bool,
    width: i64,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Largest number of decimals.
const MAX_PRECISION: usize = 100;

/// `format % args`.
pub(super) fn percent(format: &Text, args: &[Value], meter: &Rc<Meter>) -> Result<Value> {
    let whole = format.as_str();
    let mut out = Text::new(meter);
    let mut args = args.iter();
    let (mut start, mut chars) = (0, whole.char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        if c != '%' {
            continue;
        }
        out.push_part(format, start, at)?;
        let mut spec = Spec::default();
        while let Some((_, flag)) = chars.next_if(|(_, c)| matches!(c, '-' | '+' | '0' | ' ' | '#'))
        {
            match flag {
                '-' => spec.align = Some('<'),
                '+' => spec.plus = true,
                '0' => spec.zero = true,
                _ => {}
            }
        }
        let number = |chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>| {
            let mut digits = String::new();
            while let Some((_, digit)) = chars.next_if(|(_, c)| c.is_ascii_digit()) {
                digits.push(digit);
            }
            digits.parse::<i64>().ok()
        };
        spec.width = number(&mut chars).unwrap_or(0);
        if chars.next_if(|(_, c)| *c == '.').is_some() {
            spec.precision = Some(number(&mut chars).unwrap_or(0).clamp(0, 1 << 20) as usize);
        }
        let Some((end, kind)) = chars.next() else {
            return Err(Error::new(
                "the format ends after `%`: expected a conversion such as `s` or `d`",
            ));
        };
        start = end + kind.len_utf8();
        if kind == '%' {
            out.push("%", false)?;
            continue;
        }
        spec.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
        let value = args
            .next()
            .ok_or_else(|| Error::new("the format has more conversions than values"))?;
        write(value, spec, &mut out)?;
    }
    out.push_part(format, start, whole.len())?;
    if args.next().is_some() {
        return Err(Error::new("the format has fewer conversions than values"));
    }
    Ok(out.into())
}

/// `format.format(args)`.
pub(super) fn braces(format: &Text, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let whole = format.as_str();
    let mut out = Text::new(meter);
    let (mut start, mut next) = (0, 0);
    let mut at = 0;
    while let Some(found) = whole[at..].find(['{', '}']).map(|found| found + at) {
        out.push_part(format, start, found)?;
        let rest = &whole[found..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_part(format, found, found + 1)?;
            at = found + 2;
            start = at;
            continue;
        }
        let end = rest.find('}').filter(|_| rest.starts_with('{'));
        let end = end.ok_or_else(|| Error::new("the format has an unmatched brace"))?;
        let (field, spec) = rest[1..end].split_once(':').unwrap_or((&rest[1..end], ""));
        let (field, is_repr) = match field.split_once('!') {
            Some((field, conversion)) => (field, conversion == "r"),
            None => (field, false),
        };
        let value = match field.parse::<usize>() {
            Ok(idx) => args.positional.get(idx),
            Err(_) if field.is_empty() => {
                next += 1;
                args.positional.get(next - 1)
            }
            Err(_) => args
                .named
                .iter()
                .find(|(name, _)| name == field)
                .map(|(_, value)| value),
        };
        let value = value.ok_or_else(|| {
            Error::new(format!(
                "the format uses the argument `{field:.40}`, which is missing"
            ))
        })?;
        let value = if is_repr {
            Value::list([value.clone()], meter)?
        } else {
            value.clone()
        };
        if is_repr {
            let text = print::text_of(&value, meter)?;
            out.push_part(&text, 1, text.as_str().len() - 1)?;
        } else {
            write(&value, parse_spec(spec)?, &mut out)?;
        }
        at = found + end + 1;
        start = at;
    }
    out.push_part(format, start, whole.len())?;
    args.positional.clear();
    args.named.clear();
    Ok(out.into())
}

/// Parses a format specification.
fn parse_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let mut chars: Vec<char> = text.chars().collect();
    let is_align = |c: &char| matches!(c, '<' | '>' | '^');
    if chars.get(1).is_some_and(is_align) {
        spec.fill = Some(chars.remove(0));
    }
    if chars.first().is_some_and(is_align) {
        spec.align = Some(chars.remove(0));
    }
    let mut rest: String = chars.into_iter().collect();
    if let Some(after) = rest.strip_prefix('+') {
        spec.plus = true;
        rest = after.to_owned();
    }
    spec.zero = rest.starts_with('0');
    if spec.zero {
        spec.fill.get_or_insert('0');
    }
    if let Some(kind) = rest.chars().next_back().filter(char::is_ascii_alphabetic) {
        spec.kind = Some(kind);
        rest.pop();
    }
    let (width, precision) = rest
        .split_once('.')
        .map_or((rest.as_str(), None), |(w, p)| (w, Some(p)));
    let number = |text: &str| match text {
        "" => Ok(0),
        text => text
            .parse::<i64>()
            .map_err(|_| Error::new(format!("the format `{text:.40}` is not supported"))),
    };
    spec.width = number(width)?;
    spec.precision = precision
        .map(number)
        .transpose()?
        .map(|n| n.clamp(0, 1 << 20) as usize);
    Ok(spec)
}

/// A float with this many digits in all, as `'{:.3}'` gives it.
fn general(x: f64, n_digits: usize) -> String {
    let n_digits = n_digits.max(1);
    let shown = format!("{x:.*e}", n_digits - 1);
    let (digits, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match exponent.parse::<i64>() {
        Ok(e) if e < -4 || e >= n_digits as i64 - 1 => {
            let sign = if e < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", without_zeros(digits), e.abs())
        }
        Ok(e) if x.is_finite() => {
            let n_decimals = usize::try_from(n_digits as i64 - 1 - e).unwrap_or(0);
            print::float(format!("{x:.n_decimals$}").parse().unwrap_or(x))
        }
        _ => print::float(x),
    }
}

/// Appends a value in this format.
fn write(value: &Value, spec: Spec, out: &mut Text) -> Result<()> {
    let meter = Rc::clone(out.meter());
    let digits = |n: usize| n.min(MAX_PRECISION);
    let signed = |text: String| {
        if spec.plus && !text.starts_with('-') {
            format!("+{text}")
        } else {
            text
        }
    };
    let need = || {
        value
            .as_float()
            .ok_or_else(|| Error::new("the format expects a number"))
    };
    let int = || need().map(|x| value.as_int().unwrap_or(x.trunc() as i64));
    let mut text = Text::new(&meter);
    let is_number = value.as_float().is_some() && !matches!(spec.kind, Some('s' | 'r'));
    match spec.kind {
        Some('d') => text.push(&signed(int()?.to_string()), false)?,
        Some('x') => text.push(&signed(format!("{:x}", int()?)), false)?,
        Some('X') => text.push(&signed(format!("{:X}", int()?)), false)?,
        Some('o') => text.push(&signed(format!("{:o}", int()?)), false)?,
        Some('b') => text.push(&signed(format!("{:b}", int()?)), false)?,
        Some('f' | 'F') => text.push(
            &signed(format!(
                "{:.*}",
                digits(spec.precision.unwrap_or(6)),
                need()?
            )),
            false,
        )?,
        Some('r') => print::repr(value, &mut text)?,
        None if is_number && !matches!(value, Value::Bool(_)) => {
            let shown = match (spec.precision, value) {
                (Some(n), Value::Float(_)) => general(need()?, digits(n)),
                _ => print::text_of(value, &meter)?.as_str().to_owned(),
            };
            text.push(&signed(shown), false)?;
        }
        Some('s') | None => {
            let whole = print::text_of(value, &meter)?;
            let n = spec.precision.unwrap_or(usize::MAX);
            let end = whole
                .as_str()
                .char_indices()
                .nth(n)
                .map_or(whole.as_str().len(), |(at, _)| at);
            text.push_part(&whole, 0, end)?;
        }
        Some(kind) => return Err(Error::new(format!("the format `{kind}` is not supported"))),
    }
    let fill = spec.fill.unwrap_or(' ').to_string();
    let align = spec
        .align
        .unwrap_or(if is_number || spec.kind == Some('s') {
            '>'
        } else {
            '<'
        });
    let padded = match align {
        _ if spec.zero && is_number && spec.align.is_none() => {
            strings::pad_zeros(&text, spec.width)?
        }
        '<' => strings::pad(&text, spec.width, &fill, Pad::Right)?,
        '^' => strings::pad(&text, spec.width, &fill, Pad::Both)?,
        _ => strings::pad(&text, spec.width, &fill, Pad::Left)?,
    };
    match &padded {
        Value::Str(padded) => out.push_part(padded, 0, padded.as_str().len()),
        other => lists::len(other, &meter).map(|_| ()),
    }
}

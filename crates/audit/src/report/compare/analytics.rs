//! `analytics.mil`: MIL text with `BackendSupport`, `EstimatedRuntime` and `SelectedBackend` on
//! each op.
//!
//! Apple's file has ops and attributes that no opset has, so this does not parse MIL: it finds
//! statements, the names that they define, and the attributes behind them.

use std::collections::BTreeSet;

use thane_mil::text::float;

use super::{CompareError, Device, Said};
use crate::place::{SLOTS, UNSUPPORTED};

/// What a file says of each op that has attributes.
pub fn read(text: &str) -> Result<Vec<Said>, CompareError> {
    if !text.contains("program") {
        return Err(CompareError::NotText);
    }
    let mut said = Vec::new();
    let mut function = String::new();
    let text = without_comments(text)?;
    for statement in statements(&text)? {
        if let Some(header) = statement.strip_prefix("func ") {
            function = header
                .split(['<', '('])
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned();
        } else if let Some(op) = op(statement, &function) {
            said.push(op);
        }
    }
    if said.is_empty() {
        return Err(CompareError::NoAttributes);
    }
    Ok(said)
}

fn without_comments(text: &str) -> Result<String, CompareError> {
    let mut out = String::with_capacity(text.len());
    let mut start = 0;
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => skip_string(&mut chars)?,
            '/' if text[i..].starts_with("//") => {
                out.push_str(&text[start..i]);
                start = chars
                    .find(|(_, c)| *c == '\n')
                    .map_or(text.len(), |(end, _)| end);
            }
            _ => {}
        }
    }
    out.push_str(&text[start..]);
    Ok(out)
}

/// Texts between `;`, `{` and `}` outside of parentheses, brackets and strings.
fn statements(text: &str) -> Result<Vec<&str>, CompareError> {
    let mut out = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => skip_string(&mut chars)?,
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ';' | '{' | '}' if depth == 0 => {
                out.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    out.retain(|s| !s.is_empty());
    Ok(out)
}

/// Go behind the end of a string whose first quote was read.
fn skip_string(chars: &mut impl Iterator<Item = (usize, char)>) -> Result<(), CompareError> {
    while let Some((_, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => return Ok(()),
            _ => {}
        }
    }
    Err(CompareError::Cut)
}

fn op(statement: &str, function: &str) -> Option<Said> {
    let (left, right) = split_outside(statement, '=')
        .split_first()
        .map(|(l, r)| (*l, r.to_vec()))?;
    let right = right
        .first()
        .map(|first| &statement[offset(statement, first)..])?;
    // Of several results the first names the op.
    let name = split_outside(left, ',')
        .first()?
        .split_whitespace()
        .next_back()?
        .to_owned();
    let call = right.find('(')?;
    let behind = &right[call + closing(&right[call..])? + 1..];
    let attributes = behind.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut said = Said {
        function: function.to_owned(),
        name,
        ..Said::default()
    };
    let mut estimates = Vec::new();
    let mut selected = None;
    for attribute in split_outside(attributes, ',') {
        let Some((key, value)) = attribute.split_once('=') else {
            continue;
        };
        match key.trim() {
            "BackendSupport" => {
                let devices = quoted(value).into_iter().filter(|b| b != UNSUPPORTED);
                said.supported = Some(
                    devices
                        .filter_map(|b| Device::parse(&b))
                        .collect::<BTreeSet<_>>(),
                );
            }
            "SelectedBackend" => selected = quoted(value).pop(),
            "EstimatedRuntime" => estimates = runtimes(value),
            _ => {}
        }
    }
    let selected = selected?;
    said.selected = Device::parse(&selected);
    said.ms = match &estimates[..] {
        [(name, ms)] if name.is_empty() => Some(*ms),
        all => all
            .iter()
            .find(|(name, _)| *name == selected)
            .map(|(_, ms)| *ms),
    };
    Some(said)
}

fn offset(whole: &str, part: &str) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// Where the bracket that a text begins with closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => skip_string(&mut chars).ok()?,
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// Parts of a text between a mark, where it stands outside of brackets of all kinds and of strings.
fn split_outside(text: &str, mark: char) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' if skip_string(&mut chars).is_err() => break,
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            c if c == mark && depth == 0 => {
                parts.push(&text[start..i]);
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The strings of a literal.
fn quoted(text: &str) -> Vec<String> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find('"') {
        let mut chars = rest[start + 1..].char_indices();
        if skip_string(&mut chars).is_err() {
            break;
        }
        let end = start + 1 + chars.next().map_or(rest.len() - start - 1, |(i, _)| i);
        out.push(rest[start + 1..end - 1].to_owned());
        rest = &rest[end..];
    }
    out
}

/// Milliseconds by backend: of a dictionary, of a list in the order of slots, or of one number,
/// which has no name.
fn runtimes(literal: &str) -> Vec<(String, f64)> {
    let Some(start) = literal.find('(') else {
        return Vec::new();
    };
    let body = &literal[start..];
    let names = quoted(body);
    let plain: String = names.iter().fold(body.to_owned(), |text, name| {
        text.replacen(&format!("\"{name}\""), " ", 1)
    });
    let words = plain.split(|c: char| !c.is_ascii_alphanumeric() && !".+-_".contains(c));
    // A type's own digits are words that begin with a letter.
    let numbers: Vec<f64> = words.filter(|w| !w.is_empty()).filter_map(float).collect();
    match (names.len(), numbers.len()) {
        (0, 1) => vec![(String::new(), numbers[0])],
        (0, _) => SLOTS.iter().map(|s| (*s).to_owned()).zip(numbers).collect(),
        _ => names.into_iter().zip(numbers).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_however_they_are_written() {
        let text = r#"program(1.0) [buildInfo = dict<string, string>({{"a;b", "{c"}})] {
  func main<ios18>(tensor<fp16, [1, 4]> x) { // a comment; with marks {
    tensor<fp16, [4]> w = const()[name = string("w"), val = tensor<fp16, [4]>([1, 2, 3, 4])];
    tensor<fp16, [1, 4]> y, tensor<int32, [1]> i = topk(x = x)[BackendSupport = list<string, 5>(["unsupported",
      "unsupported", "bnns", "classic_cpu", "ane"]), EstimatedRuntime = list<fp64, 5>([0, 0, 0x1p-3, 0.2, 0.05]),
      SelectedBackend = string("ane"), name = string("a\"]b")];
    tensor<fp16, [1, 4]> z = relu(x = y)[SelectedBackend = tensor<string, []>("bnns"),
      EstimatedRuntime = dict<string, fp64>({{"ane", 2}, {"bnns", 0x1p-1}})];
    tensor<fp16, [1, 4]> v = exp(x = z)[EstimatedRuntime = fp64(0.5), SelectedBackend = string("mps_graph")];
  } -> (v);
}"#;
        let said = read(text).unwrap();
        let found: Vec<_> = said
            .iter()
            .map(|s| (s.name.as_str(), s.selected, s.ms))
            .collect();
        assert_eq!(
            found,
            [
                ("y", Some(Device::Ane), Some(0.05)),
                ("z", Some(Device::Cpu), Some(0.5)),
                ("v", Some(Device::Gpu), Some(0.5)),
            ]
        );
        assert_eq!(
            said[0].supported,
            Some(BTreeSet::from([Device::Ane, Device::Cpu]))
        );
        assert!(said.iter().all(|s| s.function == "main"));
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        for text in [
            "",
            "hello",
            "program(1.0) { func f() { } -> (x); }",
            "program \"",
            "program ]]])))};= (",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}

//! MIL text: constants made up for its references, and changes that keep most of it MIL.

use libfuzzer_sys::fuzzer_mutate;
use thane_mil::data::Data;
use thane_mil::opset::GROUPS;
use thane_mil::types::{DType, TensorType};

use crate::Rng;

/// A constant of this type whose bytes follow from the offset.
pub fn resolve(_path: &str, offset: u64, ty: &TensorType) -> Option<Data> {
    let n = ty.byte_len().filter(|n| *n <= 1 << 14)?;
    let mut rng = Rng::new(&offset.to_le_bytes());
    let mut bytes: Vec<u8> = (0..n).map(|_| rng.number() as u8).collect();
    match ty.dtype {
        // Below these exponents every number is finite.
        DType::Fp32 => bytes.iter_mut().skip(3).step_by(4).for_each(|b| *b &= 0xbf),
        DType::Fp16 | DType::Bf16 => bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xbf),
        DType::Fp64 => bytes.iter_mut().skip(7).step_by(8).for_each(|b| *b &= 0xbf),
        DType::Bool => bytes.iter_mut().for_each(|b| *b &= 1),
        _ => {}
    }
    let n_last_bits = ty.n_elements()?.wrapping_mul(ty.dtype.bits()) % 8;
    if let Some(last) = bytes
        .last_mut()
        .filter(|_| n_last_bits != 0 && !offset.is_multiple_of(16))
    {
        *last &= (1 << n_last_bits) - 1;
    }
    Some(Data::owned(bytes))
}

/// Numbers at the edges of what ops and types hold.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
    "8",
    "16",
    "31",
    "64",
    "100",
    "-1",
    "-2",
    "-3",
    "127",
    "-128",
    "255",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "0x1p+0",
    "-0x1.8p+1",
    "0x1p-149",
    "0x1.fffffep+127",
    "0x1p-2147483648",
    "0x1p+2147483647",
    "1e39",
    "true",
    "false",
    "?",
]; // fmt: skip

/// What a mutator of MIL text does: bytes changed at random are hardly ever MIL, words changed for
/// others of their kind often are.
pub fn change_text(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut rng = Rng::new(&seed.to_le_bytes());
    if rng.below(4) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let Ok(text) = std::str::from_utf8(&data[..size]) else {
        return fuzzer_mutate(data, size, max_size);
    };
    let changed = mutate(text, &mut rng);
    match data
        .get_mut(..changed.len())
        .filter(|_| changed.len() <= max_size)
    {
        Some(out) => {
            out.copy_from_slice(changed.as_bytes());
            changed.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
}

/// The text with one to four changes.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut text = text.to_owned();
    for _ in 0..=rng.below(4) {
        text = if rng.below(3) == 0 {
            change_lines(&text, rng)
        } else {
            change_word(&text, rng)
        };
    }
    text
}

/// A line doubled, removed or moved.
fn change_lines(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return text.to_owned();
    }
    let (from, to) = (rng.below(lines.len()), rng.below(lines.len()));
    match rng.below(4) {
        0 => drop(lines.remove(from)),
        1 => lines.swap(from, to),
        2 => {
            let line = lines.remove(from);
            lines.insert(to.min(lines.len()), line);
        }
        _ => {
            let line = renamed(&lines[from], rng);
            lines.insert(from + 1, line);
        }
    }
    lines.join("\n")
}

/// A statement that gives its results other names.
fn renamed(line: &str, rng: &mut Rng) -> String {
    let Some((results, rest)) = line.split_once(" = ") else {
        return line.to_owned();
    };
    let results: Vec<String> = results
        .split("> ")
        .map(|part| format!("{part}{}", rng.below(100)))
        .collect();
    format!("{} = {rest}", results.join("> "))
}

/// A word, or a number, changed for another of its kind.
fn change_word(text: &str, rng: &mut Rng) -> String {
    let words = words(text);
    let Some(&(start, word)) = rng.pick(&words) else {
        return text.to_owned();
    };
    let is_number = word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '?'));
    let is_op = GROUPS
        .iter()
        .flat_map(|g| g.iter())
        .any(|def| def.name == word);
    let other = match rng.below(6) {
        0 => rng.pick(&words).map_or("", |(_, w)| w),
        _ if is_number => rng.pick(NUMBERS).copied().unwrap_or_default(),
        _ if is_op => rng
            .pick(GROUPS)
            .and_then(|g| rng.pick(g))
            .map_or("", |def| def.name),
        _ if DType::from_name(word).is_some() => rng.pick(DType::ALL).map_or("", |d| d.name()),
        _ => rng.pick(&words).map_or("", |(_, w)| w),
    };
    [&text[..start], other, &text[start + word.len()..]].concat()
}

/// The words and numbers of a text, and where they stand.
fn words(text: &str) -> Vec<(usize, &str)> {
    let is_word =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '?' | '@');
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(is_word).map(|i| at + i) {
        let len = text[start..]
            .find(|c| !is_word(c))
            .unwrap_or(text.len() - start);
        out.push((start, &text[start..start + len]));
        at = start + len;
    }
    out
}

//! Letter case, digits and whitespace as Python has them.

use std::rc::Rc;
use std::sync::LazyLock;

use regex::Regex;

use super::meter::Result;
use super::text::Text;
use super::value::Value;

/// The zeros of all decimal digits (general category Nd); each digit follows the one before it.
#[rustfmt::skip]
const ZEROS: [u32; 66] = [
    48, 1632, 1776, 1984, 2406, 2534, 2662, 2790, 2918, 3046, 3174, 3302, 3430, 3558, 3664, 3792,
    3872, 4160, 4240, 6112, 6160, 6470, 6608, 6784, 6800, 6992, 7088, 7232, 7248, 42528, 43216,
    43264, 43472, 43504, 43600, 44016, 65296, 66720, 68912, 69734, 69872, 69942, 70096, 70384,
    70736, 70864, 71248, 71360, 71472, 71904, 72016, 72784, 73040, 73120, 92768, 92864, 93008,
    120782, 120792, 120802, 120812, 120822, 123200, 123632, 125264, 130032,
];

/// Digits that are no decimal digits, such as those above and below the line.
#[rustfmt::skip]
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3), (0xb9, 0xb9), (0x1369, 0x1371), (0x19da, 0x19da), (0x2070, 0x2070),
    (0x2074, 0x2079), (0x2080, 0x2089), (0x2460, 0x2468), (0x2474, 0x247c), (0x2488, 0x2490),
    (0x24ea, 0x24ea), (0x24f5, 0x24fd), (0x24ff, 0x24ff), (0x2776, 0x277e), (0x2780, 0x2788),
    (0x278a, 0x2792), (0x10a40, 0x10a43), (0x10e60, 0x10e68), (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// What `repr` escapes: characters that are not printed, and spaces but the common one.
static UNPRINTED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]").ok());

/// `str.isprintable` of a character.
pub(super) fn is_printed(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let unprinted = UNPRINTED.as_ref();
    unprinted.is_some_and(|regex| !regex.is_match(c.encode_utf8(&mut [0; 4])))
}

/// The value of a decimal digit.
pub(super) fn decimal(c: char) -> Option<u32> {
    let code = u32::from(c);
    let above = ZEROS.partition_point(|zero| *zero <= code);
    let digit = code - ZEROS[above.checked_sub(1)?];
    (digit < 10).then_some(digit)
}

/// `str.isdigit` of a character.
pub(super) fn is_digit(c: char) -> bool {
    let code = u32::from(c);
    let other = |(first, last): &(u32, u32)| (*first..=*last).contains(&code);
    decimal(c).is_some() || OTHER_DIGITS.iter().any(other)
}

/// `str.isspace` of a character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.lower`: a sigma that ends a word has a form of its own, so that the text counts as a whole.
pub(super) fn lower(text: &Text) -> Result<Value> {
    map_with_lower(text, |_, _, lower| lower.to_owned())
}

/// `str.casefold`.
pub(super) fn casefold(text: &Text) -> Result<Value> {
    map_with_lower(text, |_, c, _| match c {
        'ı' => c.into(),
        _ => c.to_uppercase().flat_map(char::to_lowercase).collect(),
    })
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &Text) -> Result<Value> {
    map_with_lower(text, |at, c, lower| match at {
        0 => title_of(c),
        _ => lower.to_owned(),
    })
}

/// `str.title`: the letter behind a character without case begins a word.
pub(super) fn title(text: &Text) -> Result<Value> {
    let behind = std::cell::Cell::new(false);
    map_with_lower(text, |_, c, lower| {
        let is_cased = c.is_uppercase() || c.is_lowercase() || TITLES.iter().any(|t| t[1] == c);
        match behind.replace(is_cased) {
            true => lower.to_owned(),
            false => title_of(c),
        }
    })
}

/// The filter `title`, which separates words by spaces and brackets.
pub(super) fn title_of_words(text: &Text) -> Result<Value> {
    let begins = |c: char| is_space(c) || "-({[<".contains(c);
    let last = std::cell::Cell::new(None);
    map_with_lower(text, |_, c, lower| {
        match last.replace(Some(c)).is_none_or(begins) {
            true => c.to_uppercase().collect(),
            false => lower.to_owned(),
        }
    })
}

/// Letters with a form for titles: small, that form, and capital.
const TITLES: [[char; 3]; 4] = [
    ['ǆ', 'ǅ', 'Ǆ'],
    ['ǉ', 'ǈ', 'Ǉ'],
    ['ǌ', 'ǋ', 'Ǌ'],
    ['ǳ', 'ǲ', 'Ǳ'],
];

/// A letter at the beginning of a title.
fn title_of(c: char) -> String {
    if let Some(forms) = TITLES.iter().find(|forms| forms.contains(&c)) {
        return forms[1].into();
    }
    match c {
        // Georgian has no capitals in titles.
        'ა'..='ჿ' => c.into(),
        'ᾀ'..='ᾇ' | 'ᾐ'..='ᾗ' | 'ᾠ'..='ᾧ' => {
            char::from_u32(u32::from(c) + 8).unwrap_or(c).into()
        }
        'ᾳ' | 'ῃ' | 'ῳ' => char::from_u32(u32::from(c) + 9).unwrap_or(c).into(),
        _ => {
            let mut upper = c.to_uppercase();
            let first = upper.next().filter(|first| first.is_uppercase());
            let rest = |first| {
                upper
                    .flat_map(char::to_lowercase)
                    .fold(String::from(first), push)
            };
            first.map_or_else(|| c.to_uppercase().collect(), rest)
        }
    }
}

fn push(mut text: String, c: char) -> String {
    text.push(c);
    text
}

/// Maps each character, of which `map` gets the place and the lower case too.
fn map_with_lower(text: &Text, map: impl Fn(usize, char, &str) -> String) -> Result<Value> {
    let whole = text.as_str();
    let meter = Rc::clone(text.meter());
    meter.spend_bytes(whole.len())?;
    meter.hold(2 * whole.len())?;
    let lowered = whole.to_lowercase();
    let mut rest = lowered.as_str();
    let mut out = Text::new(&meter);
    for (at, c) in whole.char_indices() {
        let n = c.to_lowercase().map(char::len_utf8).sum();
        let (lower, behind) = rest.split_at_checked(n).unwrap_or((rest, ""));
        rest = behind;
        out.push(&map(at, c, lower), text.is_from_message_at(at))?;
    }
    meter.release(2 * whole.len());
    Ok(out.into())
}

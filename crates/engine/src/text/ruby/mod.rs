//! Patterns of `tokenizer.json`, whose syntax is Ruby's, in the syntax of the `regex` crate.
//!
//! The `tokenizers` library of Python matches with Oniguruma and its Ruby syntax; the crate is
//! built with `fancy-regex` here, which bounds its steps. Most patterns mean the same in both and
//! are left as they are. Where they do not, the pattern is written anew; what has no equivalent is
//! refused by name. Classes of characters were compared over all code points
//! (`tests/oracle/make_regexes.py` compares patterns over texts).

mod class;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use serde_json::value::RawValue;

use class::{Item, WORD, check_fold};

/// Pairs of letters that a single character folds to: case-insensitive Oniguruma takes the
/// character for the pair.
const FOLDED: [&str; 5] = ["ss", "ff", "fi", "fl", "st"];
/// Nested classes and groups.
const MAX_DEPTH: usize = 64;

/// The parts of a `tokenizer.json` that have patterns.
const PARTS: [&str; 3] = ["normalizer", "pre_tokenizer", "decoder"];

/// Translates the patterns of [`PARTS`] in their places; whether one became another.
pub(super) fn translate(parts: [&mut Value; 3]) -> Result<bool, String> {
    let mut is_changed = false;
    for part in parts {
        translate_below(part, &mut is_changed)?;
    }
    Ok(is_changed)
}

fn translate_below(value: &mut Value, is_changed: &mut bool) -> Result<(), String> {
    match value {
        Value::Array(values) => {
            for value in values {
                translate_below(value, is_changed)?;
            }
        }
        Value::Object(keys) => {
            if let Some(Value::String(pattern)) = keys.get_mut("Regex") {
                let made = translated(pattern).map_err(|what| {
                    format!(
                        "the pattern '{pattern:.60}' has what Thane does not read as transformers \
                         does: {what}"
                    )
                })?;
                *is_changed |= made != *pattern;
                *pattern = made;
            }
            for (key, value) in keys {
                if key != "Regex" {
                    translate_below(value, is_changed)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// A `tokenizer.json` with these [`PARTS`].
pub(super) fn with_parts(json: &[u8], parts: [&Value; 3]) -> serde_json::Result<Vec<u8>> {
    let mut file: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(json)?;
    for (key, part) in PARTS.into_iter().zip(parts) {
        file.insert(key.to_owned(), serde_json::value::to_raw_value(part)?);
    }
    serde_json::to_vec(&file)
}

/// A pattern in Ruby's syntax as one for `fancy-regex`.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut writer = Writer {
        chars: pattern.chars().collect(),
        at: 0,
        out: String::with_capacity(pattern.len() + 16),
        atom: None,
        run: String::new(),
        groups: vec![Group {
            start: 0,
            n_flags: 0,
            folds: false,
            any_empty: false,
            is_empty: true,
            looks: false,
        }],
    };
    writer.whole()?;
    Ok(writer.out)
}

/// A group that is open, or the whole pattern.
struct Group {
    /// Where it begins in the result.
    start: usize,
    /// Groups of flags that end with it.
    n_flags: usize,
    /// Whether case does not count now.
    folds: bool,
    /// Whether an alternative before may match no character, and the current one so far.
    any_empty: bool,
    is_empty: bool,
    /// Whether it looks around and takes nothing.
    looks: bool,
}

struct Writer {
    chars: Vec<char>,
    at: usize,
    out: String,
    /// The last part, if a repetition can follow it.
    atom: Option<Atom>,
    /// The plain characters before, where case does not count.
    run: String,
    groups: Vec<Group>,
}

#[derive(Clone, Copy)]
struct Atom {
    /// Where it begins in the result.
    start: usize,
    /// Whether it may match no character, and whether all that is before it in its alternative may.
    is_empty: bool,
    was_empty: bool,
}

impl Writer {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    /// Takes `text` if it comes next.
    fn takes(&mut self, text: &str) -> bool {
        let n = text.chars().count();
        let is_next = (self.chars.iter().skip(self.at))
            .take(n)
            .copied()
            .eq(text.chars());
        self.at += if is_next { n } else { 0 };
        is_next
    }

    /// Takes what comes up to `end`, and `end`.
    fn until(&mut self, end: char) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.next() {
                Some(c) if c == end => return Ok(text),
                Some(c) => text.push(c),
                None => return Err(format!("a pattern ends before '{end}'")),
            }
        }
    }

    fn folds(&self) -> bool {
        self.groups.last().is_some_and(|group| group.folds)
    }

    /// Writes a part that a repetition can follow, and that may match no character if `is_empty`
    /// says so.
    fn part(&mut self, text: &str, is_empty: bool) {
        let start = self.out.len();
        self.run.clear();
        self.out.push_str(text);
        self.ends_atom(start, is_empty);
    }

    /// What was written from `start` on is a part.
    fn ends_atom(&mut self, start: usize, is_empty: bool) {
        let Some(group) = self.groups.last_mut() else {
            return;
        };
        self.atom = Some(Atom {
            start,
            is_empty,
            was_empty: group.is_empty,
        });
        group.is_empty &= is_empty;
    }

    fn whole(&mut self) -> Result<(), String> {
        while let Some(c) = self.next() {
            match c {
                '\\' => self.escape()?,
                '[' => {
                    let class = self.class(0)?;
                    self.part(&class, false);
                }
                '(' => self.open()?,
                ')' => self.close()?,
                '|' => {
                    self.out.push('|');
                    self.atom = None;
                    self.run.clear();
                    if let Some(group) = self.groups.last_mut() {
                        group.any_empty |= group.is_empty;
                        group.is_empty = true;
                    }
                }
                // Lines, whatever the flags; none begins behind the last line break of a text.
                '^' => self.part(r"(?:\A|(?<=\n)(?!\z))", true),
                '$' => self.part("(?m:$)", true),
                '.' => self.part(".", false),
                '*' => self.repeat("*", (0, true))?,
                '+' => self.repeat("+", (1, true))?,
                '?' => self.repeat("?", (0, false))?,
                '{' => self.interval()?,
                c => self.literal(c)?,
            }
        }
        if self.groups.len() > 1 {
            return Err("a pattern has a group without an end".to_owned());
        }
        self.end_flags();
        Ok(())
    }

    fn end_flags(&mut self) {
        let n_flags = self.groups.last().map_or(0, |group| group.n_flags);
        self.out.extend(std::iter::repeat_n(')', n_flags));
    }

    /// A character that means itself.
    fn literal(&mut self, c: char) -> Result<(), String> {
        let start = self.out.len();
        if r"\.+*?()|[]{}^$".contains(c) {
            self.out.push('\\');
        }
        self.out.push(c);
        self.ends_atom(start, false);
        if !self.folds() {
            return Ok(());
        }
        check_fold(c)?;
        self.run.extend(c.to_lowercase());
        match FOLDED.iter().find(|pair| self.run.ends_with(**pair)) {
            Some(pair) => Err(format!(
                "'{pair}' where case does not count, which is also a single character in \
                 transformers"
            )),
            None => Ok(()),
        }
    }

    /// A repetition of the last part, which takes it `least` times or more, and more than once if
    /// `is_many` says so. `+` behind an interval, and what else follows a repetition, repeats both.
    fn repeat(&mut self, how: &str, (least, is_many): (u32, bool)) -> Result<(), String> {
        let atom = self.repeatable(how, is_many)?;
        self.run.clear();
        self.out.push_str(how);
        let can_be_possessive = !how.ends_with('}');
        if let Some(c @ ('?' | '+')) = self.peek()
            && (c == '?' || can_be_possessive)
        {
            self.at += 1;
            self.out.push(c);
        }
        if self.peek().is_some_and(|c| "*+?{".contains(c)) {
            self.out.insert_str(atom.start, "(?:");
            self.out.push(')');
        }
        self.repeated(atom, least);
        Ok(())
    }

    /// The last part. The two engines end a repetition of nothing at other places.
    fn repeatable(&self, how: &str, is_many: bool) -> Result<Atom, String> {
        match self.atom {
            None => Err(format!("the repetition {how} of nothing")),
            Some(atom) if atom.is_empty && is_many => {
                Err(format!("the repetition {how} of what may be empty"))
            }
            Some(atom) => Ok(atom),
        }
    }

    fn repeated(&mut self, atom: Atom, least: u32) {
        let is_empty = atom.is_empty || least == 0;
        self.atom = Some(Atom { is_empty, ..atom });
        if let Some(group) = self.groups.last_mut() {
            group.is_empty = atom.was_empty && is_empty;
        }
    }

    /// A repetition such as `{1,3}`, or braces that mean themselves.
    fn interval(&mut self) -> Result<(), String> {
        let begin = self.at;
        let text = self.until('}').unwrap_or_default();
        let (least, most) = match text.split_once(',') {
            Some((least, most)) => (least, Some(most)),
            None => (&*text, None),
        };
        let is_number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
        let is_empty = least.is_empty() && most.is_none_or(str::is_empty);
        if is_empty || !is_number(least) || !most.is_none_or(is_number) {
            self.at = begin;
            return self.literal('{');
        }
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| format!("{{{text}}}"));
        let low = if least.is_empty() { 0 } else { number(least)? };
        match most {
            Some(high) if !high.is_empty() && number(high)? < low => {
                Err(format!("the repetition {{{text}}}"))
            }
            Some(high) => {
                let is_many = !matches!(high, "0" | "1");
                self.repeat(&format!("{{{low},{high}}}"), (low, is_many))
            }
            // A question mark behind it makes it optional.
            None if self.peek() == Some('?') => {
                let atom = self.repeatable(&text, low > 1)?;
                self.out.insert_str(atom.start, "(?:");
                let _ = write!(self.out, "{{{low}}})");
                self.repeated(atom, low);
                Ok(())
            }
            None => self.repeat(&format!("{{{low}}}"), (low, low > 1)),
        }
    }

    fn open(&mut self) -> Result<(), String> {
        if self.groups.len() >= MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} groups in each other"));
        }
        if self.peek() == Some('*') {
            return Err("the callout (*".to_owned());
        }
        let start = self.out.len();
        self.run.clear();
        let folds = self.folds();
        let group = Group {
            start,
            n_flags: 0,
            folds,
            any_empty: false,
            is_empty: true,
            looks: false,
        };
        if !self.takes("?") {
            self.begin("(", group);
            return Ok(());
        }
        if self.takes("#") {
            self.until(')')?;
            return Ok(());
        }
        for kind in [":", "=", "!", ">", "<=", "<!"] {
            if self.takes(kind) {
                let looks = kind != ":" && kind != ">";
                self.begin(&format!("(?{kind}"), Group { looks, ..group });
                return Ok(());
            }
        }
        let name = match self.peek() {
            Some('<') => Some('>'),
            Some('\'') => Some('\''),
            _ => None,
        };
        if let Some(end) = name {
            self.at += 1;
            let name = self.until(end)?;
            self.begin(&format!("(?<{name}>"), group);
            return Ok(());
        }
        self.flags(group)
    }

    fn begin(&mut self, text: &str, group: Group) {
        self.out.push_str(text);
        self.atom = None;
        self.groups.push(group);
    }

    /// Flags of a group, or of the rest of the group that they stand in, with its alternatives.
    fn flags(&mut self, group: Group) -> Result<(), String> {
        let (mut written, mut folds, mut is_on) = (String::new(), group.folds, true);
        loop {
            match self.next() {
                Some('i') => {
                    folds = is_on;
                    written.push('i');
                }
                // The dot takes line breaks too.
                Some('m') => written.push('s'),
                Some('-') if is_on => {
                    is_on = false;
                    written.push('-');
                }
                Some(end @ (':' | ')')) => {
                    let written = match written.trim_end_matches('-') {
                        "" => "(?:".to_owned(),
                        flags => format!("(?{flags}:"),
                    };
                    if end == ':' {
                        self.begin(&written, Group { folds, ..group });
                    } else if let Some(group) = self.groups.last_mut() {
                        group.n_flags += 1;
                        group.folds = folds;
                        self.out.push_str(&written);
                        self.atom = None;
                    }
                    return Ok(());
                }
                Some(c) => return Err(format!("the group (?{written}{c}")),
                None => return Err("a pattern ends in a group".to_owned()),
            }
        }
    }

    fn close(&mut self) -> Result<(), String> {
        if self.groups.len() == 1 {
            return Err("a pattern has a ')' without a group".to_owned());
        }
        self.end_flags();
        self.out.push(')');
        self.run.clear();
        if let Some(group) = self.groups.pop() {
            let is_empty = group.looks || group.any_empty || group.is_empty;
            self.ends_atom(group.start, is_empty);
        }
        Ok(())
    }

    /// What follows a backslash outside of classes.
    fn escape(&mut self) -> Result<(), String> {
        let Some(c) = self.next() else {
            return Err("a pattern ends in a backslash".to_owned());
        };
        let is_empty = matches!(c, 'b' | 'B' | 'A' | 'z' | 'Z' | 'K' | '1'..='9');
        let text = match c {
            'b' => format!("(?:(?<=[{WORD}])(?![{WORD}])|(?<![{WORD}])(?=[{WORD}]))"),
            'B' => format!("(?:(?<=[{WORD}])(?=[{WORD}])|(?<![{WORD}])(?![{WORD}]))"),
            'A' | 'z' | 'K' => format!("\\{c}"),
            'Z' => r"(?=\n?\z)".to_owned(),
            'R' => "(?>\\r\\n|[\\n-\\r\u{85}\u{2028}\u{2029}])".to_owned(),
            'N' => r"[^\n]".to_owned(),
            'O' => "(?s:.)".to_owned(),
            '1'..='9' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => format!("\\{c}"),
            'w' => format!("[{WORD}]"),
            'W' => format!("[^{WORD}]"),
            'p' | 'P' => self.property(c == 'P', false)?,
            _ => match self.common_escape(c)? {
                Item::Char(c) => return self.literal(c),
                Item::Set(set) => set,
            },
        };
        self.part(&text, is_empty);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What models use is left as it is, so that it is matched in linear time.
    #[test]
    fn usual_patterns_stay() {
        for pattern in [
            r"\s+(?!\S)|\s+",
            r" ?[^\s\p{L}\p{N}]+|\p{N}{1,3}",
            r"\A +| +\z",
            " {2,}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+",
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            "\u{2581}|[一-龥]+|[ \u{3000}]",
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(pattern));
        }
    }

    #[test]
    fn what_means_something_else_is_written_anew() {
        for (pattern, expected) in [
            (r"\p{N}{1,3}+", r"(?:\p{N}{1,3})+"),
            ("a{2}?", "(?:a{2})?"),
            ("a{,2}b{x}", r"a{0,2}b\{x\}"),
            ("(?m:.)", "(?s:.)"),
            ("a(?i)b|c", "a(?i:b|c)"),
            ("(a(?i)b)c", "(a(?i:b))c"),
            ("[[:alpha:]_-]", r"[[\p{Alphabetic}]_\-]"),
            ("[a~~+--]", r"[a\~\~+-\-]"),
            (r"\h", "[0-9a-fA-F]"),
            (r"\p{^L}\P{^N}", r"\P{L}\p{N}"),
            (r"a(?#b)c\<", "ac<"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn what_has_no_equivalent_is_named() {
        for (pattern, expected) in [
            (r"a\Xb", r"\X"),
            ("(?i:ss)", "'ss' where case does not count"),
            ("(?i:[ß])", "'ß' where case does not count"),
            ("(?~a)", "the group (?~"),
            ("(a*)*", "the repetition * of what may be empty"),
            ("(a|)+", "the repetition + of what may be empty"),
            ("a{3,1}", "the repetition {3,1}"),
            ("(a", "a group without an end"),
            ("a)", "a ')' without a group"),
            ("[a", "ends in a class"),
            ("[[:nothing:]]", "the class [:nothing:]"),
        ] {
            let found = translated(pattern).unwrap_err();
            assert!(found.contains(expected), "{pattern}: {found}");
        }
        assert!(translated(&"(".repeat(1000)).is_err());
        assert!(translated(&"[".repeat(1000)).is_err());
    }
}

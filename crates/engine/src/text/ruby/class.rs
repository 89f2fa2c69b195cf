//! Classes and escapes of a pattern in Ruby's syntax.

use super::{MAX_DEPTH, Writer};

/// Word characters of Oniguruma: six superscripts and fractions of Latin-1 are among them, joiners
/// are not.
pub(super) const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}²³¹¼-¾";
/// The same in a class, without those six.
const WORD_IN_CLASS: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";
/// Visible characters.
const GRAPH: &str = r"^\s\p{Cc}\p{Cn}";

/// A part of a class: a character, which can begin or end a range, or a set.
pub(super) enum Item {
    Char(char),
    Set(String),
}

impl Writer {
    /// What a backslash means in classes and outside of them.
    pub(super) fn common_escape(&mut self, c: char) -> Result<Item, String> {
        let set = match c {
            'd' | 'D' | 's' | 'S' => format!("\\{c}"),
            'w' => format!("[{WORD_IN_CLASS}]"),
            'W' => format!("[^{WORD_IN_CLASS}]"),
            'h' => "[0-9a-fA-F]".to_owned(),
            'H' => "[^0-9a-fA-F]".to_owned(),
            'p' | 'P' => self.property(c == 'P', true)?,
            't' => return Ok(Item::Char('\t')),
            'n' => return Ok(Item::Char('\n')),
            'r' => return Ok(Item::Char('\r')),
            'f' => return Ok(Item::Char('\x0c')),
            'v' => return Ok(Item::Char('\x0b')),
            'a' => return Ok(Item::Char('\x07')),
            'e' => return Ok(Item::Char('\x1b')),
            'x' | 'u' => return self.code(c).map(Item::Char),
            c if c.is_ascii_alphanumeric() => return Err(format!("\\{c}")),
            c => return Ok(Item::Char(c)),
        };
        Ok(Item::Set(set))
    }

    /// The character of `\x41`, `\x{41}` or `\u0041`.
    fn code(&mut self, kind: char) -> Result<char, String> {
        let digits = if kind == 'x' && self.takes("{") {
            self.until('}')?
        } else {
            let most = if kind == 'x' { 2 } else { 4 };
            let rest = self.chars.iter().skip(self.at).take(most);
            let digits: String = rest.take_while(|c| c.is_ascii_hexdigit()).collect();
            self.at += digits.len();
            // \x80 and above are bytes.
            let is_byte = kind == 'x' && u32::from_str_radix(&digits, 16).is_ok_and(|n| n > 0x7f);
            if is_byte || (kind == 'u' && digits.len() < 4) {
                return Err(format!("\\{kind}{digits}"));
            }
            digits
        };
        let code = u32::from_str_radix(&digits, 16)
            .ok()
            .and_then(char::from_u32);
        code.ok_or_else(|| format!("\\{kind}{{{digits}}}"))
    }

    /// `\p{Name}`, `\P{Name}`, `\p{^Name}`.
    pub(super) fn property(&mut self, is_negated: bool, in_class: bool) -> Result<String, String> {
        if !self.takes("{") {
            return Err("\\p without braces".to_owned());
        }
        let name = self.until('}')?;
        let (name, is_negated) = match name.strip_prefix('^') {
            Some(name) => (name, !is_negated),
            None => (&*name, is_negated),
        };
        let skipped = |c: &char| !matches!(c, ' ' | '_' | '-');
        let key: String = name.to_lowercase().chars().filter(skipped).collect();
        let set = match &*key {
            "word" if in_class => WORD_IN_CLASS,
            "word" => WORD,
            "punct" => r"\p{P}",
            key => match posix(key) {
                Some(set) => set,
                None if is_negated => return Ok(format!("\\P{{{name}}}")),
                None => return Ok(format!("\\p{{{name}}}")),
            },
        };
        Ok(within_class(set, is_negated))
    }

    /// A class, behind its `[`.
    pub(super) fn class(&mut self, depth: usize) -> Result<String, String> {
        if depth >= MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} classes in each other"));
        }
        let mut out = String::from("[");
        let is_negated = self.takes("^");
        if is_negated {
            out.push('^');
        }
        if self.peek() == Some(']') {
            return Err("a class that begins with ']'".to_owned());
        }
        loop {
            if self.takes("]") {
                out.push(']');
                return Ok(out);
            }
            if self.takes("&&") {
                if self.folds() {
                    return Err("&& where case does not count".to_owned());
                }
                out.push_str("&&");
                continue;
            }
            let first = match self.item(depth)? {
                Item::Char(c) => c,
                Item::Set(set) => {
                    out.push_str(&set);
                    continue;
                }
            };
            push_in_class(&mut out, first);
            if self.peek() != Some('-') || self.chars.get(self.at + 1) == Some(&']') {
                continue;
            }
            self.at += 1;
            match self.item(depth)? {
                Item::Char(last) if last < first => {
                    return Err(format!("the range {first}-{last}"));
                }
                Item::Char(last) => {
                    if self.folds() && !(first.is_ascii() && last.is_ascii()) {
                        return Err(format!(
                            "the range {first}-{last} where case does not count"
                        ));
                    }
                    out.push('-');
                    push_in_class(&mut out, last);
                    // Behind a range, it means itself.
                    if self.takes("-") {
                        out.push_str("\\-");
                    }
                }
                Item::Set(set) => {
                    out.push_str("\\-");
                    out.push_str(&set);
                }
            }
        }
    }

    /// What comes next in a class.
    fn item(&mut self, depth: usize) -> Result<Item, String> {
        let folds = self.folds();
        let item = match self.next() {
            None => return Err("a pattern ends in a class".to_owned()),
            Some('[') => match self.posix_bracket()? {
                Some(set) => Item::Set(set),
                None if folds => {
                    return Err("classes in classes where case does not count".to_owned());
                }
                None => Item::Set(self.class(depth + 1)?),
            },
            Some('\\') => match self.next() {
                Some('b') => Item::Char('\x08'),
                Some(c) => self.common_escape(c)?,
                None => return Err("a pattern ends in a backslash".to_owned()),
            },
            Some(c) => Item::Char(c),
        };
        match &item {
            Item::Char(c) if folds => check_fold(*c)?,
            Item::Set(set) if folds && set != r"\s" && set != r"\d" => {
                return Err("a class of many characters where case does not count".to_owned());
            }
            _ => {}
        }
        Ok(item)
    }

    /// `[:alpha:]`, behind its first bracket, in a class.
    fn posix_bracket(&mut self) -> Result<Option<String>, String> {
        let begin = self.at;
        if !self.takes(":") {
            return Ok(None);
        }
        let is_negated = self.takes("^");
        let rest = self.chars.iter().skip(self.at);
        let name: String = rest.take_while(|c| c.is_ascii_alphabetic()).collect();
        self.at += name.len();
        if !self.takes(":]") {
            self.at = begin;
            return Ok(None);
        }
        let set = match &*name {
            "word" => WORD_IN_CLASS,
            "punct" => r"\p{P}\p{S}",
            name => posix(name).ok_or_else(|| format!("the class [:{name}:]"))?,
        };
        Ok(Some(within_class(set, is_negated)))
    }
}

/// What the names of POSIX mean, without brackets around.
fn posix(name: &str) -> Option<&'static str> {
    Some(match name {
        "alnum" => r"\p{Alphabetic}\p{Nd}",
        "alpha" => r"\p{Alphabetic}",
        "ascii" => r"\x00-\x7f",
        "blank" => r"\p{Zs}\t",
        "cntrl" => r"\p{Cc}",
        "digit" => r"\p{Nd}",
        "graph" => GRAPH,
        "lower" => r"\p{Lowercase}",
        "print" => r"[^\s\p{Cc}\p{Cn}]\p{Zs}",
        "space" => r"\s",
        "upper" => r"\p{Uppercase}",
        "xdigit" => "0-9a-fA-F",
        _ => return None,
    })
}

/// The class of a set, or of all other characters.
fn within_class(set: &str, is_negated: bool) -> String {
    match (set.strip_prefix('^'), is_negated) {
        (Some(set), true) => format!("[{set}]"),
        (None, true) => format!("[^{set}]"),
        _ => format!("[{set}]"),
    }
}

/// A character in a class, where `-`, `&` and `~` may be operators.
fn push_in_class(out: &mut String, c: char) {
    if r"[]^-&~\".contains(c) {
        out.push('\\');
    }
    out.push(c);
}

/// Refuses a character that folds to several, where case does not count.
pub(super) fn check_fold(c: char) -> Result<(), String> {
    let folds_to_several = c.to_uppercase().count() > 1 || c.to_lowercase().count() > 1 || c == 'ẞ';
    match folds_to_several {
        true => Err(format!(
            "'{c}' where case does not count, which is also several characters in transformers"
        )),
        false => Ok(()),
    }
}

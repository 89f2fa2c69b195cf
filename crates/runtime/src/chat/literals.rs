//! Reads literals of Python and of the formats between JSON and Python that models write.

use serde_json::{Map, Number, Value};

/// Most lists and dicts within each other.
const MAX_DEPTH: usize = 32;

/// A text that is read from its start.
pub(super) struct Literals<'t> {
    rest: &'t str,
    /// Text around a string, beside quotation marks.
    quote: Option<&'static str>,
    depth: usize,
}

impl<'t> Literals<'t> {
    pub fn new(text: &'t str, quote: Option<&'static str>) -> Self {
        Self {
            rest: text,
            quote,
            depth: 0,
        }
    }

    /// A name, which may have dots.
    pub fn name(&mut self) -> Option<String> {
        self.skip_space();
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        let n = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(n);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Takes a character if it comes next.
    pub fn take(&mut self, c: char) -> bool {
        let is_next = self.is_at(c);
        if is_next {
            self.rest = &self.rest[c.len_utf8()..];
        }
        is_next
    }

    /// Takes a character that must come next.
    pub fn expect(&mut self, c: char) -> Option<()> {
        self.take(c).then_some(())
    }

    pub fn is_at(&mut self, c: char) -> bool {
        self.skip_space();
        self.rest.starts_with(c)
    }

    pub fn is_over(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }

    /// A string, number, constant, list or dict.
    pub fn value(&mut self) -> Option<Value> {
        self.skip_space();
        if let Some(text) = self.quoted() {
            return Some(Value::String(text));
        }
        match self.rest.chars().next()? {
            '"' | '\'' => self.string().map(Value::String),
            '[' | '(' => self.list(),
            '{' => self.dict(),
            _ => self.word(),
        }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.quote?;
        let (text, rest) = self.rest.strip_prefix(quote)?.split_once(quote)?;
        self.rest = rest;
        Some(text.to_owned())
    }

    fn string(&mut self) -> Option<String> {
        let mut chars = self.rest.char_indices();
        let (_, mark) = chars.next()?;
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            if c == mark {
                self.rest = &self.rest[at + 1..];
                return Some(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            match chars.next()?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'u' => {
                    let digits: String = (0..4).filter_map(|_| chars.next()).map(|c| c.1).collect();
                    let code = u32::from_str_radix(&digits, 16).ok()?;
                    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                c => text.extend(['\\', c]),
            }
        }
        None
    }

    fn list(&mut self) -> Option<Value> {
        let end = if self.take('[') { ']' } else { ')' };
        if end == ')' {
            self.expect('(')?;
        }
        self.deeper()?;
        let mut items = Vec::new();
        while !self.take(end) {
            items.push(self.value()?);
            if !self.take(',') && !self.is_at(end) {
                return None;
            }
        }
        self.depth -= 1;
        Some(Value::Array(items))
    }

    fn dict(&mut self) -> Option<Value> {
        self.expect('{')?;
        self.deeper()?;
        let mut fields = Map::new();
        while !self.take('}') {
            let key = match self.quoted() {
                Some(key) => key,
                None if self.is_at('"') || self.is_at('\'') => self.string()?,
                None => self.name()?,
            };
            self.expect(':')?;
            fields.insert(key, self.value()?);
            if !self.take(',') && !self.is_at('}') {
                return None;
            }
        }
        self.depth -= 1;
        Some(Value::Object(fields))
    }

    fn deeper(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth <= MAX_DEPTH).then_some(())
    }

    /// A constant, a number, or a string without quotation marks where there is another quote.
    fn word(&mut self) -> Option<Value> {
        let n = self
            .rest
            .find([',', ')', ']', '}'])
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(n);
        let word = word.trim();
        let value = match word {
            "True" | "true" => Value::Bool(true),
            "False" | "false" => Value::Bool(false),
            "None" | "null" => Value::Null,
            _ => match word.parse::<Number>() {
                Ok(number) => Value::Number(number),
                Err(_) if self.quote.is_some() && !word.is_empty() => Value::from(word),
                Err(_) => return None,
            },
        };
        self.rest = rest;
        Some(value)
    }
}

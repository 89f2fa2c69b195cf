//! Splits a template into tokens: the text outside of tags, and the tokens inside of tags.

use super::meter::{Error, Result};

/// A token of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text that is printed as it is.
    Text(String),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
}

/// A token with its line, counted from 1.
#[derive(Debug)]
pub(super) struct Spanned {
    pub(super) token: Token,
    pub(super) line: u32,
}

/// Largest accepted template in bytes. Templates in use have up to 60 kB.
const MAX_BYTES: usize = 1 << 20;

/// Longer operators come first.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",",
];

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Print,
    Block,
    Comment,
}

/// The tokens of a template after whitespace control: blocks drop the spaces before them on their
/// line and the line break after them, the Jinja settings that transformers uses.
pub(super) fn tokens(source: &str) -> Result<Vec<Spanned>> {
    if source.len() > MAX_BYTES {
        return Err(Error::new(format!(
            "expected a template of at most {MAX_BYTES} bytes, found {}",
            source.len()
        )));
    }
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer {
        source: &source,
        pos: 0,
        line: 1,
        starts_line: true,
        out: Vec::new(),
    };
    lexer.run()?;
    Ok(lexer.out)
}

struct Lexer<'a> {
    source: &'a str,
    pos: usize,
    line: u32,
    /// Whether the text so far ends with a line break.
    starts_line: bool,
    out: Vec<Spanned>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.pos..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.pos..self.pos + bytes];
        self.line += passed.bytes().filter(|b| *b == b'\n').count() as u32;
        self.pos += bytes;
    }

    fn push(&mut self, token: Token) {
        self.out.push(Spanned {
            token,
            line: self.line,
        });
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::new(message).at(self.line))
    }

    fn run(&mut self) -> Result<()> {
        while !self.rest().is_empty() {
            let rest = self.rest();
            let Some((at, tag)) = next_tag(rest) else {
                self.push(Token::Text(rest.to_owned()));
                self.pos = self.source.len();
                return Ok(());
            };
            let sign = rest[at + 2..]
                .chars()
                .next()
                .filter(|c| matches!(c, '-' | '+'));
            let text = before_tag(&rest[..at], tag, sign, self.starts_line);
            if !text.is_empty() {
                self.push(Token::Text(text.to_owned()));
            }
            self.advance(at + 2 + sign.map_or(0, char::len_utf8));
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block if self.at_raw() => self.raw()?,
                Tag::Block => self.tag(Token::BlockBegin, Token::BlockEnd, "%}")?,
                Tag::Print => self.tag(Token::PrintBegin, Token::PrintEnd, "}}")?,
            }
        }
        Ok(())
    }

    fn comment(&mut self) -> Result<()> {
        let Some(at) = self.rest().find("#}") else {
            return self
                .error("expected `#}` at the end of the comment, found the end of the template");
        };
        let sign = self.rest()[..at].chars().next_back();
        self.advance(at + 2);
        self.after_tag(sign, true);
        Ok(())
    }

    /// Skips the whitespace that the end of a tag removes.
    fn after_tag(&mut self, sign: Option<char>, trims: bool) {
        let rest = self.rest();
        let bytes = match sign {
            Some('-') => rest.len() - rest.trim_start().len(),
            Some('+') => 0,
            _ => usize::from(trims && rest.starts_with('\n')),
        };
        self.starts_line = rest[..bytes].ends_with('\n');
        self.advance(bytes);
    }

    /// Whether a `{% raw %}` tag is next.
    fn at_raw(&self) -> bool {
        let Some(rest) = self.rest().trim_start().strip_prefix("raw") else {
            return false;
        };
        let rest = rest.trim_start();
        rest.starts_with("%}") || rest.starts_with("-%}")
    }

    /// Reads the text up to `{% endraw %}`.
    fn raw(&mut self) -> Result<()> {
        let begin = self.rest().find("%}").unwrap_or_default();
        let sign = self.rest()[..begin]
            .chars()
            .next_back()
            .filter(|c| *c == '-');
        self.advance(begin + 2);
        self.after_tag(sign, false);
        let rest = self.rest();
        let mut from = 0;
        while let Some(at) = rest[from..].find("{%").map(|at| at + from) {
            let inner = rest[at + 2..].trim_start_matches(['-', '+']).trim_start();
            let end = inner.strip_prefix("endraw").map(str::trim_start);
            let end_sign = end
                .and_then(|end| end.chars().next())
                .filter(|c| matches!(c, '-' | '+'));
            if let Some(after) =
                end.and_then(|end| end.trim_start_matches(['-', '+']).strip_prefix("%}"))
            {
                let sign = rest[at + 2..]
                    .chars()
                    .next()
                    .filter(|c| matches!(c, '-' | '+'));
                let text = before_tag(&rest[..at], Tag::Block, sign, self.starts_line).to_owned();
                self.push(Token::Text(text));
                self.advance(rest.len() - after.len());
                self.after_tag(end_sign, true);
                return Ok(());
            }
            from = at + 2;
        }
        self.error("expected `endraw`, found the end of the template")
    }

    /// Reads the tokens of a tag and its end.
    fn tag(&mut self, begin: Token, end: Token, ends: &str) -> Result<()> {
        let first_line = self.line;
        self.push(begin);
        // Closing brackets that are still expected, because `}}` may close two of them.
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start().len();
            self.advance(spaces);
            let rest = self.rest();
            let sign = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
            if open.is_empty() {
                let body = if sign == Some('-') || (sign == Some('+') && ends == "%}") {
                    &rest[1..]
                } else {
                    rest
                };
                if body.starts_with(ends) {
                    self.push(end);
                    self.advance(rest.len() - body.len() + 2);
                    self.after_tag(sign.filter(|_| body.len() < rest.len()), ends == "%}");
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else {
                return Err(Error::new(format!(
                    "expected `{ends}`, found the end of the template"
                ))
                .at(first_line));
            };
            self.token(first, &mut open)?;
        }
    }

    /// Reads one token inside of a tag.
    fn token(&mut self, first: char, open: &mut Vec<&'static str>) -> Result<()> {
        let rest = self.rest();
        if first == '\'' || first == '"' {
            let (text, bytes) = match string(rest, first) {
                Ok(found) => found,
                Err(message) => return self.error(message),
            };
            self.push(Token::Str(text));
            self.advance(bytes);
        } else if first.is_ascii_digit() {
            let (token, bytes) = match number(rest) {
                Ok(found) => found,
                Err(message) => return self.error(message),
            };
            self.push(token);
            self.advance(bytes);
        } else if first.is_alphabetic() || first == '_' {
            let bytes = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            self.push(Token::Name(rest[..bytes].to_owned()));
            self.advance(bytes);
        } else if let Some(operator) = OPERATORS.iter().find(|op| rest.starts_with(**op)) {
            match *operator {
                "(" => open.push(")"),
                "[" => open.push("]"),
                "{" => open.push("}"),
                ")" | "]" | "}" => match open.pop() {
                    Some(due) if due == *operator => {}
                    Some(due) => {
                        return self.error(format!("expected `{due}`, found `{operator}`"));
                    }
                    None => {
                        return self
                            .error(format!("unexpected `{operator}`, which closes no bracket"));
                    }
                },
                _ => {}
            }
            self.push(Token::Op(operator));
            self.advance(operator.len());
        } else {
            return self.error(format!("unexpected character {first:?}"));
        }
        Ok(())
    }
}

/// The position and kind of the next tag.
fn next_tag(text: &str) -> Option<(usize, Tag)> {
    let mut from = 0;
    while let Some(at) = text[from..].find('{').map(|at| at + from) {
        match text.as_bytes().get(at + 1) {
            Some(b'{') => return Some((at, Tag::Print)),
            Some(b'%') => return Some((at, Tag::Block)),
            Some(b'#') => return Some((at, Tag::Comment)),
            _ => from = at + 1,
        }
    }
    None
}

/// The text before a tag, without the whitespace that the tag removes.
fn before_tag(text: &str, tag: Tag, sign: Option<char>, starts_line: bool) -> &str {
    match sign {
        Some('-') => text.trim_end(),
        None if tag != Tag::Print => {
            let line = text
                .rfind('\n')
                .map(|at| at + 1)
                .or(starts_line.then_some(0));
            match line {
                Some(at) if text[at..].chars().all(char::is_whitespace) => &text[..at],
                _ => text,
            }
        }
        _ => text,
    }
}

/// Parses a string literal with Python's escapes; returns its text and its length in the source.
fn string(source: &str, quote: char) -> Result<(String, usize), &'static str> {
    const OPEN: &str = "expected the end of the string, found the end of the template";
    let mut text = String::new();
    let mut chars = source.char_indices().skip(1);
    loop {
        let (at, c) = chars.next().ok_or(OPEN)?;
        if c == quote {
            return Ok((text, at + 1));
        }
        if c != '\\' {
            text.push(c);
            continue;
        }
        let (_, escape) = chars.next().ok_or(OPEN)?;
        let mut hex = |n: usize| {
            let digits: String = chars.by_ref().take(n).map(|(_, c)| c).collect();
            let code = u32::from_str_radix(&digits, 16)
                .ok()
                .filter(|_| digits.len() == n);
            code.and_then(char::from_u32)
                .ok_or("expected a character code in the escape sequence")
        };
        match escape {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'a' => text.push('\u{7}'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'v' => text.push('\u{b}'),
            '0'..='7' => {
                let mut code = escape.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let digit = chars.clone().next().and_then(|(_, c)| c.to_digit(8));
                    let Some(digit) = digit else { break };
                    code = 8 * code + digit;
                    chars.next();
                }
                text.extend(char::from_u32(code));
            }
            '\n' => {}
            '\\' | '\'' | '"' => text.push(escape),
            'x' => text.push(hex(2)?),
            'u' => text.push(hex(4)?),
            'U' => text.push(hex(8)?),
            other => text.extend(['\\', other]),
        }
    }
}

/// Parses a number; returns its token and its length in the source.
fn number(source: &str) -> Result<(Token, usize), String> {
    let digits = |text: &str| {
        text.find(|c: char| !c.is_ascii_digit() && c != '_')
            .unwrap_or(text.len())
    };
    let mut bytes = digits(source);
    let mut is_float = false;
    if source[bytes..].starts_with('.')
        && source[bytes + 1..].starts_with(|c: char| c.is_ascii_digit())
    {
        bytes += 1 + digits(&source[bytes + 1..]);
        is_float = true;
    }
    if let Some(rest) = source[bytes..].strip_prefix(['e', 'E']) {
        let unsigned = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        if unsigned.starts_with(|c: char| c.is_ascii_digit()) {
            bytes += 1 + (rest.len() - unsigned.len()) + digits(unsigned);
            is_float = true;
        }
    }
    let text = source[..bytes].replace('_', "");
    let bad = |_| format!("expected a number of at most 64 bits, found {text:.40}");
    let token = match is_float {
        true => Token::Float(
            text.parse()
                .map_err(|_| format!("expected a number, found {text:.40}"))?,
        ),
        false => Token::Int(text.parse().map_err(bad)?),
    };
    Ok((token, bytes))
}

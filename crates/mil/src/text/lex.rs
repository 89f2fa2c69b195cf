//! Tokens of MIL text.

use super::error::ParseError;

/// A token; the text of names and numbers is a slice of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name, or a number as it is written.
    Word(&'a str),
    /// The inside of a quoted string, escapes unresolved.
    Quoted(&'a str),
    /// One of `( ) [ ] { } < > , ; = ?`.
    Mark(char),
    /// `->`.
    Arrow,
    /// The end of the text.
    End,
}

pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// Where the token that was read last begins.
    pub start: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            start: 0,
        }
    }

    /// An error at the token that was read last.
    pub fn error(&self, message: impl Into<String>) -> ParseError {
        let before = &self.text[..self.start];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        ParseError {
            line,
            column,
            message: shortened(message.into()),
        }
    }

    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank();
        self.start = self.at;
        let rest = &self.text[self.at..];
        let Some(c) = rest.chars().next() else {
            return Ok(Token::End);
        };
        if rest.starts_with("->") {
            self.at += 2;
            return Ok(Token::Arrow);
        }
        if c == '"' {
            return self.quoted(&rest[1..]);
        }
        if is_word(c) || c == '-' || c == '+' {
            let len = word_len(rest);
            self.at += len;
            return Ok(Token::Word(&rest[..len]));
        }
        self.at += c.len_utf8();
        if "()[]{}<>,;=?".contains(c) {
            return Ok(Token::Mark(c));
        }
        Err(self.error(format!("unexpected `{c}`")))
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn quoted(&mut self, rest: &'a str) -> Result<Token<'a>, ParseError> {
        let mut escaped = false;
        for (i, c) in rest.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    self.at += i + 2;
                    return Ok(Token::Quoted(&rest[..i]));
                }
                _ => {}
            }
        }
        Err(self.error("a string has no end"))
    }
}

/// What a message has of a text is as long as the text: of a long one the middle is left out.
fn shortened(message: String) -> String {
    /// Characters of a message, most of them in lists of names.
    const MOST: usize = 400;
    let n = message.chars().count();
    if n <= MOST {
        return message;
    }
    let head: String = message.chars().take(MOST / 2).collect();
    let tail: String = message.chars().skip(n - MOST / 4).collect();
    format!("{head}..{tail}")
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '@' | '.')
}

/// Length of a name or number; a sign belongs to it at the front and after an exponent mark.
fn word_len(rest: &str) -> usize {
    let is_number = rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    let mut previous = ' ';
    for (i, c) in rest.char_indices() {
        let sign = matches!(c, '-' | '+')
            && (i == 0 || is_number && matches!(previous, 'p' | 'P' | 'e' | 'E'));
        if !sign && !is_word(c) {
            return i;
        }
        previous = c;
    }
    rest.len()
}

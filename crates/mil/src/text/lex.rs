//! Splits MIL text into tokens.

use std::fmt;

use super::error::ParseError;
use crate::shorten::shorten;

/// A token. Names, numbers and strings are slices of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name or a number, as written.
    Word(&'a str),
    /// The content of a quoted string, with unresolved escapes.
    Quoted(&'a str),
    /// One of `( ) [ ] { } < > , ; = ?`.
    Mark(char),
    /// `->`.
    Arrow,
    /// The end of the text.
    End,
}

/// Reads tokens from a text, one at a time.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// Byte offset of the last token.
    pub start: usize,
}

impl<'a> Lexer<'a> {
    /// A lexer at the start of `text`.
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            start: 0,
        }
    }

    /// An error at the position of the last token.
    pub fn error(&self, message: impl fmt::Display) -> ParseError {
        let before = &self.text[..self.start];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        ParseError {
            line,
            column,
            message: shorten(message),
        }
    }

    /// Reads the next token; [`Token::End`] at the end of the text.
    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_whitespace_and_comments();
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
        Err(self.error(format_args!("unexpected character `{c}`")))
    }

    fn skip_whitespace_and_comments(&mut self) {
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
        Err(self.error("expected the end of the string, found the end of the text"))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '@' | '.')
}

/// Length of a name or number. A sign belongs to a number at its start and after an exponent mark.
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

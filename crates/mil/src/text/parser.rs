//! The state of the parser and the steps that every part of the grammar shares.

use super::error::ParseError;
use super::lex::{Lexer, Token};
use crate::data::Data;
use crate::types::TensorType;

/// Nesting of types and literals beyond this is refused, so that no text exhausts the stack.
const MAX_DEPTH: usize = 32;

/// Finds the constant at a path and offset of a weight file, of the type that the text declares.
pub type Resolve<'a> = &'a dyn Fn(&str, u64, &TensorType) -> Option<Data>;

pub(super) struct Parser<'a> {
    pub lexer: Lexer<'a>,
    pub token: Token<'a>,
    pub resolve: Resolve<'a>,
    depth: usize,
    pub n_wildcards: u32,
    /// Inside of literals a `?` is no dimension of a value, and all are one symbol.
    pub in_literal: bool,
}

pub(super) type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    /// A parser of `text` at its first token.
    pub fn new(text: &'a str, resolve: Resolve<'a>) -> Parsed<Self> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Self {
            lexer,
            token,
            resolve,
            depth: 0,
            n_wildcards: 0,
            in_literal: false,
        })
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(self.lexer.error(message))
    }

    pub fn advance(&mut self) -> Parsed<Token<'a>> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    pub fn eat(&mut self, mark: char) -> Parsed<bool> {
        let found = self.token == Token::Mark(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.eat(mark)? {
            Ok(())
        } else {
            self.error(format!("`{mark}` is due, {} stands here", show(self.token)))
        }
    }

    pub fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match self.token {
            Token::Word(w) => {
                self.advance()?;
                Ok(w)
            }
            other => self.error(format!("{what} is due, {} stands here", show(other))),
        }
    }

    pub fn keyword(&mut self, keyword: &str) -> Parsed<()> {
        match self.token {
            Token::Word(w) if w == keyword => self.advance().map(|_| ()),
            other => self.error(format!("`{keyword}` is due, {} stands here", show(other))),
        }
    }

    /// Items separated by commas up to `close`, which is consumed.
    pub fn list<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut out = Vec::new();
        if self.eat(close)? {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat(close)? {
                return Ok(out);
            }
            self.expect(',')?;
        }
    }

    pub fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            return self.error(format!("it is nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

pub(super) fn show(token: Token<'_>) -> String {
    match token {
        Token::Word(w) => format!("`{}`", w.chars().take(40).collect::<String>()),
        Token::Quoted(_) => "a string".to_owned(),
        Token::Mark(c) => format!("`{c}`"),
        Token::Arrow => "`->`".to_owned(),
        Token::End => "the end of the text".to_owned(),
    }
}

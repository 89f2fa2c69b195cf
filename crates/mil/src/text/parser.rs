//! The state of the parser, and the steps that every part of the grammar shares.

use std::fmt;

use super::error::ParseError;
use super::lex::{Lexer, Token};
use crate::data::Data;
use crate::types::TensorType;
use crate::watch::Watch;

/// Maximum nesting of types and literals, so that no text exhausts the stack.
const MAX_DEPTH: usize = 32;

/// Looks up the constant at a path and offset of a weight file. The constant must have the type
/// that the text declares.
pub type Resolve<'a> = &'a dyn Fn(&str, u64, &TensorType) -> Option<Data>;

/// A recursive descent parser with one token of lookahead.
pub(super) struct Parser<'a> {
    pub lexer: Lexer<'a>,
    /// The lookahead token.
    pub token: Token<'a>,
    pub resolve: Resolve<'a>,
    watch: &'a Watch<'a>,
    depth: usize,
    /// Number of symbols that `?` has made in this function.
    pub n_wildcards: u32,
    /// Whether the parser is inside a literal, where every `?` is the same symbol and not a
    /// dimension of a value.
    pub in_literal: bool,
}

pub(super) type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    /// A parser of `text` at its first token.
    pub fn new(text: &'a str, resolve: Resolve<'a>, watch: &'a Watch<'a>) -> Parsed<Self> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Self {
            lexer,
            token,
            resolve,
            watch,
            depth: 0,
            n_wildcards: 0,
            in_literal: false,
        })
    }

    /// An error at the lookahead token.
    pub fn error<T>(&self, message: impl fmt::Display) -> Parsed<T> {
        Err(self.lexer.error(message))
    }

    /// Consumes and returns the lookahead token.
    pub fn advance(&mut self) -> Parsed<Token<'a>> {
        if self.watch.step() {
            return self.error("the parser was interrupted");
        }
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    /// Consumes `mark` if it comes next.
    pub fn eat(&mut self, mark: char) -> Parsed<bool> {
        let found = self.token == Token::Mark(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Consumes `mark`, which must come next.
    pub fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.eat(mark)? {
            Ok(())
        } else {
            self.error(format_args!(
                "expected `{mark}`, found {}",
                show(self.token)
            ))
        }
    }

    /// Consumes a word; `what` names it in the error.
    pub fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match self.token {
            Token::Word(w) => {
                self.advance()?;
                Ok(w)
            }
            other => self.error(format_args!("expected {what}, found {}", show(other))),
        }
    }

    /// Consumes the word `keyword`, which must come next.
    pub fn keyword(&mut self, keyword: &str) -> Parsed<()> {
        match self.token {
            Token::Word(w) if w == keyword => self.advance().map(|_| ()),
            other => self.error(format_args!("expected `{keyword}`, found {}", show(other))),
        }
    }

    /// Reads items separated by commas up to and including `close`.
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

    /// Runs `inner` one nesting level deeper.
    pub fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            return self.error(format_args!("nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

/// Describes a token in an error message.
pub(super) fn show(token: Token<'_>) -> String {
    match token {
        Token::Word(w) => format!("`{}`", w.chars().take(40).collect::<String>()),
        Token::Quoted(_) => "a string".to_owned(),
        Token::Mark(c) => format!("`{c}`"),
        Token::Arrow => "`->`".to_owned(),
        Token::End => "the end of the text".to_owned(),
    }
}

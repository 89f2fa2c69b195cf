//! Parses tokens to statements. Every recursion of the parser counts a level, and the number of
//! levels is limited, so no template can overflow the stack.

use std::sync::Arc;

use super::ast::{Body, Expr, For, Macro, Stmt, StmtKind, Target};
use super::lex::{self, Spanned, Token};
use super::meter::{Error, Result};

/// Maximum nesting of brackets and blocks. (Python, which runs these templates elsewhere, allows
/// 100 and 20.)
const MAX_DEPTH: usize = 100;

/// Parses a template.
pub(super) fn template(source: &str) -> Result<Body> {
    let mut tokens = lex::tokens(source)?;
    tokens.reverse();
    let mut parser = Parser {
        tokens,
        line: 1,
        depth: 0,
    };
    let (body, _) = parser.body(&[])?;
    Ok(body)
}

/// The state of the parser.
pub(super) struct Parser {
    /// Remaining tokens; the next one is last.
    pub(super) tokens: Vec<Spanned>,
    /// Line of the last token that was taken.
    pub(super) line: u32,
    pub(super) depth: usize,
}

impl Parser {
    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        let line = self.tokens.last().map_or(self.line, |next| next.line);
        Err(Error::new(message).at(line))
    }

    /// The error for an unexpected next token.
    pub(super) fn expected<T>(&self, what: &str) -> Result<T> {
        let found = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Token::Name(name)) => format!("`{name:.40}`"),
            Some(Token::Op(op)) => format!("`{op}`"),
            Some(Token::Str(_)) => "a string".to_owned(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
            Some(Token::BlockEnd) => "`%}`".to_owned(),
            Some(Token::PrintEnd) => "`}}`".to_owned(),
            Some(_) => "text".to_owned(),
        };
        self.error(format!("expected {what}, found {found}"))
    }

    pub(super) fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error(format!(
                "expected at most {MAX_DEPTH} nested brackets and blocks, found more"
            ));
        }
        Ok(())
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.last().map(|t| &t.token)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        let next = self.tokens.pop()?;
        self.line = next.line;
        Some(next.token)
    }

    /// Whether the next token is this operator.
    pub(super) fn at_op(&self, op: &str) -> bool {
        matches!(self.peek(), Some(Token::Op(found)) if *found == op)
    }

    /// Whether the next token is this name.
    pub(super) fn at_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == name)
    }

    /// Takes the next token if it is this operator.
    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let is = self.at_op(op);
        if is {
            self.next();
        }
        is
    }

    /// Takes the next token if it is this name.
    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let is = self.at_name(name);
        if is {
            self.next();
        }
        is
    }

    /// Takes this operator; an error if another token is next.
    pub(super) fn op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op) {
            Ok(())
        } else {
            self.expected(&format!("`{op}`"))
        }
    }

    /// Takes a name; an error if another token is next.
    pub(super) fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Name(_)) => match self.next() {
                Some(Token::Name(name)) => Ok(name),
                _ => self.expected("a name"),
            },
            _ => self.expected("a name"),
        }
    }

    /// Takes `%}`; an error if another token is next.
    pub(super) fn end_of_tag(&mut self) -> Result<()> {
        if self.peek() == Some(&Token::BlockEnd) {
            self.next();
            return Ok(());
        }
        self.expected("`%}`")
    }

    /// Parses statements up to a tag with one of the names in `ends` and takes the tag's name;
    /// without names, parses up to the end of the template.
    pub(super) fn body(&mut self, ends: &[&str]) -> Result<(Body, String)> {
        self.enter()?;
        let begin = self.line;
        let mut body = Vec::new();
        loop {
            let line = self.tokens.last().map_or(self.line, |next| next.line);
            let mut push = |kind| body.push(Stmt { line, kind });
            match self.next() {
                None if ends.is_empty() => break,
                None => {
                    let ends = ends.join("` or `");
                    return Err(Error::new(format!(
                        "expected `{ends}`, found the end of the template"
                    ))
                    .at(begin));
                }
                Some(Token::Text(text)) => push(StmtKind::Text(text)),
                Some(Token::PrintBegin) => {
                    let expr = self.tuple_or_expression()?;
                    if self.next() != Some(Token::PrintEnd) {
                        return Err(
                            Error::new("expected `}}` at the end of the expression").at(self.line)
                        );
                    }
                    push(StmtKind::Print(expr));
                }
                Some(_) => {
                    let name = self.name()?;
                    if ends.contains(&name.as_str()) {
                        self.depth -= 1;
                        return Ok((body, name));
                    }
                    push(self.statement(&name)?);
                }
            }
        }
        self.depth -= 1;
        Ok((body, String::new()))
    }

    /// Parses the body of a block with a single end tag.
    pub(super) fn block(&mut self, end: &str) -> Result<Body> {
        self.end_of_tag()?;
        let (body, _) = self.body(&[end])?;
        Ok(body)
    }

    /// Parses the statement whose tag has this name.
    pub(super) fn statement(&mut self, name: &str) -> Result<StmtKind> {
        let kind = match name {
            "if" => return self.if_statement(),
            "for" => return self.for_statement(),
            "set" => return self.set_statement(),
            "macro" => {
                let name = self.name()?;
                let params = self.params()?;
                StmtKind::Macro(Arc::new(Macro {
                    name,
                    params,
                    body: self.block("endmacro")?,
                }))
            }
            "call" => {
                let params = if self.at_op("(") {
                    self.params()?
                } else {
                    Vec::new()
                };
                let call = self.expression()?;
                let body = self.block("endcall")?;
                StmtKind::CallBlock(
                    Arc::new(Macro {
                        name: "caller".to_owned(),
                        params,
                        body,
                    }),
                    call,
                )
            }
            "filter" => {
                let mut filters = vec![self.filter()?];
                while self.skip_op("|") {
                    filters.push(self.filter()?);
                }
                StmtKind::FilterBlock(filters, self.block("endfilter")?)
            }
            "with" => {
                let mut values = Vec::new();
                while self.peek() != Some(&Token::BlockEnd) {
                    if !values.is_empty() {
                        self.op(",")?;
                    }
                    let target = self.target()?;
                    self.op("=")?;
                    values.push((target, self.expression()?));
                }
                StmtKind::With(values, self.block("endwith")?)
            }
            "generation" => StmtKind::Plain(self.block("endgeneration")?),
            "block" => {
                self.name()?;
                let body = self.block("endblock")?;
                if matches!(self.peek(), Some(Token::Name(_))) {
                    self.next();
                }
                StmtKind::Plain(body)
            }
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            other => return self.error(format!("unknown tag `{other:.40}`")),
        };
        self.end_of_tag()?;
        Ok(kind)
    }

    pub(super) fn if_statement(&mut self) -> Result<StmtKind> {
        let mut arms = Vec::new();
        loop {
            let condition = self.tuple_or_expression()?;
            self.end_of_tag()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((condition, body));
            let otherwise = match end.as_str() {
                "elif" => continue,
                "else" => self.block("endif")?,
                _ => Vec::new(),
            };
            self.end_of_tag()?;
            return Ok(StmtKind::If(arms, otherwise));
        }
    }

    pub(super) fn for_statement(&mut self) -> Result<StmtKind> {
        let target = self.target()?;
        if !self.skip_name("in") {
            return self.expected("`in`");
        }
        // A condition here filters the loop and is not part of a ternary expression.
        let over = self.tuple_of(Self::or)?;
        let filter = if self.skip_name("if") {
            Some(self.expression()?)
        } else {
            None
        };
        let is_recursive = self.skip_name("recursive");
        self.end_of_tag()?;
        let (body, end) = self.body(&["else", "endfor"])?;
        let otherwise = if end == "else" {
            self.block("endfor")?
        } else {
            Vec::new()
        };
        self.end_of_tag()?;
        Ok(StmtKind::For(Arc::new(For {
            target,
            over,
            filter,
            is_recursive,
            body,
            otherwise,
        })))
    }

    pub(super) fn set_statement(&mut self) -> Result<StmtKind> {
        let target = self.target()?;
        let kind = if self.skip_op("=") {
            StmtKind::Set(target, self.tuple_or_expression()?)
        } else {
            let mut filters = Vec::new();
            while self.skip_op("|") {
                filters.push(self.filter()?);
            }
            StmtKind::SetBlock(target, filters, self.block("endset")?)
        };
        self.end_of_tag()?;
        Ok(kind)
    }

    /// Parses the target of an assignment, which may be a tuple.
    pub(super) fn target(&mut self) -> Result<Target> {
        let first = self.single_target()?;
        if !self.at_op(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_op(",") {
            if self.at_name("in") || self.at_op("=") {
                break;
            }
            targets.push(self.single_target()?);
        }
        Ok(Target::Tuple(targets))
    }

    pub(super) fn single_target(&mut self) -> Result<Target> {
        if self.skip_op("(") {
            self.enter()?;
            let target = self.target()?;
            self.depth -= 1;
            self.op(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
            return self.error(format!(
                "expected a name to assign to, found the constant `{name}`"
            ));
        }
        if self.skip_op(".") {
            return Ok(Target::Attr(name, self.name()?));
        }
        Ok(Target::Name(name))
    }

    /// Parses the parameters of a macro.
    pub(super) fn params(&mut self) -> Result<Vec<(String, Option<Expr>)>> {
        self.op("(")?;
        let mut params = Vec::new();
        while !self.skip_op(")") {
            if !params.is_empty() {
                self.op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = if self.skip_op("=") {
                Some(self.expression()?)
            } else {
                None
            };
            params.push((name, default));
        }
        Ok(params)
    }
}

//! Tokens to statements. Every way in which the parser calls itself counts a level, and there are not many: no template can
//! overflow the stack.

use std::sync::Arc;

use super::ast::{Args, BinaryOp, Body, Call, CompareOp, Expr, ExprKind, For, Macro, Postfix, Stmt, StmtKind, Target};
use super::lex::{self, Spanned, Token};
use super::meter::{Error, Result};

/// Brackets and blocks inside of each other. (Python, which runs these templates elsewhere, ends at 100 and 20.)
const MAX_DEPTH: usize = 100;

/// Parses a template.
pub(super) fn template(source: &str) -> Result<Body> {
    let mut tokens = lex::tokens(source)?;
    tokens.reverse();
    let mut parser = Parser { tokens, line: 1, depth: 0 };
    let (body, _) = parser.body(&[])?;
    Ok(body)
}

struct Parser {
    /// Those to come, the next one last.
    tokens: Vec<Spanned>,
    /// Of the last token taken.
    line: u32,
    depth: usize,
}

type Binary = fn(&mut Parser) -> Result<Expr>;

impl Parser {
    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        let line = self.tokens.last().map_or(self.line, |next| next.line);
        Err(Error::new(message).at(line))
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
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

    fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error("brackets and blocks are nested too deep");
        }
        Ok(())
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.last().map(|t| &t.token)
    }

    fn next(&mut self) -> Option<Token> {
        let next = self.tokens.pop()?;
        self.line = next.line;
        Some(next.token)
    }

    fn at_op(&self, op: &str) -> bool {
        matches!(self.peek(), Some(Token::Op(found)) if *found == op)
    }

    fn at_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == name)
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let is = self.at_op(op);
        if is {
            self.next();
        }
        is
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let is = self.at_name(name);
        if is {
            self.next();
        }
        is
    }

    fn op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op) { Ok(()) } else { self.expected(&format!("`{op}`")) }
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Name(_)) => match self.next() {
                Some(Token::Name(name)) => Ok(name),
                _ => self.expected("a name"),
            },
            _ => self.expected("a name"),
        }
    }

    fn end_of_tag(&mut self) -> Result<()> {
        if self.peek() == Some(&Token::BlockEnd) {
            self.next();
            return Ok(());
        }
        self.expected("`%}`")
    }

    /// Statements up to a tag with one of these names, which is taken up to behind its name; or to the end of the template
    /// if there is no name.
    fn body(&mut self, ends: &[&str]) -> Result<(Body, String)> {
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
                    return Err(Error::new(format!("expected `{ends}`, found the end of the template")).at(begin));
                }
                Some(Token::Text(text)) => push(StmtKind::Text(text)),
                Some(Token::PrintBegin) => {
                    let expr = self.tuple_or_expression()?;
                    if self.next() != Some(Token::PrintEnd) {
                        return Err(Error::new("expected `}}`, found more in the expression").at(self.line));
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

    /// The body of a block up to its one end.
    fn block(&mut self, end: &str) -> Result<Body> {
        self.end_of_tag()?;
        let (body, _) = self.body(&[end])?;
        Ok(body)
    }

    fn statement(&mut self, name: &str) -> Result<StmtKind> {
        let kind = match name {
            "if" => return self.if_statement(),
            "for" => return self.for_statement(),
            "set" => return self.set_statement(),
            "macro" => {
                let name = self.name()?;
                let params = self.params()?;
                StmtKind::Macro(Arc::new(Macro { name, params, body: self.block("endmacro")? }))
            }
            "call" => {
                let params = if self.at_op("(") { self.params()? } else { Vec::new() };
                let call = self.expression()?;
                let body = self.block("endcall")?;
                StmtKind::CallBlock(Arc::new(Macro { name: "caller".to_owned(), params, body }), call)
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
            "do" => StmtKind::Do(self.tuple_or_expression()?),
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            other => return self.error(format!("the tag `{other:.40}` is unknown")),
        };
        self.end_of_tag()?;
        Ok(kind)
    }

    fn if_statement(&mut self) -> Result<StmtKind> {
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

    fn for_statement(&mut self) -> Result<StmtKind> {
        let target = self.target()?;
        if !self.skip_name("in") {
            return self.expected("`in`");
        }
        // A condition here is the loop's, not that of a ternary.
        let over = self.tuple_of(Self::or)?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.skip_name("recursive");
        self.end_of_tag()?;
        let (body, end) = self.body(&["else", "endfor"])?;
        let otherwise = if end == "else" { self.block("endfor")? } else { Vec::new() };
        self.end_of_tag()?;
        Ok(StmtKind::For(Arc::new(For { target, over, filter, is_recursive, body, otherwise })))
    }

    fn set_statement(&mut self) -> Result<StmtKind> {
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

    fn target(&mut self) -> Result<Target> {
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

    fn single_target(&mut self) -> Result<Target> {
        if self.skip_op("(") {
            self.enter()?;
            let target = self.target()?;
            self.depth -= 1;
            self.op(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
            return self.error(format!("`{name}` cannot be assigned to"));
        }
        if self.skip_op(".") {
            return Ok(Target::Attr(name, self.name()?));
        }
        Ok(Target::Name(name))
    }

    fn params(&mut self) -> Result<Vec<(String, Option<Expr>)>> {
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
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            params.push((name, default));
        }
        Ok(params)
    }

    /// An expression; behind a comma, a tuple.
    fn tuple_or_expression(&mut self) -> Result<Expr> {
        self.tuple_of(Self::expression)
    }

    fn tuple_of(&mut self, element: Binary) -> Result<Expr> {
        let first = element(self)?;
        if !self.at_op(",") {
            return Ok(first);
        }
        let line = first.line;
        let mut elements = vec![first];
        while self.skip_op(",") {
            if matches!(self.peek(), None | Some(Token::BlockEnd | Token::PrintEnd)) || self.at_op(")") {
                break;
            }
            elements.push(element(self)?);
        }
        Ok(Expr { line, kind: ExprKind::Tuple(elements) })
    }

    fn expression(&mut self) -> Result<Expr> {
        let depth = self.depth;
        self.enter()?;
        let mut expr = self.or()?;
        while self.skip_name("if") {
            let line = expr.line;
            let condition = self.or()?;
            let otherwise = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            expr = Expr { line, kind: ExprKind::Ternary(Box::new([condition, expr]), otherwise) };
            // A second condition takes all before it as its value: a level each.
            self.enter()?;
        }
        self.depth = depth;
        Ok(expr)
    }

    fn or(&mut self) -> Result<Expr> {
        self.chain_of(Self::and, "or", ExprKind::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.chain_of(Self::not, "and", ExprKind::And)
    }

    fn chain_of(&mut self, element: Binary, word: &str, kind: fn(Vec<Expr>) -> ExprKind) -> Result<Expr> {
        let first = element(self)?;
        if !self.at_name(word) {
            return Ok(first);
        }
        let line = first.line;
        let mut elements = vec![first];
        while self.skip_name(word) {
            elements.push(element(self)?);
        }
        Ok(Expr { line, kind: kind(elements) })
    }

    fn not(&mut self) -> Result<Expr> {
        if !self.skip_name("not") {
            return self.compare();
        }
        let line = self.line;
        self.enter()?;
        let inner = self.not()?;
        self.depth -= 1;
        Ok(Expr { line, kind: ExprKind::Not(Box::new(inner)) })
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let line = first.line;
        let mut others = Vec::new();
        loop {
            let op = match self.peek() {
                Some(Token::Op("==")) => CompareOp::Eq,
                Some(Token::Op("!=")) => CompareOp::Ne,
                Some(Token::Op("<")) => CompareOp::Lt,
                Some(Token::Op("<=")) => CompareOp::Le,
                Some(Token::Op(">")) => CompareOp::Gt,
                Some(Token::Op(">=")) => CompareOp::Ge,
                Some(Token::Name(name)) if name == "in" => CompareOp::In,
                Some(Token::Name(name)) if name == "not" => CompareOp::NotIn,
                _ => break,
            };
            self.next();
            if op == CompareOp::NotIn && !self.skip_name("in") {
                return self.expected("`in`");
            }
            others.push((op, self.sum()?));
        }
        Ok(match others.is_empty() {
            true => first,
            false => Expr { line, kind: ExprKind::Compare(Box::new(first), others) },
        })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.binary(Self::concat, &[("+", BinaryOp::Add), ("-", BinaryOp::Sub)])
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.at_op("~") {
            return Ok(first);
        }
        let line = first.line;
        let mut elements = vec![first];
        while self.skip_op("~") {
            elements.push(self.product()?);
        }
        Ok(Expr { line, kind: ExprKind::Concat(elements) })
    }

    fn product(&mut self) -> Result<Expr> {
        let ops = [("*", BinaryOp::Mul), ("/", BinaryOp::Div), ("//", BinaryOp::FloorDiv), ("%", BinaryOp::Rem)];
        self.binary(Self::power, &ops)
    }

    fn power(&mut self) -> Result<Expr> {
        self.binary(|parser| parser.unary(true), &[("**", BinaryOp::Pow)])
    }

    fn binary(&mut self, element: Binary, ops: &[(&str, BinaryOp)]) -> Result<Expr> {
        let first = element(self)?;
        let line = first.line;
        let mut others = Vec::new();
        while let Some((word, op)) = ops.iter().find(|(word, _)| self.at_op(word)) {
            self.op(word)?;
            others.push((*op, element(self)?));
        }
        Ok(match others.is_empty() {
            true => first,
            false => Expr { line, kind: ExprKind::Binary(Box::new(first), others) },
        })
    }

    fn unary(&mut self, with_filter: bool) -> Result<Expr> {
        let sign = ["-", "+"].into_iter().find(|op| self.at_op(op));
        let mut expr = match sign {
            None => self.primary()?,
            Some(sign) => {
                self.op(sign)?;
                let line = self.line;
                self.enter()?;
                let inner = Box::new(self.unary(false)?);
                self.depth -= 1;
                let kind = if sign == "-" { ExprKind::Negate(inner) } else { ExprKind::Plus(inner) };
                Expr { line, kind }
            }
        };
        let mut behind = Vec::new();
        self.postfixes(&mut behind)?;
        if with_filter {
            self.filters_and_tests(&mut behind)?;
        }
        if !behind.is_empty() {
            expr = Expr { line: expr.line, kind: ExprKind::Postfix(Box::new(expr), behind) };
        }
        Ok(expr)
    }

    fn postfixes(&mut self, behind: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_op(".") {
                match self.next() {
                    Some(Token::Name(name)) => behind.push(Postfix::Attr(name)),
                    Some(Token::Int(n)) => {
                        behind.push(Postfix::Item(Expr { line: self.line, kind: ExprKind::Int(n) }));
                    }
                    _ => return self.error("expected a name behind `.`"),
                }
            } else if self.skip_op("[") {
                behind.push(self.subscript()?);
            } else if self.at_op("(") {
                behind.push(Postfix::Call(self.args()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Result<Postfix> {
        let mut parts = [const { None }; 3];
        let mut n_colons = 0;
        while !self.skip_op("]") {
            if self.skip_op(":") {
                n_colons += 1;
            } else if parts.get(n_colons).is_some_and(Option::is_none) {
                parts[n_colons] = Some(self.tuple_or_expression()?);
                if !self.at_op(":") && !self.at_op("]") {
                    return self.expected("`]`");
                }
            } else {
                return self.expected("`]`");
            }
        }
        match parts {
            [Some(index), None, None] if n_colons == 0 => Ok(Postfix::Item(index)),
            _ if n_colons == 0 => self.error("the brackets are empty"),
            parts => Ok(Postfix::Slice(parts)),
        }
    }

    fn filters_and_tests(&mut self, behind: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_op("|") {
                behind.push(Postfix::Filter(self.filter()?));
            } else if self.skip_name("is") {
                let is_negated = self.skip_name("not");
                behind.push(Postfix::Test(self.test()?, is_negated));
            } else if self.at_op("(") {
                behind.push(Postfix::Call(self.args()?));
            } else {
                return Ok(());
            }
        }
    }

    fn filter(&mut self) -> Result<Call> {
        let name = self.name()?;
        let args = if self.at_op("(") { self.args()? } else { Args::default() };
        Ok(Call { name, args })
    }

    /// The one argument of a test can stand without brackets: `x is divisibleby 3`.
    fn test(&mut self) -> Result<Call> {
        let name = self.name()?;
        let args = match self.peek() {
            Some(Token::Op("(")) => self.args()?,
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) => self.test_arg()?,
            Some(Token::Name(word)) if !["else", "or", "and", "is", "if", "not", "in"].contains(&word.as_str()) => {
                self.test_arg()?
            }
            _ => Args::default(),
        };
        Ok(Call { name, args })
    }

    fn test_arg(&mut self) -> Result<Args> {
        let mut expr = self.primary()?;
        let mut behind = Vec::new();
        self.postfixes(&mut behind)?;
        if !behind.is_empty() {
            expr = Expr { line: expr.line, kind: ExprKind::Postfix(Box::new(expr), behind) };
        }
        Ok(Args { positional: vec![expr], ..Args::default() })
    }

    fn args(&mut self) -> Result<Args> {
        self.op("(")?;
        let mut args = Args::default();
        let mut is_first = true;
        while !self.skip_op(")") {
            if !is_first {
                self.op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            is_first = false;
            if self.skip_op("**") {
                args.spread_named.push(self.expression()?);
            } else if self.skip_op("*") {
                args.spread.push(self.expression()?);
            } else if let [.., Spanned { token: Token::Op("="), .. }, Spanned { token: Token::Name(_), .. }] =
                self.tokens.as_slice()
            {
                let name = self.name()?;
                self.op("=")?;
                args.named.push((name, self.expression()?));
            } else {
                args.positional.push(self.expression()?);
            }
        }
        Ok(args)
    }

    fn primary(&mut self) -> Result<Expr> {
        self.enter()?;
        let line = self.tokens.last().map_or(self.line, |next| next.line);
        let kind = match self.peek() {
            Some(Token::Op("(")) => {
                self.next();
                let kind = if self.at_op(")") { ExprKind::Tuple(Vec::new()) } else { self.tuple_or_expression()?.kind };
                self.op(")")?;
                kind
            }
            Some(Token::Op("[")) => {
                self.next();
                ExprKind::List(self.elements("]", Self::expression)?)
            }
            Some(Token::Op("{")) => {
                self.next();
                let pair = |parser: &mut Self| {
                    let key = parser.expression()?;
                    parser.op(":")?;
                    Ok((key, parser.expression()?))
                };
                ExprKind::Dict(self.elements("}", pair)?)
            }
            Some(Token::Name(_) | Token::Str(_) | Token::Int(_) | Token::Float(_)) => self.literal()?,
            _ => return self.expected("an expression"),
        };
        self.depth -= 1;
        Ok(Expr { line, kind })
    }

    fn literal(&mut self) -> Result<ExprKind> {
        Ok(match self.next() {
            Some(Token::Name(name)) => match name.as_str() {
                "true" | "True" => ExprKind::Bool(true),
                "false" | "False" => ExprKind::Bool(false),
                "none" | "None" => ExprKind::None,
                _ => ExprKind::Name(name),
            },
            Some(Token::Str(mut text)) => {
                while let Some(Token::Str(_)) = self.peek() {
                    if let Some(Token::Str(more)) = self.next() {
                        text.push_str(&more);
                    }
                }
                ExprKind::Str(text)
            }
            Some(Token::Int(n)) => ExprKind::Int(n),
            Some(Token::Float(x)) => ExprKind::Float(x),
            _ => return self.expected("an expression"),
        })
    }

    fn elements<T>(&mut self, end: &str, element: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut elements = Vec::new();
        while !self.skip_op(end) {
            if !elements.is_empty() {
                self.op(",")?;
                if self.skip_op(end) {
                    break;
                }
            }
            elements.push(element(self)?);
        }
        Ok(elements)
    }
}

//! Parses tokens to expressions, from the loosest to the tightest operator.

use super::ast::{Applied, Args, BinaryOp, CompareOp, Expr, ExprKind, Postfix};
use super::lex::{Spanned, Token};
use super::meter::Result;
use super::parse::Parser;

/// A parser of an operand.
type Binary = fn(&mut Parser) -> Result<Expr>;

impl Parser {
    /// Parses an expression, or a tuple if a comma follows.
    pub(super) fn tuple_or_expression(&mut self) -> Result<Expr> {
        self.tuple_of(Self::expression)
    }

    /// Parses an element, or a tuple of such elements if a comma follows.
    pub(super) fn tuple_of(&mut self, element: Binary) -> Result<Expr> {
        let first = element(self)?;
        if !self.at_op(",") {
            return Ok(first);
        }
        let line = first.line;
        let mut elements = vec![first];
        while self.skip_op(",") {
            if matches!(self.peek(), None | Some(Token::BlockEnd | Token::PrintEnd))
                || self.at_op(")")
            {
                break;
            }
            elements.push(element(self)?);
        }
        Ok(Expr {
            line,
            kind: ExprKind::Tuple(elements),
        })
    }

    /// Parses an expression, including ternaries.
    pub(super) fn expression(&mut self) -> Result<Expr> {
        let depth = self.depth;
        self.enter()?;
        let mut expr = self.or()?;
        while self.skip_name("if") {
            let line = expr.line;
            let condition = self.or()?;
            let otherwise = if self.skip_name("else") {
                Some(Box::new(self.expression()?))
            } else {
                None
            };
            expr = Expr {
                line,
                kind: ExprKind::Ternary(Box::new([condition, expr]), otherwise),
            };
            // A further condition takes everything before it as its value, so each condition adds a
            // level.
            self.enter()?;
        }
        self.depth = depth;
        Ok(expr)
    }

    pub(super) fn or(&mut self) -> Result<Expr> {
        self.chain_of(Self::and, "or", ExprKind::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.chain_of(Self::not, "and", ExprKind::And)
    }

    fn chain_of(
        &mut self,
        element: Binary,
        word: &str,
        kind: fn(Vec<Expr>) -> ExprKind,
    ) -> Result<Expr> {
        let first = element(self)?;
        if !self.at_name(word) {
            return Ok(first);
        }
        let line = first.line;
        let mut elements = vec![first];
        while self.skip_name(word) {
            elements.push(element(self)?);
        }
        Ok(Expr {
            line,
            kind: kind(elements),
        })
    }

    fn not(&mut self) -> Result<Expr> {
        if !self.skip_name("not") {
            return self.compare();
        }
        let line = self.line;
        self.enter()?;
        let inner = self.not()?;
        self.depth -= 1;
        Ok(Expr {
            line,
            kind: ExprKind::Not(Box::new(inner)),
        })
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
            false => Expr {
                line,
                kind: ExprKind::Compare(Box::new(first), others),
            },
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
        Ok(Expr {
            line,
            kind: ExprKind::Concat(elements),
        })
    }

    fn product(&mut self) -> Result<Expr> {
        let ops = [
            ("*", BinaryOp::Mul),
            ("/", BinaryOp::Div),
            ("//", BinaryOp::FloorDiv),
            ("%", BinaryOp::Rem),
        ];
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
            false => Expr {
                line,
                kind: ExprKind::Binary(Box::new(first), others),
            },
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
                let kind = if sign == "-" {
                    ExprKind::Negate(inner)
                } else {
                    ExprKind::Plus(inner)
                };
                Expr { line, kind }
            }
        };
        let mut suffixes = Vec::new();
        self.postfixes(&mut suffixes)?;
        if with_filter {
            self.filters_and_tests(&mut suffixes)?;
        }
        if !suffixes.is_empty() {
            expr = Expr {
                line: expr.line,
                kind: ExprKind::Postfix(Box::new(expr), suffixes),
            };
        }
        Ok(expr)
    }

    fn postfixes(&mut self, suffixes: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_op(".") {
                match self.next() {
                    Some(Token::Name(name)) => suffixes.push(Postfix::Attr(name)),
                    Some(Token::Int(n)) => {
                        suffixes.push(Postfix::Item(Expr {
                            line: self.line,
                            kind: ExprKind::Int(n),
                        }));
                    }
                    _ => return self.error("expected a name after `.`"),
                }
            } else if self.skip_op("[") {
                suffixes.push(self.subscript()?);
            } else if self.at_op("(") {
                suffixes.push(Postfix::Call(self.args()?));
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
            _ if n_colons == 0 => self.error("expected an index or a slice between the brackets"),
            parts => Ok(Postfix::Slice(parts)),
        }
    }

    fn filters_and_tests(&mut self, suffixes: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_op("|") {
                suffixes.push(Postfix::Filter(self.filter()?));
            } else if self.skip_name("is") {
                let is_negated = self.skip_name("not");
                suffixes.push(Postfix::Test(self.test()?, is_negated));
            } else if self.at_op("(") {
                suffixes.push(Postfix::Call(self.args()?));
            } else {
                return Ok(());
            }
        }
    }

    pub(super) fn filter(&mut self) -> Result<Applied> {
        let name = self.name()?;
        let args = if self.at_op("(") {
            self.args()?
        } else {
            Args::default()
        };
        Ok(Applied { name, args })
    }

    /// A test may have a single argument without brackets: `x is divisibleby 3`.
    fn test(&mut self) -> Result<Applied> {
        let name = self.name()?;
        let args = match self.peek() {
            Some(Token::Op("(")) => self.args()?,
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) => {
                self.test_arg()?
            }
            Some(Token::Name(word))
                if !["else", "or", "and", "is", "if", "not", "in"].contains(&word.as_str()) =>
            {
                self.test_arg()?
            }
            _ => Args::default(),
        };
        Ok(Applied { name, args })
    }

    fn test_arg(&mut self) -> Result<Args> {
        let mut expr = self.primary()?;
        let mut suffixes = Vec::new();
        self.postfixes(&mut suffixes)?;
        if !suffixes.is_empty() {
            expr = Expr {
                line: expr.line,
                kind: ExprKind::Postfix(Box::new(expr), suffixes),
            };
        }
        Ok(Args {
            positional: vec![expr],
            ..Args::default()
        })
    }

    pub(super) fn args(&mut self) -> Result<Args> {
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
            } else if let [
                ..,
                Spanned {
                    token: Token::Op("="),
                    ..
                },
                Spanned {
                    token: Token::Name(_),
                    ..
                },
            ] = self.tokens.as_slice()
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
                let kind = if self.at_op(")") {
                    ExprKind::Tuple(Vec::new())
                } else {
                    self.tuple_or_expression()?.kind
                };
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
            Some(Token::Name(_) | Token::Str(_) | Token::Int(_) | Token::Float(_)) => {
                self.literal()?
            }
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

    fn elements<T>(
        &mut self,
        end: &str,
        element: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
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

//! Evaluates expressions.

use std::rc::Rc;

use super::args::Args;
use super::ast::{self, Expr, ExprKind, Postfix};
use super::interpreter::Interpreter;
use super::meter::{Error, Result};
use super::text::Text;
use super::value::{Dict, Scope, Value};
use super::{filters, lists, ops, predicates, print};

impl Interpreter {
    /// Evaluates an expression. The depth and the work of the evaluation are limited.
    pub(super) fn expr(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        self.meter
            .enter()
            .and_then(|()| self.meter.spend(1))
            .map_err(|e| e.at(expr.line))?;
        let value = self.expr_kind(expr, scope).map_err(|e| e.at(expr.line))?;
        self.meter.leave();
        Ok(value)
    }

    fn exprs(&mut self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        exprs.iter().map(|expr| self.expr(expr, scope)).collect()
    }

    fn expr_kind(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        Ok(match &expr.kind {
            ExprKind::None => Value::None,
            ExprKind::Bool(value) => Value::Bool(*value),
            ExprKind::Int(value) => Value::Int(*value),
            ExprKind::Float(value) => Value::Float(*value),
            ExprKind::Str(text) => self.str(text)?,
            ExprKind::Name(name) => scope.get(name).unwrap_or_else(|| Value::undefined(name)),
            ExprKind::List(exprs) => {
                let values = self.exprs(exprs, scope)?;
                Value::list(values, &self.meter)?
            }
            ExprKind::Tuple(exprs) => {
                let values = self.exprs(exprs, scope)?;
                Value::tuple(values, &self.meter)?
            }
            ExprKind::Dict(pairs) => {
                let mut dict = Dict::new(&self.meter);
                for (key, value) in pairs {
                    dict.set(self.expr(key, scope)?, self.expr(value, scope)?)?;
                }
                dict.into()
            }
            ExprKind::Ternary(parts, otherwise) => {
                match (self.expr(&parts[0], scope)?.is_true(), otherwise) {
                    (true, _) => self.expr(&parts[1], scope)?,
                    (false, Some(otherwise)) => self.expr(otherwise, scope)?,
                    (false, None) => Value::undefined("if without else"),
                }
            }
            ExprKind::Or(exprs) => self.short_circuit(exprs, scope, true)?,
            ExprKind::And(exprs) => self.short_circuit(exprs, scope, false)?,
            ExprKind::Not(inner) => Value::Bool(!self.expr(inner, scope)?.is_true()),
            ExprKind::Negate(inner) => ops::negate(&self.expr(inner, scope)?)?,
            ExprKind::Plus(inner) => {
                let value = self.expr(inner, scope)?;
                match value.as_float() {
                    Some(_) => value,
                    None => {
                        return Err(Error::new(format!(
                            "`+`: expected a number, found {}",
                            value.type_name()
                        )));
                    }
                }
            }
            ExprKind::Compare(first, others) => {
                let mut left = self.expr(first, scope)?;
                for (op, right) in others {
                    let right = self.expr(right, scope)?;
                    if !ops::compare_with(*op, &left, &right, &self.meter)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            ExprKind::Binary(first, others) => {
                let mut left = self.expr(first, scope)?;
                for (op, right) in others {
                    let right = self.expr(right, scope)?;
                    left = ops::binary(*op, &left, &right, &self.meter)?;
                }
                left
            }
            ExprKind::Concat(exprs) => {
                let mut text = Text::new(&self.meter);
                for expr in exprs {
                    print::display(&self.expr(expr, scope)?, &mut text)?;
                }
                text.into()
            }
            ExprKind::Postfix(inner, suffixes) => {
                let value = self.expr(inner, scope)?;
                self.postfixes(value, suffixes, scope)?
            }
        })
    }

    /// `and` and `or`: the first value whose truth equals `wanted`, or else the last value.
    fn short_circuit(&mut self, exprs: &[Expr], scope: &Rc<Scope>, wanted: bool) -> Result<Value> {
        let mut value = Value::None;
        for expr in exprs {
            value = self.expr(expr, scope)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    /// Applies suffixes such as `.name`, `[index]`, `(args)` and `|filter` to a value.
    pub(super) fn postfixes(
        &mut self,
        mut value: Value,
        suffixes: &[Postfix],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        for postfix in suffixes {
            self.meter.spend(1)?;
            value = match postfix {
                Postfix::Attr(name) => self.attr(&value, name)?,
                Postfix::Item(index) => {
                    let index = self.expr(index, scope)?;
                    self.item(&value, &index)?
                }
                Postfix::Slice(parts) => {
                    let mut bounds = [None; 3];
                    for (bound, part) in bounds.iter_mut().zip(parts) {
                        let Some(part) = part else { continue };
                        let part = self.expr(part, scope)?;
                        *bound = match (part.as_int(), &part) {
                            (None, Value::None) => None,
                            (Some(n), _) => Some(n),
                            _ => {
                                return Err(Error::new(format!(
                                    "slice: expected integers as bounds, found {}",
                                    part.type_name()
                                )));
                            }
                        };
                    }
                    lists::slice(&value, bounds, &self.meter)?
                }
                Postfix::Call(args) => {
                    let args = self.args(args, scope)?;
                    self.call(&value, args)?
                }
                Postfix::Filter(call) => {
                    let args = self.args(&call.args, scope)?;
                    filters::apply(self, &call.name, &value, args)?
                }
                Postfix::Test(call, is_negated) => {
                    let args = self.args(&call.args, scope)?;
                    Value::Bool(predicates::test(self, &call.name, &value, args)? != *is_negated)
                }
            };
        }
        Ok(value)
    }

    /// Evaluates arguments, including `*list` and `**dict`.
    pub(super) fn args(&mut self, args: &ast::Args, scope: &Rc<Scope>) -> Result<Args> {
        let mut out = Args {
            positional: self.exprs(&args.positional, scope)?,
            named: Vec::new(),
        };
        for expr in &args.spread {
            let value = self.expr(expr, scope)?;
            let values = lists::values(&value, &self.meter)?;
            out.positional.extend(values.iter().cloned());
        }
        for (name, expr) in &args.named {
            out.named.push((name.clone(), self.expr(expr, scope)?));
        }
        for expr in &args.spread_named {
            let Value::Dict(dict) = self.expr(expr, scope)? else {
                return Err(Error::new("expected a dict after `**`"));
            };
            for (key, value) in dict.pairs() {
                out.named.push((
                    key.as_text("a name of an argument")?.as_str().to_owned(),
                    value.clone(),
                ));
            }
        }
        Ok(out)
    }
}

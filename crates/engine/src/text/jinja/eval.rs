//! Runs a template.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::args::Args;
use super::ast::{self, Body, Expr, ExprKind, Macro, Postfix, Stmt, StmtKind, Target};
use super::meter::{Error, Meter, Result};
use super::value::{Dict, Function, List, Text, Value};
use super::{Template, filters, lists, methods, ops, print, tests};

/// Bytes that a template may print.
const MAX_OUTPUT: usize = 32 << 20;

/// What a template is rendered with.
pub(in crate::text) struct Input<'a> {
    /// Role and content.
    pub(in crate::text) messages: Vec<(&'a str, &'a str)>,
    pub(in crate::text) add_generation_prompt: bool,
    pub(in crate::text) bos_token: &'a str,
    pub(in crate::text) eos_token: &'a str,
    /// Seconds since 1970, UTC.
    pub(in crate::text) now: i64,
}

/// What a template printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::text) struct Rendered {
    pub(in crate::text) text: String,
    /// The bytes of it that came with the content of a message, in order.
    pub(in crate::text) typed: Vec<(usize, usize)>,
}

/// Renders a template.
pub(in crate::text) fn render(template: &Template, input: &Input<'_>) -> Result<Rendered> {
    let meter = Rc::new(Meter::new());
    let mut run = Run {
        out: Text::new(&meter),
        meter,
        namespaces: Vec::new(),
        now: input.now,
    };
    let root = Scope::new(None);
    run.globals(&root, input)?;
    match run.body(&template.0, &root)? {
        Flow::On => {}
        Flow::Break | Flow::Continue => {
            return Err(Error::new("`break` or `continue` stands outside of a loop"));
        }
    }
    let (text, typed) = run.out.into_parts();
    Ok(Rendered { text, typed })
}

/// Names of a block; those of the blocks around it are found through it.
pub(super) struct Scope {
    names: RefCell<HashMap<Rc<str>, Value>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(super) fn new(parent: Option<&Rc<Scope>>) -> Rc<Self> {
        Rc::new(Self {
            names: RefCell::default(),
            parent: parent.cloned(),
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(at) = scope {
            if let Some(value) = at.names.borrow().get(name) {
                return Some(value.clone());
            }
            scope = at.parent.as_deref();
        }
        None
    }

    pub(super) fn set(&self, name: &str, value: Value) {
        self.names.borrow_mut().insert(Rc::from(name), value);
    }
}

/// Where a loop is.
pub(super) struct LoopState {
    pub(super) items: Rc<List>,
    pub(super) idx: Cell<usize>,
    pub(super) depth: usize,
    pub(super) changed: RefCell<Option<Value>>,
    /// The loop itself, where it can be called again.
    pub(super) recursion: Option<Arc<ast::For>>,
    /// Around the loop.
    pub(super) scope: Weak<Scope>,
}

impl LoopState {
    /// Levels of lists and dicts in what it goes through.
    pub(super) fn nesting(&self) -> u32 {
        self.items.nesting() + 1
    }
}

/// A macro with the names around it. It does not keep them: they may hold the macro.
pub(super) struct MacroValue {
    pub(super) def: Arc<Macro>,
    pub(super) scope: Weak<Scope>,
}

enum Flow {
    On,
    Break,
    Continue,
}

/// One rendering.
pub(super) struct Run {
    pub(super) meter: Rc<Meter>,
    out: Text,
    /// Values that can change are here, and named by their place: none can hold itself.
    pub(super) namespaces: Vec<HashMap<Rc<str>, Value>>,
    pub(super) now: i64,
}

impl Run {
    fn globals(&mut self, root: &Scope, input: &Input<'_>) -> Result<()> {
        let mut messages = List::new(&self.meter);
        for (role, content) in &input.messages {
            let mut message = Dict::new(&self.meter);
            message.set(self.str("role")?, self.str(role)?)?;
            let mut text = Text::new(&self.meter);
            text.push(content, true)?;
            message.set(self.str("content")?, text.into())?;
            messages.push(message.into())?;
        }
        root.set("messages", messages.into());
        root.set(
            "add_generation_prompt",
            Value::Bool(input.add_generation_prompt),
        );
        root.set("bos_token", self.str(input.bos_token)?);
        root.set("eos_token", self.str(input.eos_token)?);
        root.set("tools", Value::None);
        root.set("documents", Value::None);
        for (name, function) in [
            ("range", Function::Range),
            ("dict", Function::Dict),
            ("namespace", Function::Namespace),
            ("raise_exception", Function::RaiseException),
            ("strftime_now", Function::StrftimeNow),
        ] {
            root.set(name, Value::Function(function));
        }
        Ok(())
    }

    pub(super) fn str(&self, text: &str) -> Result<Value> {
        Value::text(text, &self.meter)
    }

    fn body(&mut self, body: &Body, scope: &Rc<Scope>) -> Result<Flow> {
        self.meter.enter()?;
        for stmt in body {
            self.meter.spend(1).map_err(|e| e.at(stmt.line))?;
            match self.stmt(stmt, scope).map_err(|e| e.at(stmt.line))? {
                Flow::On => {}
                broken => {
                    self.meter.leave();
                    return Ok(broken);
                }
            }
        }
        self.meter.leave();
        Ok(Flow::On)
    }

    /// A body in which `break` has no loop to leave.
    pub(super) fn closed_body(&mut self, body: &Body, scope: &Rc<Scope>) -> Result<()> {
        match self.body(body, scope)? {
            Flow::On => Ok(()),
            _ => Err(Error::new("`break` or `continue` stands outside of a loop")),
        }
    }

    /// What a body prints.
    pub(super) fn captured(&mut self, run: impl FnOnce(&mut Self) -> Result<()>) -> Result<Text> {
        let outer = std::mem::replace(&mut self.out, Text::new(&self.meter));
        let done = run(self);
        let inner = std::mem::replace(&mut self.out, outer);
        done.map(|()| inner)
    }

    fn print(&mut self, value: &Value) -> Result<()> {
        print::display(value, &mut self.out)?;
        self.check_output()
    }

    fn check_output(&self) -> Result<()> {
        if self.out.as_str().len() > MAX_OUTPUT {
            return Err(Error::new(format!(
                "it prints more than {} MiB",
                MAX_OUTPUT >> 20
            )));
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt, scope: &Rc<Scope>) -> Result<Flow> {
        match &stmt.kind {
            StmtKind::Text(text) => {
                self.out.push(text, false)?;
                self.check_output()?;
            }
            StmtKind::Print(expr) => {
                let value = self.expr(expr, scope)?;
                self.print(&value)?;
            }
            StmtKind::If(arms, otherwise) => {
                for (condition, body) in arms {
                    if self.expr(condition, scope)?.is_true() {
                        return self.body(body, scope);
                    }
                }
                return self.body(otherwise, scope);
            }
            StmtKind::For(def) => {
                let over = self.expr(&def.over, scope)?;
                self.run_loop(def, &over, scope, 0)?;
            }
            StmtKind::Set(target, expr) => {
                let value = self.expr(expr, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock(target, through, body) => {
                let inner = Scope::new(Some(scope));
                let text = self.captured(|run| run.closed_body(body, &inner))?;
                let value = self.filtered(text.into(), through, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::FilterBlock(through, body) => {
                let inner = Scope::new(Some(scope));
                let text = self.captured(|run| run.closed_body(body, &inner))?;
                let value = self.filtered(text.into(), through, scope)?;
                self.print(&value)?;
            }
            StmtKind::Macro(def) => {
                let value = MacroValue {
                    def: Arc::clone(def),
                    scope: Rc::downgrade(scope),
                };
                scope.set(&def.name, Value::Macro(Rc::new(value)));
            }
            StmtKind::CallBlock(def, call) => self.call_block(def, call, scope)?,
            StmtKind::With(values, body) => {
                let inner = Scope::new(Some(scope));
                for (target, expr) in values {
                    let value = self.expr(expr, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner);
            }
            StmtKind::Plain(body) => return self.body(body, scope),
            StmtKind::Do(expr) => {
                self.expr(expr, scope)?;
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn call_block(&mut self, def: &Arc<Macro>, call: &Expr, scope: &Rc<Scope>) -> Result<()> {
        let ExprKind::Postfix(inner, behind) = &call.kind else {
            return Err(Error::new("expected a call behind `call`"));
        };
        let Some((Postfix::Call(args), before)) = behind.split_last() else {
            return Err(Error::new("expected a call behind `call`"));
        };
        let called = self.expr(inner, scope)?;
        let called = self.postfixes(called, before, scope)?;
        let mut args = self.args(args, scope)?;
        let caller = MacroValue {
            def: Arc::clone(def),
            scope: Rc::downgrade(scope),
        };
        args.named
            .push(("caller".to_owned(), Value::Macro(Rc::new(caller))));
        let value = self.call(&called, args)?;
        self.print(&value)
    }

    fn filtered(
        &mut self,
        mut value: Value,
        through: &[ast::Call],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        for call in through {
            let args = self.args(&call.args, scope)?;
            value = filters::apply(self, &call.name, &value, args)?;
        }
        Ok(value)
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attr(name, attr) => match scope.get(name) {
                Some(Value::Namespace(idx)) => {
                    self.meter.hold(size_of::<Value>())?;
                    self.namespaces[idx].insert(Rc::from(attr.as_str()), value);
                }
                _ => {
                    return Err(Error::new(format!(
                        "`{name}` is no namespace, so `{name}.{attr}` cannot be set"
                    )));
                }
            },
            Target::Tuple(targets) => {
                let values = lists::values(&value, &self.meter)?;
                if values.len() != targets.len() {
                    let (due, found) = (targets.len(), values.len());
                    return Err(Error::new(format!(
                        "expected {due} values to unpack, found {found}"
                    )));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn run_loop(
        &mut self,
        def: &Arc<ast::For>,
        over: &Value,
        scope: &Rc<Scope>,
        depth: usize,
    ) -> Result<()> {
        let mut items = List::new(&self.meter);
        for value in lists::values(over, &self.meter)? {
            if let Some(filter) = &def.filter {
                let inner = Scope::new(Some(scope));
                self.assign(&def.target, value.clone(), &inner)?;
                if !self.expr(filter, &inner)?.is_true() {
                    continue;
                }
            }
            items.push(value)?;
        }
        let items = Rc::new(items);
        let state = Rc::new(LoopState {
            items: Rc::clone(&items),
            idx: Cell::new(0),
            depth,
            changed: RefCell::new(None),
            recursion: def.is_recursive.then(|| Arc::clone(def)),
            scope: Rc::downgrade(scope),
        });
        let done = self.iterate(def, &state, scope);
        // It may hold the loop itself.
        state.changed.take();
        if done? {
            Ok(())
        } else {
            self.closed_body(&def.otherwise, scope)
        }
    }

    /// Whether an iteration came to its end. (In Jinja2, `else` is rendered unless one did: also
    /// where each ended in `break` or `continue`.)
    fn iterate(
        &mut self,
        def: &ast::For,
        state: &Rc<LoopState>,
        scope: &Rc<Scope>,
    ) -> Result<bool> {
        let mut came_to_end = false;
        for (idx, value) in state.items.values().iter().enumerate() {
            self.meter.spend(4)?;
            state.idx.set(idx);
            let inner = Scope::new(Some(scope));
            inner.set("loop", Value::Loop(Rc::clone(state)));
            self.assign(&def.target, value.clone(), &inner)?;
            match self.body(&def.body, &inner)? {
                Flow::On => came_to_end = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        Ok(came_to_end)
    }

    pub(super) fn expr(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        self.meter
            .enter()
            .and_then(|()| self.meter.spend(1))
            .map_err(|e| e.at(expr.line))?;
        let value = self.kind(expr, scope).map_err(|e| e.at(expr.line))?;
        self.meter.leave();
        Ok(value)
    }

    fn exprs(&mut self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        exprs.iter().map(|expr| self.expr(expr, scope)).collect()
    }

    fn kind(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
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
            ExprKind::Or(exprs) => self.first_that(exprs, scope, true)?,
            ExprKind::And(exprs) => self.first_that(exprs, scope, false)?,
            ExprKind::Not(inner) => Value::Bool(!self.expr(inner, scope)?.is_true()),
            ExprKind::Negate(inner) => ops::negate(&self.expr(inner, scope)?)?,
            ExprKind::Plus(inner) => {
                let value = self.expr(inner, scope)?;
                match value.as_float() {
                    Some(_) => value,
                    None => {
                        return Err(Error::new(format!(
                            "`+` does not take {}",
                            value.type_name()
                        )));
                    }
                }
            }
            ExprKind::Compare(first, others) => {
                let mut left = self.expr(first, scope)?;
                for (op, right) in others {
                    let right = self.expr(right, scope)?;
                    if !ops::holds(*op, &left, &right, &self.meter)? {
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
            ExprKind::Postfix(inner, behind) => {
                let value = self.expr(inner, scope)?;
                self.postfixes(value, behind, scope)?
            }
        })
    }

    /// Of `and` and `or`: the first value that is as true as wanted, or the last one.
    fn first_that(&mut self, exprs: &[Expr], scope: &Rc<Scope>, wanted: bool) -> Result<Value> {
        let mut value = Value::None;
        for expr in exprs {
            value = self.expr(expr, scope)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn postfixes(
        &mut self,
        mut value: Value,
        behind: &[Postfix],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        for postfix in behind {
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
                                    "a slice's bound is {}",
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
                    Value::Bool(tests::holds(self, &call.name, &value, args)? != *is_negated)
                }
            };
        }
        Ok(value)
    }

    fn args(&mut self, args: &ast::Args, scope: &Rc<Scope>) -> Result<Args> {
        let mut out = Args {
            positional: self.exprs(&args.positional, scope)?,
            named: Vec::new(),
        };
        for expr in &args.spread {
            let value = self.expr(expr, scope)?;
            out.positional.extend(lists::values(&value, &self.meter)?);
        }
        for (name, expr) in &args.named {
            out.named.push((name.clone(), self.expr(expr, scope)?));
        }
        for expr in &args.spread_named {
            let Value::Dict(dict) = self.expr(expr, scope)? else {
                return Err(Error::new("expected a dict behind `**`"));
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

    /// `value.name`: a method before a key, as in Python.
    pub(super) fn attr(&mut self, value: &Value, name: &str) -> Result<Value> {
        match value {
            Value::Namespace(idx) => Ok(self.namespaces[*idx]
                .get(name)
                .cloned()
                .unwrap_or_else(|| Value::undefined(name))),
            Value::Loop(state) => self.loop_attr(state, name),
            Value::Macro(found) if name == "name" => self.str(&found.def.name),
            Value::Undefined(of) => Err(Error::new(format!(
                "`{of}` is undefined, so it has no `{name}`"
            ))),
            _ if methods::has(value, name) => {
                Ok(Value::Method(Rc::new((value.clone(), name.to_owned()))))
            }
            Value::Dict(dict) => Ok(dict
                .get_str(name)?
                .cloned()
                .unwrap_or_else(|| Value::undefined(name))),
            _ => Ok(Value::undefined(name)),
        }
    }

    /// `value[index]`: a key before a method.
    pub(super) fn item(&mut self, value: &Value, index: &Value) -> Result<Value> {
        let missing = || match index {
            Value::Str(name) => Value::undefined(name.as_str()),
            _ => Value::undefined("item"),
        };
        match (value, index) {
            (Value::Undefined(of), _) => Err(Error::new(format!(
                "`{of}` is undefined, so it has no items"
            ))),
            (Value::Dict(dict), key) => match (dict.get(key)?, key) {
                (Some(found), _) => Ok(found.clone()),
                (None, Value::Str(name)) => self.attr(value, name.as_str()),
                (None, _) => Ok(missing()),
            },
            (_, Value::Str(name)) => self.attr(value, name.as_str()),
            (Value::List(_) | Value::Str(_), index) => match index.as_int() {
                Some(index) => Ok(lists::item(value, index, &self.meter)?.unwrap_or_else(missing)),
                None => Ok(missing()),
            },
            _ => Ok(missing()),
        }
    }
}

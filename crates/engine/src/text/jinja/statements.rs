//! Executes statements. A rendering starts at [`render`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{self, Body, Expr, ExprKind, Macro, Postfix, Stmt, StmtKind, Target};
use super::interpreter::{Input, Interpreter};
use super::meter::{Error, Result};
use super::value::{List, LoopState, MacroValue, Scope, Value};
use super::{Template, filters, lists};

/// The output of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::text) struct Rendered {
    pub(in crate::text) text: String,
    /// The byte ranges of `text` that came with the content of a message, in order.
    pub(in crate::text) message_ranges: Vec<(usize, usize)>,
}

/// Renders a template.
pub(in crate::text) fn render(template: &Template, input: &Input<'_>) -> Result<Rendered> {
    let mut interpreter = Interpreter::new(input);
    let root = Scope::new(None);
    interpreter.globals(&root, input)?;
    interpreter.body_without_loop(&template.0, &root)?;
    let (text, message_ranges) = interpreter.out.into_parts();
    Ok(Rendered {
        text,
        message_ranges,
    })
}

/// How a body ended.
enum Flow {
    On,
    Break,
    Continue,
}

impl Interpreter {
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

    /// Runs a body in which `break` and `continue` are errors.
    pub(super) fn body_without_loop(&mut self, body: &Body, scope: &Rc<Scope>) -> Result<()> {
        match self.body(body, scope)? {
            Flow::On => Ok(()),
            _ => Err(Error::new("`break` or `continue` is outside of a loop")),
        }
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
                let text =
                    self.capture(|interpreter| interpreter.body_without_loop(body, &inner))?;
                let value = self.apply_filters(text.into(), through, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::FilterBlock(through, body) => {
                let inner = Scope::new(Some(scope));
                let text =
                    self.capture(|interpreter| interpreter.body_without_loop(body, &inner))?;
                let value = self.apply_filters(text.into(), through, scope)?;
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
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// `{% call(..) f(..) %}`.
    fn call_block(&mut self, def: &Arc<Macro>, call: &Expr, scope: &Rc<Scope>) -> Result<()> {
        let ExprKind::Postfix(inner, suffixes) = &call.kind else {
            return Err(Error::new("expected a call after `call`"));
        };
        let Some((Postfix::Call(args), before)) = suffixes.split_last() else {
            return Err(Error::new("expected a call after `call`"));
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

    /// Applies filters in order.
    fn apply_filters(
        &mut self,
        mut value: Value,
        through: &[ast::Applied],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        for call in through {
            let args = self.args(&call.args, scope)?;
            value = filters::apply(self, &call.name, &value, args)?;
        }
        Ok(value)
    }

    /// Assigns a value to a name, an attribute of a namespace, or a tuple of targets.
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
                        "`{name}.{attr}` cannot be set: expected a namespace in `{name}`"
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
                for (target, value) in targets.iter().zip(values.iter()) {
                    self.assign(target, value.clone(), scope)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a loop over the items of `over`; `depth` is its level of recursion.
    pub(super) fn run_loop(
        &mut self,
        def: &Arc<ast::For>,
        over: &Value,
        scope: &Rc<Scope>,
        depth: usize,
    ) -> Result<()> {
        let mut items = List::new(&self.meter);
        for value in lists::values(over, &self.meter)?.iter() {
            if let Some(filter) = &def.filter {
                let inner = Scope::new(Some(scope));
                self.assign(&def.target, value.clone(), &inner)?;
                if !self.expr(filter, &inner)?.is_true() {
                    continue;
                }
            }
            items.push(value.clone())?;
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
        // The value may contain the loop itself, and dropping it breaks that cycle.
        state.changed.take();
        if done? {
            Ok(())
        } else {
            self.body_without_loop(&def.otherwise, scope)
        }
    }

    /// Runs all iterations; returns whether one of them ran to its end. (Jinja2 renders `else`
    /// unless one did, so also if every iteration ended in `break` or `continue`.)
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
}

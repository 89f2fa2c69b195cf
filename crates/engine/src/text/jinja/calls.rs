//! Calls of functions, macros, methods and recursive loops.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use super::args::Args;
use super::interpreter::Interpreter;
use super::meter::{Error, Result};
use super::text::Text;
use super::value::{Dict, Function, Kind, List, LoopState, MacroValue, Scope, Turns, Value, equal};
use super::{clock, lists, methods, print};

impl Interpreter {
    /// Calls a value.
    pub(super) fn call(&mut self, value: &Value, args: Args) -> Result<Value> {
        match value {
            Value::Function(function) => self.call_function(*function, args),
            Value::Macro(found) => self.call_macro(found, args),
            Value::Method(method) => match &method.0 {
                Value::Loop(state) => self.call_loop_method(state, &method.1, args),
                Value::Cycler(turns) => call_cycler_method(turns, &method.1, args),
                _ => methods::call(&method.0, &method.1, args, &self.meter),
            },
            Value::Loop(state) => {
                let (Some(def), Some(scope)) = (&state.recursion, state.scope.upgrade()) else {
                    return Err(Error::new(
                        "expected a recursive loop, found a call of a loop that is not recursive",
                    ));
                };
                let over = args.one("loop")?;
                let text = self.capture(|interpreter| {
                    interpreter.run_loop(def, &over, &scope, state.depth + 1)
                })?;
                Ok(text.into())
            }
            Value::Joiner(turns) => {
                args.finish("joiner")?;
                match turns.idx.replace(1) {
                    0 => self.str(""),
                    _ => Ok(turns.items.values()[0].clone()),
                }
            }
            Value::Undefined(name) => Err(Error::new(format!(
                "`{name}` is undefined, so it cannot be called"
            ))),
            other => Err(Error::new(format!(
                "a value of type {} cannot be called",
                other.type_name()
            ))),
        }
    }

    /// `loop.cycle(..)` and `loop.changed(..)`.
    pub(super) fn call_loop_method(
        &mut self,
        state: &LoopState,
        name: &str,
        args: Args,
    ) -> Result<Value> {
        if name == "cycle" {
            let n = args.positional.len();
            let value = args.positional.into_iter().nth(state.idx.get() % n.max(1));
            return value
                .ok_or_else(|| Error::new("loop.cycle: expected at least one value, found none"));
        }
        let now = Value::tuple(args.positional, &self.meter)?;
        let before = state.changed.replace(Some(now.clone()));
        let is_same = before
            .map(|before| equal(&before, &now, &self.meter))
            .transpose()?;
        Ok(Value::Bool(is_same != Some(true)))
    }

    /// Calls a macro; returns what its body prints.
    pub(super) fn call_macro(&mut self, found: &MacroValue, mut args: Args) -> Result<Value> {
        let Some(around) = found.scope.upgrade() else {
            return Err(Error::new(format!(
                "the macro `{}` cannot be called outside of its block",
                found.def.name
            )));
        };
        let scope = Scope::new(Some(&around));
        let def = &found.def;
        if let Some((_, caller)) = args
            .named
            .iter()
            .position(|(n, _)| n == "caller")
            .map(|at| args.named.remove(at))
        {
            scope.set("caller", caller);
        }
        let mut positional = args.positional.into_iter();
        for (name, default) in &def.params {
            let named = args
                .named
                .iter()
                .position(|(n, _)| n == name)
                .map(|at| args.named.remove(at).1);
            let value = match (positional.next().or(named), default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.expr(default, &scope)?,
                (None, None) => Value::undefined(name),
            };
            scope.set(name, value);
        }
        scope.set("varargs", Value::tuple(positional, &self.meter)?);
        let mut kwargs = Dict::new(&self.meter);
        for (name, value) in args.named {
            kwargs.set(self.str(&name)?, value)?;
        }
        scope.set("kwargs", kwargs.into());
        Ok(self
            .capture(|interpreter| interpreter.body_without_loop(&def.body, &scope))?
            .into())
    }

    /// Calls one of the global functions.
    pub(super) fn call_function(&mut self, function: Function, mut args: Args) -> Result<Value> {
        match function {
            Function::Range => lists::range(&args, &self.meter),
            Function::Dict => {
                let mut dict = Dict::new(&self.meter);
                match args.positional.first() {
                    Some(Value::Dict(from)) => {
                        let mut pairs = from.pairs().iter();
                        pairs.try_for_each(|(key, value)| dict.set(key.clone(), value.clone()))?;
                    }
                    Some(from) => {
                        for pair in lists::values(from, &self.meter)?.iter() {
                            let [key, value] = &*lists::values(pair, &self.meter)? else {
                                return Err(Error::new("dict: expected pairs of key and value"));
                            };
                            dict.set(key.clone(), value.clone())?;
                        }
                    }
                    None => {}
                }
                for (name, value) in args.named {
                    dict.set(self.str(&name)?, value)?;
                }
                Ok(dict.into())
            }
            Function::Namespace => {
                let mut names = HashMap::new();
                if let Some(Value::Dict(from)) = args.positional.first() {
                    for (key, value) in from.pairs() {
                        names.insert(Rc::from(key.as_text("namespace")?.as_str()), value.clone());
                    }
                }
                names.extend(
                    args.named
                        .into_iter()
                        .map(|(name, value)| (Rc::from(name), value)),
                );
                // The approximate size of an empty map.
                self.meter.hold(128 + names.len() * 64)?;
                self.namespaces.push(names);
                Ok(Value::Namespace(self.namespaces.len() - 1))
            }
            Function::Cycler => {
                let items = std::mem::take(&mut args.positional);
                args.finish("cycler")?;
                if items.is_empty() {
                    return Err(Error::new("cycler: expected at least one item, found none"));
                }
                Ok(Value::Cycler(self.turns(items)?))
            }
            Function::Joiner => {
                let separator = args.take("sep").map_or_else(|| self.str(", "), Ok)?;
                args.finish("joiner")?;
                Ok(Value::Joiner(self.turns([separator])?))
            }
            Function::RaiseException => {
                let message = args.take("message").unwrap_or(Value::None);
                let mut text = Text::new(&self.meter);
                print::display(&message, &mut text)?;
                Err(Error {
                    is_raised: true,
                    ..Error::new(text.as_str())
                })
            }
            Function::StrftimeNow => {
                let format = args.one("strftime_now")?;
                let text = clock::strftime(format.as_text("strftime_now")?.as_str(), self.now)?;
                self.str(&text)
            }
        }
    }

    /// Items as a tuple, of which the first is next.
    fn turns(&self, items: impl IntoIterator<Item = Value>) -> Result<Rc<Turns>> {
        let mut tuple = List::new(&self.meter);
        tuple.kind = Kind::Tuple;
        items.into_iter().try_for_each(|item| tuple.push(item))?;
        Ok(Rc::new(Turns {
            items: Rc::new(tuple),
            idx: Cell::new(0),
        }))
    }
}

/// `cycler.next()` and `cycler.reset()`.
fn call_cycler_method(turns: &Turns, name: &str, args: Args) -> Result<Value> {
    args.finish(name)?;
    if name == "reset" {
        turns.idx.set(0);
        return Ok(Value::None);
    }
    let (idx, items) = (turns.idx.get(), turns.items.values());
    turns.idx.set((idx + 1) % items.len());
    Ok(items[idx].clone())
}

//! The state of one rendering, with attribute and item lookup.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thane_mil::budget::Budget;

use super::given::value_of;
use super::meter::{Error, Meter, Result};
use super::text::Text;
use super::value::{Dict, Function, Kind, List, LoopState, Scope, Turns, Value};
use super::{lists, methods, print};

/// Fields of a JSON object.
type Json = serde_json::Map<String, serde_json::Value>;

/// Maximum number of bytes that a template may print.
const MAX_OUTPUT: usize = 32 << 20;

/// The variables that a template is rendered with.
pub(in crate::text) struct Input<'a> {
    /// Role, content and other fields of each message.
    pub(in crate::text) messages: Vec<(&'a str, &'a str, &'a Json)>,
    /// Tools that the model can call.
    pub(in crate::text) tools: &'a [serde_json::Value],
    /// Further variables, such as `enable_thinking`.
    pub(in crate::text) variables: &'a Json,
    pub(in crate::text) add_generation_prompt: bool,
    /// Texts of named tokens, such as `bos_token`.
    pub(in crate::text) tokens: &'a BTreeMap<String, String>,
    /// Time for `strftime_now`, in seconds since 1970, UTC.
    pub(in crate::text) now: i64,
    /// Limits the memory of the rendering.
    pub(in crate::text) budget: &'a Budget,
    /// Ends the rendering once it is true.
    pub(in crate::text) stop: &'a Arc<AtomicBool>,
}

/// The state of one rendering.
pub(super) struct Interpreter {
    pub(super) meter: Rc<Meter>,
    pub(super) out: Text,
    /// Namespaces, which are the only mutable values. A value refers to a namespace by its index,
    /// so no namespace can contain itself.
    pub(super) namespaces: Vec<HashMap<Rc<str>, Value>>,
    pub(super) now: i64,
}

impl Interpreter {
    /// The state before the first statement.
    pub(super) fn new(input: &Input<'_>) -> Self {
        let meter = Meter::new(input.budget.clone(), Arc::clone(input.stop));
        let meter = Rc::new(meter);
        Self {
            out: Text::new(&meter),
            meter,
            namespaces: Vec::new(),
            now: input.now,
        }
    }

    /// Sets the global variables.
    pub(super) fn globals(&mut self, root: &Scope, input: &Input<'_>) -> Result<()> {
        let mut messages = List::new(&self.meter);
        for (role, content, fields) in &input.messages {
            let mut message = Dict::new(&self.meter);
            message.set(self.str("role")?, self.str(role)?)?;
            let mut text = Text::new(&self.meter);
            text.push(content, true)?;
            message.set(self.str("content")?, text.into())?;
            for (name, field) in *fields {
                message.set(self.str(name)?, value_of(field, &self.meter)?)?;
            }
            messages.push(message.into())?;
        }
        for (name, token) in input.tokens {
            root.set(name, self.str(token)?);
        }
        for (name, variable) in input.variables {
            root.set(name, value_of(variable, &self.meter)?);
        }
        root.set("messages", messages.into());
        root.set(
            "add_generation_prompt",
            Value::Bool(input.add_generation_prompt),
        );
        let mut tools = List::new(&self.meter);
        for tool in input.tools {
            tools.push(value_of(tool, &self.meter)?)?;
        }
        let tools = if input.tools.is_empty() {
            Value::None
        } else {
            tools.into()
        };
        root.set("tools", tools);
        root.set("documents", Value::None);
        for (name, function) in [
            ("range", Function::Range),
            ("dict", Function::Dict),
            ("namespace", Function::Namespace),
            ("cycler", Function::Cycler),
            ("joiner", Function::Joiner),
            ("raise_exception", Function::RaiseException),
            ("strftime_now", Function::StrftimeNow),
        ] {
            root.set(name, Value::Function(function));
        }
        Ok(())
    }

    /// A string that the template wrote.
    pub(super) fn str(&self, text: &str) -> Result<Value> {
        Value::text(text, &self.meter)
    }

    /// Runs `body` and returns what it prints.
    pub(super) fn capture(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<Text> {
        let outer = std::mem::replace(&mut self.out, Text::new(&self.meter));
        let done = body(self);
        let inner = std::mem::replace(&mut self.out, outer);
        done.map(|()| inner)
    }

    /// Prints a value.
    pub(super) fn print(&mut self, value: &Value) -> Result<()> {
        print::display(value, &mut self.out)?;
        self.check_output()
    }

    /// Checks the size of the output.
    pub(super) fn check_output(&self) -> Result<()> {
        if self.out.as_str().len() > MAX_OUTPUT {
            return Err(Error::new(format!(
                "expected at most {} MiB of output, found more",
                MAX_OUTPUT >> 20
            )));
        }
        Ok(())
    }

    /// `value.name`. A method takes precedence over a key, like in Python.
    pub(super) fn attr(&mut self, value: &Value, name: &str) -> Result<Value> {
        match value {
            Value::Namespace(idx) => Ok(self.namespaces[*idx]
                .get(name)
                .cloned()
                .unwrap_or_else(|| Value::undefined(name))),
            Value::Loop(state) => self.loop_attr(state, name),
            Value::Cycler(turns) => Ok(cycler_attr(value, turns, name)),
            Value::Joiner(turns) => Ok(match name {
                "sep" => turns.items.values()[0].clone(),
                "used" => Value::Bool(turns.idx.get() > 0),
                _ => Value::undefined(name),
            }),
            Value::Macro(found) if name == "name" => self.str(&found.def.name),
            Value::Undefined(of) => Err(Error::new(format!(
                "`{of}` is undefined, so it has no `{name}`"
            ))),
            Value::List(group)
                if group.kind == Kind::Group && matches!(name, "grouper" | "list") =>
            {
                Ok(group.values()[usize::from(name == "list")].clone())
            }
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

    /// `value[index]`. A key takes precedence over a method.
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

    /// The attributes of `loop`.
    fn loop_attr(&mut self, state: &Rc<LoopState>, name: &str) -> Result<Value> {
        let (idx, len) = (state.idx.get(), state.items.values().len());
        let int = |n: usize| Value::Int(n as i64);
        let item = |idx: Option<usize>| idx.and_then(|idx| state.items.values().get(idx)).cloned();
        Ok(match name {
            "index" => int(idx + 1),
            "index0" => int(idx),
            "revindex" => int(len - idx),
            "revindex0" => int(len - idx - 1),
            "first" => Value::Bool(idx == 0),
            "last" => Value::Bool(idx + 1 == len),
            "length" => int(len),
            "depth" => int(state.depth + 1),
            "depth0" => int(state.depth),
            "previtem" => item(idx.checked_sub(1)).unwrap_or_else(|| Value::undefined("previtem")),
            "nextitem" => item(Some(idx + 1)).unwrap_or_else(|| Value::undefined("nextitem")),
            "cycle" | "changed" => {
                Value::Method(Rc::new((Value::Loop(Rc::clone(state)), name.to_owned())))
            }
            _ => Value::undefined(name),
        })
    }
}

/// The attributes of a cycler.
fn cycler_attr(value: &Value, turns: &Turns, name: &str) -> Value {
    match name {
        "current" => turns.items.values()[turns.idx.get()].clone(),
        "items" => Value::List(Rc::clone(&turns.items)),
        "pos" => Value::Int(turns.idx.get() as i64),
        "next" | "reset" => Value::Method(Rc::new((value.clone(), name.to_owned()))),
        _ => Value::undefined(name),
    }
}

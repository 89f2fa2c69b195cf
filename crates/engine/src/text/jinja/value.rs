//! The values of a template. They cannot form cycles and are not nested deeply, so that they can be
//! printed, compared and dropped: lists and dicts are immutable, and a namespace, which is mutable,
//! is referred to by its index.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::ast::{For, Macro};
use super::many::Many;
use super::meter::{Error, Meter, Result};
use super::text::Text;

/// Maximum nesting of lists and dicts. (`serde_json`, which reads messages and tools, allows 128.)
const MAX_NESTING: u32 = 130;

/// A value. Clones share its contents.
#[derive(Clone)]
pub(super) enum Value {
    /// An undefined value, with the name that was looked up.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<Text>),
    List(Rc<List>),
    Dict(Rc<Dict>),
    /// Index in the namespaces of the interpreter.
    Namespace(usize),
    Loop(Rc<LoopState>),
    /// Gives its items in turn.
    Cycler(Rc<Turns>),
    /// Gives nothing when it is called first, and then its only item.
    Joiner(Rc<Turns>),
    Macro(Rc<MacroValue>),
    Function(Function),
    /// A method that has not been called yet, with its object.
    Method(Rc<(Value, String)>),
}

/// The global functions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// Bytes of a list or a dict without its values, in blocks of an allocator.
const OVERHEAD: usize = 64;

/// A list or a tuple.
pub(super) struct List {
    values: Many<Value>,
    pub(super) kind: Kind,
    nesting: u32,
}

/// What a [`List`] is in Python.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    Tuple,
    /// A tuple of `groupby`, with the names `grouper` and `list`.
    Group,
    Keys,
    Values,
    Items,
}

impl List {
    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        meter.add(OVERHEAD);
        Self {
            values: Many::new(meter),
            kind: Kind::List,
            nesting: 1,
        }
    }

    pub(super) fn push(&mut self, value: Value) -> Result<()> {
        self.values.meter().spend(1)?;
        self.nesting = self.nesting.max(value.nesting()? + 1);
        self.values.push(value)
    }

    /// Levels of lists and dicts, including this one.
    pub(super) fn nesting(&self) -> u32 {
        self.nesting
    }

    pub(super) fn values(&self) -> &[Value] {
        &self.values
    }

    pub(super) fn is_tuple(&self) -> bool {
        matches!(self.kind, Kind::Tuple | Kind::Group)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.values.meter().release(OVERHEAD);
    }
}

/// Keys with values, in insertion order.
pub(super) struct Dict {
    pairs: Many<(Value, Value)>,
    nesting: u32,
}

impl Dict {
    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        meter.add(OVERHEAD);
        Self {
            pairs: Many::new(meter),
            nesting: 1,
        }
    }

    pub(super) fn pairs(&self) -> &[(Value, Value)] {
        &self.pairs
    }

    fn find(&self, key: &Value) -> Result<Option<usize>> {
        let meter = self.pairs.meter();
        meter.spend(self.pairs.len() as u64 / 8 + 1)?;
        for (idx, (found, _)) in self.pairs.iter().enumerate() {
            if equal(found, key, meter)? {
                return Ok(Some(idx));
            }
        }
        Ok(None)
    }

    pub(super) fn get(&self, key: &Value) -> Result<Option<&Value>> {
        Ok(self.find(key)?.map(|idx| &self.pairs[idx].1))
    }

    /// The value of a string key.
    pub(super) fn get_str(&self, key: &str) -> Result<Option<&Value>> {
        let meter = self.pairs.meter();
        meter.spend(self.pairs.len() as u64 / 8 + 1)?;
        let is = |found: &Value| matches!(found, Value::Str(text) if text.as_str() == key);
        Ok(self
            .pairs
            .iter()
            .find(|(found, _)| is(found))
            .map(|(_, value)| value))
    }

    /// Sets the value of a key, which may already be present.
    pub(super) fn set(&mut self, key: Value, value: Value) -> Result<()> {
        if matches!(key, Value::List(_) | Value::Dict(_)) {
            return Err(Error::new(format!(
                "expected a hashable key, found a {}",
                key.type_name()
            )));
        }
        self.nesting = self.nesting.max(value.nesting()? + 1);
        match self.find(&key)? {
            Some(idx) => self.pairs[idx].1 = value,
            None => self.pairs.push((key, value))?,
        }
        Ok(())
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        self.pairs.meter().release(OVERHEAD);
    }
}

impl Value {
    pub(super) fn undefined(name: &str) -> Self {
        Self::Undefined(Rc::from(name))
    }

    /// A string that the template wrote.
    pub(super) fn text(text: &str, meter: &Rc<Meter>) -> Result<Self> {
        let mut out = Text::new(meter);
        out.push(text, false)?;
        Ok(out.into())
    }

    /// A list of values.
    pub(super) fn list(values: impl IntoIterator<Item = Value>, meter: &Rc<Meter>) -> Result<Self> {
        Self::of(Kind::List, values, meter)
    }

    /// A tuple of values.
    pub(super) fn tuple(
        values: impl IntoIterator<Item = Value>,
        meter: &Rc<Meter>,
    ) -> Result<Self> {
        Self::of(Kind::Tuple, values, meter)
    }

    /// A list of this kind.
    pub(super) fn of(
        kind: Kind,
        values: impl IntoIterator<Item = Value>,
        meter: &Rc<Meter>,
    ) -> Result<Self> {
        let mut list = List::new(meter);
        list.kind = kind;
        values.into_iter().try_for_each(|value| list.push(value))?;
        Ok(list.into())
    }

    /// Levels of lists and dicts; an error if there are too many.
    fn nesting(&self) -> Result<u32> {
        let nesting = match self {
            Value::List(list) => list.nesting,
            Value::Dict(dict) => dict.nesting,
            Value::Method(method) => method.0.nesting()?,
            Value::Loop(state) => state.nesting(),
            Value::Cycler(turns) | Value::Joiner(turns) => turns.items.nesting() + 1,
            _ => 0,
        };
        if nesting >= MAX_NESTING {
            return Err(Error::new(format!(
                "expected at most {MAX_NESTING} nested lists, found more"
            )));
        }
        Ok(nesting)
    }

    /// The name of the type in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined value",
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "string",
            Value::List(list) if list.is_tuple() => "tuple",
            Value::List(_) => "list",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "namespace",
            Value::Loop(_) => "loop",
            Value::Cycler(_) => "cycler",
            Value::Joiner(_) => "joiner",
            Value::Macro(_) => "macro",
            Value::Function(_) | Value::Method(_) => "function",
        }
    }

    /// Python's truth value.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.as_str().is_empty(),
            Value::List(list) => !list.values.is_empty(),
            Value::Dict(dict) => !dict.pairs.is_empty(),
            _ => true,
        }
    }

    /// An integer or, like in Python, a boolean.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// A float, an integer or a boolean.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// The value itself; an error if it is undefined.
    pub(super) fn defined(&self) -> Result<&Self> {
        match self {
            Value::Undefined(name) => Err(Error::new(format!("`{name}` is undefined"))),
            _ => Ok(self),
        }
    }

    /// The string; an error that names `what` if the value is not a string.
    pub(super) fn as_text(&self, what: &str) -> Result<&Rc<Text>> {
        match self.defined()? {
            Value::Str(text) => Ok(text),
            other => Err(Error::new(format!(
                "{what}: expected a string, found {}",
                other.type_name()
            ))),
        }
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::Str(Rc::new(text))
    }
}

impl From<List> for Value {
    fn from(list: List) -> Self {
        Self::List(Rc::new(list))
    }
}

impl From<Dict> for Value {
    fn from(dict: Dict) -> Self {
        Self::Dict(Rc::new(dict))
    }
}

/// The variables of a block. Variables of enclosing blocks are found through `parent`.
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

/// The state of a running loop.
pub(super) struct LoopState {
    pub(super) items: Rc<List>,
    pub(super) idx: Cell<usize>,
    pub(super) depth: usize,
    pub(super) changed: RefCell<Option<Value>>,
    /// The loop itself if it is recursive.
    pub(super) recursion: Option<Arc<For>>,
    /// The scope around the loop.
    pub(super) scope: Weak<Scope>,
}

impl LoopState {
    /// Levels of lists and dicts in the items.
    pub(super) fn nesting(&self) -> u32 {
        self.items.nesting() + 1
    }
}

/// Items that never change, and which of them is next.
pub(super) struct Turns {
    pub(super) items: Rc<List>,
    pub(super) idx: Cell<usize>,
}

/// A macro and its enclosing scope. The reference is weak, because the scope may contain the macro.
pub(super) struct MacroValue {
    pub(super) def: Arc<Macro>,
    pub(super) scope: Weak<Scope>,
}

/// Python's `==`.
pub(super) fn equal(a: &Value, b: &Value, meter: &Meter) -> Result<bool> {
    meter.spend(1)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            meter.spend_bytes(a.as_str().len().min(b.as_str().len()))?;
            a.as_str() == b.as_str()
        }
        (Value::List(a), Value::List(b)) => {
            if a.is_tuple() != b.is_tuple() || a.values().len() != b.values().len() {
                return Ok(false);
            }
            for (a, b) in a.values().iter().zip(b.values()) {
                if !equal(a, b, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.pairs().len() != b.pairs().len() {
                return Ok(false);
            }
            for (key, value) in a.pairs() {
                match b.get(key)? {
                    Some(other) if equal(value, other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Cycler(a), Value::Cycler(b)) | (Value::Joiner(a), Value::Joiner(b)) => {
            Rc::ptr_eq(a, b)
        }
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.as_float(), b.as_float()), (Some(a), Some(b)) if a == b),
        },
    })
}

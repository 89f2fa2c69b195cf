//! What a template computes with. Values cannot form cycles and are not nested deep, so that each
//! can be printed, compared and dropped: lists and dicts never change, and a namespace, which does,
//! is a number.

use std::rc::Rc;

use super::eval::{LoopState, MacroValue};
use super::meter::{Error, Meter, Result};

/// Lists and dicts inside of each other. (`serde_json`, which reads messages and tools, ends at
/// 128.)
const MAX_NESTING: u32 = 130;

/// A value; copies share it.
#[derive(Clone)]
pub(super) enum Value {
    /// With the name that it was looked up by.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<Text>),
    List(Rc<List>),
    Dict(Rc<Dict>),
    /// Its place among the namespaces of this rendering.
    Namespace(usize),
    Loop(Rc<LoopState>),
    Macro(Rc<MacroValue>),
    Function(Function),
    /// A method that is not called yet.
    Method(Rc<(Value, String)>),
}

/// The functions that every template has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// A string, and which of its bytes came with a message and were not written by the template.
pub(super) struct Text {
    text: String,
    /// In order, apart from each other.
    typed: Vec<(usize, usize)>,
    meter: Rc<Meter>,
    held: usize,
}

impl Text {
    /// What a text takes besides its bytes, about.
    const OVERHEAD: usize = 128;

    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        Self {
            text: String::new(),
            typed: Vec::new(),
            meter: Rc::clone(meter),
            held: 0,
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }

    /// Whether the byte there came with a message.
    pub(super) fn is_typed_at(&self, at: usize) -> bool {
        let idx = self.typed.partition_point(|(_, end)| *end <= at);
        self.typed.get(idx).is_some_and(|(start, _)| *start <= at)
    }

    fn hold(&mut self, bytes: usize) -> Result<()> {
        self.meter.hold(bytes)?;
        self.held += bytes;
        Ok(())
    }

    pub(super) fn push(&mut self, text: &str, is_typed: bool) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.meter.spend_bytes(text.len())?;
        self.hold(text.len() + if self.held == 0 { Self::OVERHEAD } else { 0 })?;
        let start = self.text.len();
        self.text.push_str(text);
        if is_typed {
            self.mark(start, self.text.len())
        } else {
            Ok(())
        }
    }

    fn mark(&mut self, start: usize, end: usize) -> Result<()> {
        match self.typed.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => {
                self.hold(16)?;
                self.typed.push((start, end));
            }
        }
        Ok(())
    }

    /// Appends a part of another text, given in its bytes.
    pub(super) fn push_part(&mut self, other: &Text, start: usize, end: usize) -> Result<()> {
        let at = self.text.len();
        self.push(&other.text[start..end], false)?;
        let first = other
            .typed
            .partition_point(|(_, typed_end)| *typed_end <= start);
        for (typed_start, typed_end) in other.typed[first..].iter().take_while(|(s, _)| *s < end) {
            self.mark(
                at + (*typed_start).max(start) - start,
                at + (*typed_end).min(end) - start,
            )?;
        }
        Ok(())
    }

    pub(super) fn push_text(&mut self, other: &Text) -> Result<()> {
        self.push_part(other, 0, other.text.len())
    }

    pub(super) fn into_parts(mut self) -> (String, Vec<(usize, usize)>) {
        (
            std::mem::take(&mut self.text),
            std::mem::take(&mut self.typed),
        )
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.meter.release(self.held);
    }
}

/// A list or a tuple.
pub(super) struct List {
    values: Vec<Value>,
    pub(super) is_tuple: bool,
    nesting: u32,
    meter: Rc<Meter>,
}

impl List {
    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        Self {
            values: Vec::new(),
            is_tuple: false,
            nesting: 1,
            meter: Rc::clone(meter),
        }
    }

    pub(super) fn push(&mut self, value: Value) -> Result<()> {
        self.meter.spend(1)?;
        self.nesting = self.nesting.max(value.nesting()? + 1);
        self.meter.hold(size_of::<Value>())?;
        self.values.push(value);
        Ok(())
    }

    /// Levels of lists and dicts, its own included.
    pub(super) fn nesting(&self) -> u32 {
        self.nesting
    }

    pub(super) fn values(&self) -> &[Value] {
        &self.values
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.meter.release(self.values.len() * size_of::<Value>());
    }
}

/// Keys with values, in order.
pub(super) struct Dict {
    pairs: Vec<(Value, Value)>,
    nesting: u32,
    meter: Rc<Meter>,
}

impl Dict {
    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        Self {
            pairs: Vec::new(),
            nesting: 1,
            meter: Rc::clone(meter),
        }
    }

    pub(super) fn pairs(&self) -> &[(Value, Value)] {
        &self.pairs
    }

    fn find(&self, key: &Value) -> Result<Option<usize>> {
        self.meter.spend(self.pairs.len() as u64 / 8 + 1)?;
        for (idx, (found, _)) in self.pairs.iter().enumerate() {
            if super::ops::equal(found, key, &self.meter)? {
                return Ok(Some(idx));
            }
        }
        Ok(None)
    }

    pub(super) fn get(&self, key: &Value) -> Result<Option<&Value>> {
        Ok(self.find(key)?.map(|idx| &self.pairs[idx].1))
    }

    /// The value of a key that is a string.
    pub(super) fn get_str(&self, key: &str) -> Result<Option<&Value>> {
        self.meter.spend(self.pairs.len() as u64 / 8 + 1)?;
        let is = |found: &Value| matches!(found, Value::Str(text) if text.as_str() == key);
        Ok(self
            .pairs
            .iter()
            .find(|(found, _)| is(found))
            .map(|(_, value)| value))
    }

    /// Sets a key, which may be there already.
    pub(super) fn set(&mut self, key: Value, value: Value) -> Result<()> {
        if matches!(key, Value::List(_) | Value::Dict(_)) {
            return Err(Error::new(format!("a {} cannot be a key", key.type_name())));
        }
        self.nesting = self.nesting.max(value.nesting()? + 1);
        match self.find(&key)? {
            Some(idx) => self.pairs[idx].1 = value,
            None => {
                self.meter.hold(size_of::<(Value, Value)>())?;
                self.pairs.push((key, value));
            }
        }
        Ok(())
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        self.meter
            .release(self.pairs.len() * size_of::<(Value, Value)>());
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
        let mut list = List::new(meter);
        values.into_iter().try_for_each(|value| list.push(value))?;
        Ok(list.into())
    }

    /// A tuple of values.
    pub(super) fn tuple(
        values: impl IntoIterator<Item = Value>,
        meter: &Rc<Meter>,
    ) -> Result<Self> {
        let mut list = List::new(meter);
        list.is_tuple = true;
        values.into_iter().try_for_each(|value| list.push(value))?;
        Ok(list.into())
    }

    /// Levels of lists and dicts, if they are not too many.
    fn nesting(&self) -> Result<u32> {
        let nesting = match self {
            Value::List(list) => list.nesting,
            Value::Dict(dict) => dict.nesting,
            Value::Method(method) => method.0.nesting()?,
            Value::Loop(state) => state.nesting(),
            _ => 0,
        };
        if nesting >= MAX_NESTING {
            return Err(Error::new(format!(
                "lists are nested more than {MAX_NESTING} deep"
            )));
        }
        Ok(nesting)
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined value",
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "string",
            Value::List(list) if list.is_tuple => "tuple",
            Value::List(_) => "list",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "namespace",
            Value::Loop(_) => "loop",
            Value::Macro(_) => "macro",
            Value::Function(_) | Value::Method(_) => "function",
        }
    }

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

    /// Numbers and, as in Python, true and false.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// An error where there is no value.
    pub(super) fn defined(&self) -> Result<&Self> {
        match self {
            Value::Undefined(name) => Err(Error::new(format!("`{name}` is undefined"))),
            _ => Ok(self),
        }
    }

    /// The string, or an error that says whose argument it was to be.
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

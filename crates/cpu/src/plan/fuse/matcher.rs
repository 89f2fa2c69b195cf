//! Patterns as text: `mul(x, root@rsqrt(x))` is a `mul` whose first argument is named `x` and whose
//! second is an `rsqrt` of the same, named `root`.
//!
//! A name alone stands for any argument, the same one wherever it occurs; `name@op(..)` names what
//! the op makes. Arguments are in the order of the op's parameters, those of a variadic parameter
//! each by itself; further ones are free, with `()` all. The text is read while the graph is
//! walked, so that most ops cost no more than to compare a name.

use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Definition, Function, Op, OpId, ValueId};

use crate::plan::Planner;
use crate::tensor::Tensor;

/// An argument that a name stands for.
#[derive(Clone, Copy)]
enum Given<'a> {
    Value(ValueId),
    Literal(&'a Literal),
}

/// What the names of a pattern stand for.
pub struct Match<'a> {
    names: Vec<(&'static str, Given<'a>)>,
    /// The ops that were matched, apart from the one that ends the pattern.
    pub covers: Vec<OpId>,
    f: &'a Function,
}

impl<'a> Match<'a> {
    /// What the op and those in front of it match.
    pub fn of(p: &Planner<'a>, root: OpId, text: &'static str) -> Option<Self> {
        let op = p.f.op(root);
        let rest = text.strip_prefix(op.def.name)?;
        let mut found = Self {
            names: Vec::new(),
            covers: Vec::new(),
            f: p.f,
        };
        found.args(op, &mut { rest })?;
        Some(found)
    }

    /// The same for the op that makes a value, which is covered too.
    pub fn made(p: &Planner<'a>, value: ValueId, text: &'static str) -> Option<Self> {
        let root = p.definer(value)?;
        let mut found = Self::of(p, root, text)?;
        found.covers.push(root);
        Some(found)
    }

    /// The value that a name stands for.
    pub fn value(&self, name: &str) -> Option<ValueId> {
        match self.given(name)? {
            Given::Value(value) => Some(value),
            Given::Literal(_) => None,
        }
    }

    /// The values that names stand for.
    pub fn values<const N: usize>(&self, names: [&str; N]) -> Option<[ValueId; N]> {
        let values: Option<Vec<ValueId>> = names.iter().map(|name| self.value(name)).collect();
        values?.try_into().ok()
    }

    /// The op that makes the value of a name.
    pub fn op(&self, name: &str) -> Option<&'a Op> {
        self.f.definer(self.value(name)?)
    }

    /// The constant that a name stands for.
    pub fn constant(&self, p: &mut Planner<'_>, name: &str) -> Option<Tensor> {
        match self.given(name)? {
            Given::Value(value) => p.constant(value),
            Given::Literal(literal) => p.literal(literal).ok().flatten(),
        }
    }

    /// The constant of one element that a name stands for, which does not raise the rank of what it
    /// is combined with.
    pub fn number(&self, p: &mut Planner<'_>, name: &str, rank: usize) -> Option<f32> {
        let tensor = self.constant(p, name)?;
        let fits = tensor.len() == 1 && tensor.shape.len() <= rank;
        tensor.f32s()?.first().copied().filter(|_| fits)
    }

    /// Whether a name stands for something.
    pub fn has(&self, name: &str) -> bool {
        self.given(name).is_some()
    }

    fn given(&self, name: &str) -> Option<Given<'a>> {
        let known = self.names.iter().find(|(known, _)| *known == name);
        known.map(|(_, given)| *given)
    }

    /// Reads `(..)` behind the name of an op.
    fn args(&mut self, op: &'a Op, text: &mut &'static str) -> Option<()> {
        let given = op.args.iter().flat_map(|arg| match arg {
            None => vec![None],
            Some(Arg::Value(value)) => vec![Some(Given::Value(*value))],
            Some(Arg::Literal(literal)) => vec![Some(Given::Literal(literal))],
            Some(Arg::Values(values)) => values.iter().map(|v| Some(Given::Value(*v))).collect(),
        });
        *text = text.strip_prefix('(')?;
        for given in given {
            if text.starts_with(')') {
                break;
            }
            self.arg(given?, text)?;
            match text.strip_prefix(", ") {
                Some(rest) => *text = rest,
                None => break,
            }
        }
        *text = text.strip_prefix(')')?;
        Some(())
    }

    fn arg(&mut self, given: Given<'a>, text: &mut &'static str) -> Option<()> {
        let mut name = word(text);
        if !text.starts_with('(') {
            self.bind(name, given)?;
            let Some(rest) = text.strip_prefix('@') else {
                return Some(());
            };
            *text = rest;
            name = word(text);
        }
        let Given::Value(value) = given else {
            return None;
        };
        let Definition::Result(id, _) = self.f.value(value).definition else {
            return None;
        };
        let op = Some(self.f.op(id)).filter(|op| op.def.name == name)?;
        if !self.covers.contains(&id) {
            self.covers.push(id);
        }
        self.args(op, text)
    }

    /// Has a name stand for an argument, unless it stands for another.
    fn bind(&mut self, name: &'static str, given: Given<'a>) -> Option<()> {
        match (self.given(name), given) {
            (None, _) => self.names.push((name, given)),
            (Some(Given::Value(known)), Given::Value(value)) if known == value => {}
            _ => return None,
        }
        Some(())
    }
}

/// The name at the beginning, which is taken away.
fn word(text: &mut &'static str) -> &'static str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let len = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let (word, rest) = text.split_at(len);
    *text = rest;
    word
}

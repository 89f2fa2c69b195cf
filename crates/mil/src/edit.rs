//! [`Patch`]: the only way to change a program that exists.
//!
//! A patch is made against a function, says which ops come and which uses move, and is applied as one step: new ops are
//! inserted, uses are redirected, ops are removed. Ids of other ops and values stay valid.

use crate::build::BuildError;
use crate::opset::OpDef;
use crate::program::{Arg, Definition, Function, OpId, Origin, Value, ValueId};

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// An op to remove still has users.
    #[error("op `{0}` is removed but its result `{1}` is still used")]
    StillUsed(String, String),
    /// Two values of different types were to stand for each other.
    #[error("`{from}` of type {from_type} cannot be replaced by `{to}` of type {to_type}")]
    TypeChange {
        /// The value that loses its uses.
        from: String,
        /// Its type.
        from_type: String,
        /// The value that gains them.
        to: String,
        /// Its type.
        to_type: String,
    },
    /// A new op is not well formed.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// A change of one function; built up by the methods, done by [`Patch::apply`].
#[derive(Debug, Default)]
pub struct Patch {
    inserts: Vec<Insert>,
    replacements: Vec<(ValueId, New)>,
    removals: Vec<OpId>,
}

#[derive(Debug)]
struct Insert {
    before: OpId,
    def: &'static OpDef,
    args: Vec<(&'static str, NewArg)>,
    name: String,
    origin: Origin,
}

/// A value of the function, or the first result of an op that the patch inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// A value that exists already.
    Value(ValueId),
    /// First result of the n-th inserted op.
    Inserted(usize),
}

/// An argument of an inserted op.
#[derive(Clone, Debug)]
pub enum NewArg {
    /// One value.
    One(New),
    /// An argument as it stands elsewhere.
    Same(Arg),
}

impl Patch {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.inserts.is_empty() && self.replacements.is_empty() && self.removals.is_empty()
    }

    /// Insert an op before `before`; its first result can be used at once.
    pub fn insert(
        &mut self,
        before: OpId,
        def: &'static OpDef,
        args: Vec<(&'static str, NewArg)>,
        name: impl Into<String>,
        origin: Origin,
    ) -> New {
        self.inserts.push(Insert { before, def, args, name: name.into(), origin });
        New::Inserted(self.inserts.len() - 1)
    }

    /// Let every use of `from`, function outputs included, use `to`.
    pub fn replace(&mut self, from: ValueId, to: New) {
        self.replacements.push((from, to));
    }

    /// Remove an op whose results have no use once the replacements are made.
    pub fn remove(&mut self, op: OpId) {
        self.removals.push(op);
    }

    /// Change `function`; on an error it may be partly changed and must be dropped.
    pub fn apply(self, function: &mut Function) -> Result<(), PatchError> {
        let mut inserted = Vec::with_capacity(self.inserts.len());
        for insert in self.inserts {
            let args = insert.args.into_iter().map(|(name, arg)| (name, resolve_arg(arg, &inserted))).collect();
            let id = function.append_op(insert.def, args, &insert.name, insert.origin)?;
            place_before(function, id, insert.before);
            inserted.push(function.op(id).results[0]);
        }
        for (from, to) in self.replacements {
            redirect(function, from, resolve(to, &inserted))?;
        }
        remove_ops(function, &self.removals)
    }
}

fn resolve(new: New, inserted: &[ValueId]) -> ValueId {
    match new {
        New::Value(v) => v,
        New::Inserted(i) => inserted[i],
    }
}

fn resolve_arg(arg: NewArg, inserted: &[ValueId]) -> Arg {
    match arg {
        NewArg::One(new) => Arg::Value(resolve(new, inserted)),
        NewArg::Same(arg) => arg,
    }
}

/// Move the op `id`, appended at the end of the body, in front of `before` in whatever block holds that.
fn place_before(function: &mut Function, id: OpId, before: OpId) {
    function.blocks[0].ops.retain(|op| *op != id);
    for block in &mut function.blocks {
        if let Some(at) = block.ops.iter().position(|op| *op == before) {
            block.ops.insert(at, id);
            return;
        }
    }
    function.blocks[0].ops.push(id);
}

fn redirect(function: &mut Function, from: ValueId, to: ValueId) -> Result<(), PatchError> {
    let (a, b) = (function.value(from), function.value(to));
    if !a.ty.compatible(&b.ty) {
        return Err(PatchError::TypeChange {
            from: a.name.clone(),
            from_type: a.ty.to_string(),
            to: b.name.clone(),
            to_type: b.ty.to_string(),
        });
    }
    let is_output = function.blocks.iter().any(|b| b.outputs.contains(&from));
    for arg in function.ops.iter_mut().flat_map(|op| op.args.iter_mut().flatten()) {
        match arg {
            Arg::Value(v) if *v == from => *v = to,
            Arg::Values(vs) => vs.iter_mut().filter(|v| **v == from).for_each(|v| *v = to),
            _ => {}
        }
    }
    for output in function.blocks.iter_mut().flat_map(|b| b.outputs.iter_mut()).filter(|v| **v == from) {
        *output = to;
    }
    if is_output {
        // The caller knows an output by its name, so the name moves with the role.
        let (i, j) = (from.index(), to.index());
        let name = std::mem::take(&mut function.values[i].name);
        function.values[i].name = std::mem::replace(&mut function.values[j].name, name);
    }
    Ok(())
}

fn remove_ops(function: &mut Function, removals: &[OpId]) -> Result<(), PatchError> {
    for block in &mut function.blocks {
        block.ops.retain(|op| !removals.contains(op));
    }
    let mut used = vec![false; function.values.len()];
    for op in function.blocks.iter().flat_map(|b| &b.ops) {
        function.op(*op).uses().for_each(|v| used[v.index()] = true);
    }
    function.blocks.iter().flat_map(|b| &b.outputs).for_each(|v| used[v.index()] = true);
    for &id in removals {
        let op = function.op(id);
        if let Some(v) = op.results.iter().find(|v| used[v.index()]) {
            let value: &Value = function.value(*v);
            debug_assert!(matches!(value.definition, Definition::Result(..)), "a result is defined by its op");
            return Err(PatchError::StillUsed(op.def.name.to_owned(), value.name.clone()));
        }
    }
    Ok(())
}

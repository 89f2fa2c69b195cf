//! [`Patch`]: the only way to change an existing program.
//!
//! A patch collects insertions of ops, replacements of values and removals of ops, and
//! [`Patch::apply`] makes all changes at once: it inserts the new ops, then redirects uses, then
//! removes ops. Ids of all other ops and values stay valid. Applying a patch walks the function a
//! fixed number of times, however many changes the patch holds.

use std::collections::{BTreeSet, HashMap};

use crate::build::BuildError;
use crate::opset::OpDef;
use crate::program::{Arg, Definition, Function, OpId, Origin, Program, ValueId};

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// A removed op still has users.
    #[error("cannot remove op `{0}`: its result `{1}` is still used")]
    StillUsed(String, String),
    /// A value would be replaced by a value of an incompatible type.
    #[error("cannot replace `{from}` of type {from_type} by `{to}` of type {to_type}")]
    TypeChange {
        /// The replaced value.
        from: String,
        /// Type of the replaced value.
        from_type: String,
        /// The replacement.
        to: String,
        /// Type of the replacement.
        to_type: String,
    },
    /// An output would lose its name, because the replacement is itself an input or output and
    /// keeps its name.
    #[error("cannot replace output `{from}` by `{to}`, which is itself an input or output")]
    Output {
        /// The replaced output.
        from: String,
        /// The replacement.
        to: String,
    },
    /// Replacements form a cycle.
    #[error("replacements of `{0}` form a cycle")]
    Cycle(String),
    /// A new op is placed before an op that the function does not run.
    #[error("cannot insert op `{0}` before an op that the function does not run")]
    NoPlace(String),
    /// The patch uses a result that the inserted op does not have.
    #[error("op `{0}` does not have the result that the patch uses")]
    NoResult(String),
    /// An inserted op does not type-check.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The program has no function with this index.
    #[error("the program has no function with index {0}")]
    NoFunction(usize),
}

/// A set of changes to one function, made at once by [`Patch::apply`].
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

/// A value in a patch: one that exists, or a result of an op that the patch inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// An existing value.
    Value(ValueId),
    /// The first result of the n-th inserted op, from 0.
    Inserted(usize),
    /// Result `.1` of the inserted op `.0`, both from 0.
    Result(usize, usize),
}

/// An argument of an inserted op.
#[derive(Clone, Debug)]
pub enum NewArg {
    /// One value.
    One(New),
    /// The values of a variadic parameter.
    Many(Vec<New>),
    /// An existing argument, used unchanged.
    Same(Arg),
}

impl Patch {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The ops that the patch removes.
    pub fn removals(&self) -> &[OpId] {
        &self.removals
    }

    /// Whether the patch has no changes.
    pub fn is_empty(&self) -> bool {
        self.inserts.is_empty() && self.replacements.is_empty() && self.removals.is_empty()
    }

    /// Inserts an op before the op `before` and returns its first result, which later changes of
    /// this patch can use.
    pub fn insert(
        &mut self,
        before: OpId,
        def: &'static OpDef,
        args: Vec<(&'static str, NewArg)>,
        name: impl Into<String>,
        origin: Origin,
    ) -> New {
        self.inserts.push(Insert {
            before,
            def,
            args,
            name: name.into(),
            origin,
        });
        New::Inserted(self.inserts.len() - 1)
    }

    /// Redirects every use of `from`, function outputs included, to `to`. Replacements chain: if
    /// `to` is replaced as well, uses of `from` go to the end of the chain.
    pub fn replace(&mut self, from: ValueId, to: New) {
        self.replacements.push((from, to));
    }

    /// Removes an op. Its results must have no uses left after all replacements.
    pub fn remove(&mut self, op: OpId) {
        self.removals.push(op);
    }

    /// Appends the changes of `other` to this patch.
    pub fn append(&mut self, other: Patch) {
        let n = self.inserts.len();
        let shift = |new: New| match new {
            New::Inserted(i) => New::Inserted(i + n),
            New::Result(i, k) => New::Result(i + n, k),
            value @ New::Value(_) => value,
        };
        self.inserts
            .extend(other.inserts.into_iter().map(|mut insert| {
                for (_, arg) in &mut insert.args {
                    match arg {
                        NewArg::One(new) => *new = shift(*new),
                        NewArg::Many(news) => news.iter_mut().for_each(|new| *new = shift(*new)),
                        NewArg::Same(_) => {}
                    }
                }
                insert
            }));
        self.replacements.extend(
            other
                .replacements
                .into_iter()
                .map(|(from, to)| (from, shift(to))),
        );
        self.removals.extend(other.removals);
    }

    /// Applies the patch to function number `function` of `program`. After an error the function
    /// may be partly changed and must be dropped.
    pub fn apply_to(self, program: &mut Program, function: usize) -> Result<(), PatchError> {
        let function = program
            .functions
            .get_mut(function)
            .ok_or(PatchError::NoFunction(function))?;
        self.apply(function)
    }

    /// Applies the patch to `function`. After an error the function may be partly changed and must
    /// be dropped.
    pub fn apply(self, function: &mut Function) -> Result<(), PatchError> {
        let inserted = insert(function, self.inserts)?;
        let replacements = self
            .replacements
            .into_iter()
            .map(|(from, to)| Ok((from, resolve(function, to, &inserted)?)));
        let replacements = replacements.collect::<Result<Vec<_>, PatchError>>()?;
        redirect(function, &replacements)?;
        remove_ops(function, &self.removals)
    }
}

fn resolve(function: &Function, new: New, inserted: &[OpId]) -> Result<ValueId, PatchError> {
    let result = |i: usize, k: usize| {
        let op = function.op(inserted[i]);
        op.results
            .get(k)
            .copied()
            .ok_or_else(|| PatchError::NoResult(op.def.name.to_owned()))
    };
    match new {
        New::Value(v) => Ok(v),
        New::Inserted(i) => result(i, 0),
        New::Result(i, k) => result(i, k),
    }
}

/// Creates the inserted ops and puts each before its place. Ops with the same place keep their
/// order.
fn insert(function: &mut Function, inserts: Vec<Insert>) -> Result<Vec<OpId>, PatchError> {
    let n_old = function.blocks[0].ops.len();
    let mut inserted = Vec::with_capacity(inserts.len());
    let mut places: HashMap<OpId, Vec<OpId>> = HashMap::new();
    for insert in inserts {
        let resolved = insert.args.into_iter().map(|(name, arg)| {
            Ok(match arg {
                NewArg::One(new) => (name, Arg::Value(resolve(function, new, &inserted)?)),
                NewArg::Many(news) => {
                    let values = news
                        .into_iter()
                        .map(|new| resolve(function, new, &inserted));
                    (
                        name,
                        Arg::Values(values.collect::<Result<Vec<_>, PatchError>>()?),
                    )
                }
                NewArg::Same(arg) => (name, arg),
            })
        });
        let args = resolved.collect::<Result<Vec<_>, PatchError>>()?;
        let id = function.append_op(
            Function::BODY,
            insert.def,
            args,
            Vec::new(),
            &insert.name,
            insert.origin,
        )?;
        places.entry(insert.before).or_default().push(id);
        inserted.push(id);
    }
    function.blocks[0].ops.truncate(n_old);
    if places.is_empty() {
        return Ok(inserted);
    }
    for block in &mut function.blocks {
        let old = std::mem::take(&mut block.ops);
        block.ops = old
            .into_iter()
            .flat_map(|op| {
                places
                    .remove(&op)
                    .unwrap_or_default()
                    .into_iter()
                    .chain([op])
            })
            .collect();
    }
    match places.values().flatten().next() {
        None => Ok(inserted),
        Some(op) => Err(PatchError::NoPlace(function.op(*op).def.name.to_owned())),
    }
}

fn redirect(
    function: &mut Function,
    replacements: &[(ValueId, ValueId)],
) -> Result<(), PatchError> {
    if replacements.is_empty() {
        return Ok(());
    }
    let mut targets: Vec<Option<ValueId>> = vec![None; function.values.len()];
    replacements
        .iter()
        .for_each(|(from, to)| targets[from.index()] = Some(*to));
    for (from, _) in replacements {
        let to = end_of_chain(function, &mut targets, *from)?;
        let (a, b) = (function.value(*from), function.value(to));
        if !a.ty.compatible(&b.ty) {
            return Err(PatchError::TypeChange {
                from: a.name.clone(),
                from_type: a.ty.to_string(),
                to: b.name.clone(),
                to_type: b.ty.to_string(),
            });
        }
    }
    let target = |v: &mut ValueId| *v = targets[v.index()].unwrap_or(*v);
    for arg in function
        .ops
        .iter_mut()
        .flat_map(|op| op.args.iter_mut().flatten())
    {
        match arg {
            Arg::Value(v) => target(v),
            Arg::Values(vs) => vs.iter_mut().for_each(target),
            Arg::Literal(_) => {}
        }
    }
    // Callers do not know the names of a nested block's outputs, so no name has to move.
    function
        .blocks
        .iter_mut()
        .skip(1)
        .flat_map(|b| &mut b.outputs)
        .for_each(target);
    move_outputs(function, &targets)
}

/// The end of a chain of replacements. Every link of the chain is updated to point to the end, so
/// that all chains together cost one walk.
fn end_of_chain(
    function: &Function,
    targets: &mut [Option<ValueId>],
    from: ValueId,
) -> Result<ValueId, PatchError> {
    let mut chain = vec![from];
    let mut end = from;
    while let Some(next) = targets[end.index()] {
        if next == from || chain.len() > targets.len() {
            return Err(PatchError::Cycle(function.value(from).name.clone()));
        }
        chain.push(next);
        end = next;
    }
    chain.pop();
    chain
        .into_iter()
        .for_each(|v| targets[v.index()] = Some(end));
    Ok(end)
}

/// Replaces outputs. Callers know an output by its name, so the replacement takes over the name.
fn move_outputs(function: &mut Function, targets: &[Option<ValueId>]) -> Result<(), PatchError> {
    let outputs: BTreeSet<ValueId> = function.blocks[0].outputs.iter().copied().collect();
    for from in outputs {
        let Some(to) = targets[from.index()] else {
            continue;
        };
        let mut outputs = function.blocks[0].outputs.iter();
        let is_taken = outputs.any(|v| *v == to)
            || matches!(function.value(to).definition, Definition::Input(_));
        if is_taken {
            let name = |v: ValueId| function.value(v).name.clone();
            return Err(PatchError::Output {
                from: name(from),
                to: name(to),
            });
        }
        function.blocks[0]
            .outputs
            .iter_mut()
            .filter(|v| **v == from)
            .for_each(|v| *v = to);
        let (i, j) = (from.index(), to.index());
        let name = std::mem::take(&mut function.values[i].name);
        function.values[i].name = std::mem::replace(&mut function.values[j].name, name);
    }
    Ok(())
}

fn remove_ops(function: &mut Function, removals: &[OpId]) -> Result<(), PatchError> {
    if removals.is_empty() {
        return Ok(());
    }
    let mut removed = vec![false; function.ops.len()];
    removals.iter().for_each(|op| removed[op.index()] = true);
    for block in &mut function.blocks {
        block.ops.retain(|op| !removed[op.index()]);
    }
    let mut used = vec![false; function.values.len()];
    for op in function.blocks.iter().flat_map(|b| &b.ops) {
        function.op(*op).uses().for_each(|v| used[v.index()] = true);
    }
    function
        .blocks
        .iter()
        .flat_map(|b| &b.outputs)
        .for_each(|v| used[v.index()] = true);
    for &id in removals {
        let op = function.op(id);
        if let Some(v) = op.results.iter().find(|v| used[v.index()]) {
            return Err(PatchError::StillUsed(
                op.def.name.to_owned(),
                function.value(*v).name.clone(),
            ));
        }
    }
    Ok(())
}

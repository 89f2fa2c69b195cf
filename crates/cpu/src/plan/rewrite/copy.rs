//! Copying a function op by op, while a rewrite changes what it wants.

use thane_mil::build::FunctionBuilder;
use thane_mil::literal::Literal;
use thane_mil::opset::{self, OpDef};
use thane_mil::program::{Arg, BlockId, Definition, Function, Op, OpId, ValueId};
use thane_mil::types::Type;

/// A function, what is built from it, and which new value stands for which old one.
pub struct Copy<'a> {
    /// The old function.
    pub f: &'a Function,
    /// The new function.
    pub to: FunctionBuilder,
    new: Vec<Option<ValueId>>,
}

impl<'a> Copy<'a> {
    /// Begins with the inputs.
    pub fn new(f: &'a Function) -> Self {
        let mut to = FunctionBuilder::rewriting(f);
        let mut new = vec![None; f.n_values()];
        for v in &f.body().inputs {
            let value = f.value(*v);
            new[v.index()] = Some(to.input(&value.name, value.ty.clone()));
        }
        Self { f, to, new }
    }

    /// The new value of an old one.
    pub fn get(&self, old: ValueId) -> Option<ValueId> {
        self.new[old.index()]
    }

    /// Has `new` stand for `old`.
    pub fn set(&mut self, old: ValueId, new: ValueId) {
        self.new[old.index()] = Some(new);
    }

    /// The type of a new value.
    pub fn ty(&self, new: ValueId) -> &Type {
        &self.to.function().value(new).ty
    }

    /// The name of an old value.
    pub fn name(&self, old: ValueId) -> &'a str {
        &self.f.value(old).name
    }

    /// Adds what an old op becomes; its results stand for those of the old one.
    pub fn add(
        &mut self,
        op: OpId,
        args: Vec<(&'static str, Arg)>,
        blocks: Vec<BlockId>,
    ) -> Option<()> {
        let f = self.f;
        let op = f.op(op);
        self.to.set_place(&op.origin.place);
        let name = match op.results.first() {
            Some(first) => self.name(*first),
            None => op.name.as_deref().unwrap_or_default(),
        };
        let results = self.to.op_of(op.def, name, args, blocks).ok()?;
        if results.len() != op.results.len() {
            return None;
        }
        for (old, new) in op.results.iter().zip(results) {
            self.is_as_known(*old, new).then_some(())?;
            self.set(*old, new);
        }
        Some(())
    }

    /// Whether a new value has as many known sizes as the old one: what a program declares beyond
    /// what follows from its ops is held against each result, which a rewrite would lose.
    pub fn is_as_known(&self, old: ValueId, new: ValueId) -> bool {
        let n_known = |ty: &Type| {
            let ty = ty.tensor();
            ty.map(|t| t.shape.iter().filter(|d| d.known().is_some()).count())
        };
        n_known(self.ty(new)) >= n_known(&self.f.value(old).ty)
    }

    /// Adds an op that the old function lacks.
    pub fn op(
        &mut self,
        name: &str,
        result: &str,
        args: Vec<(&'static str, Arg)>,
    ) -> Option<ValueId> {
        let def: &'static OpDef = opset::find(name)?;
        let results = self.to.op_of(def, result, args, Vec::new()).ok()?;
        results.first().copied()
    }

    /// A `cast` of `x`.
    pub fn cast(&mut self, x: ValueId, result: &str, dtype: &str) -> Option<ValueId> {
        let dtype = Arg::Literal(Literal::string(dtype));
        self.op("cast", result, vec![("x", Arg::Value(x)), ("dtype", dtype)])
    }

    /// The function, whose outputs have their old names and types.
    pub fn finish(mut self, outputs: &[ValueId]) -> Option<Function> {
        let f = self.f;
        let mut named: Vec<(&str, ValueId)> = Vec::new();
        for (old, new) in f.body().outputs.iter().zip(outputs) {
            let (name, ty) = (self.name(*old), &f.value(*old).ty);
            let value = self.to.function().value(*new);
            let is_taken = named.iter().any(|(_, other)| other == new);
            let is_input = matches!(value.definition, Definition::Input(_));
            let is_free = !is_taken && (!is_input || value.name == name);
            let made = match (value.ty.tensor(), ty.tensor()) {
                (Some(new_ty), Some(old_ty)) if new_ty.dtype != old_ty.dtype => {
                    self.cast(*new, name, old_ty.dtype.name())?
                }
                _ if is_free => *new,
                _ => self.op("identity", name, vec![("x", Arg::Value(*new))])?,
            };
            named.push((name, made));
        }
        Some(self.to.finish_under(&named))
    }
}

/// The arguments of an op with what `map` makes of each value, of whose parameter it has the name.
pub fn args(
    op: &Op,
    mut map: impl FnMut(&'static str, ValueId) -> Option<ValueId>,
) -> Option<Vec<(&'static str, Arg)>> {
    let mut args = Vec::with_capacity(op.args.len());
    for (param, arg) in op.def.params.iter().zip(&op.args) {
        let arg = match arg {
            None => continue,
            Some(Arg::Literal(l)) => Arg::Literal(l.clone()),
            Some(Arg::Value(v)) => Arg::Value(map(param.name, *v)?),
            Some(Arg::Values(vs)) => {
                let values = vs.iter().map(|v| map(param.name, *v));
                Arg::Values(values.collect::<Option<_>>()?)
            }
        };
        args.push((param.name, arg));
    }
    Some(args)
}

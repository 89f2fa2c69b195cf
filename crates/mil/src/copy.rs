//! [`Copier`] writes the ops of a function into another, one by one, while who drives it changes
//! what it wants.
//!
//! For changes of single places a [`Patch`](crate::edit::Patch) is the way. A copy is for functions
//! of which only some ops are wanted, and for those of which nearly every value changes its type or
//! its axes: a patch replaces a value by one of the same type only, since ops between the two must
//! stay legal.

use crate::build::{BuildError, FunctionBuilder};
use crate::literal::Literal;
use crate::opset;
use crate::program::{Arg, BlockId, Definition, Function, Op, OpId, ValueId};
use crate::types::{DType, Type};

/// Arguments of a new op.
pub type NamedArgs = Vec<(&'static str, Arg)>;

/// A function, what is built from it, and which new value stands for which old one.
#[derive(Debug)]
pub struct Copier<'a> {
    /// The old function.
    pub f: &'a Function,
    /// The new function.
    pub to: FunctionBuilder,
    new: Vec<Option<ValueId>>,
}

impl<'a> Copier<'a> {
    /// Begin a function with the name, opset, attributes and symbolic dimensions of another, and
    /// without its inputs.
    pub fn new(f: &'a Function) -> Self {
        Self {
            f,
            to: FunctionBuilder::rewriting(f),
            new: vec![None; f.n_values()],
        }
    }

    /// Add an input that has the name of an old value and stands for it.
    pub fn input(&mut self, old: ValueId, ty: Type) -> ValueId {
        let new = self.to.input(self.name(old), ty);
        self.set(old, new);
        new
    }

    /// Add all inputs as they are.
    pub fn inputs(&mut self) {
        let f = self.f;
        for &old in &f.body().inputs {
            self.input(old, f.value(old).ty.clone());
        }
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

    /// Add an op of the row of an old one, from where that comes from and under its name; the
    /// results stand for those of the old one.
    pub fn add(
        &mut self,
        old: OpId,
        args: NamedArgs,
        blocks: Vec<BlockId>,
    ) -> Result<Vec<ValueId>, BuildError> {
        let f = self.f;
        let op = f.op(old);
        self.to.set_place(&op.origin.place);
        let name = match op.results.first() {
            Some(first) => self.name(*first),
            None => op.name.as_deref().unwrap_or(op.def.name),
        };
        let results = self.to.op_of(op.def, name, args, blocks)?;
        for (old, new) in op.results.iter().zip(&results) {
            self.set(*old, *new);
        }
        Ok(results)
    }

    /// Add an op that the old function lacks, of the newest row of its kind.
    pub fn op(&mut self, kind: &str, name: &str, args: NamedArgs) -> Result<ValueId, BuildError> {
        let def = opset::find(kind).ok_or_else(|| BuildError::UnknownOp {
            op: kind.to_owned(),
            opset: self.f.opset,
        })?;
        Ok(self.to.op_of(def, name, args, Vec::new())?[0])
    }

    /// Add a `cast` of `x`.
    pub fn cast(&mut self, x: ValueId, name: &str, dtype: DType) -> Result<ValueId, BuildError> {
        let dtype = Arg::Literal(Literal::string(dtype.name()));
        self.op("cast", name, vec![("x", Arg::Value(x)), ("dtype", dtype)])
    }

    /// Add the constants that an old op uses, where they are not there yet, and the op, with its
    /// blocks, over what stands for its operands.
    pub fn copy(&mut self, id: OpId) -> Result<(), BuildError> {
        let f = self.f;
        for value in f.uses(id) {
            self.constant(value)?;
        }
        let blocks = f.op(id).blocks.iter().map(|block| self.block(*block));
        let blocks = blocks.collect::<Result<_, _>>()?;
        self.write(id, blocks)
    }

    /// Add an old constant, compressed or not, unless it is there or the value is none.
    pub fn constant(&mut self, value: ValueId) -> Result<(), BuildError> {
        let f = self.f;
        match f.maker(value) {
            Some(id) if f.op(id).def.is_constexpr() && self.get(value).is_none() => {
                f.op(id).uses().try_for_each(|used| self.constant(used))?;
                self.write(id, Vec::new())
            }
            _ => Ok(()),
        }
    }

    fn block(&mut self, id: BlockId) -> Result<BlockId, BuildError> {
        let f = self.f;
        let block = f.block(id);
        let types = block.inputs.iter().map(|v| f.value(*v));
        let types: Vec<(&str, Type)> = types.map(|v| (v.name.as_str(), v.ty.clone())).collect();
        let inputs = self.to.begin_block(&types);
        for (old, new) in block.inputs.iter().zip(inputs) {
            self.set(*old, new);
        }
        block.ops.iter().try_for_each(|op| self.copy(*op))?;
        let outputs: Vec<ValueId> = block.outputs.iter().map(|v| self.known(*v)).collect();
        Ok(self.to.end_block(&outputs))
    }

    fn write(&mut self, id: OpId, blocks: Vec<BlockId>) -> Result<(), BuildError> {
        let args = args(self.f.op(id), |_, v| Some(self.known(v)));
        let args = args.expect("every operand is known");
        self.add(id, args, blocks).map(drop)
    }

    fn known(&self, old: ValueId) -> ValueId {
        let new = self.get(old);
        new.expect("operands are inputs, or were copied before what uses them")
    }

    /// The function, whose outputs have their old names and element types, and have these values.
    pub fn finish(mut self, outputs: &[ValueId]) -> Result<Function, BuildError> {
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
                    self.cast(*new, name, old_ty.dtype)?
                }
                _ if is_free => *new,
                _ => self.op("identity", name, vec![("x", Arg::Value(*new))])?,
            };
            named.push((name, made));
        }
        Ok(self.to.finish_under(&named))
    }
}

/// The arguments of an op with what `map` makes of each value, of whose parameter it has the name.
pub fn args(
    op: &Op,
    mut map: impl FnMut(&'static str, ValueId) -> Option<ValueId>,
) -> Option<NamedArgs> {
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

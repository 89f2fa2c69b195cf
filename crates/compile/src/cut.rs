//! Takes some ops out of a program as a program of their own: what they need becomes inputs, what
//! nobody of them uses outputs.
//!
//! Constants come along with the ops that use them. Inputs are named after the values that they
//! stand for.

use std::collections::{HashMap, HashSet};

use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::program::{Arg, BlockId, Function, Op, OpId, ValueId};
use thane_mil::types::{Dim, Symbol, TensorType, Type};

/// A function of some ops of the body of another, in their order; constants need not be named.
/// Nothing where no op is left or none of them makes a value.
pub fn cut(f: &Function, ops: &HashSet<OpId>) -> Option<Result<Function, BuildError>> {
    let kept: Vec<OpId> = f
        .body()
        .ops
        .iter()
        .copied()
        .filter(|id| ops.contains(id) && !is_constant(f.op(*id)))
        .collect();
    let used: HashSet<ValueId> = kept.iter().flat_map(|id| f.uses(*id)).collect();
    let of_original: HashSet<ValueId> = f.body().outputs.iter().copied().collect();
    let made: Vec<ValueId> = kept
        .iter()
        .flat_map(|id| f.op(*id).results.iter().copied())
        .collect();
    let is_tensor = |v: &ValueId| f.value(*v).ty.tensor().is_some();
    let mut outputs: Vec<ValueId> = made
        .iter()
        .copied()
        .filter(|v| is_tensor(v) && (!used.contains(v) || of_original.contains(v)))
        .collect();
    if outputs.is_empty() {
        outputs = made.iter().copied().rfind(is_tensor).into_iter().collect();
    }
    if outputs.is_empty() {
        return None;
    }
    let mut cutter = Copier::new(f, outputs.iter().copied().collect());
    Some(cutter.copy(&kept).map(|()| {
        let outputs: Vec<(&str, ValueId)> = outputs
            .iter()
            .map(|v| (f.value(*v).name.as_str(), cutter.values[v]))
            .collect();
        cutter.builder.finish(&outputs)
    }))
}

/// Whether an op is a constant, compressed ones included.
pub fn is_constant(op: &Op) -> bool {
    op.def.is_constexpr()
}

/// Writes ops of a function into another.
pub struct Copier<'a> {
    f: &'a Function,
    /// The other.
    pub builder: FunctionBuilder,
    /// New values by old.
    pub values: HashMap<ValueId, ValueId>,
    symbols: HashMap<Symbol, Dim>,
    /// Values that outputs of the other are named after.
    outputs: HashSet<ValueId>,
}

impl<'a> Copier<'a> {
    /// Begin a function of the same name.
    pub fn new(f: &'a Function, outputs: HashSet<ValueId>) -> Self {
        let builder = FunctionBuilder::new(f.name.clone(), f.opset);
        Self {
            f,
            builder,
            values: HashMap::new(),
            symbols: HashMap::new(),
            outputs,
        }
    }

    fn copy(&mut self, kept: &[OpId]) -> Result<(), BuildError> {
        let made: HashSet<ValueId> = kept
            .iter()
            .flat_map(|id| self.f.op(*id).results.iter().copied())
            .collect();
        // Inputs first: a function has them before its ops.
        let inner: HashSet<ValueId> = kept.iter().flat_map(|id| self.inner_values(*id)).collect();
        for value in kept.iter().flat_map(|id| self.f.uses(*id)) {
            let from_outside = !made.contains(&value)
                && !inner.contains(&value)
                && !self.values.contains_key(&value);
            if from_outside && !self.f.definer(value).is_some_and(is_constant) {
                let ty = self.ty(&self.f.value(value).ty);
                let input = self.builder.input(&self.f.value(value).name, ty);
                self.values.insert(value, input);
            }
        }
        kept.iter().try_for_each(|id| self.op(*id))
    }

    /// The values that the blocks of an op define.
    fn inner_values(&self, id: OpId) -> Vec<ValueId> {
        let mut values = Vec::new();
        let mut open: Vec<BlockId> = self.f.op(id).blocks.clone();
        while let Some(block) = open.pop() {
            values.extend(&self.f.block(block).inputs);
            for op in &self.f.block(block).ops {
                values.extend(&self.f.op(*op).results);
                open.extend(&self.f.op(*op).blocks);
            }
        }
        values
    }

    /// A type with symbols of the other function.
    pub fn ty(&mut self, ty: &Type) -> Type {
        let mut shape = |t: &TensorType| {
            let dims = t.shape.iter().map(|d| match d {
                Dim::Known(n) => Dim::Known(*n),
                Dim::Symbol(s) => *self
                    .symbols
                    .entry(*s)
                    .or_insert_with(|| self.builder.symbol()),
            });
            TensorType {
                dtype: t.dtype,
                shape: dims.collect(),
            }
        };
        match ty {
            Type::Tensor(t) => Type::Tensor(shape(t)),
            Type::State(t) => Type::State(shape(t)),
            other => other.clone(),
        }
    }

    /// The constants that an op uses, then the op.
    pub fn op(&mut self, id: OpId) -> Result<(), BuildError> {
        let f = self.f;
        for value in f.uses(id) {
            self.constant(value)?;
        }
        let op = f.op(id);
        let mut blocks = Vec::new();
        for block in &op.blocks {
            blocks.push(self.block(*block)?);
        }
        self.write(op, blocks)
    }

    /// A constant, unless it is there.
    pub fn constant(&mut self, value: ValueId) -> Result<(), BuildError> {
        let Some(op) = self.f.definer(value).filter(|op| is_constant(op)) else {
            return Ok(());
        };
        if self.values.contains_key(&value) {
            return Ok(());
        }
        for used in op.uses() {
            self.constant(used)?;
        }
        self.write(op, Vec::new())
    }

    fn block(&mut self, id: BlockId) -> Result<BlockId, BuildError> {
        let f = self.f;
        let block = f.block(id);
        let types: Vec<(&str, Type)> = block
            .inputs
            .iter()
            .map(|v| (f.value(*v).name.as_str(), self.ty(&f.value(*v).ty)))
            .collect();
        let inputs = self.builder.begin_block(&types);
        self.values.extend(block.inputs.iter().copied().zip(inputs));
        for op in &block.ops {
            self.op(*op)?;
        }
        let outputs: Vec<ValueId> = block.outputs.iter().map(|v| self.values[v]).collect();
        Ok(self.builder.end_block(&outputs))
    }

    fn write(&mut self, op: &Op, blocks: Vec<BlockId>) -> Result<(), BuildError> {
        let new = |v: &ValueId| self.values[v];
        let args = op
            .def
            .params
            .iter()
            .zip(&op.args)
            .filter_map(|(param, arg)| {
                let arg = match arg.as_ref()? {
                    Arg::Value(v) => Arg::Value(new(v)),
                    Arg::Values(vs) => Arg::Values(vs.iter().map(new).collect()),
                    literal => literal.clone(),
                };
                Some((param.name, arg))
            });
        let args = args.collect();
        self.builder.set_place(&op.origin.place);
        let first = op.results.first();
        let name = first.map_or(op.def.name, |r| self.f.value(*r).name.as_str());
        // An output takes its name when the function is done, and must find it free.
        let name = if op.results.iter().any(|r| self.outputs.contains(r)) {
            format!("{name}_made")
        } else {
            name.to_owned()
        };
        let results = self
            .builder
            .op_with_blocks(op.def.name, &name, args, blocks)?;
        self.values.extend(op.results.iter().copied().zip(results));
        Ok(())
    }
}

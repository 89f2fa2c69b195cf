//! Sizes of a function's values in a call of given input lengths, for prices of programs that leave
//! sizes open.
//!
//! Types are inferred again from inputs of known sizes, and small integers that follow from
//! shapes are computed. A size that stays open takes the size of the tensor that it is a part of,
//! so a cache counts as full.

use std::collections::HashMap;

use thane_compile::ints::{Facts, Ints, evaluate};
use thane_mil::build::infer;
use thane_mil::opset::Known;
use thane_mil::program::{Function, Op, ValueId};
use thane_mil::types::{Dim, Symbol, TensorType, Type};

/// Assumed length of an open axis without a declared range.
pub const ASSUMED: usize = 128;
/// Most integers of a value that are computed; longer values are not shapes.
const MOST_INTS: usize = 64;

/// Sizes of inputs in a call.
pub type Inputs = HashMap<ValueId, Vec<usize>>;

/// Sizes of values in a call.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// By [`ValueId::index`]; empty for values that are not tensors.
    of: Vec<Vec<usize>>,
}

impl Sizes {
    /// The sizes of a function's values where its inputs have these; open axes of others are
    /// [`ASSUMED`] long. `None` where the program leaves no size open.
    pub fn new(f: &Function, inputs: &Inputs) -> Option<Self> {
        let is_open = |ty: &Type| {
            ty.tensor_or_state()
                .is_some_and(|t| t.known_shape().is_none())
        };
        let values = || f.values().iter().map(|v| &v.ty);
        if !values().any(is_open) {
            return None;
        }
        let types = values().cloned().collect();
        let longest = inputs
            .values()
            .flatten()
            .copied()
            .max()
            .unwrap_or(ASSUMED)
            .max(1);
        let mut bound = Binding {
            f,
            types,
            ints: vec![None; f.n_values()],
            symbols: HashMap::new(),
            longest,
        };
        bound.inputs(inputs);
        f.all_ops().into_iter().for_each(|id| bound.op(f.op(id)));
        let shape = |ty: &Type| {
            ty.tensor_or_state()
                .and_then(TensorType::known_shape)
                .unwrap_or_default()
        };
        Some(Self {
            of: bound.types.iter().map(shape).collect(),
        })
    }

    /// Lengths of the axes of a value.
    pub fn of(&self, value: ValueId) -> &[usize] {
        self.of.get(value.index()).map_or(&[], Vec::as_slice)
    }
}

struct Binding<'a> {
    f: &'a Function,
    /// By [`ValueId::index`], open axes closed as far as the walk has come.
    types: Vec<Type>,
    /// Small integers, by [`ValueId::index`].
    ints: Vec<Option<Vec<i32>>>,
    symbols: HashMap<Symbol, usize>,
    /// The length of an axis about which nothing is known.
    longest: usize,
}

impl Binding<'_> {
    fn inputs(&mut self, inputs: &Inputs) {
        for (value, sizes) in inputs {
            let Some(t) = self.f.value(*value).ty.tensor() else {
                continue;
            };
            for (dim, n) in t.shape.iter().zip(sizes) {
                if let Dim::Symbol(symbol) = dim {
                    self.symbols.insert(*symbol, *n);
                }
            }
        }
        for value in &self.f.body().inputs {
            self.close(*value, |_| None);
        }
    }

    /// Give open axes of a value their sizes: those that `known` tells, then those of their
    /// symbols, then the longest.
    fn close(&mut self, value: ValueId, known: impl Fn(usize) -> Option<usize>) {
        let (symbols, longest) = (&mut self.symbols, self.longest);
        let (Type::Tensor(t) | Type::State(t)) = &mut self.types[value.index()] else {
            return;
        };
        for (axis, dim) in t.shape.iter_mut().enumerate() {
            if let Dim::Symbol(symbol) = *dim {
                let size = known(axis)
                    .or_else(|| symbols.get(&symbol).copied())
                    .unwrap_or(longest);
                symbols.entry(symbol).or_insert(size);
                *dim = Dim::Known(size);
            }
        }
    }

    fn op(&mut self, op: &Op) {
        let inferred = if op.blocks.is_empty() {
            self.infer(op).unwrap_or_default()
        } else {
            Vec::new()
        };
        let whole = self.whole(op);
        for (at, result) in op.results.iter().enumerate() {
            let shape = inferred
                .get(at)
                .and_then(Type::tensor)
                .map(|t| t.shape.clone())
                .unwrap_or_default();
            self.close(*result, |axis| {
                let size = shape.get(axis).and_then(|dim| dim.known());
                size.or_else(|| whole.get(axis).copied())
            });
        }
        if let [result] = op.results[..] {
            self.ints[result.index()] = self.fold(op);
        }
    }

    fn infer(&self, op: &Op) -> Option<Vec<Type>> {
        let view = |v: ValueId| {
            let known = match (self.f.constant(v), &self.ints[v.index()]) {
                (Some(literal), _) => Known::Literal(literal),
                (None, Some(ints)) => Known::Ints(ints),
                (None, None) => Known::No,
            };
            (&self.types[v.index()], known)
        };
        infer(op.def, &op.args, &[], &view, &mut (u32::MAX / 2)).ok()
    }

    /// The tensor that a slice is a part of.
    fn whole(&self, op: &Op) -> Vec<usize> {
        let is_slice = ["slice_by_index", "slice_by_size"].contains(&op.def.name);
        let x = op
            .value_arg("x")
            .filter(|_| is_slice)
            .and_then(|x| self.types[x.index()].tensor()?.known_shape());
        x.unwrap_or_default()
    }

    /// The integers of an op's result, if they follow from shapes and constants.
    fn fold(&self, op: &Op) -> Option<Vec<i32>> {
        let shape = |v: ValueId| self.types[v.index()].tensor()?.known_shape();
        let value = |v: ValueId| {
            if let Some(literal) = self.f.constant(v) {
                return Ints::of_literal(literal, MOST_INTS);
            }
            let ints = self.ints[v.index()].as_ref()?;
            let (shape, ints) = (shape(v)?, ints.iter().map(|i| i64::from(*i)).collect());
            Some(Ints { shape, ints })
        };
        let facts = Facts {
            value: &value,
            shape: &shape,
            most: MOST_INTS,
        };
        let ints = evaluate(op, &facts)?.ints.into_iter();
        ints.map(|i| i32::try_from(i).ok()).collect()
    }
}

//! Sizes of a function's values in a call of given input lengths, for prices of programs that leave
//! sizes open.
//!
//! Types are inferred again from inputs of known sizes, and small integers that follow from
//! shapes are computed. A size that stays open takes the size of the tensor that it is a part of,
//! so a cache counts as full.

use std::collections::HashMap;

use thane_mil::literal::Literal;
use thane_mil::opset::{ArgType, Infer, Known};
use thane_mil::program::{Arg, Function, Op, ValueId};
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
        if let ([result], Some(ints)) = (&op.results[..], self.fold(op)) {
            self.ints[result.index()] = Some(ints).filter(|ints| ints.len() <= MOST_INTS);
        }
    }

    fn infer(&self, op: &Op) -> Option<Vec<Type>> {
        let literals: Vec<Option<Type>> = op
            .args
            .iter()
            .map(|a| {
                if let Some(Arg::Literal(l)) = a {
                    Some(l.ty())
                } else {
                    None
                }
            })
            .collect();
        let view = |v: &ValueId| {
            let known = match (self.f.constant(*v), &self.ints[v.index()]) {
                (Some(literal), _) => Known::Literal(literal),
                (None, Some(ints)) => Known::Ints(ints),
                (None, None) => Known::No,
            };
            (&self.types[v.index()], known)
        };
        let args: Vec<Option<ArgType<'_>>> = op
            .args
            .iter()
            .zip(&literals)
            .map(|(arg, ty)| match (arg, ty) {
                (Some(Arg::Literal(l)), Some(ty)) => Some(ArgType::One(ty, Known::Literal(l))),
                (Some(Arg::Value(v)), _) => {
                    let (ty, known) = view(v);
                    Some(ArgType::One(ty, known))
                }
                (Some(Arg::Values(vs)), _) => Some(ArgType::Many(vs.iter().map(view).collect())),
                _ => None,
            })
            .collect();
        Infer::new(op.def, &args, &mut (u32::MAX / 2)).run().ok()
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
        let of = |v: ValueId| {
            self.f
                .constant(v)
                .map_or_else(|| self.ints[v.index()].clone(), small)
        };
        let arg = |name: &str| match op.arg(name)? {
            Arg::Literal(literal) => small(literal),
            Arg::Value(v) => of(*v),
            Arg::Values(_) => None,
        };
        let rank = |name: &str| {
            op.value_arg(name)
                .and_then(|v| Some(self.types[v.index()].tensor()?.rank()))
        };
        let one = |name: &str| arg(name).and_then(|ints| ints.first().copied());
        match op.def.name {
            "shape" => {
                let shape = self.types[op.value_arg("x")?.index()]
                    .tensor()?
                    .known_shape()?;
                shape.into_iter().map(|n| i32::try_from(n).ok()).collect()
            }
            "add" => pairs(&arg("x")?, &arg("y")?, i32::checked_add),
            "sub" => pairs(&arg("x")?, &arg("y")?, i32::checked_sub),
            "mul" => pairs(&arg("x")?, &arg("y")?, i32::checked_mul),
            "floor_div" => pairs(&arg("x")?, &arg("y")?, |x, y| {
                (y > 0).then(|| x.div_euclid(y))
            }),
            "mod" => pairs(&arg("x")?, &arg("y")?, |x, y| {
                (y > 0).then(|| x.rem_euclid(y))
            }),
            "maximum" => pairs(&arg("x")?, &arg("y")?, |x, y| Some(x.max(y))),
            "minimum" => pairs(&arg("x")?, &arg("y")?, |x, y| Some(x.min(y))),
            "squeeze" | "expand_dims" | "reshape" | "identity" | "cast" => arg("x"),
            "reduce_prod" => Some(vec![
                arg("x")?.into_iter().try_fold(1i32, i32::checked_mul)?,
            ]),
            "concat" => {
                let Some(Arg::Values(values)) = op.arg("values") else {
                    return None;
                };
                let parts = values.iter().map(|v| of(*v)).collect::<Option<Vec<_>>>()?;
                Some(parts.concat())
            }
            "gather" if rank("x") == Some(1) => {
                let x = arg("x")?;
                let at = |i: i32| {
                    x.get(usize::try_from(if i < 0 { i + x.len() as i32 } else { i }).ok()?)
                        .copied()
                };
                arg("indices")?.into_iter().map(at).collect()
            }
            "slice_by_index" if rank("x") == Some(1) && one("stride").is_none_or(|s| s == 1) => {
                let x = arg("x")?;
                let end = |i: i32| usize::try_from(if i < 0 { i + x.len() as i32 } else { i }).ok();
                let open = |mask: &str| one(mask) == Some(1);
                let first = if open("begin_mask") {
                    0
                } else {
                    end(one("begin")?)?
                };
                let last = if open("end_mask") {
                    x.len()
                } else {
                    end(one("end")?)?.min(x.len())
                };
                Some(x.get(first..last)?.to_vec())
            }
            _ => None,
        }
    }
}

fn small(literal: &Literal) -> Option<Vec<i32>> {
    let Literal::Tensor(ty, _) = literal else {
        return None;
    };
    let fits = !ty.dtype.is_float() && ty.n_elements().is_some_and(|n| n <= MOST_INTS);
    fits.then(|| {
        literal
            .to_ints()?
            .into_iter()
            .map(|i| i32::try_from(i).ok())
            .collect()
    })?
}

/// Apply `f` to pairs of two vectors, where a vector of one element is broadcast.
fn pairs(x: &[i32], y: &[i32], f: impl Fn(i32, i32) -> Option<i32>) -> Option<Vec<i32>> {
    let n = x.len().max(y.len());
    let at = |v: &[i32], i: usize| v.get(if v.len() == 1 { 0 } else { i }).copied();
    (0..n).map(|i| f(at(x, i)?, at(y, i)?)).collect()
}

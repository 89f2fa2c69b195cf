//! What a pass or a fix writes in the place of what its pattern matched.
//!
//! [`Value`]s have arithmetic, so that a builder reads as its formula: `x.relu() + ((x.abs() *
//! -1.0).exp() + 1.0).log()` writes seven ops and two constants before the op that is replaced.
//! Shapes and element types are the writer's to know; the patch infers each type again, and one
//! that does not fit is an error there.

mod value;

use std::cell::RefCell;
use std::collections::HashSet;

use thane_mil::data::Data;
use thane_mil::edit::{New, NewArg, Patch};
use thane_mil::graph::{Graph, int, ints, wrap};
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::{self, OpDef};
use thane_mil::pattern::{Match, Pattern};
use thane_mil::program::{Arg, Function, Op, OpId, Origin, ValueId};
use thane_mil::types::{DType, TensorType};

use crate::pass::{Outcome, Site};
pub use value::Value;

/// A patch, or why there is none.
pub type Answer = Result<Patch, &'static str>;

/// An argument of a new op.
pub type NamedArg = (&'static str, NewArg);

/// What a target limits, as numbers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest axis of channels.
    pub channels: usize,
    /// Longest other axis.
    pub spatial: usize,
    /// Elements of a full row of memory.
    pub row: usize,
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self {
            channels: usize::MAX,
            spatial: usize::MAX,
            row: 1,
        }
    }
}

/// A patch while it is written, and what it is written for.
pub struct Rewrite<'a> {
    /// The function.
    pub graph: &'a Graph<'a>,
    /// What was matched.
    pub found: Match<'a>,
    /// What a target limits.
    pub limits: Limits,
    /// The pass or fix that writes.
    name: &'static str,
    /// Values write themselves, from several places of one expression.
    written: RefCell<Written>,
}

struct Written {
    patch: Patch,
    /// New ops stand before this one, are named after what it makes and come from where it comes
    /// from.
    at: OpId,
    base: String,
    origin: Origin,
}

/// The sites of a pass that is a pattern and a builder. What an earlier site removes is no part of
/// a later one, which is found again in the next round.
pub fn sites(
    f: &Function,
    name: &'static str,
    pattern: &Pattern,
    write: fn(&Rewrite<'_>) -> Outcome,
) -> Vec<Site> {
    let graph = Graph::new(f);
    let mut removed = HashSet::new();
    let mut sites = Vec::new();
    for &op in &f.body().ops {
        let outcome = match pattern.find(&graph, op) {
            Ok(Some(found)) if found.ops.iter().all(|op| !removed.contains(op)) => {
                write(&Rewrite::new(&graph, found, name))
            }
            Ok(_) => continue,
            Err(words) => Outcome::Refused(words),
        };
        if let Outcome::Applied(patch) = &outcome {
            removed.extend(patch.removals().iter().copied());
        }
        sites.push(Site { op, outcome });
    }
    sites
}

impl<'a> Rewrite<'a> {
    /// Begin to write before the root of a match.
    pub fn new(graph: &'a Graph<'a>, found: Match<'a>, name: &'static str) -> Self {
        let written = RefCell::new(Written::before(graph, found.root, name));
        Self {
            graph,
            found,
            limits: Limits::default(),
            name,
            written,
        }
    }

    /// Go on before another op, in the same patch.
    pub fn before(&self, at: OpId) {
        let patch = self.take();
        *self.written.borrow_mut() = Written {
            patch,
            ..Written::before(self.graph, at, self.name)
        };
    }

    /// Let new ops come from where another op comes from.
    pub fn come_from(&self, op: OpId) {
        let place = self.graph.op(op).origin.place.clone();
        self.written.borrow_mut().origin.place = place;
    }

    fn take(&self) -> Patch {
        std::mem::take(&mut self.written.borrow_mut().patch)
    }

    /// The op that ends what was matched.
    pub fn root(&self) -> OpId {
        self.found.root
    }

    /// The name of an op's kind.
    pub fn kind(&self, op: OpId) -> &'static str {
        self.graph.op(op).def.name
    }

    /// A value of the function.
    pub fn of(&'a self, value: ValueId) -> Value<'a> {
        // Only tensors are computed with; what is none has no numbers beside it.
        let dtype = self.graph.dtype(value).unwrap_or(DType::Fp16);
        self.value_of(New::Value(value), dtype)
    }

    fn value_of(&'a self, new: New, dtype: DType) -> Value<'a> {
        Value {
            new,
            dtype,
            rewrite: self,
        }
    }

    /// What a name of the pattern stands for.
    pub fn value(&'a self, name: &str) -> Value<'a> {
        self.of(self.bound(name))
    }

    fn bound(&self, name: &str) -> ValueId {
        self.found.value(name).expect("the pattern has the name")
    }

    /// The op that makes what a name of the pattern stands for.
    pub fn maker(&self, name: &str) -> OpId {
        let maker = self.found.maker(name);
        maker.expect("the pattern names what an op makes")
    }

    /// An operand of an op, of floating point and fixed shape, and its shape.
    pub fn operand(
        &'a self,
        op: OpId,
        name: &str,
    ) -> Result<(Value<'a>, Vec<usize>), &'static str> {
        let (value, shape) = operand(self.graph, op, name)?;
        Ok((self.of(value), shape))
    }

    /// The shape of what the root makes.
    pub fn result_shape(&self) -> Result<Vec<usize>, &'static str> {
        result_shape(self.graph, self.root())
    }

    /// The axis that a parameter of an op names, counted from the front.
    pub fn axis(&self, op: OpId, rank: usize, default: i64) -> Result<usize, &'static str> {
        let axis = int(self.graph, op, "axis").unwrap_or(default);
        wrap(axis, rank).ok_or(NO_AXIS)
    }

    /// The one axis that a reduction is over.
    pub fn one_axis(
        &self,
        op: OpId,
        rank: usize,
        several: &'static str,
    ) -> Result<usize, &'static str> {
        let axes = ints(self.graph, op, "axes").ok_or("its axes are not given")?;
        let [axis] = axes[..] else {
            return Err(several);
        };
        wrap(axis, rank).ok_or(NO_AXIS)
    }

    /// Whether a flag of an op is set.
    pub fn flag(&self, op: OpId, name: &str) -> bool {
        int(self.graph, op, name) == Some(1)
    }

    /// An op of this row.
    pub fn define(&'a self, def: &'static OpDef, args: Vec<NamedArg>, dtype: DType) -> Value<'a> {
        let name = format!("{}_{}", self.written.borrow().base, def.name);
        self.named(def, args, dtype, name)
    }

    /// An op of this row, under a name of its own.
    pub fn named(
        &'a self,
        def: &'static OpDef,
        args: Vec<NamedArg>,
        dtype: DType,
        name: String,
    ) -> Value<'a> {
        let mut written = self.written.borrow_mut();
        let (at, origin) = (written.at, written.origin.clone());
        let new = written.patch.insert(at, def, args, name, origin);
        drop(written);
        self.value_of(new, dtype)
    }

    fn def(&self, kind: &str) -> &'static OpDef {
        opset::find_in(kind, self.graph.f.opset)
            .expect("rewrites are written in ops of the first opset")
    }

    /// An op of a kind that every opset has, of the element type of its first argument.
    pub fn op(&'a self, kind: &'static str, args: &[(&'static str, Value<'a>)]) -> Value<'a> {
        let dtype = args.first().map_or(DType::Fp16, |(_, value)| value.dtype);
        self.define(self.def(kind), one_each(args), dtype)
    }

    /// A constant.
    pub fn literal(&self, literal: Literal) -> Value<'_> {
        let dtype = literal.ty().tensor().map_or(DType::Fp16, |t| t.dtype);
        let args = vec![("val", NewArg::Same(Arg::Literal(literal)))];
        self.define(self.def("const"), args, dtype)
    }

    /// A constant tensor.
    pub fn tensor(&self, dtype: DType, shape: &[usize], data: Data) -> Value<'_> {
        let ty = TensorType::new(dtype, shape.iter().copied());
        self.literal(Literal::Tensor(ty, data))
    }

    /// A constant tensor of numbers, fp16 or fp32.
    pub fn numbers(
        &self,
        dtype: DType,
        shape: &[usize],
        numbers: impl Iterator<Item = f32>,
    ) -> Value<'_> {
        self.tensor(dtype, shape, Data::owned(bytes_of(dtype, numbers)))
    }

    /// A scalar, fp16 or fp32.
    pub fn number(&self, dtype: DType, number: f32) -> Value<'_> {
        self.numbers(dtype, &[], std::iter::once(number))
    }

    /// A vector of int32.
    pub fn ints(&self, ints: &[usize]) -> Value<'_> {
        let ints: Vec<i32> = ints
            .iter()
            .map(|n| i32::try_from(*n).unwrap_or(i32::MAX))
            .collect();
        self.literal(Literal::i32s(&ints))
    }

    /// An int32.
    pub fn int(&self, int: i32) -> Value<'_> {
        self.literal(Literal::i32(int))
    }

    /// One after the other along an axis.
    pub fn concat(&'a self, values: &[Value<'a>], axis: usize) -> Value<'a> {
        let (axis, interleave) = (self.int(axis as i32), self.literal(Literal::bool(false)));
        let dtype = values.first().map_or(DType::Fp16, |v| v.dtype);
        let mut args = one_each(&[("axis", axis), ("interleave", interleave)]);
        let values = values.iter().map(|v| v.new).collect();
        args.insert(0, ("values", NewArg::Many(values)));
        self.define(self.def("concat"), args, dtype)
    }

    /// `op` again with other arguments in the place of some.
    pub fn again(&'a self, op: &Op, others: &[(&'static str, Value<'a>)]) -> Value<'a> {
        self.again_without(op, others, "")
    }

    /// [`Self::again`] without one of its arguments.
    pub fn again_without(
        &'a self,
        op: &Op,
        others: &[(&'static str, Value<'a>)],
        left_out: &str,
    ) -> Value<'a> {
        let kept = op.def.params.iter().zip(&op.args);
        let args = kept.filter_map(|(param, arg)| {
            let other = others.iter().find(|(name, _)| *name == param.name);
            match (other, arg) {
                (Some((name, value)), _) => Some((*name, NewArg::One(value.new))),
                (None, Some(arg)) if param.name != left_out => Some((param.name, same(arg))),
                _ => None,
            }
        });
        let result = op.results.first().and_then(|r| self.graph.dtype(*r));
        self.define(op.def, args.collect(), result.unwrap_or(DType::Fp16))
    }

    /// Let `value` stand for another.
    pub fn replace(&self, from: ValueId, value: Value<'_>) {
        let patch = &mut self.written.borrow_mut().patch;
        patch.replace(from, value.new);
    }

    /// Remove an op that nothing will use.
    pub fn remove(&self, op: OpId) {
        self.written.borrow_mut().patch.remove(op);
    }

    /// What is written so far.
    pub fn finish(&self) -> Patch {
        self.take()
    }

    /// Let `value` stand for the result of the root, and remove the root; what else it leaves
    /// unused is dead code.
    pub fn instead(&self, value: Value<'_>) -> Answer {
        let root = self.root();
        let [result] = self.graph.op(root).results[..] else {
            return Err("it has several results");
        };
        self.replace(result, value);
        self.remove(root);
        Ok(self.finish())
    }
}

impl Written {
    fn before(graph: &Graph<'_>, at: OpId, name: &'static str) -> Self {
        let op = graph.op(at);
        let result = op.results.first().map(|r| &graph.f.value(*r).name[..]);
        Self {
            patch: Patch::new(),
            at,
            base: result.unwrap_or(op.def.name).to_owned(),
            origin: Origin {
                place: op.origin.place.clone(),
                pass: Some(name),
            },
        }
    }
}

fn one_each(args: &[(&'static str, Value<'_>)]) -> Vec<NamedArg> {
    let one = |(name, value): &(&'static str, Value<'_>)| (*name, NewArg::One(value.new));
    args.iter().map(one).collect()
}

/// An argument as it stands; values of the function may have been replaced by the same patch, so
/// they are named anew.
pub fn same(arg: &Arg) -> NewArg {
    match arg {
        Arg::Value(v) => NewArg::One(New::Value(*v)),
        other => NewArg::Same(other.clone()),
    }
}

/// The bytes of numbers of a type, fp16 or fp32.
pub fn bytes_of(dtype: DType, numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    match dtype {
        DType::Fp16 => numbers
            .flat_map(|n| f64_to_f16(n.into()).to_le_bytes())
            .collect(),
        _ => numbers.flat_map(f32::to_le_bytes).collect(),
    }
}

/// An operand of floating point and fixed shape, and its shape.
pub fn operand(
    graph: &Graph<'_>,
    op: OpId,
    name: &str,
) -> Result<(ValueId, Vec<usize>), &'static str> {
    let value = graph.op(op).value_arg(name).ok_or(IN_PLACE)?;
    let shape = graph.known_shape(value).ok_or(NOT_FIXED)?;
    match graph.dtype(value) {
        Some(DType::Fp16 | DType::Fp32) => Ok((value, shape)),
        _ => Err("it is not computed in floating point"),
    }
}

/// The shape of what an op makes.
pub fn result_shape(graph: &Graph<'_>, op: OpId) -> Result<Vec<usize>, &'static str> {
    let result = graph.op(op).results.first().ok_or("it has no result")?;
    graph.known_shape(*result).ok_or(NOT_FIXED)
}

/// Of an operand that is no value.
pub const IN_PLACE: &str = "its operand is written in place";
const NOT_FIXED: &str = "its shape is not fixed: make one function for each length";
const NO_AXIS: &str = "its axis is none of x";

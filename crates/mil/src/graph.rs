//! What everybody who looks for a shape in a function asks of it: which ops use a value and how
//! often, what makes it, what a parameter says, which ops touch state.

use crate::literal::Literal;
use crate::opset::slice::{self, SliceRange};
use crate::opset::{Accepts, OpDef};
use crate::program::{Function, Op, OpId, ValueId};
use crate::types::DType;

/// A function with the users of its values, each found once.
pub struct Graph<'a> {
    /// The function.
    pub f: &'a Function,
    /// By [`ValueId::index`], as are the others.
    is_constant: Vec<bool>,
    is_output: Vec<bool>,
    users: Vec<Vec<OpId>>,
}

impl<'a> Graph<'a> {
    /// Look through a function.
    pub fn new(f: &'a Function) -> Self {
        let mut is_constant = vec![false; f.n_values()];
        let mut is_output = vec![false; f.n_values()];
        for value in &f.body().outputs {
            is_output[value.index()] = true;
        }
        let mut users = vec![Vec::new(); f.n_values()];
        for id in f.all_ops() {
            let op = f.op(id);
            let outputs = op.blocks.iter().flat_map(|b| &f.block(*b).outputs);
            let used = op.uses().chain(outputs.copied());
            used.for_each(|v| users[v.index()].push(id));
            for result in &op.results {
                is_constant[result.index()] = op.def.is_constexpr();
            }
        }
        Self {
            f,
            is_constant,
            is_output,
            users,
        }
    }

    /// The op of an id.
    pub fn op(&self, id: OpId) -> &'a Op {
        self.f.op(id)
    }

    /// The op that makes a value, unless it is an input.
    pub fn maker(&self, value: ValueId) -> Option<OpId> {
        self.f.maker(value)
    }

    /// The name of a value.
    pub fn name(&self, value: ValueId) -> &'a str {
        &self.f.value(value).name
    }

    /// Whether a value is a constant, compressed ones included.
    pub fn is_constant(&self, value: ValueId) -> bool {
        self.is_constant[value.index()]
    }

    /// Whether a value is an input of the function.
    pub fn is_input(&self, value: ValueId) -> bool {
        self.maker(value).is_none()
    }

    /// Whether a value is an output of the function.
    pub fn is_output(&self, value: ValueId) -> bool {
        self.is_output[value.index()]
    }

    /// The ops that use a value, one entry for each use; what a nested block gives is used by the
    /// op that runs the block.
    pub fn users(&self, value: ValueId) -> &[OpId] {
        &self.users[value.index()]
    }

    /// Whether a value has one use, as an output too.
    pub fn is_used_once(&self, value: ValueId) -> bool {
        self.users(value).len() + usize::from(self.is_output(value)) == 1
    }

    /// Lengths of the axes of a tensor, `None` where one is not known.
    pub fn shape(&self, value: ValueId) -> Option<Vec<Option<usize>>> {
        let shape = &self.f.value(value).ty.tensor()?.shape;
        Some(shape.iter().map(|d| d.known()).collect())
    }

    /// Lengths of the axes, if all are known.
    pub fn known_shape(&self, value: ValueId) -> Option<Vec<usize>> {
        self.f.value(value).ty.tensor()?.known_shape()
    }

    /// Element type of a tensor.
    pub fn dtype(&self, value: ValueId) -> Option<DType> {
        self.f.value(value).ty.tensor().map(|t| t.dtype)
    }
}

/// Users of a value that are looked at one by one, so that a value that everything uses is not
/// walked for each of them.
const MOST_USERS: usize = 64;

/// The users of an op's first result; the first 64.
pub fn users<'a>(graph: &'a Graph<'_>, op: OpId) -> impl Iterator<Item = OpId> + 'a {
    let result = graph.op(op).results.iter().take(1);
    result.flat_map(|r| graph.users(*r).iter().take(MOST_USERS).copied())
}

/// Parameters longer than this are weights, and not read.
const MAX_PARAM_BYTES: usize = 1 << 12;

/// The literal of a parameter that is small enough to be one, and no weight.
pub fn small<'a>(graph: &Graph<'a>, op: OpId, name: &str) -> Option<&'a Literal> {
    let literal = graph.f.literal_arg(graph.op(op), name)?;
    match literal {
        Literal::Tensor(_, data) if data.byte_len() > MAX_PARAM_BYTES => None,
        _ => Some(literal),
    }
}

/// The integers or truth values of a parameter.
pub fn ints(graph: &Graph<'_>, op: OpId, name: &str) -> Option<Vec<i64>> {
    small(graph, op, name)?.to_ints()
}

/// The one integer or truth value of a parameter.
pub fn int(graph: &Graph<'_>, op: OpId, name: &str) -> Option<i64> {
    match ints(graph, op, name)?.as_slice() {
        [v] => Some(*v),
        _ => None,
    }
}

/// The one number of a parameter.
pub fn float(graph: &Graph<'_>, op: OpId, name: &str) -> Option<f32> {
    single(small(graph, op, name)?)
}

/// The one number that a value is, where the program states it.
pub fn scalar(graph: &Graph<'_>, value: ValueId) -> Option<f32> {
    number(graph.f.constant(value)?)
}

fn number(literal: &Literal) -> Option<f32> {
    match literal {
        Literal::Tensor(_, data) if data.byte_len() <= 4 => single(literal),
        _ => None,
    }
}

fn single(literal: &Literal) -> Option<f32> {
    match literal.to_floats()?.as_slice() {
        [v] => Some(*v),
        _ => None,
    }
}

/// What a `slice_by_index` or a `slice_update` takes along each axis, where its bounds and the
/// sizes of its x are known.
pub fn slice_ranges(f: &Function, op: &Op) -> Option<Vec<SliceRange>> {
    let shape = f.value(op.value_arg("x")?).ty.tensor()?.known_shape()?;
    let ints = |name: &str| f.literal_arg(op, name)?.to_ints();
    let mut params = op.def.params.iter().zip(&op.args);
    let is_stated = params.all(|(param, arg)| {
        arg.is_none() || ["x", "update"].contains(&param.name) || ints(param.name).is_some()
    });
    slice::slice_ranges(&shape, ints).ok().filter(|_| is_stated)
}

/// An axis counted from the end when negative.
pub fn wrap(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 {
        axis.checked_add(i64::try_from(rank).ok()?)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|a| *a < rank)
}

/// Whether an op reads or writes state, so that its place among the others counts.
pub fn touches_state(f: &Function, op: OpId) -> bool {
    let mut touches = takes_state(f.op(op).def);
    f.op(op)
        .blocks
        .iter()
        .for_each(|b| f.visit(*b, &mut |inner| touches |= takes_state(f.op(inner).def)));
    touches
}

fn takes_state(def: &OpDef) -> bool {
    def.params.iter().any(|p| p.accepts == Accepts::State)
}

/// Whether each value follows from constants alone, by ops that `folds` holds for; by
/// [`ValueId::index`].
pub fn folded(f: &Function, folds: impl Fn(&Op) -> bool) -> Vec<bool> {
    let mut is_folded = vec![false; f.n_values()];
    for op in f.all_ops().into_iter().map(|id| f.op(id)) {
        let folds = folds(op) && op.uses().all(|v| is_folded[v.index()]);
        let results = op.results.iter();
        results.for_each(|r| is_folded[r.index()] = folds);
    }
    is_folded
}

/// How many uses each value has, as an output too; by [`ValueId::index`].
pub fn count_uses(f: &Function) -> Vec<u32> {
    let mut n_uses = vec![0; f.n_values()];
    f.body()
        .ops
        .iter()
        .flat_map(|op| f.uses(*op))
        .for_each(|v| n_uses[v.index()] += 1);
    f.body().outputs.iter().for_each(|v| n_uses[v.index()] += 1);
    n_uses
}

/// The ops of the body that no output needs, from the end: each is used by none, or by ones before
/// it in the list. An op that writes a state is needed by the next call.
pub fn unused(f: &Function) -> Vec<OpId> {
    let mut n_uses = count_uses(f);
    let mut unused = Vec::new();
    for &id in f.body().ops.iter().rev() {
        let op = f.op(id);
        let has_effect = touches_state(f, id) && op.def.name != "read_state";
        if !has_effect && op.results.iter().all(|r| n_uses[r.index()] == 0) {
            f.uses(id).into_iter().for_each(|v| n_uses[v.index()] -= 1);
            unused.push(id);
        }
    }
    unused
}

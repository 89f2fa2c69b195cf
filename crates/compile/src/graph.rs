//! What passes and fixes ask of a function: which ops use a value and how often, what an argument
//! says, which ops touch state, which values stand for others.

use thane_mil::edit::{New, Patch};
use thane_mil::literal::Literal;
use thane_mil::opset::{Accepts, OpDef};
use thane_mil::program::{Arg, Definition, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, Type};

use crate::pass::Outcome;

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
            op.uses().for_each(|v| users[v.index()].push(id));
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
        match self.f.value(value).definition {
            Definition::Result(op, _) => Some(op),
            Definition::Input(_) => None,
        }
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

    /// The ops that use a value.
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

/// The one number that an argument is, an integer too, stated in place or not.
pub fn scalar_arg(graph: &Graph<'_>, arg: &Arg) -> Option<f32> {
    let literal = match arg {
        Arg::Value(v) => graph.f.constant(*v)?,
        Arg::Literal(literal) => literal,
        Arg::Values(_) => return None,
    };
    let int = || match literal.to_ints()?.as_slice() {
        [v] => Some(*v as f32),
        _ => None,
    };
    let is_short = matches!(literal, Literal::Tensor(_, data) if data.byte_len() <= 4);
    is_short.then(|| single(literal).or_else(int)).flatten()
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

/// An axis counted from the end when negative.
pub fn wrap(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 {
        axis.checked_add(i64::try_from(rank).ok()?)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|a| *a < rank)
}

/// An op and the first value that it makes, for messages.
pub fn label(f: &Function, op: OpId) -> String {
    let op = f.op(op);
    match op.results.first() {
        Some(r) => format!("{} `{}`", op.def.name, f.value(*r).name),
        None => op.def.name.to_owned(),
    }
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

/// Values that stand for others, as a pass finds them one after the other.
pub struct Aliases<'a> {
    f: &'a Function,
    n_uses: Vec<u32>,
    targets: Vec<Option<ValueId>>,
    is_output: Vec<bool>,
}

impl<'a> Aliases<'a> {
    /// No value of the function stands for another yet.
    pub fn new(f: &'a Function) -> Self {
        let mut is_output = vec![false; f.n_values()];
        f.body()
            .outputs
            .iter()
            .for_each(|v| is_output[v.index()] = true);
        Self {
            f,
            n_uses: count_uses(f),
            targets: vec![None; f.n_values()],
            is_output,
        }
    }

    /// What stands for `value`: itself, where nothing else does.
    pub fn resolve(&self, value: ValueId) -> ValueId {
        self.targets[value.index()].unwrap_or(value)
    }

    /// Whether a result of `op` is an output, and `value` has further uses than by `op`.
    pub fn is_shared_output(&self, op: &Op, value: ValueId) -> bool {
        let is_output = op.results.iter().any(|r| self.is_output[r.index()]);
        is_output && self.n_uses[self.resolve(value).index()] > 1
    }

    /// Let the values `to` stand for the results of `op`, in order, and remove it.
    pub fn replace(&mut self, id: OpId, op: &Op, to: &[ValueId]) -> Outcome {
        if op.results.iter().all(|r| self.n_uses[r.index()] == 0) {
            return Outcome::NoEffect;
        }
        let to: Vec<ValueId> = to.iter().map(|v| self.resolve(*v)).collect();
        let ty = |v: &ValueId| &self.f.value(*v).ty;
        if !op
            .results
            .iter()
            .zip(&to)
            .all(|(from, to)| are_interchangeable(ty(from), ty(to)))
        {
            return Outcome::Refused("the declared type of one says more than that of the other");
        }
        let outputs = || {
            op.results
                .iter()
                .zip(&to)
                .filter(|(from, _)| self.is_output[from.index()])
        };
        if outputs().any(|(_, to)| matches!(self.f.value(*to).definition, Definition::Input(_))) {
            return Outcome::Refused("it makes an output, which an input cannot be");
        }
        // Two results of one op that become one output are not two, so one look before any is moved
        // will not do.
        let mut taken: Vec<ValueId> = outputs().map(|(_, to)| *to).collect();
        let n_taken = taken.len();
        taken.sort_unstable();
        taken.dedup();
        if taken.len() < n_taken || taken.iter().any(|to| self.is_output[to.index()]) {
            return Outcome::Refused("it makes an output, and what it equals is another");
        }
        taken
            .iter()
            .for_each(|to| self.is_output[to.index()] = true);
        let mut patch = Patch::new();
        for (from, to) in op.results.iter().zip(to) {
            self.targets[from.index()] = Some(to);
            patch.replace(*from, New::Value(to));
        }
        patch.remove(id);
        Outcome::Applied(patch)
    }
}

/// Whether inference finds the same from one type as from the other: what is known is equal, and
/// known of both.
fn are_interchangeable(a: &Type, b: &Type) -> bool {
    match (a.tensor(), b.tensor()) {
        (Some(s), Some(t)) => {
            a.compatible(b)
                && s.shape
                    .iter()
                    .zip(&t.shape)
                    .all(|(x, y)| x.known() == y.known())
        }
        _ => a == b,
    }
}

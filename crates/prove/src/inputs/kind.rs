//! What an input of a function is for: a number, an index, a mask.

use std::collections::{HashMap, HashSet};

use thane_mil::graph::{Graph, wrap};
use thane_mil::literal::Literal;
use thane_mil::program::{Function, Op, OpId, ValueId};
use thane_mil::types::{DType, Type};

use super::is_float;
use super::noise::Noise;

/// What an input is.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Any number.
    Number,
    /// A place along an axis.
    Index {
        /// The length of the axis.
        n: usize,
        /// Whether -1 is the last place.
        takes_negative: bool,
    },
    /// An integer that is only computed with.
    Integer,
    /// An integer of which nothing is known.
    Few,
    /// 0 or 1.
    Truth,
    /// 0 or far below it.
    Mask,
}

/// Ops that change no number.
const SAME: &[&str] = &[
    "cast",
    "reshape",
    "expand_dims",
    "squeeze",
    "identity",
    "transpose",
];
/// Ops beside them that hand an index on as it is.
const CARRY: &[&str] = &["add", "maximum", "select"];
/// Ops beside both that take an integer of any size, and give another or what is no integer.
const ARITHMETIC: &[&str] = &[
    "sub",
    "mul",
    "minimum",
    "floor_div",
    "mod",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "equal",
    "not_equal",
    "concat",
    "stack",
    "split",
    "slice_by_index",
    "slice_by_size",
    "tile",
];
/// Ops that an index is followed through.
const FURTHEST: usize = 6;

impl Kind {
    /// Of each input that is a tensor.
    pub fn all(f: &Function) -> HashMap<ValueId, Self> {
        let graph = Graph::new(f);
        let of = |v: &ValueId| {
            let Type::Tensor(ty) = &f.value(*v).ty else {
                return None;
            };
            Some((*v, Self::of(&graph, *v, ty.dtype)))
        };
        f.body().inputs.iter().filter_map(of).collect()
    }

    fn of(graph: &Graph<'_>, input: ValueId, dtype: DType) -> Self {
        let is_mask = graph.name(input).to_ascii_lowercase().contains("mask");
        match dtype {
            _ if is_float(dtype) && is_mask && is_added(graph, input) => Self::Mask,
            _ if is_float(dtype) => Self::Number,
            DType::Bool => Self::Truth,
            _ if is_mask => Self::Truth,
            _ => match bound(graph, input, FURTHEST) {
                Some(n) => {
                    let takes_negative =
                        dtype.name().starts_with("int") && is_only_index(graph, input);
                    Self::Index {
                        n: n.max(1),
                        takes_negative,
                    }
                }
                None if is_computed_with(graph, input) => Self::Integer,
                None => Self::Few,
            },
        }
    }
}

fn is_added(graph: &Graph<'_>, input: ValueId) -> bool {
    let adds = |u: &OpId| {
        matches!(
            graph.op(*u).def.name,
            "add" | "scaled_dot_product_attention"
        )
    };
    graph.users(input).iter().any(adds)
}

/// Whether an op hands an index on as it is.
fn carries(name: &str) -> bool {
    SAME.contains(&name) || CARRY.contains(&name)
}

/// The length of the shortest axis that a value is an index of.
fn bound(graph: &Graph<'_>, value: ValueId, left: usize) -> Option<usize> {
    let left = left.checked_sub(1)?;
    let of = |id: &OpId| {
        let op = graph.op(*id);
        match op.def.name {
            "gather" | "gather_along_axis" if op.value_arg("indices") == Some(value) => {
                let x = graph.f.value(op.value_arg("x")?).ty.tensor()?;
                let axis = graph.f.literal_arg(op, "axis").and_then(|l| l.to_ints());
                let axis = axis.map_or(0, |axis| axis.first().copied().unwrap_or(0));
                x.shape[wrap(axis, x.rank())?].known()
            }
            "gather_nd" if op.value_arg("indices") == Some(value) => {
                let shape = &graph.f.value(op.value_arg("x")?).ty.tensor()?.shape;
                shape.iter().filter_map(|d| d.known()).min()
            }
            name if carries(name) => bound(graph, *op.results.first()?, left),
            _ => None,
        }
    };
    graph.users(value).iter().take(64).filter_map(of).min()
}

/// Whether a value is only looked up with, by ops that count negative indices from the end.
fn is_only_index(graph: &Graph<'_>, value: ValueId) -> bool {
    let takes_negative = |op: &Op| {
        let validates = graph.f.literal_arg(op, "validate_indices");
        let validates = validates.is_some_and(|l| *l == Literal::bool(true));
        let is_lookup = matches!(op.def.name, "gather" | "gather_along_axis" | "gather_nd");
        is_lookup && op.value_arg("x") != Some(value) && !validates
    };
    !graph.is_output(value)
        && graph.users(value).iter().all(|id| {
            let op = graph.op(*id);
            let carries = SAME.contains(&op.def.name) && op.value_arg("x") == Some(value);
            takes_negative(op) || carries && op.results.iter().all(|r| is_only_index(graph, *r))
        })
}

/// Whether an integer and what is computed from it are numbers alone: no place, length or count.
fn is_computed_with(graph: &Graph<'_>, input: ValueId) -> bool {
    let (mut open, mut seen) = (vec![input], HashSet::new());
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        for id in graph.users(value) {
            let op = graph.op(*id);
            let is_shape = ["begin", "end", "size", "reps", "shape", "axes", "stride"];
            let is_shape = is_shape
                .iter()
                .any(|name| op.value_arg(name) == Some(value));
            let name = op.def.name;
            if !ARITHMETIC.contains(&name) && !carries(name) || is_shape {
                return false;
            }
            let is_integer = |r: &ValueId| {
                let dtype = graph.f.value(*r).ty.tensor().map(|t| t.dtype);
                dtype.is_some_and(|d| !is_float(d) && d != DType::Bool)
            };
            open.extend(op.results.iter().filter(|r| is_integer(r)));
        }
    }
    true
}

/// A slice whose begin and end are both inputs: neither can be drawn without the other.
pub struct Slice {
    begin: ValueId,
    end: ValueId,
    /// Of each axis: its length, and that of the slice.
    axes: Vec<(usize, usize)>,
}

impl Slice {
    /// Every slice of a function that inputs place.
    pub fn all(f: &Function) -> Vec<Self> {
        f.all_ops()
            .into_iter()
            .filter_map(|id| Self::of(f, f.op(id)))
            .collect()
    }

    fn of(f: &Function, op: &Op) -> Option<Self> {
        let part = match op.def.name {
            "slice_update" => op.value_arg("update")?,
            "slice_by_index" => *op.results.first()?,
            _ => return None,
        };
        let shape = |v: ValueId| f.value(v).ty.tensor_or_state()?.known_shape();
        let (begin, end) = (op.value_arg("begin")?, op.value_arg("end")?);
        let are_inputs = [begin, end].iter().all(|v| f.body().inputs.contains(v));
        let (whole, part) = (shape(op.value_arg("x")?)?, shape(part)?);
        let axes: Vec<_> = whole.into_iter().zip(part).collect();
        let fits = axes.iter().all(|(whole, part)| part <= whole);
        (are_inputs && fits).then_some(Self { begin, end, axes })
    }

    /// Where the slices of a call begin and end.
    pub fn draw(slices: &[Self], noise: &mut Noise) -> HashMap<ValueId, Vec<usize>> {
        let mut drawn: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for slice in slices {
            let place = |(whole, part): &(usize, usize)| noise.next() as usize % (whole - part + 1);
            let begin = drawn
                .entry(slice.begin)
                .or_insert_with(|| slice.axes.iter().map(place).collect())
                .clone();
            let ends = begin
                .iter()
                .zip(&slice.axes)
                .map(|(begin, (_, part))| begin + part);
            drawn.insert(slice.end, ends.collect());
        }
        drawn
    }
}

//! The constants of a function that numbers around them tell most of.

use thane_mil::graph::Graph;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Op, ValueId};

use super::signal::Channels;
use super::{Kind, is_float};

/// Ops that compare.
const COMPARE: &[&str] = &[
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "equal",
    "not_equal",
    "maximum",
    "minimum",
];
/// Ops with an edge in their domain.
const EDGED: &[&str] = &[
    "clip",
    "threshold",
    "log",
    "rsqrt",
    "sqrt",
    "inverse",
    "real_div",
    "floor_div",
    "mod",
    "pow",
    "thresholded_relu",
];
/// Constants that are looked at.
const MOST_CONSTANTS: usize = 8;
/// Elements of a constant along channels.
const MOST_ELEMENTS: usize = 1 << 16;
/// Sets around constants along channels.
const MOST_CHANNELS: usize = 3;
/// Ops that an input is followed through to such a constant.
const FURTHEST: usize = 3;

/// Whether values that are not constant are compared.
pub fn compares(f: &Function) -> bool {
    f.all_ops().into_iter().any(|id| {
        let op = f.op(id);
        let is_known = |name| op.value_arg(name).is_none_or(|v| f.constant(v).is_some());
        COMPARE.contains(&op.def.name) && !is_known("x") && !is_known("y")
    })
}

fn literal<'a>(f: &'a Function, arg: &'a Arg) -> Option<&'a Literal> {
    match arg {
        Arg::Literal(l) => Some(l),
        Arg::Value(v) => f.constant(*v),
        Arg::Values(_) => None,
    }
}

/// The numbers that a function compares with, divides by, or adds before a logarithm or a root.
pub fn compared(f: &Function) -> Vec<f32> {
    let graph = Graph::new(f);
    let is_edged = |op: &Op| EDGED.contains(&op.def.name) || COMPARE.contains(&op.def.name);
    let leads = |op: &Op| {
        let mut next = op.results.iter().flat_map(|r| graph.users(*r));
        next.any(|u| is_edged(f.op(*u)))
    };
    let mut found: Vec<f32> = Vec::new();
    for id in f.all_ops() {
        let op = f.op(id);
        if !(is_edged(op) || matches!(op.def.name, "add" | "sub") && leads(op)) {
            continue;
        }
        let is_few = |l: &&Literal| {
            l.ty()
                .tensor()
                .and_then(|t| t.n_elements())
                .is_some_and(|n| n <= 4)
        };
        let literals = op
            .args
            .iter()
            .flatten()
            .filter_map(|arg| literal(f, arg))
            .filter(is_few);
        found.extend(literals.filter_map(|l| l.to_floats()).flatten());
    }
    found.retain(|c| c.is_finite());
    found.sort_by(f32::total_cmp);
    found.dedup();
    found.truncate(MOST_CONSTANTS);
    found
}

/// The constants that inputs are shifted or scaled with along axes, one set each.
pub fn along_channels(f: &Function) -> Vec<Channels> {
    let graph = Graph::new(f);
    let kinds = Kind::all(f);
    let mut sets: Vec<Channels> = Vec::new();
    for input in &f.body().inputs {
        if !matches!(kinds.get(input), Some(Kind::Number)) {
            continue;
        }
        let Some(shape) = f.value(*input).ty.tensor().and_then(|t| t.known_shape()) else {
            continue;
        };
        let found = centers(&graph, *input, &shape, FURTHEST);
        for (at, center) in found.into_iter().take(MOST_CHANNELS).enumerate() {
            if sets.len() <= at {
                sets.push(Channels::new());
            }
            sets[at].insert(*input, center);
        }
    }
    sets
}

type Center = (Vec<usize>, Vec<f32>);

/// What a value is centered at where constants along axes are taken from it or divide it.
fn centers(graph: &Graph<'_>, value: ValueId, shape: &[usize], left: usize) -> Vec<Center> {
    let Some(left) = left.checked_sub(1) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for id in graph.users(value).iter().take(16) {
        let op = graph.op(*id);
        found.extend(center(graph.f, op, value, shape));
        // Behind a scale or a shift numbers are others; the place in the shape is the same.
        if matches!(op.def.name, "cast" | "identity") {
            let next = op.results.iter();
            found.extend(next.flat_map(|r| centers(graph, *r, shape, left)));
        }
    }
    found
}

fn center(f: &Function, op: &Op, value: ValueId, shape: &[usize]) -> Option<Center> {
    let name = op.def.name;
    if name == "batch_norm" {
        let mean = f.literal_arg(op, "mean")?.to_floats()?;
        let along = shape
            .iter()
            .enumerate()
            .map(|(i, n)| if i == 1 { *n } else { 1 });
        let along: Vec<usize> = along.collect();
        return (shape.get(1) == Some(&mean.len())).then_some((along, mean));
    }
    let is_linear = matches!(
        name,
        "add" | "sub" | "mul" | "real_div" | "floor_div" | "mod"
    );
    if !is_linear && !COMPARE.contains(&name) {
        return None;
    }
    let other = if op.value_arg("x") == Some(value) {
        "y"
    } else {
        "x"
    };
    let constant = literal(f, op.arg(other)?)?;
    let ty = constant.ty();
    let ty = ty.tensor().filter(|t| is_float(t.dtype))?;
    let own = ty.known_shape()?;
    let n: usize = own.iter().product();
    if n <= 1 || n > MOST_ELEMENTS || own.len() > shape.len() {
        return None;
    }
    let mut along = vec![1; shape.len() - own.len()];
    along.extend(own);
    let fits = along.iter().zip(shape).all(|(m, n)| *m == 1 || m == n);
    let numbers = constant.to_floats().filter(|_| fits)?;
    let centered = numbers.into_iter().map(|c| match name {
        "add" => -c,
        "mul" if c != 0.0 => 1.0 / c,
        _ => c,
    });
    Some((along, centered.collect()))
}

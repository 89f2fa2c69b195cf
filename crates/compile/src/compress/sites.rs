//! Finds the weights of a function: plain constants that products multiply by, and tables of tokens
//! that are looked up.

use thane_mil::data::Data;
use thane_mil::graph::{Graph, int, wrap};
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};

use super::values::Matrix;
use crate::weights::Constant;

/// A constant that may be compressed.
pub struct Found {
    /// The `const` op.
    pub op: OpId,
    /// What it makes.
    pub value: ValueId,
    /// Type, shape, bytes.
    pub constant: Constant,
    /// The content as it is stored, whose type may be another.
    pub stored: Data,
    /// The `const` op of which `op` makes another type, where it does.
    pub source: Option<OpId>,
    /// How it is used.
    pub matrix: Matrix,
    /// Its users.
    pub users: Vec<OpId>,
    /// Whether a `mul` behind each of its users can scale its channels.
    pub takes_mul: bool,
}

/// Constants of fewer elements that are no weights are not worth a word.
const LEAST_TOLD: usize = 2048;
/// Ops between an input and a lookup that leave tokens what they are.
const LEAVES_TOKENS: [&str; 6] = ["cast", "reshape", "expand_dims", "squeeze", "select", "add"];
/// Most of them.
const MOST_STEPS: usize = 16;

/// The weights of a function, and constants that are none, each with the reason.
pub fn find(f: &Function) -> (Vec<Found>, Vec<(OpId, ValueId, String)>) {
    let graph = Graph::new(f);
    let (mut found, mut left) = (Vec::new(), Vec::new());
    for id in f.all_ops() {
        let op = f.op(id);
        let [value] = op.results[..] else { continue };
        if !op.def.is_constexpr() || graph.users(value).is_empty() || is_part(&graph, value) {
            continue;
        }
        let constant = match op.args.first() {
            Some(Some(Arg::Literal(literal))) if op.def.is_const() => {
                Constant::from_literal(literal)
            }
            _ if op.def.name == "constexpr_cast" => Constant::stated(&graph, op, "source_val"),
            _ if op.def.is_const() => None,
            _ => {
                left.push((id, value, "it is compressed already".to_owned()));
                continue;
            }
        };
        let Some(constant) = constant else { continue };
        let source = cast_source(&graph, op);
        match site(&graph, id, value, &constant) {
            Ok(site) => found.push(Found { source, ..site }),
            Err(why) if constant.shape.iter().product::<usize>() >= LEAST_TOLD => {
                left.push((id, value, why));
            }
            Err(_) => {}
        }
    }
    (found, left)
}

/// The `const` op of a cast, where the cast does not hold the numbers itself.
fn cast_source(graph: &Graph<'_>, op: &Op) -> Option<OpId> {
    graph.maker(op.value_arg("source_val")?)
}

/// Whether a constant is one that a compressed constant is computed from.
fn is_part(graph: &Graph<'_>, value: ValueId) -> bool {
    let mut users = graph.users(value).iter();
    users.any(|user| graph.op(*user).def.is_constexpr())
}

fn site(graph: &Graph<'_>, op: OpId, value: ValueId, constant: &Constant) -> Result<Found, String> {
    if graph.is_output(value) {
        return Err("it is an output".to_owned());
    }
    let users = graph.users(value).to_vec();
    let mut matrix = None;
    let mut takes_mul = true;
    for user in &users {
        let used = usage(graph, graph.op(*user), value, &constant.shape)?;
        takes_mul &= used.takes_mul;
        if matrix.as_ref().is_some_and(|known| *known != used.matrix) {
            return Err("its channels lie along different axes in different ops".to_owned());
        }
        matrix = Some(used.matrix);
    }
    let stored = constant.data.clone();
    let constant = match graph.dtype(value) {
        Some(dtype) if dtype != constant.dtype => constant.clone().map(dtype, |x| x),
        _ => constant.clone(),
    };
    Ok(Found {
        op,
        value,
        constant,
        stored,
        source: None,
        matrix: matrix.ok_or("nothing uses it")?,
        users,
        takes_mul,
    })
}

struct Usage {
    matrix: Matrix,
    takes_mul: bool,
}

/// How an op uses a weight of this shape, or why it is not compressed.
fn usage(graph: &Graph<'_>, op: &Op, value: ValueId, shape: &[usize]) -> Result<Usage, String> {
    let kind = op.def.name;
    let is = |name| op.value_arg(name) == Some(value);
    let n_uses = op.uses().filter(|used| *used == value).count();
    let axes = match kind {
        _ if n_uses != 1 => None,
        "conv" | "linear" if is("weight") => Some((0, 1)),
        "conv_transpose" if is("weight") => match int(graph, op_id(graph, op)?, "groups") {
            None | Some(1) => Some((1, 0)),
            Some(_) => return Err("it is the kernel of a grouped conv_transpose".to_owned()),
        },
        "matmul" if is("y") => Some(last_two(graph, op, "transpose_y", shape)?),
        "matmul" if is("x") => {
            let (input, axis) = last_two(graph, op, "transpose_x", shape)?;
            Some((axis, input))
        }
        "gather" if is("x") && shape.len() == 2 => {
            let zero = |name| {
                let n = graph.f.literal_arg(op, name).and_then(Literal::to_ints);
                n.is_none_or(|n| n == [0])
            };
            if !zero("axis") || !zero("batch_dims") {
                return Err("it is looked up along another axis than its first".to_owned());
            }
            if !looks_up_tokens(graph, op) {
                return Err("what looks it up are no tokens of an input, but positions".to_owned());
            }
            Some((0, 1))
        }
        _ => None,
    };
    let (axis, input) = axes.ok_or_else(|| format!("`{kind}` uses it, which is no product"))?;
    if shape.len() <= axis.max(input) {
        return Err(format!("it has no axis of inputs in `{kind}`"));
    }
    Ok(Usage {
        matrix: Matrix::new(shape.to_vec(), axis, input),
        takes_mul: kind != "gather"
            && has_constant_bias(graph, op)
            && scale_shape(graph, op, 1).is_some(),
    })
}

/// The id of an op, by its first result.
fn op_id(graph: &Graph<'_>, op: &Op) -> Result<OpId, String> {
    let result = op.results.first().and_then(|r| graph.maker(*r));
    result.ok_or_else(|| format!("`{}` has no result", op.def.name))
}

/// The axis of columns and that of rows of the second operand of a product.
fn last_two(
    graph: &Graph<'_>,
    op: &Op,
    transpose: &'static str,
    shape: &[usize],
) -> Result<(usize, usize), String> {
    let rank = shape.len();
    if rank < 2 {
        return Err("it is a vector".to_owned());
    }
    let flag = graph
        .f
        .literal_arg(op, transpose)
        .and_then(Literal::to_ints);
    Ok(match flag.as_deref() == Some(&[1]) {
        true => (rank - 2, rank - 1),
        false => (rank - 1, rank - 2),
    })
}

/// Whether a bias is none, or a constant that can be written anew in another shape.
fn has_constant_bias(graph: &Graph<'_>, op: &Op) -> bool {
    op.arg("bias").is_none() || Constant::of(graph, op, "bias").is_some()
}

/// Whether the indices of a lookup are those of an input that is not named after positions. What
/// is computed from a position and a range has the position's meaning, and needs exact rows.
fn looks_up_tokens(graph: &Graph<'_>, op: &Op) -> bool {
    let mut value = op.value_arg("indices");
    for _ in 0..MOST_STEPS {
        let Some(at) = value else { return false };
        let Some(maker) = graph.f.definer(at) else {
            return !graph.name(at).contains("pos");
        };
        if !LEAVES_TOKENS.contains(&maker.def.name) {
            return false;
        }
        // As coremltools writes it for negative indices: the length of the table is added.
        let is_number = |name| {
            let literal = graph.f.literal_arg(maker, name);
            literal.is_some_and(|l| l.ty().tensor().is_some_and(|t| t.rank() == 0))
        };
        value = match maker.def.name {
            "select" => maker.value_arg("b"),
            "add" if is_number("y") => maker.value_arg("x"),
            "add" => None,
            _ => maker.value_arg("x"),
        };
    }
    false
}

/// The shape in which scales of channels multiply what a product gives.
pub fn scale_shape(graph: &Graph<'_>, op: &Op, channels: usize) -> Option<Vec<usize>> {
    let rank = graph.shape(*op.results.first()?)?.len();
    let behind = match op.def.name {
        "conv" | "conv_transpose" => rank.checked_sub(2)?,
        "matmul" if op.value_arg("x").is_some_and(|x| graph.is_constant(x)) => 1,
        _ => 0,
    };
    let axis = wrap(-1, rank)?.checked_sub(behind)?;
    let mut shape = vec![1; rank];
    shape[axis] = channels;
    Some(shape)
}

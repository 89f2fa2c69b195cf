//! The mixture of experts: the softmax of the router, and products with the matrices that each
//! token chose.

use thane_mil::program::{Arg, Op, OpId, ValueId};

use super::{Found, activation, is_float32, made_by, matrix, one};
use crate::plan::Planner;
use crate::step::{Experts, Fused, Product};
use crate::weight::Matrix;

/// `reduce_sum(mul(down @ (op(gate @ x) * (up @ x)), factors), [2, 4])`, where `gate`, `up` and
/// `down` are gathered by the same indices from stacks of constants.
pub(super) fn experts(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let sum = f.op(root);
    let drops = f
        .literal_arg(sum, "keep_dims")
        .is_none_or(|l| l.to_ints() == Some(vec![0]));
    if f.literal_arg(sum, "axes")?.to_ints()? != [2, 4] || !drops {
        return None;
    }
    let (weighted_id, weighted) = made_by(p, sum.value_arg("x")?, "mul")?;
    let (factors_id, factors) = expanded(p, weighted.value_arg("y")?, &[3, 4])?;
    let down = chosen(p, weighted.value_arg("x")?)?;
    let (gated_id, gated) = made_by(p, down.column, "mul")?;
    let active_id = p.definer(gated.value_arg("x")?)?;
    let (gate, op) = activation(p, active_id)?;
    let (gate, up) = (chosen(p, gate)?, chosen(p, gated.value_arg("y")?)?);
    let (column_id, x) = expanded(p, gate.column, &[2, 4])?;
    let indices = down.indices;
    let agree = up.column == gate.column && gate.indices == indices && up.indices == indices;
    if !agree || !is_float32(p, x) || !fit(p, x, indices, factors) {
        return None;
    }
    let mut covers = vec![weighted_id, factors_id, gated_id, active_id, column_id];
    [&gate, &up, &down]
        .iter()
        .for_each(|part| covers.extend(&part.covers));
    let products = [gate, up, down].map(|part| products(p, &part.stack));
    let [gates, ups, downs] = products;
    let (gates, ups, downs) = (gates?, ups?, downs?);
    let hidden = f.value(x).ty.tensor()?.shape.last()?.known()?;
    let inner = gates.first()?.weight.stored.n_rows;
    let all = |products: &[Product], shape: [usize; 2]| {
        let is = |Product { weight, .. }: &Product| {
            [weight.stored.n_rows, weight.stored.n_cols] == shape
        };
        products.iter().all(is)
    };
    let sizes = all(&gates, [inner, hidden]) && all(&ups, [inner, hidden]);
    if !sizes || !all(&downs, [hidden, inner]) {
        return None;
    }
    let n_experts = gates.len();
    let products = gates.into_iter().chain(ups).chain(downs).collect();
    let experts = Experts {
        x,
        indices,
        factors,
        products,
        n_experts,
        op,
    };
    one(root, covers, Fused::Experts(Box::new(experts)))
}

/// `softmax` along the last axis.
pub(super) fn softmax(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let x = op.value_arg("x").filter(|x| is_float32(p, *x))?;
    let rank = p.f.value(x).ty.tensor()?.rank() as i64;
    let axis = match op.arg("axis") {
        None => -1,
        Some(_) => *p.f.literal_arg(op, "axis")?.to_ints()?.first()?,
    };
    let is_last = rank > 0 && [-1, rank - 1].contains(&axis);
    is_last.then(|| one(root, Vec::new(), Fused::Softmax { x }))?
}

/// A product of a column with matrices of a stack.
struct Chosen {
    column: ValueId,
    indices: ValueId,
    /// The matrices.
    stack: Vec<ValueId>,
    covers: Vec<OpId>,
}

/// `matmul(gather(stack(constants), indices), column)`.
fn chosen(p: &Planner<'_>, value: ValueId) -> Option<Chosen> {
    let f = p.f;
    let (product_id, product) = made_by(p, value, "matmul")?;
    let is_false = |op: &Op, name: &str| {
        op.arg(name).is_none() || f.literal_arg(op, name).and_then(|l| l.to_ints()) == Some(vec![0])
    };
    let plain = is_false(product, "transpose_x") && is_false(product, "transpose_y");
    let (gather_id, gather) = made_by(p, product.value_arg("x")?, "gather")?;
    let (stack_id, stack) = made_by(p, gather.value_arg("x")?, "stack")?;
    let first = ["axis", "batch_dims", "validate_indices"]
        .iter()
        .all(|name| is_false(gather, name));
    if !plain || !first || f.literal_arg(stack, "axis")?.to_ints()? != [0] {
        return None;
    }
    let Arg::Values(values) = stack.arg("values")? else {
        return None;
    };
    Some(Chosen {
        column: product.value_arg("y")?,
        indices: gather.value_arg("indices")?,
        stack: values.clone(),
        covers: vec![product_id, gather_id, stack_id],
    })
}

/// The op that inserts dimensions of 1 at `axes`, and what it inserts them into.
fn expanded(p: &Planner<'_>, value: ValueId, axes: &[i64]) -> Option<(OpId, ValueId)> {
    let (id, op) = made_by(p, value, "expand_dims")?;
    let same = p.f.literal_arg(op, "axes")?.to_ints()? == axes;
    same.then_some((id, op.value_arg("x")?))
}

/// Whether x is [batch, tokens, hidden], and indices and factors are [batch, tokens, used].
fn fit(p: &Planner<'_>, x: ValueId, indices: ValueId, factors: ValueId) -> bool {
    let shape = |v: ValueId| p.f.value(v).ty.tensor().map(|t| t.shape.as_slice());
    let (Some(x), Some(indices), Some(factors)) = (shape(x), shape(indices), shape(factors)) else {
        return false;
    };
    x.len() == 3 && indices.len() == 3 && indices == factors && x[..2] == indices[..2]
}

/// The matrices of a stack.
fn products(p: &mut Planner<'_>, stack: &[ValueId]) -> Option<Vec<Product>> {
    let product = |weight: Matrix| Product { weight, bias: None };
    stack.iter().map(|v| matrix(p, *v).map(product)).collect()
}

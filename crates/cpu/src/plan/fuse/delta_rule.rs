//! Delta nets: the convolution of each channel, and a loop over tokens that read and write
//! memories.

use thane_mil::program::{Arg, BlockId, Function, Op, OpId, ValueId};

use super::{Found, is_float32, made_by, one};
use crate::plan::Planner;
use crate::step::{DeltaRule, Fused};

/// A `while_loop` whose variables are the index of a token, the memories S, and the outputs, and
/// whose body is
///
/// ```text
/// faded = S * decay;  S = faded + key^T * ((value - key @ faded) * beta)
/// outputs = scatter(outputs, query @ S)
/// ```
///
/// with the rows of query, key, value, decay and beta that `gather` takes for the token.
pub(super) fn delta_rule(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let Arg::Values(initial) = op.arg("loop_vars")? else {
        return None;
    };
    let (&[first, memory, outputs], &[more, body]) = (initial.as_slice(), op.blocks.as_slice())
    else {
        return None;
    };
    let n_tokens = loop_end(p, more)?;
    let block = f.block(body);
    let (&[token, old, rows], &[next, new, written]) =
        (block.inputs.as_slice(), block.outputs.as_slice())
    else {
        return None;
    };
    let (_, add) = made_by(p, next, "add")?;
    let one_more = add.value_arg("x")? == token && ints(p, add.value_arg("y")?)? == [1];
    let (_, scatter) = made_by(p, written, "scatter")?;
    let updates = scatter.value_arg("data")? == rows
        && scatter.value_arg("indices")? == token
        && is_zero(f, scatter, "axis")
        && f.literal_arg(scatter, "mode")?.as_str() == Some("update");
    if !one_more || !updates || ints(p, first)? != [0] {
        return None;
    }
    let (_, read) = product(p, scatter.value_arg("updates")?)?;
    let query = row(p, read.value_arg("x")?, token)?;
    let (_, sum) = made_by(p, new, "add")?;
    let faded = sum.value_arg("x")?;
    let (_, fading) = made_by(p, faded, "mul")?;
    let decay = row(p, fading.value_arg("y")?, token)?;
    let (_, outer) = made_by(p, sum.value_arg("y")?, "mul")?;
    let (_, column) = made_by(p, outer.value_arg("x")?, "transpose")?;
    let key_row = column.value_arg("x")?;
    let key = row(p, key_row, token)?;
    let (_, weighted) = made_by(p, outer.value_arg("y")?, "mul")?;
    let beta = row(p, weighted.value_arg("y")?, token)?;
    let (_, rest) = made_by(p, weighted.value_arg("x")?, "sub")?;
    let value = row(p, rest.value_arg("x")?, token)?;
    let (_, known) = product(p, rest.value_arg("y")?)?;
    let wired = read.value_arg("y")? == new
        && fading.value_arg("x")? == old
        && known.value_arg("x")? == key_row
        && known.value_arg("y")? == faded
        && f.literal_arg(column, "perm")?.to_ints()? == [0, 1, 3, 2];
    let rule = DeltaRule {
        query,
        key,
        value,
        decay,
        beta,
        memory,
        outputs,
        n_tokens,
    };
    if !wired || !fit(p, &rule) {
        return None;
    }
    one(root, Vec::new(), Fused::DeltaRule(Box::new(rule)))
}

/// `conv` of each channel by itself, along one axis, without padding.
pub(super) fn depthwise(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let f = p.f;
    let op = f.op(root);
    let x = op.value_arg("x").filter(|x| is_float32(p, *x))?;
    let weight = op.value_arg("weight")?;
    let shape = f.value(weight).ty.tensor()?.known_shape()?;
    let &[channels, 1, _] = shape.as_slice() else {
        return None;
    };
    let all = |name: &str, wanted: i64| match op.arg(name) {
        None => true,
        Some(_) => f
            .literal_arg(op, name)
            .and_then(|l| l.to_ints())
            .is_some_and(|v| v.iter().all(|v| *v == wanted)),
    };
    let groups = i64::try_from(channels).ok()?;
    let valid =
        op.arg("pad_type").is_none() || f.literal_arg(op, "pad_type")?.as_str() == Some("valid");
    let plain = all("strides", 1) && all("dilations", 1) && valid && op.arg("bias").is_none();
    let is_depthwise = op.arg("groups").is_some() && all("groups", groups);
    if !plain || !is_depthwise {
        return None;
    }
    let taps = p.constant(weight).filter(|taps| taps.f32s().is_some())?;
    one(root, Vec::new(), Fused::Depthwise { x, taps })
}

/// The `n` of a condition `squeeze(less(token, n))`.
fn loop_end(p: &Planner<'_>, more: BlockId) -> Option<ValueId> {
    let block = p.f.block(more);
    let (_, squeeze) = made_by(p, *block.outputs.first()?, "squeeze")?;
    let (_, less) = made_by(p, squeeze.value_arg("x")?, "less")?;
    (less.value_arg("x") == block.inputs.first().copied()).then(|| less.value_arg("y"))?
}

/// A `matmul` of matrices as they are.
fn product<'a>(p: &Planner<'a>, value: ValueId) -> Option<(OpId, &'a Op)> {
    let (id, op) = made_by(p, value, "matmul")?;
    let plain = is_zero(p.f, op, "transpose_x") && is_zero(p.f, op, "transpose_y");
    plain.then_some((id, op))
}

/// What `value` is the row `token` of.
fn row(p: &Planner<'_>, value: ValueId, token: ValueId) -> Option<ValueId> {
    let (_, gather) = made_by(p, value, "gather")?;
    let plain = ["axis", "batch_dims", "validate_indices"];
    let plain = plain.iter().all(|name| is_zero(p.f, gather, name));
    (plain && gather.value_arg("indices")? == token).then(|| gather.value_arg("x"))?
}

/// Whether an argument is 0, false, or absent.
fn is_zero(f: &Function, op: &Op, name: &str) -> bool {
    op.arg(name).is_none() || f.literal_arg(op, name).and_then(|l| l.to_ints()) == Some(vec![0])
}

fn ints(p: &mut Planner<'_>, value: ValueId) -> Option<Vec<i64>> {
    p.constant(value)?.to_ints()
}

/// Whether query and key are [tokens, heads, 1, k], values and outputs [tokens, heads, 1, v], decay
/// and beta [tokens, heads, 1, 1], and the memories [1, heads, k, v], all of fp32.
fn fit(p: &Planner<'_>, rule: &DeltaRule) -> bool {
    let known = |v: ValueId| -> Option<Vec<Option<usize>>> {
        let shape = &p.f.value(v).ty.tensor()?.shape;
        (shape.len() == 4 && is_float32(p, v)).then(|| shape.iter().map(|d| d.known()).collect())
    };
    let row = |v: ValueId, heads: Option<usize>, len: Option<usize>| {
        known(v).is_some_and(|s| s[1] == heads && s[2] == Some(1) && s[3] == len)
    };
    let Some(memory) = known(rule.memory) else {
        return false;
    };
    let &[batch, heads, keys, values] = memory.as_slice() else {
        return false;
    };
    let sizes = batch == Some(1) && [heads, keys, values].iter().all(Option::is_some);
    sizes
        && [rule.query, rule.key].iter().all(|v| row(*v, heads, keys))
        && [rule.value, rule.outputs]
            .iter()
            .all(|v| row(*v, heads, values))
        && [rule.decay, rule.beta]
            .iter()
            .all(|v| row(*v, heads, Some(1)))
}

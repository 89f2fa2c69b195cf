//! What programs say about the model that they are a part of: rows of tables, and the layers whose
//! keys and values a function writes.

use std::collections::{BTreeSet, HashSet};

use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, Type};

/// Rows that an update is believed to write at most: twice the layers of any known model.
const MOST_ROWS: usize = 1024;

/// Number of rows of the constant table that the input `input` selects rows of; the least, if there
/// are several tables.
pub(super) fn table_rows(f: &Function, inputs: &[&str]) -> Option<usize> {
    ops(f)
        .filter(|op| op.def.name.starts_with("gather"))
        .filter_map(|op| {
            let (table, indices) = (op.value_arg("x")?, op.value_arg("indices")?);
            if !is_constant(f, table) || !depends_on(f, indices, inputs) {
                return None;
            }
            let axis = f.literal_arg(op, "axis").and_then(|axis| axis.to_ints());
            let axis = axis.and_then(|axis| axis.first().copied()).unwrap_or(0);
            let shape = &f.value(table).ty.tensor()?.shape;
            let axis = usize::try_from(axis).unwrap_or(0);
            shape.get(axis)?.known()
        })
        .min()
}

/// The rows (indices of the first axis) of the state `name` that a function writes; `None` if the
/// program does not say it plainly. A value that is stored may be made by several updates.
pub(super) fn written_rows(f: &Function, name: &str) -> Option<BTreeSet<usize>> {
    let mut rows = BTreeSet::new();
    for op in ops(f).filter(|op| op.def.name == "coreml_update_state") {
        let state = op.value_arg("state")?;
        if f.value(state).name != name {
            continue;
        }
        let is_update = |op: &&Op| op.def.name == "slice_update";
        let mut update = f.definer(op.value_arg("value")?).filter(is_update)?;
        loop {
            let n_rows = f.value(update.value_arg("x")?).ty.tensor()?.shape.first()?;
            let row = |param| {
                let at = first_int(f, update.arg(param)?, 8)?;
                usize::try_from(at).ok()
            };
            let begin = row("begin")?;
            let most = n_rows.known()?.min(begin.saturating_add(MOST_ROWS));
            // An end that the op does not look at may be 0.
            let end = row("end").unwrap_or(0).min(most);
            rows.extend(begin..end.max(begin.saturating_add(1)));
            match f.definer(update.value_arg("x")?).filter(is_update) {
                Some(earlier) => update = earlier,
                None => break,
            }
        }
    }
    Some(rows)
}

/// The number of logits that the function takes the greatest of.
pub(super) fn argmax_width(f: &Function) -> Option<usize> {
    let op = ops(f).find(|op| op.def.name == "reduce_argmax")?;
    f.value(op.value_arg("x")?).ty.tensor()?.n_elements()
}

fn ops(f: &Function) -> impl Iterator<Item = &Op> {
    f.all_ops().into_iter().map(move |id: OpId| f.op(id))
}

/// The first element of an int32 argument, if it is constant.
fn first_int(f: &Function, arg: &Arg, depth: usize) -> Option<i64> {
    let value = match arg {
        Arg::Literal(literal) => return literal.to_ints()?.first().copied(),
        Arg::Value(value) => *value,
        Arg::Values(values) => *values.first()?,
    };
    if let Some(literal) = f.constant(value) {
        return literal.to_ints()?.first().copied();
    }
    let op = f.definer(value)?;
    let inner = match op.def.name {
        "concat" => op.arg("values")?,
        "expand_dims" | "reshape" | "squeeze" | "cast" => op.arg("x")?,
        _ => return None,
    };
    first_int(f, inner, depth.checked_sub(1)?)
}

/// Whether a value is a constant, perhaps a compressed one.
fn is_constant(f: &Function, value: ValueId) -> bool {
    let name = f.definer(value).map(|op| op.def.name);
    name.is_some_and(|name| name == "const" || name.starts_with("constexpr_"))
        || f.constant(value).is_some()
}

/// Whether integers are computed from one of these inputs.
fn depends_on(f: &Function, value: ValueId, inputs: &[&str]) -> bool {
    let (mut seen, mut todo) = (HashSet::new(), vec![value]);
    while let Some(value) = todo.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Some(op) = f.definer(value) else {
            if inputs.contains(&&*f.value(value).name) {
                return true;
            }
            continue;
        };
        let is_integer = |v: &ValueId| match &f.value(*v).ty {
            Type::Tensor(ty) => !matches!(ty.dtype, DType::Fp16 | DType::Fp32),
            _ => false,
        };
        todo.extend(op.uses().filter(is_integer));
    }
    false
}

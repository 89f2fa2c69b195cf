//! Rewrites a program for an older opset where possible, because older systems reject programs that
//! name a newer opset.

use crate::opset::{self, OpDef, Opset};
use crate::program::{Arg, Function, Op, Program};
use crate::valid::{self, Violation, label};

/// Converts `program` to `opset`, or returns everything that prevents it.
///
/// An op is rebound to the form that `opset` has of it. The other form must have every bound
/// parameter, accept its argument, and infer the same result types.
pub fn with_opset(program: &Program, opset: Opset) -> Result<Program, Vec<Violation>> {
    let mut out = program.clone();
    let mut violations = Vec::new();
    for f in &mut out.functions {
        f.opset = opset;
        for id in f.all_ops() {
            match rebound(f.op(id), opset) {
                Ok(Some((def, args))) => {
                    f.ops[id.index()].def = def;
                    f.ops[id.index()].args = args;
                }
                Ok(None) => {}
                Err(message) => violations.push(violation(f, f.op(id), message)),
            }
        }
    }
    if violations.is_empty() {
        violations = valid::check(&out).err().unwrap_or_default();
    }
    if violations.is_empty() {
        Ok(out)
    } else {
        Err(violations)
    }
}

type Form = (&'static OpDef, Vec<Option<Arg>>);

/// The form of an op in `opset` and its arguments in the order of that form; `None` if the form
/// stays the same.
fn rebound(op: &Op, opset: Opset) -> Result<Option<Form>, String> {
    let def = opset::find_in(op.def.name, opset).ok_or_else(|| {
        let since = opset::rows(op.def.name)
            .map(|d| d.since)
            .min()
            .unwrap_or(op.def.since);
        format!(
            "opset {} does not have this op, it requires {}",
            opset.name(),
            since.name()
        )
    })?;
    if def == op.def {
        return Ok(None);
    }
    let mut args = vec![None; def.params.len()];
    for (param, arg) in op
        .def
        .params
        .iter()
        .zip(&op.args)
        .filter(|(_, arg)| arg.is_some())
    {
        let at = def.param_index(param.name);
        let at = at.ok_or_else(|| {
            format!(
                "opset {} does not have its parameter `{}`",
                opset.name(),
                param.name
            )
        })?;
        args[at].clone_from(arg);
    }
    Ok(Some((def, args)))
}

fn violation(f: &Function, op: &Op, message: String) -> Violation {
    Violation {
        function: f.name.clone(),
        place: label(f, op),
        message,
    }
}

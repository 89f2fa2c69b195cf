//! Rewrites a program for an older opset where possible, because older systems reject programs that
//! name a newer opset.

use crate::literal::Literal;
use crate::opset::{self, OpDef, Opset};
use crate::program::{Arg, Function, Op, Program};
use crate::types::{DType, TensorType};
use crate::valid::{self, Violation, label};

/// Converts `program` to `opset`, or returns everything that prevents it.
///
/// An op is rebound to the form that `opset` has of it. The other form must have every bound
/// parameter, accept its argument, and infer the same result types. Compressed constants that hold
/// codes as bytes with a shape, as before iOS 18, hold them as a tensor in newer opsets.
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
    let stated = op.def.params.iter().zip(&op.args);
    let stated = stated.filter_map(|(param, arg)| Some((param.name, arg.clone()?)));
    let stated = unpacked(op, def).unwrap_or_else(|| stated.collect());
    let mut args = vec![None; def.params.len()];
    for (name, arg) in stated {
        let at = def.param_index(name);
        let at = at.ok_or_else(|| {
            format!(
                "opset {} does not have its parameter `{name}`",
                opset.name()
            )
        })?;
        args[at] = Some(arg);
    }
    Ok(Some((def, args)))
}

/// The arguments of a compressed constant whose codes or mask were bytes with a shape, for the form
/// that takes them as a tensor; `None` for other ops.
fn unpacked(op: &Op, def: &OpDef) -> Option<Vec<(&'static str, Arg)>> {
    if !op.def.attributes || def.attributes {
        return None;
    }
    let literal = |name| match op.arg(name)? {
        Arg::Literal(literal) => Some(literal.clone()),
        _ => None,
    };
    let sizes = literal("shape")?.to_ints()?.into_iter();
    let shape: Vec<usize> = sizes
        .map(|n| usize::try_from(n).ok())
        .collect::<Option<_>>()?;
    // Bits lie side by side in both forms, so that the bytes are the same.
    let codes = |name, dtype| reshaped(literal(name)?, Some(dtype), shape.clone());
    match op.def.name {
        "constexpr_lut_to_dense" => {
            let lut = literal("lut")?;
            let n_entries = lut.ty().tensor()?.n_elements()?;
            let indices = codes("indices", index_type(n_entries)?)?;
            let sizes = [vec![1; shape.len()], vec![n_entries, 1]].concat();
            let lut = reshaped(lut, None, sizes)?;
            Some(vec![("indices", indices), ("lut", lut)])
        }
        "constexpr_sparse_to_dense" => {
            let elements = Arg::Literal(literal("nonzero_data")?);
            let mask = codes("mask", DType::Uint1)?;
            Some(vec![("nonzero_data", elements), ("mask", mask)])
        }
        _ => None,
    }
}

/// The bytes of a literal as a tensor of this shape, and of this type if one is given.
fn reshaped(literal: Literal, dtype: Option<DType>, shape: Vec<usize>) -> Option<Arg> {
    let Literal::Tensor(ty, data) = literal else {
        return None;
    };
    let ty = TensorType::new(dtype.unwrap_or(ty.dtype), shape);
    Some(Arg::Literal(Literal::Tensor(ty, data)))
}

/// The type of indices into a table of so many entries.
fn index_type(n_entries: usize) -> Option<DType> {
    Some(match n_entries {
        2 => DType::Uint1,
        4 => DType::Uint2,
        16 => DType::Uint4,
        64 => DType::Uint6,
        256 => DType::Uint8,
        _ => return None,
    })
}

fn violation(f: &Function, op: &Op, message: String) -> Violation {
    Violation {
        function: f.name.clone(),
        place: label(f, op),
        message,
    }
}

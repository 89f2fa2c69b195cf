//! Ops that read and write states.
//!
//! Source: coremltools `ops/defs/iOS18/states.py`, `ops/defs/iOS18/tensor_transformation.py`.

use super::OpKind::State;
use super::{ANY, Accepts, Infer, OpDef, Opset, Param, Type, TypeError, tensor};

const fn state(name: &'static str) -> Param {
    Param {
        name,
        accepts: Accepts::State,
        required: true,
        constant: false,
    }
}

pub(super) static OPS: &[OpDef] = &[
    // y = the current content of the state.
    OpDef::new("read_state", State, Opset::CoreMl8, &[state("input")], read),
    // Writes `value` to the state; y = value.
    OpDef::new(
        "coreml_update_state",
        State,
        Opset::CoreMl8,
        &[state("state"), tensor("value", ANY)],
        update,
    ),
    // Writes `data` to the state; no result.
    OpDef::new(
        "write_state",
        State,
        Opset::CoreMl8,
        &[state("input"), tensor("data", ANY)],
        write,
    ),
];

fn read(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(i.state("input")?.clone())])
}

fn update(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    check_state_type(i, "state", "value")?;
    Ok(vec![Type::Tensor(i.state("state")?.clone())])
}

fn write(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    check_state_type(i, "input", "data")?;
    Ok(Vec::new())
}

/// Requires the written tensor to have the type of the state.
fn check_state_type(i: &Infer<'_>, state: &str, value: &str) -> Result<(), TypeError> {
    let (s, v) = (i.state(state)?, i.ty(value)?);
    if s.compatible(v) {
        return Ok(());
    }
    Err(TypeError::new(format_args!(
        "`{value}`: expected the type of the state {s}, found {v}"
    )))
}

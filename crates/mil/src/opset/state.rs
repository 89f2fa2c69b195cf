//! State. Source: coremltools `ops/defs/iOS18/states.py`,
//! `ops/defs/iOS18/tensor_transformation.py`.

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
    // y = what the state holds now.
    OpDef::new("read_state", Opset::CoreMl8, &[state("input")], read),
    // The state holds `value` from here on; y = value.
    OpDef::new(
        "coreml_update_state",
        Opset::CoreMl8,
        &[state("state"), tensor("value", ANY)],
        update,
    ),
    // The state holds `data` from here on; no result.
    OpDef::new(
        "write_state",
        Opset::CoreMl8,
        &[state("input"), tensor("data", ANY)],
        write,
    ),
];

fn read(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(i.state("input")?.clone())])
}

fn update(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    fits(i, "state", "value")?;
    Ok(vec![Type::Tensor(i.state("state")?.clone())])
}

fn write(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    fits(i, "input", "data")?;
    Ok(Vec::new())
}

fn fits(i: &Infer<'_>, state: &str, value: &str) -> Result<(), TypeError> {
    let (s, v) = (i.state(state)?, i.ty(value)?);
    if s.compatible(v) {
        return Ok(());
    }
    Err(TypeError(format!("`{value}` is {v}, the state holds {s}")))
}

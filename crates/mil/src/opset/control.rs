//! Ops that run nested blocks.
//!
//! Source: coremltools `ops/defs/iOS15/control_flow.py`.

use super::OpKind::Control;
use super::{Accepts, ArgType, BOOL, Infer, OpDef, Opset, Param, Type, TypeError, tensor};
use crate::types::{DType, TensorType};

pub(super) static OPS: &[OpDef] = &[
    // y = the outputs of the first block if `pred` is true, else those of the second. Neither block
    // has inputs.
    OpDef {
        n_blocks: 2,
        ..OpDef::new(
            "cond",
            Control,
            Opset::CoreMl5,
            &[tensor("pred", BOOL)],
            cond,
        )
    },
    // While the first block returns true for the loop variables, the second block computes their
    // new values. y = the final values.
    OpDef {
        n_blocks: 2,
        ..OpDef::new(
            "while_loop",
            Control,
            Opset::CoreMl5,
            &[LOOP_VARS],
            while_loop,
        )
    },
];

const LOOP_VARS: Param = Param {
    name: "loop_vars",
    accepts: Accepts::Tensors,
    required: true,
    constant: false,
};

fn cond(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let [then, otherwise] = i.blocks else {
        return Err(TypeError("expected two nested blocks".to_owned()));
    };
    if !then.inputs.is_empty() || !otherwise.inputs.is_empty() {
        return Err(TypeError("expected blocks without inputs".to_owned()));
    }
    require_compatible(
        "the first block returns",
        &then.outputs,
        "the second",
        &otherwise.outputs,
    )?;
    Ok(then
        .outputs
        .iter()
        .zip(&otherwise.outputs)
        .map(|(a, b)| i.join(a, b))
        .collect())
}

fn while_loop(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let Some(ArgType::Many(vars)) = i.arg("loop_vars") else {
        return Err(TypeError(
            "`loop_vars`: expected a tuple of one or more values".to_owned(),
        ));
    };
    let vars: Vec<Type> = vars.iter().map(|(ty, _)| (*ty).clone()).collect();
    let [cond, body] = i.blocks else {
        return Err(TypeError("expected two nested blocks".to_owned()));
    };
    require_compatible(
        "`loop_vars` are",
        &vars,
        "the first block takes",
        &cond.inputs,
    )?;
    require_compatible(
        "`loop_vars` are",
        &vars,
        "the second block takes",
        &body.inputs,
    )?;
    require_compatible(
        "`loop_vars` are",
        &vars,
        "the second block returns",
        &body.outputs,
    )?;
    // The condition is a scalar boolean, or the boolean vector of length 1 that coremltools
    // generates for the loops of torch's recurrent layers.
    let vector = Type::Tensor(TensorType::new(DType::Bool, [1usize]));
    if cond.outputs.len() != 1 || !cond.outputs[0].compatible(&vector) {
        let bool = Type::Tensor(TensorType::scalar(DType::Bool));
        require_compatible(
            "the first block must return",
            &[bool],
            "it returns",
            &cond.outputs,
        )?;
    }
    Ok(vars
        .iter()
        .zip(&body.outputs)
        .map(|(a, b)| i.join(a, b))
        .collect())
}

/// Requires two lists of types to match.
fn require_compatible(
    what: &str,
    types: &[Type],
    other: &str,
    others: &[Type],
) -> Result<(), TypeError> {
    if types.len() == others.len() && types.iter().zip(others).all(|(a, b)| a.compatible(b)) {
        return Ok(());
    }
    let show = |types: &[Type]| {
        types
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    Err(TypeError::new(format_args!(
        "{what} ({}), {other} ({})",
        show(types),
        show(others)
    )))
}

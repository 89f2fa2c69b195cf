//! Ops that run nested blocks.
//!
//! Source: coremltools `ops/defs/iOS15/control_flow.py`.

use super::{Accepts, ArgType, BOOL, Infer, OpDef, Opset, Param, Type, TypeError, tensor};
use crate::types::{DType, TensorType};

pub(super) static OPS: &[OpDef] = &[
    // y = what the first block gives where `pred` is true, else what the second gives; neither has
    // inputs.
    OpDef {
        n_blocks: 2,
        ..OpDef::new("cond", Opset::CoreMl5, &[tensor("pred", BOOL)], cond)
    },
    // While the first block says true of the loop's variables, they are set to what the second
    // gives of them.
    OpDef {
        n_blocks: 2,
        ..OpDef::new("while_loop", Opset::CoreMl5, &[LOOP_VARS], while_loop)
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
        return Err(TypeError("it needs two blocks".to_owned()));
    };
    if !then.inputs.is_empty() || !otherwise.inputs.is_empty() {
        return Err(TypeError(
            "its blocks take inputs, they must have none".to_owned(),
        ));
    }
    agree(
        "the first block gives",
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
            "`loop_vars` must be a tuple of one or more values".to_owned(),
        ));
    };
    let vars: Vec<Type> = vars.iter().map(|(ty, _)| (*ty).clone()).collect();
    let [cond, body] = i.blocks else {
        return Err(TypeError("it needs two blocks".to_owned()));
    };
    agree(
        "`loop_vars` are",
        &vars,
        "the first block takes",
        &cond.inputs,
    )?;
    agree(
        "`loop_vars` are",
        &vars,
        "the second block takes",
        &body.inputs,
    )?;
    agree(
        "`loop_vars` are",
        &vars,
        "the second block gives",
        &body.outputs,
    )?;
    // One truth value: a scalar, or the vector of one that coremltools makes of the loops of
    // torch's recurrent layers.
    let vector = Type::Tensor(TensorType::new(DType::Bool, [1usize]));
    if cond.outputs.len() != 1 || !cond.outputs[0].compatible(&vector) {
        let bool = Type::Tensor(TensorType::scalar(DType::Bool));
        agree(
            "the first block must give",
            &[bool],
            "it gives",
            &cond.outputs,
        )?;
    }
    Ok(vars
        .iter()
        .zip(&body.outputs)
        .map(|(a, b)| i.join(a, b))
        .collect())
}

fn agree(what: &str, types: &[Type], other: &str, others: &[Type]) -> Result<(), TypeError> {
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
    Err(TypeError(format!(
        "{what} ({}), {other} ({})",
        show(types),
        show(others)
    )))
}

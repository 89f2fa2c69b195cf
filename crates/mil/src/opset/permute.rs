//! Ops that reorder elements: transpose and reverse.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_transformation.py`, `iOS17/tensor_transformation.py`.

use super::OpKind::Rearrange;
use super::*;

const PERM: Param = constant("perm", INT32);
const AXES: Param = constant("axes", INT32).optional();
const SEQ_AXIS: Param = constant("seq_axis", INT32).optional();
const BATCH_AXIS: Param = constant("batch_axis", INT32).optional();

pub(super) static OPS: &[OpDef] = &[
    // y[i[perm[0]], i[perm[1]], ..] = x[i[0], i[1], ..].
    OpDef::new(
        "transpose",
        Rearrange,
        Opset::CoreMl5,
        &[tensor("x", BASIC), PERM],
        transpose,
    ),
    OpDef::new(
        "transpose",
        Rearrange,
        Opset::CoreMl7,
        &[tensor("x", ANY), PERM],
        transpose,
    ),
    // y = x with the order along `axes` (default: all) reversed.
    OpDef::new(
        "reverse",
        Rearrange,
        Opset::CoreMl5,
        &[tensor("x", BASIC), AXES],
        reverse,
    ),
    OpDef::new(
        "reverse",
        Rearrange,
        Opset::CoreMl7,
        &[tensor("x", ANY), AXES],
        reverse,
    ),
    // y = x with the first lengths[b] elements along `seq_axis` reversed, for each b along
    // `batch_axis`.
    OpDef::new(
        "reverse_sequence",
        Rearrange,
        Opset::CoreMl5,
        &[
            tensor("x", BASIC),
            tensor("lengths", INT32),
            SEQ_AXIS,
            BATCH_AXIS,
        ],
        reverse_sequence,
    ),
    OpDef::new(
        "reverse_sequence",
        Rearrange,
        Opset::CoreMl7,
        &[
            tensor("x", ANY),
            tensor("lengths", SHAPE_INT),
            SEQ_AXIS,
            BATCH_AXIS,
        ],
        reverse_sequence,
    ),
];

fn transpose(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let perm = i
        .constant_ints("perm")?
        .into_iter()
        .map(|a| axis(a, x.rank()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen = perm.clone();
    seen.sort_unstable();
    if !seen.iter().copied().eq(0..x.rank()) {
        return Err(TypeError::new(format_args!(
            "`perm`: expected a permutation of the axes of {x}, found {perm:?}"
        )));
    }
    tensor_result(x.dtype, perm.iter().map(|a| x.shape[*a]).collect())
}

fn reverse(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let axes = if i.has("axes") {
        i.constant_ints("axes")?
    } else {
        Vec::new()
    };
    axes.into_iter()
        .try_for_each(|a| axis(a, x.rank()).map(|_| ()))?;
    type_of_x(i)
}

fn reverse_sequence(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, lengths) = (i.ty("x")?, i.ty("lengths")?);
    let (seq, batch) = (
        axis(i.int_or("seq_axis", 0)?, x.rank())?,
        axis(i.int_or("batch_axis", 0)?, x.rank())?,
    );
    if lengths.rank() != 1 || !lengths.shape[0].compatible(x.shape[batch]) {
        return Err(TypeError::new(format_args!(
            "`lengths`: expected one entry per element of axis {batch} of {x}, found {lengths}"
        )));
    }
    let known = i.ints("lengths").unwrap_or_default();
    match known
        .iter()
        .find(|n| **n < 0 || x.shape[seq].known().is_some_and(|most| **n > most as i64))
    {
        Some(n) => Err(TypeError::new(format_args!(
            "`lengths`: expected 0 to the size of axis {seq} of {x}, found {n}"
        ))),
        None => type_of_x(i),
    }
}

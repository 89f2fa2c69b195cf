//! Constants and the ops that say how a constant is computed from a smaller one.
//!
//! Source: coremltools `ops/defs/iOS16/constexpr_ops.py`, `ops/defs/iOS18/compression.py`.

use super::{Accepts, Dim, FLOAT, Infer, OpDef, Opset, Param, Type, TypeError, constant, one};
use crate::opset::{ArgType, Known};
use crate::types::DType;

const CODES: &[DType] = &[DType::Int4, DType::Uint4, DType::Int8, DType::Uint8, DType::Fp16, DType::Fp32];
const INDICES: &[DType] = &[DType::Uint1, DType::Uint2, DType::Uint3, DType::Uint4, DType::Uint6, DType::Uint8];
const ENTRIES: &[DType] = &[DType::Int8, DType::Uint8, DType::Fp16, DType::Fp32];
const INT: &[DType] = &[DType::Int32];

pub(super) static OPS: &[OpDef] = &[
    // y = val.
    OpDef {
        name: "const",
        since: Opset::CoreMl5,
        params: &[Param { name: "val", accepts: Accepts::Any, required: true, constant: true }],
        attributes: true,
        n_blocks: 0,
        infer: literal,
    },
    // y[i] = scale[i / block] * (data[i] - offset[i / block]), block = shape of data / shape of scale.
    OpDef::new(
        "constexpr_blockwise_shift_scale",
        Opset::CoreMl8,
        &[constant("data", CODES), constant("scale", FLOAT), constant("offset", CODES).optional()],
        blockwise_shift_scale,
    ),
    // y[i] = lut[group of i][indices[i]]; lut is [groups of each axis.., entries, vector].
    OpDef::new(
        "constexpr_lut_to_dense",
        Opset::CoreMl8,
        &[constant("indices", INDICES), constant("lut", ENTRIES), constant("vector_axis", INT).optional()],
        lut_to_dense,
    ),
];

fn literal(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match i.arg("val") {
        Some(ArgType::One(_, Known::Literal(l))) => Ok(vec![l.ty()]),
        _ => Err(TypeError("`val` must be a literal".to_owned())),
    }
}

fn blockwise_shift_scale(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, scale) = (i.ty("data")?, i.ty("scale")?);
    if data.rank() != scale.rank() || data.rank() == 0 {
        return Err(TypeError(format!("`data` is {data}, `scale` is {scale}: the ranks must be equal and not 0")));
    }
    divides(&scale.shape, &data.shape, "scale", "data")?;
    if i.has("offset") {
        let offset = i.ty("offset")?;
        if offset.shape != scale.shape {
            return Err(TypeError(format!("`offset` is {offset}, `scale` is {scale}: the shapes must be equal")));
        }
        if !offset.dtype.is_float() && offset.dtype != data.dtype {
            return Err(TypeError(format!(
                "`offset` is {offset}, `data` is {data}: integer offsets are like the data"
            )));
        }
    }
    one(scale.dtype, data.shape.clone())
}

fn lut_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (indices, lut) = (i.ty("indices")?, i.ty("lut")?);
    if lut.rank() != indices.rank() + 2 {
        return Err(TypeError(format!("`lut` is {lut}, `indices` is {indices}: the rank of `lut` must be 2 more")));
    }
    let (groups, last) = lut.shape.split_at(indices.rank());
    if last[0] != Dim::Known(1 << indices.dtype.bits()) {
        return Err(TypeError(format!(
            "`lut` is {lut}: {} indices need {} entries",
            indices.dtype,
            1 << indices.dtype.bits()
        )));
    }
    divides(groups, &indices.shape, "lut", "indices")?;
    let mut shape = indices.shape.clone();
    match (last[1], i.has("vector_axis")) {
        (Dim::Known(1), _) => {}
        (Dim::Known(vector), true) => {
            let at = super::axis(i.int_or("vector_axis", 0)?, shape.len())?;
            if let Dim::Known(n) = shape[at] {
                shape[at] = Dim::Known(n.saturating_mul(vector));
            }
        }
        _ => return Err(TypeError("a vector `lut` needs `vector_axis`".to_owned())),
    }
    one(lut.dtype, shape)
}

fn divides(parts: &[Dim], whole: &[Dim], parts_name: &str, whole_name: &str) -> Result<(), TypeError> {
    let fits = |(p, w): (&Dim, &Dim)| matches!((p, w), (Dim::Known(p), Dim::Known(w)) if *p > 0 && w % p == 0);
    if parts.iter().zip(whole).all(fits) {
        return Ok(());
    }
    let (p, w) = (super::show(parts), super::show(whole));
    Err(TypeError(format!("each dimension of `{parts_name}` {p} must divide that of `{whole_name}` {w}")))
}

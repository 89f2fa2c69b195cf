//! Quantization at run time. Source: coremltools `ops/defs/iOS17/quantization_ops.py`.

use super::OpKind::Channelwise;
use super::*;
use crate::types::DType;

const BYTE: &[DType] = &[DType::Uint8, DType::Int8];

pub(super) static OPS: &[OpDef] = &[
    // y = clip(round(input / scale) + zero_point) to the range of `output_dtype`; ties round to
    // even.
    OpDef::new(
        "quantize",
        Channelwise,
        Opset::CoreMl7,
        &[
            tensor("input", FLOAT),
            constant("zero_point", BYTE).optional(),
            constant("scale", FLOAT),
            constant("axis", INT32).optional(),
            constant("output_dtype", STRING),
        ],
        quantize,
    ),
    // y = scale * (input - zero_point).
    OpDef::new(
        "dequantize",
        Channelwise,
        Opset::CoreMl7,
        &[
            tensor("input", BYTE),
            constant("zero_point", BYTE).optional(),
            constant("scale", FLOAT),
            constant("axis", INT32).optional(),
        ],
        dequantize,
    ),
];

fn quantize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (input, scale) = (i.ty("input")?, i.ty("scale")?);
    let dtype = match i.string("output_dtype")? {
        "int8" => DType::Int8,
        "uint8" => DType::Uint8,
        other => {
            return Err(TypeError::new(format_args!(
                "`output_dtype`: expected int8 or uint8, found `{other}`"
            )));
        }
    };
    if input.dtype != scale.dtype {
        return Err(TypeError::new(format_args!(
            "`scale`: expected the element type of `input` {input}, found {scale}"
        )));
    }
    if i.has("zero_point") && i.ty("zero_point")?.dtype != dtype {
        return Err(TypeError::new(format_args!(
            "`zero_point`: expected the output type {dtype}, found {}",
            i.ty("zero_point")?
        )));
    }
    if i.float("scale") == Some(0.0) {
        return Err(TypeError(
            "`scale`: expected a nonzero number, found 0".to_owned(),
        ));
    }
    check_params(i)?;
    tensor_result(dtype, input.shape.clone())
}

fn dequantize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let input = i.ty("input")?;
    if i.has("zero_point") && i.ty("zero_point")?.dtype != input.dtype {
        return Err(TypeError::new(format_args!(
            "`zero_point`: expected the element type of `input` {input}, found {}",
            i.ty("zero_point")?
        )));
    }
    check_params(i)?;
    tensor_result(i.ty("scale")?.dtype, input.shape.clone())
}

/// Checks that scale and zero point are scalars without an axis, or vectors along the axis.
fn check_params(i: &Infer<'_>) -> Result<(), TypeError> {
    let (input, scale) = (i.ty("input")?, i.ty("scale")?);
    let size: Option<Dim> = match (scale.rank(), i.has("axis")) {
        (0, false) => None,
        (0, true) => {
            return Err(TypeError(
                "`axis`: expected no axis for a scalar `scale`".to_owned(),
            ));
        }
        (_, false) => {
            return Err(TypeError::new(format_args!(
                "`axis`: expected an axis for `scale` {scale}"
            )));
        }
        (_, true) => Some(input.shape[axis(i.int_or("axis", 0)?, input.rank())?]),
    };
    for name in ["scale", "zero_point"]
        .into_iter()
        .filter(|name| i.has(name))
    {
        let ty = i.ty(name)?;
        let fits = match (ty.shape.as_slice(), size) {
            ([], None) => true,
            ([n], Some(size)) => n.compatible(size),
            _ => false,
        };
        if !fits {
            return Err(TypeError::new(format_args!(
                "`{name}`: expected scalars, or vectors along `axis` of `input` {input}, found {ty}"
            )));
        }
    }
    Ok(())
}

//! Constants and the ops that say how a constant is computed from a smaller one.
//!
//! Source: coremltools `ops/defs/iOS16/constexpr_ops.py`, `ops/defs/iOS18/compression.py`. A mask
//! is read whole, also to validate a program: it has a bit for each weight.

use super::{
    Accepts, Dim, FLOAT, INT32, Infer, OpDef, Opset, Param, STRING, Type, TypeError, constant, one,
    show,
};
use crate::literal::Literal;
use crate::opset::{ArgType, Known};
use crate::types::{DType, MAX_RANK, TensorType};

const CODES: &[DType] = &[
    DType::Int4,
    DType::Uint4,
    DType::Int8,
    DType::Uint8,
    DType::Fp16,
    DType::Fp32,
];
const INDICES: &[DType] = &[
    DType::Uint1,
    DType::Uint2,
    DType::Uint3,
    DType::Uint4,
    DType::Uint6,
    DType::Uint8,
];
const ENTRIES: &[DType] = &[DType::Int8, DType::Uint8, DType::Fp16, DType::Fp32];
const MASK: &[DType] = &[DType::Uint1];
const BYTE: &[DType] = &[DType::Uint8];
const HALF: &[DType] = &[DType::Fp16];
const SIZES: &[DType] = &[DType::Uint32];

/// A form whose parameters are attributes, as all had before iOS 18.
const fn attributes(name: &'static str, params: &'static [Param], infer: super::InferFn) -> OpDef {
    OpDef {
        attributes: true,
        ..OpDef::new(name, Opset::CoreMl6, params, infer)
    }
}

pub(super) static OPS: &[OpDef] = &[
    // y = val.
    OpDef {
        name: "const",
        since: Opset::CoreMl5,
        params: &[Param {
            name: "val",
            accepts: Accepts::Any,
            required: true,
            constant: true,
        }],
        attributes: true,
        n_blocks: 0,
        infer: literal,
    },
    // y = scale * (quantized_data - zero_point), scale and zero_point along `axis` where they are
    // vectors.
    attributes(
        "constexpr_affine_dequantize",
        &[
            constant("quantized_data", &[DType::Uint8, DType::Int8]),
            constant("zero_point", &[DType::Uint8, DType::Int8, DType::Fp32]),
            constant("scale", FLOAT),
            constant("axis", INT32),
        ],
        affine_dequantize,
    ),
    // y[i] = scale[i / block] * (data[i] - offset[i / block]), block = shape of data / shape of
    // scale.
    OpDef::new(
        "constexpr_blockwise_shift_scale",
        Opset::CoreMl8,
        &[
            constant("data", CODES),
            constant("scale", FLOAT),
            constant("offset", CODES).optional(),
        ],
        blockwise_shift_scale,
    ),
    // y = source_val as fp32.
    attributes(
        "constexpr_cast",
        &[
            constant("source_val", HALF),
            constant("output_dtype", STRING),
        ],
        cast,
    ),
    OpDef::new(
        "constexpr_cast",
        Opset::CoreMl8,
        &[
            constant("source_val", HALF),
            constant("output_dtype", STRING),
        ],
        cast,
    ),
    // y[i] = lut[the i-th run of log2(entries of lut) bits of indices], least significant bits
    // first.
    attributes(
        "constexpr_lut_to_dense",
        &[
            constant("indices", BYTE),
            constant("lut", ENTRIES),
            constant("shape", SIZES),
        ],
        packed_lut_to_dense,
    ),
    // y[i] = lut[group of i][indices[i]]; lut is [groups of each axis.., entries, vector].
    OpDef::new(
        "constexpr_lut_to_dense",
        Opset::CoreMl8,
        &[
            constant("indices", INDICES),
            constant("lut", ENTRIES),
            constant("vector_axis", INT32).optional(),
        ],
        lut_to_dense,
    ),
    // As `constexpr_lut_to_dense`, of those elements that the mask has; gives the mask of the
    // result and its elements.
    OpDef::new(
        "constexpr_lut_to_sparse",
        Opset::CoreMl8,
        &[
            constant("indices_mask", MASK),
            constant("indices_nonzero_data", INDICES),
            constant("lut", ENTRIES),
            constant("vector_axis", INT32).optional(),
        ],
        lut_to_sparse,
    ),
    // As `constexpr_blockwise_shift_scale`, of those elements that the mask has; gives the mask and
    // the elements.
    OpDef::new(
        "constexpr_sparse_blockwise_shift_scale",
        Opset::CoreMl8,
        &[
            constant("data_mask", MASK),
            constant("nonzero_data", CODES),
            constant("scale", FLOAT),
            constant("offset", CODES).optional(),
        ],
        sparse_blockwise_shift_scale,
    ),
    // y[i] = the next of nonzero_data where bit i of mask is set, least significant bit first, else
    // 0.
    attributes(
        "constexpr_sparse_to_dense",
        &[
            constant("nonzero_data", ENTRIES),
            constant("mask", BYTE),
            constant("shape", SIZES),
        ],
        packed_sparse_to_dense,
    ),
    // y[i] = the next of nonzero_data where mask[i] is 1, else 0.
    OpDef::new(
        "constexpr_sparse_to_dense",
        Opset::CoreMl8,
        &[constant("nonzero_data", CODES), constant("mask", MASK)],
        sparse_to_dense,
    ),
];

fn literal(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match i.arg("val") {
        Some(ArgType::One(_, Known::Literal(l))) => Ok(vec![l.ty()]),
        _ => Err(TypeError("`val` must be a literal".to_owned())),
    }
}

fn affine_dequantize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, scale) = (i.ty("quantized_data")?, i.ty("scale")?);
    let n = data.shape[super::axis(i.int_or("axis", 0)?, data.rank())?];
    for name in ["scale", "zero_point"] {
        let ty = i.ty(name)?;
        let fits = match ty.shape.as_slice() {
            [] => true,
            [m] => m.compatible(n),
            _ => false,
        };
        if !fits {
            return Err(TypeError(format!(
                "`{name}` is {ty}: a scalar or a vector of {n} is needed"
            )));
        }
    }
    one(scale.dtype, data.shape.clone())
}

fn cast(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match i.string("output_dtype")? {
        "fp32" => one(DType::Fp32, i.ty("source_val")?.shape.clone()),
        other => Err(TypeError(format!(
            "`output_dtype` is `{other}`, it can be fp32"
        ))),
    }
}

fn blockwise_shift_scale(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let data = i.ty("data")?;
    shift_scale(i, &data.shape, "data", data.dtype)?;
    one(i.ty("scale")?.dtype, data.shape.clone())
}

/// Check scale and offset against data of `shape`, which follows from the parameter of that name.
fn shift_scale(i: &Infer<'_>, shape: &[Dim], name: &str, dtype: DType) -> Result<(), TypeError> {
    let scale = i.ty("scale")?;
    if shape.len() != scale.rank() || shape.is_empty() {
        return Err(TypeError(format!(
            "`{name}` is {}, `scale` is {scale}: the ranks must be equal and not 0",
            show(shape)
        )));
    }
    divides(&scale.shape, shape, "scale", name)?;
    if i.has("offset") {
        let offset = i.ty("offset")?;
        if offset.shape != scale.shape {
            return Err(TypeError(format!(
                "`offset` is {offset}, `scale` is {scale}: the shapes must be equal"
            )));
        }
        if !offset.dtype.is_float() && offset.dtype != dtype {
            return Err(TypeError(format!(
                "`offset` is {offset}, the data {dtype}: integer offsets are like the data"
            )));
        }
    }
    Ok(())
}

fn sparse_blockwise_shift_scale(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (mask, data) = (i.ty("data_mask")?, i.ty("nonzero_data")?);
    counted(i, "data_mask", "nonzero_data")?;
    shift_scale(i, &mask.shape, "data_mask", data.dtype)?;
    let elements = TensorType {
        dtype: i.ty("scale")?.dtype,
        shape: data.shape.clone(),
    };
    Ok(vec![Type::Tensor(mask.clone()), Type::Tensor(elements)])
}

fn lut_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let indices = i.ty("indices")?;
    let (at, vector) = table(i, &indices.shape, indices.dtype)?;
    one(i.ty("lut")?.dtype, widened(&indices.shape, at, vector)?)
}

fn lut_to_sparse(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (mask, indices) = (i.ty("indices_mask")?, i.ty("indices_nonzero_data")?);
    counted(i, "indices_mask", "indices_nonzero_data")?;
    let (at, vector) = table(i, &mask.shape, indices.dtype)?;
    let elements = TensorType {
        dtype: i.ty("lut")?.dtype,
        shape: widened(&indices.shape, 0, vector)?,
    };
    let mask = TensorType {
        dtype: mask.dtype,
        shape: widened(&mask.shape, at, vector)?,
    };
    Ok(vec![Type::Tensor(mask), Type::Tensor(elements)])
}

/// Check `lut` against indices of a shape and type; the axis along which its vectors lie, and their
/// length.
fn table(i: &Infer<'_>, indices: &[Dim], dtype: DType) -> Result<(usize, usize), TypeError> {
    let lut = i.ty("lut")?;
    if indices.is_empty() || lut.rank() != indices.len() + 2 {
        let indices = show(indices);
        return Err(TypeError(format!(
            "`lut` is {lut}, the indices {indices}: the rank of `lut` must be 2 more"
        )));
    }
    let (groups, last) = lut.shape.split_at(indices.len());
    let n_entries = 1 << dtype.bits();
    if last[0] != Dim::Known(n_entries) {
        return Err(TypeError(format!(
            "`lut` is {lut}: {dtype} indices need {n_entries} entries"
        )));
    }
    divides(groups, indices, "lut", "indices")?;
    let at = i
        .has("vector_axis")
        .then(|| super::axis(i.int_or("vector_axis", 0)?, indices.len()))
        .transpose()?;
    match (last[1], at) {
        (Dim::Known(1), at) => Ok((at.unwrap_or(0), 1)),
        (Dim::Known(vector), Some(at)) if vector > 0 => Ok((at, vector)),
        _ => Err(TypeError(format!(
            "`lut` is {lut}: its vectors need elements and a `vector_axis`"
        ))),
    }
}

/// `shape` with the axis `at` repeated.
fn widened(shape: &[Dim], at: usize, times: usize) -> Result<Vec<Dim>, TypeError> {
    let mut shape = shape.to_vec();
    if let Dim::Known(n) = shape[at] {
        let n = n
            .checked_mul(times)
            .ok_or_else(|| TypeError(format!("{n} times {times} elements are too many")))?;
        shape[at] = Dim::Known(n);
    }
    Ok(shape)
}

fn packed_lut_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (indices, lut) = (vector(i, "indices")?, vector(i, "lut")?);
    let Some(n_entries) = lut.known().filter(|n| [2, 4, 16, 64, 256].contains(n)) else {
        return Err(TypeError(format!(
            "`lut` has {lut} entries: it takes 2, 4, 16, 64 or 256"
        )));
    };
    let (shape, n) = sizes(i)?;
    packed(indices, n, n_entries.ilog2() as usize, "indices")?;
    one(i.ty("lut")?.dtype, shape)
}

fn packed_sparse_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (mask, elements) = (vector(i, "mask")?, vector(i, "nonzero_data")?);
    let (shape, n) = sizes(i)?;
    packed(mask, n, 1, "mask")?;
    if let Some(bytes) = bytes(i, "mask") {
        if n % 8 != 0 && bytes.last().is_some_and(|last| last >> (n % 8) != 0) {
            return Err(TypeError(
                "bits of `mask` behind the last element are set".to_owned(),
            ));
        }
        same_count(&bytes, elements, "mask", "nonzero_data")?;
    }
    one(i.ty("nonzero_data")?.dtype, shape)
}

fn sparse_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    counted(i, "mask", "nonzero_data")?;
    one(i.ty("nonzero_data")?.dtype, i.ty("mask")?.shape.clone())
}

/// The length of a parameter that must be a vector.
fn vector(i: &Infer<'_>, name: &str) -> Result<Dim, TypeError> {
    match i.ty(name)?.shape[..] {
        [n] => Ok(n),
        _ => Err(TypeError(format!(
            "`{name}` is {}: a vector is needed",
            i.ty(name)?
        ))),
    }
}

/// The shape that the constant `shape` says, and its elements.
fn sizes(i: &Infer<'_>) -> Result<(Vec<Dim>, usize), TypeError> {
    vector(i, "shape")?;
    let sizes: Vec<usize> = i
        .constant_ints("shape")?
        .into_iter()
        .filter_map(|n| usize::try_from(n).ok())
        .collect();
    let n = sizes.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let n = n
        .filter(|_| sizes.len() <= MAX_RANK)
        .ok_or_else(|| TypeError(format!("`shape` is {sizes:?}: too many")))?;
    Ok((sizes.into_iter().map(Dim::Known).collect(), n))
}

/// Refuse a vector of bytes that is not just long enough for `n` elements.
fn packed(len: Dim, n: usize, n_bits: usize, name: &str) -> Result<(), TypeError> {
    let due = n.checked_mul(n_bits).map(|bits| bits.div_ceil(8));
    match due {
        Some(due) if len.compatible(Dim::Known(due)) => Ok(()),
        _ => Err(TypeError(format!(
            "`{name}` has {len} bytes, {n} elements of {n_bits} bits are due"
        ))),
    }
}

/// Refuse elements that are not as many as the mask of uint1 has ones.
fn counted(i: &Infer<'_>, mask: &str, elements: &str) -> Result<(), TypeError> {
    let n = vector(i, elements)?;
    bytes(i, mask).map_or(Ok(()), |bytes| same_count(&bytes, n, mask, elements))
}

fn same_count(bits: &[u8], n: Dim, mask: &str, elements: &str) -> Result<(), TypeError> {
    let ones: usize = bits.iter().map(|b| b.count_ones() as usize).sum();
    if n.compatible(Dim::Known(ones)) {
        return Ok(());
    }
    Err(TypeError(format!(
        "`{mask}` has {ones} ones, `{elements}` has {n} elements: they must be as many"
    )))
}

/// The packed bytes of a parameter, where they are known.
fn bytes(i: &Infer<'_>, name: &str) -> Option<Vec<u8>> {
    match i.arg(name)? {
        ArgType::One(_, Known::Literal(Literal::Tensor(_, data))) => Some(data.to_vec()),
        _ => None,
    }
}

fn divides(
    parts: &[Dim],
    whole: &[Dim],
    parts_name: &str,
    whole_name: &str,
) -> Result<(), TypeError> {
    let fits = |(p, w): (&Dim, &Dim)| matches!((p, w), (Dim::Known(p), Dim::Known(w)) if *p > 0 && w % p == 0);
    if parts.iter().zip(whole).all(fits) {
        return Ok(());
    }
    let (p, w) = (show(parts), show(whole));
    Err(TypeError(format!(
        "each dimension of `{parts_name}` {p} must divide that of `{whole_name}` {w}"
    )))
}

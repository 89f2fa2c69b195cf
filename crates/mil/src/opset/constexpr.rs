//! Constants, and ops that compute a constant from a compressed one.
//!
//! Source: coremltools `ops/defs/iOS16/constexpr_ops.py`, `ops/defs/iOS18/compression.py`. Type
//! inference reads whole masks (one bit per weight), also when it only validates a program.

use super::OpKind::Constant;
use super::*;
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

/// A row whose parameters are attributes, as in all forms before iOS 18.
const fn attributes(
    name: &'static str,
    kind: OpKind,
    params: &'static [Param],
    infer: InferFn,
) -> OpDef {
    OpDef {
        attributes: true,
        ..OpDef::new(name, kind, Opset::CoreMl6, params, infer)
    }
}

pub(super) static OPS: &[OpDef] = &[
    // y = val.
    OpDef {
        name: "const",
        kind: Constant,
        exact: true,
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
    // y = scale * (quantized_data - zero_point). If scale or zero_point is a vector, it runs along
    // `axis`.
    attributes(
        "constexpr_affine_dequantize",
        Constant,
        &[
            constant("quantized_data", &[DType::Uint8, DType::Int8]),
            constant("zero_point", &[DType::Uint8, DType::Int8, DType::Fp32]),
            constant("scale", FLOAT),
            constant("axis", INT32),
        ],
        affine_dequantize,
    ),
    // y[i] = scale[i / block] * (data[i] - offset[i / block]), where block = shape of data / shape
    // of scale.
    OpDef::new(
        "constexpr_blockwise_shift_scale",
        Constant,
        Opset::CoreMl8,
        &[
            constant("data", CODES),
            constant("scale", FLOAT),
            constant("offset", CODES).optional(),
        ],
        blockwise_shift_scale,
    ),
    // y = fp32(source_val).
    attributes(
        "constexpr_cast",
        Constant,
        &[
            constant("source_val", HALF),
            constant("output_dtype", STRING),
        ],
        cast,
    ),
    OpDef::new(
        "constexpr_cast",
        Constant,
        Opset::CoreMl8,
        &[
            constant("source_val", HALF),
            constant("output_dtype", STRING),
        ],
        cast,
    ),
    // y[i] = lut[k], where k is the i-th group of log2(entries of lut) bits of indices, least
    // significant bits first.
    attributes(
        "constexpr_lut_to_dense",
        Constant,
        &[
            constant("indices", BYTE),
            constant("lut", ENTRIES),
            constant("shape", SIZES),
        ],
        packed_lut_to_dense,
    ),
    // y[i] = lut[group of i][indices[i]]; lut is [groups of each axis.., entries, vector length].
    OpDef::new(
        "constexpr_lut_to_dense",
        Constant,
        Opset::CoreMl8,
        &[
            constant("indices", INDICES),
            constant("lut", ENTRIES),
            constant("vector_axis", INT32).optional(),
        ],
        lut_to_dense,
    ),
    // Like `constexpr_lut_to_dense` for the elements where the mask is 1. Results: the mask of the
    // output and its nonzero elements.
    OpDef::new(
        "constexpr_lut_to_sparse",
        Constant,
        Opset::CoreMl8,
        &[
            constant("indices_mask", MASK),
            constant("indices_nonzero_data", INDICES),
            constant("lut", ENTRIES),
            constant("vector_axis", INT32).optional(),
        ],
        lut_to_sparse,
    ),
    // Like `constexpr_blockwise_shift_scale` for the elements where the mask is 1. Results: the
    // mask and the nonzero elements.
    OpDef::new(
        "constexpr_sparse_blockwise_shift_scale",
        Constant,
        Opset::CoreMl8,
        &[
            constant("data_mask", MASK),
            constant("nonzero_data", CODES),
            constant("scale", FLOAT),
            constant("offset", CODES).optional(),
        ],
        sparse_blockwise_shift_scale,
    ),
    // y[i] = the next element of nonzero_data where bit i of mask is 1 (least significant bit
    // first), else 0.
    attributes(
        "constexpr_sparse_to_dense",
        Constant,
        &[
            constant("nonzero_data", ENTRIES),
            constant("mask", BYTE),
            constant("shape", SIZES),
        ],
        packed_sparse_to_dense,
    ),
    // y[i] = the next element of nonzero_data where mask[i] is 1, else 0.
    OpDef::new(
        "constexpr_sparse_to_dense",
        Constant,
        Opset::CoreMl8,
        &[constant("nonzero_data", CODES), constant("mask", MASK)],
        sparse_to_dense,
    ),
];

fn literal(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match i.arg("val") {
        Some(ArgType::One(_, Known::Literal(l))) => Ok(vec![l.ty()]),
        _ => Err(TypeError("`val`: expected a literal".to_owned())),
    }
}

fn affine_dequantize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, scale) = (i.ty("quantized_data")?, i.ty("scale")?);
    let n = data.shape[axis(i.int_or("axis", 0)?, data.rank())?];
    for name in ["scale", "zero_point"] {
        let ty = i.ty(name)?;
        let fits = match ty.shape.as_slice() {
            [] => true,
            [m] => m.compatible(n),
            _ => false,
        };
        if !fits {
            return Err(TypeError::new(format_args!(
                "`{name}`: expected a scalar or a vector of length {n}, found {ty}"
            )));
        }
    }
    tensor_result(scale.dtype, data.shape.clone())
}

fn cast(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match i.string("output_dtype")? {
        "fp32" => tensor_result(DType::Fp32, i.ty("source_val")?.shape.clone()),
        other => Err(TypeError::new(format_args!(
            "`output_dtype`: expected `fp32`, found `{other}`"
        ))),
    }
}

fn blockwise_shift_scale(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let data = i.ty("data")?;
    shift_scale(i, &data.shape, "data", data.dtype)?;
    tensor_result(i.ty("scale")?.dtype, data.shape.clone())
}

/// Checks scale and offset against data of shape `shape`; `name` is the parameter that has this
/// shape.
fn shift_scale(i: &Infer<'_>, shape: &[Dim], name: &str, dtype: DType) -> Result<(), TypeError> {
    let scale = i.ty("scale")?;
    if shape.len() != scale.rank() || shape.is_empty() {
        return Err(TypeError::new(format_args!(
            "`scale`: expected the rank of `{name}` {} and not 0, found {scale}",
            show_shape(shape)
        )));
    }
    check_divides(&scale.shape, shape, "scale", name)?;
    if i.has("offset") {
        let offset = i.ty("offset")?;
        if offset.shape != scale.shape {
            return Err(TypeError::new(format_args!(
                "`offset`: expected the shape of `scale` {scale}, found {offset}"
            )));
        }
        if !offset.dtype.is_float() && offset.dtype != dtype {
            return Err(TypeError::new(format_args!(
                "`offset`: expected a float or the element type of the data ({dtype}), found \
                 {offset}"
            )));
        }
    }
    Ok(())
}

fn sparse_blockwise_shift_scale(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (mask, data) = (i.ty("data_mask")?, i.ty("nonzero_data")?);
    check_nonzero_count(i, "data_mask", "nonzero_data")?;
    shift_scale(i, &mask.shape, "data_mask", data.dtype)?;
    let elements = TensorType {
        dtype: i.ty("scale")?.dtype,
        shape: data.shape.clone(),
    };
    Ok(vec![Type::Tensor(mask.clone()), Type::Tensor(elements)])
}

fn lut_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let indices = i.ty("indices")?;
    let (at, vector) = check_lut(i, &indices.shape, indices.dtype)?;
    tensor_result(i.ty("lut")?.dtype, widen(&indices.shape, at, vector)?)
}

fn lut_to_sparse(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (mask, indices) = (i.ty("indices_mask")?, i.ty("indices_nonzero_data")?);
    check_nonzero_count(i, "indices_mask", "indices_nonzero_data")?;
    let (at, vector) = check_lut(i, &mask.shape, indices.dtype)?;
    let elements = TensorType {
        dtype: i.ty("lut")?.dtype,
        shape: widen(&indices.shape, 0, vector)?,
    };
    let mask = TensorType {
        dtype: mask.dtype,
        shape: widen(&mask.shape, at, vector)?,
    };
    Ok(vec![Type::Tensor(mask), Type::Tensor(elements)])
}

/// Checks `lut` against the shape and type of the indices. Returns the axis of its vectors and
/// their length.
fn check_lut(i: &Infer<'_>, indices: &[Dim], dtype: DType) -> Result<(usize, usize), TypeError> {
    let lut = i.ty("lut")?;
    if indices.is_empty() || lut.rank() != indices.len() + 2 {
        let indices = show_shape(indices);
        return Err(TypeError::new(format_args!(
            "`lut`: expected a rank 2 above that of the indices {indices}, found {lut}"
        )));
    }
    let (groups, last) = lut.shape.split_at(indices.len());
    let n_entries = 1 << dtype.bits();
    if last[0] != Dim::Known(n_entries) {
        return Err(TypeError::new(format_args!(
            "`lut`: expected {n_entries} entries for {dtype} indices, found {lut}"
        )));
    }
    check_divides(groups, indices, "lut", "indices")?;
    let at = i
        .has("vector_axis")
        .then(|| axis(i.int_or("vector_axis", 0)?, indices.len()))
        .transpose()?;
    match (last[1], at) {
        (Dim::Known(1), at) => Ok((at.unwrap_or(0), 1)),
        (Dim::Known(vector), Some(at)) if vector > 0 => Ok((at, vector)),
        _ => Err(TypeError::new(format_args!(
            "`lut`: expected nonempty vectors with a `vector_axis`, found {lut}"
        ))),
    }
}

/// `shape` with the size of axis `at` multiplied by `times`.
fn widen(shape: &[Dim], at: usize, times: usize) -> Result<Vec<Dim>, TypeError> {
    let mut shape = shape.to_vec();
    if let Dim::Known(n) = shape[at] {
        let n = n
            .checked_mul(times)
            .ok_or_else(|| TypeError::new(format_args!("{n} times {times} elements overflow")))?;
        shape[at] = Dim::Known(n);
    }
    Ok(shape)
}

fn packed_lut_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (indices, lut) = (vector(i, "indices")?, vector(i, "lut")?);
    let Some(n_entries) = lut.known().filter(|n| [2, 4, 16, 64, 256].contains(n)) else {
        return Err(TypeError::new(format_args!(
            "`lut`: expected 2, 4, 16, 64 or 256 entries, found {lut}"
        )));
    };
    let (shape, n) = sizes(i)?;
    check_packed_len(indices, n, n_entries.ilog2() as usize, "indices")?;
    tensor_result(i.ty("lut")?.dtype, shape)
}

fn packed_sparse_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (mask, elements) = (vector(i, "mask")?, vector(i, "nonzero_data")?);
    let (shape, n) = sizes(i)?;
    check_packed_len(mask, n, 1, "mask")?;
    if let Some(bytes) = bytes(i, "mask") {
        if n % 8 != 0 && bytes.last().is_some_and(|last| last >> (n % 8) != 0) {
            return Err(TypeError(
                "`mask`: expected 0 bits after the last element".to_owned(),
            ));
        }
        check_count(&bytes, elements, "mask", "nonzero_data")?;
    }
    tensor_result(i.ty("nonzero_data")?.dtype, shape)
}

fn sparse_to_dense(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    check_nonzero_count(i, "mask", "nonzero_data")?;
    tensor_result(i.ty("nonzero_data")?.dtype, i.ty("mask")?.shape.clone())
}

/// The length of a parameter that must be a vector.
fn vector(i: &Infer<'_>, name: &str) -> Result<Dim, TypeError> {
    match i.ty(name)?.shape[..] {
        [n] => Ok(n),
        _ => Err(TypeError::new(format_args!(
            "`{name}`: expected a vector, found {}",
            i.ty(name)?
        ))),
    }
}

/// The shape in the constant parameter `shape`, and its number of elements.
fn sizes(i: &Infer<'_>) -> Result<(Vec<Dim>, usize), TypeError> {
    vector(i, "shape")?;
    let sizes: Vec<usize> = i
        .constant_ints("shape")?
        .into_iter()
        .filter_map(|n| usize::try_from(n).ok())
        .collect();
    let n = sizes.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let n = n.filter(|_| sizes.len() <= MAX_RANK).ok_or_else(|| {
        TypeError::new(format_args!(
            "`shape`: too many dimensions or elements in {sizes:?}"
        ))
    })?;
    Ok((sizes.into_iter().map(Dim::Known).collect(), n))
}

/// Requires a vector of bytes to be exactly long enough for `n` elements of `n_bits` bits.
fn check_packed_len(len: Dim, n: usize, n_bits: usize, name: &str) -> Result<(), TypeError> {
    let due = n.checked_mul(n_bits).map(|bits| bits.div_ceil(8));
    match due {
        Some(due) if len.compatible(Dim::Known(due)) => Ok(()),
        _ => Err(TypeError::new(format_args!(
            "`{name}`: expected {n} elements of {n_bits} bits, found {len} bytes"
        ))),
    }
}

/// Requires as many elements as the uint1 mask has ones.
fn check_nonzero_count(i: &Infer<'_>, mask: &str, elements: &str) -> Result<(), TypeError> {
    let n = vector(i, elements)?;
    bytes(i, mask).map_or(Ok(()), |bytes| check_count(&bytes, n, mask, elements))
}

fn check_count(bits: &[u8], n: Dim, mask: &str, elements: &str) -> Result<(), TypeError> {
    let ones: usize = bits.iter().map(|b| b.count_ones() as usize).sum();
    if n.compatible(Dim::Known(ones)) {
        return Ok(());
    }
    Err(TypeError::new(format_args!(
        "`{elements}`: expected one element for each of the {ones} ones of `{mask}`, found {n}"
    )))
}

/// The packed bytes of a parameter, if known: zeros without bytes stand for a missing weight file.
fn bytes(i: &Infer<'_>, name: &str) -> Option<Vec<u8>> {
    match i.arg(name)? {
        ArgType::One(_, Known::Literal(Literal::Tensor(_, data))) if !data.is_zeros() => {
            Some(data.to_vec())
        }
        _ => None,
    }
}

/// Requires each dimension of `parts` to divide that of `whole`.
fn check_divides(
    parts: &[Dim],
    whole: &[Dim],
    parts_name: &str,
    whole_name: &str,
) -> Result<(), TypeError> {
    let fits = |(part, whole): (&Dim, &Dim)| match (part, whole) {
        (Dim::Known(part), Dim::Known(whole)) => *part > 0 && whole % part == 0,
        _ => false,
    };
    if parts.iter().zip(whole).all(fits) {
        return Ok(());
    }
    let (p, w) = (show_shape(parts), show_shape(whole));
    Err(TypeError::new(format_args!(
        "`{parts_name}`: expected dimensions that divide those of `{whole_name}` {w}, found {p}"
    )))
}

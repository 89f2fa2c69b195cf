//! Resizing, cropping and resampling of images along the last two axes, height and width.
//!
//! Source: coremltools `ops/defs/iOS15/image_resizing.py`, `iOS16/image_resizing.py`,
//! `iOS17/image_resizing.py`.

use super::OpKind::Resample;
use super::*;
use crate::types::{DType, TensorType};

const FP32: &[DType] = &[DType::Fp32];
const UINT32: &[DType] = &[DType::Uint32];
const FACTOR: &[DType] = &[DType::Fp32, DType::Int32];
const BOX: &[DType] = &[DType::Fp16, DType::Fp32, DType::Uint16];
const BOX_INDEX: &[DType] = &[DType::Uint16, DType::Int32];
const SIZE: &[DType] = &[DType::Int32, DType::Int16, DType::Uint16, DType::Uint32];
const COORDINATES_7: &[DType] = &[
    DType::Int8,
    DType::Uint8,
    DType::Int16,
    DType::Uint16,
    DType::Int32,
    DType::Fp16,
    DType::Fp32,
];

/// Values of `sampling_mode`: where the sampling points of a resized axis lie.
const SAMPLING: &[&str] = &[
    "DEFAULT",
    "STRICT_ALIGN_CORNERS",
    "ALIGN_CORNERS",
    "UNALIGN_CORNERS",
    "OFFSET_CORNERS",
];
const BOX_MODES: &[&str] = &[
    "CORNERS_HEIGHT_FIRST",
    "CORNERS_WIDTH_FIRST",
    "CENTER_SIZE_HEIGHT_FIRST",
    "CENTER_SIZE_WIDTH_FIRST",
];

const X: Param = tensor("x", FLOAT);
const SAMPLING_MODE: Param = constant("sampling_mode", STRING);
const UPSAMPLE: &[Param] = &[
    X,
    constant("scale_factor_height", FACTOR).optional(),
    constant("scale_factor_width", FACTOR).optional(),
];
const BILINEAR: &[Param] = &[
    X,
    UPSAMPLE[1],
    UPSAMPLE[2],
    constant("align_corners", BOOL).optional(),
];
const BILINEAR_6: &[Param] = &[
    X,
    UPSAMPLE[1],
    UPSAMPLE[2],
    BILINEAR[3],
    constant("half_pixel_centers", BOOL).optional(),
];
const CROP_RESIZE: &[Param] = &[
    X,
    tensor("roi", FLOAT),
    constant("target_height", INT32).optional(),
    constant("target_width", INT32).optional(),
    constant("normalized_coordinates", BOOL).optional(),
    constant("spatial_scale", FP32).optional(),
    constant("box_coordinate_mode", STRING).optional(),
    SAMPLING_MODE.optional(),
];
const PAD_VALUE: Param = constant("pad_value", FLOAT).optional();
const CROP_RESIZE_6: &[Param] = &[
    X,
    CROP_RESIZE[1],
    CROP_RESIZE[2],
    CROP_RESIZE[3],
    CROP_RESIZE[4],
    CROP_RESIZE[5],
    CROP_RESIZE[6],
    CROP_RESIZE[7],
    PAD_VALUE,
];
const CROP_RESIZE_7: &[Param] = &[
    X,
    tensor("boxes", BOX),
    tensor("box_indices", BOX_INDEX).optional(),
    CROP_RESIZE[2],
    CROP_RESIZE[3],
    CROP_RESIZE[4],
    CROP_RESIZE[5],
    CROP_RESIZE[6],
    CROP_RESIZE[7],
    PAD_VALUE,
];
const PADDING_MODE: Param = constant("padding_mode", STRING);
const PADDING_VALUE: Param = constant("padding_value", FLOAT);
const COORDINATES_MODE: Param = constant("coordinates_mode", STRING);
const ALIGN: Param = constant("align_corners", BOOL);

/// The parameters of `resample` with these coordinate types.
const fn resample_params(coordinates: &'static [DType]) -> [Param; 7] {
    [
        X,
        tensor("coordinates", coordinates),
        SAMPLING_MODE,
        PADDING_MODE,
        PADDING_VALUE,
        COORDINATES_MODE,
        ALIGN,
    ]
}

const RESAMPLE: &[Param] = &resample_params(FACTOR);
const RESAMPLE_6: &[Param] = &resample_params(NUMBER);
const RESAMPLE_7: &[Param] = &resample_params(COORDINATES_7);
const AFFINE: &[Param] = &[
    X,
    tensor("transform_matrix", FLOAT),
    constant("output_height", INT32),
    constant("output_width", INT32),
    SAMPLING_MODE,
    PADDING_MODE,
    PADDING_VALUE,
    COORDINATES_MODE,
    ALIGN,
];

pub(super) static OPS: &[OpDef] = &[
    // y[.., h, w] = x at (a0 w + a1 h + a2, b0 w + b1 h + b2), with coordinates from -1 to 1;
    // transform_matrix [B or 1, 6].
    OpDef::new("affine", Resample, Opset::CoreMl5, AFFINE, affine),
    // y = x without the first and last `crop_height` rows and `crop_width` columns.
    OpDef::new(
        "crop",
        OpKind::Copy,
        Opset::CoreMl5,
        &[
            X,
            constant("crop_height", INT32),
            constant("crop_width", INT32),
        ],
        crop,
    ),
    // y[n, b] = box n of image b, resized like `resize_bilinear`. If a box has five numbers, the
    // first one selects the image.
    OpDef::new(
        "crop_resize",
        Resample,
        Opset::CoreMl5,
        CROP_RESIZE,
        crop_resize,
    ),
    // From iOS 16 on, points outside the image have the value `pad_value`.
    OpDef::new(
        "crop_resize",
        Resample,
        Opset::CoreMl6,
        CROP_RESIZE_6,
        crop_resize,
    ),
    // y[n] = box n of image box_indices[n].
    OpDef::new(
        "crop_resize",
        Resample,
        Opset::CoreMl7,
        CROP_RESIZE_7,
        crop_boxes,
    ),
    // y[b, c, h, w] = x[b, c] at the point coordinates[b, h, w] = (x, y).
    OpDef::new("resample", Resample, Opset::CoreMl5, RESAMPLE, resample),
    OpDef::new("resample", Resample, Opset::CoreMl6, RESAMPLE_6, resample),
    OpDef::new("resample", Resample, Opset::CoreMl7, RESAMPLE_7, resample),
    // y = x with the last `resized_dims` dimensions resized to the last sizes in `shape`; a size of
    // 0 keeps the dimension.
    OpDef::new(
        "resize",
        Resample,
        Opset::CoreMl7,
        &[
            tensor("x", NUMBER),
            tensor("shape", SIZE),
            constant("resized_dims", UINT32),
            constant("interpolation_mode", STRING).optional(),
            constant("sampling_mode", STRING).optional(),
        ],
        resize,
    ),
    // y = x at the points of `sampling_mode`, interpolated between four elements.
    OpDef::new(
        "resize_bilinear",
        Resample,
        Opset::CoreMl5,
        &[
            X,
            constant("target_size_height", INT32).optional(),
            constant("target_size_width", INT32).optional(),
            constant("sampling_mode", STRING).optional(),
        ],
        |i| {
            i.choice("sampling_mode", SAMPLING, "DEFAULT")
                .and_then(|_| resize_to(i))
        },
    ),
    // y[.., h, w] = x[.., floor(h H_in / H_out), floor(w W_in / W_out)].
    OpDef::new(
        "resize_nearest_neighbor",
        Resample,
        Opset::CoreMl5,
        &[
            X,
            constant("target_size_height", INT32),
            constant("target_size_width", INT32),
        ],
        resize_to,
    ),
    // y = x interpolated at floor(size * factor) points per axis. The points include the corners
    // (`align_corners`) or lie at pixel centers (`half_pixel_centers`).
    OpDef::new(
        "upsample_bilinear",
        Resample,
        Opset::CoreMl5,
        BILINEAR,
        upsample,
    ),
    OpDef::new(
        "upsample_bilinear",
        Resample,
        Opset::CoreMl6,
        BILINEAR_6,
        upsample,
    ),
    // Like `resize_nearest_neighbor` with the size floor(size * factor).
    OpDef::new(
        "upsample_nearest_neighbor",
        Resample,
        Opset::CoreMl5,
        UPSAMPLE,
        upsample,
    ),
];

/// `x`, which must have at least 3 axes.
fn image<'a>(i: &Infer<'a>) -> Result<&'a TensorType, TypeError> {
    let x = i.ty("x")?;
    if x.rank() < 3 {
        return Err(TypeError::new(format_args!(
            "`x`: expected rank 3 or more, found {x}"
        )));
    }
    Ok(x)
}

/// `x`, which must be [B, C, H, W].
fn images<'a>(i: &Infer<'a>) -> Result<&'a TensorType, TypeError> {
    let x = i.ty("x")?;
    if x.rank() != 4 {
        return Err(TypeError::new(format_args!(
            "`x`: expected rank 4, found {x}"
        )));
    }
    Ok(x)
}

/// The result type: `x` with another height and width.
fn resized(x: &TensorType, [height, width]: [Dim; 2]) -> Result<Vec<Type>, TypeError> {
    let mut shape = x.shape.clone();
    let n = shape.len();
    (shape[n - 2], shape[n - 1]) = (height, width);
    tensor_result(x.dtype, shape)
}

/// A constant target size of 1 or more; 1 if it is not bound.
fn target(i: &Infer<'_>, name: &str) -> Result<Dim, TypeError> {
    let n = i.int_or(name, 1)?;
    let size = usize::try_from(n).ok().filter(|n| *n > 0);
    size.map(Dim::Known)
        .ok_or_else(|| TypeError::new(format_args!("`{name}`: expected 1 or more, found {n}")))
}

fn resize_to(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    resized(
        image(i)?,
        [
            target(i, "target_size_height")?,
            target(i, "target_size_width")?,
        ],
    )
}

fn upsample(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = image(i)?;
    let n = x.rank();
    let height = upsampled_size(i, "scale_factor_height", x.shape[n - 2])?;
    let width = upsampled_size(i, "scale_factor_width", x.shape[n - 1])?;
    resized(x, [height, width])
}

/// floor(size * factor). If the factor is fp32, the product is fp32, as in coremltools.
fn upsampled_size(i: &mut Infer<'_>, name: &str, size: Dim) -> Result<Dim, TypeError> {
    if !i.has(name) {
        return Ok(size);
    }
    let is_float = i.ty(name)?.dtype == DType::Fp32;
    let factor = if is_float {
        i.float(name)
    } else {
        i.int_or(name, 1).ok().map(|v| v as f32)
    };
    let factor = factor
        .ok_or_else(|| TypeError::new(format_args!("`{name}`: expected one constant number")))?;
    let Dim::Known(n) = size else {
        return Ok(if factor == 1.0 {
            size
        } else {
            i.fresh_symbol()
        });
    };
    let product = if is_float {
        f64::from((factor * n as f32).floor())
    } else {
        f64::from(factor) * n as f64
    };
    // Above 2^53, f64 does not represent every integer.
    if (1.0..9_007_199_254_740_992.0).contains(&product) {
        return Ok(Dim::Known(product as usize));
    }
    Err(TypeError::new(format_args!(
        "`{name}`: expected a factor with a result of 1 to 2^53 elements, found {factor} * {n} = \
         {product}"
    )))
}

fn resize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, sizes) = (i.ty("x")?, i.ty("shape")?);
    i.choice(
        "interpolation_mode",
        &["LINEAR", "NEAREST_NEIGHBOR"],
        "LINEAR",
    )?;
    i.choice("sampling_mode", SAMPLING, "DEFAULT")?;
    let n = usize::try_from(i.int_or("resized_dims", 0)?).unwrap_or(usize::MAX);
    let n_sizes = match sizes.shape.as_slice() {
        [Dim::Known(n)] => *n,
        [Dim::Symbol(_)] => x.rank(),
        _ => {
            return Err(TypeError::new(format_args!(
                "`shape`: expected a vector, found {sizes}"
            )));
        }
    };
    if n > n_sizes || n_sizes > x.rank() {
        return Err(TypeError::new(format_args!(
            "expected `resized_dims` <= length of `shape` <= rank of `x`, found {n}, {sizes} and \
             {x}"
        )));
    }
    let wanted = i
        .ints("shape")
        .map(|v| v[v.len().saturating_sub(n)..].to_vec());
    let mut shape = x.shape.clone();
    let first = x.rank() - n;
    for (k, dim) in shape[first..].iter_mut().enumerate() {
        *dim = match wanted.as_ref().and_then(|w| w.get(k)) {
            None => i.fresh_symbol(),
            Some(0) => *dim,
            Some(size) => match usize::try_from(*size) {
                Ok(size) => Dim::Known(size),
                Err(_) => {
                    return Err(TypeError::new(format_args!(
                        "`shape`: expected sizes of 0 or more, found {size}"
                    )));
                }
            },
        };
    }
    tensor_result(x.dtype, shape)
}

fn crop(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = image(i)?;
    let n = x.rank();
    let height = cropped_size(i, "crop_height", x.shape[n - 2])?;
    let width = cropped_size(i, "crop_width", x.shape[n - 1])?;
    resized(x, [height, width])
}

/// The size after cropping both ends of an axis.
fn cropped_size(i: &mut Infer<'_>, name: &str, size: Dim) -> Result<Dim, TypeError> {
    let amounts = i.constant_ints(name)?;
    let misfit = || {
        TypeError::new(format_args!(
            "`{name}`: expected two numbers of 0 or more with a sum of at most {size}, found \
             {amounts:?}"
        ))
    };
    let [first, last] = amounts[..] else {
        return Err(misfit());
    };
    let (first, last) = (
        usize::try_from(first).map_err(|_| misfit())?,
        usize::try_from(last).map_err(|_| misfit())?,
    );
    match (size, first.checked_add(last)) {
        (Dim::Known(n), Some(amount)) => n.checked_sub(amount).map(Dim::Known).ok_or_else(misfit),
        (Dim::Symbol(_), Some(0)) => Ok(size),
        (Dim::Symbol(_), Some(_)) => Ok(i.fresh_symbol()),
        (_, None) => Err(misfit()),
    }
}

fn affine(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "transform_matrix", "padding_value"])?;
    let (x, matrix) = (images(i)?, i.ty("transform_matrix")?);
    let fits = |d: Dim| d == Dim::Known(1) || d.compatible(x.shape[0]);
    if !matches!(matrix.shape.as_slice(), [n, six] if fits(*n) && six.compatible(Dim::Known(6))) {
        return Err(TypeError::new(format_args!(
            "`transform_matrix`: expected [1 or batch, 6] for `x` {x}, found {matrix}"
        )));
    }
    // coremltools also accepts these words in capitals.
    for (name, word) in [
        ("sampling_mode", "bilinear"),
        ("padding_mode", "constant"),
        ("coordinates_mode", "normalized_minus_one_to_one"),
    ] {
        let given = i.string(name)?;
        if !given.eq_ignore_ascii_case(word) {
            return Err(TypeError::new(format_args!(
                "`{name}`: expected `{word}`, found `{given}`"
            )));
        }
    }
    if i.float("padding_value") != Some(0.0) {
        return Err(TypeError("`padding_value`: expected 0".to_owned()));
    }
    resized(x, [target(i, "output_height")?, target(i, "output_width")?])
}

fn resample(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "padding_value"])?;
    i.choice("sampling_mode", &["bilinear", "nearest"], "")?;
    i.choice(
        "padding_mode",
        &["constant", "border", "reflection", "symmetric"],
        "",
    )?;
    i.choice(
        "coordinates_mode",
        &[
            "unnormalized",
            "normalized_minus_one_to_one",
            "normalized_zero_to_one",
        ],
        "",
    )?;
    let (x, coordinates) = (images(i)?, i.ty("coordinates")?);
    match coordinates.shape.as_slice() {
        [n, height, width, two] if n.compatible(x.shape[0]) && two.compatible(Dim::Known(2)) => {
            resized(x, [*height, *width])
        }
        _ => Err(TypeError::new(format_args!(
            "`coordinates`: expected [batch, height, width, 2] for `x` {x}, found {coordinates}"
        ))),
    }
}

/// Checks the modes of `crop_resize`; returns the height and width of its result.
fn crop_size(i: &Infer<'_>) -> Result<[Dim; 2], TypeError> {
    i.choice("box_coordinate_mode", BOX_MODES, BOX_MODES[0])?;
    i.choice("sampling_mode", SAMPLING, SAMPLING[0])?;
    Ok([target(i, "target_height")?, target(i, "target_width")?])
}

/// The type rule of `crop_resize` up to iOS 16. With five numbers per box, the batch axis of the
/// result is 1, as coremltools and the older model format document; coremltools' type inference
/// keeps the batch axis of `x`.
fn crop_resize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "roi"])?;
    let [height, width] = crop_size(i)?;
    let (x, roi) = (images(i)?, i.ty("roi")?);
    let is_one = |d: &Dim| d.compatible(Dim::Known(1));
    match roi.shape.as_slice() {
        [n, a, numbers, b, c] if [a, b, c].into_iter().all(is_one) => {
            let images = match numbers {
                Dim::Known(4) => x.shape[0],
                Dim::Known(5) => Dim::Known(1),
                Dim::Known(_) => {
                    return Err(TypeError::new(format_args!(
                        "`roi`: expected 4 or 5 numbers per box, found {roi}"
                    )));
                }
                Dim::Symbol(_) => i.fresh_symbol(),
            };
            tensor_result(x.dtype, vec![*n, images, x.shape[1], height, width])
        }
        _ => Err(TypeError::new(format_args!(
            "`roi`: expected [boxes, 1, 4 or 5, 1, 1], found {roi}"
        ))),
    }
}

fn crop_boxes(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    // `pad_value` may have another type: coremltools writes its default in fp32 beside an fp16 `x`.
    let [height, width] = crop_size(i)?;
    let (x, boxes) = (images(i)?, i.ty("boxes")?);
    let n = match boxes.shape.as_slice() {
        [n, four] if four.compatible(Dim::Known(4)) => *n,
        _ => {
            return Err(TypeError::new(format_args!(
                "`boxes`: expected [boxes, 4], found {boxes}"
            )));
        }
    };
    if i.bool_or("normalized_coordinates", false)? && !boxes.dtype.is_float() {
        return Err(TypeError::new(format_args!(
            "`boxes`: expected fp16 or fp32 for normalized coordinates, found {boxes}"
        )));
    }
    if i.has("box_indices") {
        let indices = i.ty("box_indices")?;
        if !matches!(indices.shape.as_slice(), [m] if m.compatible(n)) {
            return Err(TypeError::new(format_args!(
                "`box_indices`: expected one index for each of {n} boxes, found {indices}"
            )));
        }
        let images = x.shape[0]
            .known()
            .map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        if let Some(index) = i
            .ints("box_indices")
            .and_then(|v| v.into_iter().find(|v| !(0..images).contains(v)))
        {
            return Err(TypeError::new(format_args!(
                "`box_indices`: expected images of `x` {x}, found {index}"
            )));
        }
    } else if matches!((n, x.shape[0]), (Dim::Known(n), Dim::Known(images)) if n > images) {
        return Err(TypeError::new(format_args!(
            "`boxes`: expected at most one box per image of `x` {x}, found {boxes}; \
             pass `box_indices` to select images"
        )));
    }
    tensor_result(x.dtype, vec![n, x.shape[1], height, width])
}

//! Resizing, cropping and resampling of the last two axes, height and width.
//!
//! Source: coremltools `ops/defs/iOS15/image_resizing.py`, `iOS16/image_resizing.py`,
//! `iOS17/image_resizing.py`.

use super::{
    BOOL, Dim, FLOAT, INT32, Infer, NUMBER, OpDef, Opset, Param, STRING, Type, TypeError, constant,
    one, tensor,
};
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

/// How the points of an axis that is resized lie over it.
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

/// The parameters of `resample` whose coordinates are of these types.
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
    // y[.., h, w] = x at (a0 w + a1 h + a2, b0 w + b1 h + b2), coordinates from -1 to 1;
    // transform_matrix [B or 1, 6].
    OpDef::new("affine", Opset::CoreMl5, AFFINE, affine),
    // y = x without these rows and columns of its first and last.
    OpDef::new(
        "crop",
        Opset::CoreMl5,
        &[
            X,
            constant("crop_height", INT32),
            constant("crop_width", INT32),
        ],
        crop,
    ),
    // y[n, b] = box n of image b, resized as `resize_bilinear` does; with five numbers a box, of
    // the image that the first one names.
    OpDef::new("crop_resize", Opset::CoreMl5, CROP_RESIZE, crop_resize),
    // Points outside of the image are `pad_value`.
    OpDef::new("crop_resize", Opset::CoreMl6, CROP_RESIZE_6, crop_resize),
    // y[n] = box n of image box_indices[n].
    OpDef::new("crop_resize", Opset::CoreMl7, CROP_RESIZE_7, crop_boxes),
    // y[b, c, h, w] = x[b, c] at coordinates[b, h, w], which are (x, y).
    OpDef::new("resample", Opset::CoreMl5, RESAMPLE, resample),
    OpDef::new("resample", Opset::CoreMl6, RESAMPLE_6, resample),
    OpDef::new("resample", Opset::CoreMl7, RESAMPLE_7, resample),
    // y = x with its last `resized_dims` dimensions as the last of `shape`, 0 for that of x.
    OpDef::new(
        "resize",
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
    // y = x at the points of `sampling_mode`, between four elements.
    OpDef::new(
        "resize_bilinear",
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
        Opset::CoreMl5,
        &[
            X,
            constant("target_size_height", INT32),
            constant("target_size_width", INT32),
        ],
        resize_to,
    ),
    // y = x, floor(size * factor) points an axis: with its corners, or points as far from them as
    // pixels' centres are.
    OpDef::new("upsample_bilinear", Opset::CoreMl5, BILINEAR, upsample),
    OpDef::new("upsample_bilinear", Opset::CoreMl6, BILINEAR_6, upsample),
    // As `resize_nearest_neighbor`, to floor(size * factor).
    OpDef::new(
        "upsample_nearest_neighbor",
        Opset::CoreMl5,
        UPSAMPLE,
        upsample,
    ),
];

/// x, where it has a height and a width.
fn image<'a>(i: &Infer<'a>) -> Result<&'a TensorType, TypeError> {
    let x = i.ty("x")?;
    if x.rank() < 3 {
        return Err(TypeError(format!(
            "`x` is {x}, a rank of at least 3 is needed"
        )));
    }
    Ok(x)
}

/// x, where it is [B, C, H, W].
fn images<'a>(i: &Infer<'a>) -> Result<&'a TensorType, TypeError> {
    let x = i.ty("x")?;
    if x.rank() != 4 {
        return Err(TypeError(format!("`x` is {x}, a rank of 4 is needed")));
    }
    Ok(x)
}

/// x with another height and width.
fn resized(x: &TensorType, [height, width]: [Dim; 2]) -> Result<Vec<Type>, TypeError> {
    let mut shape = x.shape.clone();
    let n = shape.len();
    (shape[n - 2], shape[n - 1]) = (height, width);
    one(x.dtype, shape)
}

/// A size that the program states, 1 unless it is bound.
fn target(i: &Infer<'_>, name: &str) -> Result<Dim, TypeError> {
    let n = i.int_or(name, 1)?;
    let size = usize::try_from(n).ok().filter(|n| *n > 0);
    size.map(Dim::Known)
        .ok_or_else(|| TypeError(format!("`{name}` is {n}, at least 1 is needed")))
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
    let height = upsampled(i, "scale_factor_height", x.shape[n - 2])?;
    let width = upsampled(i, "scale_factor_width", x.shape[n - 1])?;
    resized(x, [height, width])
}

/// floor(size * factor), in fp32 as coremltools multiplies where the factor is fp32.
fn upsampled(i: &mut Infer<'_>, name: &str, size: Dim) -> Result<Dim, TypeError> {
    if !i.has(name) {
        return Ok(size);
    }
    let is_float = i.ty(name)?.dtype == DType::Fp32;
    let factor = if is_float {
        i.float(name)
    } else {
        i.int_or(name, 1).ok().map(|v| v as f32)
    };
    let factor =
        factor.ok_or_else(|| TypeError(format!("`{name}` must be one constant number")))?;
    let Dim::Known(n) = size else {
        return Ok(if factor == 1.0 { size } else { i.fresh() });
    };
    let product = if is_float {
        f64::from((factor * n as f32).floor())
    } else {
        f64::from(factor) * n as f64
    };
    // 2^53: above it f64 does not hold each integer.
    if (1.0..9_007_199_254_740_992.0).contains(&product) {
        return Ok(Dim::Known(product as usize));
    }
    Err(TypeError(format!(
        "`{name}` is {factor}: {n} elements would become {product}"
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
        _ => return Err(TypeError(format!("`shape` is {sizes}, a vector is needed"))),
    };
    if n > n_sizes || n_sizes > x.rank() {
        let order =
            "`resized_dims` may be at most the sizes of `shape`, and these the dimensions of `x`";
        return Err(TypeError(format!(
            "`resized_dims` is {n}, `shape` is {sizes}, `x` is {x}: {order}"
        )));
    }
    let wanted = i
        .ints("shape")
        .map(|v| v[v.len().saturating_sub(n)..].to_vec());
    let mut shape = x.shape.clone();
    let first = x.rank() - n;
    for (k, dim) in shape[first..].iter_mut().enumerate() {
        *dim = match wanted.as_ref().and_then(|w| w.get(k)) {
            None => i.fresh(),
            Some(0) => *dim,
            Some(size) => match usize::try_from(*size) {
                Ok(size) => Dim::Known(size),
                Err(_) => return Err(TypeError(format!("`shape` has the size {size}"))),
            },
        };
    }
    one(x.dtype, shape)
}

fn crop(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = image(i)?;
    let n = x.rank();
    let height = cropped(i, "crop_height", x.shape[n - 2])?;
    let width = cropped(i, "crop_width", x.shape[n - 1])?;
    resized(x, [height, width])
}

fn cropped(i: &mut Infer<'_>, name: &str, size: Dim) -> Result<Dim, TypeError> {
    let amounts = i.constant_ints(name)?;
    let misfit = || {
        TypeError(format!(
            "`{name}` is {amounts:?}: two numbers of at least 0 are needed, {size} at most"
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
        (Dim::Symbol(_), Some(_)) => Ok(i.fresh()),
        (_, None) => Err(misfit()),
    }
}

fn affine(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "transform_matrix", "padding_value"])?;
    let (x, matrix) = (images(i)?, i.ty("transform_matrix")?);
    let fits = |d: Dim| d == Dim::Known(1) || d.compatible(x.shape[0]);
    if !matches!(matrix.shape.as_slice(), [n, six] if fits(*n) && six.compatible(Dim::Known(6))) {
        return Err(TypeError(format!(
            "`transform_matrix` is {matrix}, `x` is {x}: [1 or the images, 6] is needed"
        )));
    }
    // Of these, coremltools takes the words in capitals too.
    for (name, word) in [
        ("sampling_mode", "bilinear"),
        ("padding_mode", "constant"),
        ("coordinates_mode", "normalized_minus_one_to_one"),
    ] {
        let given = i.string(name)?;
        if !given.eq_ignore_ascii_case(word) {
            return Err(TypeError(format!(
                "`{name}` is `{given}`, only {word} is there"
            )));
        }
    }
    if i.float("padding_value") != Some(0.0) {
        return Err(TypeError("`padding_value` must be 0".to_owned()));
    }
    resized(x, [target(i, "output_height")?, target(i, "output_width")?])
}

fn resample(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "padding_value"])?;
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
        _ => Err(TypeError(format!(
            "`coordinates` is {coordinates}, `x` is {x}: [the images, height, width, 2]"
        ))),
    }
}

/// Check the modes of `crop_resize`, and give the height and width of its result.
fn boxed(i: &Infer<'_>) -> Result<[Dim; 2], TypeError> {
    i.choice("box_coordinate_mode", BOX_MODES, BOX_MODES[0])?;
    i.choice("sampling_mode", SAMPLING, SAMPLING[0])?;
    Ok([target(i, "target_height")?, target(i, "target_width")?])
}

/// With five numbers a box, the result has no images: that is what coremltools documents, and the
/// older format; its type inference keeps them.
fn crop_resize(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "roi"])?;
    let [height, width] = boxed(i)?;
    let (x, roi) = (images(i)?, i.ty("roi")?);
    let is_one = |d: &Dim| d.compatible(Dim::Known(1));
    match roi.shape.as_slice() {
        [n, a, numbers, b, c] if [a, b, c].into_iter().all(is_one) => {
            let images = match numbers {
                Dim::Known(4) => x.shape[0],
                Dim::Known(5) => Dim::Known(1),
                Dim::Known(_) => {
                    return Err(TypeError(format!(
                        "`roi` is {roi}, a box has 4 or 5 numbers"
                    )));
                }
                Dim::Symbol(_) => i.fresh(),
            };
            one(x.dtype, vec![*n, images, x.shape[1], height, width])
        }
        _ => Err(TypeError(format!(
            "`roi` is {roi}, [boxes, 1, 4 or 5, 1, 1] is needed"
        ))),
    }
}

fn crop_boxes(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    // `pad_value` may be of another type: coremltools writes its default in fp32 beside fp16.
    let [height, width] = boxed(i)?;
    let (x, boxes) = (images(i)?, i.ty("boxes")?);
    let n = match boxes.shape.as_slice() {
        [n, four] if four.compatible(Dim::Known(4)) => *n,
        _ => {
            return Err(TypeError(format!(
                "`boxes` is {boxes}, [boxes, 4] is needed"
            )));
        }
    };
    if i.bool_or("normalized_coordinates", false)? && !boxes.dtype.is_float() {
        return Err(TypeError(format!(
            "`boxes` is {boxes}: coordinates that are normalised are fp16 or fp32"
        )));
    }
    if i.has("box_indices") {
        let indices = i.ty("box_indices")?;
        if !matches!(indices.shape.as_slice(), [m] if m.compatible(n)) {
            return Err(TypeError(format!(
                "`box_indices` is {indices}, the {n} boxes need one each"
            )));
        }
        let images = x.shape[0]
            .known()
            .map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        if let Some(index) = i
            .ints("box_indices")
            .and_then(|v| v.into_iter().find(|v| !(0..images).contains(v)))
        {
            return Err(TypeError(format!("`box_indices` has {index}, `x` is {x}")));
        }
    } else if matches!((n, x.shape[0]), (Dim::Known(n), Dim::Known(images)) if n > images) {
        return Err(TypeError(format!(
            "`boxes` is {boxes}, `x` is {x}: box k is of image k unless `box_indices` is given"
        )));
    }
    one(x.dtype, vec![n, x.shape[1], height, width])
}

//! The description in a package: metadata, and the features (inputs, outputs and states) of its
//! functions.

use std::collections::BTreeMap;

use super::proto::array_feature_type::{
    DefaultOptionalValue, EnumeratedShapes, Shape as ShapeMessage, ShapeFlexibility, ShapeRange,
};
use super::proto::{self, feature_type};
use crate::program::{Function, ValueId};
use crate::types::{DType, Dim, TensorType, Type};

/// Metadata of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// What the model does, in one or two sentences.
    pub short_description: String,
    /// The author.
    pub author: String,
    /// The license.
    pub license: String,
    /// The version of the model.
    pub version: String,
    /// Other metadata, by key.
    pub user_defined: BTreeMap<String, String>,
}

/// The description of one function's inputs, outputs and states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interface {
    /// Features by name. A feature without an entry is described by its type.
    pub features: BTreeMap<String, Feature>,
    /// For a classifier: the output with the label.
    pub predicted_feature: Option<String>,
    /// For a classifier: the output with the probabilities.
    pub predicted_probabilities: Option<String>,
}

/// The description of one input, output or state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feature {
    /// What the feature is, in one sentence.
    pub short_description: String,
    /// Whether callers may omit this input.
    pub optional: bool,
    /// The value of each element of an omitted input.
    pub default_value: Option<DefaultValue>,
    /// The allowed shapes.
    pub shape: Shape,
    /// The image format, if the feature is an image.
    pub image: Option<Image>,
}

/// The value of each element of an omitted input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// For int32 inputs.
    Int(i32),
    /// For fp32 and fp16 inputs.
    Float(f32),
    /// For fp64 inputs.
    Double(f64),
}

/// The allowed shapes of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// The shapes of the type. A symbolic dimension can be 1 or more and defaults to 1.
    #[default]
    OfType,
    /// Every dimension within its range.
    Ranges {
        /// The default shape.
        default: Vec<usize>,
        /// The range of each dimension.
        ranges: Vec<SizeRange>,
    },
    /// One of a list of shapes.
    Enumerated {
        /// The default shape.
        default: Vec<usize>,
        /// All allowed shapes.
        shapes: Vec<Vec<usize>>,
    },
}

impl Shape {
    /// The default shape, or `None` if only the type determines it.
    pub fn default_shape(&self) -> Option<&[usize]> {
        match self {
            Self::Ranges { default, .. } | Self::Enumerated { default, .. } => Some(default),
            Self::OfType => None,
        }
    }
}

/// A range of sizes; both bounds are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// The smallest size.
    pub lower: usize,
    /// The largest size; `None` means unlimited.
    pub upper: Option<usize>,
}

/// The format of an image that is passed in place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The pixel format.
    pub color: ColorSpace,
    /// Default width in pixels.
    pub width: usize,
    /// Default height in pixels.
    pub height: usize,
    /// The allowed sizes.
    pub sizes: ImageSizes,
}

/// A pixel format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorSpace {
    /// One byte per pixel.
    Grayscale,
    /// Red, green and blue bytes.
    Rgb,
    /// Blue, green and red bytes.
    Bgr,
    /// One fp16 number per pixel.
    GrayscaleFp16,
}

/// The allowed sizes of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSizes {
    /// Only the default size.
    Fixed,
    /// One of these pairs of width and height.
    Enumerated(Vec<(usize, usize)>),
    /// Any size within ranges.
    Ranges {
        /// The range of widths.
        width: SizeRange,
        /// The range of heights.
        height: SizeRange,
    },
}

/// Apple's numbers of the element types of features.
const CODES: &[(DType, i32)] = &[
    (DType::Fp32, 65568),
    (DType::Fp16, 65552),
    (DType::Int32, 131_104),
    (DType::Int8, 131_080),
];
const COLORS: &[(ColorSpace, i32)] = &[
    (ColorSpace::Grayscale, 10),
    (ColorSpace::Rgb, 20),
    (ColorSpace::Bgr, 30),
    (ColorSpace::GrayscaleFp16, 40),
];

/// Encodes the features of one function.
pub(super) fn to_proto(f: &Function, interface: &Interface) -> proto::FunctionDescription {
    let describe = |v: &ValueId, is_input: bool| {
        let value = f.value(*v);
        feature_to_proto(
            &value.name,
            &value.ty,
            interface.features.get(&value.name),
            is_input,
        )
    };
    let (states, inputs): (Vec<_>, Vec<_>) = f
        .body()
        .inputs
        .iter()
        .partition(|v| matches!(f.value(**v).ty, Type::State(_)));
    proto::FunctionDescription {
        name: f.name.clone(),
        input: inputs.into_iter().map(|v| describe(v, true)).collect(),
        output: f
            .body()
            .outputs
            .iter()
            .map(|v| describe(v, false))
            .collect(),
        predicted_feature_name: interface.predicted_feature.clone().unwrap_or_default(),
        predicted_probabilities_name: interface
            .predicted_probabilities
            .clone()
            .unwrap_or_default(),
        state: states.into_iter().map(|v| describe(v, true)).collect(),
    }
}

fn feature_to_proto(
    name: &str,
    ty: &Type,
    feature: Option<&Feature>,
    is_input: bool,
) -> proto::FeatureDescription {
    let plain = Feature::default();
    let feature = feature.unwrap_or(&plain);
    let string = |t: &Type| t.tensor().is_some_and(|t| t.dtype == DType::String);
    let kind = match (ty, &feature.image) {
        (Type::State(t), _) => {
            let array_type = Some(array_to_proto(t, &plain, false));
            feature_type::Type::State(proto::StateFeatureType { array_type })
        }
        (_, Some(image)) => feature_type::Type::Image(image_to_proto(image)),
        (Type::Dict(key, _), _) => {
            let (int64_key, string_key) = if string(key) {
                (None, Some(proto::Empty {}))
            } else {
                (Some(proto::Empty {}), None)
            };
            feature_type::Type::Dictionary(proto::DictionaryFeatureType {
                int64_key,
                string_key,
            })
        }
        (t, _) if string(t) => feature_type::Type::String(proto::Empty {}),
        (Type::Tensor(t), _) if t.dtype == DType::Int64 && t.rank() == 0 => {
            feature_type::Type::Int64(proto::Empty {})
        }
        (Type::Tensor(t), _) => {
            feature_type::Type::MultiArray(array_to_proto(t, feature, is_input))
        }
        _ => feature_type::Type::MultiArray(proto::ArrayFeatureType::default()),
    };
    proto::FeatureDescription {
        name: name.to_owned(),
        short_description: feature.short_description.clone(),
        r#type: Some(proto::FeatureType {
            r#type: Some(kind),
            is_optional: feature.optional,
        }),
    }
}

fn array_to_proto(ty: &TensorType, feature: &Feature, is_input: bool) -> proto::ArrayFeatureType {
    let (default, flexibility) = match (&feature.shape, ty.known_shape()) {
        (Shape::Ranges { default, ranges }, _) => (default.clone(), Some(ranges_to_proto(ranges))),
        (Shape::Enumerated { default, shapes }, _) => {
            let shapes = shapes
                .iter()
                .map(|s| ShapeMessage { shape: ints(s) })
                .collect();
            (
                default.clone(),
                Some(ShapeFlexibility::Enumerated(EnumeratedShapes { shapes })),
            )
        }
        (Shape::OfType, Some(shape)) => (shape, None),
        (Shape::OfType, None) if is_input => {
            let ranges: Vec<SizeRange> = ty.shape.iter().map(|d| bounds(*d)).collect();
            (
                ranges.iter().map(|r| r.lower).collect(),
                Some(ranges_to_proto(&ranges)),
            )
        }
        (Shape::OfType, None) => (Vec::new(), None),
    };
    proto::ArrayFeatureType {
        shape: ints(&default),
        data_type: CODES
            .iter()
            .find(|(d, _)| *d == ty.dtype)
            .map_or(0, |(_, code)| *code),
        flexibility,
        default_value: feature.default_value.map(|v| match v {
            DefaultValue::Int(i) => DefaultOptionalValue::Int(i),
            DefaultValue::Float(f) => DefaultOptionalValue::Float(f),
            DefaultValue::Double(d) => DefaultOptionalValue::Double(d),
        }),
    }
}

fn ints(shape: &[usize]) -> Vec<i64> {
    shape
        .iter()
        .map(|n| i64::try_from(*n).unwrap_or(i64::MAX))
        .collect()
}

/// The range of a dimension that only its type describes.
pub(super) fn bounds(dim: Dim) -> SizeRange {
    match dim {
        Dim::Known(n) => SizeRange {
            lower: n,
            upper: Some(n),
        },
        Dim::Symbol(_) => SizeRange {
            lower: 1,
            upper: None,
        },
    }
}

fn range_to_proto(range: &SizeRange) -> proto::SizeRange {
    // -1 means unlimited.
    let upper_bound = range.upper.map_or(-1, |n| i64::try_from(n).unwrap_or(-1));
    proto::SizeRange {
        lower_bound: range.lower as u64,
        upper_bound,
    }
}

fn ranges_to_proto(ranges: &[SizeRange]) -> ShapeFlexibility {
    ShapeFlexibility::Range(ShapeRange {
        size_ranges: ranges.iter().map(range_to_proto).collect(),
    })
}

fn image_to_proto(image: &Image) -> proto::ImageFeatureType {
    let mut message = proto::ImageFeatureType {
        width: image.width as i64,
        height: image.height as i64,
        color_space: COLORS
            .iter()
            .find(|(c, _)| *c == image.color)
            .map_or(0, |(_, code)| *code),
        ..proto::ImageFeatureType::default()
    };
    match &image.sizes {
        ImageSizes::Fixed => {}
        ImageSizes::Enumerated(sizes) => {
            let size = |(w, h): &(usize, usize)| proto::ImageSize {
                width: *w as u64,
                height: *h as u64,
            };
            message.enumerated_sizes = Some(proto::EnumeratedImageSizes {
                sizes: sizes.iter().map(size).collect(),
            });
        }
        ImageSizes::Ranges { width, height } => {
            let (width, height) = (Some(range_to_proto(width)), Some(range_to_proto(height)));
            message.size_range = Some(proto::ImageSizeRange {
                width_range: width,
                height_range: height,
            });
        }
    }
    message
}

/// Decodes the features of `f`. The description must contain every feature of `f` and no other. An
/// error is the place and the reason.
pub(super) fn from_proto(
    f: &Function,
    message: &proto::FunctionDescription,
) -> Result<Interface, (String, String)> {
    let (states, inputs): (Vec<&ValueId>, Vec<&ValueId>) = f
        .body()
        .inputs
        .iter()
        .partition(|v| matches!(f.value(**v).ty, Type::State(_)));
    let outputs = f.body().outputs.iter().collect();
    let mut features = BTreeMap::new();
    for (what, values, described) in [
        ("input", inputs, &message.input),
        ("output", outputs, &message.output),
        ("state", states, &message.state),
    ] {
        let values: BTreeMap<&str, &Type> = values
            .iter()
            .map(|v| (f.value(**v).name.as_str(), &f.value(**v).ty))
            .collect();
        let names: BTreeMap<&str, &proto::FeatureDescription> =
            described.iter().map(|d| (d.name.as_str(), d)).collect();
        if let Some(name) = values.keys().find(|name| !names.contains_key(**name)) {
            return Err((
                format!("{what} `{name}`"),
                "the function has this feature, the description does not".to_owned(),
            ));
        }
        for (name, described) in names {
            let fail = |reason: String| (format!("{what} `{name}`"), reason);
            let ty = values.get(name).ok_or_else(|| {
                fail("the description has this feature, the function does not".to_owned())
            })?;
            features.insert(
                name.to_owned(),
                feature_from_proto(described, ty).map_err(fail)?,
            );
        }
    }
    let name = |name: &str| Some(name.to_owned()).filter(|n| !n.is_empty());
    Ok(Interface {
        features,
        predicted_feature: name(&message.predicted_feature_name),
        predicted_probabilities: name(&message.predicted_probabilities_name),
    })
}

fn feature_from_proto(message: &proto::FeatureDescription, ty: &Type) -> Result<Feature, String> {
    let kind = message
        .r#type
        .as_ref()
        .ok_or("the description has no type")?;
    let mut feature = Feature {
        short_description: message.short_description.clone(),
        optional: kind.is_optional,
        ..Feature::default()
    };
    match (
        kind.r#type.as_ref().ok_or("the description has no type")?,
        ty,
    ) {
        (feature_type::Type::MultiArray(array), Type::Tensor(t)) => {
            array_from_proto(array, t, &mut feature)?
        }
        (feature_type::Type::State(state), Type::State(t)) => {
            let array = state
                .array_type
                .as_ref()
                .ok_or("the description has no type")?;
            array_from_proto(array, t, &mut feature)?;
        }
        (feature_type::Type::Image(image), Type::Tensor(_)) => {
            feature.image = Some(image_from_proto(image)?)
        }
        (feature_type::Type::Int64(_), Type::Tensor(t))
            if t.dtype == DType::Int64 && t.rank() == 0 => {}
        (feature_type::Type::String(_), Type::Tensor(t)) if t.dtype == DType::String => {}
        (feature_type::Type::Dictionary(_), Type::Dict(..)) => {}
        _ => {
            return Err(format!(
                "the description is of another kind than the type {ty}"
            ));
        }
    }
    Ok(feature)
}

fn array_from_proto(
    array: &proto::ArrayFeatureType,
    ty: &TensorType,
    feature: &mut Feature,
) -> Result<(), String> {
    let stored = CODES
        .iter()
        .find(|(_, code)| *code == array.data_type)
        .map(|(d, _)| *d);
    if stored != Some(ty.dtype) {
        let stored = stored.map_or(format!("element type {}", array.data_type), |d| {
            d.to_string()
        });
        return Err(format!(
            "expected {ty} as in the function, found the description {stored}"
        ));
    }
    let default = sizes(&array.shape)?;
    // A scalar is described as a vector of length 1, or without a shape.
    let scalar = ty.rank() == 0 && matches!(default[..], [] | [1]);
    if !(default.is_empty() || scalar || ty.fits(&default)) {
        return Err(format!(
            "expected {ty} as in the function, found the described shape {default:?}"
        ));
    }
    feature.shape = match &array.flexibility {
        None => Shape::OfType,
        Some(ShapeFlexibility::Range(range)) => {
            let ranges = range
                .size_ranges
                .iter()
                .map(range_from_proto)
                .collect::<Result<_, _>>()?;
            Shape::Ranges { default, ranges }
        }
        Some(ShapeFlexibility::Enumerated(shapes)) => {
            let shapes = shapes
                .shapes
                .iter()
                .map(|s| sizes(&s.shape))
                .collect::<Result<_, _>>()?;
            Shape::Enumerated { default, shapes }
        }
    };
    feature.default_value = array.default_value.as_ref().map(|v| match v {
        DefaultOptionalValue::Int(i) => DefaultValue::Int(*i),
        DefaultOptionalValue::Float(f) => DefaultValue::Float(*f),
        DefaultOptionalValue::Double(d) => DefaultValue::Double(*d),
    });
    Ok(())
}

fn sizes(shape: &[i64]) -> Result<Vec<usize>, String> {
    shape
        .iter()
        .map(|n| usize::try_from(*n).map_err(|_| format!("the description has a dimension of {n}")))
        .collect()
}

fn range_from_proto(range: &proto::SizeRange) -> Result<SizeRange, String> {
    let lower = usize::try_from(range.lower_bound).ok();
    // Any negative number means unlimited.
    let upper = usize::try_from(range.upper_bound).ok();
    match lower {
        Some(lower) if upper.is_none_or(|u| lower <= u) => Ok(SizeRange { lower, upper }),
        _ => Err(format!(
            "expected a range of sizes, found {} to {}",
            range.lower_bound, range.upper_bound
        )),
    }
}

fn image_from_proto(image: &proto::ImageFeatureType) -> Result<Image, String> {
    let size = |n: i64| {
        usize::try_from(n).map_err(|_| format!("expected an image size of 0 or more, found {n}"))
    };
    let color = COLORS
        .iter()
        .find(|(_, code)| *code == image.color_space)
        .map(|(c, _)| *c);
    let sizes = match (&image.enumerated_sizes, &image.size_range) {
        (None, None) => ImageSizes::Fixed,
        (Some(list), None) => {
            let size = |s: &proto::ImageSize| {
                Some((
                    usize::try_from(s.width).ok()?,
                    usize::try_from(s.height).ok()?,
                ))
            };
            let sizes = list
                .sizes
                .iter()
                .map(size)
                .collect::<Option<_>>()
                .ok_or("an image size is too large")?;
            ImageSizes::Enumerated(sizes)
        }
        (None, Some(range)) => {
            let bounds = |r: &Option<proto::SizeRange>| {
                range_from_proto(r.as_ref().ok_or("a range of sizes is missing")?)
            };
            ImageSizes::Ranges {
                width: bounds(&range.width_range)?,
                height: bounds(&range.height_range)?,
            }
        }
        (Some(_), Some(_)) => {
            return Err("expected image sizes or size ranges, found both".to_owned());
        }
    };
    Ok(Image {
        color: color.ok_or_else(|| format!("unknown color space {}", image.color_space))?,
        width: size(image.width)?,
        height: size(image.height)?,
        sizes,
    })
}

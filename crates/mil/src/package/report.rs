//! Files of a compiled model for tools: `metadata.json` and the analytics file.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::proto::array_feature_type::ShapeFlexibility;
use super::proto::{self, feature_type};

/// Names of Apple's systems; [`AVAILABILITY`] has their versions.
const SYSTEMS: [&str; 6] = ["macOS", "tvOS", "visionOS", "watchOS", "iOS", "macCatalyst"];
/// For each specification version, the first version of each of [`SYSTEMS`] that reads it.
const AVAILABILITY: &[(i32, [&str; 6])] = &[
    (6, ["12.0", "15.0", "1.0", "8.0", "15.0", "15.0"]),
    (7, ["13.0", "16.0", "1.0", "9.0", "16.0", "16.0"]),
    (8, ["14.0", "17.0", "1.0", "10.0", "17.0", "17.0"]),
    (9, ["15.0", "18.0", "2.0", "11.0", "18.0", "18.0"]),
];

/// The analytics file: sections of keys and values, each string with its length before it.
/// `modelHash` is the hash of the model file.
pub(super) fn analytics(model: &[u8]) -> Vec<u8> {
    let hash = base64(&Sha256::digest(model));
    let sections = [
        (
            "NeuralNetworkModelDetails",
            [("containsCustomLayer", "0"), ("modelDimension", "0")],
        ),
        (
            "SpecificationDetails",
            [("modelHash", hash.as_str()), ("modelName", "model")],
        ),
    ];
    let number = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u64).to_le_bytes());
    let text = |out: &mut Vec<u8>, s: &str| {
        number(out, s.len());
        out.extend_from_slice(s.as_bytes());
    };
    let mut out = Vec::new();
    for (name, pairs) in sections {
        text(&mut out, name);
        number(&mut out, pairs.len());
        for (key, value) in pairs {
            text(&mut out, key);
            text(&mut out, value);
        }
    }
    out
}

/// The text of bytes by RFC 4648, section 4.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |v, b| v << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= chunk.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    out
}

/// The text of `metadata.json`, without histograms and precisions, which need Apple's own table of
/// ops.
pub(super) fn metadata(model: &proto::Model) -> String {
    let described = model.description.clone().unwrap_or_default();
    let own = described.metadata.clone().unwrap_or_default();
    let default = described
        .functions
        .iter()
        .find(|f| f.name == described.default_function_name);
    let (input, output, state) = match default {
        Some(f) => (&f.input, &f.output, &f.state),
        None => (&described.input, &described.output, &described.state),
    };
    let versions = AVAILABILITY
        .iter()
        .find(|(v, _)| *v == model.specification_version)
        .map(|(_, v)| v);
    let availability = versions.into_iter().flat_map(|v| {
        SYSTEMS
            .into_iter()
            .zip(v)
            .map(|(s, v)| (s.to_owned(), json!(v)))
    });
    let mut out = json!({
        "metadataOutputVersion": "3.0",
        "shortDescription": own.short_description,
        "author": own.author,
        "license": own.license,
        "version": own.version_string,
        "userDefinedMetadata": own.user_defined,
        "specificationVersion": model.specification_version,
        "modelType": {"name": "MLModelType_mlProgram"},
        "modelParameters": [],
        "isUpdatable": "0",
        "inputSchema": features(input),
        "outputSchema": features(output),
        "stateSchema": features(state),
        "availability": Value::Object(availability.collect()),
        "generatedClassName": "model",
        "method": "predict",
    });
    if !described.functions.is_empty() {
        let function = |f: &proto::FunctionDescription| {
            json!({
                "name": f.name,
                "inputSchema": features(&f.input),
                "outputSchema": features(&f.output),
                "stateSchema": features(&f.state),
            })
        };
        out["functions"] = described.functions.iter().map(function).collect();
        out["defaultFunctionName"] = json!(described.default_function_name);
    }
    format!("{:#}\n", json!([out]))
}

fn features(list: &[proto::FeatureDescription]) -> Value {
    list.iter().map(feature).collect()
}

fn feature(f: &proto::FeatureDescription) -> Value {
    let ty = f.r#type.clone().unwrap_or_default();
    let mut out = json!({
        "name": f.name,
        "shortDescription": f.short_description,
        "isOptional": if ty.is_optional { "1" } else { "0" },
        "hasShapeFlexibility": "0",
    });
    match ty.r#type {
        Some(feature_type::Type::MultiArray(array)) => {
            array_feature(&array, "MultiArray", &mut out)
        }
        Some(feature_type::Type::State(state)) => {
            array_feature(&state.array_type.unwrap_or_default(), "State", &mut out);
        }
        Some(feature_type::Type::Image(image)) => {
            out["type"] = json!("Image");
            out["width"] = json!(image.width.to_string());
            out["height"] = json!(image.height.to_string());
        }
        Some(feature_type::Type::String(_)) => out["type"] = json!("String"),
        Some(feature_type::Type::Int64(_)) => out["type"] = json!("Int64"),
        Some(feature_type::Type::Dictionary(_)) => out["type"] = json!("Dictionary"),
        _ => {}
    }
    out
}

fn array_feature(array: &proto::ArrayFeatureType, ty: &str, out: &mut Value) {
    let dtype = match array.data_type {
        65552 => "Float16",
        131_104 => "Int32",
        131_080 => "Int8",
        _ => "Float32",
    };
    let dims: Vec<String> = array.shape.iter().map(ToString::to_string).collect();
    out["type"] = json!(ty);
    out["dataType"] = json!(dtype);
    out["shape"] = json!(format!("[{}]", dims.join(", ")));
    out["formattedType"] = json!(format!("{ty} ({dtype} {})", dims.join(" \u{d7} ")));
    if let Some(ShapeFlexibility::Range(range)) = &array.flexibility {
        let bounds = range
            .size_ranges
            .iter()
            .map(|r| format!("[{}, {}]", r.lower_bound, r.upper_bound));
        let shown = range.size_ranges.iter().map(|r| match r.upper_bound {
            n if u64::try_from(n) == Ok(r.lower_bound) => n.to_string(),
            n => format!("{}...{n}", r.lower_bound),
        });
        out["hasShapeFlexibility"] = json!("1");
        out["shapeRange"] = json!(format!("[{}]", bounds.collect::<Vec<_>>().join(", ")));
        out["shapeFlexibility"] = json!(shown.collect::<Vec<_>>().join(" \u{d7} "));
    }
}

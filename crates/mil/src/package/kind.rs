//! The kinds of Core ML models that are not ML Programs, and what to do with one.
//!
//! Source: the fields of `Model` in coremltools 9 (`Model.proto`). The number of a field is also
//! the number of the kind in the header of a compiled model.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};

/// The number of ML Programs.
const ML_PROGRAM: u32 = 502;
/// Number of the field, and the kind.
const KINDS: &[(u32, &str)] = &[
    (200, "a pipeline classifier"),
    (201, "a pipeline regressor"),
    (202, "a pipeline"),
    (300, "a generalized linear regressor"),
    (301, "a support vector regressor"),
    (302, "a tree ensemble regressor"),
    (303, "a neural network regressor"),
    (304, "a Bayesian probit regressor"),
    (400, "a generalized linear classifier"),
    (401, "a support vector classifier"),
    (402, "a tree ensemble classifier"),
    (403, "a neural network classifier"),
    (404, "a k-nearest neighbors classifier"),
    (500, "a neural network"),
    (501, "an item similarity recommender"),
    (555, "a custom model"),
    (556, "a linked model"),
    (560, "a class confidence threshold"),
    (600, "a one-hot encoder"),
    (601, "an imputer"),
    (602, "a feature vectorizer"),
    (603, "a dictionary vectorizer"),
    (604, "a scaler"),
    (606, "a categorical mapping"),
    (607, "a normalizer"),
    (609, "an array feature extractor"),
    (610, "a non-maximum suppression"),
    (900, "an identity model"),
    (2000, "a text classifier"),
    (2001, "a word tagger"),
    (2002, "a vision feature print"),
    (2003, "a sound analysis preprocessor"),
    (2004, "a gazetteer"),
    (2005, "a word embedding"),
    (2006, "an audio feature print"),
    (3000, "a serialized model"),
];

/// Why a model file without an ML Program is refused; `model` can be the beginning of the file.
pub(super) fn refusal(model: &[u8]) -> String {
    match number(model) {
        Some(ML_PROGRAM) => "holds an ML Program, expected a package: save it as .mlpackage".into(),
        number => number.and_then(refusal_of).unwrap_or_else(|| {
            "holds no ML Program; convert the original model with coremltools".into()
        }),
    }
}

/// Why a model of this kind is refused; `None` if the number is not known.
pub(super) fn refusal_of(number: u32) -> Option<String> {
    let (_, kind) = KINDS.iter().find(|(n, _)| *n == number)?;
    let remedy = match number {
        200..=202 => {
            "save the ML Programs in it as packages: coremltools.models.MLModel(m, \
             weights_dir=model.weights_dir).save(..) for each m of the pipeline's models"
        }
        303 | 403 | 500 => "convert the original model with coremltools, convert_to=\"mlprogram\"",
        _ => "no ML Program computes it: run it with Core ML",
    };
    Some(format!("holds {kind}, expected an ML Program: {remedy}"))
}

/// The number of the first field that is a kind of model.
fn number(mut model: &[u8]) -> Option<u32> {
    let context = DecodeContext::default();
    while model.has_remaining() {
        let (number, wire) = decode_key(&mut model).ok()?;
        if number == ML_PROGRAM || KINDS.iter().any(|(n, _)| *n == number) {
            return Some(number);
        }
        skip_field(wire, number, &mut model, context.clone()).ok()?;
    }
    None
}

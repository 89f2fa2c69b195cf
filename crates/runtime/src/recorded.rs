//! What a contract or manifest says of the quality of a package: plain data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How far a package is from a reference, as `thane quality --record` measured it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// The program that measured it, such as `thane 0.1.0`.
    pub generator: String,
    /// The reference; of a path its last part.
    pub reference: String,
    /// Numerics of the package; the reference had f32.
    pub numerics: String,
    /// Tokens that were predicted, or texts that were embedded.
    pub samples: usize,
    /// What was measured, by name.
    pub measures: BTreeMap<String, Measure>,
    /// The relative error of the residual stream behind each layer; empty if it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_errors: Vec<f64>,
    /// Known texts with what the reference says of the next token; empty for embedding models,
    /// whose golden vectors are in a file of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goldens: Vec<GoldenLogits>,
}

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// The mean.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

/// A text, and what the reference says of the token that follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenLogits {
    /// The text.
    pub text: String,
    /// The likeliest tokens, the likeliest first.
    pub tokens: Vec<u32>,
    /// Natural logarithms of their probabilities.
    pub logprobs: Vec<f64>,
    /// KL divergence of the package from the reference over these tokens and all others together,
    /// with f32 for both.
    pub kl: f64,
}

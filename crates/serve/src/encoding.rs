//! How vectors are written in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use thane_engine::embed::output::Format;

/// `encoding_format`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VectorEncoding {
    /// Numbers.
    Float,
    /// The bytes of fp32 numbers, little-endian.
    Base64,
    /// Those of `thane embed --format int8`.
    Base64Int8,
    /// Those of `thane embed --format ubinary --packing lsb`.
    Base64Binary,
}

impl VectorEncoding {
    /// A vector in this encoding.
    pub fn write(self, row: &[f32]) -> Value {
        let format = match self {
            Self::Float => return json!(row),
            Self::Base64 => Format::Float32,
            Self::Base64Int8 => Format::Int8,
            Self::Base64Binary => Format::LsbUbinary,
        };
        let mut bytes = Vec::with_capacity(format.stored_bytes(row.len()));
        format.write(row, &mut bytes);
        json!(STANDARD.encode(bytes))
    }
}

/// Embedding objects of rows of `dim` elements, as OpenAI's API and Perplexity's have them.
pub(crate) fn objects(rows: &[f32], dim: usize, encoding: VectorEncoding) -> Vec<Value> {
    let rows = rows.chunks_exact(dim).enumerate();
    rows.map(|(index, row)| {
        let embedding = encoding.write(row);
        json!({"object": "embedding", "index": index, "embedding": embedding})
    })
    .collect()
}

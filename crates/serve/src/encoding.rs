//! How vectors are written in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};
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
    fn write(self, row: &[f32]) -> Written<'_> {
        let format = match self {
            Self::Float => return Written::Numbers(row),
            Self::Base64 => Format::Float32,
            Self::Base64Int8 => Format::Int8,
            Self::Base64Binary => Format::LsbUbinary,
        };
        let mut bytes = Vec::with_capacity(format.stored_bytes(row.len()));
        format.write(row, &mut bytes);
        Written::Text(STANDARD.encode(bytes))
    }
}

/// A vector as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Numbers(&'a [f32]),
    Text(String),
}

/// Embedding objects of rows of `dim` elements, as OpenAI's API and Perplexity's have them.
pub(crate) struct Objects<'a> {
    pub rows: &'a [f32],
    pub dim: usize,
    pub encoding: VectorEncoding,
}

impl Serialize for Objects<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.rows.chunks_exact(self.dim).enumerate();
        serializer.collect_seq(rows.map(|(index, row)| Object {
            object: "embedding",
            index,
            embedding: self.encoding.write(row),
        }))
    }
}

#[derive(Serialize)]
struct Object<'a> {
    object: &'static str,
    index: usize,
    embedding: Written<'a>,
}

/// A list with the model and the tokens of its inputs.
#[derive(Serialize)]
pub(crate) struct List<'a, T> {
    object: &'static str,
    data: T,
    model: &'a str,
    usage: ListUsage,
}

#[derive(Serialize)]
struct ListUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl<'a, T> List<'a, T> {
    pub fn new(data: T, model: &'a str, n_tokens: usize) -> Self {
        Self {
            object: "list",
            data,
            model,
            usage: ListUsage {
                prompt_tokens: n_tokens,
                total_tokens: n_tokens,
            },
        }
    }
}

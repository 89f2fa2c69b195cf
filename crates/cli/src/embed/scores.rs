//! Writes the scores of `thane rerank` as files, in the formats of vectors that fit them.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, FloatType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Serialize;
use serde_json::Value;
use thane_mil::types::DType;

use super::files::Kind;
use super::parquet::{Codec, IdKind, column, properties, write_ids};
use crate::exit::Failure;
use crate::{npy, out};

/// A text with its score.
#[derive(Serialize)]
pub struct Scored<'a> {
    /// Index of the text, from 0.
    pub index: usize,
    /// The text's id; null if its source has none.
    pub id: Option<&'a Value>,
    /// The sigmoid of the logit, or the logit, as the model's files say.
    pub score: f32,
    pub logit: f32,
    pub text: &'a str,
}

/// What a file says of itself.
pub struct Metadata<'a> {
    pub model: &'a str,
    pub query: &'a str,
}

/// Writes the rows, best first: `.jsonl` and `.parquet` with all fields; `.npy` has scores alone
/// [texts], in the order of the texts.
pub fn write(
    rows: &[Scored<'_>],
    metadata: &Metadata<'_>,
    kind: Kind,
    path: &Path,
    force: bool,
) -> Result<(), Failure> {
    out::write_with(path, force, |mut out| {
        let written = match kind {
            Kind::Npy => npy(rows, out),
            Kind::Parquet => parquet(rows, metadata, &mut out),
            Kind::Jsonl | Kind::Safetensors => jsonl(rows, out),
        };
        // An error of the system, such as a full disk, keeps its text.
        written.map_err(|e| e.downcast::<io::Error>().unwrap_or_else(io::Error::other))
    })
}

fn npy(rows: &[Scored<'_>], out: &mut dyn Write) -> anyhow::Result<()> {
    let mut scores = vec![0.0; rows.len()];
    for row in rows {
        scores[row.index] = row.score;
    }
    let bytes: Vec<u8> = scores.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(npy::write(out, DType::Fp32, &[rows.len()], &bytes)?)
}

fn jsonl(rows: &[Scored<'_>], out: &mut dyn Write) -> anyhow::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn parquet(
    rows: &[Scored<'_>],
    metadata: &Metadata<'_>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let kind = rows
        .iter()
        .fold(None, |kind, row| IdKind::with(kind, row.id));
    let schema = parse_message_type(&format!(
        "message scores {{ REQUIRED INT64 row; REQUIRED FLOAT score; REQUIRED FLOAT logit; \
         REQUIRED BYTE_ARRAY text (STRING); {} }}",
        IdKind::column(kind)
    ))?;
    let metadata = [("model", metadata.model), ("query", metadata.query)];
    let metadata = metadata.map(|(key, value)| KeyValue {
        key: key.to_owned(),
        value: Some(value.to_owned()),
    });
    let properties = properties(metadata.to_vec(), Codec::default())?.build();
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    let indices: Vec<i64> = rows.iter().map(|row| row.index as i64).collect();
    column::<Int64Type, _>(&mut group, &indices, None, None)?;
    let scores: Vec<f32> = rows.iter().map(|row| row.score).collect();
    column::<FloatType, _>(&mut group, &scores, None, None)?;
    let logits: Vec<f32> = rows.iter().map(|row| row.logit).collect();
    column::<FloatType, _>(&mut group, &logits, None, None)?;
    let texts: Vec<ByteArray> = rows.iter().map(|row| row.text.into()).collect();
    column::<ByteArrayType, _>(&mut group, &texts, None, None)?;
    if let Some(kind) = kind {
        let ids = rows.iter().map(|row| row.id.cloned().unwrap_or_default());
        write_ids(&mut group, kind, &ids.collect::<Vec<Value>>())?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

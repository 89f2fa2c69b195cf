//! Writes vectors as JSON text and as files.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use thane_engine::embed::output::Format;
use thane_mil::types::DType;

use super::parquet::Codec;
use super::records::Stored;
use super::table::Table;
use crate::exit::{Failure, Outcome};
use crate::small::refuse_named_pipe;
use crate::{npy, out};
use thane_mil::nearest::did_you_mean;

/// Extensions of files of vectors.
const KINDS: [&str; 5] = ["npy", "jsonl", "ndjson", "parquet", "safetensors"];

/// The format of a file of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Npy,
    Jsonl,
    Parquet,
    Safetensors,
}

impl Kind {
    /// The format by the extension of `path`. An array cannot hold several vectors per row
    /// (`is_ragged`).
    pub fn of(path: &Path, is_ragged: bool) -> anyhow::Result<Self> {
        let kind = Self::named(path).map_err(|near| {
            anyhow::anyhow!(
                "{}: vectors are written to .npy, .jsonl, .parquet and .safetensors{near}",
                path.display()
            )
        })?;
        refuse_named_pipe(path).with_context(|| path.display().to_string())?;
        anyhow::ensure!(
            kind != Self::Npy || !is_ragged,
            "{}: texts have several vectors each, which .npy cannot tell apart; .jsonl, .parquet and .safetensors can",
            path.display()
        );
        Ok(kind)
    }

    /// The format of a file of scores by the extension of `path`.
    pub fn of_scores(path: &Path) -> anyhow::Result<Self> {
        refuse_named_pipe(path).with_context(|| path.display().to_string())?;
        let kind = Self::named(path).unwrap_or(Self::Safetensors);
        anyhow::ensure!(
            kind != Self::Safetensors,
            "{}: scores are written to .jsonl, .parquet and .npy",
            path.display()
        );
        Ok(kind)
    }

    /// The format by the extension, or a hint at the one that is spelled most like it.
    fn named(path: &Path) -> Result<Self, String> {
        let extension = path.extension().and_then(|e| e.to_str());
        let extension = extension.unwrap_or_default().to_ascii_lowercase();
        Ok(match extension.as_str() {
            "npy" => Self::Npy,
            "jsonl" | "ndjson" => Self::Jsonl,
            "parquet" => Self::Parquet,
            "safetensors" => Self::Safetensors,
            other => return Err(did_you_mean(other, KINDS)),
        })
    }

    /// Whether the format can say that a text has no vector, where texts have several with
    /// `is_ragged`.
    pub fn has_nulls(self, is_ragged: bool) -> bool {
        self.has_ids() || is_ragged
    }

    /// Whether the format stores ids.
    pub fn has_ids(self) -> bool {
        matches!(self, Self::Jsonl | Self::Parquet)
    }
}

/// Refuses an output that replaces the model or a file of the texts.
pub fn check_out(out: &Path, force: bool, model: &str, files: &[&Path]) -> Outcome {
    out::check(out, force, &[files, &[Path::new(model)]].concat())
}

/// Writes the file. It gets its name when it is complete.
pub fn write(
    table: &Table<'_>,
    (kind, codec): (Kind, Codec),
    path: &Path,
    force: bool,
) -> Result<(), Failure> {
    out::write_with(path, force, |mut out| {
        let written = match kind {
            Kind::Npy => table.npy(out),
            Kind::Jsonl => table.jsonl(out),
            Kind::Parquet => super::parquet::write(table, codec, &mut out),
            Kind::Safetensors => table.safetensors(out),
        };
        // An error of the system, such as a full disk, keeps its text.
        written.map_err(|e| e.downcast::<io::Error>().unwrap_or_else(io::Error::other))
    })
}

impl Table<'_> {
    fn shape(&self) -> [u64; 2] {
        [
            self.journal.done().vectors,
            self.format.stored_len(self.dim) as u64,
        ]
    }

    fn npy(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let shape = self.shape().map(usize::try_from);
        npy::write_header(out, self.format.dtype(), &[shape[0]?, shape[1]?])?;
        self.each_row(&mut |row| Ok(out.write_all(&row.vectors)?))
    }

    fn jsonl(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        self.each_row(&mut |row| {
            serde_json::to_writer(
                &mut *out,
                &Line::of(self.format, self.dim, self.is_ragged, row),
            )?;
            Ok(out.write_all(b"\n")?)
        })
    }

    /// `embeddings`, and where rows are ragged `offsets`: row `i` has the vectors from `offsets[i]`
    /// to `offsets[i + 1]`.
    ///
    /// Source: the format's page in the safetensors repository. Offsets come first, as they are
    /// aligned to 8 bytes there.
    fn safetensors(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let [n_vectors, len] = self.shape();
        let n_offsets = if self.is_ragged { self.n_rows() + 1 } else { 0 };
        let stored_bytes = self.format.stored_bytes(self.dim) as u64;
        let (start, end) = (n_offsets * 8, n_offsets * 8 + n_vectors * stored_bytes);
        let mut header = serde_json::json!({
            "__metadata__": self.metadata(),
            "embeddings": {"dtype": safetensors_dtype(self.format), "shape": [n_vectors, len], "data_offsets": [start, end]},
        });
        if self.is_ragged {
            header["offsets"] = serde_json::json!({"dtype": "I64", "shape": [n_offsets], "data_offsets": [0, start]});
        }
        let mut header = header.to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        if self.is_ragged {
            let mut offset = 0u64;
            out.write_all(&offset.to_le_bytes())?;
            self.each_row(&mut |row| {
                offset += row.vectors.len() as u64 / stored_bytes;
                Ok(out.write_all(&offset.to_le_bytes())?)
            })?;
        }
        self.each_row(&mut |row| Ok(out.write_all(&row.vectors)?))
    }
}

fn safetensors_dtype(format: Format) -> &'static str {
    match format {
        Format::Float32 => "F32",
        Format::Float16 => "F16",
        _ if format.dtype() == DType::Int8 => "I8",
        _ => "U8",
    }
}

/// The vectors of a row as JSON: an array of numbers, or an array of arrays if a row has several.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Numbers {
    Floats(Vec<f32>),
    Integers(Vec<i32>),
    Several(Vec<Numbers>),
    /// The row has no text.
    Null,
}

/// A line of JSON: the vectors, or an object with id and vectors.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line<'a> {
    Vectors(Numbers),
    Named { id: &'a Value, embedding: Numbers },
}

impl<'a> Line<'a> {
    pub fn of(format: Format, dim: usize, is_ragged: bool, row: &'a Stored) -> Self {
        let embedding = numbers(format, dim, is_ragged, &row.vectors);
        match &row.id {
            Some(id) => Self::Named { id, embedding },
            None => Self::Vectors(embedding),
        }
    }
}

/// Decodes the vectors of a row.
pub fn numbers(format: Format, dim: usize, is_ragged: bool, row: &[u8]) -> Numbers {
    if row.is_empty() {
        return Numbers::Null;
    }
    let vector = |stored: &[u8]| {
        let values = format.read(stored);
        match format {
            Format::Float32 | Format::Float16 => Numbers::Floats(values),
            _ => Numbers::Integers(values.into_iter().map(|v| v as i32).collect()),
        }
    };
    if is_ragged {
        Numbers::Several(
            row.chunks_exact(format.stored_bytes(dim))
                .map(vector)
                .collect(),
        )
    } else {
        vector(row)
    }
}

//! Writes vectors as Parquet files.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, FloatType,
    Int32Type, Int64Type,
};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use serde_json::Value;
use thane_mil::types::DType;

use crate::embed::records::Stored;
use crate::embed::table::Table;

/// Most elements of a row group, which is in memory as a whole.
const GROUP_LEN: usize = 1 << 22;

/// How ids are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    Integers,
    Texts,
}

impl IdKind {
    /// The kind for all rows: integers if all ids are. `None` if rows have no ids.
    fn of(table: &Table<'_>) -> anyhow::Result<Option<Self>> {
        let mut kind = None;
        table.each_row(&mut |row| {
            kind = Self::with(kind, row.id.as_ref());
            Ok(())
        })?;
        Ok(kind)
    }

    /// The kind for rows of which those before have `kind`, and the next one has this id.
    pub fn with(kind: Option<Self>, id: Option<&Value>) -> Option<Self> {
        match id {
            Some(id) if id.is_i64() || id.is_null() => kind.or(Some(Self::Integers)),
            Some(_) => Some(Self::Texts),
            None => kind,
        }
    }

    /// The column of the schema.
    pub fn column(kind: Option<Self>) -> &'static str {
        match kind {
            Some(Self::Integers) => "OPTIONAL INT64 id;",
            Some(Self::Texts) => "OPTIONAL BYTE_ARRAY id (STRING);",
            None => "",
        }
    }
}

/// How pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Codec {
    #[default]
    Zstd,
    None,
}

/// Writes a row for each vector, with the columns `row` (number of the text, from 0), `embedding`
/// (a list) and, if rows have ids, `id`. A text without a vector has a row with null.
///
/// Lists of integers are what pandas, polars and DuckDB read as vectors; they have bytes for binary
/// columns. Parquet has no type of a byte, so a plain list of int8 takes four bytes for each: there
/// are at most 256 different ones, so a dictionary takes one, or a bit if there are two.
pub fn write(table: &Table<'_>, codec: Codec, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let element = match table.format.dtype() {
        DType::Fp32 => "FLOAT element",
        DType::Fp16 => "FIXED_LEN_BYTE_ARRAY(2) element (FLOAT16)",
        DType::Int8 => "INT32 element (INTEGER(8,true))",
        _ => "INT32 element (INTEGER(8,false))",
    };
    let id_kind = IdKind::of(table)?;
    let repetition = if table.has_nulls() {
        "OPTIONAL"
    } else {
        "REQUIRED"
    };
    let id = IdKind::column(id_kind);
    let schema = parse_message_type(&format!(
        "message embeddings {{ REQUIRED INT64 row; {repetition} GROUP embedding (LIST) \
         {{ REPEATED GROUP list {{ REQUIRED {element}; }} }} {id} }}"
    ))?;
    let metadata = table.metadata().into_iter().map(|(key, value)| {
        let value = value.as_str().map(str::to_owned);
        KeyValue { key, value }
    });
    let is_float = matches!(table.format.dtype(), DType::Fp32 | DType::Fp16);
    let elements = ColumnPath::new(["embedding", "list", "element"].map(str::to_owned).to_vec());
    let properties = properties(metadata.collect(), codec)?
        .set_column_encoding("row".into(), Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled(elements, !is_float)
        .build();
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let vector_bytes = table.format.stored_bytes(table.dim);
    let mut group = Group::default();
    let mut held = table.journal.budget().reserve(0, String::new)?;
    table.each_row(&mut |row| {
        // A row has its id once for each of its vectors, and the writer copies ids twice.
        let n_ids = (row.vectors.len() / vector_bytes).max(1);
        let n_bytes = id_bytes(row).saturating_mul(n_ids).saturating_mul(3);
        held.grow(n_bytes, || "the ids of a Parquet file".to_owned())?;
        group.add(row, vector_bytes, id_kind);
        if group.is_full() {
            group.write(file.next_row_group()?, table, id_kind)?;
            held.shrink(held.bytes());
        }
        Ok(())
    })?;
    if !group.rows.is_empty() {
        group.write(file.next_row_group()?, table, id_kind)?;
    }
    file.close()?;
    Ok(())
}

/// Bytes of the id of a row, if it is a text.
fn id_bytes(row: &Stored) -> usize {
    row.id.as_ref().and_then(Value::as_str).map_or(0, str::len)
}

/// How files are written, and what they say of themselves.
pub fn properties(
    metadata: Vec<KeyValue>,
    codec: Codec,
) -> anyhow::Result<WriterPropertiesBuilder> {
    /// Level 3, zstd's default: higher ones save little of vectors, whose bytes are nearly random.
    const LEVEL: i32 = 3;
    let codec = match codec {
        Codec::Zstd => Compression::ZSTD(ZstdLevel::try_new(LEVEL)?),
        Codec::None => Compression::UNCOMPRESSED,
    };
    Ok(WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_key_value_metadata(Some(metadata)))
}

/// The vectors of the next row group.
#[derive(Default)]
struct Group {
    rows: Vec<i64>,
    /// Whether each row has a vector.
    has_vector: Vec<bool>,
    stored: Vec<u8>,
    /// An id per vector, if rows have ids.
    ids: Vec<Value>,
    id_bytes: usize,
}

impl Group {
    /// Adds the vectors of a text, or a row without one.
    fn add(&mut self, row: &Stored, vector_bytes: usize, id_kind: Option<IdKind>) {
        let has_vector = !row.vectors.is_empty();
        for _ in 0..(row.vectors.len() / vector_bytes).max(1) {
            self.rows.push(row.index.cast_signed());
            self.has_vector.push(has_vector);
            self.ids
                .extend(id_kind.map(|_| row.id.clone().unwrap_or_default()));
            self.id_bytes += id_bytes(row);
        }
        self.stored.extend_from_slice(&row.vectors);
    }

    fn is_full(&self) -> bool {
        self.stored.len() + self.id_bytes + size_of_val(&self.rows[..]) >= GROUP_LEN
    }

    /// Writes the row group and clears it.
    fn write<W: Write + Send>(
        &mut self,
        mut to: SerializedRowGroupWriter<'_, W>,
        table: &Table<'_>,
        id_kind: Option<IdKind>,
    ) -> anyhow::Result<()> {
        column::<Int64Type, _>(&mut to, &self.rows, None, None)?;
        self.write_vectors(&mut to, table)?;
        if let Some(kind) = id_kind {
            write_ids(&mut to, kind, &self.ids)?;
        }
        to.close()?;
        *self = Self::default();
        Ok(())
    }

    fn write_vectors<W: Write + Send>(
        &self,
        to: &mut SerializedRowGroupWriter<'_, W>,
        table: &Table<'_>,
    ) -> anyhow::Result<()> {
        let (format, len) = (table.format, table.format.stored_len(table.dim));
        match format.dtype() {
            DType::Fp32 => {
                self.write_lists::<FloatType, _>(to, &format.read(&self.stored), len, table)
            }
            DType::Fp16 => {
                let halves = self.stored.chunks_exact(2);
                let halves = halves.map(|half| FixedLenByteArray::from(half.to_vec()));
                let halves: Vec<_> = halves.collect();
                self.write_lists::<FixedLenByteArrayType, _>(to, &halves, len, table)
            }
            _ => {
                let integers = format.read(&self.stored).into_iter().map(|v| v as i32);
                let integers: Vec<_> = integers.collect();
                self.write_lists::<Int32Type, _>(to, &integers, len, table)
            }
        }
    }

    /// Writes a column of lists of `len` elements, or null where a row has no vector.
    fn write_lists<T: DataType, W: Write + Send>(
        &self,
        to: &mut SerializedRowGroupWriter<'_, W>,
        values: &[T::T],
        len: usize,
        table: &Table<'_>,
    ) -> anyhow::Result<()> {
        // The definition level counts what may be absent and is there: the list if it is optional,
        // and its elements. All but the first of a list have repetition level 1.
        let is_there = 1 + i16::from(table.has_nulls());
        let (mut defined, mut repeats) = (Vec::new(), Vec::new());
        for has_vector in &self.has_vector {
            let n = if *has_vector { len } else { 1 };
            defined.resize(defined.len() + n, if *has_vector { is_there } else { 0 });
            repeats.push(0);
            repeats.resize(defined.len(), 1);
        }
        column::<T, W>(to, values, Some(&defined), Some(&repeats))
    }
}

/// Writes the next column: the rows that are `defined`, and lists as `repeats` tells them.
pub fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    defined: Option<&[i16]>,
    repeats: Option<&[i16]>,
) -> anyhow::Result<()> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, defined, repeats)?;
        column.close()?;
    }
    Ok(())
}

pub fn write_ids<W: Write + Send>(
    to: &mut SerializedRowGroupWriter<'_, W>,
    kind: IdKind,
    ids: &[Value],
) -> anyhow::Result<()> {
    let defined: Vec<i16> = ids.iter().map(|id| i16::from(!id.is_null())).collect();
    match kind {
        IdKind::Integers => {
            let values: Vec<i64> = ids.iter().filter_map(Value::as_i64).collect();
            column::<Int64Type, _>(to, &values, Some(&defined), None)
        }
        IdKind::Texts => {
            let text = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            let texts = ids.iter().filter(|id| !id.is_null());
            let texts: Vec<ByteArray> = texts.map(|id| text(id).into_bytes().into()).collect();
            column::<ByteArrayType, _>(to, &texts, Some(&defined), None)
        }
    }
}

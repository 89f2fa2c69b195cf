//! Writes vectors as Parquet files.

use std::io::Write;
use std::sync::Arc;

use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, FloatType,
    Int32Type, Int64Type,
};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use thane_engine::embed::output::Format;
use thane_mil::types::DType;

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

/// Writes a row for each vector, with the columns `row` (number of the text, from 0), `embedding`
/// (a list) and, if rows have ids, `id`.
pub fn write(table: &Table<'_>, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let element = match table.format.dtype() {
        DType::Fp32 => "FLOAT element",
        DType::Fp16 => "FIXED_LEN_BYTE_ARRAY(2) element (FLOAT16)",
        DType::Int8 => "INT32 element (INTEGER(8,true))",
        _ => "INT32 element (INTEGER(8,false))",
    };
    let id_kind = IdKind::of(table)?;
    let id = IdKind::column(id_kind);
    let schema = parse_message_type(&format!(
        "message embeddings {{ REQUIRED INT64 row; REQUIRED GROUP embedding (LIST) \
         {{ REPEATED GROUP list {{ REQUIRED {element}; }} }} {id} }}"
    ))?;
    let metadata = table.metadata().into_iter().map(|(key, value)| {
        let value = value.as_str().map(str::to_owned);
        KeyValue { key, value }
    });
    let properties = properties(metadata.collect());
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let vector_bytes = table.format.stored_bytes(table.dim);
    let (mut group, mut row_idx) = (Group::default(), 0);
    table.each_row(&mut |row| {
        for vector in row.vectors.chunks_exact(vector_bytes) {
            group.rows.push(row_idx);
            group.stored.extend_from_slice(vector);
            group
                .ids
                .extend(id_kind.map(|_| row.id.clone().unwrap_or_default()));
            group.id_bytes += row.id.as_ref().and_then(Value::as_str).map_or(0, str::len);
        }
        row_idx += 1;
        if group.stored.len() + group.id_bytes >= GROUP_LEN {
            group.write(file.next_row_group()?, table, id_kind)?;
        }
        Ok(())
    })?;
    if !group.rows.is_empty() {
        group.write(file.next_row_group()?, table, id_kind)?;
    }
    file.close()?;
    Ok(())
}

/// How files are written, and what they say of themselves.
pub fn properties(metadata: Vec<KeyValue>) -> WriterProperties {
    WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_key_value_metadata(Some(metadata))
        .build()
}

/// The vectors of the next row group.
#[derive(Default)]
struct Group {
    rows: Vec<i64>,
    stored: Vec<u8>,
    /// An id per vector, if rows have ids.
    ids: Vec<Value>,
    id_bytes: usize,
}

impl Group {
    /// Writes the row group and clears it.
    fn write<W: Write + Send>(
        &mut self,
        mut to: SerializedRowGroupWriter<'_, W>,
        table: &Table<'_>,
        id_kind: Option<IdKind>,
    ) -> anyhow::Result<()> {
        column::<Int64Type, _>(&mut to, &self.rows, None, None)?;
        self.write_vectors(&mut to, table.format, table.dim)?;
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
        format: Format,
        dim: usize,
    ) -> anyhow::Result<()> {
        let len = format.stored_len(dim);
        match format.dtype() {
            DType::Fp32 => write_lists::<FloatType, _>(to, &format.read(&self.stored), len),
            DType::Fp16 => {
                let halves = self.stored.chunks_exact(2);
                let halves = halves.map(|half| FixedLenByteArray::from(half.to_vec()));
                write_lists::<FixedLenByteArrayType, _>(to, &halves.collect::<Vec<_>>(), len)
            }
            _ => {
                let integers = format.read(&self.stored).into_iter().map(|v| v as i32);
                write_lists::<Int32Type, _>(to, &integers.collect::<Vec<_>>(), len)
            }
        }
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

/// Writes a column of lists of `len` elements.
fn write_lists<T: DataType, W: Write + Send>(
    to: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    len: usize,
) -> anyhow::Result<()> {
    // Elements have definition level 1; all but the first of a list have repetition level 1.
    let defined = vec![1; values.len()];
    let repeats: Vec<i16> = (0..values.len())
        .map(|i| i16::from(!i.is_multiple_of(len)))
        .collect();
    column::<T, W>(to, values, Some(&defined), Some(&repeats))
}

//! Texts from Parquet files, and vectors into them.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use parquet::basic::Compression;
use parquet::data_type::{DataType, FixedLenByteArray, FixedLenByteArrayType, FloatType, Int32Type, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row as Record};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use thane_engine::embed::output::Format;
use thane_mil::types::DType;

use super::files::Table;
use super::rows::{Row, Rows};

/// Elements of a row group at most: they are held at once.
const GROUP_LEN: usize = 1 << 22;

/// The texts of a column.
pub fn rows<'a>(path: &'a Path, column: &'a str) -> anyhow::Result<Rows<'a>> {
    let in_file = || path.display().to_string();
    let reader = SerializedFileReader::new(File::open(path).with_context(in_file)?).with_context(in_file)?;
    let schema = reader.metadata().file_metadata().schema();
    let names: Vec<&str> = schema.get_fields().iter().map(|f| f.name()).collect();
    let field = schema.get_fields().iter().find(|f| f.name() == column);
    let field = field.with_context(|| {
        format!("{}: it has no column `{column}`, it has {}; --field NAME names another", in_file(), names.join(", "))
    })?;
    let metadata = reader.metadata();
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let odd = chunks.filter(|c| c.column_path().parts().first().is_some_and(|name| name == column));
    let odd = odd.map(|c| c.compression()).find(|c| !is_known(*c));
    if let Some(codec) = odd {
        anyhow::bail!(
            "{}: the pages of `{column}` are compressed with {codec}; write the file with snappy, gzip or lz4",
            in_file()
        );
    }
    let only = Type::group_type_builder(schema.name()).with_fields(vec![Arc::clone(field)]).build()?;
    let records = RowIter::from_file_into(Box::new(reader)).project(Some(only)).with_context(in_file)?;
    let mut failed = false;
    let texts = records.zip(1..).map_while(move |(record, number)| {
        if failed {
            return None;
        }
        // What is behind a page that cannot be read is not known.
        failed = record.is_err();
        let text = record.map_err(anyhow::Error::from).and_then(|record| text(&record, column));
        let row = text.map(|text| Row { number, texts: vec![text] });
        Some(row.map_err(|e| e.context(format!("{}, row {number}", path.display()))))
    });
    Ok(Box::new(texts))
}

/// Whether the features of the crate that are on can unpack it.
fn is_known(codec: Compression) -> bool {
    use Compression::{GZIP, LZ4, LZ4_RAW, SNAPPY, UNCOMPRESSED};
    matches!(codec, UNCOMPRESSED | SNAPPY | GZIP(_) | LZ4 | LZ4_RAW)
}

fn text(record: &Record, column: &str) -> anyhow::Result<String> {
    match record.get_column_iter().next() {
        Some((_, Field::Str(text))) => Ok(text.clone()),
        // A column that is not said to be text may be.
        Some((_, Field::Bytes(bytes))) => Ok(String::from_utf8(bytes.data().to_vec())?),
        Some((_, Field::Null)) | None => anyhow::bail!("`{column}` is null, a string is due"),
        Some((_, other)) => anyhow::bail!("`{column}` is {other}, a string is due"),
    }
}

/// Write a row for each vector: `row`, the text that it is of, from 0, and `embedding`, a list.
pub fn write(table: &Table<'_>, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let element = match table.format.dtype() {
        DType::Fp32 => "FLOAT element",
        DType::Fp16 => "FIXED_LEN_BYTE_ARRAY(2) element (FLOAT16)",
        DType::Int8 => "INT32 element (INTEGER(8,true))",
        _ => "INT32 element (INTEGER(8,false))",
    };
    let schema = parse_message_type(&format!(
        "message embeddings {{ REQUIRED INT64 row; REQUIRED GROUP embedding (LIST) \
         {{ REPEATED GROUP list {{ REQUIRED {element}; }} }} }}"
    ))?;
    let metadata = table.metadata().into_iter().map(|(key, value)| {
        let value = value.as_str().map(str::to_owned);
        KeyValue { key, value }
    });
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_key_value_metadata(Some(metadata.collect()))
        .build();
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let vector_bytes = table.format.stored_bytes(table.dim);
    let (mut group, mut row_idx) = (Group::default(), 0);
    table.each_row(&mut |row| {
        for vector in row.chunks_exact(vector_bytes) {
            group.rows.push(row_idx);
            group.stored.extend_from_slice(vector);
        }
        row_idx += 1;
        if group.stored.len() >= GROUP_LEN {
            group.write(file.next_row_group()?, table)?;
        }
        Ok(())
    })?;
    if !group.rows.is_empty() {
        group.write(file.next_row_group()?, table)?;
    }
    file.close()?;
    Ok(())
}

/// Vectors on their way to a row group.
#[derive(Default)]
struct Group {
    rows: Vec<i64>,
    stored: Vec<u8>,
}

impl Group {
    /// Write all, and hold nothing then.
    fn write<W: Write + Send>(
        &mut self,
        mut to: SerializedRowGroupWriter<'_, W>,
        table: &Table<'_>,
    ) -> anyhow::Result<()> {
        if let Some(mut column) = to.next_column()? {
            column.typed::<Int64Type>().write_batch(&self.rows, None, None)?;
            column.close()?;
        }
        if let Some(column) = to.next_column()? {
            self.write_vectors(column, table.format, table.dim)?;
        }
        to.close()?;
        self.rows.clear();
        self.stored.clear();
        Ok(())
    }

    fn write_vectors(&self, column: SerializedColumnWriter<'_>, format: Format, dim: usize) -> anyhow::Result<()> {
        let len = format.stored_len(dim);
        let integers = || format.read(&self.stored).into_iter().map(|v| v as i32).collect::<Vec<_>>();
        match format.dtype() {
            DType::Fp32 => write_lists::<FloatType>(column, &format.read(&self.stored), len),
            DType::Fp16 => {
                let halves = self.stored.chunks_exact(2).map(|half| FixedLenByteArray::from(half.to_vec()));
                write_lists::<FixedLenByteArrayType>(column, &halves.collect::<Vec<_>>(), len)
            }
            _ => write_lists::<Int32Type>(column, &integers(), len),
        }
    }
}

/// Write a column of lists of `len` elements.
fn write_lists<T: DataType>(mut column: SerializedColumnWriter<'_>, values: &[T::T], len: usize) -> anyhow::Result<()> {
    // An element is defined at level 1, and all but the first of a list repeat at level 1.
    let defined = vec![1; values.len()];
    let repeats: Vec<i16> = (0..values.len()).map(|i| i16::from(!i.is_multiple_of(len))).collect();
    column.typed::<T>().write_batch(values, Some(&defined), Some(&repeats))?;
    Ok(column.close()?)
}

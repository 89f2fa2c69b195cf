//! Reads texts from a column of strings in any encoding: plain, large, dictionary or views.

use std::cell::Cell;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context, bail, ensure};
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::column::page::PageReader;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::ColumnDescPtr;
use serde_json::Value;
use thane_mil::budget::{Budget, OverBudget, Reservation};
use thane_mil::package::open_regular;

use super::pages::{BATCH_LEN, Pages, is_known};
use super::thrift::Compact;
use crate::meter::too_long;
use crate::row::{Fields, MAX_ROW_BYTES, Row};

/// Upper bound of the bytes in memory of a struct of the metadata.
const STRUCT_BYTES: usize = 1024;
/// Deepest nesting of groups in a schema. Building a schema is recursive.
const MAX_SCHEMA_DEPTH: usize = 64;

/// The rows of a file with their numbers from 1, and why its ids are not kept, if it has some that
/// are not.
pub fn rows(
    path: &Path,
    fields: &Fields,
    budget: &Budget,
) -> anyhow::Result<(Rows, Option<String>)> {
    let (metadata, metadata_held) = guarded(|| metadata(path, budget))?;
    let names: Vec<String> = metadata
        .file_metadata()
        .schema()
        .get_fields()
        .iter()
        .map(|f| f.name().to_owned())
        .collect();
    let text = column(&metadata, &fields.text)?
        .ok_or_else(|| Fields::missing("column", &fields.text, "--field", &names))?
        .of_texts(&metadata)?;
    let (id, lost) = match fields.id_name() {
        Some(name) => id_column(&metadata, name, fields, &names)?,
        None => (None, None),
    };
    let held = budget.reserve(0, String::new)?;
    let rows = Rows {
        path: path.to_owned(),
        metadata,
        text,
        id,
        takes_null: fields.takes_null,
        group: 0,
        columns: None,
        left: 0,
        number: 0,
        failed: false,
        budget: budget.clone(),
        held,
        _metadata_held: metadata_held,
    };
    Ok((rows, lost))
}

/// The column of ids; `None` if it was not asked for and is missing, or has a type that is no id,
/// and then why.
fn id_column(
    metadata: &ParquetMetaData,
    name: &str,
    fields: &Fields,
    names: &[String],
) -> anyhow::Result<(Option<Column>, Option<String>)> {
    if !names.iter().any(|other| other == name) {
        return match fields.needs_id() {
            true => Err(Fields::missing("column", name, "--id", names)),
            false => Ok((None, None)),
        };
    }
    let found = column(metadata, name).and_then(|found| {
        let found = found.with_context(|| format!("it has no column `{name}`"))?;
        found.of_ids(metadata)
    });
    match found {
        Err(e) if fields.needs_id() => Err(e),
        Err(e) => Ok((None, Some(format!("{e:#}")))),
        Ok(found) => Ok((Some(found), None)),
    }
}

/// The metadata of the file, and its reserved memory.
fn metadata(path: &Path, budget: &Budget) -> anyhow::Result<(ParquetMetaData, Reservation)> {
    let what = || format!("the metadata of {}", path.display());
    let mut file = open_regular(path)?;
    let len = file.metadata()?.len();
    let mut tail = [0; 8];
    ensure!(len >= 12, "it is no Parquet file: it has {len} bytes");
    file.seek(SeekFrom::End(-8))?;
    file.read_exact(&mut tail)?;
    let [n, magic] = [&tail[..4], &tail[4..]];
    ensure!(
        magic != b"PARE",
        "its metadata is encrypted, which is not read"
    );
    ensure!(
        magic == b"PAR1",
        "it is no Parquet file, or its end is missing: it does not end with PAR1"
    );
    let n = n.first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
    ensure!(
        u64::from(n) <= len - 12,
        "its metadata has {n} bytes, the file has {len}"
    );
    let mut held = budget.reserve(n as usize * 2, what)?;
    let mut bytes = vec![0; n as usize];
    file.seek(SeekFrom::End(-8 - i64::from(n)))?;
    file.read_exact(&mut bytes)?;
    let census = Compact::new(&bytes).census().context("its metadata")?;
    ensure!(
        census.depth <= MAX_SCHEMA_DEPTH,
        "its schema has groups {} deep, {MAX_SCHEMA_DEPTH} are read",
        census.depth
    );
    held.grow(census.n_structs.saturating_mul(STRUCT_BYTES), what)?;
    let metadata = ParquetMetaDataReader::decode_metadata(&bytes).context("its metadata")?;
    let n_rows = metadata.row_groups().iter().map(|group| group.num_rows());
    let n_rows = n_rows.fold(0, i64::saturating_add);
    let expected = metadata.file_metadata().num_rows();
    ensure!(
        n_rows == expected,
        "its metadata is damaged: expected {expected} rows in its row groups, found {n_rows}"
    );
    Ok((metadata, held))
}

/// A top-level column.
struct Column {
    idx: usize,
    descr: ColumnDescPtr,
}

/// The column of this name. A group of that name is an error.
fn column(metadata: &ParquetMetaData, name: &str) -> anyhow::Result<Option<Column>> {
    let file = metadata.file_metadata();
    let fields = file.schema().get_fields().iter();
    match fields.filter(|field| field.name() == name).count() {
        0 => return Ok(None),
        1 => {}
        _ => return Err(Fields::twice("column", name)),
    }
    let columns = file.schema_descr().columns().iter().enumerate();
    let found = columns
        .into_iter()
        .find(|(_, c)| c.path().parts() == [name] && c.max_rep_level() == 0);
    let (idx, descr) = found.with_context(|| {
        format!("expected column `{name}` to hold strings, found a list or a group")
    })?;
    Ok(Some(Column {
        idx,
        descr: descr.clone(),
    }))
}

impl Column {
    fn of_texts(self, metadata: &ParquetMetaData) -> anyhow::Result<Self> {
        let found = self.descr.physical_type();
        ensure!(
            found == Physical::BYTE_ARRAY,
            "expected column `{}` to hold strings, found {found}",
            self.descr.name()
        );
        self.unpackable(metadata)
    }

    /// Strings and integers.
    fn of_ids(self, metadata: &ParquetMetaData) -> anyhow::Result<Self> {
        use ConvertedType as Old;
        let is_named = match self.descr.logical_type_ref() {
            Some(
                LogicalType::String
                | LogicalType::Enum
                | LogicalType::Json
                | LogicalType::Integer(_),
            ) => true,
            Some(_) => false,
            None => !matches!(
                self.descr.converted_type(),
                Old::DECIMAL
                    | Old::DATE
                    | Old::TIME_MILLIS
                    | Old::TIME_MICROS
                    | Old::TIMESTAMP_MILLIS
                    | Old::TIMESTAMP_MICROS
                    | Old::BSON
                    | Old::INTERVAL
            ),
        };
        let is_stored = matches!(
            self.descr.physical_type(),
            Physical::BYTE_ARRAY | Physical::INT32 | Physical::INT64
        );
        ensure!(
            is_named && is_stored,
            "column `{}` is {}, and ids are strings or integers; cast it, or --id \"\" for none",
            self.descr.name(),
            self.kind()
        );
        self.unpackable(metadata)
    }

    fn unpackable(self, metadata: &ParquetMetaData) -> anyhow::Result<Self> {
        let chunks = metadata
            .row_groups()
            .iter()
            .filter_map(|group| group.columns().get(self.idx));
        match chunks
            .map(|chunk| chunk.compression())
            .find(|codec| !is_known(*codec))
        {
            Some(codec) => bail!(
                "the pages of `{}` are compressed with {codec}; write the file with zstd, snappy, gzip or lz4",
                self.descr.name()
            ),
            None => Ok(self),
        }
    }

    /// The type of the column in a word, such as `TIMESTAMP`.
    fn kind(&self) -> String {
        let named = match self.descr.logical_type_ref() {
            Some(LogicalType::Timestamp(_)) => "TIMESTAMP",
            Some(LogicalType::Decimal(_)) => "DECIMAL",
            Some(LogicalType::Date) => "DATE",
            Some(LogicalType::Time(_)) => "TIME",
            Some(LogicalType::Uuid) => "UUID",
            Some(LogicalType::Float16) => "FLOAT16",
            Some(LogicalType::Bson) => "BSON",
            _ => match self.descr.converted_type() {
                ConvertedType::NONE => return self.descr.physical_type().to_string(),
                converted => return converted.to_string(),
            },
        };
        named.to_owned()
    }

    /// Whether the column has unsigned integers.
    fn is_unsigned(&self) -> bool {
        use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
        matches!(self.descr.logical_type_ref(), Some(LogicalType::Integer(kind)) if !kind.is_signed)
            || matches!(
                self.descr.converted_type(),
                UINT_8 | UINT_16 | UINT_32 | UINT_64
            )
    }
}

/// The rows of a file.
pub struct Rows {
    path: PathBuf,
    metadata: ParquetMetaData,
    text: Column,
    id: Option<Column>,
    takes_null: bool,
    /// Index of the next row group.
    group: usize,
    /// Columns of the current row group, and the number of its remaining rows.
    columns: Option<(Values<ByteArrayType>, Option<Ids>)>,
    left: u64,
    number: u64,
    failed: bool,
    budget: Budget,
    /// Memory of the current row.
    held: Reservation,
    _metadata_held: Reservation,
}

/// A value, or `None` if it is null.
type Field<T> = Option<T>;

impl Rows {
    /// Text and id of the next row; `None` at the end.
    fn fields(&mut self) -> anyhow::Result<Option<(Field<ByteArray>, Option<Value>)>> {
        while self.left == 0 {
            if self.group == self.metadata.num_row_groups() {
                return Ok(None);
            }
            self.open_group()?;
        }
        self.left -= 1;
        let (texts, ids) = self.columns.as_mut().context("no row group is open")?;
        let (held, path) = (&mut self.held, &self.path);
        let mut hold = |n: usize| held.grow(n, || row_of(path));
        let text = texts
            .next()
            .with_context(|| format!("column `{}`", self.text.descr.name()))?;
        let id = ids
            .as_mut()
            .map(|ids| ids.next(&mut hold))
            .transpose()
            .context("the column of ids")?;
        Ok(Some((text, id)))
    }

    fn open_group(&mut self) -> anyhow::Result<()> {
        let group = self.metadata.row_group(self.group);
        self.left =
            u64::try_from(group.num_rows()).context("a row group has fewer rows than none")?;
        self.columns = None;
        let pages = |column: &Column| -> anyhow::Result<(Box<dyn PageReader>, ColumnDescPtr)> {
            let chunk = group
                .columns()
                .get(column.idx)
                .context("a row group lacks a column")?;
            let kind = chunk.column_descr().physical_type();
            ensure!(
                kind == column.descr.physical_type(),
                "a row group has the column as {kind}"
            );
            ensure!(
                chunk.num_values() == group.num_rows(),
                "a row group is damaged: expected {} values of `{}`, one for each row, found {}",
                group.num_rows(),
                column.descr.name(),
                chunk.num_values()
            );
            let file = open_regular(&self.path)?;
            Ok((
                Box::new(Pages::new(file, chunk, &self.budget)?),
                column.descr.clone(),
            ))
        };
        let texts = Values::new(pages(&self.text)?);
        let ids = self
            .id
            .as_ref()
            .map(|id| Ok::<_, anyhow::Error>(Ids::new(id, pages(id)?)))
            .transpose()?;
        self.columns = Some((texts, ids));
        self.group += 1;
        Ok(())
    }

    fn row(&mut self, text: Field<ByteArray>, id: Option<Value>) -> anyhow::Result<Row> {
        let column = self.text.descr.name();
        if text.is_none() && self.takes_null {
            return Ok(Row::new(self.number, Vec::new(), id));
        }
        let text =
            text.with_context(|| format!("expected `{column}` to be a string, found null"))?;
        ensure!(text.len() as u64 <= MAX_ROW_BYTES, too_long());
        self.held
            .grow(text.len().saturating_mul(3), || row_of(&self.path))?;
        let text =
            std::str::from_utf8(text.data()).with_context(|| format!("`{column}` is no UTF-8"))?;
        Ok(Row::new(self.number, vec![text.to_owned()], id))
    }
}

/// What memory of a row is for.
fn row_of(path: &Path) -> String {
    format!("a row of {}", path.display())
}

impl Iterator for Rows {
    type Item = (u64, anyhow::Result<Row>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.held.shrink(self.held.bytes());
        self.number += 1;
        let row = match guarded(|| self.fields()) {
            Ok(None) => return None,
            Ok(Some((text, id))) => self.row(text, id),
            Err(e) => {
                // After a page that cannot be read, reading ends.
                self.failed = true;
                Err(e)
            }
        };
        self.failed |= row
            .as_ref()
            .is_err_and(|e| e.chain().any(|cause| cause.is::<OverBudget>()));
        Some((self.number, row))
    }
}

/// The values of a column, read in batches.
struct Values<T: DataType> {
    from: ColumnReaderImpl<T>,
    is_optional: bool,
    defined: Vec<i16>,
    values: std::vec::IntoIter<T::T>,
    at: usize,
}

impl<T: DataType> Values<T> {
    fn new((pages, descr): (Box<dyn PageReader>, ColumnDescPtr)) -> Self {
        let is_optional = descr.max_def_level() > 0;
        let from = ColumnReaderImpl::new(descr, pages);
        Self {
            from,
            is_optional,
            defined: Vec::new(),
            values: Vec::new().into_iter(),
            at: 0,
        }
    }

    fn next(&mut self) -> anyhow::Result<Field<T::T>> {
        if self.at == self.defined.len() {
            let mut values = Vec::with_capacity(BATCH_LEN);
            self.defined.clear();
            let (n, _, _) =
                self.from
                    .read_records(BATCH_LEN, Some(&mut self.defined), None, &mut values)?;
            ensure!(n > 0, "it has fewer values than its row group has rows");
            if !self.is_optional {
                self.defined.resize(n, 1);
            }
            (self.values, self.at) = (values.into_iter(), 0);
        }
        let is_defined = self.defined[self.at] > 0;
        self.at += 1;
        match is_defined {
            true => Ok(Some(
                self.values
                    .next()
                    .context("it has fewer values than it says")?,
            )),
            false => Ok(None),
        }
    }
}

/// A column of ids.
enum Ids {
    Texts(Values<ByteArrayType>),
    Int32(Values<Int32Type>, bool),
    Int64(Values<Int64Type>, bool),
}

impl Ids {
    fn new(column: &Column, pages: (Box<dyn PageReader>, ColumnDescPtr)) -> Self {
        match column.descr.physical_type() {
            Physical::INT32 => Self::Int32(Values::new(pages), column.is_unsigned()),
            Physical::INT64 => Self::Int64(Values::new(pages), column.is_unsigned()),
            _ => Self::Texts(Values::new(pages)),
        }
    }

    /// The next id, for whose bytes `hold` reserves memory.
    fn next(
        &mut self,
        hold: &mut dyn FnMut(usize) -> Result<(), OverBudget>,
    ) -> anyhow::Result<Value> {
        Ok(match self {
            Self::Texts(values) => match values.next()? {
                Some(text) => {
                    ensure!(text.len() as u64 <= MAX_ROW_BYTES, too_long());
                    hold(text.len())?;
                    std::str::from_utf8(text.data())
                        .context("it is no UTF-8")?
                        .into()
                }
                None => Value::Null,
            },
            Self::Int32(values, true) => values.next()?.map(|v| v as u32).into(),
            Self::Int32(values, false) => values.next()?.into(),
            Self::Int64(values, true) => values.next()?.map(|v| v as u64).into(),
            Self::Int64(values, false) => values.next()?.into(),
        })
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of the `parquet` crate, which may panic on an inconsistent file.
fn guarded<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let was_quiet = QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(was_quiet);
    done.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(anyhow::anyhow!("the file is damaged: {text}"))
    })
}

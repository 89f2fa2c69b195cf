//! Where rows of tables are in the files of a package: writing, and what the contract says.
//!
//! A matrix may be several constants, in several packages. Each contract has those of its package,
//! and the rows of all packages together are the table.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use thane_compile::compress::rows::{CodeScale, CodeTable, Coded};
use thane_compile::rewrite::bytes_of;
use thane_mil::data::{Bytes, Data};
use thane_mil::literal::f16_to_f32;
use thane_mil::package::{Content, Item, Written};
use thane_mil::types::DType;

use crate::contract::{
    AUTHOR, Contract, RowEncoding, RowScale, RowTable, StoredNumbers, StoredRows, TableFacts,
};
use crate::error::{ContractError, RuntimeError};
use crate::shared_rows::SharedRows;
use crate::tables::{HostTable, Stored, Tables, map};

/// The weight file of a package.
pub const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";
/// Parts of a file of rows begin at multiples of so many bytes, as those of a weight file do.
const ALIGNMENT: usize = 64;
/// Most numbers that a contract has itself. The weight file has no constants of fewer than 10.
const MOST_VALUES: usize = 256;

/// The name of the file that has the rows for an input.
fn file_name(input: &str) -> String {
    format!("{input}.bin")
}

/// The files of rows that the program does not have.
pub fn items(rows: &[SharedRows]) -> Vec<Item> {
    let mut files: BTreeMap<&str, Vec<Data>> = BTreeMap::new();
    for rows in rows.iter().filter(|rows| rows.is_file) {
        let parts = files.entry(&rows.input).or_default();
        for (_, data) in rows.stored.parts(rows.dtype) {
            let len = data.byte_len();
            parts.push(data.clone());
            parts.push(Data::owned(vec![0; len.next_multiple_of(ALIGNMENT) - len]));
        }
    }
    let files = files.into_iter().map(|(input, parts)| Item {
        author: AUTHOR.to_owned(),
        name: file_name(input),
        description: format!("Rows for the input {input}"),
        content: Content::Data(Vec::new(), parts),
    });
    files.collect()
}

/// Says in a contract where a package has rows of tables. Those of other packages are left out.
pub fn place(contract: &mut Contract, shared: &[SharedRows], written: Written<'_>) {
    contract.tables.retain(|_, facts| facts.rows.is_empty());
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for rows in shared {
        let end = ends.entry(&rows.input).or_default();
        let mut in_file = |_: DType, data: &Data| {
            let at = *end;
            *end = (at + data.byte_len()).next_multiple_of(ALIGNMENT);
            Some(at as u64)
        };
        let mut in_weights = |dtype: DType, data: &Data| {
            let at = written.elements_at(dtype, data);
            at.or_else(|| written.elements_at(DType::Uint8, data))
        };
        let stored = match rows.is_file {
            true => stored_rows(rows, &mut in_file),
            false => stored_rows(rows, &mut in_weights),
        };
        let Some(stored) = stored else { continue };
        let facts = TableFacts {
            factor: rows.factor,
            rows: Vec::new(),
        };
        let entry = contract.tables.entry(rows.input.clone());
        entry.or_insert(facts).rows.push(stored);
    }
}

/// Says where rows are; `None` if the file does not have them.
fn stored_rows(
    rows: &SharedRows,
    place: &mut dyn FnMut(DType, &Data) -> Option<u64>,
) -> Option<StoredRows> {
    let (offset, encoding) = match &rows.stored {
        Stored::Plain(data) => (place(rows.dtype, data)?, None),
        Stored::Coded(coded) => {
            let offset = place(coded.code, &coded.codes)?;
            let mut numbers = |data: &Data| match place(coded.dtype, data) {
                Some(at) => StoredNumbers::Offset(at),
                None => StoredNumbers::Values(values(coded.dtype, data)),
            };
            let encoding = RowEncoding {
                codes: coded.code.name().to_owned(),
                table: coded.table.as_ref().map(|table| RowTable {
                    numbers: numbers(&table.data),
                    entries: table.entries,
                    width: table.width,
                    rows: table.rows,
                }),
                scale: coded.scale.as_ref().map(|scale| RowScale {
                    numbers: numbers(&scale.data),
                    rows: scale.rows,
                    columns: scale.columns,
                    behind: scale.is_behind,
                }),
            };
            (offset, Some(encoding))
        }
    };
    Some(StoredRows {
        first: rows.first,
        count: rows.count,
        columns: rows.n_columns,
        dtype: rows.dtype.name().to_owned(),
        offset,
        file: rows
            .is_file
            .then(|| format!("Data/{AUTHOR}/{}", file_name(&rows.input))),
        encoding,
    })
}

fn values(dtype: DType, data: &Data) -> Vec<f32> {
    let bytes = data.to_vec();
    let cells = bytes.chunks((dtype.bits() / 8).max(1));
    let number = |cell: &[u8]| match *cell {
        [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => 0.0,
    };
    cells.map(number).collect()
}

/// The rows that the contract of a package at `path` places in its files, which are mapped.
pub fn read(path: &Path, contract: &Contract) -> Result<Vec<SharedRows>, RuntimeError> {
    let mut tables = contract.tables.iter();
    if let Some((input, facts)) = tables.find(|(_, facts)| !facts.factor.is_normal()) {
        let found = facts.factor;
        let what = format!("table `{input}`: expected a finite factor, not 0, found {found}");
        return Err(fault(path, what));
    }
    let stored = contract.tables.iter();
    let stored =
        stored.flat_map(|(input, facts)| facts.rows.iter().map(move |r| (input, facts, r)));
    let mut files: BTreeMap<&str, Bytes> = BTreeMap::new();
    let rows = stored.map(|(input, facts, rows)| {
        let name = rows.file.as_deref().unwrap_or(WEIGHTS);
        if let Some(file) = &rows.file {
            check_file(path, contract, (input, file))?;
        }
        if !files.contains_key(name) {
            files.insert(name, map(&path.join(name))?);
        }
        let file = &files[name];
        if let Some((code, expected, found)) = other_entries(rows) {
            let what = format!(
                "table `{input}`: expected {expected} entries for codes of {code}, found {found}"
            );
            return Err(fault(path, what));
        }
        let (dtype, stored) = slice(file, rows).ok_or_else(|| {
            let codes = match &rows.encoding {
                None => String::new(),
                Some(encoding) => format!(" from codes of {}", encoding.codes),
            };
            let place = match &rows.file {
                None => "a weight file".to_owned(),
                Some(file) => format!("`{file}`"),
            };
            let what = format!(
                "table `{input}`: expected rows of fp16 or fp32 in {place} of {} bytes, found {} \
                 of {} {} numbers at byte {}{codes}",
                file.len(),
                rows.count,
                rows.columns,
                rows.dtype,
                rows.offset
            );
            fault(path, what)
        })?;
        Ok(SharedRows {
            input: input.clone(),
            factor: facts.factor,
            first: rows.first,
            count: rows.count,
            n_columns: rows.columns,
            dtype,
            stored,
            is_file: rows.file.is_some(),
        })
    });
    rows.collect()
}

/// A file of rows must be one of the package, whose hash the contract has.
fn check_file(
    path: &Path,
    contract: &Contract,
    (input, file): (&str, &str),
) -> Result<(), RuntimeError> {
    let mut steps = Path::new(file).components();
    let is_inside = steps.all(|step| matches!(step, Component::Normal(_)));
    match is_inside && contract.files.iter().any(|known| known.path == file) {
        true => Ok(()),
        false => {
            let what = format!(
                "table `{input}`: expected rows in a file of the package that `files` lists, found \
                 `{file}`"
            );
            Err(fault(path, what))
        }
    }
}

/// The type of codes, the entries that it has codes for, and those of the table, if they are not as
/// many.
fn other_entries(rows: &StoredRows) -> Option<(DType, usize, usize)> {
    let encoding = rows.encoding.as_ref()?;
    let (table, code) = (encoding.table.as_ref()?, DType::from_name(&encoding.codes)?);
    let expected = 1 << code.bits().min(16);
    (is_index(code) && table.entries != expected).then_some((code, expected, table.entries))
}

/// Some rows, all of whose bytes must be within the file.
fn slice(file: &Bytes, rows: &StoredRows) -> Option<(DType, Stored)> {
    let dtype = DType::from_name(&rows.dtype);
    let dtype = dtype.filter(|dtype| [DType::Fp16, DType::Fp32].contains(dtype))?;
    let n_elements = rows.count.checked_mul(rows.columns).filter(|n| *n > 0)?;
    let Some(encoding) = &rows.encoding else {
        let data = within(file, rows.offset, (dtype, n_elements))?;
        return Some((dtype, Stored::Plain(data)));
    };
    let code = DType::from_name(&encoding.codes)?;
    let is_number = [DType::Int4, DType::Int8].contains(&code);
    if encoding.table.is_some() != is_index(code) || encoding.table.is_none() != is_number {
        return None;
    }
    let none = || Data::owned(Vec::new());
    let mut coded = Coded {
        n_rows: rows.count,
        n_columns: rows.columns,
        dtype,
        code,
        codes: none(),
        table: encoding.table.as_ref().map(|table| CodeTable {
            data: none(),
            entries: table.entries,
            width: table.width,
            rows: table.rows,
        }),
        scale: encoding.scale.as_ref().map(|scale| CodeScale {
            data: none(),
            rows: scale.rows,
            columns: scale.columns,
            is_behind: scale.behind,
        }),
    };
    let [n_codes, n_table, n_scales] = coded.lengths()?;
    coded.codes = within(file, rows.offset, (code, n_codes))?;
    let numbers = |stored: &StoredNumbers, n| match stored {
        StoredNumbers::Offset(at) => within(file, *at, (dtype, n)),
        StoredNumbers::Values(values) => (values.len() == n && n <= MOST_VALUES)
            .then(|| Data::owned(bytes_of(dtype, values.iter().copied()))),
    };
    if let (Some(table), Some(stored)) = (&mut coded.table, &encoding.table) {
        table.data = numbers(&stored.numbers, n_table)?;
    }
    if let (Some(scale), Some(stored)) = (&mut coded.scale, &encoding.scale) {
        scale.data = numbers(&stored.numbers, n_scales)?;
    }
    Some((dtype, Stored::Coded(coded)))
}

/// Whether codes of this type are entries of a table.
fn is_index(code: DType) -> bool {
    (1..=8).contains(&code.bits()) && code.name().starts_with("uint")
}

fn within(file: &Bytes, offset: u64, (dtype, n): (DType, usize)) -> Option<Data> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(dtype.byte_len(n)?)?;
    Some(Data::Bytes(file.slice(start..end)?))
}

/// The tables that the rows in all packages of the model at `path` are.
pub fn join(path: &Path, mut all: Vec<SharedRows>) -> Result<Tables, RuntimeError> {
    all.sort_by(|a, b| (&a.input, a.first).cmp(&(&b.input, b.first)));
    let mut tables: BTreeMap<String, HostTable> = BTreeMap::new();
    for rows in all {
        let input = rows.input.clone();
        let table = tables.entry(rows.input.clone()).or_insert(HostTable {
            dtype: rows.dtype,
            parts: Vec::new(),
            n_rows: 0,
            n_columns: rows.n_columns,
            factor: rows.factor,
            scales: None,
        });
        let expected = (table.n_rows, table.n_columns, table.dtype, table.factor);
        if (rows.first, rows.n_columns, rows.dtype, rows.factor) != expected {
            let what = format!(
                "table `{input}`: expected rows from {} on, all of one length, type and factor, \
                 found rows from {} on of {} {} numbers times {}",
                table.n_rows,
                rows.first,
                rows.n_columns,
                rows.dtype.name(),
                rows.factor
            );
            return Err(fault(path, what));
        }
        table.n_rows += rows.count;
        table.parts.push(rows.stored);
    }
    let tables = tables.into_iter();
    Ok(tables
        .map(|(input, table)| (input, Arc::new(table)))
        .collect())
}

fn fault(path: &Path, what: String) -> RuntimeError {
    let path = path.to_owned();
    ContractError::Model { path, what }.into()
}

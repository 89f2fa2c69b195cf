//! Tables that a host looks up for functions of fixed length: in memory, and as NumPy files beside
//! the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_engine::chain::Rows;
use thane_mil::data::Data;
use thane_mil::literal::f16_to_f32;
use thane_mil::package::{Content, Item};
use thane_mil::types::DType;
use thane_models::Table;

use crate::contract::AUTHOR;
use crate::error::{ContractError, RuntimeError};
use crate::foreign::{ForeignError, NumpyRows};

/// The tables that the host looks up, by the input that they are for.
pub type Tables = BTreeMap<String, HostTable>;

/// A table that the host looks up.
#[derive(Clone)]
pub struct HostTable {
    /// Its rows.
    pub rows: Arc<dyn Rows>,
    /// Element type: fp16 or fp32.
    pub dtype: DType,
    /// All rows, one after another.
    pub data: Data,
}

/// The tables that a lowering gave.
pub fn of_model(tables: &[Table]) -> Tables {
    let host = |table: &Table| HostTable {
        rows: Arc::new(DataRows {
            data: table.data.clone(),
            n_rows: table.n_rows,
            n_columns: table.n_columns,
            dtype: table.dtype,
            scales: table.scales.clone(),
        }),
        dtype: table.dtype,
        data: table.data.clone(),
    };
    tables.iter().map(|t| (t.input.clone(), host(t))).collect()
}

/// The file of the table for an input.
pub fn file_name(input: &str) -> String {
    format!("{input}.npy")
}

/// How the name of a file of scales ends, before its extension.
const SCALES: &str = "_scale";

/// Whether the file of this input has the scales of another one.
pub fn is_scales(input: &str) -> bool {
    input.ends_with(SCALES)
}

/// The tables as items of a package.
pub fn items(tables: &[Table]) -> Vec<Item> {
    let item = |name: &str, description: String, shape, dtype, data: &Data| Item {
        author: AUTHOR.to_owned(),
        name: file_name(name),
        description,
        content: Content::Data(header(shape, dtype), data.clone()),
    };
    let mut items = Vec::new();
    for table in tables {
        let (input, shape) = (&table.input, (table.n_rows, table.n_columns));
        let about = format!("Rows for the input {input}");
        items.push(item(input, about, shape, table.dtype, &table.data));
        if let Some(scales) = &table.scales {
            let about = format!("Scales of the rows for the input {input}");
            let name = format!("{input}{SCALES}");
            items.push(item(&name, about, (table.n_rows, 1), DType::Fp16, scales));
        }
    }
    items
}

/// Maps the table of an input, and the scales beside it if its numbers are int8.
pub fn open(file: &Path) -> Result<HostTable, RuntimeError> {
    let rows = own_rows(file)?;
    let (dtype, data) = (rows.dtype(), Data::Bytes(rows.bytes()));
    let scales = scales_beside(file);
    let rows: Arc<dyn Rows> = if rows.is_int8() {
        Arc::new(scaled(scales, rows)?)
    } else if scales.exists() {
        return Err(RuntimeError::from(ContractError::ScalesOfFloats {
            path: file.to_owned(),
            dtype: dtype.name(),
        }));
    } else {
        Arc::new(rows)
    };
    Ok(HostTable { rows, dtype, data })
}

/// Maps a table that this program wrote.
fn own_rows(file: &Path) -> Result<NumpyRows, ForeignError> {
    let again = "thane convert the model again, and copy the package whole";
    NumpyRows::open(file).map_err(|fault| fault.remedy(again))
}

/// Where the scales of a table are if its numbers are int8.
fn scales_beside(file: &Path) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(file_name(&format!("{stem}{SCALES}")))
}

/// int8 rows with the scales of the file beside theirs.
fn scaled(beside: PathBuf, rows: NumpyRows) -> Result<ScaledRows, RuntimeError> {
    let scales = own_rows(&beside)?;
    if (scales.n_rows(), scales.n_columns()) == (rows.n_rows(), 1) {
        return Ok(ScaledRows { rows, scales });
    }
    Err(RuntimeError::from(ContractError::Table {
        path: beside,
        expected: rows.n_rows(),
        found: (scales.n_rows(), scales.n_columns()),
    }))
}

/// int8 rows with a scale each.
struct ScaledRows {
    rows: NumpyRows,
    scales: NumpyRows,
}

impl Rows for ScaledRows {
    fn n_rows(&self) -> usize {
        self.rows.n_rows()
    }

    fn n_columns(&self) -> usize {
        self.rows.n_columns()
    }

    fn read(&self, idx: usize, out: &mut [f32]) {
        let mut scale = [0.0];
        self.scales.read(idx, &mut scale);
        self.rows.read(idx, out);
        out.iter_mut().for_each(|x| *x *= scale[0]);
    }
}

/// The header of a NumPy file in row-major order.
fn header((n_rows, n_columns): (usize, usize), dtype: DType) -> Vec<u8> {
    let kind = match dtype {
        DType::Int8 => "|i1",
        DType::Fp16 => "<f2",
        _ => "<f4",
    };
    let mut text = format!(
        "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({n_rows}, {n_columns}), }}"
    );
    // The data begins at a multiple of 64 bytes, behind a line break.
    let end = (10 + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', end - 10 - text.len() - 1));
    text.push('\n');
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [
        &b"\x93NUMPY\x01\x00"[..],
        &length.to_le_bytes(),
        text.as_bytes(),
    ]
    .concat()
}

/// A table in memory, or computed from a checkpoint.
struct DataRows {
    /// int8, fp16 or fp32, row by row.
    data: Data,
    dtype: DType,
    /// fp16, one for each row of int8.
    scales: Option<Data>,
    n_rows: usize,
    n_columns: usize,
}

impl Rows for DataRows {
    fn n_rows(&self) -> usize {
        self.n_rows
    }

    fn n_columns(&self) -> usize {
        self.n_columns
    }

    fn read(&self, idx: usize, out: &mut [f32]) {
        let size = self.dtype.bits() / 8;
        let mut row = vec![0; size * self.n_columns];
        // A constant that ends early leaves zeros; `Weights::finish` has refused such a tensor.
        let _ = self.data.read(idx * row.len(), &mut row);
        let mut scale = [0; 2];
        if let Some(scales) = &self.scales {
            let _ = scales.read(2 * idx, &mut scale);
        }
        let scale = f16_to_f32(u16::from_le_bytes(scale));
        for (x, cell) in out.iter_mut().zip(row.chunks(size.max(1))) {
            *x = match *cell {
                [a] => f32::from(a.cast_signed()) * scale,
                [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_ends_where_the_data_is_aligned() {
        for (n_rows, n_columns) in [(1, 1), (49_152, 576), (262_144, 8_960)] {
            let header = header((n_rows, n_columns), DType::Fp16);
            assert_eq!(header.len() % 64, 0);
            assert_eq!(header.last(), Some(&b'\n'));
            assert!(usize::from(u16::from_le_bytes([header[8], header[9]])) == header.len() - 10);
        }
    }
}

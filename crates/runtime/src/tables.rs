//! Tables that a host looks up for functions of fixed length: in memory, and as NumPy files beside
//! the program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use thane_engine::chain::Rows;
use thane_mil::data::Data;
use thane_mil::literal::f16_to_f32;
use thane_mil::package::{Content, Item};
use thane_mil::types::DType;
use thane_models::Table;

use crate::contract::AUTHOR;
use crate::error::RuntimeError;
use crate::foreign::NumpyRows;

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
            is_half: table.dtype == DType::Fp16,
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

/// The tables as items of a package.
pub fn items(tables: &[Table]) -> Vec<Item> {
    let item = |table: &Table| Item {
        author: AUTHOR.to_owned(),
        name: file_name(&table.input),
        description: format!("Rows for the input {}", table.input),
        content: Content::Data(header(table), table.data.clone()),
    };
    tables.iter().map(item).collect()
}

/// Maps the table of an input.
pub fn open(file: &Path) -> Result<HostTable, RuntimeError> {
    let rows = NumpyRows::open(file)?;
    Ok(HostTable {
        dtype: rows.dtype(),
        data: Data::Bytes(rows.bytes()),
        rows: Arc::new(rows),
    })
}

/// The header of a NumPy file in row-major order.
fn header(table: &Table) -> Vec<u8> {
    let (size, n_rows, n_columns) = (table.dtype.bits() / 8, table.n_rows, table.n_columns);
    let mut text = format!(
        "{{'descr': '<f{size}', 'fortran_order': False, 'shape': ({n_rows}, {n_columns}), }}"
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
    /// fp16 or fp32, row by row.
    data: Data,
    is_half: bool,
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
        let size = if self.is_half { 2 } else { 4 };
        let mut row = vec![0; size * self.n_columns];
        // A constant that ends early leaves zeros; `Weights::finish` has refused such a tensor.
        let _ = self.data.read(idx * row.len(), &mut row);
        if self.is_half {
            let cells = row.as_chunks::<2>().0.iter();
            let values = cells.map(|b| f16_to_f32(u16::from_le_bytes(*b)));
            out.iter_mut().zip(values).for_each(|(x, value)| *x = value);
        } else {
            let values = row
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b));
            out.iter_mut().zip(values).for_each(|(x, value)| *x = value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_ends_where_the_data_is_aligned() {
        for (n_rows, n_columns) in [(1, 1), (49_152, 576), (262_144, 8_960)] {
            let header = header(&Table {
                input: "embedding".to_owned(),
                by_token: true,
                n_rows,
                n_columns,
                dtype: DType::Fp16,
                data: Data::zeros(0),
            });
            assert_eq!(header.len() % 64, 0);
            assert_eq!(header.last(), Some(&b'\n'));
            assert!(usize::from(u16::from_le_bytes([header[8], header[9]])) == header.len() - 10);
        }
    }
}

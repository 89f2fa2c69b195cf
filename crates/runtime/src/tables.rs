//! Tables that a host looks up for functions of fixed length: in memory, and as NumPy files.
//!
//! Files are mapped, not read: one of them can be larger than the rest of the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use thane_calls::names::table_file as file_name;
use thane_compile::compress::rows::Coded;
use thane_engine::chain::Rows;
use thane_mil::data::{Bytes, Data};
use thane_mil::literal::f16_to_f32;
use thane_mil::package::{self, Content, Item};
use thane_mil::types::DType;
use thane_models::Table;

use crate::contract::AUTHOR;
use crate::error::{ContractError, RuntimeError};
use crate::foreign::ForeignError;

/// The tables that the host looks up, by the input that they are for.
pub type Tables = BTreeMap<String, Arc<HostTable>>;

/// The types of numbers in files, as NumPy names them.
const KINDS: [(&str, DType); 3] = [
    ("<f2", DType::Fp16),
    ("<f4", DType::Fp32),
    ("|i1", DType::Int8),
];

/// A table that the host looks up: in memory, in a mapped file, or computed from a checkpoint.
pub struct HostTable {
    /// Element type: int8, fp16 or fp32.
    pub dtype: DType,
    /// All rows, one after another.
    pub parts: Vec<Stored>,
    /// Number of rows.
    pub n_rows: usize,
    /// Elements of a row.
    pub n_columns: usize,
    /// Factor of the numbers of rows that are looked up.
    pub factor: f32,
    /// A column of factors, one for each row of int8.
    pub scales: Option<Box<HostTable>>,
}

/// Rows as they are stored.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Numbers of the table's type, row by row.
    Plain(Data),
    /// Codes.
    Coded(Coded),
}

impl Stored {
    /// Bytes of all rows.
    pub fn byte_len(&self) -> usize {
        match self {
            Self::Plain(data) => data.byte_len(),
            Self::Coded(coded) => coded.byte_len(),
        }
    }

    /// Types and bytes of what is stored.
    pub fn parts(&self, dtype: DType) -> Vec<(DType, &Data)> {
        match self {
            Self::Plain(data) => vec![(dtype, data)],
            Self::Coded(coded) => coded.parts().collect(),
        }
    }
}

/// The tables that a lowering gave.
pub fn of_model(tables: &[Table]) -> Tables {
    let host = |table: &Table| HostTable {
        dtype: table.dtype,
        parts: table.parts.iter().cloned().map(Stored::Plain).collect(),
        n_rows: table.n_rows,
        n_columns: table.n_columns,
        factor: table.factor,
        scales: table.scales.clone().map(|data| {
            Box::new(HostTable {
                dtype: DType::Fp16,
                parts: vec![Stored::Plain(data)],
                n_rows: table.n_rows,
                n_columns: 1,
                factor: 1.0,
                scales: None,
            })
        }),
    };
    let hosted = tables.iter().map(|t| (t.input.clone(), Arc::new(host(t))));
    hosted.collect()
}

/// How the name of a file of scales ends, before its extension.
const SCALES: &str = "_scale";

/// Whether the file of this input has the scales of another one.
pub fn is_scales(input: &str) -> bool {
    input.ends_with(SCALES)
}

/// The tables as items of a package.
pub fn items(tables: &[Table]) -> Vec<Item> {
    let item = |name: &str, description: String, shape, dtype, parts: &[Data]| Item {
        author: AUTHOR.to_owned(),
        name: file_name(name),
        description,
        content: Content::Data(header(shape, dtype), parts.to_vec()),
    };
    let mut items = Vec::new();
    for table in tables {
        let (input, shape) = (&table.input, (table.n_rows, table.n_columns));
        let about = format!("Rows for the input {input}");
        items.push(item(input, about, shape, table.dtype, &table.parts));
        if let Some(scales) = &table.scales {
            let about = format!("Scales of the rows for the input {input}");
            let name = format!("{input}{SCALES}");
            items.push(item(
                &name,
                about,
                (table.n_rows, 1),
                DType::Fp16,
                std::slice::from_ref(scales),
            ));
        }
    }
    items
}

/// Maps the table of an input, and the scales beside it if its numbers are int8.
pub fn open(file: &Path) -> Result<HostTable, RuntimeError> {
    let table = own_table(file)?;
    let beside = scales_beside(file);
    if table.dtype != DType::Int8 {
        return match beside.exists() {
            true => Err(RuntimeError::from(ContractError::ScalesOfFloats {
                path: file.to_owned(),
                dtype: table.dtype.name(),
            })),
            false => Ok(table),
        };
    }
    let scales = own_table(&beside)?;
    if (scales.n_rows, scales.n_columns) != (table.n_rows, 1) {
        return Err(RuntimeError::from(ContractError::Table {
            path: beside,
            expected: table.n_rows,
            found: (scales.n_rows, scales.n_columns),
        }));
    }
    Ok(HostTable {
        scales: Some(Box::new(scales)),
        ..table
    })
}

/// Maps a table that this program wrote.
fn own_table(file: &Path) -> Result<HostTable, ForeignError> {
    let again = "thane convert the model again, and copy the package whole";
    HostTable::open(file).map_err(|fault| fault.remedy(again))
}

/// Where the scales of a table are if its numbers are int8.
fn scales_beside(file: &Path) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(file_name(&format!("{stem}{SCALES}")))
}

impl HostTable {
    /// Maps a NumPy file of rows and columns of fp16, fp32 or int8 in row-major order.
    pub fn open(path: &Path) -> Result<Self, ForeignError> {
        Self::from_bytes(path, &map(path)?)
    }

    /// Reads the bytes of such a file; `path` is for errors.
    pub fn from_bytes(path: &Path, bytes: &Bytes) -> Result<Self, ForeignError> {
        let fault = |what: String| ForeignError::new(path, "header").found(what);
        let (header, start) = read_header(bytes.as_slice())
            .ok_or_else(|| fault("expected a NumPy array, found something else".to_owned()))?;
        let mut kinds = KINDS.into_iter();
        let kind = kinds.find(|(kind, _)| header.contains(&format!("'descr': '{kind}'")));
        let (Some((n_rows, n_columns)), Some((_, dtype)), false) = (
            shape(header),
            kind,
            header.contains("'fortran_order': True"),
        ) else {
            return Err(fault(format!(
                "expected rows and columns of fp16, fp32 or int8 in row-major order, found {}",
                header.trim()
            )));
        };
        let n_elements = n_rows.saturating_mul(n_columns);
        let expected = n_elements.saturating_mul(dtype.bits() / 8);
        let data = bytes.slice(start..bytes.len());
        let data = data.filter(|data| data.len() == expected).ok_or_else(|| {
            let found = bytes.len().saturating_sub(start);
            fault(format!(
                "expected {expected} bytes after the header, found {found}"
            ))
        })?;
        Ok(Self {
            dtype,
            parts: vec![Stored::Plain(Data::Bytes(data))],
            n_rows,
            n_columns,
            factor: 1.0,
            scales: None,
        })
    }

    /// Bytes of all rows.
    pub fn byte_len(&self) -> usize {
        self.parts.iter().map(Stored::byte_len).sum()
    }

    /// Number of pairs (column i and i + half the columns) with an angle other than 0 in a table of
    /// cosines.
    pub fn n_rotating_pairs(&self) -> usize {
        let mut rotates = vec![false; self.n_columns / 2];
        let mut row = vec![0.0; self.n_columns];
        for idx in 0..self.n_rows {
            self.read(idx, &mut row);
            let pairs = rotates.iter_mut().zip(&row);
            pairs.for_each(|(rotates, cos)| *rotates |= *cos != 1.0);
        }
        rotates.into_iter().filter(|rotates| *rotates).count()
    }
}

impl Rows for HostTable {
    fn n_rows(&self) -> usize {
        self.n_rows
    }

    fn n_columns(&self) -> usize {
        self.n_columns
    }

    fn read(&self, idx: usize, out: &mut [f32]) {
        let size = self.dtype.bits() / 8;
        let mut row = vec![0; size * self.n_columns];
        let mut idx_in_part = idx;
        for part in &self.parts {
            let n_rows = match part {
                Stored::Plain(data) => data.byte_len() / row.len().max(1),
                Stored::Coded(coded) => coded.n_rows,
            };
            if idx_in_part >= n_rows {
                idx_in_part -= n_rows;
                continue;
            }
            match part {
                Stored::Plain(data) => {
                    // A constant that ends early leaves zeros; `Weights::finish` has refused such
                    // a tensor.
                    let _ = data.read(idx_in_part * row.len(), &mut row);
                    break;
                }
                Stored::Coded(coded) => {
                    coded.read(idx_in_part, out);
                    return out.iter_mut().for_each(|x| *x *= self.factor);
                }
            }
        }
        let mut scale = [1.0];
        if let Some(scales) = &self.scales {
            scales.read(idx, &mut scale);
        }
        for (x, cell) in out.iter_mut().zip(row.chunks(size.max(1))) {
            *x = match *cell {
                [a] => f32::from(a.cast_signed()) * scale[0],
                [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            } * self.factor;
        }
    }
}

/// Maps the file of a table.
pub fn map(path: &Path) -> Result<Bytes, ForeignError> {
    package::map(path).map_err(|e| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ForeignError::new(path, "file")
            .found(format!("expected a table: {e}"))
            .remedy(format!("{name} from where the bundle was published"))
    })
}

/// The header of a NumPy file, and where the data begins.
fn read_header(bytes: &[u8]) -> Option<(&str, usize)> {
    let rest = bytes.strip_prefix(b"\x93NUMPY")?;
    let (length, start): (usize, usize) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [_, _, a, b, c, d, ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            (usize::try_from(length).ok()?, 12)
        }
        _ => return None,
    };
    let end = start.checked_add(length)?;
    Some((std::str::from_utf8(bytes.get(start..end)?).ok()?, end))
}

/// The two numbers of `'shape': (rows, columns)`.
fn shape(header: &str) -> Option<(usize, usize)> {
    let (_, shape) = header.split_once("'shape': (")?;
    let (rows, columns) = shape.split_once(')')?.0.split_once(',')?;
    Some((rows.trim().parse().ok()?, columns.trim().parse().ok()?))
}

/// The header of a NumPy file in row-major order.
fn header((n_rows, n_columns): (usize, usize), dtype: DType) -> Vec<u8> {
    let kind = KINDS.iter().find(|(_, of)| *of == dtype);
    let kind = kind.map_or("<f4", |(kind, _)| kind);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_from_its_part_and_multiplied() {
        let halves =
            |numbers: [u16; 4]| Data::owned(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
        // 1, 2, 3, 4 and -1, 0.5, 65504, 6e-8 in fp16, two to a row.
        let table = HostTable {
            dtype: DType::Fp16,
            parts: vec![
                Stored::Plain(halves([0x3c00, 0x4000, 0x4200, 0x4400])),
                Stored::Plain(halves([0xbc00, 0x3800, 0x7bff, 0x0001])),
            ],
            n_rows: 4,
            n_columns: 2,
            factor: 25.25,
            scales: None,
        };
        let rows = [
            [25.25, 50.5],
            [75.75, 101.0],
            [-25.25, 12.625],
            [1_653_976.0, 25.25 * 2f32.powi(-24)],
        ];
        for (idx, expected) in rows.iter().enumerate() {
            let mut row = [0.0; 2];
            table.read(idx, &mut row);
            assert_eq!(row, *expected);
        }
        assert_eq!(table.byte_len(), 16);
    }

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

//! Rows of compressed matrices, which callers look up: of those that a program multiplies, and of
//! tables that no program has.
//!
//! The number of row `r` and column `c` comes from the code at `(r / width, c)`: it is entry `code`
//! of the table `r / rows`, of an entry of several numbers the one at `r % width`; without tables
//! it is the code. A scale multiplies it in f32, and unless the scale stands behind the product,
//! the result is rounded to the type of the scale, as `constexpr_blockwise_shift_scale` does.

use std::sync::Arc;

use thane_mil::data::Data;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

use super::job::{Job, Tensor};
use super::program::{CompressError, Compression, Settings, TableSite};
use super::report::Left;
use super::ways::Ways;
use super::{Blocks, Codes, Encoding, Matrix, Scale};
use crate::weights::Constant;

/// Most numbers of a table that are compressed together, so that memory stays that of a layer.
const MOST_TOGETHER: usize = 1 << 25;

/// Rows of a matrix as codes.
#[derive(Clone, Debug)]
pub struct Coded {
    /// Number of rows.
    pub n_rows: usize,
    /// Numbers of a row.
    pub n_columns: usize,
    /// The type of the numbers in tables and scales: fp16 or fp32.
    pub dtype: DType,
    /// The type of the codes: `uint1` to `uint8` with tables, otherwise int4 or int8.
    pub code: DType,
    /// The codes, [rows / width, columns], packed from the lowest bit on.
    pub codes: Data,
    /// What codes stand for; `None` if for themselves.
    pub table: Option<CodeTable>,
    /// By what numbers are multiplied.
    pub scale: Option<CodeScale>,
}

/// Tables that codes are entries of.
#[derive(Clone, Debug)]
pub struct CodeTable {
    /// The numbers, [tables, entries, width].
    pub data: Data,
    /// Entries of a table.
    pub entries: usize,
    /// Numbers of an entry, which belong to rows that follow each other.
    pub width: usize,
    /// Rows that share a table.
    pub rows: usize,
}

/// Scales of codes.
#[derive(Clone, Debug)]
pub struct CodeScale {
    /// The numbers, [n_rows / rows, n_columns / columns].
    pub data: Data,
    /// Rows that share a scale.
    pub rows: usize,
    /// Numbers of a row that share a scale.
    pub columns: usize,
    /// Whether the program multiplies by it behind its product, and does not round the weight.
    pub is_behind: bool,
}

impl Coded {
    /// Bytes of codes, tables and scales.
    pub fn byte_len(&self) -> usize {
        let parts = self.parts();
        parts.map(|(_, data)| data.byte_len()).sum()
    }

    /// Types and bytes: of the codes, the tables, the scales.
    pub fn parts(&self) -> impl Iterator<Item = (DType, &Data)> {
        let table = self.table.iter().map(|table| &table.data);
        let scale = self.scale.iter().map(|scale| &scale.data);
        let numbers = table.chain(scale).map(|data| (self.dtype, data));
        std::iter::once((self.code, &self.codes)).chain(numbers)
    }

    /// Numbers of codes, of tables and of scales that these lengths ask for; `None` if the lengths
    /// do not divide each other or are too large.
    pub fn lengths(&self) -> Option<[usize; 3]> {
        let of = |n: usize, by: usize| (by > 0 && n.is_multiple_of(by)).then(|| n / by);
        let (rows, columns) = (self.n_rows, self.n_columns);
        let width = self.table.as_ref().map_or(1, |table| table.width);
        let tables = match &self.table {
            None => 0,
            Some(table) => of(rows, table.rows)?
                .checked_mul(table.entries)?
                .checked_mul(width)?,
        };
        let scales = match &self.scale {
            None => 0,
            Some(scale) => of(rows, scale.rows)?.checked_mul(of(columns, scale.columns)?)?,
        };
        Some([of(rows, width)?.checked_mul(columns)?, tables, scales])
    }

    /// Copies the row `idx` to `out`, which has `n_columns` elements.
    pub fn read(&self, idx: usize, out: &mut [f32]) {
        let codes = self.codes_of(idx);
        let entries = self.table.as_ref().map(|table| self.entries_of(table, idx));
        let scales = self.scale.as_ref().map(|scale| {
            let n = self.n_columns / scale.columns.max(1);
            let first = idx / scale.rows.max(1) * n;
            (self.numbers(&scale.data, first, n), scale)
        });
        for (c, (x, code)) in out.iter_mut().zip(codes).enumerate() {
            *x = match &entries {
                None => code as f32,
                // A code beyond the table is nobody's; who opened the file has compared the two.
                Some(numbers) => numbers.get(code as usize).copied().unwrap_or(0.0),
            };
            if let Some((numbers, scale)) = &scales {
                let by = numbers.get(c / scale.columns.max(1)).copied();
                *x *= by.unwrap_or(0.0);
                if !scale.is_behind && self.dtype == DType::Fp16 {
                    *x = f16_to_f32(f64_to_f16(f64::from(*x)));
                }
            }
        }
    }

    /// The number of each table entry in a row.
    fn entries_of(&self, table: &CodeTable, idx: usize) -> Vec<f32> {
        let width = table.width.max(1);
        let first = idx / table.rows.max(1) * table.entries * width;
        if width == 1 {
            return self.numbers(&table.data, first, table.entries);
        }
        let at = |entry| first + entry * width + idx % width;
        let number = |entry| self.numbers(&table.data, at(entry), 1);
        (0..table.entries).flat_map(number).collect()
    }

    /// The codes of a row, sign and all.
    fn codes_of(&self, idx: usize) -> impl Iterator<Item = i32> {
        let width = self.table.as_ref().map_or(1, |table| table.width.max(1));
        let bits = self.code.bits();
        let is_signed = matches!(self.code, DType::Int4 | DType::Int8);
        let first = idx / width * self.n_columns * bits;
        let (start, end) = (first / 8, (first + self.n_columns * bits).div_ceil(8));
        let mut bytes = vec![0; end - start];
        // Codes that end early leave zeros; who opened them has compared the lengths.
        let _ = self.codes.read(start, &mut bytes);
        (0..self.n_columns).map(move |c| {
            let at = first - 8 * start + c * bits;
            let low = u32::from(bytes[at / 8]);
            let high = bytes.get(at / 8 + 1).map_or(0, |byte| u32::from(*byte));
            let code = (low | high << 8) >> (at % 8) & ((1 << bits) - 1);
            let is_negative = is_signed && code >> (bits - 1) == 1;
            code as i32 - (i32::from(is_negative) << bits)
        })
    }

    fn numbers(&self, data: &Data, first: usize, n: usize) -> Vec<f32> {
        let size = self.dtype.bits() / 8;
        let mut bytes = vec![0; n * size];
        let _ = data.read(first * size, &mut bytes);
        let number = |cell: &[u8]| match *cell {
            [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => 0.0,
        };
        bytes.chunks(size.max(1)).map(number).collect()
    }

    /// What a job computes for a matrix with a row for each channel; `None` where a row cannot be
    /// read by itself.
    fn of(job: &Arc<Job>, scale: Scale) -> Option<Self> {
        let encoding = job.encoding();
        let Tensor { matrix, dtype, .. } = job.tensor();
        if matrix.axis != 0 || encoding.sparsity.is_some() {
            return None;
        }
        let (n_rows, n_columns) = (matrix.channels(), matrix.per_channel());
        let table = |entries, width, rows| CodeTable {
            data: job.data(1),
            entries,
            width,
            rows,
        };
        let scales = |part, rows, columns, is_behind| CodeScale {
            data: job.data(part),
            rows,
            columns,
            is_behind,
        };
        let (table, mut scale_of_codes) = match encoding.codes? {
            Codes::Palette(bits, group) => {
                (Some(table(1 << bits, 1, group.unwrap_or(n_rows))), None)
            }
            Codes::Vectors { width, entries } => (Some(table(entries, width, n_rows)), None),
            Codes::Integers(_, blocks) => {
                let (rows, columns) = match blocks {
                    Blocks::Tensor => (n_rows, n_columns),
                    Blocks::Channel => (1, n_columns),
                    Blocks::Inputs(n) => (1, n),
                };
                (None, Some(scales(1, rows, columns, false)))
            }
        };
        if job.has_scales() {
            let last = job.parts().len() - 1;
            scale_of_codes = Some(scales(last, 1, n_columns, scale == Scale::Behind));
        }
        Some(Self {
            n_rows,
            n_columns,
            dtype: *dtype,
            code: job.parts()[0].dtype,
            codes: job.data(0),
            table,
            scale: scale_of_codes,
        })
    }
}

impl Compression {
    /// What a tensor of the program became, if it is a matrix whose rows can be read. Its codes are
    /// computed now if they are not yet.
    pub fn coded(&self, dtype: DType, data: &Data) -> Result<Option<Coded>, CompressError> {
        let is_it = |tensor: &Tensor| {
            tensor.dtype == dtype
                && match (&tensor.data, data) {
                    (Data::Bytes(_), Data::Bytes(_)) => tensor.data == *data,
                    _ => tensor.data.is_same(data),
                }
        };
        let mut sites = self.sites.iter();
        let site = sites.find(|site| site.ways.jobs().any(|job| is_it(job.tensor())));
        let Some(site) = site else { return Ok(None) };
        let (scale, job, _) = site.ways.taken()?;
        Ok(Coded::of(job, scale))
    }

    /// Adds a table of rows of fp16 or fp32 that no program has. Where the encoding does not fit,
    /// the report says why.
    pub fn add_table(&mut self, name: &str, table: &Constant) {
        let [n_rows, n_columns] = table.shape[..] else {
            return;
        };
        let settings = Settings {
            encoding: self.settings.tables.unwrap_or(self.settings.encoding),
            ..self.settings
        };
        let encoding = settings.encoding;
        let step = rows_together(encoding, n_columns).min(n_rows.max(1));
        let fits = |rows: usize| {
            let matrix = Matrix::new(vec![rows, n_columns], 0, 1);
            if n_rows * n_columns < settings.least {
                return Err(format!("it has fewer than {} elements", settings.least));
            }
            if encoding.sparsity.is_some() || encoding.codes.is_none() {
                return Err("a row of sparse weights cannot be read by itself".to_owned());
            }
            encoding.fits(&matrix, table.dtype)
        };
        let rest = n_rows % step;
        let fits = fits(step).and_then(|()| if rest > 0 { fits(rest) } else { Ok(()) });
        if let Err(reason) = fits {
            self.left.push(Left {
                name: name.to_owned(),
                n_weights: n_rows * n_columns,
                bytes: table.data.byte_len(),
                reason,
            });
            return;
        }
        for first in (0..n_rows).step_by(step) {
            let part = table.slice(0, first, step.min(n_rows - first));
            let tensor = Tensor {
                name: name.to_owned(),
                dtype: part.dtype,
                matrix: Matrix::new(part.shape, 0, 1),
                data: part.data,
                importance: Arc::new([]),
            };
            self.tables.push(TableSite {
                name: name.to_owned(),
                ways: Ways::of(&tensor, true, (encoding, settings.scale), &self.store),
            });
        }
    }

    /// The rows of a table that was added, in parts that follow each other; none if it stays as it
    /// is.
    pub fn coded_table(&self, name: &str) -> Result<Vec<Coded>, CompressError> {
        let mut parts = Vec::new();
        for table in self.tables.iter().filter(|table| table.name == name) {
            let (scale, job, _) = table.ways.taken()?;
            parts.extend(Coded::of(job, scale));
        }
        Ok(parts)
    }
}

/// Rows that are compressed together, a multiple of those that share an entry or a table.
fn rows_together(encoding: Encoding, n_columns: usize) -> usize {
    let unit = match encoding.codes {
        Some(Codes::Palette(_, Some(group))) => group,
        Some(Codes::Vectors { width, .. }) => width,
        _ => 1,
    };
    (MOST_TOGETHER / n_columns.max(1) / unit).max(1) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of two numbers in two tables, and scales of blocks that round and that do not.
    #[test]
    fn rows_are_entries_times_scales() {
        let halves = |numbers: &[f64]| {
            let bytes = numbers.iter().flat_map(|x| f64_to_f16(*x).to_le_bytes());
            Data::owned(bytes.collect())
        };
        // Codes 0 to 7, and those of 3 bits lie across bytes.
        let packed = [0x88, 0xc6, 0xfa];
        let mut coded = Coded {
            n_rows: 4,
            n_columns: 4,
            dtype: DType::Fp16,
            code: DType::Uint3,
            codes: Data::owned(packed.to_vec()),
            table: Some(CodeTable {
                data: halves(&std::array::from_fn::<f64, 32, _>(|i| i as f64 / 8.0)),
                entries: 8,
                width: 2,
                rows: 2,
            }),
            scale: None,
        };
        assert_eq!(coded.lengths(), Some([8, 32, 0]));
        let row = |coded: &Coded, idx| {
            let mut out = [0.0; 4];
            coded.read(idx, &mut out);
            out
        };
        assert_eq!(row(&coded, 1), [0.125, 0.375, 0.625, 0.875]);
        assert_eq!(row(&coded, 2), [3.0, 3.25, 3.5, 3.75]);
        coded.scale = Some(CodeScale {
            data: halves(&[1.0, 2.0, 3.0, 1.0 / 3.0]),
            rows: 2,
            columns: 2,
            is_behind: true,
        });
        assert_eq!(coded.lengths(), Some([8, 32, 4]));
        let third = f16_to_f32(f64_to_f16(1.0 / 3.0));
        assert_eq!(
            row(&coded, 3),
            [9.375, 10.125, 3.625 * third, 3.875 * third]
        );
        coded.scale.as_mut().unwrap().is_behind = false;
        let rounded = f16_to_f32(f64_to_f16(f64::from(3.625 * third)));
        assert_eq!(row(&coded, 3)[2], rounded);
        assert!(rounded != 3.625 * third);
    }

    #[test]
    fn integers_have_signs() {
        let coded = Coded {
            n_rows: 2,
            n_columns: 3,
            dtype: DType::Fp16,
            code: DType::Int4,
            codes: Data::owned(vec![0x8f, 0x17, 0x69]),
            table: None,
            scale: None,
        };
        let mut out = [0.0; 3];
        coded.read(0, &mut out);
        assert_eq!(out, [-1.0, -8.0, 7.0]);
        coded.read(1, &mut out);
        assert_eq!(out, [1.0, -7.0, 6.0]);
    }
}

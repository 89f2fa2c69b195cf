//! Tables that the host looks up: rows of int8 with a scale each, and NumPy files of fp16 or fp32.
//!
//! Tables are mapped, not read: one of them can be larger than the rest of the model.

use std::path::Path;

use thane_engine::chain::Rows;
use thane_mil::data::Bytes;
use thane_mil::literal::f16_to_f32;
use thane_mil::package;
use thane_mil::types::DType;

use super::fault::ForeignError;

/// Rows of int8: element = code * scale of the row / 127 * factor.
pub(super) struct QuantizedRows {
    codes: Bytes,
    /// fp16, one for each row.
    scales: Bytes,
    n_columns: usize,
    factor: f32,
}

impl QuantizedRows {
    /// Maps `NAME_q8.bin` and `NAME_scales.bin`, which have `n_rows` rows.
    pub fn open(
        folder: &Path,
        name: &str,
        (n_rows, n_columns): (usize, usize),
        factor: f32,
    ) -> Result<Self, ForeignError> {
        let sized = |suffix: &str, n_bytes: usize| {
            let path = folder.join(format!("{name}_{suffix}.bin"));
            let bytes = map(&path)?;
            if bytes.len() == n_bytes {
                return Ok(bytes);
            }
            let what = format!(
                "expected {n_bytes} bytes for {n_rows} rows of {n_columns}, as model_config.json \
                 says, found {}",
                bytes.len()
            );
            Err(ForeignError::new(&path, "size").found(what))
        };
        Ok(Self {
            codes: sized("q8", n_rows.saturating_mul(n_columns))?,
            scales: sized("scales", n_rows.saturating_mul(2))?,
            n_columns,
            factor,
        })
    }
}

impl Rows for QuantizedRows {
    fn n_rows(&self) -> usize {
        self.scales.len() / 2
    }

    fn n_columns(&self) -> usize {
        self.n_columns
    }

    fn read(&self, idx: usize, out: &mut [f32]) {
        let scale = self.scales.as_slice().as_chunks::<2>().0[idx];
        let scale = f16_to_f32(u16::from_le_bytes(scale)) / 127.0 * self.factor;
        let codes = &self.codes.as_slice()[idx * self.n_columns..];
        for (x, code) in out.iter_mut().zip(codes) {
            *x = f32::from(code.cast_signed()) * scale;
        }
    }
}

/// A two-dimensional NumPy array of fp16, fp32 or int8.
pub struct NumpyRows {
    bytes: Bytes,
    n_rows: usize,
    n_columns: usize,
    /// Bytes of an element.
    size: usize,
}

impl NumpyRows {
    /// Maps a `.npy` file in row-major order.
    pub fn open(path: &Path) -> Result<Self, ForeignError> {
        let bytes = map(path)?;
        let fault = |what: String| ForeignError::new(path, "header").found(what);
        let (header, start) = header(bytes.as_slice())
            .ok_or_else(|| fault("expected a NumPy array, found something else".to_owned()))?;
        let mut kinds = [("<f2", 2), ("<f4", 4), ("|i1", 1)].into_iter();
        let kind = kinds.find(|(kind, _)| header.contains(&format!("'descr': '{kind}'")));
        let (Some((n_rows, n_columns)), Some((_, size)), false) = (
            shape(header),
            kind,
            header.contains("'fortran_order': True"),
        ) else {
            return Err(fault(format!(
                "expected rows and columns of fp16, fp32 or int8 in row-major order, found {}",
                header.trim()
            )));
        };
        let expected = n_rows.saturating_mul(n_columns).saturating_mul(size);
        let data = bytes.slice(start..bytes.len());
        match data.filter(|data| data.len() == expected) {
            Some(bytes) => Ok(Self {
                bytes,
                n_rows,
                n_columns,
                size,
            }),
            None => Err(fault(format!(
                "expected {expected} bytes after the header, found {}",
                bytes.len().saturating_sub(start)
            ))),
        }
    }

    /// Whether the numbers are int8.
    pub fn is_int8(&self) -> bool {
        self.size == 1
    }

    /// The elements, row by row.
    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self.size {
            1 => DType::Int8,
            2 => DType::Fp16,
            _ => DType::Fp32,
        }
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

impl Rows for NumpyRows {
    fn n_rows(&self) -> usize {
        self.n_rows
    }

    fn n_columns(&self) -> usize {
        self.n_columns
    }

    fn read(&self, idx: usize, out: &mut [f32]) {
        let first = idx * self.n_columns;
        let cells = self.bytes.as_slice()[first * self.size..].chunks(self.size);
        for (x, cell) in out.iter_mut().zip(cells) {
            *x = match *cell {
                [a] => f32::from(a.cast_signed()),
                [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            };
        }
    }
}

fn map(path: &Path) -> Result<Bytes, ForeignError> {
    package::map(path).map_err(|e| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ForeignError::new(path, "file")
            .found(format!("expected a table: {e}"))
            .remedy(format!("{name} from where the bundle was published"))
    })
}

/// The header of a NumPy file, and where the data begins.
fn header(bytes: &[u8]) -> Option<(&str, usize)> {
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

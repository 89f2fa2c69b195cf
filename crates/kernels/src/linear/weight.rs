//! Weight matrices as they are stored.

use std::fmt;

use crate::quant::BlockType;

/// A weight matrix as stored: row after row of blocks; row `o` makes output `o`.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How the values are stored.
    pub ty: BlockType,
    /// `n_rows` rows of `ty.byte_len(n_cols)` bytes.
    pub bytes: &'a [u8],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Why a [`Weight`] cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightError {
    /// The row is not a whole number of blocks.
    Cols {
        /// The type.
        ty: BlockType,
        /// The row's length.
        n_cols: usize,
    },
    /// Too few or too many bytes.
    Bytes {
        /// The bytes of this many rows; None if they are too many to count.
        expected: Option<usize>,
        /// The bytes given.
        actual: usize,
    },
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cols { ty, n_cols } => {
                write!(
                    f,
                    "a row of {n_cols} values is not a whole number of {ty:?} blocks of {}",
                    ty.block_len()
                )
            }
            Self::Bytes {
                expected: Some(expected),
                actual,
            } => {
                write!(f, "the weight needs {expected} bytes and has {actual}")
            }
            Self::Bytes {
                expected: None,
                actual,
            } => {
                write!(
                    f,
                    "the weight needs more bytes than can be counted and has {actual}"
                )
            }
        }
    }
}

impl std::error::Error for WeightError {}

impl<'a> Weight<'a> {
    /// A weight whose sizes fit together.
    ///
    /// # Errors
    /// If the columns are not whole blocks or the bytes are not the rows.
    pub fn new(
        ty: BlockType,
        bytes: &'a [u8],
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Self, WeightError> {
        let row_bytes = ty
            .byte_len(n_cols)
            .ok_or(WeightError::Cols { ty, n_cols })?;
        let expected = row_bytes.checked_mul(n_rows);
        if expected != Some(bytes.len()) {
            return Err(WeightError::Bytes {
                expected,
                actual: bytes.len(),
            });
        }
        Ok(Self {
            ty,
            bytes,
            n_rows,
            n_cols,
        })
    }

    /// The same weight, checked.
    pub(super) fn checked(&self) -> Rows<'a> {
        if let Err(err) = Self::new(self.ty, self.bytes, self.n_rows, self.n_cols) {
            panic!("{err}");
        }
        self.rows()
    }

    /// The rows of a weight whose sizes fit together.
    pub(super) fn rows(&self) -> Rows<'a> {
        Rows {
            bytes: self.bytes,
            row_bytes: self.bytes.len() / self.n_rows.max(1),
            n_rows: self.n_rows,
        }
    }
}

/// The rows of a checked weight.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) n_rows: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn n_rows(self) -> usize {
        self.n_rows
    }

    #[inline(always)]
    pub(super) fn get(self, row_idx: usize) -> &'a [u8] {
        &self.bytes[row_idx * self.row_bytes..][..self.row_bytes]
    }
}

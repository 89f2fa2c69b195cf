//! Block-quantised rows as GGUF stores them: the layouts, and their values.
//!
//! [`dequantize_row`] defines what each type means, in readable scalar code with the very
//! arithmetic of the `gguf` Python package (f32 products in the same order), so that it is
//! bit-exact against it. The fast forms of the same layouts are in [`format`].

pub(crate) mod dequantize;
pub(crate) mod format;

pub use dequantize::dequantize_row;

/// How the values of a weight row are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// IEEE single precision, little endian.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// 32 codes of 4 bits, `d * (q - 8)`.
    Q4_0,
    /// 32 codes of 4 bits, `d * q + m`.
    Q4_1,
    /// 32 codes of 5 bits, `d * (q - 16)`.
    Q5_0,
    /// 32 codes of 5 bits, `d * q + m`.
    Q5_1,
    /// 32 codes of 8 bits, `d * q`.
    Q8_0,
    /// 256 codes of 2 bits, 4-bit scale and minimum per 16.
    Q2K,
    /// 256 codes of 3 bits, 6-bit scale per 16.
    Q3K,
    /// 256 codes of 4 bits, 6-bit scale and minimum per 32.
    Q4K,
    /// 256 codes of 5 bits, 6-bit scale and minimum per 32.
    Q5K,
    /// 256 codes of 6 bits, 8-bit scale per 16.
    Q6K,
    /// 32 codes of 4 bits into a fixed table of 16 values.
    Iq4Nl,
    /// 256 codes of 4 bits into the same table, 6-bit scale per 32.
    Iq4Xs,
}

impl BlockType {
    /// All types, in the order of the enum.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// Values in a block; a row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 | Self::Iq4Nl => 2 + 16,
            Self::Q4_1 => 4 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 4 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q2K => 16 + 64 + 4,
            Self::Q3K => 32 + 64 + 12 + 2,
            Self::Q4K => 4 + 12 + 128,
            Self::Q5K => 4 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
            Self::Iq4Xs => 2 + 2 + 4 + 128,
        }
    }

    /// Bytes of a row of `n_cols` values; None if that is not a whole number of blocks, or too many
    /// to count.
    pub const fn row_bytes(self, n_cols: usize) -> Option<usize> {
        if !n_cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// True of the types whose values are stored one by one, without blocks.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// The 16 values of the IQ4 types.
pub(crate) const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

//! The table of block types.

use crate::codes::CodeType::{Int4, Int8, Uint4, Uint8};
use crate::codes::Codes;
use crate::decode::{self, Block, IQ4_TABLE, MXFP4_TABLE};
use crate::float::{bf16_to_f32, f16_to_f32};
use Form::{Coded, Float};

/// One row of the table: what is known of a type.
struct Row {
    name: &'static str,
    gguf_id: u32,
    block_len: usize,
    block_bytes: usize,
    form: Form,
}

/// How the bytes of a block give its values.
enum Form {
    /// One float.
    Float(fn(&[u8]) -> f32),
    /// Integer codes with scales.
    Coded(Codes, fn(&[u8], &mut Block)),
}

macro_rules! block_types {
    ($(
        $(#[$doc:meta])*
        $variant:ident: $name:literal, $id:literal, $len:literal x $bytes:expr, $form:expr;
    )*) => {
        /// How the values of a weight are stored. Plain floats are blocks of one value.
        ///
        /// Other crates match some types and handle all others by their row, so that a new type
        /// needs no change there.
        ///
        /// ```
        /// use thane_blocks::BlockType;
        ///
        /// // Q8_0: a scale in f16 (0x3800 is 0.5), then 32 signed bytes.
        /// let mut block = vec![0x00, 0x38];
        /// block.extend((0..32u8).map(|i| i.wrapping_sub(16)));
        ///
        /// let ty = BlockType::from_gguf(8).expect("Q8_0 is supported");
        /// assert_eq!((ty.name(), ty.block_len(), ty.block_bytes()), ("Q8_0", 32, 34));
        /// let mut values = [0.0; 32];
        /// ty.decode(&block, &mut values);
        /// assert_eq!(values[0], -8.0);
        /// assert_eq!(values[31], 7.5);
        /// ```
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum BlockType {
            $($(#[$doc])* $variant,)*
        }

        impl BlockType {
            /// All types, in the order of the enum.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];
        }

        static ROWS: [Row; BlockType::ALL.len()] = [$(Row {
            name: $name,
            gguf_id: $id,
            block_len: $len,
            block_bytes: $bytes,
            form: $form,
        }),*];
    };
}

// Name and type id as GGUF has them, values x bytes of a block. Bytes are written as the sum of
// the fields of ggml's block structures.
block_types! {
    /// IEEE single precision, little endian.
    F32: "F32", 0, 1 x 4, Float(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    /// IEEE half precision.
    F16: "F16", 1, 1 x 2, Float(|b| f16_to_f32(u16::from_le_bytes([b[0], b[1]])));
    /// The upper half of an IEEE single.
    Bf16: "BF16", 30, 1 x 2, Float(|b| bf16_to_f32(u16::from_le_bytes([b[0], b[1]])));
    /// 32 codes of 4 bits, `d * (q - 8)`.
    Q4_0: "Q4_0", 2, 32 x 2 + 16, Coded(Codes::new(Int4, 32, &[(0, 8.0)]), decode::q4_0);
    /// 32 codes of 4 bits, `d * q + m`.
    Q4_1: "Q4_1", 3, 32 x 2 + 2 + 16,
        Coded(Codes::new(Uint4, 32, &[(0, 15.0), (2, 1.0)]).with_minimum(), decode::q4_1);
    /// 32 codes of 5 bits, `d * (q - 16)`.
    Q5_0: "Q5_0", 6, 32 x 2 + 4 + 16, Coded(Codes::new(Int8, 32, &[(0, 16.0)]), decode::q5_0);
    /// 32 codes of 5 bits, `d * q + m`.
    Q5_1: "Q5_1", 7, 32 x 2 + 2 + 4 + 16,
        Coded(Codes::new(Uint8, 32, &[(0, 31.0), (2, 1.0)]).with_minimum(), decode::q5_1);
    /// 32 codes of 8 bits, `d * q`.
    Q8_0: "Q8_0", 8, 32 x 2 + 32, Coded(Codes::new(Int8, 32, &[(0, 128.0)]), decode::q8_0);
    /// 256 codes of 2 bits, 4-bit scale and minimum per 16.
    Q2K: "Q2_K", 10, 256 x 16 + 64 + 2 + 2,
        Coded(Codes::new(Uint4, 16, &[(80, 3.0 * 15.0), (82, 15.0)]).with_minimum(), decode::q2_k);
    /// 256 codes of 3 bits, 6-bit scale per 16.
    Q3K: "Q3_K", 11, 256 x 32 + 64 + 12 + 2,
        Coded(Codes::new(Int4, 16, &[(108, 4.0 * 32.0)]), decode::q3_k);
    /// 256 codes of 4 bits, 6-bit scale and minimum per 32.
    Q4K: "Q4_K", 12, 256 x 2 + 2 + 12 + 128,
        Coded(Codes::new(Uint4, 32, &[(0, 15.0 * 63.0), (2, 63.0)]).with_minimum(), decode::q4_k);
    /// 256 codes of 5 bits, 6-bit scale and minimum per 32.
    Q5K: "Q5_K", 13, 256 x 2 + 2 + 12 + 32 + 128,
        Coded(Codes::new(Uint8, 32, &[(0, 31.0 * 63.0), (2, 63.0)]).with_minimum(), decode::q5_k);
    /// 256 codes of 6 bits, 8-bit scale per 16.
    Q6K: "Q6_K", 14, 256 x 128 + 64 + 16 + 2,
        Coded(Codes::new(Int8, 16, &[(208, 32.0 * 128.0)]), decode::q6_k);
    /// 32 indices of 4 bits into [`IQ4_TABLE`].
    Iq4Nl: "IQ4_NL", 20, 32 x 2 + 16,
        Coded(Codes::with_table(&IQ4_TABLE, &[(0, 127.0)]), decode::iq4_nl);
    /// 256 indices of 4 bits into [`IQ4_TABLE`], 6-bit scale per 32.
    Iq4Xs: "IQ4_XS", 23, 256 x 2 + 2 + 4 + 128,
        Coded(Codes::with_table(&IQ4_TABLE, &[(0, 127.0 * 32.0)]), decode::iq4_xs);
    /// 32 indices of 4 bits into [`MXFP4_TABLE`], a power of two as scale: FP4 (E2M1) of the OCP
    /// Microscaling Formats specification 1.0.
    Mxfp4: "MXFP4", 39, 32 x 1 + 16, Coded(Codes::with_table(&MXFP4_TABLE, &[]), decode::mxfp4);
}

/// GGUF type ids that exist, or existed, and have no row, with their names.
pub const UNSUPPORTED_GGUF_TYPES: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl BlockType {
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name that GGUF uses, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The type with this id in GGUF's enumeration.
    pub fn from_gguf(type_id: u32) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|ty| ty.row().gguf_id == type_id)
    }

    /// Values in a block; a matrix row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of `n_values` values; `None` where that is not a whole number of blocks or overflows.
    pub const fn byte_len(self, n_values: usize) -> Option<usize> {
        if !n_values.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_values / self.block_len()).checked_mul(self.block_bytes())
    }

    /// How a quantized type divides a block; `None` for plain floats.
    pub const fn codes(self) -> Option<&'static Codes> {
        match &self.row().form {
            Float(_) => None,
            Coded(codes, _) => Some(codes),
        }
    }

    /// Whether values are stored one by one, as floats.
    pub const fn is_float(self) -> bool {
        self.codes().is_none()
    }

    /// Unpack a block of a quantized type; `false` for plain floats, which leave `out` unchanged.
    ///
    /// # Panics
    /// If `block` is shorter than [`Self::block_bytes`].
    pub fn unpack(self, block: &[u8], out: &mut Block) -> bool {
        match &self.row().form {
            Float(_) => false,
            Coded(_, unpack) => {
                unpack(block, out);
                true
            }
        }
    }

    /// Write the values of whole blocks, in order. Each product and each sum is rounded to f32
    /// once, as in the `gguf` Python package.
    ///
    /// # Panics
    /// If `out` is not a whole number of blocks, or `bytes` is not exactly these blocks.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(
            Some(bytes.len()),
            self.byte_len(out.len()),
            "bytes of {} values of type {}",
            out.len(),
            self.name()
        );
        let blocks = bytes.chunks_exact(self.block_bytes());
        match &self.row().form {
            Float(value) => out.iter_mut().zip(blocks).for_each(|(v, b)| *v = value(b)),
            Coded(codes, unpack) => {
                let mut block = Block::default();
                for (values, bytes) in out.chunks_exact_mut(self.block_len()).zip(blocks) {
                    unpack(bytes, &mut block);
                    block.values(codes, values);
                }
            }
        }
    }

    /// A magnitude that no value of the block exceeds: infinite or NaN where a scale is.
    ///
    /// # Panics
    /// If `block` is shorter than [`Self::block_bytes`].
    pub fn magnitude_bound(self, block: &[u8]) -> f32 {
        let f16 = |at: usize| f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]])).abs();
        match &self.row().form {
            Float(value) => value(block).abs(),
            Coded(codes, _) if !codes.factors.is_empty() => codes
                .factors
                .iter()
                .map(|(at, factor)| f16(*at) * factor)
                .sum(),
            Coded(codes, unpack) => {
                let mut unpacked = Block::default();
                unpack(block, &mut unpacked);
                let mut values = [0.0; decode::MAX_BLOCK_LEN];
                let values = &mut values[..self.block_len()];
                unpacked.values(codes, values);
                let magnitudes = values.iter().map(|v| v.abs());
                // `f32::max` would lose a NaN.
                magnitudes.fold(0.0, |most, v| if v > most || v.is_nan() { v } else { most })
            }
        }
    }
}

//! Products of activations with a weight matrix:
//! `y[t, o] = bias[o] + sum over i of x[t, i] * w[o, i]`.
//!
//! [`linear`] computes products of the same activations with several weights, each in any form
//! ([`Operand`]), and an [`Epilogue`]. [`choose`] alone decides how each product is computed, from
//! the instruction set, the type, the form, the shape and the number of tokens; start reading
//! there. To port an instruction set, see [`crate::simd`].
//!
//! | [`Path`] | file |
//! |---|---|
//! | `F32Rows`, `CodeRows` | `rows`: few tokens; each weight row is read once and dotted with each token; of [`Compressed`] weights and [`HalfPanels`] too |
//! | `F32Panels` | `dense`: 16 rows at a time are unpacked to a panel whose lanes are rows; of [`Compressed`] weights and [`HalfPanels`] too |
//! | `F32Packed`, `Bf16Packed` | `packed`: panels that were packed before, by `tiles` |
//! | `Bf16Rows`, `Bf16Panels` | `bf16` |
//! | `Int8` | `int8` |
//! | `CodeTiles` | `codes`: packed codes, multiplied as they are read; `tables`: [`TableCodes`] |
//! | `CodePanels` | `panel`: codes unpacked to bytes |
//! | `CodeParts` | `parts`: sums of products in 16 bits, or of four in 32 |

#[cfg(target_arch = "x86_64")]
mod bf16;
mod choose;
mod codes;
mod columns;
mod compressed;
mod dense;
mod halves;
mod int8;
#[doc(hidden)]
pub mod internals;
mod memory;
mod operand;
mod output;
mod packed;
mod panel;
mod parts;
mod products;
mod q8;
mod rows;
mod source;
mod steps;
mod stored;
mod tables;
mod tasks;
mod tiles;
mod values;
mod weight;

pub use choose::{Form, Path, Precision, choose};
pub use codes::{
    Codes, PackedCodes, linear_codes_best, linear_codes_best_scratch_len, pack_code_rows,
    pack_codes, pack_codes_scratch_len, packed_codes_len,
};
pub use columns::{LINE_BYTES, PackedColumn};
pub use compressed::{Coding, Compressed, Mask, decompress_rows};
pub use halves::{HalfPanels, half_panels_len, pack_halves};
pub use int8::{Int8Block, Int8Weight, int8_len, pack_int8};
pub use operand::{Operand, Product};
pub use output::Start;
pub use packed::{Packed, pack, packed_len};
pub use products::{Epilogue, linear, linear_scratch_len};
pub use tables::{TableBytes, TableCodes};
pub use values::dequantize_rows_gather;
pub use weight::{Weight, WeightError};

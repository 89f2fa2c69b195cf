//! Fast forms of the block-quantized types of `thane-blocks`.
//!
//! [`BlockType::decode`] defines the values of each type. `dequantize` has the same values from
//! loops of fixed length that the compiler vectorizes for each ISA; [`format`] has the codes as
//! vectors, for integer products. A type without either takes the scalar decoder and f32 products.

pub(crate) mod dequantize;
pub(crate) mod format;

pub use format::has_format;
pub use thane_blocks::BlockType;

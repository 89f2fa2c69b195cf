//! Number formats of stored weights: block-quantized types, f16 and bf16.
//!
//! This crate must not know any other crate of the workspace. Start at [`BlockType`]: its table in
//! `types.rs` has one row for each type, and `decode.rs` has one scalar decoder for each quantized
//! type. These decoders define the values of a block; every faster form is tested against them.
//!
//! To add a block type, add a row to the table, its decoder, and its name to `TYPES` of
//! `tests/make_blocks.py`. The checkpoint reader, the MIL form and the CPU kernels take the type
//! from its row. A SIMD layout in `thane-kernels` is optional.
#![deny(missing_docs)]

mod codes;
mod decode;
mod float;
mod types;

pub use codes::{CodeType, Codes};
pub use decode::{
    Block, IQ4_TABLE, MAX_BLOCK_LEN, MXFP4_TABLE, iq4_xs_scales, k_scales, q3_k_scales,
};
pub use float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_bf16, f64_to_f16};
pub use types::{BlockType, UNSUPPORTED_GGUF_TYPES};

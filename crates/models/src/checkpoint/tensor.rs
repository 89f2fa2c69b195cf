//! A tensor of a checkpoint: its name, element type, shape and bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use thane_blocks::{BlockType, UNSUPPORTED_GGUF_TYPES};
use thane_mil::data::Bytes;

use super::scaled::Scaled;

/// One tensor, with its bytes in the layout of the file.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Name of the tensor in the file.
    pub name: String,
    /// Type of the stored elements.
    pub ty: TensorType,
    /// Dimensions in row-major order, outermost first. (GGUF lists the innermost first; the reader
    /// reverses the list.)
    pub shape: Vec<usize>,
    /// Exactly the bytes of the elements, as a slice of the map of the file. GGUF aligns them to at
    /// least 8 bytes. Safetensors does not guarantee any alignment, so code that reads wider
    /// elements must not assume one.
    pub bytes: Bytes,
    /// The numbers, if the elements are codes with scales, which other tensors of the file hold.
    /// `bytes` are then the codes as they are stored.
    pub scaled: Option<Arc<Scaled>>,
}

impl Tensor {
    /// Number of elements, quantized or not.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The supported element types. Quantized types keep GGUF's block layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each variant is named after its type in the file formats
pub enum TensorType {
    /// Types whose numbers a program can hold: plain floats and GGUF's block-quantized types.
    Block(BlockType),
    F64,
    F8E4M3,
    F8E5M2,
    I4,
    I8,
    I16,
    I32,
    I64,
    U4,
    U8,
    U16,
    U32,
    U64,
    Bool,
}

impl TensorType {
    /// IEEE single precision.
    pub const F32: Self = Self::Block(BlockType::F32);
    /// IEEE half precision.
    pub const F16: Self = Self::Block(BlockType::F16);
    /// bfloat16.
    pub const BF16: Self = Self::Block(BlockType::Bf16);

    /// The name in GGUF or, for types that GGUF lacks, in safetensors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block(ty) => ty.name(),
            Self::F64 => "F64",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::I4 => "I4",
            Self::I8 => "I8",
            Self::I16 => "I16",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::U4 => "U4",
            Self::U8 => "U8",
            Self::U16 => "U16",
            Self::U32 => "U32",
            Self::U64 => "U64",
            Self::Bool => "BOOL",
        }
    }

    /// The block type, or `None` if a program cannot hold the numbers as they are stored.
    pub fn block_type(self) -> Option<BlockType> {
        match self {
            Self::Block(ty) => Some(ty),
            _ => None,
        }
    }

    /// Number of elements in a block; 1 for types that are not quantized.
    pub fn block_len(self) -> usize {
        self.block_type().map_or(1, BlockType::block_len)
    }

    /// Number of bytes in a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Block(ty) => ty.block_bytes(),
            // Two codes of 4 bits share a byte.
            Self::I4 | Self::U4 => 1,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::Bool => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether the type is block-quantized.
    pub fn is_quantized(self) -> bool {
        self.block_type().is_some_and(|ty| !ty.is_float())
    }

    /// Number of bytes of `element_count` elements, or `None` if the elements do not fill whole
    /// blocks or the number overflows.
    pub fn byte_len(self, element_count: usize) -> Option<usize> {
        match self {
            Self::Block(ty) => ty.byte_len(element_count),
            _ => element_count.checked_mul(self.block_bytes()),
        }
    }

    /// The type with this number in GGUF's enumeration, if it is supported.
    pub fn from_gguf(type_id: u32) -> Option<Self> {
        Some(match type_id {
            24 => Self::I8,
            25 => Self::I16,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            _ => Self::Block(BlockType::from_gguf(type_id)?),
        })
    }

    /// The type with this `dtype` in a safetensors header, if it is supported.
    pub fn from_safetensors(dtype: &str) -> Option<Self> {
        Some(match dtype {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::BF16,
            "F64" => Self::F64,
            "F8_E4M3" => Self::F8E4M3,
            "F8_E5M2" => Self::F8E5M2,
            "I8" => Self::I8,
            "I16" => Self::I16,
            "I32" => Self::I32,
            "I64" => Self::I64,
            "U8" => Self::U8,
            "U16" => Self::U16,
            "U32" => Self::U32,
            "U64" => Self::U64,
            "BOOL" => Self::Bool,
            _ => return None,
        })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Name of an unsupported GGUF type for error messages.
pub(super) fn refused_gguf_name(type_id: u32) -> String {
    match UNSUPPORTED_GGUF_TYPES.iter().find(|(id, _)| *id == type_id) {
        Some((_, name)) => format!("{name} (type {type_id})"),
        None => format!("unknown type {type_id}"),
    }
}

/// A tensor with an unsupported element type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Type of the tensor, by name or number.
    pub ty: String,
}

/// Lists all tensors by type: `TYPE: a, b; OTHER: c`.
pub(super) fn list_refused(refused: &[RefusedTensor]) -> String {
    let mut by_type = BTreeMap::<&str, Vec<&str>>::new();
    for tensor in refused {
        by_type.entry(&tensor.ty).or_default().push(&tensor.name);
    }
    let lines: Vec<String> = by_type
        .iter()
        .map(|(ty, names)| format!("{ty}: {}", names.join(", ")))
        .collect();
    lines.join("; ")
}

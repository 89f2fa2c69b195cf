//! A tensor of a checkpoint: its name, element type, shape and bytes.

use std::collections::BTreeMap;
use std::fmt;

use thane_mil::data::Bytes;

/// One tensor, its bytes still in the file's own layout.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The name that the file gives it.
    pub name: String,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Row-major, outermost dimension first (GGUF lists dimensions the other way round; they are
    /// reversed on reading).
    pub shape: Vec<usize>,
    /// Exactly the bytes of the elements, a slice of the file's map. GGUF aligns them to at least 8
    /// bytes; safetensors guarantees no alignment, so a reader of wider elements must not assume
    /// one.
    pub bytes: Bytes,
}

impl Tensor {
    /// Number of elements, quantized or not.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Element types that are read; quantized ones keep GGUF's block layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each variant is named as its format names it
pub enum TensorType {
    F32,
    F16,
    Bf16,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

impl TensorType {
    /// The name that GGUF (or, where it has none, safetensors) uses.
    pub fn name(self) -> &'static str {
        self.layout().0
    }

    /// Elements in a block; 1 for types that are not quantized.
    pub fn block_len(self) -> usize {
        self.layout().1
    }

    /// Bytes in a block.
    pub fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// Whether elements share scales in blocks.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `element_count` elements, or `None` when that is no whole number of blocks or
    /// overflows.
    pub fn byte_len(self, element_count: usize) -> Option<usize> {
        if !element_count.is_multiple_of(self.block_len()) {
            return None;
        }
        (element_count / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Name, elements per block, bytes per block. Sizes as the block structures of ggml add up: a
    /// 16-bit scale (and minimum) beside the packed quants; for the K types, 6- or 4-bit sub-block
    /// scales too.
    fn layout(self) -> (&'static str, usize, usize) {
        match self {
            Self::F32 => ("F32", 1, 4),
            Self::F16 => ("F16", 1, 2),
            Self::Bf16 => ("BF16", 1, 2),
            Self::F64 => ("F64", 1, 8),
            Self::I8 => ("I8", 1, 1),
            Self::I16 => ("I16", 1, 2),
            Self::I32 => ("I32", 1, 4),
            Self::I64 => ("I64", 1, 8),
            Self::U8 => ("U8", 1, 1),
            Self::U16 => ("U16", 1, 2),
            Self::U32 => ("U32", 1, 4),
            Self::U64 => ("U64", 1, 8),
            Self::Bool => ("BOOL", 1, 1),
            Self::Q4_0 => ("Q4_0", 32, 18),
            Self::Q4_1 => ("Q4_1", 32, 20),
            Self::Q5_0 => ("Q5_0", 32, 22),
            Self::Q5_1 => ("Q5_1", 32, 24),
            Self::Q8_0 => ("Q8_0", 32, 34),
            Self::Q2K => ("Q2_K", 256, 84),
            Self::Q3K => ("Q3_K", 256, 110),
            Self::Q4K => ("Q4_K", 256, 144),
            Self::Q5K => ("Q5_K", 256, 176),
            Self::Q6K => ("Q6_K", 256, 210),
            Self::Iq4Nl => ("IQ4_NL", 32, 18),
            Self::Iq4Xs => ("IQ4_XS", 256, 136),
        }
    }

    /// The type with this number in GGUF's enumeration, if it is supported.
    pub fn from_gguf(type_id: u32) -> Option<Self> {
        Some(match type_id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            23 => Self::Iq4Xs,
            24 => Self::I8,
            25 => Self::I16,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// The type with this `dtype` in a safetensors header, if it is supported.
    pub fn from_safetensors(dtype: &str) -> Option<Self> {
        Some(match dtype {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F64" => Self::F64,
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

/// Names of the GGUF types that exist, or did, and are not read.
pub(super) fn refused_gguf_name(type_id: u32) -> String {
    let name = match type_id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return format!("unknown type {type_id}"),
    };
    format!("{name} (type {type_id})")
}

/// A tensor whose element type is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedTensor {
    /// The tensor.
    pub name: String,
    /// Its type as the file names or numbers it.
    pub ty: String,
}

/// `TYPE: a, b; OTHER: c`, every tensor listed.
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

//! How a constant is stored, and how many of its bytes a chip reads from memory. No data of the
//! constant is read.

use thane_mil::program::{Arg, Definition, Function, Op, ValueId};
use thane_mil::types::{DType, TensorType};

use crate::target::Chip;

/// How a constant is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Dense, in the element type that is used.
    Dense,
    /// Codes times a scale.
    Codes {
        /// Bits of a code.
        bits: usize,
        /// Whether an output channel has several scales.
        blocks: bool,
    },
    /// Codes that index a palette.
    Palette {
        /// Bits of a code.
        bits: usize,
        /// Whether there are several palettes.
        grouped: bool,
    },
    /// A mask, and the elements that are not zero.
    Sparse,
}

/// A constant as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored {
    /// Its encoding.
    pub encoding: Encoding,
    /// Bits of an element, masks included and palettes not.
    pub bits: f64,
}

/// Bits of an element on the engine, where it has no smaller form.
const ANE_BITS: f64 = 16.0;

impl Stored {
    const DENSE: Self = Self {
        encoding: Encoding::Dense,
        bits: ANE_BITS,
    };

    /// How a value of a function is stored; values that are not constant are dense.
    pub fn of(f: &Function, value: ValueId) -> Self {
        match f.value(value).definition {
            Definition::Result(op, _) if f.op(op).def.name.starts_with("constexpr_") => {
                Self::expanded(f, f.op(op))
            }
            _ => {
                // fp32 reaches the engine as fp16.
                let bits = f
                    .value(value)
                    .ty
                    .tensor()
                    .map_or(ANE_BITS, |t| (t.dtype.bits() as f64).min(ANE_BITS));
                Self {
                    bits,
                    ..Self::DENSE
                }
            }
        }
    }

    fn expanded(f: &Function, op: &Op) -> Self {
        let tensor = |name: &str| tensor(f, op, name);
        let bits_of = |name: &str| tensor(name).map(|t| t.dtype.bits()).filter(|b| *b > 0);
        let codes = |name: &str, blocks: bool| {
            let bits = bits_of(name).unwrap_or(8);
            (Encoding::Codes { bits, blocks }, bits as f64)
        };
        let (encoding, bits) = match op.def.name {
            "constexpr_affine_dequantize" => codes("quantized_data", false),
            "constexpr_blockwise_shift_scale" => {
                codes("data", tensor("scale").is_some_and(|s| in_blocks(&s)))
            }
            "constexpr_lut_to_dense" => {
                let (bits, grouped) = (palette_bits(f, op).unwrap_or(8), has_tables(f, op));
                (Encoding::Palette { bits, grouped }, bits as f64)
            }
            "constexpr_sparse_to_dense" => {
                let result = op.results.first();
                let whole = result.and_then(|r| f.value(*r).ty.tensor()?.n_elements());
                let kept = tensor("nonzero_data");
                let n = kept.as_ref().and_then(TensorType::n_elements).unwrap_or(0) as f64;
                let each = kept.map_or(16, |t| t.dtype.bits()) as f64;
                let whole = whole.filter(|n| *n > 0);
                let part = whole.map_or(1.0, |whole| (n / whole as f64).min(1.0));
                (Encoding::Sparse, (1.0 + part * each).min(ANE_BITS))
            }
            // Of zeros that are left out and codes both; what is stored is the codes of the rest,
            // not told here.
            _ => return Self::DENSE,
        };
        Self { encoding, bits }
    }

    /// Bits of an element that a chip reads from memory.
    pub fn streamed_bits(&self, chip: &Chip) -> f64 {
        let streaming = &chip.family.streaming;
        let streams = match self.encoding {
            Encoding::Dense => true,
            Encoding::Codes { blocks: true, .. } => false,
            Encoding::Codes { bits, .. } => {
                if bits < 8 {
                    streaming.int4
                } else {
                    streaming.int8
                }
            }
            Encoding::Palette { .. } => streaming.palettes,
            Encoding::Sparse => streaming.sparse,
        };
        match self.encoding {
            _ if !streams => ANE_BITS,
            // Codes of three bits are stored in four before H18.
            Encoding::Palette { bits: 3, .. } if chip.generation < 18 => 4.0,
            _ => self.bits,
        }
    }

    /// Weights that can be decoded, in 10^9/s, where decoding and not memory is the limit.
    pub fn lookup_gps(&self, chip: &Chip) -> Option<f64> {
        let streaming = &chip.family.streaming;
        let figure = match self.encoding {
            Encoding::Palette { grouped: true, .. } => {
                streaming.grouped_palette_gps.or(streaming.palette_gps)
            }
            Encoding::Palette { .. } => streaming.palette_gps,
            _ => None,
        };
        figure.map(|f| f.value)
    }
}

/// The type of the argument of a parameter.
fn tensor(f: &Function, op: &Op, name: &str) -> Option<TensorType> {
    match op.arg(name)? {
        Arg::Value(v) => f.value(*v).ty.tensor().cloned(),
        Arg::Literal(literal) => literal.ty().tensor().cloned(),
        Arg::Values(_) => None,
    }
}

/// Whether an output channel, the first axis, has several scales.
fn in_blocks(scale: &TensorType) -> bool {
    scale.shape.iter().skip(1).any(|d| d.known() != Some(1))
}

/// Bits of a code: those of its type, or in the older form those that the palette's length needs.
fn palette_bits(f: &Function, op: &Op) -> Option<usize> {
    let lut = tensor(f, op, "lut")?;
    let indices = tensor(f, op, "indices")?;
    if lut.rank() > 1 || indices.dtype != DType::Uint8 {
        return Some(indices.dtype.bits()).filter(|b| *b > 0);
    }
    lut.n_elements()
        .filter(|n| *n > 1)
        .map(|n| n.ilog2() as usize)
}

/// Whether a palette has several tables: in the newer form, all axes of `lut` but the last two
/// count them.
fn has_tables(f: &Function, op: &Op) -> bool {
    let Some(lut) = tensor(f, op, "lut") else {
        return false;
    };
    lut.rank() > 2
        && lut.shape[..lut.rank() - 2]
            .iter()
            .any(|d| d.known() != Some(1))
}

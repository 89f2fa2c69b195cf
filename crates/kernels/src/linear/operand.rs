//! Weights in the forms that products take, and where products go.

use super::choose::{Form, Path, Precision, choose};
use super::codes::{Codes, PackedCodes};
use super::compressed::Compressed;
use super::halves::HalfPanels;
use super::int8::Int8Weight;
use super::output::{Output, Start};
use super::packed::Packed;
use super::tables::TableCodes;
use super::weight::Weight;
use crate::Isa;
use crate::quant::{BlockType, has_format};

/// A weight matrix [n_rows, n_cols] in one of its forms.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// As stored.
    Stored(Weight<'a>),
    /// Floats in panels.
    Panels(Packed<'a>),
    /// 16-bit floats in panels, which products widen to f32.
    Halves(HalfPanels<'a>),
    /// Packed codes.
    Codes(PackedCodes<'a>),
    /// Codes with tables or scales of their own.
    Compressed(Compressed<'a>),
    /// Codes with tables in the order of products with activations in 8 bits.
    Tables(TableCodes<'a>),
    /// Integers that floats were rounded to.
    Int8(Int8Weight<'a>),
}

impl<'a> From<Weight<'a>> for Operand<'a> {
    fn from(weight: Weight<'a>) -> Self {
        Self::Stored(weight)
    }
}

impl<'a> From<Packed<'a>> for Operand<'a> {
    fn from(packed: Packed<'a>) -> Self {
        Self::Panels(packed)
    }
}

impl<'a> From<PackedCodes<'a>> for Operand<'a> {
    fn from(packed: PackedCodes<'a>) -> Self {
        Self::Codes(packed)
    }
}

impl<'a> From<Int8Weight<'a>> for Operand<'a> {
    fn from(int8: Int8Weight<'a>) -> Self {
        Self::Int8(int8)
    }
}

impl<'a> From<Codes<'a>> for Operand<'a> {
    fn from(codes: Codes<'a>) -> Self {
        match codes {
            Codes::Stored(weight) => Self::Stored(weight),
            Codes::Packed(packed) => Self::Codes(packed),
            Codes::Tables(tables) => Self::Tables(tables),
        }
    }
}

impl<'a> Operand<'a> {
    /// Outputs.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Stored(weight) => weight.n_rows,
            Self::Panels(packed) => packed.n_rows,
            Self::Codes(packed) => packed.n_rows,
            Self::Compressed(weight) => weight.n_rows(),
            Self::Tables(weight) => weight.n_rows(),
            Self::Halves(weight) => weight.n_rows(),
            Self::Int8(int8) => int8.n_rows,
        }
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        match self {
            Self::Stored(weight) => weight.n_cols,
            Self::Panels(packed) => packed.n_cols,
            Self::Codes(packed) => packed.n_cols,
            Self::Compressed(weight) => weight.n_cols(),
            Self::Tables(weight) => weight.n_cols(),
            Self::Halves(weight) => weight.n_cols(),
            Self::Int8(int8) => int8.n_cols,
        }
    }

    /// The path of a product of `n_tokens` with this weight alone.
    pub fn path(&self, isa: Isa, precision: Precision, n_tokens: usize) -> Path {
        let (ty, form) = match self {
            Self::Stored(weight) => (weight.ty, Form::Stored),
            Self::Panels(packed) => (packed.ty, Form::Packed),
            Self::Codes(packed) => (packed.ty, Form::Packed),
            // As what they are unpacked to.
            Self::Tables(_) => (BlockType::Q8_0, Form::Tables),
            // Their values are those of floats that are unpacked.
            Self::Compressed(_) | Self::Halves(_) => (BlockType::F32, Form::Stored),
            Self::Int8(_) => (BlockType::F32, Form::Int8),
        };
        choose(
            isa,
            precision,
            (ty, form),
            [self.n_rows(), self.n_cols()],
            n_tokens,
        )
    }

    /// The weight as codes, where it has codes.
    pub(super) fn codes(&self) -> Option<Codes<'a>> {
        match self {
            Self::Stored(weight) if has_format(weight.ty) => Some(Codes::Stored(*weight)),
            Self::Codes(packed) => Some(Codes::Packed(*packed)),
            Self::Tables(tables) => Some(Codes::Tables(*tables)),
            _ => None,
        }
    }
}

/// A weight and where its product goes.
#[derive(Debug)]
pub struct Product<'a> {
    pub(super) weight: Operand<'a>,
    pub(super) out: Output<'a>,
}

impl<'a> Product<'a> {
    /// `y` is [n_tokens, n_rows].
    ///
    /// # Panics
    /// If the matrix is not well formed, or a size does not fit.
    pub fn new(
        weight: impl Into<Operand<'a>>,
        n_tokens: usize,
        start: Start<'a>,
        y: &'a mut [f32],
    ) -> Self {
        Self::of(weight.into(), n_tokens, start, y)
    }

    pub(super) fn of(
        weight: Operand<'a>,
        n_tokens: usize,
        start: Start<'a>,
        y: &'a mut [f32],
    ) -> Self {
        match weight {
            Operand::Stored(weight) => {
                weight.checked();
            }
            Operand::Codes(packed) => Codes::Packed(packed).check(),
            // Their products check them, or they were checked when they were made.
            Operand::Panels(_)
            | Operand::Halves(_)
            | Operand::Int8(_)
            | Operand::Compressed(_)
            | Operand::Tables(_) => {}
        }
        Self {
            weight,
            out: Output::new(weight.n_rows(), n_tokens, start, y),
        }
    }
}

//! How a quantized type divides a block.

/// The element type of codes after unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeType {
    /// -8 to 7.
    Int4,
    /// 0 to 15.
    Uint4,
    /// -128 to 127.
    Int8,
    /// 0 to 255; no type has codes above 127.
    Uint8,
}

/// How a quantized type divides a block: `value = scale * code + minimum`.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    /// Element type of the codes, or of the indices where there is a lookup table.
    pub ty: CodeType,
    /// Consecutive values that share a scale and a minimum.
    pub group_len: usize,
    /// Whether groups have minimums.
    pub has_minimum: bool,
    /// The lookup table that maps indices to codes.
    pub table: Option<&'static [i8; 16]>,
    /// The f16 numbers of a block and the largest magnitude that each is multiplied by, as
    /// `(byte offset, factor)`. No value of the block exceeds the sum of these products. Empty
    /// where a block has no f16 scale: its values are then decoded to find their bound.
    pub(crate) factors: &'static [(usize, f32)],
}

impl Codes {
    /// Byte offsets of the f16 numbers of a block; none where a block has no f16 scale.
    pub fn f16_offsets(&self) -> impl Iterator<Item = usize> {
        self.factors.iter().map(|(at, _)| *at)
    }

    pub(crate) const fn new(
        ty: CodeType,
        group_len: usize,
        factors: &'static [(usize, f32)],
    ) -> Self {
        Self {
            ty,
            group_len,
            has_minimum: false,
            table: None,
            factors,
        }
    }

    pub(crate) const fn with_minimum(self) -> Self {
        Self {
            has_minimum: true,
            ..self
        }
    }

    pub(crate) const fn with_table(
        table: &'static [i8; 16],
        factors: &'static [(usize, f32)],
    ) -> Self {
        Self {
            table: Some(table),
            ..Self::new(CodeType::Uint4, 32, factors)
        }
    }
}

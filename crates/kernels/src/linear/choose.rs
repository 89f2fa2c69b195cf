//! How a product is computed: the only place that decides it.
//!
//! [`choose`] gives the [`Path`] of one product; [`in_parts`] is the one decision that products of
//! the same activations take together. Thresholds stand here with their measurements.

use crate::Isa;
use crate::quant::{BlockType, has_format};
use crate::simd::{Kernel, Parts, Simd};

/// Up to this many tokens, weight rows are dotted one by one: from three on, unpacking panels pays
/// (measured for Q4_1 1536 x 576 on an AMD EPYC of family 26: 40 us for two tokens, 53 for three,
/// 51 with panels for five).
pub(crate) const MAX_ROW_TOKENS: usize = 2;
/// As [`MAX_ROW_TOKENS`], for weights in bf16, which need no unpacking (measured for 1536 x 576 on
/// an AMD EPYC of family 26, from the cache and from memory: 32 tokens take 193 and 295 us, 48 take
/// 295 and 436, and transposed 67 take 396 and 444).
const MAX_BF16_ROW_TOKENS: usize = 32;
/// Up to this many tokens, packed codes are unpacked again for each tile of tokens, and stored
/// codes are multiplied by themselves.
pub(super) const MAX_TILED_TOKENS: usize = 8;

/// What may be rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Nothing: f32 arithmetic on the weight's own values. The reference.
    Exact,
    /// Activations: to 8 bits for weights that have codes; for weights in bf16 to bf16, to nearest
    /// even, where the [`Isa`] [has bf16 products](Isa::has_bf16). Sums of these are f32; subnormal
    /// activations, weights and sums count as zero, and an activation above the largest bf16,
    /// 3.39e38, is infinite.
    Fast,
}

/// In which form a weight is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Rows of blocks, as stored.
    Stored,
    /// Packed: floats in panels, or codes in the order that products read them.
    Packed,
    /// Packed codes with tables.
    Tables,
    /// Rounded to integers.
    Int8,
}

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The values of each row, dotted with each token in f32.
    F32Rows,
    /// Rows unpacked to panels of f32, which all tokens go over.
    F32Panels,
    /// Panels of f32 that were packed before.
    F32Packed,
    /// Rows in bf16, dotted with each token in bf16.
    Bf16Rows,
    /// Rows in bf16 transposed to panels.
    Bf16Panels,
    /// Panels in bf16 that were packed before.
    Bf16Packed,
    /// Weights rounded to integers, activations rotated and rounded.
    Int8,
    /// The codes of each stored row, dotted with each token.
    CodeRows,
    /// Packed codes, multiplied as they are read.
    CodeTiles,
    /// Codes unpacked to panels of bytes, which all tokens go over.
    CodePanels,
    /// The same, with sums of two products in 16 bits or of four in 32.
    CodeParts,
}

impl Path {
    /// A short name, for profiles.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32Rows => "f32 rows",
            Self::F32Panels => "f32 panels",
            Self::F32Packed => "f32 packed",
            Self::Bf16Rows => "bf16 rows",
            Self::Bf16Panels => "bf16 panels",
            Self::Bf16Packed => "bf16 packed",
            Self::Int8 => "int8",
            Self::CodeRows => "code rows",
            Self::CodeTiles => "code tiles",
            Self::CodePanels => "code panels",
            Self::CodeParts => "code parts",
        }
    }
}

/// The path of a product of `n_tokens` with a weight [n_rows, n_cols] of this type, held in this
/// form.
pub fn choose(
    isa: Isa,
    precision: Precision,
    (ty, form): (BlockType, Form),
    [n_rows, n_cols]: [usize; 2],
    n_tokens: usize,
) -> Path {
    let is_bf16 = ty == BlockType::Bf16 && isa.has_bf16();
    match form {
        Form::Int8 => Path::Int8,
        Form::Tables if n_tokens <= MAX_TILED_TOKENS => Path::CodeTiles,
        Form::Tables if is_wide(isa) => Path::CodeParts,
        Form::Tables => Path::CodePanels,
        Form::Packed if has_format(ty) => packed_codes(isa, ty, [n_rows, n_cols], n_tokens),
        Form::Packed if is_bf16 => Path::Bf16Packed,
        Form::Packed => Path::F32Packed,
        Form::Stored if precision == Precision::Fast && is_bf16 => {
            // Two columns go as one.
            if n_tokens > MAX_BF16_ROW_TOKENS && n_cols.is_multiple_of(2) {
                Path::Bf16Panels
            } else {
                Path::Bf16Rows
            }
        }
        Form::Stored if precision == Precision::Fast && has_format(ty) => {
            if n_tokens > MAX_TILED_TOKENS && is_wide(isa) && is_vocabulary(n_rows, n_cols) {
                Path::CodePanels
            } else {
                stored_codes(isa, n_tokens)
            }
        }
        Form::Stored if n_tokens <= MAX_ROW_TOKENS => Path::F32Rows,
        Form::Stored => Path::F32Panels,
    }
}

/// The path of stored codes by themselves.
pub(super) fn stored_codes(isa: Isa, n_tokens: usize) -> Path {
    match n_tokens {
        ..=MAX_ROW_TOKENS => Path::CodeRows,
        _ if has_parts(isa) => Path::CodeParts,
        _ => Path::CodePanels,
    }
}

/// Products of many tokens go in parts, unless codes have eight bits and would be two planes, which
/// is no faster, or would be fitted to 8 bits and are a vocabulary's.
///
/// Elsewhere codes of four bits are unpacked for each tile of any number of tokens: that takes no
/// more than two instructions, and half as much of the first-level cache as bytes. Where
/// activations are multiplied in parts, codes of eight bits need no unpacking but where they are
/// split: those are for up to two tiles of tokens, which takes 0.8 of the time (AVX-512, AMD EPYC
/// of family 26).
fn packed_codes(isa: Isa, ty: BlockType, [n_rows, n_cols]: [usize; 2], n_tokens: usize) -> Path {
    let is_byte = ty == BlockType::Q8_0;
    let is_apart = if is_wide(isa) {
        is_vocabulary(n_rows, n_cols)
    } else {
        is_byte && has_planes(isa)
    };
    if n_tokens > MAX_TILED_TOKENS && has_parts(isa) && !is_apart {
        return Path::CodeParts;
    }
    tiles_or_panels(isa, ty, [n_rows, n_cols], n_tokens)
}

/// The path of packed codes that do not go in parts.
fn tiles_or_panels(isa: Isa, ty: BlockType, [n_rows, n_cols]: [usize; 2], n_tokens: usize) -> Path {
    let is_split = is_split(ty, n_rows, n_cols);
    let is_short = matches!(ty, BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4K);
    let is_whole = ty == BlockType::Q8_0 && !is_split;
    let is_two_tiles = is_split && is_wide(isa) && n_tokens <= 2 * MAX_TILED_TOKENS;
    let is_tiled =
        n_tokens <= MAX_TILED_TOKENS || is_two_tiles || is_short || is_whole && has_parts(isa);
    if is_tiled {
        Path::CodeTiles
    } else {
        Path::CodePanels
    }
}

/// Whether products of the same activations, of these paths and more than [`MAX_TILED_TOKENS`]
/// tokens, all go in parts: as soon as one does, because activations have one layout.
pub(super) fn in_parts(mut paths: impl Iterator<Item = Path>, n_tokens: usize) -> bool {
    n_tokens > MAX_TILED_TOKENS && paths.any(|path| path == Path::CodeParts)
}

/// Whether products of many tokens and codes are computed in [`parts`](super::parts).
pub(super) fn has_parts(isa: Isa) -> bool {
    isa.parts() != Parts::None
}

/// Whether codes of eight bits are two planes there.
pub(super) fn has_planes(isa: Isa) -> bool {
    isa.parts().are_of_two()
}

/// Whether codes are fitted to 8 bits there.
pub(super) fn is_wide(isa: Isa) -> bool {
    isa.has_wide_sums()
}

/// Panels that a task multiplies at once, of floats and of codes: with many registers each input
/// that is read is multiplied with two.
pub(super) fn task_panels(isa: Isa) -> usize {
    struct TaskPanels;
    impl Kernel for TaskPanels {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd>(self, _simd: S) -> usize {
            most_panels::<S>()
        }
    }
    isa.run(TaskPanels)
}

/// [`task_panels`] of an instruction set.
pub(super) const fn most_panels<S: Simd>() -> usize {
    if S::HAS_MANY_REGISTERS { 2 } else { 1 }
}

/// Whether there are so many rows that the outputs are logits. Fitted codes of these had a third to
/// a half of what a perplexity lost by fitted codes.
fn is_vocabulary(n_rows: usize, n_cols: usize) -> bool {
    n_rows / 16 > n_cols
}

/// True where a packed matrix has its codes' lower bits apart, so that rows can be
/// [screened](super::linear_codes_best).
pub(super) fn is_split(ty: BlockType, n_rows: usize, n_cols: usize) -> bool {
    ty == BlockType::Q8_0 && is_vocabulary(n_rows, n_cols)
}

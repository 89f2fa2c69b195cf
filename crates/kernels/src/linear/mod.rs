//! Products of activations with a weight matrix:
//! `y[t, o] = bias[o] + sum over i of x[t, i] * w[o, i]`.
//!
//! [`linear_f32`] is the reference: f32 arithmetic on the weight's own values. [`linear_q8`]
//! multiplies quantised weights as they are stored with activations quantised to 8 bits per 32
//! ([`quantize_q8`]). [`linear_fast`] takes the one that suits the weight; it also multiplies bf16
//! weights with activations in bf16 where the machine can (`bf16`).
//!
//! Both have two forms. For few tokens a weight row is read once, straight from memory, and dotted
//! with each token (`rows`): as fast as memory allows. For more, 16 rows at a time are unpacked to
//! a panel whose lanes are rows, and all tokens go over it (`panel`, `dense` and its `tiles`;
//! `parts` where sums of bytes without a sign times bytes with one are cheap).

#[cfg(target_arch = "x86_64")]
mod bf16;
mod codes;
mod dense;
mod int8;
mod packed;
mod panel;
mod parts;
mod q8;
mod rows;
mod tiles;

use std::fmt;
use std::ops::Range;

pub use codes::{
    Codes, CodesProduct, GatedCodes, LINE_BYTES, PackedCodes, linear_codes, linear_codes_best,
    linear_codes_best_scratch_len, linear_codes_gated, linear_codes_gated_scratch_len,
    linear_codes_scratch_len, pack_codes, pack_codes_scratch_len, packed_codes_len,
};
pub use int8::{
    Int8Activations, Int8Block, Int8Weight, int8_len, int8_scratch_len, linear_int8, pack_int8,
    quantize_int8,
};
pub use packed::{
    Packed, PackedColumn, linear_packed, linear_packed_scratch_len, pack, packed_len,
};
pub use q8::{Q8Activations, q8_scratch_len, quantize_q8};

use crate::activation::Unary;
use crate::quant::dequantize::dequantize;
use crate::quant::{BlockType, has_format};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512Bf16;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::{Pool, SharedMut};
use crate::{Context, Isa};

/// Up to this many tokens, weight rows are dotted one by one: from three on, unpacking panels pays
/// (measured for Q4_1 1536 x 576 on an AMD EPYC of family 26: 40 us for two tokens, 53 for three,
/// 51 with panels for five).
pub(crate) const MAX_ROW_TOKENS: usize = 2;

/// A weight matrix as stored: row after row of blocks; row `o` makes output `o`.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How the values are stored.
    pub ty: BlockType,
    /// `n_rows` rows of `ty.byte_len(n_cols)` bytes.
    pub bytes: &'a [u8],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Why a [`Weight`] cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightError {
    /// The row is not a whole number of blocks.
    Cols {
        /// The type.
        ty: BlockType,
        /// The row's length.
        n_cols: usize,
    },
    /// Too few or too many bytes.
    Bytes {
        /// The bytes of this many rows; None if they are too many to count.
        expected: Option<usize>,
        /// The bytes given.
        actual: usize,
    },
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cols { ty, n_cols } => {
                write!(
                    f,
                    "a row of {n_cols} values is not a whole number of {ty:?} blocks of {}",
                    ty.block_len()
                )
            }
            Self::Bytes {
                expected: Some(expected),
                actual,
            } => {
                write!(f, "the weight needs {expected} bytes and has {actual}")
            }
            Self::Bytes {
                expected: None,
                actual,
            } => {
                write!(
                    f,
                    "the weight needs more bytes than can be counted and has {actual}"
                )
            }
        }
    }
}

impl std::error::Error for WeightError {}

impl<'a> Weight<'a> {
    /// A weight whose sizes fit together.
    ///
    /// # Errors
    /// If the columns are not whole blocks or the bytes are not the rows.
    pub fn new(
        ty: BlockType,
        bytes: &'a [u8],
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Self, WeightError> {
        let row_bytes = ty
            .byte_len(n_cols)
            .ok_or(WeightError::Cols { ty, n_cols })?;
        let expected = row_bytes.checked_mul(n_rows);
        if expected != Some(bytes.len()) {
            return Err(WeightError::Bytes {
                expected,
                actual: bytes.len(),
            });
        }
        Ok(Self {
            ty,
            bytes,
            n_rows,
            n_cols,
        })
    }

    /// The same weight, checked.
    fn checked(&self) -> Rows<'a> {
        if let Err(err) = Self::new(self.ty, self.bytes, self.n_rows, self.n_cols) {
            panic!("{err}");
        }
        self.rows()
    }

    /// The rows of a weight whose sizes fit together.
    fn rows(&self) -> Rows<'a> {
        Rows {
            bytes: self.bytes,
            row_bytes: self.bytes.len() / self.n_rows.max(1),
            n_rows: self.n_rows,
        }
    }
}

/// The rows of a checked weight.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    n_rows: usize,
}

impl<'a> Rows<'a> {
    fn n_rows(self) -> usize {
        self.n_rows
    }

    #[inline(always)]
    fn get(self, row_idx: usize) -> &'a [u8] {
        &self.bytes[row_idx * self.row_bytes..][..self.row_bytes]
    }
}

/// What a product is added to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start<'a> {
    /// A number for each output of a token.
    pub bias: Option<&'a [f32]>,
    /// The outputs as they are.
    pub accumulates: bool,
}

impl<'a> Start<'a> {
    /// Nothing is added.
    pub const NONE: Self = Start {
        bias: None,
        accumulates: false,
    };

    /// A number for each output of a token.
    pub fn bias(bias: &'a [f32]) -> Self {
        Self {
            bias: Some(bias),
            accumulates: false,
        }
    }
}

impl<'a> From<Option<&'a [f32]>> for Start<'a> {
    fn from(bias: Option<&'a [f32]>) -> Self {
        Self {
            bias,
            accumulates: false,
        }
    }
}

/// Where a product goes: `y` [n_tokens, n_rows], written by several tasks.
#[derive(Debug)]
struct Output<'a> {
    y: SharedMut<'a, f32>,
    start: Start<'a>,
    n_rows: usize,
    /// What becomes of an output that is whole.
    then: Option<(Unary, Isa)>,
}

/// Which columns of a matrix a sum is of.
#[derive(Clone, Copy)]
struct Extent {
    is_first: bool,
    is_last: bool,
}

impl<'a> Output<'a> {
    fn new(n_rows: usize, n_tokens: usize, start: Start<'a>, y: &'a mut [f32]) -> Self {
        assert_eq!(
            Some(y.len()),
            n_tokens.checked_mul(n_rows),
            "outputs of {n_tokens} tokens and {n_rows} rows"
        );
        assert!(
            start.bias.is_none_or(|bias| bias.len() == n_rows),
            "one bias per row"
        );
        Self {
            y: SharedMut::new(y),
            start,
            n_rows,
            then: None,
        }
    }

    /// What a sum is added to, given the output as it is.
    #[inline(always)]
    fn start(&self, row_idx: usize, y: f32) -> f32 {
        let bias = self.start.bias.map_or(0.0, |bias| bias[row_idx]);
        if self.start.accumulates {
            y + bias
        } else {
            bias
        }
    }

    /// These outputs, of which each becomes what `op` gives of it.
    fn then(self, ctx: &Context, op: Option<Unary>) -> Self {
        Self {
            then: op.map(|op| (op, ctx.isa())),
            ..self
        }
    }

    /// What becomes of some outputs that are whole: while they are in the first cache.
    #[inline(always)]
    fn finish(&self, first_token: usize, n_tokens: usize, first_row: usize) {
        if let Some((op, isa)) = self.then {
            let end = first_token + n_tokens;
            for start in (first_token..end).step_by(FINISH_TOKENS) {
                Finish {
                    op,
                    out: self,
                    first_row,
                    tokens: start..end.min(start + FINISH_TOKENS),
                }
                .run_on(isa);
            }
        }
    }

    /// Where the sums of a panel go, from a token on: of the first columns, or of others.
    #[inline(always)]
    fn panel(&self, first_token: usize, first_row: usize, is_first: bool) -> PanelSums<'_> {
        let n_rows = (self.n_rows - first_row).min(LANES);
        let bias = self
            .start
            .bias
            .filter(|_| is_first)
            .map(|bias| &bias[first_row..][..n_rows]);
        let start = Start {
            bias,
            accumulates: self.start.accumulates || !is_first,
        };
        PanelSums {
            all: &self.y,
            first: first_token * self.n_rows + first_row,
            stride: self.n_rows,
            n_rows,
            start,
        }
    }

    /// Outputs of one token, from `row_idx` on.
    ///
    /// # Safety
    /// No other task has any of these outputs.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    unsafe fn part(&self, token_idx: usize, row_idx: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.y.slice(token_idx * self.n_rows + row_idx, len) }
    }
}

/// 16 rows, or as many as there are, of some tokens.
struct PanelSums<'a> {
    all: &'a SharedMut<'a, f32>,
    /// The first of the first token.
    first: usize,
    /// From token to token.
    stride: usize,
    n_rows: usize,
    /// What is added to; its bias is of these rows.
    start: Start<'a>,
}

impl PanelSums<'_> {
    /// Those of a token.
    ///
    /// # Safety
    /// Nobody else has any of them.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    unsafe fn of(&self, token_idx: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe {
            self.all
                .slice(self.first + token_idx * self.stride, self.n_rows)
        }
    }

    /// Asks for those of some tokens.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, n_tokens: usize) {
        for token_idx in 0..n_tokens {
            // Of rows that begin within a line there are two.
            simd.prefetch(self.all.address(self.first + token_idx * self.stride));
            simd.prefetch(
                self.all
                    .address(self.first + token_idx * self.stride + self.n_rows - 1),
            );
        }
    }

    /// Stores the sums of as many tokens as there are, added to what they start with.
    ///
    /// # Safety
    /// Nobody else has any of them.
    #[inline(always)]
    unsafe fn add<S: Simd, const N: usize>(&self, simd: S, sums: [S::F; N], n_tokens: usize) {
        if self.n_rows == LANES && n_tokens >= N {
            let bias = self.start.bias.and_then(|bias| bias.first_chunk());
            let bias = bias.map_or(simd.splat(0.0), |bias| simd.load(bias));
            for n in 0..N {
                // SAFETY: the caller's promise.
                let y = unsafe { self.all.slice(self.first + n * self.stride, LANES) };
                let y = y.first_chunk_mut().expect("16 rows");
                let before = if self.start.accumulates {
                    simd.add(simd.load(y), bias)
                } else {
                    bias
                };
                simd.store(simd.add(before, sums[n]), y);
            }
            return;
        }
        for n in 0..N {
            if n < n_tokens {
                let mut lanes = [0.0; LANES];
                simd.store(sums[n], &mut lanes);
                // SAFETY: the caller's promise.
                self.start.add_few(&lanes, unsafe { self.of(n) });
            }
        }
    }
}

/// Tokens of a [`Finish`], at most: at once, as none of them waits for another.
const FINISH_TOKENS: usize = 6;

/// Outputs of a few tokens become what `op` gives of them.
///
/// Small: what is large is copied by vectors, which wait for what was just written in parts.
struct Finish<'a> {
    op: Unary,
    out: &'a Output<'a>,
    first_row: usize,
    tokens: Range<usize>,
}

impl Finish<'_> {
    /// Never inlined: inlined into each tile, every activation was compiled for every instruction
    /// set, which took most of this crate's build time.
    #[inline(never)]
    fn run_on(self, isa: Isa) {
        isa.run(self);
    }
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            op,
            out,
            first_row,
            tokens,
        } = self;
        let sums = out.panel(tokens.start, first_row, false);
        let mut values = [simd.splat(0.0); FINISH_TOKENS];
        for i in 0..FINISH_TOKENS {
            if i < tokens.len() {
                // SAFETY: they belong, for these tokens, to this task alone.
                values[i] = simd.load(&filled_up(unsafe { sums.of(i) }));
            }
        }
        let values = op.of_each(simd, values);
        for i in 0..FINISH_TOKENS {
            if i < tokens.len() {
                // SAFETY: as above.
                store(simd, values[i], unsafe { sums.of(i) });
            }
        }
    }
}

/// Stores 16 values, or as many as there are.
#[inline(always)]
fn store<S: Simd>(simd: S, values: S::F, to: &mut [f32]) {
    if let Some(to) = to.first_chunk_mut() {
        return simd.store(values, to);
    }
    let mut lanes = [0.0; LANES];
    simd.store(values, &mut lanes);
    to.copy_from_slice(&lanes[..to.len()]);
}

/// 16 values; zeros where there are none.
#[inline(always)]
fn filled_up(values: &[f32]) -> [f32; LANES] {
    values.first_chunk().copied().unwrap_or_else(|| {
        let mut lanes = [0.0; LANES];
        lanes[..values.len()].copy_from_slice(values);
        lanes
    })
}

impl Start<'_> {
    /// Stores some sums, added to what they start with.
    #[cold]
    fn add_few(&self, sums: &[f32; LANES], y: &mut [f32]) {
        for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
            let bias = self.bias.map_or(0.0, |bias| bias[i]);
            *y = sum + if self.accumulates { *y + bias } else { bias };
        }
    }
}

/// f32s of scratch that [`linear_f32`] needs.
pub fn linear_f32_scratch_len(ctx: &Context, weight: &Weight, n_tokens: usize) -> usize {
    if n_tokens <= MAX_ROW_TOKENS {
        0
    } else {
        dense::scratch_len(ctx, weight, n_tokens)
    }
}

/// The reference product: f32 arithmetic on the weight's own values. `x` is [n_tokens, n_cols], `y`
/// [n_tokens, n_rows].
///
/// # Panics
/// If the weight is not well formed, a size does not fit, or the scratch is shorter than
/// [`linear_f32_scratch_len`].
pub fn linear_f32(
    ctx: &Context,
    weight: &Weight,
    x: &[f32],
    n_tokens: usize,
    start: Start,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let rows = weight.checked();
    assert_eq!(
        Some(x.len()),
        n_tokens.checked_mul(weight.n_cols),
        "inputs of {n_tokens} tokens"
    );
    assert!(
        scratch.len() >= linear_f32_scratch_len(ctx, weight, n_tokens),
        "scratch"
    );
    let out = Output::new(weight.n_rows, n_tokens, start, y);
    if n_tokens <= MAX_ROW_TOKENS {
        rows::linear_f32(ctx, weight, rows, x, n_tokens, &out);
    } else {
        dense::linear_f32(ctx, weight, x, n_tokens, &out, scratch);
    }
}

/// f32s of scratch that [`linear_q8`] needs.
pub fn linear_q8_scratch_len(ctx: &Context, weight: &Weight, n_tokens: usize) -> usize {
    if n_tokens <= MAX_ROW_TOKENS {
        0
    } else {
        ctx.pool().n_threads() * panel::worker_len(ctx.isa(), weight.ty, weight.n_cols)
    }
}

/// The fast product of a quantised weight with quantised activations; `y` is [n_tokens, n_rows].
/// Integer products, scales in f32.
///
/// A block of activations that holds an infinity or NaN makes all of its token's outputs NaN. With
/// AVX-512 the codes of more than two tokens' weights are first fitted to 8 bits, of which 256
/// columns of a row share a scale: to nearest, but for a thirty-second of a code.
///
/// # Panics
/// If the weight is of a float type or not well formed, a size does not fit, or the scratch is
/// shorter than [`linear_q8_scratch_len`].
pub fn linear_q8(
    ctx: &Context,
    weight: &Weight,
    x: &Q8Activations,
    start: Start,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let rows = weight.checked();
    assert!(
        has_format(weight.ty),
        "a weight of type {:?} has no codes to multiply",
        weight.ty
    );
    assert_eq!(x.n_cols(), weight.n_cols, "columns of the activations");
    assert!(
        scratch.len() >= linear_q8_scratch_len(ctx, weight, x.n_tokens()),
        "scratch"
    );
    let out = Output::new(weight.n_rows, x.n_tokens(), start, y);
    if x.n_tokens() <= MAX_ROW_TOKENS {
        rows::linear_q8(ctx, weight.ty, rows, x, &out);
    } else if parts::is_for(ctx.isa()) {
        let to = parts::Target {
            out: &out,
            gate: None,
        };
        parts::multiply(ctx, &[Codes::Stored(*weight)], x, to, scratch);
    } else {
        panel::linear_q8(ctx, weight.ty, rows, x, &out, scratch);
    }
}

/// f32s of scratch that [`linear_fast`] needs.
pub fn linear_fast_scratch_len(ctx: &Context, weight: &Weight, n_tokens: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if bf16_products(ctx, weight.ty).is_some() {
        return bf16::scratch_len(ctx, weight, n_tokens);
    }
    if !has_format(weight.ty) {
        return linear_f32_scratch_len(ctx, weight, n_tokens);
    }
    linear_q8_scratch_len(ctx, weight, n_tokens) + q8_scratch_len(n_tokens, weight.n_cols)
}

/// The fast product: [`linear_q8`] of the activations quantised here, or, for a float weight,
/// [`linear_f32`].
///
/// A bf16 weight on an [`Isa`] that [has bf16 products](crate::Isa::has_bf16) is multiplied with
/// the activations rounded to bf16, to nearest even; sums are f32. There, subnormal activations,
/// weights and sums count as zero, and an activation above the largest bf16, 3.39e38, is infinite.
///
/// # Panics
/// As [`linear_f32`], with the scratch of [`linear_fast_scratch_len`].
pub fn linear_fast(
    ctx: &Context,
    weight: &Weight,
    x: &[f32],
    n_tokens: usize,
    start: Start,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = bf16_products(ctx, weight.ty) {
        assert_eq!(
            Some(x.len()),
            n_tokens.checked_mul(weight.n_cols),
            "inputs of {n_tokens} tokens"
        );
        assert!(
            scratch.len() >= bf16::scratch_len(ctx, weight, n_tokens),
            "scratch"
        );
        let out = Output::new(weight.n_rows, n_tokens, start, y);
        return bf16::linear(ctx, simd, weight, x, n_tokens, &out, scratch);
    }
    if !has_format(weight.ty) {
        return linear_f32(ctx, weight, x, n_tokens, start, y, scratch);
    }
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(n_tokens, weight.n_cols));
    let activations = quantize_q8(ctx, x, n_tokens, weight.n_cols, activations);
    linear_q8(ctx, weight, &activations, start, y, scratch);
}

/// How to multiply weights of this type in bf16, if they are and the instruction set can.
#[cfg(target_arch = "x86_64")]
fn bf16_products(ctx: &Context, ty: BlockType) -> Option<Avx512Bf16> {
    if ty == BlockType::Bf16 {
        Avx512Bf16::of(ctx.isa())
    } else {
        None
    }
}

/// The values of some rows of `weight`, as for an embedding: `out` [indices.len(), n_cols].
///
/// # Panics
/// If the weight is not well formed, an index is not below `n_rows` or `out` has another size.
pub fn dequantize_rows_gather(ctx: &Context, weight: &Weight, indices: &[usize], out: &mut [f32]) {
    let rows = weight.checked();
    assert_eq!(
        Some(out.len()),
        indices.len().checked_mul(weight.n_cols),
        "values of {} rows",
        indices.len()
    );
    if let Some(bad) = indices.iter().find(|row_idx| **row_idx >= weight.n_rows) {
        panic!("row {bad} of a weight of {} rows", weight.n_rows);
    }
    let out = SharedMut::new(out);
    run_row_parts(ctx.pool(), indices.len(), 1, |start, len| {
        for i in start..start + len {
            // SAFETY: each row belongs to one part.
            let out = unsafe { out.slice(i * weight.n_cols, weight.n_cols) };
            ctx.isa().run(Dequantize {
                ty: weight.ty,
                bytes: rows.get(indices[i]),
                out,
            });
        }
    });
}

struct Dequantize<'a> {
    ty: BlockType,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Dequantize<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        dequantize_simd(simd, self.ty, self.bytes, self.out);
    }
}

/// Dequantises whole blocks to the same values as the scalar form: it is the scalar form, but for
/// the 16-bit types, whose conversions the compiler does not know.
#[inline(always)]
fn dequantize_simd<S: Simd>(simd: S, ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    let (vectors, rest) = match ty {
        BlockType::F16 | BlockType::Bf16 => out.as_chunks_mut::<16>(),
        _ => (&mut [][..], out),
    };
    let (vector_bytes, rest_bytes) = bytes.split_at(vectors.len() * 32);
    for (bytes, out) in vector_bytes.as_chunks::<32>().0.iter().zip(vectors) {
        simd.store(
            if ty == BlockType::F16 {
                simd.load_f16(bytes)
            } else {
                simd.load_bf16(bytes)
            },
            out,
        );
    }
    dequantize(ty, rest_bytes, rest);
}

/// The memory of some f32, for other uses.
fn f32_as_i8(slice: &mut [f32]) -> &mut [i8] {
    // SAFETY: an i8 has no alignment and no bad values, nor has f32; the length is that of the same
    // bytes; the borrow is handed on.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// The memory of some f32, for other uses.
fn f32_as_u8(slice: &mut [f32]) -> &mut [u8] {
    // SAFETY: as in `f32_as_i8`.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// Codes as the bytes that they are.
fn i8_as_u8(slice: &[i8]) -> &[u8] {
    // SAFETY: i8 and u8 have the same size, alignment and no bad values.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

/// Calls `task(start, len)` for parts of `0..n_rows`: small enough for threads of unequal speed to
/// end together, and multiples of `unit`.
fn run_row_parts(pool: &Pool, n_rows: usize, unit: usize, task: impl Fn(usize, usize) + Sync) {
    /// Parts per thread: 4 leave at most an eighth of a thread's time idle on average, and a claim
    /// costs less than 0.1 us.
    const N_PARTS: usize = 4;
    let n_parts = if pool.n_threads() == 1 {
        1
    } else {
        pool.n_threads() * N_PARTS
    };
    let part_len = n_rows.div_ceil(n_parts).max(1).next_multiple_of(unit);
    pool.run(n_rows.div_ceil(part_len), |part_idx| {
        let start = part_idx * part_len;
        task(start, part_len.min(n_rows - start));
    });
}

#[cfg(test)]
mod tests;

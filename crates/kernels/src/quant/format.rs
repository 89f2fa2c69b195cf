//! The block layouts as vectors: 64 codes at a time with the scale and the shift of each.
//!
//! All types come to one form: value = scale * code + shift, where code is an 8-bit integer and
//! scale and shift are constant over a group of 32 or 16 columns. So a product needs integer dot
//! products of codes, and per group one multiplication by the scale and one of the shift with the
//! sum of the activations.

use thane_blocks::{BlockType, IQ4_TABLE, iq4_xs_scales, k_scales, q3_k_scales};

use crate::simd::Simd;

/// 64 columns of a row.
pub(crate) struct Step<S: Simd> {
    /// Codes 0..=127, or, of a wide format, -128..=127 XORed with [`Simd::WIDE_XOR`].
    pub(crate) codes: S::B,
    /// The scale of the four columns of each lane.
    pub(crate) scale: S::F,
    /// The shift of the four columns of each lane.
    pub(crate) shift: S::F,
}

/// A whole number of blocks that is a multiple of 64 columns: one super-block of 256, or two blocks
/// of 32.
pub(crate) trait SuperBlock: Copy + 'static {
    const ZERO: Self;
    fn split(bytes: &[u8]) -> (&[Self], &[u8]);
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<const N: usize> SuperBlock for [u8; N] {
    const ZERO: Self = [0; N];
    #[inline(always)]
    fn split(bytes: &[u8]) -> (&[Self], &[u8]) {
        bytes.as_chunks()
    }
    #[inline(always)]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Calls [`Format::step`], which is compiled once for all where vectors are in memory.
#[inline(always)]
pub(crate) fn step<S: Simd, T: Format>(
    simd: S,
    block: &T::Super,
    head: T::Head<S>,
    step_idx: usize,
) -> Step<S> {
    #[inline(never)]
    fn out_of_line<S: Simd, T: Format>(
        simd: S,
        block: &T::Super,
        head: T::Head<S>,
        step_idx: usize,
    ) -> Step<S> {
        T::step(simd, block, head, step_idx)
    }
    if const { S::IS_IN_REGISTERS } {
        T::step(simd, block, head, step_idx)
    } else {
        out_of_line::<S, T>(simd, block, head, step_idx)
    }
}

/// A block type's layout.
pub(crate) trait Format {
    /// The bytes that [`Self::head`] and [`Self::step`] look at.
    type Super: SuperBlock;
    /// What is computed once per super-block.
    type Head<S: Simd>: Copy;
    /// Steps of 64 columns in a super-block.
    const N_STEPS: usize;
    /// Columns that share a scale: 32 or 16.
    const GROUP_LEN: usize;
    /// Codes need [`Simd::dot_wide`].
    const IS_WIDE: bool;
    /// The largest code, of a narrow format.
    const MAX_CODE: usize = 127;
    /// The shift is so many times the scale in all groups, not counting what [`Simd::WIDE_XOR`]
    /// added; None where each group has its own.
    const OFFSET: Option<i8>;
    /// The shift is 0 and need not be looked at, on instruction sets that take wide codes as they
    /// are.
    const HAS_NO_SHIFT: bool = matches!(Self::OFFSET, Some(0));

    fn head<S: Simd>(simd: S, block: &Self::Super) -> Self::Head<S>;
    fn step<S: Simd>(simd: S, block: &Self::Super, head: Self::Head<S>, step_idx: usize)
    -> Step<S>;
}

/// Something to be done with a [`Format`].
pub(crate) trait FormatTask {
    type Output;
    fn run<T: Format>(self) -> Self::Output;
}

/// Whether products multiply the codes of the type; other types are multiplied by their values, in
/// f32.
pub fn has_format(ty: BlockType) -> bool {
    struct Found;
    impl FormatTask for Found {
        type Output = ();
        fn run<T: Format>(self) {}
    }
    with_format(ty, Found).is_some()
}

/// Runs the task with the format of `ty`; `None` for types that have none: floats, and quantized
/// types that are multiplied by their f32 values.
#[inline(always)]
pub(crate) fn with_format<T: FormatTask>(ty: BlockType, task: T) -> Option<T::Output> {
    Some(match ty {
        BlockType::Q4_0 => task.run::<Q4_0>(),
        BlockType::Q4_1 => task.run::<Q4_1>(),
        BlockType::Q5_0 => task.run::<Q5_0>(),
        BlockType::Q5_1 => task.run::<Q5_1>(),
        BlockType::Q8_0 => task.run::<Q8_0>(),
        BlockType::Q2K => task.run::<Q2K>(),
        BlockType::Q3K => task.run::<Q3K>(),
        BlockType::Q4K => task.run::<Q4K>(),
        BlockType::Q5K => task.run::<Q5K>(),
        BlockType::Q6K => task.run::<Q6K>(),
        BlockType::Iq4Nl => task.run::<Iq4Nl>(),
        BlockType::Iq4Xs => task.run::<Iq4Xs>(),
        _ => return None,
    })
}

/// `N` bytes of a block.
#[inline(always)]
fn sub<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..]
        .first_chunk()
        .expect("the layout ends inside of the block")
}

#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u64 {
    u64::from(u16::from_le_bytes(*sub(block, at)))
}

#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(*sub(block, at)))
}

/// Two blocks of 32 codes of 4 bits, the low halves first.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, first: &[u8; 16], second: &[u8; 16]) -> S::B {
    simd.and_b(simd.shr_b(simd.dup16_b(first, second), [0, 4, 0, 4]), 15)
}

/// The scale of two blocks from two f16, and a shift of `offset` codes.
#[inline(always)]
fn scale_offset<S: Simd>(simd: S, head: S::F, offset: f32) -> (S::F, S::F) {
    let scale = simd.spread2(head, 0, 1);
    (scale, simd.mul(scale, simd.splat(offset)))
}

/// The shift that takes back what [`Simd::WIDE_XOR`] added.
#[inline(always)]
fn wide_shift<S: Simd>(simd: S, scale: S::F) -> S::F {
    simd.mul(scale, simd.splat(-f32::from(S::WIDE_XOR)))
}

/// The table of the IQ4 types as [`Simd::dot_wide`] wants it.
#[inline(always)]
fn iq4_table<S: Simd>() -> [u8; 16] {
    IQ4_TABLE.map(|value| value as u8 ^ S::WIDE_XOR)
}

pub(crate) struct Q4_0;
impl Format for Q4_0 {
    type Super = [u8; 36];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 1;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = Some(-8);
    const MAX_CODE: usize = 15;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 36]) -> S::F {
        simd.half4(u16_at(b, 0) | u16_at(b, 18) << 16)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 36], head: S::F, _: usize) -> Step<S> {
        let (scale, shift) = scale_offset(simd, head, -8.0);
        Step {
            codes: nibbles(simd, sub(b, 2), sub(b, 20)),
            scale,
            shift,
        }
    }
}

pub(crate) struct Q4_1;
impl Format for Q4_1 {
    type Super = [u8; 40];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 1;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = None;
    const MAX_CODE: usize = 15;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 40]) -> S::F {
        simd.half4(u32_at(b, 0) | u32_at(b, 20) << 32)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 40], head: S::F, _: usize) -> Step<S> {
        let (scale, shift) = (simd.spread2(head, 0, 2), simd.spread2(head, 1, 3));
        Step {
            codes: nibbles(simd, sub(b, 4), sub(b, 24)),
            scale,
            shift,
        }
    }
}

pub(crate) struct Q5_0;
impl Format for Q5_0 {
    type Super = [u8; 44];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 1;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = Some(-16);
    const MAX_CODE: usize = 31;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 44]) -> S::F {
        simd.half4(u16_at(b, 0) | u16_at(b, 22) << 16)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 44], head: S::F, _: usize) -> Step<S> {
        let (scale, shift) = scale_offset(simd, head, -16.0);
        let fifth = simd.bits_b(u32_at(b, 2) | u32_at(b, 24) << 32, 16);
        Step {
            codes: simd.or_b(nibbles(simd, sub(b, 6), sub(b, 28)), fifth),
            scale,
            shift,
        }
    }
}

pub(crate) struct Q5_1;
impl Format for Q5_1 {
    type Super = [u8; 48];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 1;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = None;
    const MAX_CODE: usize = 31;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 48]) -> S::F {
        simd.half4(u32_at(b, 0) | u32_at(b, 24) << 32)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 48], head: S::F, _: usize) -> Step<S> {
        let (scale, shift) = (simd.spread2(head, 0, 2), simd.spread2(head, 1, 3));
        let fifth = simd.bits_b(u32_at(b, 4) | u32_at(b, 28) << 32, 16);
        Step {
            codes: simd.or_b(nibbles(simd, sub(b, 8), sub(b, 32)), fifth),
            scale,
            shift,
        }
    }
}

pub(crate) struct Q8_0;
impl Format for Q8_0 {
    type Super = [u8; 68];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 1;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = true;
    const OFFSET: Option<i8> = Some(0);

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 68]) -> S::F {
        simd.half4(u16_at(b, 0) | u16_at(b, 34) << 16)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 68], head: S::F, _: usize) -> Step<S> {
        let scale = simd.spread2(head, 0, 1);
        let codes = simd.xor_b(simd.join_b(sub(b, 2), sub(b, 36)), S::WIDE_XOR);
        Step {
            codes,
            scale,
            shift: wide_shift(simd, scale),
        }
    }
}

pub(crate) struct Iq4Nl;
impl Format for Iq4Nl {
    type Super = [u8; 36];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 1;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = true;
    const OFFSET: Option<i8> = Some(0);

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 36]) -> S::F {
        simd.half4(u16_at(b, 0) | u16_at(b, 18) << 16)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 36], head: S::F, _: usize) -> Step<S> {
        let scale = simd.spread2(head, 0, 1);
        let codes = simd.lookup_b(&iq4_table::<S>(), nibbles(simd, sub(b, 2), sub(b, 20)));
        Step {
            codes,
            scale,
            shift: wide_shift(simd, scale),
        }
    }
}

/// Two bits of each of 64 codes: the low ones of Q2_K and Q3_K, the high ones of Q6_K.
#[inline(always)]
fn two_bits<S: Simd>(simd: S, codes: &[u8; 64], step_idx: usize) -> S::B {
    let bytes: &[u8; 32] = sub(codes, 32 * (step_idx / 2));
    let count = 4 * (step_idx % 2) as u8;
    simd.and_b(
        simd.shr_b(
            simd.join_b(bytes, bytes),
            [count, count, count + 2, count + 2],
        ),
        3,
    )
}

/// One bit of each of 64 codes, where bit j of byte i belongs to code 32 j + i.
#[inline(always)]
fn one_bit<S: Simd>(simd: S, bytes: &[u8; 32], step_idx: usize) -> S::B {
    let count = 2 * step_idx as u8;
    simd.and_b(
        simd.shr_b(
            simd.join_b(bytes, bytes),
            [count, count, count + 1, count + 1],
        ),
        1,
    )
}

pub(crate) struct Q2K;
impl Format for Q2K {
    type Super = [u8; 84];
    type Head<S: Simd> = [S::F; 2];
    const N_STEPS: usize = 4;
    const GROUP_LEN: usize = 16;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = None;
    const MAX_CODE: usize = 3;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 84]) -> [S::F; 2] {
        const LOW: u128 = 0x0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f;
        let packed = u128::from_le_bytes(*sub(b, 0));
        // The minimum is taken off: the sign bit of dmin is flipped.
        let d = simd.half4(u32_at(b, 80) ^ 0x8000_0000);
        let scales = simd.u8_values(&(packed & LOW).to_le_bytes());
        let minima = simd.u8_values(&(packed >> 4 & LOW).to_le_bytes());
        [
            simd.mul(scales, simd.spread2(d, 0, 0)),
            simd.mul(minima, simd.spread2(d, 1, 1)),
        ]
    }
    #[inline(always)]
    fn step<S: Simd>(
        simd: S,
        b: &[u8; 84],
        [scales, shifts]: [S::F; 2],
        step_idx: usize,
    ) -> Step<S> {
        let codes = two_bits(simd, sub(b, 16), step_idx);
        Step {
            codes,
            scale: simd.spread4(scales, 4 * step_idx),
            shift: simd.spread4(shifts, 4 * step_idx),
        }
    }
}

pub(crate) struct Q3K;
impl Format for Q3K {
    type Super = [u8; 110];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 4;
    const GROUP_LEN: usize = 16;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = Some(-4);
    const MAX_CODE: usize = 7;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 110]) -> S::F {
        let d = simd.half4(u16_at(b, 108));
        simd.mul(
            simd.i8_values(&q3_k_scales(sub(b, 96))),
            simd.spread2(d, 0, 0),
        )
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 110], head: S::F, step_idx: usize) -> Step<S> {
        let third = simd.shl_b::<2>(one_bit(simd, sub(b, 0), step_idx));
        let scale = simd.spread4(head, 4 * step_idx);
        let codes = simd.or_b(two_bits(simd, sub(b, 32), step_idx), third);
        Step {
            codes,
            scale,
            shift: simd.mul(scale, simd.splat(-4.0)),
        }
    }
}

/// The 8 scales, then the 8 shifts of a Q4_K or Q5_K block.
#[inline(always)]
fn k_head<S: Simd>(simd: S, block: &[u8]) -> S::F {
    // The minimum is taken off: the sign bit of dmin is flipped.
    let d = simd.half4(u32_at(block, 0) ^ 0x8000_0000);
    simd.mul(
        simd.u8_values(&k_scales(sub(block, 4))),
        simd.spread2(d, 0, 1),
    )
}

/// 64 codes of 4 bits, the low halves first.
#[inline(always)]
fn k_nibbles<S: Simd>(simd: S, bytes: &[u8; 32]) -> S::B {
    simd.and_b(simd.shr_b(simd.join_b(bytes, bytes), [0, 0, 4, 4]), 15)
}

pub(crate) struct Q4K;
impl Format for Q4K {
    type Super = [u8; 144];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 4;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = None;
    const MAX_CODE: usize = 15;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 144]) -> S::F {
        k_head(simd, b)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 144], head: S::F, step_idx: usize) -> Step<S> {
        let group = 2 * step_idx;
        let (scale, shift) = (
            simd.spread2(head, group, group + 1),
            simd.spread2(head, 8 + group, 9 + group),
        );
        Step {
            codes: k_nibbles(simd, sub(b, 16 + 32 * step_idx)),
            scale,
            shift,
        }
    }
}

pub(crate) struct Q5K;
impl Format for Q5K {
    type Super = [u8; 176];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 4;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = None;
    const MAX_CODE: usize = 31;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 176]) -> S::F {
        k_head(simd, b)
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 176], head: S::F, step_idx: usize) -> Step<S> {
        let group = 2 * step_idx;
        let (scale, shift) = (
            simd.spread2(head, group, group + 1),
            simd.spread2(head, 8 + group, 9 + group),
        );
        let fifth = simd.shl_b::<4>(one_bit(simd, sub(b, 16), step_idx));
        Step {
            codes: simd.or_b(k_nibbles(simd, sub(b, 48 + 32 * step_idx)), fifth),
            scale,
            shift,
        }
    }
}

pub(crate) struct Q6K;
impl Format for Q6K {
    type Super = [u8; 210];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 4;
    const GROUP_LEN: usize = 16;
    const IS_WIDE: bool = false;
    const OFFSET: Option<i8> = Some(-32);
    const MAX_CODE: usize = 63;

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 210]) -> S::F {
        let d = simd.half4(u16_at(b, 208));
        let scales: &[u8; 16] = sub(b, 192);
        simd.mul(
            simd.i8_values(&scales.map(|scale| scale as i8)),
            simd.spread2(d, 0, 0),
        )
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 210], head: S::F, step_idx: usize) -> Step<S> {
        let (half, count) = (step_idx / 2, 4 * (step_idx % 2) as u8);
        let low = simd.and_b(simd.shr_b(simd.load_b(sub(b, 64 * half)), [count; 4]), 15);
        let high = two_bits(simd, sub(b, 128), step_idx);
        let scale = simd.spread4(head, 4 * step_idx);
        let codes = simd.or_b(low, simd.shl_b::<4>(high));
        Step {
            codes,
            scale,
            shift: simd.mul(scale, simd.splat(-32.0)),
        }
    }
}

pub(crate) struct Iq4Xs;
impl Format for Iq4Xs {
    type Super = [u8; 136];
    type Head<S: Simd> = S::F;
    const N_STEPS: usize = 4;
    const GROUP_LEN: usize = 32;
    const IS_WIDE: bool = true;
    const OFFSET: Option<i8> = Some(0);

    #[inline(always)]
    fn head<S: Simd>(simd: S, b: &[u8; 136]) -> S::F {
        let d = simd.half4(u16_at(b, 0));
        let scales = iq4_xs_scales(sub(b, 2));
        simd.mul(
            simd.i8_values(&std::array::from_fn(|i| scales[i % 8])),
            simd.spread2(d, 0, 0),
        )
    }
    #[inline(always)]
    fn step<S: Simd>(simd: S, b: &[u8; 136], head: S::F, step_idx: usize) -> Step<S> {
        let start = 8 + 32 * step_idx;
        let scale = simd.spread2(head, 2 * step_idx, 2 * step_idx + 1);
        let codes = simd.lookup_b(
            &iq4_table::<S>(),
            nibbles(simd, sub(b, start), sub(b, start + 16)),
        );
        Step {
            codes,
            scale,
            shift: wide_shift(simd, scale),
        }
    }
}

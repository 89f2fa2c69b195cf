//! Where the codes and factors of a panel are.
//!
//! The codes of 32 columns are eight vectors of four columns of 16 rows. Of each code the lowest
//! four bits lie in the halves of a byte: vectors 0 to 3 in the low ones, 4 to 7 in the high ones.
//! A fifth bit lies in one more vector, bits 4 to 7 of a byte for vectors 0 to 3, bits 0 to 3 for 4
//! to 7. A fifth and a sixth lie in two more, the first for vectors 0 to 3, the second for 4 to 7;
//! of each, bits 4, 5 for the first vector, then 6, 7, then 0, 1, then 2, 3. So a shift by as many
//! bits comes to the next vector.
//!
//! Where codes are [split](SplitQ8), their lower three bits lie apart in three vectors: of each,
//! bits 0 to 2 for vectors 0 to 2, bits 3 to 5 for 3 to 5; the upper two bits have the lower two of
//! vector 6, in the first, and of vector 7, in the second, and in the third the highest bit of
//! both.

use thane_blocks::k_scales;

use crate::quant::BlockType;
use crate::quant::format::{Format, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Step, SuperBlock};
use crate::simd::{LANES, Simd};

/// The factors of a super-block: two numbers in f16, and the 8-bit integers that they are
/// multiplied by.
pub(super) type BlockFactors = ([u16; 2], [u8; 16]);

/// The columns of a panel: groups of 32 with 16 scales in f16 and, where they differ, 16 shifts; or
/// super-blocks of eight groups that begin with two f16 for each row, and whose groups have two
/// vectors of 8-bit factors.
pub(super) trait Layout: Format {
    /// Bits of a code.
    const BITS: usize;
    /// Those of them that lie with the factors.
    const UPPER_BITS: usize = Self::BITS;
    /// Groups that share a head.
    const N_GROUPS: usize = if Self::N_STEPS == 1 { 1 } else { 8 };
    /// Bytes of the codes of a group.
    const CODE_BYTES: usize = Self::UPPER_BITS * 32 * LANES / 8;
    /// Bytes in front of the groups of a super-block.
    const HEAD_BYTES: usize = if Self::N_GROUPS == 1 { 0 } else { 64 };
    /// Bytes of a group.
    const GROUP_BYTES: usize = Self::CODE_BYTES
        + if Self::N_GROUPS == 1 && Self::OFFSET.is_none() {
            64
        } else {
            32
        };
    /// Bytes of the columns that share a head.
    const SUPER_BYTES: usize = Self::HEAD_BYTES + Self::N_GROUPS * Self::GROUP_BYTES;
    /// Bytes of a group that lie apart.
    const LOWER_BYTES: usize = (Self::BITS - Self::UPPER_BITS) * 32 * LANES / 8;

    /// What is at the front of a super-block, where groups have 8-bit factors.
    fn block_factors(_block: &Self::Super) -> Option<BlockFactors> {
        None
    }
}

impl Layout for Q4_0 {
    const BITS: usize = 4;
}
impl Layout for Q4_1 {
    const BITS: usize = 4;
}
impl Layout for Q5_0 {
    const BITS: usize = 5;
}
impl Layout for Q5_1 {
    const BITS: usize = 5;
}
impl Layout for Q8_0 {
    const BITS: usize = 8;
}
/// Q8_0 for [`screen`](super::screen): of each code with 128 added, the upper five bits lie with
/// the scale as a code of Q5_0 does.
pub(super) struct SplitQ8;
impl Format for SplitQ8 {
    type Super = <Q8_0 as Format>::Super;
    type Head<S: Simd> = <Q8_0 as Format>::Head<S>;
    const N_STEPS: usize = Q8_0::N_STEPS;
    const GROUP_LEN: usize = Q8_0::GROUP_LEN;
    const IS_WIDE: bool = Q8_0::IS_WIDE;
    const OFFSET: Option<i8> = Q8_0::OFFSET;

    #[inline(always)]
    fn head<S: Simd>(simd: S, block: &Self::Super) -> Self::Head<S> {
        Q8_0::head(simd, block)
    }
    #[inline(always)]
    fn step<S: Simd>(
        simd: S,
        block: &Self::Super,
        head: Self::Head<S>,
        step_idx: usize,
    ) -> Step<S> {
        Q8_0::step(simd, block, head, step_idx)
    }
}
impl Layout for SplitQ8 {
    const BITS: usize = 8;
    const UPPER_BITS: usize = 5;
}
impl Layout for Q4K {
    const BITS: usize = 4;
    fn block_factors(block: &Self::Super) -> Option<BlockFactors> {
        Some(k_factors(block))
    }
}
impl Layout for Q5K {
    const BITS: usize = 5;
    fn block_factors(block: &Self::Super) -> Option<BlockFactors> {
        Some(k_factors(block))
    }
}
impl Layout for Q6K {
    const BITS: usize = 6;
    fn block_factors(block: &Self::Super) -> Option<BlockFactors> {
        let (d, scales) = (
            u16::from_le_bytes([block[208], block[209]]),
            &block[192..208],
        );
        // Two of each group, as they are stored: group by group in the order of `factors_at`.
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = scales[2 * (i % 8) + i / 8];
        }
        Some(([d, 0], bytes))
    }
}

/// The scales of eight groups, then their shifts, which are taken off: the sign of their f16 is
/// flipped.
fn k_factors(block: &[u8]) -> BlockFactors {
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    (
        [half(0), half(2) ^ 0x8000],
        k_scales(
            block[4..]
                .first_chunk()
                .expect("a block begins with its factors"),
        ),
    )
}

/// Something to be done with a [`Layout`].
pub(super) trait LayoutTask {
    type Output;
    fn run<L: Layout>(self) -> Self::Output;
}

/// Does the task with the layout of `ty`, of codes that are split or not; `None` for types that are
/// not packed.
#[inline(always)]
pub(super) fn with_layout<T: LayoutTask>(
    ty: BlockType,
    is_split: bool,
    task: T,
) -> Option<T::Output> {
    Some(match ty {
        BlockType::Q8_0 if is_split => task.run::<SplitQ8>(),
        BlockType::Q4_0 => task.run::<Q4_0>(),
        BlockType::Q4_1 => task.run::<Q4_1>(),
        BlockType::Q5_0 => task.run::<Q5_0>(),
        BlockType::Q5_1 => task.run::<Q5_1>(),
        BlockType::Q8_0 => task.run::<Q8_0>(),
        BlockType::Q4K => task.run::<Q4K>(),
        BlockType::Q5K => task.run::<Q5K>(),
        BlockType::Q6K => task.run::<Q6K>(),
        _ => return None,
    })
}

/// `N` bytes at a place inside of the layout.
#[inline(always)]
pub(super) fn at<const N: usize>(bytes: &[u8], start: usize) -> &[u8; N] {
    bytes[start..]
        .first_chunk()
        .expect("the layout ends inside of the panel")
}

/// 32 columns of a panel.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    /// Codes, or their upper bits, and factors.
    pub(super) bytes: &'a [u8],
    /// Where codes are split, their lower bits.
    pub(super) lower: &'a [u8],
}

/// The codes of one half of a group, vector after vector.
pub(super) struct Codes<'a, S: Simd> {
    group: Group<'a>,
    half: usize,
    /// Where the codes have more than four bits: those of the next vector at bit 4.
    high: S::B,
}

impl<'a, S: Simd> Codes<'a, S> {
    #[inline(always)]
    pub(super) fn new<L: Layout>(simd: S, group: Group<'a>, half: usize) -> Self {
        let high = match L::UPPER_BITS {
            5 => simd.load_b(at(group.bytes, 256)),
            6 => simd.load_b(at(group.bytes, 256 + 64 * half)),
            _ => simd.load_b(at(group.bytes, 0)),
        };
        let high = if L::UPPER_BITS == 5 && half == 1 {
            simd.shl_b::<4>(simd.and_b(high, 15))
        } else {
            high
        };
        Self { group, half, high }
    }

    /// Vector `v` of four, which are asked for in their order.
    #[inline(always)]
    pub(super) fn take<L: Layout>(&mut self, simd: S, v: usize) -> S::B {
        if L::UPPER_BITS == 8 {
            return simd.load_b(at(self.group.bytes, 256 * self.half + 64 * v));
        }
        let upper = self.take_upper::<L>(simd, v);
        if L::UPPER_BITS == L::BITS {
            return upper;
        }
        let lower = lower_bits(simd, self.group.lower, 4 * self.half + v);
        let code = simd.or_b(simd.shl_b::<3>(upper), lower);
        if S::WIDE_XOR == 0x80 {
            code
        } else {
            simd.xor_b(code, 0x80 ^ S::WIDE_XOR)
        }
    }

    #[inline(always)]
    fn take_upper<L: Layout>(&mut self, simd: S, v: usize) -> S::B {
        let bytes = self.group.bytes;
        let low = simd.load_b(at(bytes, 64 * v));
        let low = simd.and_b(
            if self.half == 0 {
                low
            } else {
                simd.shr_b(low, [4; 4])
            },
            15,
        );
        match L::UPPER_BITS {
            4 => low,
            5 => {
                let high = simd.and_b(self.high, 16);
                self.high = simd.shr_b(self.high, [1; 4]);
                simd.or_b(low, high)
            }
            _ => {
                if v == 2 {
                    let plane = simd.load_b(at(bytes, 256 + 64 * self.half));
                    self.high = simd.shl_b::<4>(simd.and_b(plane, 15));
                }
                let high = simd.and_b(self.high, 0x30);
                self.high = simd.shr_b(self.high, [2; 4]);
                simd.or_b(low, high)
            }
        }
    }
}

/// The lower three bits of vector `v` of eight.
#[inline(always)]
fn lower_bits<S: Simd>(simd: S, lower: &[u8], v: usize) -> S::B {
    let shifted = |simd: S, i: usize, by: u8| simd.shr_b(simd.load_b(at(lower, 64 * i)), [by; 4]);
    match v {
        0..3 => simd.and_b(simd.load_b(at(lower, 64 * v)), 7),
        3..6 => simd.and_b(shifted(simd, v - 3, 3), 7),
        6 => simd.or_b(
            simd.and_b(shifted(simd, 0, 6), 3),
            simd.and_b(shifted(simd, 2, 4), 4),
        ),
        _ => simd.or_b(
            simd.and_b(shifted(simd, 1, 6), 3),
            simd.and_b(shifted(simd, 2, 5), 4),
        ),
    }
}

/// The scales and shifts of a group's rows; of its halves where the groups of the type are of 16.
#[inline(always)]
pub(super) fn factors<S: Simd, L: Layout>(simd: S, head: [S::F; 2], group: &[u8]) -> [S::F; 2] {
    let (first, second) = (L::CODE_BYTES, L::CODE_BYTES + LANES);
    if L::N_GROUPS == 1 {
        let scales = simd.load_f16(at(group, first));
        return if L::OFFSET.is_none() {
            [scales, simd.load_f16(at(group, first + 32))]
        } else {
            [scales, scales]
        };
    }
    if L::GROUP_LEN == 16 {
        let values = |start| at::<16>(group, start).map(|byte| byte as i8);
        return [
            simd.mul(simd.i8_values(&values(first)), head[0]),
            simd.mul(simd.i8_values(&values(second)), head[0]),
        ];
    }
    [
        simd.mul(simd.u8_values(at(group, first)), head[0]),
        simd.mul(simd.u8_values(at(group, second)), head[1]),
    ]
}

/// The numbers that the factors of a super-block's groups are multiplied by.
#[inline(always)]
pub(super) fn head<S: Simd, L: Layout>(simd: S, super_block: &[u8]) -> [S::F; 2] {
    if L::N_GROUPS == 1 {
        return [simd.splat(0.0); 2];
    }
    [
        simd.load_f16(at(super_block, 0)),
        simd.load_f16(at(super_block, 32)),
    ]
}

/// A row's whole blocks.
pub(super) fn blocks<L: Layout>(row: &[u8]) -> &[L::Super] {
    L::Super::split(row).0
}

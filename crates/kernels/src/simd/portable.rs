//! Plain Rust: what every operation means, and the only form on machines without one of the others.
//!
//! The larger operations stay out of line: inlined into every kernel they would take longer to
//! compile than all the other instruction sets.

use super::{Kernel, LANES, Parts, Simd, look_up_each, look_up_in_four, narrow_stored, no_parts};
use crate::f16::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// No instruction set beyond the target's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip<T: Copy>(a: [T; LANES], b: [T; LANES], op: impl Fn(T, T) -> T) -> [T; LANES] {
    std::array::from_fn(|i| op(a[i], b[i]))
}

/// Sums of four products. A product fits an `i16`; two of them are taken as one word and added by
/// shifts, because compilers make vectors of that, and not of the sum of neighbors.
#[inline(always)]
fn dot(acc: &[i32; LANES], weights: &[i16; 64], activations: &[u8; 64]) -> [i32; LANES] {
    let mut products = [0i16; 64];
    for i in 0..64 {
        products[i] = weights[i] * i16::from(activations[i] as i8);
    }
    let mut pairs = [0i32; 32];
    for (pair, [a, b]) in pairs.iter_mut().zip(products.as_chunks::<2>().0) {
        let word = (u32::from(*a as u16) | u32::from(*b as u16) << 16) as i32;
        *pair = (word << 16 >> 16) + (word >> 16);
    }
    let mut sums = *acc;
    for i in 0..LANES {
        sums[i] += pairs[2 * i] + pairs[2 * i + 1];
    }
    sums
}

impl Portable {
    /// Never inlined, so that each kernel is compiled once, not at each place that runs it.
    #[inline(never)]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];

    const WIDE_XOR: u8 = 0;
    const IS_IN_REGISTERS: bool = false;
    const TILE_TOKENS: usize = 2;
    const HAS_UNSIGNED: bool = false;
    const PARTS: Parts = Parts::of(0);
    const HAS_MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; 16]) {
        *to = v;
    }
    #[inline(never)]
    fn load_f16(self, from: &[u8; 32]) -> Self::F {
        std::array::from_fn(|i| f16_to_f32(u16::from_le_bytes(from.as_chunks().0[i])))
    }
    #[inline(never)]
    fn store_f16(self, v: Self::F, to: &mut [u16; 16]) {
        *to = v.map(f32_to_f16);
    }
    #[inline(never)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::F {
        std::array::from_fn(|i| bf16_to_f32(u16::from_le_bytes(from.as_chunks().0[i])))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn copysign(self, a: Self::F, sign: Self::F) -> Self::F {
        zip(a, sign, f32::copysign)
    }
    #[inline(always)]
    fn power(self, a: Self::F) -> Self::F {
        a.map(|a| f32::from_bits(a.to_bits() & 0x7f80_0000))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn any_lt(self, a: Self::F, b: Self::F) -> bool {
        a.iter().zip(&b).any(|(a, b)| a < b)
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        a.map(|a| {
            // Adding 1.5 * 2^23 puts the units into the last place, which rounds to nearest even;
            // outside of +-2^22 any value will do.
            const SHIFT: f32 = 12_582_912.0;
            let bounded = a.clamp(-4_000_000.0, 4_000_000.0);
            (bounded + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
        })
    }
    #[inline(always)]
    fn to_int_toward_zero(self, a: Self::F) -> Self::I {
        a.map(|a| a as i32)
    }
    #[inline(always)]
    fn int_values(self, a: Self::I) -> Self::F {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn half_int(self, a: Self::I) -> Self::I {
        a.map(|a| a >> 1)
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        n.map(|n| f32::from_bits((n.wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn store_i8(self, v: Self::I, to: &mut [i8; 16]) {
        *to = v.map(|v| v as i8);
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let mut sums = v;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        sums[0]
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        v.into_iter()
            .fold(f32::NEG_INFINITY, |max, v| if v > max { v } else { max })
    }
    #[inline(never)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        for i in 0..LANES {
            for j in 0..i {
                (rows[i][j], rows[j][i]) = (rows[j][i], rows[i][j]);
            }
        }
    }
    #[inline(always)]
    fn swap_lanes<const STRIDE: usize>(self, v: Self::F) -> Self::F {
        std::array::from_fn(|lane| v[lane ^ STRIDE])
    }
    #[inline(always)]
    fn spread2(self, v: Self::F, i: usize, j: usize) -> Self::F {
        std::array::from_fn(|lane| if lane < 8 { v[i] } else { v[j] })
    }
    #[inline(always)]
    fn spread4(self, v: Self::F, i: usize) -> Self::F {
        std::array::from_fn(|lane| v[i + lane / 4])
    }
    #[inline(always)]
    fn merge<const PERIOD: usize>(self, rest: Self::F, v: Self::F, i: usize) -> Self::F {
        std::array::from_fn(|lane| {
            if lane % PERIOD == i {
                v[lane]
            } else {
                rest[lane]
            }
        })
    }
    #[inline(always)]
    fn half4(self, bits: u64) -> Self::F {
        std::array::from_fn(|i| {
            if i < 4 {
                f16_to_f32((bits >> (16 * i)) as u16)
            } else {
                0.0
            }
        })
    }
    #[inline(always)]
    fn transpose_bytes(self, rows: &mut [[u8; 16]; 16]) {
        *rows = std::array::from_fn(|j| rows.each_ref().map(|row| row[j]));
    }
    #[inline(always)]
    fn look_up(self, table: Self::F, codes: &[u8; 16]) -> Self::F {
        codes.map(|code| table[usize::from(code & 15)])
    }
    #[inline(always)]
    fn look_up_64(self, tables: [Self::F; 4], codes: &[u8; 16]) -> Self::F {
        look_up_in_four(self, tables, codes)
    }
    #[inline(always)]
    fn look_up_256(self, table: &[[f32; 16]; 16], codes: &[u8; 16]) -> Self::F {
        look_up_each(self, table, codes)
    }
    #[inline(always)]
    fn u8_values(self, from: &[u8; 16]) -> Self::F {
        from.map(f32::from)
    }
    #[inline(always)]
    fn i8_values(self, from: &[i8; 16]) -> Self::F {
        from.map(f32::from)
    }

    #[inline(always)]
    fn load_b(self, from: &[u8; 64]) -> Self::B {
        *from
    }
    #[inline(always)]
    fn store_b(self, v: Self::B, to: &mut [u8; 64]) {
        *to = v;
    }
    #[inline(never)]
    fn join_b(self, low: &[u8; 32], high: &[u8; 32]) -> Self::B {
        std::array::from_fn(|i| if i < 32 { low[i] } else { high[i - 32] })
    }
    #[inline(never)]
    fn dup16_b(self, low: &[u8; 16], high: &[u8; 16]) -> Self::B {
        std::array::from_fn(|i| if i < 32 { low[i % 16] } else { high[i % 16] })
    }
    #[inline(always)]
    fn dup4_b(self, from: &[i8; 4]) -> Self::B {
        std::array::from_fn(|i| from[i % 4] as u8)
    }
    #[inline(never)]
    fn shr_b(self, v: Self::B, counts: [u8; 4]) -> Self::B {
        let mut shifted = v;
        for (i, eight) in shifted.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *eight = (u64::from_le_bytes(*eight) >> counts[i / 2]).to_le_bytes();
        }
        shifted
    }
    #[inline(always)]
    fn shl_b<const COUNT: i32>(self, v: Self::B) -> Self::B {
        v.map(|v| v << COUNT)
    }
    #[inline(always)]
    fn and_b(self, v: Self::B, mask: u8) -> Self::B {
        v.map(|v| v & mask)
    }
    #[inline(always)]
    fn xor_b(self, v: Self::B, mask: u8) -> Self::B {
        v.map(|v| v ^ mask)
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(never)]
    fn transpose_b(self, rows: &mut [Self::B; 16]) {
        let from = *rows;
        for (i, row) in rows.iter_mut().enumerate() {
            for (j, four) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *four = from[j].as_chunks().0[i];
            }
        }
    }
    #[inline(never)]
    fn lookup_b(self, table: &[u8; 16], v: Self::B) -> Self::B {
        v.map(|v| table[usize::from(v & 15)])
    }
    #[inline(never)]
    fn shuffle_b(self, table: Self::B, v: Self::B) -> Self::B {
        std::array::from_fn(|i| table[i / 16 * 16 + usize::from(v[i] & 15)])
    }
    #[inline(never)]
    fn bits_b(self, bits: u64, value: u8) -> Self::B {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { value } else { 0 })
    }

    #[inline(always)]
    fn zero_int(self) -> Self::I {
        [0; LANES]
    }
    #[inline(always)]
    fn load_int(self, from: &[i32; 16]) -> Self::I {
        *from
    }
    #[inline(always)]
    fn store_int(self, v: Self::I, to: &mut [i32; 16]) {
        *to = v;
    }
    #[inline(always)]
    fn dot_two(self, acc: Self::I, activations: [Self::B; 2], weights: [Self::B; 2]) -> Self::I {
        self.dot_wide(
            self.dot_wide(acc, weights[0], activations[0]),
            weights[1],
            activations[1],
        )
    }
    #[inline(never)]
    fn dot_narrow(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        dot(&acc, &weights.map(i16::from), &activations)
    }
    #[inline(never)]
    fn dot_wide(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        dot(
            &acc,
            &weights.map(|code| i16::from(code as i8)),
            &activations,
        )
    }
    /// Nothing.
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}
    /// Nothing.
    #[inline(always)]
    fn prefetch_far(self, _: *const f32) {}
    #[inline(always)]
    fn narrow(self, v: [Self::I; 4]) -> Self::B {
        narrow_stored(self, v)
    }
    #[inline(always)]
    fn splat_part(self, _: i32) -> Self::I {
        no_parts()
    }
    #[inline(always)]
    fn dot_part(self, _: Self::I, _: Self::B, _: Self::B) -> Self::I {
        no_parts()
    }
    #[inline(always)]
    fn join_part<const TIMES: i16>(self, _: Self::I, _: Self::I) -> Self::I {
        no_parts()
    }
    #[inline(always)]
    fn rescale_b(self, _: Self::B, _: u32, _: Self::I, _: Self::I) -> Self::B {
        no_parts()
    }
}

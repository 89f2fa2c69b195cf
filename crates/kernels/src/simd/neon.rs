//! NEON with dot products: four registers per vector.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Kernel, Parts, Simd, look_up_each, look_up_in_four, narrow_stored, no_parts};

/// Proof that the machine has NEON and its 8-bit dot products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neon {
    detected: (),
}

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        let found = std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod");
        found.then_some(Self { detected: () })
    }

    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` was made by `detect`, which found all of these features.
        unsafe { self.run_enabled(kernel) }
    }

    #[target_feature(enable = "neon,dotprod")]
    fn run_enabled<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

/// One expression of intrinsics. Sound in a method of [`Neon`], whose value proves the features.
macro_rules! x {
    ($call:expr) => {{
        // SAFETY: the value of `Neon` proves the features; loads and stores go through references
        // to arrays of their size.
        #[allow(unused_unsafe)]
        unsafe {
            $call
        }
    }};
}

/// The same on all four registers; `$i` is the register's number. Written out: a closure would be a
/// function of its own.
macro_rules! each {
    ($i:ident; $call:expr) => {
        [
            {
                const $i: usize = 0;
                x!($call)
            },
            {
                const $i: usize = 1;
                x!($call)
            },
            {
                const $i: usize = 2;
                x!($call)
            },
            {
                const $i: usize = 3;
                x!($call)
            },
        ]
    };
}

impl Simd for Neon {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];

    const WIDE_XOR: u8 = 0;
    const IS_IN_REGISTERS: bool = true;
    const TILE_TOKENS: usize = 2;
    const HAS_UNSIGNED: bool = false;
    const PARTS: Parts = Parts::of(0);
    const HAS_MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [x!(vdupq_n_f32(value)); 4]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        each!(K; vld1q_f32(from[4 * K..].as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; 16]) {
        each!(K; vst1q_f32(to[4 * K..].as_mut_ptr(), v[K]));
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::F {
        each!(K; from_f16(vreinterpret_u16_u8(vld1_u8(from[8 * K..].as_ptr()))))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::F {
        each!(K; {
            let halves = vreinterpret_u16_u8(vld1_u8(from[8 * K..].as_ptr()));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(halves)))
        })
    }
    #[inline(always)]
    fn store_f16(self, v: Self::F, to: &mut [u16; 16]) {
        each!(K; vst1_u16(to[4 * K..].as_mut_ptr(), to_f16(v[K])));
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each!(K; vaddq_f32(a[K], b[K]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each!(K; vsubq_f32(a[K], b[K]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each!(K; vmulq_f32(a[K], b[K]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each!(K; vdivq_f32(a[K], b[K]))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(K; vfmaq_f32(c[K], a[K], b[K]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each!(K; vbslq_f32(vcltq_f32(a[K], b[K]), a[K], b[K]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each!(K; vbslq_f32(vcgtq_f32(a[K], b[K]), a[K], b[K]))
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        each!(K; vabsq_f32(a[K]))
    }
    #[inline(always)]
    fn copysign(self, a: Self::F, sign: Self::F) -> Self::F {
        each!(K; vbslq_f32(vdupq_n_u32(0x8000_0000), sign[K], a[K]))
    }
    #[inline(always)]
    fn power(self, a: Self::F) -> Self::F {
        each!(K; vreinterpretq_f32_u32(vandq_u32(
            vreinterpretq_u32_f32(a[K]),
            vdupq_n_u32(0x7f80_0000)
        )))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        each!(K; vbslq_f32(vcltq_f32(a[K], b[K]), yes[K], no[K]))
    }

    #[inline(always)]
    fn any_lt(self, a: Self::F, b: Self::F) -> bool {
        (0..4).any(|i| x!(vmaxvq_u32(vcltq_f32(a[i], b[i]))) != 0)
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        each!(K; vcvtnq_s32_f32(a[K]))
    }
    #[inline(always)]
    fn to_int_toward_zero(self, a: Self::F) -> Self::I {
        each!(K; vcvtq_s32_f32(a[K]))
    }
    #[inline(always)]
    fn int_values(self, a: Self::I) -> Self::F {
        each!(K; vcvtq_f32_s32(a[K]))
    }
    #[inline(always)]
    fn half_int(self, a: Self::I) -> Self::I {
        each!(K; vshrq_n_s32::<1>(a[K]))
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        each!(K; vsubq_s32(a[K], b[K]))
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        each!(K; vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n[K], vdupq_n_s32(127)))))
    }
    #[inline(always)]
    fn store_i8(self, v: Self::I, to: &mut [i8; 16]) {
        x!({
            let low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
            let high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
            vst1q_s8(
                to.as_mut_ptr(),
                vcombine_s8(vmovn_s16(low), vmovn_s16(high)),
            );
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        x!({
            let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        })
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        // Numbers go before NaN.
        x!(vmaxnmvq_f32(vmaxnmq_f32(
            vmaxnmq_f32(v[0], v[1]),
            vmaxnmq_f32(v[2], v[3])
        )))
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        // Blocks of 4 x 4, each to the other side of the diagonal.
        let from = *rows;
        for i in 0..4 {
            for j in 0..4 {
                let block = transpose4([
                    from[4 * i][j],
                    from[4 * i + 1][j],
                    from[4 * i + 2][j],
                    from[4 * i + 3][j],
                ]);
                for (k, row) in block.into_iter().enumerate() {
                    rows[4 * j + k][i] = row;
                }
            }
        }
    }
    #[inline(always)]
    fn swap_lanes<const STRIDE: usize>(self, v: Self::F) -> Self::F {
        const { assert!(matches!(STRIDE, 1 | 2 | 4 | 8)) };
        match STRIDE {
            1 => each!(K; vrev64q_f32(v[K])),
            2 => each!(K; vextq_f32::<2>(v[K], v[K])),
            _ => std::array::from_fn(|k| v[k ^ (STRIDE / 4)]),
        }
    }
    #[inline(always)]
    fn spread2(self, v: Self::F, i: usize, j: usize) -> Self::F {
        let (low, high) = (self.lane(v, i), self.lane(v, j));
        [low, low, high, high]
    }
    #[inline(always)]
    fn spread4(self, v: Self::F, i: usize) -> Self::F {
        [
            self.lane(v, i),
            self.lane(v, i + 1),
            self.lane(v, i + 2),
            self.lane(v, i + 3),
        ]
    }
    #[inline(always)]
    fn merge<const PERIOD: usize>(self, rest: Self::F, v: Self::F, i: usize) -> Self::F {
        const { assert!(PERIOD == 4 || PERIOD == 8) };
        let lanes = [0u32, 1, 2, 3];
        each!(K; {
            let lanes = vaddq_u32(vld1q_u32(lanes.as_ptr()), vdupq_n_u32((4 * K % PERIOD) as u32));
            vbslq_f32(vceqq_u32(lanes, vdupq_n_u32(i as u32)), v[K], rest[K])
        })
    }
    #[inline(always)]
    fn half4(self, bits: u64) -> Self::F {
        [x!(from_f16(vreinterpret_u16_u64(vdup_n_u64(bits)))); 4]
    }
    #[inline(always)]
    fn transpose_bytes(self, rows: &mut [[u8; 16]; 16]) {
        x!({
            let mut lanes = [vdupq_n_u8(0); 16];
            for (lane, row) in lanes.iter_mut().zip(&*rows) {
                *lane = vld1q_u8(row.as_ptr());
            }
            // Each round interleaves rows that are eight apart.
            for _ in 0..4 {
                let last = lanes;
                for i in 0..8 {
                    lanes[2 * i] = vzip1q_u8(last[i], last[i + 8]);
                    lanes[2 * i + 1] = vzip2q_u8(last[i], last[i + 8]);
                }
            }
            for (lane, row) in lanes.into_iter().zip(rows) {
                vst1q_u8(row.as_mut_ptr(), lane);
            }
        });
    }
    #[inline(always)]
    fn look_up(self, table: Self::F, codes: &[u8; 16]) -> Self::F {
        let at: [u8; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
        let byte: [u8; 16] = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3];
        x!({
            let table = uint8x16x4_t(
                vreinterpretq_u8_f32(table[0]),
                vreinterpretq_u8_f32(table[1]),
                vreinterpretq_u8_f32(table[2]),
                vreinterpretq_u8_f32(table[3]),
            );
            let codes = vandq_u8(vld1q_u8(codes.as_ptr()), vdupq_n_u8(15));
            // Four bytes of the table for each code.
            let starts = vshlq_n_u8::<2>(codes);
            let (at, byte) = (vld1q_u8(at.as_ptr()), vld1q_u8(byte.as_ptr()));
            let quarter = |k: u8| {
                let starts = vqtbl1q_u8(starts, vaddq_u8(at, vdupq_n_u8(4 * k)));
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vaddq_u8(starts, byte)))
            };
            [quarter(0), quarter(1), quarter(2), quarter(3)]
        })
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
        x!({
            let bytes = vld1q_u8(from.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ]
        })
    }
    #[inline(always)]
    fn i8_values(self, from: &[i8; 16]) -> Self::F {
        x!({
            let bytes = vld1q_s8(from.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        })
    }

    #[inline(always)]
    fn load_b(self, from: &[u8; 64]) -> Self::B {
        each!(K; vld1q_u8(from[16 * K..].as_ptr()))
    }
    #[inline(always)]
    fn store_b(self, v: Self::B, to: &mut [u8; 64]) {
        each!(K; vst1q_u8(to[16 * K..].as_mut_ptr(), v[K]));
    }
    #[inline(always)]
    fn join_b(self, low: &[u8; 32], high: &[u8; 32]) -> Self::B {
        each!(K; vld1q_u8(if K < 2 { low } else { high }[K % 2 * 16..].as_ptr()))
    }
    #[inline(always)]
    fn dup16_b(self, low: &[u8; 16], high: &[u8; 16]) -> Self::B {
        let (low, high) = x!((vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr())));
        [low, low, high, high]
    }
    #[inline(always)]
    fn dup4_b(self, from: &[i8; 4]) -> Self::B {
        let four = u32::from_le_bytes([from[0] as u8, from[1] as u8, from[2] as u8, from[3] as u8]);
        [x!(vreinterpretq_u8_u32(vdupq_n_u32(four))); 4]
    }
    #[inline(always)]
    fn shr_b(self, v: Self::B, counts: [u8; 4]) -> Self::B {
        // A left shift by a negative count.
        each!(K; vshlq_u8(v[K], vdupq_n_s8(-(counts[K] as i8))))
    }
    #[inline(always)]
    fn shl_b<const COUNT: i32>(self, v: Self::B) -> Self::B {
        each!(K; vshlq_u8(v[K], vdupq_n_s8(COUNT as i8)))
    }
    #[inline(always)]
    fn and_b(self, v: Self::B, mask: u8) -> Self::B {
        each!(K; vandq_u8(v[K], vdupq_n_u8(mask)))
    }
    #[inline(always)]
    fn xor_b(self, v: Self::B, mask: u8) -> Self::B {
        each!(K; veorq_u8(v[K], vdupq_n_u8(mask)))
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        each!(K; vorrq_u8(a[K], b[K]))
    }
    #[inline(always)]
    fn transpose_b(self, rows: &mut [Self::B; 16]) {
        let mut lanes = [self.splat(0.0); 16];
        for (lane, row) in lanes.iter_mut().zip(*rows) {
            *lane = each!(K; vreinterpretq_f32_u8(row[K]));
        }
        self.transpose(&mut lanes);
        for (row, lane) in rows.iter_mut().zip(lanes) {
            *row = each!(K; vreinterpretq_u8_f32(lane[K]));
        }
    }
    #[inline(always)]
    fn lookup_b(self, table: &[u8; 16], v: Self::B) -> Self::B {
        let table = x!(vld1q_u8(table.as_ptr()));
        each!(K; vqtbl1q_u8(table, v[K]))
    }
    #[inline(always)]
    fn shuffle_b(self, table: Self::B, v: Self::B) -> Self::B {
        each!(K; vqtbl1q_u8(table[K], v[K]))
    }
    #[inline(always)]
    fn bits_b(self, bits: u64, value: u8) -> Self::B {
        let bit_of = x!(vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)));
        each!(K; {
            let bytes = vcombine_u8(vdup_n_u8((bits >> (16 * K)) as u8), vdup_n_u8((bits >> (16 * K + 8)) as u8));
            vandq_u8(vtstq_u8(bytes, bit_of), vdupq_n_u8(value))
        })
    }

    #[inline(always)]
    fn zero_int(self) -> Self::I {
        [x!(vdupq_n_s32(0)); 4]
    }
    #[inline(always)]
    fn load_int(self, from: &[i32; 16]) -> Self::I {
        each!(K; vld1q_s32(from[4 * K..].as_ptr()))
    }
    #[inline(always)]
    fn store_int(self, v: Self::I, to: &mut [i32; 16]) {
        each!(K; vst1q_s32(to[4 * K..].as_mut_ptr(), v[K]));
    }
    #[inline(always)]
    fn dot_two(self, acc: Self::I, activations: [Self::B; 2], weights: [Self::B; 2]) -> Self::I {
        self.dot_wide(
            self.dot_wide(acc, weights[0], activations[0]),
            weights[1],
            activations[1],
        )
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        // Codes up to 127 are the same with and without a sign.
        self.dot_wide(acc, weights, activations)
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        each!(K; signed_dot(acc[K], weights[K], activations[K]))
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

impl Neon {
    /// One lane, four times.
    #[inline(always)]
    fn lane(self, v: [float32x4_t; 4], i: usize) -> float32x4_t {
        x!(match i % 4 {
            0 => vdupq_laneq_f32::<0>(v[i / 4]),
            1 => vdupq_laneq_f32::<1>(v[i / 4]),
            2 => vdupq_laneq_f32::<2>(v[i / 4]),
            _ => vdupq_laneq_f32::<3>(v[i / 4]),
        })
    }
}

#[inline(always)]
fn transpose4(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    x!({
        let (a, b) = (vtrn1q_f32(rows[0], rows[1]), vtrn2q_f32(rows[0], rows[1]));
        let (c, d) = (vtrn1q_f32(rows[2], rows[3]), vtrn2q_f32(rows[2], rows[3]));
        [
            vcombine_f32(vget_low_f32(a), vget_low_f32(c)),
            vcombine_f32(vget_low_f32(b), vget_low_f32(d)),
            vcombine_f32(vget_high_f32(a), vget_high_f32(c)),
            vcombine_f32(vget_high_f32(b), vget_high_f32(d)),
        ]
    })
}

// The intrinsics of these three instructions are not stable in the oldest compiler that we take.

/// To each lane, the sum of four products of signed bytes.
///
/// # Safety
/// The machine has dot products.
#[inline(always)]
unsafe fn signed_dot(acc: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    let mut out = acc;
    // SAFETY: registers only; the caller promises the instruction.
    unsafe {
        asm!("sdot {out:v}.4s, {a:v}.16b, {b:v}.16b", out = inout(vreg) out, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// The values of four f16.
#[inline(always)]
fn from_f16(halves: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: registers only; every machine with NEON has the instruction.
    unsafe {
        asm!("fcvtl {out:v}.4s, {halves:v}.4h", out = out(vreg) out, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// The nearest f16 of four values.
#[inline(always)]
fn to_f16(values: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: registers only; every machine with NEON has the instruction. Rounding is to nearest
    // even, as Rust requires of the mode.
    unsafe {
        asm!("fcvtn {out:v}.4h, {values:v}.4s", out = out(vreg) out, values = in(vreg) values,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

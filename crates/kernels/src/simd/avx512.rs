//! AVX-512: one register per vector.

use std::arch::x86_64::*;

use super::{Kernel, Parts, Simd, no_parts};

/// Proof that the machine has AVX-512 F, BW, VL, DQ and VNNI (and what AVX2 needs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512 {
    has_bf16: bool,
}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let found = super::Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        found.then(|| Self {
            has_bf16: is_x86_feature_detected!("avx512bf16"),
        })
    }

    /// True where the machine also multiplies bf16.
    pub fn has_bf16(self) -> bool {
        self.has_bf16
    }

    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` was made by `detect`, which found all of these features.
        unsafe { self.run_enabled(kernel) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,bmi2")]
    fn run_enabled<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

/// One intrinsic call. Sound in a method of [`Avx512`], whose value proves the features.
macro_rules! x {
    ($call:expr) => {{
        // SAFETY: the value of `Avx512` proves the features; loads and stores go through references
        // to arrays of their size.
        #[allow(unused_unsafe)]
        unsafe {
            $call
        }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const WIDE_XOR: u8 = 0x80;
    const IS_IN_REGISTERS: bool = true;
    const TILE_TOKENS: usize = 12;
    const HAS_UNSIGNED: bool = true;
    const PARTS: Parts = Parts::of(4);
    const HAS_MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        x!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn prefetch(self, from: *const f32) {
        // SAFETY: a prefetch of any address is no access to it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, from: *const f32) {
        // SAFETY: a prefetch of any address is no access to it.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        x!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; 16]) {
        x!(_mm512_storeu_ps(to.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::F {
        x!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(self, v: Self::F, to: &mut [u16; 16]) {
        x!(_mm256_storeu_si256(
            to.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
        ))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::F {
        x!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        x!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        x!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        x!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        x!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        x!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        x!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        x!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        x!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn copysign(self, a: Self::F, sign: Self::F) -> Self::F {
        x!({
            let mask = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(mask, a), _mm512_and_ps(mask, sign))
        })
    }
    #[inline(always)]
    fn power(self, a: Self::F) -> Self::F {
        x!(_mm512_and_ps(a, _mm512_set1_ps(f32::INFINITY)))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        x!(_mm512_mask_blend_ps(
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b),
            no,
            yes
        ))
    }

    #[inline(always)]
    fn any_lt(self, a: Self::F, b: Self::F) -> bool {
        x!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b)) != 0
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        x!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn to_int_toward_zero(self, a: Self::F) -> Self::I {
        x!(_mm512_cvttps_epi32(a))
    }
    #[inline(always)]
    fn int_values(self, a: Self::I) -> Self::F {
        x!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn half_int(self, a: Self::I) -> Self::I {
        x!(_mm512_srai_epi32::<1>(a))
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        x!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        x!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(
            _mm512_add_epi32(n, _mm512_set1_epi32(127))
        )))
    }
    #[inline(always)]
    fn store_i8(self, v: Self::I, to: &mut [i8; 16]) {
        x!(_mm_storeu_si128(
            to.as_mut_ptr().cast(),
            _mm512_cvtepi32_epi8(v)
        ))
    }

    #[inline(always)]
    fn narrow(self, [a, b, c, d]: [Self::I; 4]) -> Self::B {
        x!({
            // Packing works within 128 bits: four bytes of a, four of b, of c and of d, which are
            // put in order.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            _mm512_permutexvar_epi32(order, bytes)
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        x!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::sum8(eight)
        })
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        x!(_mm512_reduce_max_ps(v))
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        x!({
            // 2 x 2 blocks of lanes, then of pairs, then of quarters: the quarters are exchanged in
            // two steps.
            let mut t = *rows;
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            let mut u = t;
            for i in 0..4 {
                let (a, b) = (_mm512_castps_pd(t[4 * i]), _mm512_castps_pd(t[4 * i + 1]));
                let (c, d) = (
                    _mm512_castps_pd(t[4 * i + 2]),
                    _mm512_castps_pd(t[4 * i + 3]),
                );
                u[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                u[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                u[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                u[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
            }
            // u[4 i + k], quarter q: lane 4 q + k of rows 4 i .. 4 i + 4.
            for k in 0..4 {
                let low = _mm512_shuffle_f32x4::<0x88>(u[k], u[4 + k]);
                let high = _mm512_shuffle_f32x4::<0xdd>(u[k], u[4 + k]);
                let low2 = _mm512_shuffle_f32x4::<0x88>(u[8 + k], u[12 + k]);
                let high2 = _mm512_shuffle_f32x4::<0xdd>(u[8 + k], u[12 + k]);
                rows[k] = _mm512_shuffle_f32x4::<0x88>(low, low2);
                rows[8 + k] = _mm512_shuffle_f32x4::<0xdd>(low, low2);
                rows[4 + k] = _mm512_shuffle_f32x4::<0x88>(high, high2);
                rows[12 + k] = _mm512_shuffle_f32x4::<0xdd>(high, high2);
            }
        })
    }
    #[inline(always)]
    fn swap_lanes<const STRIDE: usize>(self, v: Self::F) -> Self::F {
        const { assert!(matches!(STRIDE, 1 | 2 | 4 | 8)) };
        x!(match STRIDE {
            1 => _mm512_permute_ps::<0b10_11_00_01>(v),
            2 => _mm512_permute_ps::<0b01_00_11_10>(v),
            4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
            _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v),
        })
    }
    #[inline(always)]
    fn spread2(self, v: Self::F, i: usize, j: usize) -> Self::F {
        x!({
            let indices = _mm512_mask_blend_epi32(
                0xff00,
                _mm512_set1_epi32(i as i32),
                _mm512_set1_epi32(j as i32),
            );
            _mm512_permutexvar_ps(indices, v)
        })
    }
    #[inline(always)]
    fn spread4(self, v: Self::F, i: usize) -> Self::F {
        x!({
            let quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_ps(_mm512_add_epi32(quarters, _mm512_set1_epi32(i as i32)), v)
        })
    }
    #[inline(always)]
    fn merge<const PERIOD: usize>(self, rest: Self::F, v: Self::F, i: usize) -> Self::F {
        const { assert!(PERIOD == 4 || PERIOD == 8) };
        let every: u16 = if PERIOD == 4 { 0x1111 } else { 0x0101 };
        x!(_mm512_mask_mov_ps(rest, every << i, v))
    }
    #[inline(always)]
    fn half4(self, bits: u64) -> Self::F {
        x!(_mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi64_si128(
            bits as i64
        ))))
    }
    #[inline(always)]
    fn transpose_bytes(self, rows: &mut [[u8; 16]; 16]) {
        super::avx2::transpose_bytes(rows);
    }
    #[inline(always)]
    fn look_up(self, table: Self::F, codes: &[u8; 16]) -> Self::F {
        x!({
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
            _mm512_permutexvar_ps(codes, table)
        })
    }
    #[inline(always)]
    fn look_up_64(self, tables: [Self::F; 4], codes: &[u8; 16]) -> Self::F {
        let [a, b, c, d] = tables;
        x!({
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
            let is_high = _mm512_test_epi32_mask(codes, _mm512_set1_epi32(32));
            let low = _mm512_permutex2var_ps(a, codes, b);
            _mm512_mask_blend_ps(is_high, low, _mm512_permutex2var_ps(c, codes, d))
        })
    }
    #[inline(always)]
    fn look_up_256(self, table: &[[f32; 16]; 16], codes: &[u8; 16]) -> Self::F {
        x!({
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
            let by_32 = _mm512_test_epi32_mask(codes, _mm512_set1_epi32(32));
            let by_64 = _mm512_test_epi32_mask(codes, _mm512_set1_epi32(64));
            let by_128 = _mm512_test_epi32_mask(codes, _mm512_set1_epi32(128));
            // Of 64 entries; no closure, whose vectors would go through memory.
            macro_rules! pick {
                ($i:literal) => {{
                    let (a, b) = (table[$i].as_ptr(), table[$i + 1].as_ptr());
                    let (c, d) = (table[$i + 2].as_ptr(), table[$i + 3].as_ptr());
                    let (a, b) = (_mm512_loadu_ps(a), _mm512_loadu_ps(b));
                    let (c, d) = (_mm512_loadu_ps(c), _mm512_loadu_ps(d));
                    let low = _mm512_permutex2var_ps(a, codes, b);
                    _mm512_mask_blend_ps(by_32, low, _mm512_permutex2var_ps(c, codes, d))
                }};
            }
            let (a, b, c, d) = (pick!(0), pick!(4), pick!(8), pick!(12));
            let low = _mm512_mask_blend_ps(by_64, a, b);
            _mm512_mask_blend_ps(by_128, low, _mm512_mask_blend_ps(by_64, c, d))
        })
    }
    #[inline(always)]
    fn u8_values(self, from: &[u8; 16]) -> Self::F {
        x!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(
            from.as_ptr().cast()
        ))))
    }
    #[inline(always)]
    fn i8_values(self, from: &[i8; 16]) -> Self::F {
        x!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
            from.as_ptr().cast()
        ))))
    }

    #[inline(always)]
    fn load_b(self, from: &[u8; 64]) -> Self::B {
        x!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_b(self, v: Self::B, to: &mut [u8; 64]) {
        x!(_mm512_storeu_si512(to.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn join_b(self, low: &[u8; 32], high: &[u8; 32]) -> Self::B {
        x!({
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.as_ptr().cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(high.as_ptr().cast()))
        })
    }
    #[inline(always)]
    fn dup16_b(self, low: &[u8; 16], high: &[u8; 16]) -> Self::B {
        x!({
            let low = _mm512_broadcast_i32x4(_mm_loadu_si128(low.as_ptr().cast()));
            _mm512_mask_broadcast_i32x4(low, 0xff00, _mm_loadu_si128(high.as_ptr().cast()))
        })
    }
    #[inline(always)]
    fn dup4_b(self, from: &[i8; 4]) -> Self::B {
        x!(_mm512_set1_epi32(super::avx2::four_codes(from)))
    }
    #[inline(always)]
    fn shr_b(self, v: Self::B, counts: [u8; 4]) -> Self::B {
        x!({
            const WORDS: i64 = 0x0001_0001_0001_0001;
            let [a, b, c, d] = counts;
            let (a, b, c, d) = (
                i64::from(a) * WORDS,
                i64::from(b) * WORDS,
                i64::from(c) * WORDS,
                i64::from(d) * WORDS,
            );
            _mm512_srlv_epi16(v, _mm512_setr_epi64(a, a, b, b, c, c, d, d))
        })
    }
    #[inline(always)]
    fn shl_b<const COUNT: i32>(self, v: Self::B) -> Self::B {
        x!(_mm512_sll_epi16(v, _mm_cvtsi32_si128(COUNT)))
    }
    #[inline(always)]
    fn and_b(self, v: Self::B, mask: u8) -> Self::B {
        x!(_mm512_and_si512(v, _mm512_set1_epi8(mask as i8)))
    }
    #[inline(always)]
    fn xor_b(self, v: Self::B, mask: u8) -> Self::B {
        x!(_mm512_xor_si512(v, _mm512_set1_epi8(mask as i8)))
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        x!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn transpose_b(self, rows: &mut [Self::B; 16]) {
        let mut lanes = [self.splat(0.0); 16];
        for (lane, row) in lanes.iter_mut().zip(*rows) {
            *lane = x!(_mm512_castsi512_ps(row));
        }
        self.transpose(&mut lanes);
        for (row, lane) in rows.iter_mut().zip(lanes) {
            *row = x!(_mm512_castps_si512(lane));
        }
    }
    #[inline(always)]
    fn lookup_b(self, table: &[u8; 16], v: Self::B) -> Self::B {
        x!(_mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())),
            v
        ))
    }
    #[inline(always)]
    fn shuffle_b(self, table: Self::B, v: Self::B) -> Self::B {
        x!(_mm512_shuffle_epi8(table, v))
    }
    #[inline(always)]
    fn bits_b(self, bits: u64, value: u8) -> Self::B {
        x!(_mm512_maskz_set1_epi8(bits, value as i8))
    }

    #[inline(always)]
    fn zero_int(self) -> Self::I {
        x!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn load_int(self, from: &[i32; 16]) -> Self::I {
        x!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_int(self, v: Self::I, to: &mut [i32; 16]) {
        x!(_mm512_storeu_si512(to.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn splat_part(self, sum: i32) -> Self::I {
        x!(_mm512_set1_epi32(sum))
    }
    #[inline(always)]
    fn dot_part(self, parts: Self::I, unsigned: Self::B, signed: Self::B) -> Self::I {
        x!(_mm512_dpbusd_epi32(parts, unsigned, signed))
    }
    #[inline(always)]
    fn rescale_b(self, codes: Self::B, bits: u32, factor: Self::I, added: Self::I) -> Self::B {
        x!({
            // Twice in a lane, for its even bytes and for its odd ones.
            let factor =
                _mm512_mask_blend_epi16(0xaaaa_aaaa, factor, _mm512_slli_epi32::<16>(factor));
            let less = _mm512_sub_epi16(added, _mm512_set1_epi16(1));
            let added = _mm512_mask_blend_epi16(0xaaaa_aaaa, less, _mm512_slli_epi32::<16>(added));
            // Shifted up to fill 15 bits, so that the upper half of a product is the code's times
            // the factor.
            let (bytes, up) = (_mm512_set1_epi16(0xff), _mm_cvtsi32_si128(15 - bits as i32));
            let even = _mm512_sll_epi16(_mm512_and_si512(codes, bytes), up);
            let odd = _mm512_sll_epi16(_mm512_srli_epi16::<8>(codes), up);
            let even = _mm512_add_epi16(_mm512_mulhrs_epi16(even, factor), added);
            let odd = _mm512_add_epi16(_mm512_mulhrs_epi16(odd, factor), added);
            // Bits 6 to 13 are the code: from `even` where `bytes` is set.
            _mm512_ternarylogic_epi32::<0xca>(
                bytes,
                _mm512_srli_epi16::<6>(even),
                _mm512_slli_epi16::<2>(odd),
            )
        })
    }
    #[inline(always)]
    fn dot_two(self, acc: Self::I, [a, b]: [Self::B; 2], [v, w]: [Self::B; 2]) -> Self::I {
        x!(_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc, a, v), b, w))
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        x!(_mm512_dpbusd_epi32(acc, weights, activations))
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        x!(_mm512_dpbusd_epi32(acc, weights, activations))
    }
    /// The sums are those of the lanes.
    #[inline(always)]
    fn join_part<const TIMES: i16>(self, _: Self::I, _: Self::I) -> Self::I {
        no_parts()
    }
}

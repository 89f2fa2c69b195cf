//! AVX2 with FMA and F16C: two registers per vector.

use std::arch::x86_64::*;

use super::{Kernel, Parts, Simd, look_up_each, look_up_in_four, narrow_stored, no_parts};

/// Proof that the machine has AVX2, FMA, F16C and BMI2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2 {
    detected: (),
}

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2");
        found.then_some(Self { detected: () })
    }

    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` was made by `detect`, which found all of these features.
        unsafe { self.run_enabled(kernel) }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn run_enabled<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

/// The sum of eight lanes: of pairs 4 apart, then 2, then 1.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
pub(super) unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: the caller promises the features.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// One expression of intrinsics. Sound in a method of [`Avx2`], whose value proves the features.
macro_rules! x {
    ($call:expr) => {{
        // SAFETY: the value of `Avx2` proves the features; loads and stores go through references
        // to arrays of their size.
        #[allow(unused_unsafe)]
        unsafe {
            $call
        }
    }};
}

/// The same on both registers. Written out: a closure would be a function of its own, without the
/// instructions.
macro_rules! both {
    ($($v:ident),*; $call:expr) => {
        [{
            $(let $v = $v[0];)*
            x!($call)
        }, {
            $(let $v = $v[1];)*
            x!($call)
        }]
    };
}

#[inline(always)]
fn halves<T, const N: usize, const HALF: usize>(from: &[T; N]) -> [&[T; HALF]; 2] {
    let (low, high) = from.split_at(HALF);
    [
        low.first_chunk().expect("N is twice HALF"),
        high.first_chunk().expect("N is twice HALF"),
    ]
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const WIDE_XOR: u8 = 0;
    const IS_IN_REGISTERS: bool = true;
    const TILE_TOKENS: usize = 4;
    const PARTS: Parts = Parts::of(2);
    const HAS_MANY_REGISTERS: bool = false;
    const HAS_UNSIGNED: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [x!(_mm256_set1_ps(value)); 2]
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
        let halves: [&[f32; 8]; 2] = halves(from);
        both!(halves; _mm256_loadu_ps(halves.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; 16]) {
        x!(_mm256_storeu_ps(to.as_mut_ptr(), v[0]));
        x!(_mm256_storeu_ps(to[8..].as_mut_ptr(), v[1]));
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::F {
        let halves: [&[u8; 16]; 2] = halves(from);
        both!(halves; _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(self, v: Self::F, to: &mut [u16; 16]) {
        let [low, high] = both!(v; _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        x!(_mm256_storeu_si256(
            to.as_mut_ptr().cast(),
            _mm256_set_m128i(high, low)
        ))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::F {
        let halves: [&[u8; 16]; 2] = halves(from);
        both!(halves; {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(a, b; _mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(a, b; _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(a, b; _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(a, b; _mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(a, b, c; _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(a, b; _mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(a, b; _mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        both!(a; _mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn copysign(self, a: Self::F, sign: Self::F) -> Self::F {
        both!(a, sign; {
            let mask = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(mask, a), _mm256_and_ps(mask, sign))
        })
    }
    #[inline(always)]
    fn power(self, a: Self::F) -> Self::F {
        both!(a; _mm256_and_ps(a, _mm256_set1_ps(f32::INFINITY)))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        both!(a, b, yes, no; _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }

    #[inline(always)]
    fn any_lt(self, a: Self::F, b: Self::F) -> bool {
        let [low, high] = both!(a, b; _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        x!(_mm256_movemask_ps(_mm256_or_ps(low, high))) != 0
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        both!(a; _mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn to_int_toward_zero(self, a: Self::F) -> Self::I {
        both!(a; _mm256_cvttps_epi32(a))
    }
    #[inline(always)]
    fn int_values(self, a: Self::I) -> Self::F {
        both!(a; _mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn half_int(self, a: Self::I) -> Self::I {
        both!(a; _mm256_srai_epi32::<1>(a))
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(a, b; _mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        both!(n; _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))))
    }
    #[inline(always)]
    fn store_i8(self, v: Self::I, to: &mut [i8; 16]) {
        x!({
            // Packing works within 128 bits: [0..4, 8..12, 4..8, 12..16] as i16, put in order by
            // quarters of 64 bits.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v[0], v[1]));
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes)
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        x!(sum8(_mm256_add_ps(v[0], v[1])))
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        x!({
            let eight = _mm256_max_ps(v[0], v[1]);
            let four = _mm_max_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        // Four blocks of 8 x 8; those off the diagonal change places.
        for (i, j) in [(0, 0), (0, 1), (1, 1)] {
            let mut upper = [rows[8 * i][j]; 8];
            let mut lower = [rows[8 * j][i]; 8];
            for k in 1..8 {
                upper[k] = rows[8 * i + k][j];
                lower[k] = rows[8 * j + k][i];
            }
            let (upper, lower) = (transpose8(upper), transpose8(lower));
            for k in 0..8 {
                rows[8 * j + k][i] = upper[k];
                rows[8 * i + k][j] = lower[k];
            }
        }
    }
    #[inline(always)]
    fn swap_lanes<const STRIDE: usize>(self, v: Self::F) -> Self::F {
        const { assert!(matches!(STRIDE, 1 | 2 | 4 | 8)) };
        match STRIDE {
            1 => both!(v; _mm256_permute_ps::<0b10_11_00_01>(v)),
            2 => both!(v; _mm256_permute_ps::<0b01_00_11_10>(v)),
            4 => both!(v; _mm256_permute2f128_ps::<1>(v, v)),
            _ => [v[1], v[0]],
        }
    }
    #[inline(always)]
    fn spread2(self, v: Self::F, i: usize, j: usize) -> Self::F {
        let lanes = [i, j];
        both!(lanes; _mm256_permutevar8x32_ps(v[lanes / 8], _mm256_set1_epi32((lanes % 8) as i32)))
    }
    #[inline(always)]
    fn spread4(self, v: Self::F, i: usize) -> Self::F {
        let lanes = [i, i + 2];
        both!(lanes; {
            let quarters = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
            _mm256_permutevar8x32_ps(v[lanes / 8], _mm256_add_epi32(quarters, _mm256_set1_epi32((lanes % 8) as i32)))
        })
    }
    #[inline(always)]
    fn merge<const PERIOD: usize>(self, rest: Self::F, v: Self::F, i: usize) -> Self::F {
        const { assert!(PERIOD == 4 || PERIOD == 8) };
        both!(rest, v; {
            let lanes = _mm256_and_si256(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(PERIOD as i32 - 1));
            let mask = _mm256_cmpeq_epi32(lanes, _mm256_set1_epi32(i as i32));
            _mm256_blendv_ps(rest, v, _mm256_castsi256_ps(mask))
        })
    }
    #[inline(always)]
    fn half4(self, bits: u64) -> Self::F {
        let four = x!(_mm256_castps128_ps256(_mm_cvtph_ps(_mm_cvtsi64_si128(
            bits as i64
        ))));
        [four, four]
    }
    #[inline(always)]
    fn transpose_bytes(self, rows: &mut [[u8; 16]; 16]) {
        transpose_bytes(rows);
    }
    #[inline(always)]
    fn look_up(self, table: Self::F, codes: &[u8; 16]) -> Self::F {
        let halves: [&[u8; 8]; 2] = halves(codes);
        let [low, high] = table;
        both!(halves; {
            let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(halves.as_ptr().cast()));
            // The fourth bit as the sign, by which one is chosen.
            let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
            let low = _mm256_permutevar8x32_ps(low, codes);
            _mm256_blendv_ps(low, _mm256_permutevar8x32_ps(high, codes), is_high)
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
        let halves: [&[u8; 8]; 2] = halves(from);
        both!(halves; _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(halves.as_ptr().cast()))))
    }
    #[inline(always)]
    fn i8_values(self, from: &[i8; 16]) -> Self::F {
        let halves: [&[i8; 8]; 2] = halves(from);
        both!(halves; _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(halves.as_ptr().cast()))))
    }

    #[inline(always)]
    fn load_b(self, from: &[u8; 64]) -> Self::B {
        let [low, high] = halves(from);
        self.join_b(low, high)
    }
    #[inline(always)]
    fn store_b(self, v: Self::B, to: &mut [u8; 64]) {
        x!(_mm256_storeu_si256(to.as_mut_ptr().cast(), v[0]));
        x!(_mm256_storeu_si256(to[32..].as_mut_ptr().cast(), v[1]));
    }
    #[inline(always)]
    fn join_b(self, low: &[u8; 32], high: &[u8; 32]) -> Self::B {
        let halves = [low, high];
        both!(halves; _mm256_loadu_si256(halves.as_ptr().cast()))
    }
    #[inline(always)]
    fn dup16_b(self, low: &[u8; 16], high: &[u8; 16]) -> Self::B {
        let halves = [low, high];
        both!(halves; _mm256_broadcastsi128_si256(_mm_loadu_si128(halves.as_ptr().cast())))
    }
    #[inline(always)]
    fn dup4_b(self, from: &[i8; 4]) -> Self::B {
        [x!(_mm256_set1_epi32(four_codes(from))); 2]
    }
    #[inline(always)]
    fn shr_b(self, v: Self::B, counts: [u8; 4]) -> Self::B {
        let [a, b, c, d] = counts.map(i32::from);
        [
            x!(_mm256_srlv_epi32(
                v[0],
                _mm256_setr_epi32(a, a, a, a, b, b, b, b)
            )),
            x!(_mm256_srlv_epi32(
                v[1],
                _mm256_setr_epi32(c, c, c, c, d, d, d, d)
            )),
        ]
    }
    #[inline(always)]
    fn shl_b<const COUNT: i32>(self, v: Self::B) -> Self::B {
        both!(v; _mm256_slli_epi16::<COUNT>(v))
    }
    #[inline(always)]
    fn and_b(self, v: Self::B, mask: u8) -> Self::B {
        both!(v; _mm256_and_si256(v, _mm256_set1_epi8(mask as i8)))
    }
    #[inline(always)]
    fn xor_b(self, v: Self::B, mask: u8) -> Self::B {
        both!(v; _mm256_xor_si256(v, _mm256_set1_epi8(mask as i8)))
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        both!(a, b; _mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn transpose_b(self, rows: &mut [Self::B; 16]) {
        let mut lanes = [self.splat(0.0); 16];
        for (lane, row) in lanes.iter_mut().zip(*rows) {
            *lane = both!(row; _mm256_castsi256_ps(row));
        }
        self.transpose(&mut lanes);
        for (row, lane) in rows.iter_mut().zip(lanes) {
            *row = both!(lane; _mm256_castps_si256(lane));
        }
    }
    #[inline(always)]
    fn lookup_b(self, table: &[u8; 16], v: Self::B) -> Self::B {
        let table = x!(_mm256_broadcastsi128_si256(_mm_loadu_si128(
            table.as_ptr().cast()
        )));
        both!(v; _mm256_shuffle_epi8(table, v))
    }
    #[inline(always)]
    fn shuffle_b(self, table: Self::B, v: Self::B) -> Self::B {
        both!(table, v; _mm256_shuffle_epi8(table, v))
    }
    #[inline(always)]
    fn bits_b(self, bits: u64, value: u8) -> Self::B {
        let bits = [bits as i32, (bits >> 32) as i32];
        both!(bits; {
            // Byte 8 k + j gets byte k of the bits, and keeps bit j of it.
            let byte_of = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bit_of = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
            _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
        })
    }

    #[inline(always)]
    fn zero_int(self) -> Self::I {
        [x!(_mm256_setzero_si256()); 2]
    }
    #[inline(always)]
    fn load_int(self, from: &[i32; 16]) -> Self::I {
        let halves: [&[i32; 8]; 2] = halves(from);
        both!(halves; _mm256_loadu_si256(halves.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_int(self, v: Self::I, to: &mut [i32; 16]) {
        x!(_mm256_storeu_si256(to.as_mut_ptr().cast(), v[0]));
        x!(_mm256_storeu_si256(to[8..].as_mut_ptr().cast(), v[1]));
    }
    #[inline(always)]
    fn dot_two(self, acc: Self::I, activations: [Self::B; 2], weights: [Self::B; 2]) -> Self::I {
        // Twice two products of 127 * 63 fit an i16. The weight is the second operand, which may
        // come from memory.
        let ([a, b], [v, w]) = (activations, weights);
        both!(acc, a, b, v, w; {
            let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, v), _mm256_maddubs_epi16(b, w));
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        // Two products of 127 * 127 fit an i16.
        both!(acc, weights, activations; {
            let pairs = _mm256_maddubs_epi16(weights, activations);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn splat_part(self, sum: i32) -> Self::I {
        [x!(_mm256_set1_epi16(sum as i16)); 2]
    }
    #[inline(always)]
    fn dot_part(self, parts: Self::I, unsigned: Self::B, signed: Self::B) -> Self::I {
        both!(parts, unsigned, signed; _mm256_add_epi16(parts, _mm256_maddubs_epi16(unsigned, signed)))
    }
    #[inline(always)]
    fn join_part<const TIMES: i16>(self, acc: Self::I, parts: Self::I) -> Self::I {
        both!(acc, parts; _mm256_add_epi32(acc, _mm256_madd_epi16(parts, _mm256_set1_epi16(TIMES))))
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I {
        // The sign goes from the weight to the activation; two products of 128 * 127 fit an i16.
        both!(acc, weights, activations; {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights));
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn narrow(self, v: [Self::I; 4]) -> Self::B {
        narrow_stored(self, v)
    }
    #[inline(always)]
    fn rescale_b(self, _: Self::B, _: u32, _: Self::I, _: Self::I) -> Self::B {
        no_parts()
    }
}

/// Four codes as the bits of an integer.
#[inline(always)]
pub(super) fn four_codes(codes: &[i8; 4]) -> i32 {
    i32::from_le_bytes([
        codes[0] as u8,
        codes[1] as u8,
        codes[2] as u8,
        codes[3] as u8,
    ])
}

#[inline(always)]
fn transpose8(rows: [__m256; 8]) -> [__m256; 8] {
    x!({
        let mut t = rows;
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let mut u = t;
        for i in 0..2 {
            let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
            u[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
            u[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
            u[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
            u[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
        }
        let mut out = u;
        for k in 0..4 {
            out[k] = _mm256_permute2f128_ps::<0x20>(u[k], u[4 + k]);
            out[4 + k] = _mm256_permute2f128_ps::<0x31>(u[k], u[4 + k]);
        }
        out
    })
}

/// Byte j of row i goes to byte i of row j, with what every x86-64 has.
#[inline(always)]
pub(super) fn transpose_bytes(rows: &mut [[u8; 16]; 16]) {
    x!({
        let mut lanes = [_mm_setzero_si128(); 16];
        for (lane, row) in lanes.iter_mut().zip(&*rows) {
            *lane = _mm_loadu_si128(row.as_ptr().cast());
        }
        // Each round interleaves rows that are eight apart.
        for _ in 0..4 {
            let last = lanes;
            for i in 0..8 {
                lanes[2 * i] = _mm_unpacklo_epi8(last[i], last[i + 8]);
                lanes[2 * i + 1] = _mm_unpackhi_epi8(last[i], last[i + 8]);
            }
        }
        for (lane, row) in lanes.into_iter().zip(rows) {
            _mm_storeu_si128(row.as_mut_ptr().cast(), lane);
        }
    });
}

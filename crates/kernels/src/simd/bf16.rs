//! AVX-512 with products of bf16.

use std::arch::x86_64::*;

use super::{Avx512, Isa};

/// Proof that the machine has all of [`Avx512`] and bf16 products.
///
/// Subnormal numbers count as zero in both instructions, and sums round to nearest, whatever the
/// thread's modes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Bf16(Avx512);

/// A computation with bf16 products. As for [`super::Kernel`], all that `run` calls must be
/// `#[inline(always)]`.
pub(crate) trait Bf16Kernel {
    fn run(self, simd: Avx512Bf16);
}

impl Avx512Bf16 {
    /// None where the instruction set lacks them.
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Avx512(simd) if simd.has_bf16() => Some(Self(simd)),
            _ => None,
        }
    }

    /// Everything else that the machine does.
    #[inline(always)]
    pub(crate) fn base(self) -> Avx512 {
        self.0
    }

    #[inline]
    pub(crate) fn run<K: Bf16Kernel>(self, kernel: K) {
        // SAFETY: `self` was made by `of` from a machine with all of these features.
        unsafe { self.run_enabled(kernel) }
    }

    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c,bmi2"
    )]
    fn run_enabled<K: Bf16Kernel>(self, kernel: K) {
        kernel.run(self);
    }

    /// To each lane, the sum of two products of bf16.
    #[inline(always)]
    pub(crate) fn dot(self, acc: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: the value of `Avx512Bf16` proves the feature; both types are 64 bytes without bad
        // values.
        unsafe {
            let (a, b) = (
                std::mem::transmute::<__m512i, __m512bh>(a),
                std::mem::transmute::<__m512i, __m512bh>(b),
            );
            _mm512_dpbf16_ps(acc, a, b)
        }
    }

    /// [`Self::dot`] of lanes that hold two bf16 each.
    #[inline(always)]
    pub(crate) fn dot_pairs(self, acc: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the value of `Avx512Bf16` proves the feature.
        unsafe { self.dot(acc, _mm512_castps_si512(a), _mm512_castps_si512(b)) }
    }

    /// The nearest bf16 of 32 values, ties to even.
    #[inline(always)]
    pub(crate) fn round(self, from: &[f32; 32]) -> __m512i {
        // SAFETY: the value of `Avx512Bf16` proves the feature; the loads are of the two halves of
        // the array.
        unsafe {
            self.rounded([
                _mm512_loadu_ps(from.as_ptr()),
                _mm512_loadu_ps(from.as_ptr().add(16)),
            ])
        }
    }

    #[inline(always)]
    fn rounded(self, [low, high]: [__m512; 2]) -> __m512i {
        // SAFETY: the value of `Avx512Bf16` proves the feature; both types are 64 bytes without bad
        // values.
        unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
    }

    /// Values as bf16, two to a lane, in their order.
    #[inline(always)]
    pub(crate) fn round_joined(self, values: [__m512; 2]) -> __m512 {
        // SAFETY: the value of `Avx512Bf16` proves the feature.
        unsafe { _mm512_castsi512_ps(self.rounded(values)) }
    }

    /// Values as bf16, one of each vector in a lane.
    #[inline(always)]
    pub(crate) fn round_zipped(self, values: [__m512; 2]) -> __m512 {
        const LANES: [u16; 32] = {
            let mut lanes = [0; 32];
            let mut i = 0;
            while i < 32 {
                lanes[i] = (i / 2 + i % 2 * 16) as u16;
                i += 1;
            }
            lanes
        };
        // SAFETY: the value of `Avx512Bf16` proves the features; the load is of an array of 64
        // bytes.
        unsafe {
            let lanes = _mm512_loadu_si512(LANES.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(lanes, self.rounded(values)))
        }
    }
}

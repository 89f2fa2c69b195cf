//! How lanes are multiplied and summed up: as a factor in f32, or as two in bf16.

use super::Simd;
#[cfg(target_arch = "x86_64")]
use super::{Avx512, Avx512Bf16};

/// How the lanes of weights and inputs are multiplied.
pub(crate) trait Multiply: Copy {
    /// Everything else that the machine does.
    type Base: Simd;
    /// Factors of a lane.
    const LANE_LEN: usize;

    fn base(self) -> Self::Base;

    /// Adds the products of each lane.
    fn add_products(
        self,
        weights: <Self::Base as Simd>::F,
        inputs: <Self::Base as Simd>::F,
        sums: <Self::Base as Simd>::F,
    ) -> <Self::Base as Simd>::F;

    /// Twice 16 values, the first of which follow each other in the first 8 lanes. Not where a lane
    /// is one.
    fn join(self, values: [<Self::Base as Simd>::F; 2]) -> <Self::Base as Simd>::F;

    /// Twice 16 values, of each one in every lane. Not where a lane is one.
    fn zip(self, values: [<Self::Base as Simd>::F; 2]) -> <Self::Base as Simd>::F;
}

/// A lane is a column in f32.
impl<S: Simd> Multiply for S {
    type Base = S;
    const LANE_LEN: usize = 1;

    #[inline(always)]
    fn base(self) -> S {
        self
    }

    #[inline(always)]
    fn add_products(self, weights: S::F, inputs: S::F, sums: S::F) -> S::F {
        self.fma(weights, inputs, sums)
    }

    #[inline(always)]
    fn join(self, values: [S::F; 2]) -> S::F {
        values[0]
    }

    #[inline(always)]
    fn zip(self, values: [S::F; 2]) -> S::F {
        values[0]
    }
}

/// A lane is two columns in bf16.
#[cfg(target_arch = "x86_64")]
impl Multiply for Avx512Bf16 {
    type Base = Avx512;
    const LANE_LEN: usize = 2;

    #[inline(always)]
    fn base(self) -> Avx512 {
        Avx512Bf16::base(self)
    }

    #[inline(always)]
    fn add_products(
        self,
        weights: <Avx512 as Simd>::F,
        inputs: <Avx512 as Simd>::F,
        sums: <Avx512 as Simd>::F,
    ) -> <Avx512 as Simd>::F {
        self.dot_pairs(sums, weights, inputs)
    }

    #[inline(always)]
    fn join(self, values: [<Avx512 as Simd>::F; 2]) -> <Avx512 as Simd>::F {
        self.round_joined(values)
    }

    #[inline(always)]
    fn zip(self, values: [<Avx512 as Simd>::F; 2]) -> <Avx512 as Simd>::F {
        self.round_zipped(values)
    }
}

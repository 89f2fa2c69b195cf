//! Steps of products that tests hold against their scalar forms one by one. No part of the API:
//! products call the same code from within their kernels.

use super::codes::Codes;
use super::int8::{FINE_PARTS, Int8Block, Requantize, rotate};
use super::panel::kind_of;
pub use super::tasks::share_len;
use super::weight::Weight;
use crate::simd::{Kernel, LANES, Simd};
use crate::{Context, Isa};

/// 64 values multiplied with a Hadamard matrix of ones and minus ones.
pub fn rotated(isa: Isa, x: &[f32; 64]) -> [f32; 64] {
    struct Rotate<'a>(&'a [f32; 64]);
    impl Kernel for Rotate<'_> {
        type Output = [f32; 64];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; 64] {
            let (rotated, mut out) = (rotate(simd, self.0), [f32::NAN; 64]);
            for (i, to) in out.as_chunks_mut().0.iter_mut().enumerate() {
                simd.store(rotated[i], to);
            }
            out
        }
    }
    isa.run(Rotate(x))
}

/// [`Simd::rescale_b`] of codes of so many bits, where the instruction set has
/// [wide sums](Isa::has_wide_sums).
pub fn rescaled(
    isa: Isa,
    codes: &[u8; 64],
    n_bits: u32,
    factor: &[i32; LANES],
    added: &[i32; LANES],
) -> [u8; 64] {
    struct Rescale<'a>(&'a [u8; 64], u32, &'a [i32; LANES], &'a [i32; LANES]);
    impl Kernel for Rescale<'_> {
        type Output = [u8; 64];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [u8; 64] {
            let Self(codes, n_bits, factor, added) = self;
            let (factor, added) = (simd.load_int(factor), simd.load_int(added));
            let codes = simd.rescale_b(simd.load_b(codes), n_bits, factor, added);
            let mut out = [0; 64];
            simd.store_b(codes, &mut out);
            out
        }
    }
    isa.run(Rescale(codes, n_bits, factor, added))
}

/// Fits the codes of 16 rows of a quantized weight to 8 bits, 256 columns a block, where the
/// instruction set has [wide sums](Isa::has_wide_sums). The scratch is that of
/// [`pack_codes`](super::pack_codes).
pub fn requantize(
    ctx: &Context,
    weight: &Weight,
    first_row: usize,
    blocks: &mut [Int8Block<FINE_PARTS>],
    scratch: &mut [f32],
) {
    let n_steps = weight.n_cols.div_ceil(64);
    ctx.isa().run(Requantize {
        kind: kind_of(weight.ty),
        panel: Codes::Stored(*weight).fill(ctx, first_row, n_steps, scratch),
        blocks: blocks.iter_mut(),
    });
}

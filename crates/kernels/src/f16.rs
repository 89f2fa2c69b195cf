//! Slices of half precision (IEEE f16), as bits in a `u16`, to and from `f32`, and the numbers of
//! half precision and bf16 one by one.
//!
//! The scalar functions of `thane-blocks` define the bits, NaN included; the slice functions give
//! the same ones.

pub use thane_blocks::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::simd::{Isa, Kernel, Simd};

/// `to[i]` is the value of the f16 `from[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn f16_to_f32_slice(isa: Isa, from: &[u16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "one output per input");
    isa.run(FromF16 { from, to });
}

/// `to[i]` is the nearest f16 of `from[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn f32_to_f16_slice(isa: Isa, from: &[f32], to: &mut [u16]) {
    assert_eq!(from.len(), to.len(), "one output per input");
    isa.run(ToF16 { from, to });
}

struct FromF16<'a> {
    from: &'a [u16],
    to: &'a mut [f32],
}

impl Kernel for FromF16<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (vectors, rest) = self.from.as_chunks::<16>();
        let (to, to_rest) = self.to.split_at_mut(vectors.len() * 16);
        for (from, to) in vectors.iter().zip(to.as_chunks_mut::<16>().0) {
            simd.store(simd.load_f16(u16_as_bytes(from)), to);
        }
        to_rest
            .iter_mut()
            .zip(rest)
            .for_each(|(to, from)| *to = f16_to_f32(*from));
    }
}

struct ToF16<'a> {
    from: &'a [f32],
    to: &'a mut [u16],
}

impl Kernel for ToF16<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (vectors, rest) = self.from.as_chunks::<16>();
        let (to, to_rest) = self.to.split_at_mut(vectors.len() * 16);
        for (from, to) in vectors.iter().zip(to.as_chunks_mut::<16>().0) {
            simd.store_f16(simd.load(from), to);
        }
        to_rest
            .iter_mut()
            .zip(rest)
            .for_each(|(to, from)| *to = f32_to_f16(*from));
    }
}

/// The bytes of 16 halves.
#[inline(always)]
pub(crate) fn u16_as_bytes(from: &[u16; 16]) -> &[u8; 32] {
    // SAFETY: the same memory; a byte has no alignment and no bad values.
    unsafe { &*from.as_ptr().cast() }
}

//! A rotation that leaves no column far greater than the others of its group.

use super::GROUP_LEN;
use crate::simd::{LANES, Simd};

/// Vectors of a group.
const N: usize = GROUP_LEN / LANES;

/// Multiplies 64 values with a Hadamard matrix of ones and minus ones. Of two vectors that both are
/// rotated the product is 64 times as great.
#[inline(always)]
pub(in crate::linear) fn rotate<S: Simd>(simd: S, x: &[f32; GROUP_LEN]) -> [S::F; N] {
    let mut v = [simd.splat(0.0); N];
    for i in 0..N {
        v[i] = simd.load(&x.as_chunks().0[i]);
    }
    v = [
        simd.add(v[0], v[1]),
        simd.sub(v[0], v[1]),
        simd.add(v[2], v[3]),
        simd.sub(v[2], v[3]),
    ];
    v = [
        simd.add(v[0], v[2]),
        simd.add(v[1], v[3]),
        simd.sub(v[0], v[2]),
        simd.sub(v[1], v[3]),
    ];
    for i in 0..N {
        v[i] = butterfly::<S, 8>(simd, v[i]);
        v[i] = butterfly::<S, 4>(simd, v[i]);
        v[i] = butterfly::<S, 2>(simd, v[i]);
        v[i] = butterfly::<S, 1>(simd, v[i]);
    }
    v
}

/// The sums and the differences of lanes as far from each other.
#[inline(always)]
fn butterfly<S: Simd, const STRIDE: usize>(simd: S, v: S::F) -> S::F {
    simd.fma(
        v,
        simd.load(const { &signs(STRIDE) }),
        simd.swap_lanes::<STRIDE>(v),
    )
}

/// -1 for the second lane of each two.
const fn signs(stride: usize) -> [f32; LANES] {
    let (mut signs, mut lane) = ([1.0; LANES], 0);
    while lane < LANES {
        if lane & stride != 0 {
            signs[lane] = -1.0;
        }
        lane += 1;
    }
    signs
}

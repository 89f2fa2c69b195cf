//! Steps of 64 columns of a tile of tokens, and the scales of their codes.

use crate::simd::Simd;

/// Tokens of a tile.
pub(super) const TILE_TOKENS: usize = 6;

/// 64 columns of the tokens of a tile; those behind the last column are zeros, and a token that is
/// not there is the first again.
#[inline(always)]
pub(super) fn tile_step<'a>(
    x: &'a [f32],
    n_cols: usize,
    step_idx: usize,
    last: &'a mut [[f32; 64]; TILE_TOKENS],
) -> [&'a [f32; 64]; TILE_TOKENS] {
    let mut tokens = [&x[..0]; TILE_TOKENS];
    for (n, token) in tokens.iter_mut().enumerate() {
        let first = if (n + 1) * n_cols <= x.len() {
            n * n_cols
        } else {
            0
        };
        *token = &x[first..first + n_cols][64 * step_idx..];
    }
    if step_idx < n_cols / 64 {
        return tokens.map(|token| token.first_chunk().expect("whole steps"));
    }
    last.iter_mut()
        .zip(tokens)
        .for_each(|(last, token)| last[..token.len()].copy_from_slice(token));
    last.each_ref()
}

/// Lanes from the first half of the columns to the second, where both are in a vector.
pub(super) const HALF_LANES: usize = 8;

/// By lane: the first half of the columns of each token, then, from [`HALF_LANES`] on, the second.
pub(super) struct TileScales {
    /// Of a code.
    pub(super) scale: [f32; 16],
    /// Its inverse.
    pub(super) inverse: [f32; 16],
}

#[inline(always)]
pub(super) fn scales_of<S: Simd>(simd: S, tokens: &[&[f32; 64]; TILE_TOKENS]) -> TileScales {
    let mut maxima = [simd.splat(0.0); 16];
    // NaN becomes infinite.
    let infinity = simd.splat(f32::INFINITY);
    for n in 0..TILE_TOKENS {
        for half in 0..2 {
            let x: &[[f32; 16]] = tokens[n][32 * half..][..32].as_chunks().0;
            let (a, b) = (simd.abs(simd.load(&x[0])), simd.abs(simd.load(&x[1])));
            maxima[HALF_LANES * half + n] = simd.max(simd.min(a, infinity), simd.min(b, infinity));
        }
    }
    simd.transpose(&mut maxima);
    let mut max = maxima[0];
    for other in &maxima[1..] {
        max = simd.max(max, *other);
    }
    // Below 1e-36 the inverse of the scale would be close to overflow.
    let (least, zero, most) = (simd.splat(1e-36), simd.splat(0.0), simd.splat(127.0));
    let mut scales = TileScales {
        scale: [0.0; 16],
        inverse: [0.0; 16],
    };
    simd.store(
        simd.select_lt(max, least, zero, simd.div(most, max)),
        &mut scales.inverse,
    );
    // Infinity less infinity is NaN.
    let scale = simd.select_lt(max, least, zero, simd.div(max, most));
    simd.store(simd.add(scale, simd.sub(max, max)), &mut scales.scale);
    scales
}

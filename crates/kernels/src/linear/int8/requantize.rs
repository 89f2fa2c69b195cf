//! Codes of a quantized matrix as codes of 8 bits of which 256 columns share a scale.

use super::{BLOCK_LEN, BLOCK_QUADS, FINE_PARTS, Int8Block, LEAST, max_code, offset};
use crate::linear::panel::{Kind, Panel};
use crate::simd::{Kernel, LANES, Simd};

/// Fits a panel's values to blocks: code = round(w * 127 / most), where no weight of a row's 256
/// columns can be greater than `most`. To nearest, but for a thirty-second of a code. Where
/// [`Simd::PARTS`] are of four.
pub(in crate::linear) struct Requantize<'a, I> {
    pub(in crate::linear) kind: Kind,
    pub(in crate::linear) panel: Panel<'a>,
    /// By columns.
    pub(in crate::linear) blocks: I,
}

impl<'b, I: Iterator<Item = &'b mut Int8Block<FINE_PARTS>>> Kernel for Requantize<'_, I> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if const { !S::PARTS.are_of_four() } {
            unreachable!("codes are fitted for sums of four products");
        }
        let Self {
            kind,
            panel,
            blocks,
        } = self;
        let (n_quads, n_groups) = (kind.group_len / 4, BLOCK_LEN / kind.group_len);
        let factors = panel
            .scales
            .chunks(n_groups)
            .zip(panel.shifts.chunks(n_groups));
        for (block, (quads, (scales, shifts))) in
            blocks.zip(panel.codes.chunks(BLOCK_QUADS).zip(factors))
        {
            let most = most_of(simd, kind, scales, shifts);
            // Below it the inverse of a scale would be close to overflow: all codes are 0.
            let (least, zero, greatest) = (
                simd.splat(LEAST),
                simd.splat(0.0),
                simd.splat(max_code::<S>()),
            );
            let inverse = simd.select_lt(most, least, zero, simd.div(greatest, most));
            // Infinity less infinity is NaN.
            let scale = simd.select_lt(most, least, zero, simd.div(most, greatest));
            simd.store(simd.add(scale, simd.sub(most, most)), &mut block.scales);
            let groups = quads.chunks_exact(n_quads).zip(scales.iter().zip(shifts));
            let to = block.codes.chunks_exact_mut(n_quads);
            let mut sums = [simd.zero_int(); FINE_PARTS];
            for (i, ((codes, (scale, shift)), to)) in groups.zip(to).enumerate() {
                let factors = [
                    simd.mul(simd.load(scale), inverse),
                    simd.mul(simd.load(shift), inverse),
                ];
                let part = i * FINE_PARTS / n_groups;
                sums[part] = rescale(simd, kind, factors, codes, to, sums[part]);
            }
            for (offsets, sum) in block.offsets.iter_mut().zip(sums) {
                simd.store_int(simd.sub_int(simd.zero_int(), sum), offsets);
            }
        }
    }
}

/// The greatest value that some codes can have, by row; infinite where one has a factor that is no
/// number.
#[inline(always)]
fn most_of<S: Simd>(simd: S, kind: Kind, scales: &[[f32; LANES]], shifts: &[[f32; LANES]]) -> S::F {
    let (last, infinity) = (
        simd.splat(f32::from(kind.max_code)),
        simd.splat(f32::INFINITY),
    );
    let mut most = simd.splat(0.0);
    for (scale, shift) in scales.iter().zip(shifts) {
        let (scale, shift) = (simd.load(scale), simd.load(shift));
        let ends = [shift, simd.fma(scale, last, shift)];
        for end in ends {
            most = simd.max(simd.min(simd.abs(end), infinity), most);
        }
    }
    most
}

/// New codes of some columns; adds to `sums` what activations' offset times them is.
#[inline(always)]
fn rescale<S: Simd>(
    simd: S,
    kind: Kind,
    [scale, shift]: [S::F; 2],
    codes: &[[u8; 64]],
    to: &mut [[u8; 64]],
    mut sums: S::I,
) -> S::I {
    // In 64ths of a code; those of a factor by as many bits more as a code has.
    let bits = u8::BITS - kind.max_code.leading_zeros();
    let factor = simd.to_int(simd.mul(scale, simd.splat((64 << bits) as f32)));
    let added = simd.to_int(simd.fma(shift, simd.splat(64.0), simd.splat(32.0)));
    let one = simd.dup4_b(&[offset::<S>() as i8; 4]);
    for (codes, to) in codes.iter().zip(to) {
        let codes = simd.rescale_b(simd.load_b(codes), bits, factor, added);
        sums = simd.dot_part(sums, one, codes);
        simd.store_b(codes, to);
    }
    sums
}

//! Integers of 4 or 8 bits with a scale for the tensor, each channel, or each block of inputs.
//!
//! Why it is right:
//! 1. The scale that maps the largest value to the largest code is the first candidate, so the
//!    error is at most that of rounding to the nearest with this scale.
//! 2. Smaller scales cut the largest values off and round the others less; the best of a row of
//!    them is taken, then the scale that has the least error for its codes, `sum w q / sum q^2`,
//!    if it is better once codes are found anew.
//! 3. The scale that maps the largest value to the least code, or the largest positive one to the
//!    largest code, is a candidate too: with it, integers with a scale in a file are kept exactly.
//! 4. A scale is rounded to the type of the tensor before codes are found, and so is each product
//!    of a code and its scale, as whoever reads the weight does. A scale whose product with a code
//!    would be infinite is not taken.

use thane_mil::types::DType;

use super::Blocks;
use super::values::{Coded, Values, pack};

/// The least scale as a share of the one that maps the largest value to the largest code, and the
/// number of candidates.
const LEAST_SHARE: f64 = 0.4;
const CANDIDATES: [(usize, usize); 2] = [(4, 25), (8, 7)];

/// Codes of `bits` bits and scales of `float` numbers.
pub fn encode(values: &Values, (bits, blocks): (usize, Blocks), float: DType) -> Coded {
    let mut coder = Coder {
        values,
        bits,
        codes: vec![0; values.len()],
        scales: Vec::new(),
        error: 0.0,
    };
    let mut block = Vec::new();
    for channel in 0..values.matrix.channels() {
        if blocks != Blocks::Tensor {
            block.clear();
        }
        values.each_of(channel, |at, i, w| {
            block.push((at, w, values.importance(i)));
        });
        match blocks {
            Blocks::Tensor => {}
            Blocks::Channel => coder.block(&block),
            Blocks::Inputs(n) => inputs(values, &block, n, &mut coder),
        }
    }
    if blocks == Blocks::Tensor {
        coder.block(&block);
    }
    let codes = pack(&values.only_kept(coder.codes), bits);
    let scales = values.bytes(float, coder.scales.into_iter());
    // Scales lie along the axes of the tensor: those of a channel are side by side if its inputs
    // follow it.
    let scales = match blocks {
        Blocks::Inputs(n) if values.matrix.axis > values.matrix.input => {
            let n_blocks = values.matrix.shape[values.matrix.input] / n;
            transposed(&scales, n_blocks, float.bits() / 8)
        }
        _ => scales,
    };
    Coded {
        parts: vec![codes, scales],
        error: coder.error,
    }
}

/// Cuts the elements of a channel into blocks of `n` inputs.
fn inputs(values: &Values, channel: &[(usize, f32, f32)], n: usize, coder: &mut Coder<'_>) {
    let matrix = &values.matrix;
    let inner: usize = matrix.shape[matrix.input + 1..].iter().product();
    let of = |at: usize| at / inner % matrix.shape[matrix.input] / n;
    let n_blocks = matrix.shape[matrix.input] / n;
    let mut rest = channel;
    for block in 0..n_blocks {
        let len = rest.iter().take_while(|(at, ..)| of(*at) == block).count();
        coder.block(&rest[..len]);
        rest = &rest[len..];
    }
}

/// Rows of `n` cells as columns.
fn transposed(cells: &[u8], n: usize, size: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = cells.chunks(n * size).collect();
    let columns = (0..n).flat_map(|k| rows.iter().map(move |row| &row[k * size..(k + 1) * size]));
    columns.flatten().copied().collect()
}

struct Coder<'a> {
    values: &'a Values,
    bits: usize,
    /// By place in the tensor.
    codes: Vec<u8>,
    scales: Vec<f32>,
    error: f64,
}

impl Coder<'_> {
    /// The largest code; the least is one less than its negative.
    fn most(&self) -> f32 {
        ((1 << (self.bits - 1)) - 1) as f32
    }

    fn code(&self, w: f32, inverse: f32) -> f32 {
        let most = self.most();
        (w * inverse).round_ties_even().clamp(-most - 1.0, most)
    }

    /// The error of a scale, by how much elements count.
    fn weighted(&self, block: &[(usize, f32, f32)], scale: f32) -> f64 {
        let inverse = 1.0 / scale;
        let mut sum = 0.0;
        for part in block.chunks(64) {
            // Short sums in f32 are exact enough, and fast.
            let mut own = 0.0f32;
            for (_, w, weight) in part {
                let off = w - self.code(*w, inverse) * scale;
                own += weight * off * off;
            }
            sum += f64::from(own);
        }
        sum
    }

    /// Finds the scale and the codes of elements, with their places and how much they count.
    fn block(&mut self, block: &[(usize, f32, f32)]) {
        let scale = self.scale(block);
        let inverse = 1.0 / scale;
        for (at, w, _) in block {
            let code = self.code(*w, inverse);
            self.error += f64::from(w - self.product(code, scale)).powi(2);
            self.codes[*at] = (code as i8).cast_unsigned();
        }
        self.scales.push(scale);
    }

    /// The value of a code.
    fn product(&self, code: f32, scale: f32) -> f32 {
        self.values.stored(f64::from(code) * f64::from(scale))
    }

    /// The scale that maps the largest value to the largest code, or a little less where the
    /// product of the two would be infinite; `holds` says whether it is not.
    fn whole(&self, largest: f32, holds: impl Fn(f32) -> bool) -> f64 {
        let most = f64::from(largest / self.most());
        let shares = (0..=128).map(|i| most * (1.0 - f64::from(i) / 1024.0));
        let mut held = shares.filter(|x| holds(self.values.stored_scale(*x)));
        // 8 codes or 128 times the last are less than the largest value.
        held.next().unwrap_or(most)
    }

    fn scale(&self, block: &[(usize, f32, f32)]) -> f32 {
        let ends = |[a, b]: [f32; 2], (_, w, _): &(usize, f32, f32)| [a.min(*w), b.max(*w)];
        let ends = block.iter().fold([0.0f32; 2], ends);
        let largest = ends[1].max(-ends[0]);
        if largest == 0.0 {
            return self.values.stored_scale(1.0);
        }
        let holds = |scale: f32| {
            let product = |w: f32| self.product(self.code(w, 1.0 / scale), scale);
            ends.iter().all(|w| product(*w).is_finite())
        };
        let in_float = |scale: f64| self.values.stored_scale(scale);
        let whole = self.whole(largest, holds);
        let known = CANDIDATES.iter().find(|(bits, _)| *bits == self.bits);
        let n = known.map_or(1, |(_, n)| *n);
        // 8 bits cut little off.
        let least = if self.bits == 4 { LEAST_SHARE } else { 0.88 };
        let shares = (0..n).map(|i| 1.0 - (1.0 - least) * i as f64 / n as f64);
        // The least code may stand for the largest value: weights of a file of integers hold it.
        let both = f64::from((ends[1] / self.most()).max(-ends[0] / (self.most() + 1.0)));
        let scales = shares
            .map(|share| whole * share)
            .chain([both])
            .map(in_float);
        let held = scales.filter(|scale| holds(*scale));
        let priced = held.map(|scale| (self.weighted(block, scale), scale));
        let best = priced.reduce(|best, next| if next.0 < best.0 { next } else { best });
        let (error, scale) = best.unwrap_or((f64::INFINITY, in_float(whole)));
        let fitted = in_float(self.fitted(block, scale));
        match holds(fitted) && self.weighted(block, fitted) < error {
            true => fitted,
            false => scale,
        }
    }

    /// The scale that has the least error with the codes of another.
    fn fitted(&self, block: &[(usize, f32, f32)], scale: f32) -> f64 {
        let inverse = 1.0 / scale;
        let (mut product, mut square) = (0.0, 0.0);
        for (_, w, weight) in block {
            let code = self.code(*w, inverse);
            product += f64::from(weight * w * code);
            square += f64::from(weight * code * code);
        }
        if square > 0.0 {
            product / square
        } else {
            scale.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use thane_mil::data::Data;
    use thane_mil::literal::f16_to_f32;

    use super::*;
    use crate::compress::values::Matrix;
    use crate::rewrite::bytes_of;

    fn values(shape: &[usize], axis: usize, number: impl Fn(usize) -> f32) -> Values {
        let n: usize = shape.iter().product();
        let data = Data::owned(bytes_of(DType::Fp16, (0..n).map(number)));
        let matrix = Matrix::new(shape.to_vec(), axis, 1 - axis);
        Values::read(matrix, DType::Fp16, &data).unwrap()
    }

    fn halves(bytes: &[u8]) -> Vec<f32> {
        let cells = bytes.as_chunks::<2>().0.iter();
        cells.map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect()
    }

    #[test]
    fn multiples_of_a_scale_are_kept() {
        let values = values(&[2, 16], 0, |i| {
            [0.5, 0.25][i / 16] * (i as f32 % 16.0 - 8.0)
        });
        let coded = encode(&values, (4, Blocks::Channel), DType::Fp16);
        assert_eq!(coded.error, 0.0);
        assert_eq!(halves(&coded.parts[1]), [0.5, 0.25]);
        assert_eq!(coded.parts[0][..2], [0x98, 0xba]);
    }

    #[test]
    fn integers_of_a_file_are_kept() {
        for (bits, least) in [(8, -128), (4, -8)] {
            let values = values(&[2, 256], 0, |i| {
                let code = (i as i32 * 37 % (-2 * least)) + least;
                code as f32 * [0.011_f32, 0.25][i / 256]
            });
            let coded = encode(&values, (bits, Blocks::Channel), DType::Fp16);
            assert!(coded.error < 1e-4, "{bits} bits: {}", coded.error);
        }
    }

    #[test]
    fn scales_of_blocks_lie_as_the_axes_do() {
        // Blocks of 4 inputs: the size of block b of channel c is 2^(c + 2 b).
        for axis in [0, 1] {
            let shape = [[2, 8], [8, 2]][axis];
            let place = |i: usize| {
                if axis == 0 {
                    (i / 8, i % 8)
                } else {
                    (i % 2, i / 2)
                }
            };
            let number = |i: usize| {
                let (channel, input) = place(i);
                2f32.powi((channel + 2 * (input / 4)) as i32) * (input as f32 % 4.0 - 1.0)
            };
            let coded = encode(
                &values(&shape, axis, number),
                (8, Blocks::Inputs(4)),
                DType::Fp16,
            );
            let scales = halves(&coded.parts[1]);
            let relative: Vec<f32> = scales.iter().map(|s| (s / scales[0]).round()).collect();
            let expected = [[1., 4., 2., 8.], [1., 2., 4., 8.]][axis];
            assert_eq!(relative, expected, "{axis}");
        }
    }

    #[test]
    fn errors_are_below_those_of_the_largest_value() {
        let noise = |i: usize| {
            let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let uniform = |shift: u32| (mixed >> shift & 0xffff) as f32 / 65536.0 - 0.5;
            uniform(0) + uniform(16) + uniform(32) + uniform(48)
        };
        let values = values(&[8, 256], 0, noise);
        for (bits, blocks) in [
            (4, Blocks::Channel),
            (8, Blocks::Channel),
            (4, Blocks::Tensor),
        ] {
            let coded = encode(&values, (bits, blocks), DType::Fp16);
            let most = ((1 << (bits - 1)) - 1) as f32;
            let mut plain = 0.0;
            for channel in 0..8 {
                let mut own = Vec::new();
                values.each_of(channel, |_, _, w| own.push(w));
                let scale = own.iter().fold(0.0f32, |a, w| a.max(w.abs())) / most;
                let off = |w: &f32| f64::from(w - (w / scale).round() * scale).powi(2);
                plain += own.iter().map(off).sum::<f64>();
            }
            let factor = if blocks == Blocks::Tensor { 1.3 } else { 1.0 };
            assert!(
                coded.error < factor * plain,
                "{bits}: {} {plain}",
                coded.error
            );
        }
    }
}

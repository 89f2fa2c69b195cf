//! The values of a tensor as methods see them, and the packing of codes.

use thane_mil::data::Data;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

use crate::rewrite::bytes_of;

/// The axes of a weight: which one its product keeps, and which one it sums over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Lengths of all axes.
    pub shape: Vec<usize>,
    /// The axis of output channels; of a table that is looked up, that of its rows.
    pub axis: usize,
    /// The axis of inputs.
    pub input: usize,
}

impl Matrix {
    /// A tensor of this shape. `axis` and `input` must be axes of it.
    pub fn new(shape: Vec<usize>, axis: usize, input: usize) -> Self {
        Self { shape, axis, input }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of output channels.
    pub fn channels(&self) -> usize {
        self.shape[self.axis]
    }

    /// Consecutive elements of one channel.
    pub fn run(&self) -> usize {
        self.shape[self.axis + 1..].iter().product()
    }

    /// Elements of a channel.
    pub fn per_channel(&self) -> usize {
        self.len() / self.channels().max(1)
    }

    /// A shape of the same rank with `n` along the axis of channels, and else 1.
    pub fn along_channels(&self, n: usize) -> Vec<usize> {
        let mut shape = vec![1; self.shape.len()];
        shape[self.axis] = n;
        shape
    }

    /// Whether consecutive inputs of a channel are known: of a matrix, and of a kernel
    /// [channels, inputs, ..].
    pub fn has_inputs(&self) -> Result<(), String> {
        let is_kernel = self.axis == 0 && self.input == 1;
        match is_kernel || self.shape.len() == 2 {
            true => Ok(()),
            false => Err("its inputs do not lie side by side".to_owned()),
        }
    }

    /// Consecutive elements of one input, within the elements of a channel.
    pub fn per_input(&self) -> usize {
        self.per_channel() / self.shape[self.input].max(1)
    }

    /// The places of the elements of a channel, as runs that begin at these.
    pub fn runs_of(&self, channel: usize) -> impl Iterator<Item = usize> + use<> {
        let (run, step) = (self.run(), self.run() * self.channels());
        let outer = self.len().checked_div(step).unwrap_or(0);
        (0..outer).map(move |i| i * step + channel * run)
    }
}

/// The numbers of a tensor, rounded to fp16, as far as they are kept.
pub struct Values {
    /// The axes.
    pub matrix: Matrix,
    /// Bits of fp16.
    pub halves: Vec<u16>,
    /// Which elements are kept; empty for all.
    pub kept: Vec<bool>,
    /// How much an error counts, by input; empty where all count the same.
    pub importance: Vec<f32>,
}

impl Values {
    /// Reads the numbers of a constant. The place of the first that is not finite is an error.
    pub fn read(matrix: Matrix, dtype: DType, data: &Data) -> Result<Self, usize> {
        let n = matrix.len();
        let mut halves = Vec::with_capacity(n);
        let size = dtype.bits() / 8;
        let mut piece = vec![0; (1 << 16).min(n * size)];
        for at in (0..n * size).step_by(1 << 16) {
            let len = piece.len().min(n * size - at);
            let read = data.read(at, &mut piece[..len]);
            debug_assert!(read, "a constant has the bytes of its type");
            match dtype {
                DType::Fp16 => {
                    let cells = piece[..len].as_chunks::<2>().0.iter();
                    halves.extend(cells.map(|b| u16::from_le_bytes(*b)));
                }
                _ => {
                    let cells = piece[..len].as_chunks::<4>().0.iter();
                    halves.extend(cells.map(|b| f64_to_f16(f32::from_le_bytes(*b).into())));
                }
            }
        }
        match halves.iter().position(|h| h & 0x7c00 == 0x7c00) {
            Some(at) => Err(at),
            None => Ok(Self {
                matrix,
                halves,
                kept: Vec::new(),
                importance: Vec::new(),
            }),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.halves.len()
    }

    /// Element `i`.
    pub fn at(&self, i: usize) -> f32 {
        f16_to_f32(self.halves[i])
    }

    /// Whether element `i` is kept.
    pub fn is_kept(&self, i: usize) -> bool {
        self.kept.is_empty() || self.kept[i]
    }

    /// How much an error of element `i` of a channel counts, from 0.
    pub fn importance(&self, i: usize) -> f32 {
        if self.importance.is_empty() {
            return 1.0;
        }
        self.importance[i / self.matrix.per_input() % self.importance.len()]
    }

    /// Calls `visit` with each kept element of a channel: its place, its place in the channel, and
    /// its value.
    pub fn each_of(&self, channel: usize, mut visit: impl FnMut(usize, usize, f32)) {
        let run = self.matrix.run();
        for (k, begin) in self.matrix.runs_of(channel).enumerate() {
            for i in 0..run {
                if self.is_kept(begin + i) {
                    visit(begin + i, k * run + i, self.at(begin + i));
                }
            }
        }
    }

    /// The sum of the squares of all elements, kept or not.
    pub fn energy(&self) -> f64 {
        let squares = self
            .halves
            .iter()
            .map(|h| f64::from(f16_to_f32(*h)).powi(2));
        squares.sum()
    }

    /// The sum of the squares of the elements that are not kept.
    pub fn lost(&self) -> f64 {
        let all = self.kept.iter().zip(&self.halves);
        let lost = all.filter(|(kept, _)| !**kept);
        lost.map(|(_, h)| f64::from(f16_to_f32(*h)).powi(2)).sum()
    }

    /// The kept elements, in order.
    pub fn kept_numbers(&self, float: DType) -> Vec<u8> {
        let kept = (0..self.len()).filter(|i| self.is_kept(*i));
        bytes_of(float, kept.map(|i| self.at(i)))
    }

    /// Of a list with a code for each element, those of kept ones.
    pub fn only_kept(&self, mut codes: Vec<u8>) -> Vec<u8> {
        if !self.kept.is_empty() {
            let mut kept = self.kept.iter();
            codes.retain(|_| kept.next() == Some(&true));
        }
        codes
    }
}

/// What a method makes of a tensor: the bytes of its parts, in the order of
/// [`Encoding::parts`](super::Encoding::parts), and the error.
pub struct Coded {
    /// Bytes.
    pub parts: Vec<Vec<u8>>,
    /// Sum of the squares of what kept elements lost.
    pub error: f64,
}

/// A mask as bits.
pub fn mask(kept: &[bool]) -> Vec<u8> {
    let bits: Vec<u8> = kept.iter().map(|kept| u8::from(*kept)).collect();
    pack(&bits, 1)
}

/// Packs the low bits of each code, least significant bits first.
pub fn pack(codes: &[u8], bits: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity((codes.len() * bits).div_ceil(8));
    let (mut held, mut n_held) = (0u32, 0);
    for code in codes {
        held |= (u32::from(*code) & ((1 << bits) - 1)) << n_held;
        n_held += bits;
        while n_held >= 8 {
            out.push(held as u8);
            held >>= 8;
            n_held -= 8;
        }
    }
    if n_held > 0 {
        out.push(held as u8);
    }
    out
}

/// The nearest fp16 number.
pub fn rounded(x: f64) -> f32 {
    f16_to_f32(f64_to_f16(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_packed_from_the_least_significant_bit() {
        assert_eq!(pack(&[1, 0, 1, 1, 0, 0, 0, 1, 1], 1), [0b1000_1101, 1]);
        assert_eq!(pack(&[1, 2, 15], 4), [0x21, 0x0f]);
        assert_eq!(pack(&[7, 0, 5], 3), [0b0100_0111, 1]);
        assert_eq!(pack(&[63, 1], 6), [0b0111_1111, 0]);
        assert_eq!(pack(&[0xff, 3], 8), [0xff, 3]);
        // Two's complement.
        assert_eq!(pack(&[0xf8, 7], 4), [0x78]);
    }

    #[test]
    fn elements_of_channels_are_found_along_any_axis() {
        let data = Data::owned(bytes_of(DType::Fp32, (0..24).map(|i| i as f32)));
        for (axis, input, channel, found) in [
            (
                0,
                1,
                1,
                vec![12., 13., 14., 15., 16., 17., 18., 19., 20., 21., 22., 23.],
            ),
            (1, 0, 2, vec![8., 9., 10., 11., 20., 21., 22., 23.]),
            (2, 1, 3, vec![3., 7., 11., 15., 19., 23.]),
        ] {
            let matrix = Matrix::new(vec![2, 3, 4], axis, input);
            let values = Values::read(matrix, DType::Fp32, &data).unwrap();
            let mut seen = Vec::new();
            values.each_of(channel, |_, i, v| {
                assert_eq!(i, seen.len());
                seen.push(v);
            });
            assert_eq!(seen, found);
        }
    }
}

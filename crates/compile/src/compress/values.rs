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

/// The numbers of a tensor, as far as they are kept, in units of a power of two: 1 for fp16. The
/// largest number of fp32 lies from 16,384 to below 32,768 units, so that squares and their sums
/// are numbers of fp32 whatever the size of the weights is.
pub struct Values {
    /// The axes.
    pub matrix: Matrix,
    /// In units.
    numbers: Numbers,
    /// The size of a unit.
    unit: f64,
    /// Which elements are kept; empty for all.
    pub kept: Vec<bool>,
    /// How much an error counts, by input; empty where all count the same.
    pub importance: Vec<f32>,
}

enum Numbers {
    /// Bits of fp16.
    Halves(Vec<u16>),
    Singles(Vec<f32>),
}

/// The largest number of fp16, and the least above 0.
pub const LARGEST_HALF: f32 = 65504.0;
pub const LEAST_HALF: f32 = 1.0 / 16_777_216.0;

impl Values {
    /// Reads the numbers of a constant. The first that is not finite is an error, with its place.
    pub fn read(matrix: Matrix, dtype: DType, data: &Data) -> Result<Self, (usize, f32)> {
        let mut numbers = Numbers::read(matrix.len(), dtype, data);
        let at = |i| numbers.at(i);
        if let Some(i) = (0..matrix.len()).find(|i| !at(*i).is_finite()) {
            return Err((i, at(i)));
        }
        Ok(Self {
            matrix,
            unit: numbers.normalize(),
            numbers,
            kept: Vec::new(),
            importance: Vec::new(),
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.numbers {
            Numbers::Halves(halves) => halves.len(),
            Numbers::Singles(numbers) => numbers.len(),
        }
    }

    /// Element `i`, in units.
    pub fn at(&self, i: usize) -> f32 {
        self.numbers.at(i)
    }

    /// The size of a unit.
    pub fn unit(&self) -> f64 {
        self.unit
    }

    /// The bits of all elements, if they are fp16.
    pub fn halves(&self) -> Option<&[u16]> {
        match &self.numbers {
            Numbers::Halves(halves) => Some(halves),
            Numbers::Singles(_) => None,
        }
    }

    /// A number that orders elements by their magnitude.
    pub fn magnitude(&self, i: usize) -> u32 {
        match &self.numbers {
            Numbers::Halves(halves) => u32::from(halves[i] & 0x7fff) << 16,
            Numbers::Singles(numbers) => numbers[i].to_bits() & 0x7fff_ffff,
        }
    }

    /// The nearest number that the type of the tensor holds, in units; infinite if that is too
    /// large.
    pub fn stored(&self, x: f64) -> f32 {
        match self.numbers {
            Numbers::Halves(_) => rounded(x),
            Numbers::Singles(_) => (f64::from((x * self.unit) as f32) / self.unit) as f32,
        }
    }

    /// As [`Self::stored`], of a scale in units, which is above 0.
    pub fn stored_scale(&self, x: f64) -> f32 {
        let least = match self.numbers {
            Numbers::Halves(_) => LEAST_HALF,
            Numbers::Singles(_) => (f64::from(f32::from_bits(1)) / self.unit) as f32,
        };
        // The inverse is finite too.
        self.stored(x).max(least).max(f32::MIN_POSITIVE)
    }

    /// The nearest scale beside a table, which is no multiple of a unit, that the type of the
    /// tensor holds.
    pub fn stored_factor(&self, x: f64) -> f32 {
        match self.numbers {
            Numbers::Halves(_) => rounded(x).clamp(LEAST_HALF, LARGEST_HALF),
            Numbers::Singles(_) => (x as f32).clamp(f32::MIN_POSITIVE, f32::MAX),
        }
    }

    /// A table entry near a number: finite, and not the negative zero, which some would print as
    /// another number.
    pub fn entry(&self, x: f64) -> f32 {
        let most = self.largest();
        self.stored(x.clamp(-most, most)) + 0.0
    }

    /// The largest number that the type of the tensor holds, in units.
    fn largest(&self) -> f64 {
        match self.numbers {
            Numbers::Halves(_) => f64::from(LARGEST_HALF),
            // One that fp32 holds as a number of units too.
            Numbers::Singles(_) => f64::from(f32::MAX) / self.unit.max(1.0),
        }
    }

    /// A scale for a channel whose element is `entry * scale`: that scale, or, where the product
    /// would be infinite, the largest one for which it is not.
    pub fn held(&self, entry: f32, scale: f32) -> f32 {
        let product = |scale: f32| f64::from(entry) * f64::from(scale);
        if self.stored(product(scale)).is_finite() {
            return scale;
        }
        // Rounding a scale of fp16 changes it by at most 1 in 2,048.
        let most = (1.0 - 1.0 / 1024.0) * self.largest();
        self.stored_factor(most / f64::from(entry.abs()))
    }

    /// Numbers in units as bytes of `float`, the type of the tensor.
    pub fn bytes(&self, float: DType, numbers: impl Iterator<Item = f32>) -> Vec<u8> {
        bytes_of(float, numbers.map(|x| (f64::from(x) * self.unit) as f32))
    }

    /// The bytes of all elements, for a hash, piece by piece.
    pub fn each_piece(&self, mut visit: impl FnMut(&[u8])) {
        let n = 1 << 15;
        let mut piece: Vec<u8> = Vec::with_capacity(4 * n);
        for begin in (0..self.len()).step_by(n) {
            let end = self.len().min(begin + n);
            piece.clear();
            match &self.numbers {
                Numbers::Halves(halves) => {
                    piece.extend(halves[begin..end].iter().flat_map(|h| h.to_le_bytes()));
                }
                Numbers::Singles(numbers) => {
                    piece.extend(numbers[begin..end].iter().flat_map(|x| x.to_le_bytes()));
                }
            }
            visit(&piece);
        }
        visit(&self.unit.to_le_bytes());
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

    /// The sum of the squares of all elements, kept or not, in square units.
    pub fn energy(&self) -> f64 {
        (0..self.len()).map(|i| f64::from(self.at(i)).powi(2)).sum()
    }

    /// The sum of the squares of the elements that are not kept, in square units.
    pub fn lost(&self) -> f64 {
        let lost = (0..self.len()).filter(|i| !self.is_kept(*i));
        lost.map(|i| f64::from(self.at(i)).powi(2)).sum()
    }

    /// The kept elements, in order.
    pub fn kept_numbers(&self, float: DType) -> Vec<u8> {
        let kept = (0..self.len()).filter(|i| self.is_kept(*i));
        self.bytes(float, kept.map(|i| self.at(i)))
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

impl Numbers {
    fn read(n: usize, dtype: DType, data: &Data) -> Self {
        let is_half = dtype == DType::Fp16;
        let mut halves = Vec::with_capacity(if is_half { n } else { 0 });
        let mut singles = Vec::with_capacity(if is_half { 0 } else { n });
        let n_bytes = n * dtype.bits() / 8;
        let mut piece = vec![0; (1 << 16).min(n_bytes)];
        for at in (0..n_bytes).step_by(1 << 16) {
            let len = piece.len().min(n_bytes - at);
            let read = data.read(at, &mut piece[..len]);
            debug_assert!(read, "a constant has the bytes of its type");
            if is_half {
                let cells = piece[..len].as_chunks::<2>().0.iter();
                halves.extend(cells.map(|b| u16::from_le_bytes(*b)));
            } else {
                let cells = piece[..len].as_chunks::<4>().0.iter();
                singles.extend(cells.map(|b| f32::from_le_bytes(*b)));
            }
        }
        match is_half {
            true => Self::Halves(halves),
            false => Self::Singles(singles),
        }
    }

    fn at(&self, i: usize) -> f32 {
        match self {
            Self::Halves(halves) => f16_to_f32(halves[i]),
            Self::Singles(numbers) => numbers[i],
        }
    }

    /// Divides numbers of fp32 by the power of two that brings the largest to 16,384 or more; the
    /// divisor.
    fn normalize(&mut self) -> f64 {
        let Self::Singles(numbers) = self else {
            return 1.0;
        };
        let largest = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let unit = unit_of(largest);
        for x in numbers {
            *x = (f64::from(*x) / unit) as f32;
        }
        unit
    }
}

/// The power of two of which a number is 16,384 to below 32,768 times as large.
pub fn unit_of(largest: f32) -> f64 {
    if largest == 0.0 {
        return 1.0;
    }
    let exponent = (f64::from(largest).to_bits() >> 52) as i32 - 1023;
    2f64.powi(exponent - 14)
}

/// What a method makes of a tensor: the bytes of its parts, in the order of
/// [`Encoding::parts`](super::Encoding::parts), and the error.
pub struct Coded {
    /// Bytes.
    pub parts: Vec<Vec<u8>>,
    /// Sum of the squares of what kept elements lost, in square units.
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
                seen.push((f64::from(v) * values.unit()) as f32);
            });
            assert_eq!(seen, found);
        }
    }
}

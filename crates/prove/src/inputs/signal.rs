//! The numbers of inputs, element by element.

use std::collections::HashMap;

use thane_mil::literal::f64_to_f16;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::kind::Kind;
use super::noise::Noise;

/// What floating-point inputs are.
pub enum Signal {
    /// Up to this, of both signs.
    Noise(f32),
    /// Up to this, and none below 0.
    Positive(f32),
    /// All this.
    Level(f32),
    Silence,
    Impulse,
    /// A sum of this many.
    Sines(usize),
    /// Around these.
    Around(Vec<f32>),
    /// Around these, as they are broadcast.
    Channels(Channels),
    /// Each input the same but for a thousandth or less.
    NearlyEqual,
    /// Magnitudes from 1e-4 to 65504 in their order, of both signs, this far between two steps.
    Ramp(f32),
    /// The same magnitudes in no order.
    Mixed,
}

/// Constants of as many axes as an input has, by the input.
pub type Channels = HashMap<ValueId, (Vec<usize>, Vec<f32>)>;

/// What integers are that are no indices.
#[derive(Clone, Copy)]
pub enum Integers {
    /// Below [`FEW`].
    Few,
    /// One after the other from this on.
    Ramp(i64),
    /// Below this.
    Below(i64),
    /// As [`Self::Few`]; and every other index is counted from the end.
    FromEnd,
}

/// What masks are.
#[derive(Clone, Copy)]
pub enum Masks {
    Random,
    /// Every other row, the first included, hides all; the rest are random.
    Rows,
}

/// The place of an element.
pub struct At<'a> {
    pub input: ValueId,
    pub i: usize,
    /// Elements of the input.
    pub n: usize,
    pub shape: &'a [usize],
}

/// Makes the elements of a set.
pub struct Maker<'a> {
    pub noise: Noise,
    pub signal: &'a Signal,
    pub integers: Integers,
    pub masks: Masks,
}

/// Integers of which nothing is known are below this.
const FEW: usize = 4;
/// What a mask that is added takes away.
const MASKED: f32 = -1e4;
/// The least and the largest magnitude of ramps: what fp16 holds.
const MAGNITUDES: (f32, f32) = (1e-4, 65_504.0);
/// How far numbers are from those that they are around, over those. The smallest steps are below
/// a rounding of fp16 and above one of fp32.
const NEAR: [f32; 10] = [
    0.0,
    1.0 / 1024.0,
    -1.0 / 1024.0,
    0.125,
    -0.125,
    1.0 / 4096.0,
    -1.0 / 4096.0,
    1.0 / 10_000.0,
    -1.0 / 10_000.0,
    1.0,
];

impl Maker<'_> {
    /// Appends the bytes of an element.
    pub fn write(&mut self, out: &mut Vec<u8>, dtype: DType, kind: Kind, at: &At<'_>) {
        let random = self.noise.next();
        let shows = |odds: u32| !self.hides(at) && !random.is_multiple_of(odds);
        let number = match kind {
            Kind::Number => self.signal.number(random, at),
            Kind::Truth => f32::from(u8::from(shows(2))),
            Kind::Mask => [MASKED, 0.0][usize::from(shows(3))],
            Kind::Few => return write_integer(out, dtype, (random as usize % FEW) as i64),
            Kind::Integer => return write_integer(out, dtype, self.integers.number(random, at.i)),
            Kind::Index { n, takes_negative } => {
                let index = i64::from(random) % n as i64;
                let is_negative = takes_negative && matches!(self.integers, Integers::FromEnd);
                let is_negative = is_negative && at.i.is_multiple_of(2);
                return write_integer(
                    out,
                    dtype,
                    if is_negative { index - n as i64 } else { index },
                );
            }
        };
        match dtype {
            DType::Fp16 => {
                let number = number.clamp(-65_504.0, 65_504.0);
                out.extend_from_slice(&f64_to_f16(number.into()).to_le_bytes());
            }
            DType::Fp32 => out.extend_from_slice(&number.to_le_bytes()),
            DType::Bool => out.push(u8::from(number != 0.0)),
            _ => write_integer(out, dtype, number as i64),
        }
    }

    /// Whether a mask hides the whole row of an element.
    fn hides(&self, at: &At<'_>) -> bool {
        let row_len = at.shape.last().copied().unwrap_or(1).max(1);
        matches!(self.masks, Masks::Rows) && (at.i / row_len).is_multiple_of(2)
    }
}

impl Integers {
    fn number(self, random: u32, i: usize) -> i64 {
        match self {
            Self::Few | Self::FromEnd => i64::from(random) % FEW as i64,
            Self::Ramp(first) => first + i as i64,
            Self::Below(end) => i64::from(random) % end,
        }
    }
}

impl Signal {
    /// An element; `random` has no pattern.
    fn number(&self, random: u32, at: &At<'_>) -> f32 {
        /// 440 Hz, a major third and a fifth above it, in radians a sample at 22,050 Hz.
        const PITCHES: [f32; 3] = [0.125_38, 0.157_97, 0.187_87];
        let (i, n) = (at.i, at.n);
        let noise = (random % 4001) as f32 / 2000.0 - 1.0;
        match self {
            Self::Noise(most) => noise * most,
            Self::Positive(most) => noise.abs() * most,
            Self::Level(level) => *level,
            Self::Silence => 0.0,
            Self::Impulse => f32::from(u8::from(i == n / 3)),
            Self::Sines(n_sines) => {
                let pitches = PITCHES.iter().take(*n_sines);
                let sum: f32 = pitches.map(|pitch| (i as f32 * pitch).sin()).sum();
                0.8 * sum / *n_sines as f32
            }
            Self::Around(constants) => constants[i % constants.len()] * near(random, noise),
            Self::Channels(channels) => match channels.get(&at.input) {
                Some((shape, numbers)) => {
                    numbers[broadcast(at, shape) % numbers.len().max(1)] * near(random, noise)
                }
                None => 2.0 * noise,
            },
            Self::NearlyEqual => {
                /// Thousandths.
                const APART: [f32; 7] = [0.0, 0.1, -0.1, 0.3, -0.3, 1.0, -1.0];
                let column = i % at.shape.last().copied().unwrap_or(1).max(1);
                let shared = 0.5 + (column as f32 * 0.618_034).fract() * 1.5;
                shared * (1.0 + APART[(random >> 16) as usize % APART.len()] * 1e-3)
            }
            Self::Ramp(phase) => {
                let sign = if i.is_multiple_of(2) { 1.0 } else { -1.0 };
                let n_steps = n.div_ceil(2).max(1) as f32;
                sign * magnitude(((i / 2) as f32 + 1.0 - phase) / n_steps)
            }
            Self::Mixed => {
                let sign = if random >> 30 & 1 == 0 { 1.0 } else { -1.0 };
                sign * magnitude((random & 0xffff) as f32 / 65_535.0)
            }
        }
    }
}

/// What to multiply with to be near.
fn near(random: u32, noise: f32) -> f32 {
    match NEAR[(random >> 16) as usize % NEAR.len()] {
        1.0 => 1.0 + noise,
        near => 1.0 + near,
    }
}

/// From the least to the largest magnitude, in even ratios.
fn magnitude(share: f32) -> f32 {
    let (least, most) = MAGNITUDES;
    least * (most / least).powf(share.clamp(0.0, 1.0))
}

/// The element of a constant of some shape that is broadcast to an element of an input.
fn broadcast(at: &At<'_>, shape: &[usize]) -> usize {
    let (mut left, mut place, mut stride) = (at.i, 0, 1);
    for (n, m) in at.shape.iter().zip(shape).rev() {
        let index = left % (*n).max(1);
        left /= (*n).max(1);
        place += if *m == 1 { 0 } else { index * stride };
        stride *= m;
    }
    place
}

/// Appends an integer of any width.
pub fn write_integer(out: &mut Vec<u8>, dtype: DType, n: i64) {
    out.extend_from_slice(&n.to_le_bytes()[..(dtype.bits() / 8).clamp(1, 8)]);
}

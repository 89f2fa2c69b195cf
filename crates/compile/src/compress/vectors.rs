//! Vector palettes: one table of vectors of consecutive channels, by Lloyd's algorithm from several
//! starts, which a fixed seed chooses.

use thane_mil::types::DType;

use super::palette::spreads;
use super::values::{Coded, Values, pack};
use crate::rewrite::bytes_of;

/// Vectors that starts are tried on, and that the best table is refined on: more of them change
/// its entries by less than fp16 rounds.
const SAMPLED: [usize; 2] = [1 << 14, 1 << 17];
const STARTS: usize = 4;
/// Most steps on the vectors of each.
const STEPS: [usize; 2] = [30, 12];
/// A step that lowers the error by less than this share is the last.
const LEAST_GAIN: f64 = 1e-4;

/// Codes, a table of `entries` vectors of `width` channels in `float`, and scales of channels if
/// `has_scales` says so.
pub fn encode(
    values: &Values,
    (width, entries): (usize, usize),
    has_scales: bool,
    float: DType,
) -> Coded {
    let mut scales = has_scales.then(|| {
        let scales = spreads(values).into_iter();
        scales
            .map(|s| values.stored_factor(s.into()))
            .collect::<Vec<f32>>()
    });
    let points = points(values, width, scales.as_deref());
    let mut table = Table::found(&points, (width, entries));
    table
        .entries
        .iter_mut()
        .for_each(|x| *x = values.entry((*x).into()));
    let codes = points.each().map(|(p, _)| table.nearest(p).0 as u8);
    let codes: Vec<u8> = codes.collect();
    if let Some(scales) = &mut scales {
        // No product of a scale and an entry is infinite.
        each(values, width, |_, channel, code, k| {
            let entry = table.entries[usize::from(codes[code]) * width + k];
            scales[channel] = values.held(entry, scales[channel]);
        });
    }
    let error = error(values, &table, &codes, scales.as_deref());
    let mut parts = vec![
        pack(&codes, entries.ilog2() as usize),
        values.bytes(float, table.entries.iter().copied()),
    ];
    parts.extend(scales.map(|scales| bytes_of(float, scales.into_iter())));
    Coded { parts, error }
}

/// Vectors one after another, each with how much its errors count.
struct Points {
    width: usize,
    numbers: Vec<f32>,
    weights: Vec<f32>,
}

impl Points {
    fn len(&self) -> usize {
        self.weights.len()
    }

    fn each(&self) -> impl Iterator<Item = (&[f32], f32)> {
        self.numbers
            .chunks(self.width)
            .zip(self.weights.iter().copied())
    }

    /// One of each so many vectors, at a random place, so that no input or channel is left out.
    fn sample(&self, step: usize, random: &mut Random) -> Self {
        let mut sample = Self {
            width: self.width,
            numbers: Vec::new(),
            weights: Vec::new(),
        };
        for begin in (0..self.len()).step_by(step) {
            let n = step.min(self.len() - begin);
            let at = begin + ((random.unit() * n as f64) as usize).min(n - 1);
            let numbers = &self.numbers[at * self.width..(at + 1) * self.width];
            sample.numbers.extend_from_slice(numbers);
            sample.weights.push(self.weights[at]);
        }
        sample
    }
}

/// The vectors in the order of their codes.
fn points(values: &Values, width: usize, scales: Option<&[f32]>) -> Points {
    let mut numbers = vec![0.0; values.len()];
    let mut weights = vec![0.0; values.len() / width];
    let run = values.matrix.run();
    let step = run * values.matrix.channels();
    each(values, width, |at, channel, code, k| {
        let scale = scales.map_or(1.0, |scales| scales[channel]);
        numbers[code * width + k] = values.at(at) / scale;
        weights[code] += values.importance(at / step * run + at % run) * scale * scale;
    });
    Points {
        width,
        numbers,
        weights,
    }
}

/// Calls `visit` with the place of each element, its channel, the place of its code, and its place
/// in the vector.
fn each(values: &Values, width: usize, mut visit: impl FnMut(usize, usize, usize, usize)) {
    let (run, channels) = (values.matrix.run(), values.matrix.channels());
    for at in 0..values.len() {
        let (outer, channel, inner) = (at / run / channels, at / run % channels, at % run);
        let code = (outer * (channels / width) + channel / width) * run + inner;
        visit(at, channel, code, channel % width);
    }
}

fn error(values: &Values, table: &Table, codes: &[u8], scales: Option<&[f32]>) -> f64 {
    let mut error = 0.0;
    each(values, table.width, |at, channel, code, k| {
        let scale = scales.map_or(1.0, |scales| scales[channel]);
        let entry = table.entries[usize::from(codes[code]) * table.width + k];
        error += f64::from(values.at(at) - entry * scale).powi(2);
    });
    error
}

#[derive(Clone)]
struct Table {
    width: usize,
    entries: Vec<f32>,
}

impl Table {
    /// The best table of several starts.
    fn found(points: &Points, (width, entries): (usize, usize)) -> Self {
        let n = points.len();
        let mut random = Random(1);
        let [few, many] = SAMPLED.map(|most| {
            let step = n.div_ceil(most).max(1);
            points.sample(step, &mut random)
        });
        let starts = (0..STARTS).map(|_| {
            let mut table = Self::start(&few, (width, entries), &mut random);
            let error = table.refine(&few, STEPS[0]);
            (error, table)
        });
        let best = starts.reduce(|best, next| if next.0 < best.0 { next } else { best });
        let mut table = best.map_or_else(
            || Self {
                width,
                entries: vec![0.0; width * entries],
            },
            |(_, table)| table,
        );
        if n > SAMPLED[0] {
            table.refine(&many, STEPS[1]);
        }
        table
    }

    /// Vectors of which each is chosen by its squared distance to those before it.
    fn start(points: &Points, (width, entries): (usize, usize), random: &mut Random) -> Self {
        let mut table = Self {
            width,
            entries: Vec::with_capacity(width * entries),
        };
        let n = points.len();
        if n == 0 {
            table.entries.resize(width * entries, 0.0);
            return table;
        }
        let mut far = vec![f64::INFINITY; n];
        let mut chosen = (random.unit() * n as f64) as usize;
        for _ in 0..entries {
            let begin = chosen.min(n - 1) * width;
            table
                .entries
                .extend_from_slice(&points.numbers[begin..begin + width]);
            let last = table.entries.len() - width;
            for (far, (point, weight)) in far.iter_mut().zip(points.each()) {
                let own = weight * distance(point, &table.entries[last..]);
                *far = far.min(own.into());
            }
            let mut left = random.unit() * far.iter().sum::<f64>();
            chosen = far
                .iter()
                .position(|far| {
                    left -= far;
                    left < 0.0
                })
                .unwrap_or(n - 1);
        }
        table
    }

    /// The nearest entry, the first of several, and the squared distance.
    fn nearest(&self, point: &[f32]) -> (usize, f32) {
        let mut best = (0, f32::INFINITY);
        for (k, entry) in self.entries.chunks(self.width).enumerate() {
            let own = distance(point, entry);
            if own < best.1 {
                best = (k, own);
            }
        }
        best
    }

    /// Moves each entry to the mean of its vectors until little is gained; the last error.
    fn refine(&mut self, points: &Points, most_steps: usize) -> f64 {
        let n = self.entries.len() / self.width;
        let mut last = f64::INFINITY;
        for _ in 0..most_steps {
            let mut sums = vec![0.0f64; self.entries.len()];
            let mut counts = vec![0.0f64; n];
            let mut error = 0.0;
            for (point, weight) in points.each() {
                let (k, own) = self.nearest(point);
                error += f64::from(weight * own);
                counts[k] += f64::from(weight);
                let sum = &mut sums[k * self.width..(k + 1) * self.width];
                sum.iter_mut()
                    .zip(point)
                    .for_each(|(sum, x)| *sum += f64::from(weight * *x));
            }
            for (k, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
                let at = k * self.width..(k + 1) * self.width;
                let entry = self.entries[at.clone()].iter_mut().zip(&sums[at]);
                entry.for_each(|(x, sum)| *x = (sum / count) as f32);
            }
            let is_last = last - error <= LEAST_GAIN * error;
            last = error;
            if is_last {
                break;
            }
        }
        last
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use thane_mil::data::Data;

    use super::*;
    use crate::compress::values::Matrix;

    #[test]
    fn pairs_of_channels_that_are_in_the_table_are_kept() {
        // Four pairs, of which each place has one.
        let pairs = [[1.0, 2.0], [-1.0, 0.5], [0.25, -3.0], [4.0, 4.0]];
        let (channels, inputs) = (6, 10);
        let number = |i: usize| {
            let (channel, input) = (i / inputs, i % inputs);
            pairs[(channel / 2 * 7 + input * 3) % 4][channel % 2]
        };
        let data = Data::owned(bytes_of(DType::Fp16, (0..60).map(number)));
        let matrix = Matrix::new(vec![channels, inputs], 0, 1);
        let values = Values::read(matrix, DType::Fp16, &data).unwrap();
        let coded = encode(&values, (2, 4), false, DType::Fp16);
        assert_eq!(coded.error, 0.0);
        assert_eq!(
            (coded.parts[0].len(), coded.parts[1].len()),
            (30 / 4 + 1, 16)
        );
        // What is found does not change from run to run.
        assert_eq!(
            coded.parts,
            encode(&values, (2, 4), false, DType::Fp16).parts
        );
    }
}

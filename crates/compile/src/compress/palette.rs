//! Palettes: tables of values found by exact k-means, one for a tensor or for each group of
//! channels, with or without a scale for each channel.
//!
//! Why it is right:
//! 1. A tensor of fp16 has at most 65,536 distinct values, so that k-means over all its elements is
//!    k-means over their counts (`kmeans`). Numbers of fp32 are counted by the fp16 number nearest
//!    to them once the largest is 16,384 or more, and k-means sees the mean of those that share a
//!    count, which differ by at most 1 in 1,024.
//! 2. With scales `s`, the error of element `w` is `s^2 (w / s - t)^2`: k-means over `w / s` with
//!    weights `s^2`. Given codes, the best scale of a channel is `sum w t / sum t^2`. The two steps
//!    alternate; each lowers the error, but for the rounding of `w / s` to fp16.
//! 3. Table and scales are rounded to the type of the tensor before elements get the code of the
//!    nearest entry, the lower one of two, so that codes are the best ones for what is stored.
//! 4. A scale whose product with an entry that its channel uses would be infinite is lowered first.

use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

use super::kmeans::Sorted;
use super::values::{Coded, LARGEST_HALF, Values, pack, unit_of};
use crate::rewrite::bytes_of;

/// Times that tables and scales are found in turn, before tables are found for the last time.
const ROUNDS: usize = 2;
/// From so many elements on, values are counted in a table of all fp16 numbers.
const MANY: usize = 1 << 14;

/// Codes of `bits` bits, tables of `float` numbers for groups of `group` channels, and scales if
/// `has_scales` says so.
pub fn encode(
    values: &Values,
    (bits, group): (usize, Option<usize>),
    has_scales: bool,
    float: DType,
) -> Coded {
    let palette = Palette {
        values,
        n_entries: 1 << bits,
        group: group.unwrap_or(values.matrix.channels()).max(1),
    };
    let mut scales = has_scales.then(|| palette.scales());
    let tables = palette.tables(scales.as_deref());
    if let Some(scales) = &mut scales {
        palette.hold(&tables, scales);
    }
    let mut codes = vec![0; values.len()];
    let error = palette.assign(&tables, scales.as_deref(), &mut codes);
    let entries = tables.iter().flatten().copied();
    let mut parts = vec![
        pack(&values.only_kept(codes), bits),
        values.bytes(float, entries),
    ];
    parts.extend(scales.map(|scales| bytes_of(float, scales.into_iter())));
    Coded { parts, error }
}

struct Palette<'a> {
    values: &'a Values,
    n_entries: usize,
    /// Channels that share a table.
    group: usize,
}

/// An fp16 number as an integer of the same order, one for both zeros.
fn ordered(half: u16) -> u16 {
    match half {
        0x8000 => 0x8000,
        _ if half & 0x8000 != 0 => !half,
        _ => half | 0x8000,
    }
}

impl Palette<'_> {
    fn channels_of(&self, group: usize) -> std::ops::Range<usize> {
        let channels = self.values.matrix.channels();
        group * self.group..((group + 1) * self.group).min(channels)
    }

    fn n_groups(&self) -> usize {
        self.values.matrix.channels().div_ceil(self.group)
    }

    /// Scales of channels, in fp16, near 1.
    fn scales(&self) -> Vec<f32> {
        let mut scales = spreads(self.values);
        let mut codes = vec![0; self.values.len()];
        for _ in 0..ROUNDS {
            let tables = self.tables(Some(&scales));
            self.assign(&tables, Some(&scales), &mut codes);
            for (channel, scale) in scales.iter_mut().enumerate() {
                let table = &tables[channel / self.group];
                let (mut product, mut square) = (0.0, 0.0);
                self.values.each_of(channel, |at, i, w| {
                    let t = f64::from(table[usize::from(codes[at])]);
                    let weight = f64::from(self.values.importance(i));
                    product += weight * f64::from(w) * t;
                    square += weight * t * t;
                });
                if product > 0.0 && square > 0.0 {
                    *scale = (product / square) as f32;
                }
            }
        }
        let in_float = |s: f32| self.values.stored_factor(s.into());
        scales.into_iter().map(in_float).collect()
    }

    /// Lowers scales whose product with an entry that the channel uses would be infinite.
    fn hold(&self, tables: &[Vec<f32>], scales: &mut [f32]) {
        for (channel, scale) in scales.iter_mut().enumerate() {
            let table = &tables[channel / self.group];
            let nearest = Nearest::new(table);
            let mut ends = [0.0f32; 2];
            self.values
                .each_of(channel, |_, _, w| ends = [ends[0].min(w), ends[1].max(w)]);
            // A lower scale may need a greater entry.
            for _ in 0..=table.len() {
                let used = ends.map(|w| table[usize::from(nearest.of(w / *scale))]);
                let held = |scale, entry: f32| self.values.held(entry, scale);
                *scale = used.into_iter().fold(*scale, held);
            }
        }
    }

    /// The tables of all groups, each in rising order.
    fn tables(&self, scales: Option<&[f32]>) -> Vec<Vec<f32>> {
        let table = |group| {
            let centers = Sorted::new(&self.tally(group, scales)).centers(self.n_entries);
            let entries = centers.into_iter().map(|c| self.values.entry(c));
            let mut table: Vec<f32> = entries.collect();
            let last = table.last().copied().unwrap_or(0.0);
            table.resize(self.n_entries, last);
            table
        };
        (0..self.n_groups()).map(table).collect()
    }

    /// The distinct values of a group in rising order, each with how much its errors count.
    fn tally(&self, group: usize, scales: Option<&[f32]>) -> Vec<(f32, f64)> {
        let values = self.values;
        let channels = self.channels_of(group);
        let is_plain = scales.is_none() && values.importance.is_empty();
        let mut sums = Sums::new(channels.len() * values.matrix.per_channel());
        let Some(halves) = values.halves() else {
            return self.tally_of_singles(channels, scales);
        };
        if is_plain && self.n_groups() == 1 {
            for (i, half) in halves.iter().enumerate() {
                if values.is_kept(i) {
                    sums.add(*half, f16_to_f32(*half), 1.0);
                }
            }
            return sums.pairs();
        }
        for channel in channels {
            let scale = scales.map_or(1.0, |scales| scales[channel]);
            let (inverse, square) = (1.0 / scale, f64::from(scale).powi(2));
            values.each_of(channel, |at, i, w| {
                let half = match scales {
                    None => halves[at],
                    Some(_) => f64_to_f16(in_half(w * inverse).into()),
                };
                let weight = square * f64::from(values.importance(i));
                sums.add(half, f16_to_f32(half), weight);
            });
        }
        sums.pairs()
    }

    /// As [`Self::tally`], of numbers of fp32.
    fn tally_of_singles(
        &self,
        channels: std::ops::Range<usize>,
        scales: Option<&[f32]>,
    ) -> Vec<(f32, f64)> {
        let values = self.values;
        let of = |channel: usize| scales.map_or(1.0, |scales: &[f32]| scales[channel]);
        let mut largest = 0.0f32;
        for channel in channels.clone() {
            let scale = of(channel);
            values.each_of(channel, |_, _, w| largest = largest.max((w / scale).abs()));
        }
        let unit = unit_of(largest);
        let mut sums = Sums::new(channels.len() * values.matrix.per_channel());
        for channel in channels {
            let scale = of(channel);
            values.each_of(channel, |_, i, w| {
                let x = w / scale;
                let half = f64_to_f16(f64::from(x) / unit);
                let weight = f64::from(scale).powi(2) * f64::from(values.importance(i));
                sums.add(half, x, weight);
            });
        }
        sums.pairs()
    }

    /// Gives each element the code of the nearest entry; the sum of squared errors.
    fn assign(&self, tables: &[Vec<f32>], scales: Option<&[f32]>, codes: &mut [u8]) -> f64 {
        let values = self.values;
        let mut error = 0.0;
        for (group, table) in tables.iter().enumerate() {
            let channels = self.channels_of(group);
            let nearest = Nearest::new(table);
            let n = channels.len() * values.matrix.per_channel();
            let halves = values.halves().filter(|_| scales.is_none() && n >= MANY);
            let known = halves.map(|halves| (halves, nearest.of_all_halves()));
            for channel in channels {
                let scale = scales.map_or(1.0, |scales| scales[channel]);
                let inverse = 1.0 / scale;
                values.each_of(channel, |at, _, w| {
                    let code = match &known {
                        Some((halves, known)) => known[usize::from(halves[at])],
                        None => nearest.of(w * inverse),
                    };
                    codes[at] = code;
                    let off = f64::from(w - table[usize::from(code)] * scale);
                    error += off * off;
                });
            }
        }
        error
    }
}

/// The nearest entry of a table in rising order.
struct Nearest {
    /// Between two entries each; f64 holds the sum of any two fp16 numbers.
    middles: Vec<f64>,
}

impl Nearest {
    fn new(table: &[f32]) -> Self {
        let pairs = table
            .windows(2)
            .map(|pair| [f64::from(pair[0]), f64::from(pair[1])]);
        let middles = pairs.map(|[a, b]| (a + b) / 2.0);
        Self {
            middles: middles.collect(),
        }
    }

    fn of(&self, x: f32) -> u8 {
        let x = f64::from(x);
        self.middles.partition_point(|middle| *middle < x) as u8
    }

    fn of_all_halves(&self) -> Vec<u8> {
        (0..=u16::MAX)
            .map(|half| self.of(f16_to_f32(half)))
            .collect()
    }
}

/// The number, or the nearest that fp16 holds.
fn in_half(x: f32) -> f32 {
    x.clamp(-LARGEST_HALF, LARGEST_HALF)
}

/// A weight and the weighted value.
type Sum = [f64; 2];

/// Weights of values, summed by the fp16 number that each counts for.
enum Sums {
    /// By the order of the number.
    All(Vec<Sum>),
    Few(Vec<(u16, Sum)>),
}

impl Sums {
    fn new(n: usize) -> Self {
        match n >= MANY {
            true => Self::All(vec![[0.0; 2]; 1 << 16]),
            false => Self::Few(Vec::with_capacity(n)),
        }
    }

    /// Counts a value for the number that it is or was rounded to.
    fn add(&mut self, half: u16, value: f32, weight: f64) {
        let at = ordered(half);
        let own = [weight, weight * f64::from(value)];
        match self {
            Self::All(sums) => sums[usize::from(at)] = plus(sums[usize::from(at)], own),
            Self::Few(pairs) => pairs.push((at, own)),
        }
    }

    /// The means of values that count, in rising order, and their weights.
    fn pairs(self) -> Vec<(f32, f64)> {
        let counted = |[weight, sum]: Sum| (weight > 0.0).then(|| ((sum / weight) as f32, weight));
        match self {
            Self::All(sums) => sums.into_iter().filter_map(counted).collect(),
            Self::Few(mut pairs) => {
                // Stable, so that sums are made in one order.
                pairs.sort_by_key(|(at, _)| *at);
                let same = pairs.chunk_by(|a, b| a.0 == b.0);
                let sum = |pairs: &[(u16, Sum)]| {
                    let sums = pairs.iter().map(|(_, sum)| *sum);
                    counted(sums.fold([0.0; 2], plus))
                };
                same.filter_map(sum).collect()
            }
        }
    }
}

fn plus(a: Sum, b: Sum) -> Sum {
    [a[0] + b[0], a[1] + b[1]]
}

/// The root mean square of each channel over the mean of all that are not 0; 1 for those that are.
pub fn spreads(values: &Values) -> Vec<f32> {
    let spread = |channel| {
        let (mut sum, mut n) = (0.0, 0.0);
        values.each_of(channel, |_, _, w| {
            sum += f64::from(w).powi(2);
            n += 1.0;
        });
        if n > 0.0 { (sum / n).sqrt() } else { 0.0 }
    };
    let spreads: Vec<f64> = (0..values.matrix.channels()).map(spread).collect();
    let n = spreads.iter().filter(|s| **s > 0.0).count();
    let mean = spreads.iter().sum::<f64>() / n.max(1) as f64;
    let relative = |s: f64| if s > 0.0 { (s / mean) as f32 } else { 1.0 };
    spreads.into_iter().map(relative).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::values::Matrix;
    use thane_mil::data::Data;

    fn values(shape: &[usize], axis: usize, number: impl Fn(usize) -> f32) -> Values {
        let n: usize = shape.iter().product();
        let data = Data::owned(bytes_of(DType::Fp16, (0..n).map(number)));
        let matrix = Matrix::new(shape.to_vec(), axis, 1 - axis);
        Values::read(matrix, DType::Fp16, &data).unwrap()
    }

    /// Without a pattern.
    fn noise(i: usize) -> f32 {
        let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / 16_777_216.0
            - 0.5
    }

    fn halves(bytes: &[u8]) -> Vec<f32> {
        let cells = bytes.as_chunks::<2>().0.iter();
        cells.map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect()
    }

    #[test]
    fn values_of_a_table_are_kept_as_they_are() {
        let steps = [-0.5, -0.0, 0.25, 3.0];
        let values = values(&[8, 6], 0, |i| steps[i * 7 % 4]);
        let coded = encode(&values, (2, None), false, DType::Fp16);
        assert_eq!(coded.error, 0.0);
        assert_eq!(halves(&coded.parts[1]), [-0.5, 0.0, 0.25, 3.0]);
        let first: Vec<u8> = (0..4).map(|i| coded.parts[0][0] >> (2 * i) & 3).collect();
        assert_eq!(first, [0, 3, 2, 1]);
    }

    #[test]
    fn tables_of_groups_follow_their_channels_along_any_axis() {
        // Channels 0 and 1 are small, 2 and 3 are large.
        for axis in [0, 1] {
            let shape = [[4, 64], [64, 4]][axis];
            let channel = |i: usize| if axis == 0 { i / 64 } else { i % 4 };
            let size = |i: usize| if channel(i) < 2 { 0.01 } else { 1.0 };
            let values = values(&shape, axis, |i| size(i) * noise(i));
            let coded = encode(&values, (4, Some(2)), false, DType::Fp16);
            let tables = halves(&coded.parts[1]);
            assert_eq!(tables.len(), 32);
            assert!(tables[..16].iter().all(|t| t.abs() < 0.006));
            assert!(tables[31] > 0.4);
            let whole = encode(&values, (4, None), false, DType::Fp16);
            assert!(coded.error < whole.error);
        }
    }

    #[test]
    fn scales_follow_channels_of_different_size() {
        let sizes = values(&[16, 128], 0, |i| {
            noise(i) * 2f32.powi((i / 128) as i32 % 4)
        });
        let [plain, scaled] =
            [false, true].map(|scales| encode(&sizes, (3, None), scales, DType::Fp16));
        assert!(
            scaled.error < 0.5 * plain.error,
            "{} {}",
            scaled.error,
            plain.error
        );
        let scales = halves(&scaled.parts[2]);
        assert_eq!(scales.len(), 16);
        assert!((scales[3] / scales[0] - 8.0).abs() < 1.0, "{scales:?}");
        // A channel of zeros stays one.
        let zeros = values(&[4, 32], 0, |i| if i < 32 { 0.0 } else { noise(i) });
        let coded = encode(&zeros, (4, None), true, DType::Fp16);
        assert!(halves(&coded.parts[2]).iter().all(|s| *s > 0.0));
    }

    /// Inputs that count more have the smaller errors, with and without scales.
    #[test]
    fn errors_of_important_inputs_weigh_more() {
        let importance: Vec<f32> = (0..64)
            .map(|i| if i % 8 == 3 { 100.0 } else { 1.0 })
            .collect();
        let weighted = |has_scales: bool, importance: &[f32]| {
            // Important inputs have larger weights.
            let number = |i: usize| noise(i) * if i % 8 == 3 { 6.0 } else { 1.0 };
            let mut values = values(&[32, 64], 0, number);
            values.importance = importance.to_vec();
            let coded = encode(&values, (2, None), has_scales, DType::Fp16);
            let (table, scales) = (halves(&coded.parts[1]), coded.parts.get(2));
            let scales = scales.map_or(vec![1.0; 32], |bytes| halves(bytes));
            let mut error = 0.0;
            for (channel, scale) in scales.iter().enumerate() {
                values.each_of(channel, |at, i, w| {
                    let code = coded.parts[0][at / 4] >> (2 * (at % 4)) & 3;
                    let off = w - table[usize::from(code)] * scale;
                    error += f64::from(if i % 8 == 3 { 100.0 } else { 1.0 } * off * off);
                });
            }
            error
        };
        for has_scales in [false, true] {
            let [plain, counted] = [&[][..], &importance].map(|i| weighted(has_scales, i));
            assert!(counted < 0.8 * plain, "{counted} {plain}");
        }
    }

    #[test]
    fn both_ways_to_count_give_the_same_table() {
        let many = values(&[64, 512], 0, noise);
        assert!(many.len() >= MANY);
        let whole = encode(&many, (4, None), false, DType::Fp16);
        // The same values as one group, and as a part of another tensor.
        let grouped = encode(&many, (4, Some(64)), false, DType::Fp16);
        assert_eq!(whole.parts, grouped.parts);
        let few = values(&[16, 512], 0, noise);
        let group = encode(&many, (4, Some(16)), false, DType::Fp16);
        let alone = encode(&few, (4, None), false, DType::Fp16);
        assert_eq!(alone.parts[1], group.parts[1][..32]);
        assert_eq!(alone.parts[0], group.parts[0][..alone.parts[0].len()]);
    }
}

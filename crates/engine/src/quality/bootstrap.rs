//! Means with intervals that respect that neighbors in a text are alike.
//!
//! The moving block bootstrap draws blocks of neighboring positions with replacement until there
//! are as many positions as before, and takes the mean; the interval holds the middle 95 % of 1,000
//! such means. It is right because (1) positions further apart than a block are nearly independent,
//! (2) blocks keep what neighbors have in common, so the spread of their means is that of the mean
//! of the series, and (3) series of the same length are resampled by the same blocks, so a
//! difference that is a series of its own is judged by pairs. Source: Künsch, "The jackknife and
//! the bootstrap for general stationary observations", 1989.

use crate::sample::Random;

/// Means of resampled series.
const N_RESAMPLES: usize = 1000;
/// Share of the means inside an interval.
const COVERED: f64 = 0.95;
/// Results are the same in every run.
const SEED: u64 = 57;

/// A mean and the interval that holds the true one with a probability of about 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of the series.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// What an ascending function makes of the mean and of the ends of the interval.
    #[must_use]
    pub fn map(self, ascending: impl Fn(f64) -> f64) -> Self {
        Self {
            value: ascending(self.value),
            low: ascending(self.low),
            high: ascending(self.high),
        }
    }
}

/// The length of blocks for a series of `n` positions: twice the cube root, which for neighbors
/// that are moderately alike leaves little bias.
pub fn block_len(n: usize) -> usize {
    let len = (2.0 * (n as f64).cbrt()).ceil() as usize;
    len.min(n.div_ceil(4)).max(1)
}

/// The mean of a series with its interval, by blocks of `block` neighbors; blocks of 1 are for
/// series whose items are independent. An empty series gives NaN.
pub fn mean_interval(series: &[f64], block: usize) -> Estimate {
    let n = series.len();
    let value = mean(series);
    if n == 0 {
        return Estimate {
            value,
            low: value,
            high: value,
        };
    }
    let block = block.clamp(1, n);
    let n_starts = n - block + 1;
    let mut random = Random::new(SEED);
    let mut resampled = || {
        let (mut sum, mut left) = (0.0, n);
        while left > 0 {
            let start = ((random.unit() * n_starts as f64) as usize).min(n_starts - 1);
            let taken = block.min(left);
            sum += series[start..start + taken].iter().sum::<f64>();
            left -= taken;
        }
        sum / n as f64
    };
    let mut means: Vec<f64> = (0..N_RESAMPLES).map(|_| resampled()).collect();
    means.sort_by(f64::total_cmp);
    let outside = (1.0 - COVERED) / 2.0;
    Estimate {
        value,
        low: quantile(&means, outside),
        high: quantile(&means, 1.0 - outside),
    }
}

fn mean(series: &[f64]) -> f64 {
    series.iter().sum::<f64>() / series.len() as f64
}

/// The value below which a share of an ascending series lies, between neighbors by a straight line,
/// as `numpy.quantile`; NaN if the series is empty.
pub fn quantile(ascending: &[f64], share: f64) -> f64 {
    let Some(last) = ascending.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    let (x, y) = (ascending[below], ascending[(below + 1).min(last)]);
    // An infinite neighbor of weight 0 does not count.
    if part == 0.0 { x } else { x + part * (y - x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A series whose mean is 0, where each item has `likeness` of the one before it.
    fn simulated(random: &mut Random, n: usize, likeness: f64) -> Vec<f64> {
        let mut last = 0.0;
        let mut next = || {
            // The sum of 12 uniform numbers is nearly normal, of variance 1.
            let noise: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            last = likeness * last + noise;
            last
        };
        // The first items still depend on where the series began.
        for _ in 0..50 {
            next();
        }
        (0..n).map(|_| next()).collect()
    }

    /// How often the interval of a simulated series holds its true mean.
    fn coverage(n: usize, likeness: f64, block: usize) -> f64 {
        const N_SERIES: usize = 400;
        let mut random = Random::new(3);
        let holds = |random: &mut Random| {
            let interval = mean_interval(&simulated(random, n, likeness), block);
            (interval.low..=interval.high).contains(&0.0)
        };
        (0..N_SERIES).filter(|_| holds(&mut random)).count() as f64 / N_SERIES as f64
    }

    #[test]
    fn intervals_hold_the_true_mean_of_simulated_series() {
        // Of 400 series, 0.95 has a standard error of 0.011.
        for (n, likeness) in [(300, 0.0), (600, 0.3), (1000, 0.5)] {
            let found = coverage(n, likeness, block_len(n));
            assert!((0.90..=0.98).contains(&found), "{n}, {likeness}: {found}");
        }
        // What blocks are for: alone, neighbors that are alike make the interval too narrow.
        assert!(coverage(1000, 0.5, 1) < 0.85);
    }

    #[test]
    fn intervals_of_few_items() {
        let nothing = mean_interval(&[], 1);
        assert!(nothing.value.is_nan() && nothing.low.is_nan());
        for block in [1, 9] {
            let Estimate { value, low, high } = mean_interval(&[3.0], block);
            assert_eq!((value, low, high), (3.0, 3.0, 3.0));
        }
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(quantile(&[1.0, f64::INFINITY], 0.0), 1.0);
    }
}

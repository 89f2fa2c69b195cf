//! Exact k-means of weighted numbers, by dynamic programming.
//!
//! Glossary: a *cluster* is a range of the sorted numbers, whose center is their weighted mean; its
//! *cost* is the weighted sum of the squares of distances to the center.
//!
//! Why it is right:
//! 1. In one dimension, clusters of a best clustering are ranges of the sorted numbers.
//! 2. The cost of a range follows from sums of weights, of weighted numbers and of weighted
//!    squares, which differences of prefix sums give. Numbers are moved by their mean first, so
//!    that little cancels in f64.
//! 3. `best[j]`, the least cost of the first `j` numbers in `c` clusters, is the least of
//!    `before[i] + cost(i, j)`. The last such `i` does not fall as `j` or `c` grow, so halving the
//!    range of `j` leaves each half a part of the range of `i`: `n log n` costs for each cluster.

/// Sorted distinct numbers and their weights.
pub struct Sorted {
    numbers: Vec<f64>,
    /// Moved by this.
    mean: f64,
    /// Prefix sums of weights, of weighted numbers, of weighted squares.
    sums: Vec<[f64; 3]>,
}

impl Sorted {
    /// `pairs` are numbers, in rising order, and their weights, above 0. More than 65,536 are not
    /// taken, since there are no more fp16 numbers.
    pub fn new(pairs: &[(f32, f64)]) -> Self {
        debug_assert!(pairs.len() <= 1 << 16 && pairs.is_sorted_by(|a, b| a.0 < b.0));
        let (mut weight, mut sum) = (0.0, 0.0);
        for (x, w) in pairs {
            weight += w;
            sum += w * f64::from(*x);
        }
        let mean = if weight > 0.0 { sum / weight } else { 0.0 };
        let mut at = [0.0; 3];
        let mut sums = vec![at];
        let mut numbers = Vec::with_capacity(pairs.len());
        for (x, w) in pairs {
            let x = f64::from(*x) - mean;
            numbers.push(x);
            at = [at[0] + w, at[1] + w * x, at[2] + w * x * x];
            sums.push(at);
        }
        Self {
            numbers,
            mean,
            sums,
        }
    }

    /// The cost of numbers `i..j` as one cluster.
    fn cost(&self, i: usize, j: usize) -> f64 {
        let (a, b) = (&self.sums[i], &self.sums[j]);
        let (w, x, xx) = (b[0] - a[0], b[1] - a[1], b[2] - a[2]);
        (xx - x * x / w).max(0.0)
    }

    fn center(&self, i: usize, j: usize) -> f64 {
        let (a, b) = (&self.sums[i], &self.sums[j]);
        (b[1] - a[1]) / (b[0] - a[0]) + self.mean
    }

    /// The centers of the best `k` clusters, in rising order; of all numbers if there are no more.
    pub fn centers(&self, k: usize) -> Vec<f64> {
        let n = self.numbers.len();
        if n <= k {
            return self.numbers.iter().map(|x| x + self.mean).collect();
        }
        let mut best: Vec<f64> = (0..=n)
            .map(|j| if j == 0 { 0.0 } else { self.cost(0, j) })
            .collect();
        // Where the last cluster of the first `j` numbers begins, for each number of clusters.
        let mut begins: Vec<Vec<u16>> = vec![vec![0; n + 1]];
        for c in 1..k {
            let mut next = Step {
                of: self,
                before: &best,
                last: &begins[c - 1],
                best: vec![f64::INFINITY; n + 1],
                begins: vec![0; n + 1],
            };
            // Each cluster has a number.
            next.halve(c + 1, n + 1, c, n);
            let Step {
                best: found,
                begins: from,
                ..
            } = next;
            best = found;
            begins.push(from);
        }
        let (mut end, mut centers) = (n, Vec::with_capacity(k));
        for from in begins.iter().rev() {
            let begin = usize::from(from[end]);
            centers.push(self.center(begin, end));
            end = begin;
        }
        centers.reverse();
        centers
    }
}

/// One more cluster.
struct Step<'a> {
    of: &'a Sorted,
    /// The least cost of the first numbers in one cluster less.
    before: &'a [f64],
    /// Where the last of them begins.
    last: &'a [u16],
    best: Vec<f64>,
    begins: Vec<u16>,
}

impl Step<'_> {
    /// The least cost of the first `j` numbers for each `j` of `from..to`, whose last cluster
    /// begins within `least..=most`.
    fn halve(&mut self, from: usize, to: usize, least: usize, most: usize) {
        if from >= to {
            return;
        }
        let j = from.midpoint(to);
        let first = least.max(usize::from(self.last[j]).min(most));
        let (mut best, mut begin) = (f64::INFINITY, first);
        for i in first..=most.min(j - 1) {
            let cost = self.before[i] + self.of.cost(i, j);
            if cost < best {
                (best, begin) = (cost, i);
            }
        }
        (self.best[j], self.begins[j]) = (best, begin as u16);
        self.halve(from, j, least, begin);
        self.halve(j + 1, to, begin, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least cost of `k` clusters, by trying all.
    fn brute(sorted: &Sorted, begin: usize, k: usize) -> f64 {
        let n = sorted.numbers.len();
        if k == 1 {
            return sorted.cost(begin, n);
        }
        let ends = begin + 1..=n - (k - 1);
        let costs = ends.map(|end| sorted.cost(begin, end) + brute(sorted, end, k - 1));
        costs.fold(f64::INFINITY, f64::min)
    }

    fn cost_of(pairs: &[(f32, f64)], centers: &[f64]) -> f64 {
        let nearest = |x: f32| {
            let distances = centers.iter().map(|c| (f64::from(x) - c).powi(2));
            distances.fold(f64::INFINITY, f64::min)
        };
        pairs.iter().map(|(x, w)| w * nearest(*x)).sum()
    }

    #[test]
    fn clusters_are_the_best_of_all() {
        let mut state = 3u64;
        let mut noise = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        for case in 0..60 {
            let n = 2 + case % 12;
            let offset = [0.0, 500.0][case % 2];
            let mut numbers: Vec<f32> = (0..n).map(|_| offset + noise() * noise()).collect();
            numbers.sort_by(f32::total_cmp);
            numbers.dedup();
            let pairs: Vec<(f32, f64)> = numbers
                .iter()
                .map(|x| (*x, f64::from(noise()) + 0.01))
                .collect();
            let sorted = Sorted::new(&pairs);
            for k in 1..=5.min(pairs.len()) {
                let centers = sorted.centers(k);
                assert_eq!(centers.len(), k);
                assert!(centers.is_sorted());
                let (found, best) = (cost_of(&pairs, &centers), brute(&sorted, 0, k));
                assert!(
                    found <= best * (1.0 + 1e-9) + 1e-12,
                    "{case}, {k}: {found} {best}"
                );
            }
        }
    }

    #[test]
    fn few_numbers_are_their_own_centers() {
        let sorted = Sorted::new(&[(-1.0, 2.0), (3.0, 1.0)]);
        assert_eq!(sorted.centers(4), [-1.0, 3.0]);
        assert_eq!(Sorted::new(&[]).centers(2), [0.0; 0]);
    }
}

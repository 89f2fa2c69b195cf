//! Which elements of a sparse tensor are kept: those of the greatest magnitude.

use super::Sparsity;
use super::values::Values;

/// Marks the elements that are kept, as many as
/// [`Encoding::n_kept`](super::Encoding::n_kept) says; of equal magnitudes the first.
pub fn keep(values: &mut Values, sparsity: Sparsity, n_kept: usize) {
    let mut kept = vec![false; values.len()];
    match sparsity {
        Sparsity::Percent(_) => keep_greatest(values, n_kept, &mut kept),
        Sparsity::Ratio(n, among) => {
            let inner: usize = values.matrix.shape[values.matrix.input + 1..]
                .iter()
                .product();
            keep_of_each(values, (n, among), inner, &mut kept);
        }
    }
    values.kept = kept;
}

fn keep_greatest(values: &Values, n_kept: usize, kept: &mut [bool]) {
    let all = || (0..values.len()).map(move |i| values.magnitude(i));
    let (high, n_rest) = least_kept(all().map(|m| m >> 16), n_kept);
    let low = all().filter(|m| m >> 16 == high).map(|m| m & 0xffff);
    let (low, mut n_equal) = least_kept(low, n_rest);
    // All above `least` are kept, and the first of those that equal it.
    let least = high << 16 | low;
    for (own, kept) in all().zip(kept) {
        *kept = own > least || own == least && n_equal > 0;
        n_equal -= usize::from(own == least && *kept);
    }
}

/// The least of the `n_kept` greatest of numbers of 16 bits, and how many of those that equal it
/// are kept.
fn least_kept(numbers: impl Iterator<Item = u32>, n_kept: usize) -> (u32, usize) {
    let mut counts = vec![0usize; 1 << 16];
    for number in numbers {
        counts[number as usize] += 1;
    }
    let (mut least, mut above) = (counts.len() - 1, 0);
    while least > 0 && above + counts[least] < n_kept {
        above += counts[least];
        least -= 1;
    }
    (least as u32, n_kept.saturating_sub(above))
}

/// `n` of each `among` inputs, which lie `step` elements apart.
fn keep_of_each(values: &Values, (n, among): (usize, usize), step: usize, kept: &mut [bool]) {
    let mut order: Vec<usize> = Vec::with_capacity(among);
    for block in (0..values.len()).step_by(among * step) {
        for first in block..block + step {
            order.clear();
            order.extend((0..among).map(|k| first + k * step));
            order.sort_by_key(|at| std::cmp::Reverse(values.magnitude(*at)));
            order[..n].iter().for_each(|at| kept[*at] = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use thane_mil::data::Data;
    use thane_mil::types::DType;

    use super::*;
    use crate::compress::{Encoding, Matrix};
    use crate::rewrite::bytes_of;

    fn kept(shape: &[usize], axes: (usize, usize), text: &str, numbers: &[f32]) -> Vec<usize> {
        let data = Data::owned(bytes_of(DType::Fp16, numbers.iter().copied()));
        let matrix = Matrix::new(shape.to_vec(), axes.0, axes.1);
        let encoding: Encoding = text.parse().unwrap();
        let n = encoding.n_kept(&matrix);
        let mut values = Values::read(matrix, DType::Fp16, &data).unwrap();
        keep(&mut values, encoding.sparsity.unwrap(), n);
        let kept: Vec<usize> = (0..numbers.len()).filter(|i| values.is_kept(*i)).collect();
        assert_eq!(kept.len(), n);
        kept
    }

    #[test]
    fn the_greatest_are_kept_and_of_equals_the_first() {
        let numbers = [1.0, -3.0, 0.0, 2.0, 1.0, 1.0, -0.5, 4.0];
        assert_eq!(kept(&[2, 4], (0, 1), "sparse50", &numbers), [0, 1, 3, 7]);
        assert_eq!(kept(&[2, 4], (0, 1), "sparse75", &numbers), [1, 7]);
        assert_eq!(kept(&[2, 4], (0, 1), "sparse50", &[0.0; 8]), [0, 1, 2, 3]);
        assert_eq!(kept(&[2, 4], (0, 1), "2:4", &numbers), [1, 3, 4, 7]);
        // Inputs along the first axis.
        assert_eq!(kept(&[4, 2], (1, 0), "1:2", &numbers), [0, 1, 4, 7]);
    }
}

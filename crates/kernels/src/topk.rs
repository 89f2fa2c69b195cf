//! The largest values of a slice.

/// Values that are looked at together: a chunk whose largest is no news costs one comparison.
const CHUNK_LEN: usize = 64;

/// The largest of some values, -inf if none is a number.
fn chunk_max(chunk: &[f32]) -> f32 {
    chunk
        .iter()
        .fold(f32::NEG_INFINITY, |max, x| if *x > max { *x } else { max })
}

/// The index of the largest value, the first of equals; NaN is passed over. None if there is no
/// number.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let mut best = None;
    let mut best_value = f32::NEG_INFINITY;
    for (chunk_idx, chunk) in x.chunks(CHUNK_LEN).enumerate() {
        if best.is_some() && chunk_max_wide(chunk) <= best_value {
            continue;
        }
        for (i, value) in chunk.iter().enumerate() {
            if *value > best_value || (best.is_none() && *value == best_value) {
                (best, best_value) = (Some(chunk_idx * CHUNK_LEN + i), *value);
            }
        }
    }
    best
}

/// [`chunk_max`] in eight interleaved parts, which the compiler makes vectors of.
fn chunk_max_wide(chunk: &[f32]) -> f32 {
    let (eights, rest) = chunk.as_chunks::<8>();
    let mut lanes = [f32::NEG_INFINITY; 8];
    for eight in eights {
        for (lane, x) in lanes.iter_mut().zip(eight) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    chunk_max(&lanes).max(chunk_max(rest))
}

/// The `k = indices.len()` largest values, falling, of equals the first index first; NaN is passed
/// over. Returns how many were found, at most `k`; the rest of the outputs is left as it is.
///
/// # Panics
/// If `values` is not as long as `indices`.
pub fn top_k(x: &[f32], indices: &mut [usize], values: &mut [f32]) -> usize {
    let k = indices.len();
    assert_eq!(k, values.len(), "one value per index");
    let mut n = 0;
    if k == 0 {
        return n;
    }
    for (chunk_idx, chunk) in x.chunks(CHUNK_LEN).enumerate() {
        if n == k && chunk_max_wide(chunk) <= values[k - 1] {
            continue;
        }
        for (i, value) in chunk.iter().enumerate() {
            if value.is_nan() || (n == k && *value <= values[k - 1]) {
                continue;
            }
            let at = values[..n].partition_point(|kept| *kept >= *value);
            n = (n + 1).min(k);
            indices[at..n].rotate_right(1);
            values[at..n].rotate_right(1);
            indices[at] = chunk_idx * CHUNK_LEN + i;
            values[at] = *value;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn largest_is_that_of_a_sort() {
        let mut random = Random::new(31);
        for len in [0, 1, 2, 63, 64, 65, 1000] {
            for n_distinct in [1, 5, 1 << 20] {
                let mut x: Vec<f32> = (0..len)
                    .map(|_| random.below(n_distinct) as f32 - 3.0)
                    .collect();
                for i in (0..len).step_by(7) {
                    x[i] = f32::NAN;
                }
                let mut sorted: Vec<usize> = (0..len).filter(|i| !x[*i].is_nan()).collect();
                sorted.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
                assert_eq!(argmax(&x), sorted.first().copied());
                for k in [0, 1, 3, 40, len] {
                    let (mut indices, mut values) = (vec![usize::MAX; k], vec![f32::NAN; k]);
                    let n = top_k(&x, &mut indices, &mut values);
                    assert_eq!(n, k.min(sorted.len()));
                    assert_eq!(indices[..n], sorted[..n]);
                    assert!((0..n).all(|i| values[i] == x[indices[i]]));
                }
            }
        }
    }

    #[test]
    fn infinities() {
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), Some(0));
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY, f32::NAN]), Some(1));
        assert_eq!(argmax(&[f32::NAN; 70]), None);
        assert_eq!(argmax(&[1.0, f32::INFINITY, f32::INFINITY]), Some(1));
        assert_eq!(argmax(&[0.0, -0.0]), Some(0));
    }
}

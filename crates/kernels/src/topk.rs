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

//! Puts together what tasks found on different parts of the keys.

use super::Division;

/// `partials` [n_splits, rows, padded_dim + 2]: the sums, the maximum and the sum of weights of
/// each row over each part of the keys; `places` says where the rows begin in `out`.
pub(super) fn merge(
    partials: &[f32],
    division: Division,
    places: impl Iterator<Item = usize>,
    head_dim: usize,
    out: &mut [f32],
) {
    let partial_len = division.partial_len();
    let split_len = partials.len() / division.n_splits;
    for (row_idx, first) in places.enumerate() {
        let out = &mut out[first..][..head_dim];
        let parts = || {
            partials
                .chunks_exact(split_len)
                .map(|split| &split[row_idx * partial_len..][..partial_len])
        };
        let max = parts().fold(f32::NEG_INFINITY, |max, part| {
            max.max(part[division.padded_dim])
        });
        out.fill(0.0);
        let mut total = 0.0;
        for part in parts() {
            let weight = (part[division.padded_dim] - max).exp2();
            total += weight * part[division.padded_dim + 1];
            for (out, sum) in out.iter_mut().zip(part) {
                *out += weight * sum;
            }
        }
        out.iter_mut().for_each(|out| *out /= total);
    }
}

//! What an encoding loses of a tensor, by a part of its rows: enough to decide between ways to
//! store it without computing each of them whole.

use std::sync::Arc;

use thane_mil::data::Data;

use super::job::{Job, NotFinite, Tensor};
use super::{Codes, Encoding, Sparsity};

/// Elements that a part has at least. A table of 256 values has more than a hundred elements each.
const LEAST: usize = 1 << 15;
/// Runs of rows that a part is made of, spread evenly over the tensor.
const RUNS: usize = 8;

/// `(w - q)^2` and `w^2` of a weight, on average over a part of the tensor of a job. All errors
/// count alike: what decides must not depend on a text, which is not computed for prices.
///
/// # Errors
///
/// The first number that is not finite, if the part has one.
pub fn squares(job: &Job) -> Result<[f64; 2], NotFinite> {
    let squares = |tensor: Tensor| {
        let n = tensor.matrix.len().max(1) as f64;
        let job = job.of_another(Tensor {
            importance: Arc::new([]),
            ..tensor
        });
        job.made().map(|made| [made.error / n, made.energy / n])
    };
    let (tensor, encoding) = (job.tensor(), job.encoding());
    match part(tensor, encoding) {
        // The whole tensor knows where the number stands.
        Some(part) => squares(part).or_else(|_| squares(tensor.clone())),
        None => squares(tensor.clone()),
    }
}

/// Some rows along the first axis; `None` if that would be most of them.
fn part(tensor: &Tensor, encoding: Encoding) -> Option<Tensor> {
    let n_rows = *tensor.matrix.shape.first()?;
    let per_row = tensor.matrix.len().checked_div(n_rows)?;
    let block = together(tensor, encoding);
    let run = LEAST
        .div_ceil(per_row.max(1) * RUNS)
        .next_multiple_of(block);
    if 2 * run * RUNS > n_rows {
        return None;
    }
    let row_bytes = per_row * tensor.dtype.bits() / 8;
    let mut bytes = vec![0; RUNS * run * row_bytes];
    let blocks = n_rows / block;
    for (k, piece) in bytes.chunks_mut(run * row_bytes).enumerate() {
        let first = k * (blocks - run / block) / (RUNS - 1) * block;
        if !tensor.data.read(first * row_bytes, piece) {
            return None;
        }
    }
    let mut part = tensor.clone();
    part.matrix.shape[0] = RUNS * run;
    part.data = Data::owned(bytes);
    Some(part)
}

/// How many consecutive rows an encoding stores together.
fn together(tensor: &Tensor, encoding: Encoding) -> usize {
    let matrix = &tensor.matrix;
    let of_codes = match encoding.codes {
        Some(Codes::Palette(_, Some(group))) if matrix.axis == 0 => group,
        Some(Codes::Vectors { width, .. }) if matrix.axis == 0 => width,
        Some(Codes::Integers(_, super::Blocks::Inputs(n))) if matrix.input == 0 => n,
        _ => 1,
    };
    match encoding.sparsity {
        Some(Sparsity::Ratio(_, among)) if matrix.input == 0 => of_codes * among,
        _ => of_codes,
    }
}

#[cfg(test)]
mod tests {
    use thane_mil::types::DType;

    use super::super::Matrix;
    use super::super::job::Memory;
    use super::super::job::Store;
    use super::*;
    use crate::rewrite::bytes_of;

    /// The error of a part is near that of the whole, along both axes.
    #[test]
    fn parts_are_like_the_whole() {
        let (n, m) = (2048, 128);
        let number = |i: usize| ((i * i + 7 * i) as f32 * 0.37).sin() * (1.0 + (i / m % 9) as f32);
        for (axis, input) in [(0, 1), (1, 0)] {
            let tensor = Tensor {
                name: "w".to_owned(),
                dtype: DType::Fp16,
                matrix: Matrix::new(vec![n, m], axis, input),
                data: Data::owned(bytes_of(DType::Fp16, (0..n * m).map(number))),
                importance: Arc::new([]),
            };
            for (text, has_scales) in [
                ("pal4", false),
                ("pal4", true),
                ("pal4g16", false),
                ("2x16", false),
                ("int4b32", false),
                ("2:4+pal2", false),
            ] {
                let encoding: Encoding = text.parse().unwrap();
                let store: Arc<dyn Store> = Arc::new(Memory::default());
                let sampled = part(&tensor, encoding).unwrap();
                assert!(sampled.matrix.len() < tensor.matrix.len() / 2, "{text}");
                let whole = Job::new(tensor.clone(), encoding, has_scales, store);
                let [error, energy] = squares(&whole).unwrap();
                let whole = whole.made().unwrap().relative_error();
                let ratio = (error / energy).sqrt() / whole;
                assert!((0.9..1.1).contains(&ratio), "{text} {axis}: {ratio}");
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_named_by_their_place() {
        let number = |i: usize| if i == 5 { f32::INFINITY } else { 1.0 };
        let tensor = Tensor {
            name: "w".to_owned(),
            dtype: DType::Fp16,
            matrix: Matrix::new(vec![4096, 64], 0, 1),
            data: Data::owned(bytes_of(DType::Fp16, (0..4096 * 64).map(number))),
            importance: Arc::new([]),
        };
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let job = Job::new(tensor, Encoding::palette(4), false, store);
        let fault = squares(&job).unwrap_err();
        assert_eq!((fault.name.as_str(), fault.at), ("w", 5));
    }
}

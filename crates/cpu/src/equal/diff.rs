//! How far numbers are from those due.

use std::fmt;

use crate::tensor::Tensor;

/// Roundings of a result itself that are always allowed: of both forms, and of what they were rounded from.
pub const ROUNDINGS: f64 = 4.0;
/// What one rounding to f32 moves a number by at most, over the number.
pub const UNIT_32: f64 = 1.0 / (1u64 << 24) as f64;
/// The same of fp16.
pub const UNIT_16: f64 = 1.0 / (1u64 << 11) as f64;
/// Two forms round in other places: they may be apart by so many times what one form moves where each of its ops
/// rounds to a side without a pattern.
pub const MANY: f64 = 8.0;

/// How far numbers are from those due, where those are finite.
#[derive(Clone, Copy, Debug, Default)]
pub struct Diff {
    /// Numbers compared.
    pub n: usize,
    /// The largest difference.
    pub most: f64,
    /// The largest number due.
    pub magnitude: f64,
    /// Numbers that are not finite, or not there.
    pub n_lost: usize,
    /// Whether they are floating point.
    pub is_float: bool,
}

impl Diff {
    /// Between two tensors.
    pub fn of(due: &Tensor, found: &Tensor) -> Self {
        Self::between(&numbers(due), &numbers(found), due.dtype.is_float())
    }

    /// How far roundings put numbers off: without bound where they make one infinite.
    pub fn spread(&self) -> f64 {
        if self.n_lost > 0 { f64::INFINITY } else { self.most }
    }

    /// Between numbers.
    pub fn between(due: &[f64], found: &[f64], is_float: bool) -> Self {
        let mut diff = Self { n_lost: due.len().abs_diff(found.len()), is_float, ..Self::default() };
        for (due, found) in due.iter().zip(found).filter(|(due, _)| due.is_finite()) {
            diff.n += 1;
            diff.magnitude = diff.magnitude.max(due.abs());
            if found.is_finite() {
                diff.most = diff.most.max((due - found).abs());
            } else {
                diff.n_lost += 1;
            }
        }
        diff
    }
}

/// The elements of a tensor.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    let mut out = Vec::with_capacity(tensor.len());
    tensor.each(|_, x| out.push(x));
    out
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = if self.most == 0.0 { 0.0 } else { self.most / self.magnitude.max(f64::MIN_POSITIVE) };
        write!(f, "{share:.1e} of the largest")?;
        if self.n_lost > 0 {
            write!(f, ", {} of {} numbers are lost", self.n_lost, self.n)?;
        }
        Ok(())
    }
}

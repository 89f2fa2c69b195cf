//! How far numbers are from those due.

use std::fmt;

use thane_mil::evaluate::HostTensor;

/// Roundings of a result itself that are always allowed: of both forms, and of what they were
/// rounded from.
pub const ROUNDINGS: f64 = 4.0;
/// What one rounding to f32 moves a number by at most, over the number.
pub const UNIT_32: f64 = 1.0 / (1u64 << 24) as f64;
/// The same of fp16.
pub const UNIT_16: f64 = 1.0 / (1u64 << 11) as f64;
/// Two forms round in other places: they may be apart by so many times what one form moves where
/// each of its ops rounds to a side without a pattern.
pub const MANY: f64 = 8.0;
/// Roundings that move a number by more than this over the largest leave nothing to judge.
pub const ABSURD: f64 = 0.5;
/// Numbers of fp16 from here on may be rounded to infinity: 16 roundings below the largest.
const EDGE: f64 = 65_504.0 * (1.0 - 16.0 * UNIT_16);

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
    /// Between two tensors, of the elements that are judged.
    pub fn of<T: HostTensor>(due: &T, found: &T, judged: &Judged) -> Self {
        let is_float = due.dtype().is_float();
        Self::between(&numbers(due), &numbers(found), is_float, judged)
    }

    /// Between numbers, of the elements that are judged.
    pub fn between(due: &[f64], found: &[f64], is_float: bool, judged: &Judged) -> Self {
        let mut diff = Self {
            n_lost: due.len().abs_diff(found.len()),
            is_float,
            ..Self::default()
        };
        let pairs = due.iter().zip(found).enumerate();
        for (_, (due, found)) in pairs.filter(|(i, (due, _))| due.is_finite() && judged.has(*i)) {
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

/// Elements of a tensor that a form is judged by.
#[derive(Clone, Debug, Default)]
pub struct Judged(Option<Vec<bool>>);

impl Judged {
    fn of(is_judged: Vec<bool>) -> Self {
        Self(if is_judged.iter().all(|x| *x) {
            None
        } else {
            Some(is_judged)
        })
    }

    /// Those that roundings of f32 leave what they are: floating-point numbers stay finite, and
    /// others are the same.
    pub fn stable<T: HostTensor>(due: &T, nudged: &T) -> Self {
        let is_float = due.dtype().is_float();
        let pairs = numbers(due).into_iter().zip(numbers(nudged));
        Self::of(
            pairs
                .map(|(a, b)| {
                    if is_float {
                        b.is_finite() || !a.is_finite()
                    } else {
                        a == b
                    }
                })
                .collect(),
        )
    }

    /// Those of numbers in fp16 that are finite, and not within a few roundings of the largest.
    pub fn finite(own: &impl HostTensor) -> Self {
        Self::of(numbers(own).into_iter().map(|x| x.abs() < EDGE).collect())
    }

    /// Those of both.
    pub fn and(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Self(Some(a.iter().zip(b).map(|(a, b)| *a && *b).collect())),
            (Some(one), None) | (None, Some(one)) => Self(Some(one.clone())),
            (None, None) => Self(None),
        }
    }

    fn has(&self, i: usize) -> bool {
        self.0
            .as_ref()
            .is_none_or(|judged| judged.get(i) != Some(&false))
    }

    /// How many of them are not finite.
    pub fn n_lost(&self, found: &[f64]) -> usize {
        found
            .iter()
            .enumerate()
            .filter(|(i, x)| self.has(*i) && !x.is_finite())
            .count()
    }
}

/// A number over another, of which 0 is 0 of anything.
pub fn over(a: f64, b: f64) -> f64 {
    if a == 0.0 {
        0.0
    } else {
        a / b.max(f64::MIN_POSITIVE)
    }
}

/// The elements of a tensor.
pub fn numbers(tensor: &impl HostTensor) -> Vec<f64> {
    let mut out = Vec::with_capacity(tensor.n_elements());
    tensor.each(|x| out.push(x));
    out
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = over(self.most, self.magnitude);
        write!(f, "{share:.1e} of the largest")?;
        if self.n_lost > 0 {
            write!(f, ", {} of {} numbers are lost", self.n_lost, self.n)?;
        }
        Ok(())
    }
}

//! A number of the tables, with its evidence and source.

use super::Evidence;

/// A number, what sources leave open about it, and how it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number, in the unit that its field names.
    pub value: f64,
    /// The least that a source gives, or that is likely where none does.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// Who says so: project, chip, release.
    pub source: &'static str,
}

impl Figure {
    /// A number that was measured on the chip itself, between `low` and `high`.
    pub const fn measured(value: f64, low: f64, high: f64, source: &'static str) -> Self {
        Self {
            value,
            low,
            high,
            evidence: Evidence::Measured,
            source,
        }
    }

    /// A number that is taken from a kindred chip or follows from others.
    pub const fn inferred(value: f64, low: f64, high: f64, source: &'static str) -> Self {
        Self {
            value,
            low,
            high,
            evidence: Evidence::Inferred,
            source,
        }
    }

    /// How far off it may be: half the width of the interval over the number, in logarithms.
    pub fn spread(&self) -> f64 {
        if self.low > 0.0 && self.high >= self.low {
            (self.high / self.low).ln() / 2.0
        } else {
            0.0
        }
    }

    /// Whether sources or guesses differ by more than a tenth.
    pub fn is_disputed(&self) -> bool {
        self.evidence == Evidence::Measured && self.high > 1.1 * self.low
    }
}

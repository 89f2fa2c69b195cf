//! A number of the tables, with its evidence and source.

use super::Evidence;

/// A number with its interval, evidence and source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number, in the unit that its field names.
    pub value: f64,
    /// Low bound: the least that a source gives, or that is likely where none does.
    pub low: f64,
    /// High bound.
    pub high: f64,
    /// Evidence.
    pub evidence: Evidence,
    /// Source: project, chip, release.
    pub source: &'static str,
}

impl Figure {
    const fn new([value, low, high]: [f64; 3], evidence: Evidence) -> Self {
        Self {
            value,
            low,
            high,
            evidence,
            source: "",
        }
    }

    /// A number that was measured on the chip itself, between `low` and `high`.
    pub const fn measured(value: f64, low: f64, high: f64) -> Self {
        Self::new([value, low, high], Evidence::Measured)
    }

    /// A number that a vendor publishes.
    pub const fn documented(value: f64) -> Self {
        Self::new([value; 3], Evidence::Documented)
    }

    /// A number that is taken from a related chip or follows from other numbers.
    pub const fn inferred(value: f64, low: f64, high: f64) -> Self {
        Self::new([value, low, high], Evidence::Inferred)
    }

    /// The number, with who says so; every number has a source.
    pub const fn by(self, source: &'static str) -> Self {
        Self { source, ..self }
    }

    /// The number for a related chip, of which nothing is published: each bound is moved out by a
    /// factor of 1.5. One that is inferred has such bounds already.
    pub(super) const fn related(self) -> Self {
        match self.evidence {
            Evidence::Inferred => self,
            _ => self.widened(),
        }
    }

    /// The number for a newer chip, of which nothing is published: each bound is moved out by a
    /// factor of 1.5, also of one that is inferred for the older chip.
    pub(super) const fn widened(self) -> Self {
        Self {
            low: self.low / 1.5,
            high: self.high * 1.5,
            evidence: Evidence::Inferred,
            ..self
        }
    }

    /// Uncertainty: half the width of the interval, in logarithms.
    pub fn spread(&self) -> f64 {
        if self.low > 0.0 && self.high >= self.low {
            libm::log(self.high / self.low) / 2.0
        } else {
            0.0
        }
    }
}

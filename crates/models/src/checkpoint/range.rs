//! The ranges of the numbers in configurations, for all families. A number beyond its range is a
//! mistake or damage: a program made of it computes nothing that anybody wants.
//!
//! The bounds are far outside of what published models have, which each range names.

use super::config::{Config, ConfigError};
use super::gguf::{Gguf, MetadataError};

/// The numbers that a key may have, bounds included.
#[derive(Debug, PartialEq)]
pub struct Range {
    least: f64,
    most: f64,
    /// What is expected, for messages.
    text: &'static str,
}

impl Range {
    /// The greatest size.
    pub const MOST_SIZE: usize = 1 << 24;
    /// Epsilons of norms. Published models have 1e-12 to 1e-5.
    pub const EPSILON: Self = Self {
        least: 1e-20,
        most: 1.0,
        text: "a number from 1e-20 to 1",
    };
    /// Soft caps of scores and logits. Published models have 30 and 50.
    pub const SOFT_CAP: Self = Self {
        least: 1e-3,
        most: 1e6,
        text: "a number from 0.001 to 1000000",
    };
    /// Bases of rotary frequencies. Published models have 10,000 to 1e9.
    pub const THETA: Self = Self {
        least: 2.0,
        most: 1e15,
        text: "a number from 2 to 1e15",
    };
    /// Multipliers, divisors and scalings. Published models have 0.008 to 1,000.
    pub const FACTOR: Self = Self {
        least: 1e-6,
        most: 1e6,
        text: "a number from 0.000001 to 1000000",
    };
    /// Factors of which 0 means that there is no effect.
    pub const FACTOR_OR_ZERO: Self = Self {
        least: 0.0,
        most: 1e6,
        text: "a number from 0 to 1000000",
    };

    /// Shares and probabilities.
    pub const SHARE: Self = Self {
        least: 0.0,
        most: 1.0,
        text: "a number from 0 to 1",
    };

    /// Whether a number is within the bounds; NaN is not.
    pub fn holds(&self, number: f64) -> bool {
        (self.least..=self.most).contains(&number)
    }
}

impl Config {
    /// A number within a range.
    pub fn number(&self, key: &str, range: &Range) -> Result<f64, ConfigError> {
        self.f64(key)?;
        let number = self.opt_number(key, range)?;
        Ok(number.expect("the key is present"))
    }

    /// Like [`Self::number`], but `None` if the key is absent or null.
    pub fn opt_number(&self, key: &str, range: &Range) -> Result<Option<f64>, ConfigError> {
        match self.opt_f64(key)? {
            Some(number) if !range.holds(number) => Err(self.refused(key, range.text)),
            number => Ok(number),
        }
    }
}

impl Gguf {
    /// A number within a range.
    pub fn number(&self, key: &str, range: &Range) -> Result<f32, MetadataError> {
        let number = self.f32(key)?;
        if range.holds(f64::from(number)) {
            return Ok(number);
        }
        Err(MetadataError::Range {
            key: key.into(),
            expected: range.text,
            value: format!("{number:?}"),
        })
    }

    /// Like [`Self::number`], but `None` if the key is absent.
    pub fn opt_number(&self, key: &str, range: &Range) -> Result<Option<f32>, MetadataError> {
        match self.value(key) {
            None => Ok(None),
            Some(_) => self.number(key, range).map(Some),
        }
    }
}

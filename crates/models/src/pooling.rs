//! How token vectors are pooled into one vector.

use std::fmt;

/// How token vectors are pooled into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all token vectors.
    Mean,
    /// The sum of all token vectors, divided by the square root of their number.
    MeanSqrtLen,
    /// The vector of the first token.
    Cls,
    /// The vector of the last token.
    LastToken,
    /// The maximum of each element over all tokens.
    Max,
    /// The mean weighted by position, counted from 1.
    WeightedMean,
}

impl Pooling {
    /// All poolings.
    pub const ALL: [Self; 6] = [
        Self::Mean,
        Self::MeanSqrtLen,
        Self::Cls,
        Self::LastToken,
        Self::Max,
        Self::WeightedMean,
    ];

    /// The name in sentence-transformers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::MeanSqrtLen => "mean_sqrt_len_tokens",
            Self::Cls => "cls",
            Self::LastToken => "lasttoken",
            Self::Max => "max",
            Self::WeightedMean => "weightedmean",
        }
    }

    /// The pooling with this name, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// One pooling, or several whose vectors are joined in this order. Displayed as names of
/// sentence-transformers joined by `+`.
#[derive(Clone, Copy)]
pub struct Poolings {
    /// Only the first `len` count.
    modes: [Pooling; Self::MOST],
    len: usize,
}

impl Poolings {
    /// Most poolings that can be joined; each can occur once.
    const MOST: usize = Pooling::ALL.len();

    /// Joins poolings; `None` if there are none or one occurs twice.
    pub fn new(poolings: &[Pooling]) -> Option<Self> {
        let is_repeated = |(i, p): (usize, &Pooling)| poolings[..i].contains(p);
        if poolings.is_empty() || poolings.iter().enumerate().any(is_repeated) {
            return None;
        }
        let mut modes = [Pooling::Mean; Self::MOST];
        modes[..poolings.len()].copy_from_slice(poolings);
        Some(Self {
            modes,
            len: poolings.len(),
        })
    }

    /// The poolings in order.
    pub fn modes(&self) -> &[Pooling] {
        &self.modes[..self.len]
    }

    /// The poolings with these names, such as `mean` or `weightedmean+max`, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        let modes: Option<Vec<Pooling>> = name.split('+').map(Pooling::from_name).collect();
        Self::new(&modes?)
    }
}

impl From<Pooling> for Poolings {
    fn from(pooling: Pooling) -> Self {
        Self {
            modes: [pooling; Self::MOST],
            len: 1,
        }
    }
}

impl PartialEq for Poolings {
    fn eq(&self, other: &Self) -> bool {
        self.modes() == other.modes()
    }
}

impl Eq for Poolings {}

impl fmt::Display for Poolings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.modes().iter().map(|p| p.name()).collect();
        f.write_str(&names.join("+"))
    }
}

impl fmt::Debug for Poolings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

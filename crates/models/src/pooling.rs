//! How token vectors are pooled into one vector.

/// How token vectors are pooled into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all token vectors.
    Mean,
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
    pub const ALL: [Self; 5] = [
        Self::Mean,
        Self::Cls,
        Self::LastToken,
        Self::Max,
        Self::WeightedMean,
    ];

    /// The name in sentence-transformers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
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

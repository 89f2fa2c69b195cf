//! How the vectors of tokens become one.

/// How the vectors of tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    LastToken,
    /// The largest of each element.
    Max,
    /// Their mean, each weighted by its position from 1 on.
    WeightedMean,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Mean,
        Self::Cls,
        Self::LastToken,
        Self::Max,
        Self::WeightedMean,
    ];

    /// The name that sentence-transformers has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::LastToken => "lasttoken",
            Self::Max => "max",
            Self::WeightedMean => "weightedmean",
        }
    }

    /// The pooling of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

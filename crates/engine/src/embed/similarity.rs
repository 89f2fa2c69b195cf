//! Compares embeddings. For each function, a greater value means more similar.

/// A similarity function of two vectors, named as in sentence-transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    /// `a · b / (|a| |b|)`, the cosine of the angle; 0 if a vector is zero.
    Cosine,
    /// `a · b`, the dot product.
    Dot,
    /// `-sqrt(sum((a - b)^2))`, the negated Euclidean distance.
    Euclidean,
    /// `-sum(|a - b|)`, the negated Manhattan distance.
    Manhattan,
}

impl Similarity {
    /// All functions.
    pub const ALL: [Similarity; 4] = [Self::Cosine, Self::Dot, Self::Euclidean, Self::Manhattan];

    /// The name in a model's files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
            Self::Euclidean => "euclidean",
            Self::Manhattan => "manhattan",
        }
    }

    /// The function with this name, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The similarity of `a` and `b`.
    pub fn compare(self, a: &[f32], b: &[f32]) -> f64 {
        let sum = |term: fn(f64, f64) -> f64| {
            a.iter()
                .zip(b)
                .map(|(a, b)| term(f64::from(*a), f64::from(*b)))
                .sum()
        };
        match self {
            Self::Cosine => {
                let squares: f64 = dot(a, a) * dot(b, b);
                if squares > 0.0 {
                    dot(a, b) / squares.sqrt()
                } else {
                    0.0
                }
            }
            Self::Dot => dot(a, b),
            Self::Euclidean => -f64::sqrt(sum(|a, b| (a - b).powi(2))),
            Self::Manhattan => {
                let distance: f64 = sum(|a, b| (a - b).abs());
                -distance
            }
        }
    }

    /// The similarity of two texts with one vector of `dim` elements for each token: the sum over
    /// the vectors of `a` of the greatest similarity to a vector of `b` (MaxSim of ColBERT).
    pub fn max_sim(self, a: &[f32], b: &[f32], dim: usize) -> f64 {
        let greatest = |a: &[f32]| {
            b.chunks_exact(dim)
                .map(|b| self.compare(a, b))
                .fold(f64::NEG_INFINITY, f64::max)
        };
        a.chunks_exact(dim).map(greatest).sum()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// The number of bits in which two packed vectors differ.
pub fn hamming(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_agree_with_sums_by_hand() {
        let (a, b) = ([3.0, 0.0, 4.0], [0.0, 2.0, 4.0]);
        let cases = [
            (Similarity::Cosine, 16.0 / (5.0 * 20f64.sqrt())),
            (Similarity::Dot, 16.0),
            (Similarity::Euclidean, -(13f64.sqrt())),
            (Similarity::Manhattan, -5.0),
        ];
        for (function, expected) in cases {
            assert!(
                (function.compare(&a, &b) - expected).abs() < 1e-12,
                "{}",
                function.name()
            );
            assert_eq!(Similarity::from_name(function.name()), Some(function));
        }
        assert_eq!(Similarity::Cosine.compare(&a, &[0.0; 3]), 0.0);
        assert_eq!(Similarity::from_name("likeness"), None);
    }

    #[test]
    fn each_token_finds_its_greatest() {
        let (a, b) = ([1.0, 0.0, 0.0, 2.0], [1.0, 1.0, 3.0, 0.0, 0.0, 0.5]);
        assert_eq!(Similarity::Dot.max_sim(&a, &b, 2), 3.0 + 2.0);
    }

    #[test]
    fn differing_bits_are_counted() {
        assert_eq!(hamming(&[0b1010, 0xff], &[0b0110, 0xfe]), 3);
    }
}

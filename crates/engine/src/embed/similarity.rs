//! How alike two embeddings are. For each function, more is more alike.

/// A function of two vectors, as sentence-transformers names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    /// The cosine of the angle between them; 0 where one of them is zero.
    Cosine,
    /// The dot product.
    Dot,
    /// Euclid's distance, negated.
    Euclidean,
    /// The sum of the absolute differences, negated.
    Manhattan,
}

impl Similarity {
    /// Every function.
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

    /// The function of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// How alike `a` and `b` are.
    pub fn of(self, a: &[f32], b: &[f32]) -> f64 {
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

    /// How alike two texts with a vector for each token are: for each vector of `a` the likest of
    /// `b`, summed.
    pub fn max_sim(self, a: &[f32], b: &[f32], dim: usize) -> f64 {
        let likest = |a: &[f32]| {
            b.chunks_exact(dim)
                .map(|b| self.of(a, b))
                .fold(f64::NEG_INFINITY, f64::max)
        };
        a.chunks_exact(dim).map(likest).sum()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// The bits in which two packed vectors differ.
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
                (function.of(&a, &b) - expected).abs() < 1e-12,
                "{}",
                function.name()
            );
            assert_eq!(Similarity::from_name(function.name()), Some(function));
        }
        assert_eq!(Similarity::Cosine.of(&a, &[0.0; 3]), 0.0);
        assert_eq!(Similarity::from_name("likeness"), None);
    }

    #[test]
    fn each_token_finds_its_likest() {
        let (a, b) = ([1.0, 0.0, 0.0, 2.0], [1.0, 1.0, 3.0, 0.0, 0.0, 0.5]);
        assert_eq!(Similarity::Dot.max_sim(&a, &b, 2), 3.0 + 2.0);
    }

    #[test]
    fn differing_bits_are_counted() {
        assert_eq!(hamming(&[0b1010, 0xff], &[0b0110, 0xfe]), 3);
    }
}

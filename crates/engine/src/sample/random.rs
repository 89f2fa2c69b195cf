//! Random numbers that are the same on every machine.

/// xoshiro256++, seeded by splitmix64 (Blackman and Vigna).
#[derive(Debug, Clone)]
pub(crate) struct Random([u64; 4]);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.0;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.0 = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A uniform random number in [0, 1) with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_equal_the_published_formulas() {
        // make_goldens.py computes them with Python's integers.
        let json: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/sampling.json")).unwrap();
        let mut random = Random::new(json["random"]["seed"].as_u64().unwrap());
        let values = json["random"]["values"].as_array().unwrap();
        assert_eq!(values.len(), 5);
        for value in values {
            assert_eq!(random.next().to_string(), value.as_str().unwrap());
        }
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&random.unit()));
        }
    }
}

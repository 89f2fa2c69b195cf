//! A deterministic source of random numbers.

/// Pseudo-random numbers, the same for each seed: the upper bits of a 64-bit linear congruential
/// generator with the constants of Knuth's MMIX.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u32 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

//! Sums in f64.

use thane_kernels::Isa;
use thane_kernels::wide::{dot_f64, sum_f64};

use crate::testing::{Random, instruction_sets};

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut random = Random::new(5);
    for n in [0, 1, 7, 8, 9, 31, 100] {
        let (a, b) = (random.f32s(n), random.f32s(n));
        let due: f64 = a
            .iter()
            .zip(&b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum();
        let plain = dot_f64(Isa::Portable, &a, &b);
        assert!(
            (plain - due).abs() <= 1e-12 * n as f64,
            "{n}: {plain}, not {due}"
        );
        let sum = sum_f64(Isa::Portable, &a);
        let due: f64 = a.iter().map(|a| f64::from(*a)).sum();
        assert!(
            (sum - due).abs() <= 1e-12 * n as f64,
            "{n}: {sum}, not {due}"
        );
        for isa in instruction_sets() {
            let found = sum_f64(isa, &a);
            assert_eq!(found.to_bits(), sum.to_bits(), "{n} {}", isa.name());
            assert_eq!(
                dot_f64(isa, &a, &b).to_bits(),
                plain.to_bits(),
                "{n} {}",
                isa.name()
            );
        }
    }
}

//! f16 and bf16 against the definitions of the formats.

use thane_kernels::f16::{
    bf16_to_f32, f16_to_f32, f16_to_f32_slice, f32_to_bf16, f32_to_f16, f32_to_f16_slice,
};

use crate::testing::instruction_sets;

/// The value by the definition of the format.
fn defined(half: u16) -> f64 {
    let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 0x3ff));
    let size = match exponent {
        31 if fraction > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if half & 0x8000 == 0 { size } else { -size }
}

#[test]
fn every_f16_has_its_value_and_comes_back() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    for isa in instruction_sets() {
        let mut values = vec![0.0; halves.len()];
        let mut back = vec![0; halves.len()];
        // Odd offsets and lengths, so that the tails differ from the vectors.
        let short = (0..34).map(|len| (3, 3 + len));
        for (start, end) in short.chain([(0, 65_536), (1, 65_530)]) {
            f16_to_f32_slice(isa, &halves[start..end], &mut values[start..end]);
            f32_to_f16_slice(isa, &values[start..end], &mut back[start..end]);
            for i in start..end {
                let expected = defined(halves[i]);
                let quiet = if expected.is_nan() {
                    halves[i] | 0x200
                } else {
                    halves[i]
                };
                assert!(
                    f64::from(values[i]) == expected || expected.is_nan() && values[i].is_nan(),
                    "{i:#x} {}",
                    isa.name()
                );
                assert_eq!(
                    values[i].to_bits(),
                    f16_to_f32(halves[i]).to_bits(),
                    "{i:#x} {}",
                    isa.name()
                );
                assert_eq!(back[i], quiet, "{i:#x} {}", isa.name());
                assert_eq!(f32_to_f16(values[i]), quiet, "{i:#x}");
            }
        }
    }
}

#[test]
fn rounding_to_f16_at_every_boundary() {
    // Between neighbors: the middle goes to the even one, the values next to the middle to the
    // nearer one.
    for low in 0..0x7bffu16 {
        let middle = ((defined(low) + defined(low + 1)) / 2.0) as f32;
        let even = low + (low & 1);
        let below = f32::from_bits(middle.to_bits() - 1);
        let above = f32::from_bits(middle.to_bits() + 1);
        let from = [
            middle, below, above, -middle, -below, -above, middle, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0,
        ];
        let expected = [
            even,
            low,
            low + 1,
            even | 0x8000,
            low | 0x8000,
            (low + 1) | 0x8000,
        ];
        for (value, expected) in from.iter().zip(expected) {
            assert_eq!(f32_to_f16(*value), expected, "{value}");
        }
        for isa in instruction_sets() {
            let mut to = [0; 16];
            f32_to_f16_slice(isa, &from, &mut to);
            assert_eq!(to[..6], expected, "{middle} {}", isa.name());
        }
    }
    for (value, expected) in [
        (65519.996, 0x7bff),
        (65520.0, 0x7c00),
        (f32::MAX, 0x7c00),
        (f32::INFINITY, 0x7c00),
        (1e-45, 0),
        (2.9e-8, 0),
        (2.99e-8, 1),
    ] {
        assert_eq!(f32_to_f16(value), expected, "{value}");
    }
}

#[test]
fn every_bf16_has_its_value_and_comes_back() {
    for half in 0..=u16::MAX {
        let value = bf16_to_f32(half);
        assert_eq!(value.to_bits(), u32::from(half) << 16);
        let quiet = if value.is_nan() { half | 0x40 } else { half };
        assert_eq!(f32_to_bf16(value), quiet, "{half:#x}");
    }
}

#[test]
fn rounding_to_bf16_at_every_boundary() {
    for low in 0..0x7f80u16 {
        let middle = u32::from(low) << 16 | 0x8000;
        let even = low + (low & 1);
        for (bits, expected) in [(middle, even), (middle - 1, low), (middle + 1, low + 1)] {
            assert_eq!(f32_to_bf16(f32::from_bits(bits)), expected, "{bits:#x}");
            assert_eq!(
                f32_to_bf16(f32::from_bits(bits | 1 << 31)),
                expected | 0x8000,
                "{bits:#x}"
            );
        }
    }
}

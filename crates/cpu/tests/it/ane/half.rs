//! Numbers as fp16.

use thane_cpu::internals::{nearest_half, round_normal};

#[test]
fn normal_numbers_are_rounded_as_all_are() {
    let mut bits = 12345u32;
    for half_away in [false, true] {
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Ties, and what is next to them, more often than by chance.
            let near = match bits % 5 {
                0 => bits & !0x1fff | 0x1000,
                1 => bits & !0x1fff | 0xfff,
                2 => bits & !0x1fff,
                _ => bits,
            };
            for bits in [near, near & 0x80ff_ffff | 0x4700_0000] {
                let value = f32::from_bits(bits);
                let mut rounded = [value];
                if round_normal(&mut rounded, half_away) {
                    let due = nearest_half(f64::from(value), half_away) as f32;
                    assert_eq!(rounded[0].to_bits(), due.to_bits(), "{value:e}");
                    assert!(due.is_finite());
                } else {
                    assert_eq!(rounded[0].to_bits(), bits);
                    let size = value.abs();
                    assert!(!(6.104e-5..65520.0).contains(&size), "{value:e}");
                }
            }
        }
    }
}

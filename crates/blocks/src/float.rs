//! f16 (IEEE 754 binary16) and bf16, as bits in a `u16`, to and from `f32` and `f64`.
//!
//! Narrowing rounds once, to nearest, ties to even; overflow gives infinity; subnormals are kept.
//! NaN stays NaN in both directions, as the conversion instructions of x86 (F16C) and Arm have it:
//! the sign and the upper payload bits are kept, and the quiet bit is set. Only [`bf16_to_f32`]
//! keeps a signaling NaN as it is.
//!
//! These functions inline into SIMD kernels, where the compiler vectorizes them. The `half` crate
//! detects F16C at run time in each call, so it serves as the oracle of the tests instead.

/// The value of an f16.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let bits = if magnitude >= 0x7c00 {
        // Infinity, or NaN with the quiet bit set.
        0x7f80_0000 | (magnitude & 0x3ff) << 13 | if magnitude > 0x7c00 { 0x0040_0000 } else { 0 }
    } else if magnitude >= 0x0400 {
        // The exponent's bias goes from 15 to 127.
        (magnitude << 13) + ((127 - 15) << 23)
    } else {
        // Subnormal: units of 2^-24, exact in f32.
        (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits()
    };
    f32::from_bits(sign | bits)
}

/// The f16 nearest to `value`.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | (magnitude >> 13) as u16 & 0x3ff;
    }
    // 65520 is halfway between the largest f16 and the next power of two: it and all larger values
    // become infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // Below 2^-14: adding 0.5 puts units of 2^-24 into the last place of the sum, which rounds them
    // to nearest even.
    if magnitude < 0x3880_0000 {
        let sum = f32::from_bits(magnitude) + 0.5;
        return sign | (sum.to_bits() - 0.5f32.to_bits()) as u16;
    }
    let odd = magnitude >> 13 & 1;
    let rounded = magnitude + 0xfff + odd - ((127 - 15) << 23);
    sign | (rounded >> 13) as u16
}

/// The f16 nearest to `value`, rounded once.
pub fn f64_to_f16(value: f64) -> u16 {
    let sign = (value.to_bits() >> 48) as u16 & 0x8000;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7e00 | (value.to_bits() >> 42) as u16 & 0x3ff;
    }
    // Halfway between the largest f16 and the next power of two.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    if magnitude < 2f64.powi(-14) {
        return sign | (magnitude * 2f64.powi(24)).round_ties_even() as u16;
    }
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    let fraction = (magnitude * 2f64.powi(10 - exponent)).round_ties_even() as u16;
    // A fraction that rounds up to 2048 carries into the exponent by the addition.
    sign | ((((exponent + 14) as u16) << 10) + fraction)
}

/// The value of a bf16.
#[inline(always)]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The bf16 nearest to `value`.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Half of the last place kept, less one where that place is even: a sum that carries is the
    // rounding up. The sum cannot overflow, because the bits of infinity end in zeros.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The bf16 nearest to `value` rounded to f32: two roundings.
pub fn f64_to_bf16(value: f64) -> u16 {
    f32_to_bf16(value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every class of f32, and the neighbors of every boundary between two f16 and two bf16.
    fn f32s() -> impl Iterator<Item = f32> {
        let near = |bits: u32| (bits.saturating_sub(2)..bits.saturating_add(3)).map(f32::from_bits);
        let halves = (0..=u16::MAX).flat_map(move |half| {
            let wide = half::f16::from_bits(half).to_f32().to_bits();
            near(wide).chain(near(wide | 0x1000))
        });
        // A bf16 is the upper half; its boundary is 0x8000 in the lower half.
        let tops = (0..=u16::MAX).flat_map(move |half| {
            let wide = u32::from(half) << 16;
            near(wide).chain(near(wide | 0x8000))
        });
        halves.chain(tops)
    }

    #[test]
    fn widening_agrees_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            assert_eq!(f16_to_f32(bits).to_bits(), expected.to_bits(), "{bits:#x}");
            // `half` quiets NaN here; the others are equal.
            let expected = half::bf16::from_bits(bits).to_f32();
            let same = bf16_to_f32(bits).to_bits() == expected.to_bits();
            assert!(
                same || expected.is_nan() && bf16_to_f32(bits).is_nan(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn narrowing_agrees_with_the_half_crate() {
        for value in f32s() {
            let bits = value.to_bits();
            assert_eq!(
                f32_to_f16(value),
                half::f16::from_f32(value).to_bits(),
                "{bits:#x}"
            );
            assert_eq!(
                f32_to_bf16(value),
                half::bf16::from_f32(value).to_bits(),
                "{bits:#x}"
            );
            assert_eq!(f64_to_f16(value.into()), f32_to_f16(value), "{bits:#x}");
            assert_eq!(f64_to_bf16(value.into()), f32_to_bf16(value), "{bits:#x}");
        }
    }

    #[test]
    fn an_f64_is_rounded_to_f16_once() {
        // Just above the middle of 1 and the next f16: rounded to f32 first, it would be a tie.
        let value = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(
            (f64_to_f16(value), f32_to_f16(value as f32)),
            (0x3c01, 0x3c00)
        );
        assert_eq!(f64_to_f16(2047.9999), 0x6800, "carries into the exponent");
        assert_eq!(f64_to_f16(65519.9), 0x7bff);
    }

    #[test]
    fn nan_keeps_its_sign_and_upper_payload() {
        for half in [0x7c01, 0x7e00, 0xfd55, 0xffff] {
            let quiet = half | 0x200;
            assert_eq!(f32_to_f16(f16_to_f32(half)), quiet, "{half:#x}");
            assert_eq!(f64_to_f16(f16_to_f32(half).into()), quiet, "{half:#x}");
        }
    }
}

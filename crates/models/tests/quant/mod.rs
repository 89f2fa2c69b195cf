//! Quantized blocks as MIL constants, against the values of the `gguf` package
//! (`crates/blocks/tests/make_blocks.py`).

#[path = "../../../blocks/tests/goldens/mod.rs"]
mod goldens;

use thane_blocks::BlockType;
use thane_mil::data::{Bytes, Data};
use thane_mil::types::DType;
use thane_models::checkpoint::TensorType;
use thane_models::quant::{QuantizedConstants, parts, widened};

/// Four roundings to 24 bits: of the offset, the difference, the product, and of the package's own
/// sum.
const BOUND: f64 = 4.0 / (1 << 24) as f64;

struct Golden {
    ty: BlockType,
    bytes: Bytes,
    values: Vec<f32>,
}

impl Golden {
    fn parts(&self) -> QuantizedConstants {
        parts(TensorType::Block(self.ty), &self.bytes).unwrap()
    }

    fn has_offset(&self) -> bool {
        self.ty.codes().unwrap().has_minimum
    }
}

fn goldens() -> Vec<Golden> {
    let stored = |golden: goldens::Golden| Golden {
        ty: golden.ty,
        bytes: Bytes::new(golden.bytes),
        values: golden.values,
    };
    goldens::goldens().into_iter().map(stored).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

/// The codes of a part as numbers; indices are looked up in the table.
fn codes(parts: &QuantizedConstants) -> Vec<f32> {
    let bytes = parts.codes.to_vec();
    let nibbles = || bytes.iter().flat_map(|b| [b & 15, b >> 4]);
    match (parts.code_type, parts.table) {
        (DType::Uint4, Some(table)) => nibbles()
            .map(|n| f32::from(table[usize::from(n)]))
            .collect(),
        (DType::Uint4, None) => nibbles().map(f32::from).collect(),
        (DType::Int4, None) => nibbles()
            .map(|n| f32::from((n << 4).cast_signed() >> 4))
            .collect(),
        (DType::Int8, None) => bytes.iter().map(|b| f32::from(b.cast_signed())).collect(),
        (DType::Uint8, None) => bytes.iter().map(|b| f32::from(*b)).collect(),
        (other, table) => panic!("codes of type {other}, table {table:?}"),
    }
}

/// What the constexpr ops compute: `scale * (code - offset)`, in fp32.
fn evaluate(parts: &QuantizedConstants) -> Vec<f32> {
    let (codes, scales) = (codes(parts), floats(&parts.scales.to_vec()));
    assert_eq!(codes.len(), scales.len() * parts.group_len);
    let offsets = parts.offsets.as_ref().map(|data| floats(&data.to_vec()));
    assert!(
        offsets
            .as_ref()
            .is_none_or(|offsets| offsets.len() == scales.len())
    );
    let value = |(i, code): (usize, &f32)| {
        let group = i / parts.group_len;
        scales[group] * (code - offsets.as_ref().map_or(0.0, |offsets| offsets[group]))
    };
    codes.iter().enumerate().map(value).collect()
}

#[test]
fn types_without_offset_are_the_packages_values_to_the_bit() {
    for golden in goldens().iter().filter(|g| !g.has_offset()) {
        let found = evaluate(&golden.parts());
        assert_eq!(found.len(), golden.values.len());
        for (i, (found, expected)) in found.iter().zip(&golden.values).enumerate() {
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{:?} value {i}: {found}, not {expected}",
                golden.ty
            );
        }
    }
}

/// The error is relative to `|scale * code| + |minimum|`, because cancellation loses digits.
#[test]
fn types_with_offset_are_within_the_documented_bound() {
    for golden in goldens().iter().filter(|g| g.has_offset()) {
        let parts = golden.parts();
        let found = evaluate(&parts);
        let (scales, offsets) = (
            floats(&parts.scales.to_vec()),
            floats(&parts.offsets.as_ref().unwrap().to_vec()),
        );
        let codes = codes(&parts);
        for (i, (found, expected)) in found.iter().zip(&golden.values).enumerate() {
            let group = i / golden.parts().group_len;
            let (scale, offset) = (f64::from(scales[group]), f64::from(offsets[group]));
            let size = (scale * f64::from(codes[i])).abs() + (scale * offset).abs();
            let error = (f64::from(*found) - f64::from(*expected)).abs();
            assert!(
                error <= BOUND * size,
                "{:?} value {i}: {found}, not {expected} ({:e})",
                golden.ty,
                error / size
            );
        }
    }
}

/// If a scale is 0, the value is exactly the minimum, whatever the code is.
#[test]
fn a_minimum_without_scale_is_kept() {
    let mut seen = 0;
    for golden in goldens().iter().filter(|g| g.has_offset()) {
        let found = evaluate(&golden.parts());
        let offsets = floats(&golden.parts().offsets.unwrap().to_vec());
        for (i, (found, expected)) in found.iter().zip(&golden.values).enumerate() {
            // The offset that stands for "no scale".
            if offsets[i / golden.parts().group_len].abs() == (1u64 << 30) as f32 {
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "{:?} value {i}",
                    golden.ty
                );
                assert_ne!(*found, 0.0);
                seen += 1;
            }
        }
    }
    assert!(seen > 1000, "{seen} values");
}

/// Reading a part in pieces gives the same bytes as reading all of it.
#[test]
fn a_part_reads_the_same_in_pieces() {
    for golden in goldens() {
        let QuantizedConstants {
            code_type,
            codes,
            scales,
            offsets,
            ..
        } = golden.parts();
        let named = [
            ("codes", Some(codes)),
            ("scales", Some(scales)),
            ("offsets", offsets),
        ];
        for (name, data) in named
            .into_iter()
            .filter_map(|(name, data)| Some((name, data?)))
        {
            assert_eq!(
                data.byte_len(),
                match name {
                    "codes" => golden.values.len() * code_type.bits() / 8,
                    _ => golden.values.len() / golden.parts().group_len * 4,
                }
            );
            pieces(&format!("{:?} {name}", golden.ty), &data);
        }
    }
    let stored = Bytes::new(
        (0..600u32)
            .map(|i| (i * 77 % 251) as u8)
            .collect::<Vec<_>>(),
    );
    for ty in [TensorType::F16, TensorType::BF16] {
        pieces(ty.name(), &widened(ty, &stored).unwrap());
    }
}

fn pieces(name: &str, data: &Data) {
    let whole = data.to_vec();
    // Every offset in the first blocks, then widely spaced offsets (97 is coprime to all block
    // sizes).
    let near = (0..150).flat_map(|at| (0..150).step_by(19).map(move |len| (at, len)));
    let far = (0..whole.len())
        .step_by(97)
        .flat_map(|at| [0, 1, 3, 255, 256, 1009, usize::MAX].map(|len| (at, len)));
    for (at, len) in near.chain(far) {
        let at = at.min(whole.len());
        let len = len.min(whole.len() - at);
        let mut out = vec![0xa5; len];
        assert!(data.read(at, &mut out), "{name} {len} bytes from {at}");
        assert!(out == whole[at..at + len], "{name} {len} bytes from {at}");
    }
    let mut out = [0xa5; 3];
    assert!(
        !data.read(whole.len() - 2, &mut out) && !data.read(usize::MAX, &mut out),
        "{name}: past the end"
    );
    assert_eq!(out, [0xa5; 3]);
}

/// Converts every fp16 and every bfloat16, compared with the sum of its bits.
#[test]
fn every_half_and_bfloat16_is_widened_exactly() {
    let power = |n: i32| 2f64.powi(n);
    let value = |bits: u16, mantissa_bits: i32, bias: i32| {
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) * power(-mantissa_bits);
        let exponent = i32::from((bits & 0x7fff) >> mantissa_bits);
        let most = i32::from(0x7fffu16 >> mantissa_bits);
        let size = match exponent {
            0 => mantissa * power(1 - bias),
            n if n == most && mantissa == 0.0 => f64::INFINITY,
            n if n == most => f64::NAN,
            n => (1.0 + mantissa) * power(n - bias),
        };
        if bits >> 15 == 1 { -size } else { size }
    };
    let stored = Bytes::new(
        (0..=u16::MAX)
            .flat_map(u16::to_le_bytes)
            .collect::<Vec<_>>(),
    );
    for (ty, mantissa_bits, bias) in [(TensorType::F16, 10, 15), (TensorType::BF16, 7, 127)] {
        let found = floats(&widened(ty, &stored).unwrap().to_vec());
        for (bits, found) in (0..=u16::MAX).zip(found) {
            let expected = value(bits, mantissa_bits, bias);
            let same = if expected.is_nan() {
                found.is_nan()
            } else {
                f64::from(found) == expected && found.is_sign_negative() == (bits >> 15 == 1)
            };
            assert!(same, "{ty} {bits:#06x}: {found}, not {expected}");
        }
    }
    assert!(
        widened(TensorType::F32, &stored).is_none()
            && widened(TensorType::Block(BlockType::Q8_0), &stored).is_none()
    );
}

#[test]
fn only_quantized_types_have_parts() {
    for ty in [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::F64,
        TensorType::I8,
        TensorType::Bool,
    ] {
        assert!(parts(ty, &Bytes::new(Vec::new())).is_none(), "{ty}");
    }
}

/// Each part refers to its blocks, so that a backend can multiply them without dequantizing.
#[test]
fn parts_say_how_they_are_stored() {
    for golden in goldens() {
        let QuantizedConstants {
            codes,
            scales,
            offsets,
            ..
        } = golden.parts();
        let packed: Vec<_> = [Some(codes), Some(scales), offsets]
            .into_iter()
            .flatten()
            .map(|data| {
                let Data::Source(source) = data else {
                    panic!("{:?} is copied", golden.ty)
                };
                source.packed().unwrap()
            })
            .collect();
        for part in &packed {
            assert_eq!(part.ty, golden.ty);
            assert!(
                std::ptr::eq(part.bytes.as_slice(), golden.bytes.as_slice()),
                "{:?}",
                golden.ty
            );
        }
    }
}

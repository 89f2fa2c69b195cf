//! The scalar decoder of every quantized type against the values of the `gguf` Python package,
//! which `make_blocks.py` recorded.
#![allow(clippy::unwrap_used)]

mod goldens;

use goldens::{Golden, goldens};
use thane_blocks::{BlockType, f16_to_f32};

#[test]
fn every_quantized_type_has_blocks_and_values() {
    let quantized = BlockType::ALL.into_iter().filter(|ty| !ty.is_float());
    let found: Vec<_> = goldens().iter().map(|golden| golden.ty).collect();
    assert_eq!(found, quantized.collect::<Vec<_>>());
}

#[test]
fn every_value_is_that_of_the_gguf_package() {
    for Golden { ty, bytes, values } in goldens() {
        let mut out = vec![f32::NAN; values.len()];
        ty.decode(&bytes, &mut out);
        for (i, (found, expected)) in out.iter().zip(&values).enumerate() {
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{ty:?} value {i}: {found}"
            );
        }
    }
}

#[test]
fn no_value_of_a_block_exceeds_its_bound() {
    for Golden { ty, bytes, values } in goldens() {
        let blocks = bytes.chunks(ty.block_bytes());
        for (block, values) in blocks.zip(values.chunks(ty.block_len())) {
            let bound = ty.magnitude_bound(block);
            // The sum of the terms is rounded, so it may be one unit below the largest value.
            let bound = bound * (1.0 + f32::EPSILON);
            assert!(values.iter().all(|v| v.abs() <= bound), "{ty:?}: {bound}");
        }
    }
}

#[test]
fn an_infinite_scale_gives_an_infinite_bound() {
    let infinity = 0x7c00u16.to_le_bytes();
    let block = [&infinity[..], &[0x99; 16]].concat();
    assert_eq!(BlockType::Q4_0.magnitude_bound(&block), f32::INFINITY);
    assert!(f16_to_f32(0x7e00).is_nan());
    let nan = [&0x7e00u16.to_le_bytes()[..], &[0x99; 16]].concat();
    assert!(BlockType::Q4_0.magnitude_bound(&nan).is_nan());
}

#[test]
fn floats_are_blocks_of_one() {
    let mut out = [0.0; 2];
    BlockType::F16.decode(&[0x00, 0x3c, 0x00, 0xc1], &mut out);
    assert_eq!(out, [1.0, -2.5]);
    BlockType::Bf16.decode(&[0x80, 0x3f, 0x20, 0xc0], &mut out);
    assert_eq!(out, [1.0, -2.5]);
    let bytes: Vec<u8> = [1.5f32, -0.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    BlockType::F32.decode(&bytes, &mut out);
    assert_eq!(out.map(f32::to_bits), [1.5f32, -0.0].map(f32::to_bits));
}

#[test]
fn ids_and_names_are_unique() {
    for ty in BlockType::ALL {
        let same_name = BlockType::ALL
            .into_iter()
            .filter(|other| other.name() == ty.name());
        assert_eq!(same_name.count(), 1, "{ty:?}");
        let unsupported = thane_blocks::UNSUPPORTED_GGUF_TYPES;
        assert!(
            unsupported.iter().all(|(_, name)| *name != ty.name()),
            "{ty:?}"
        );
        assert!(
            unsupported
                .iter()
                .all(|(id, _)| BlockType::from_gguf(*id).is_none()),
            "{ty:?}"
        );
    }
    assert_eq!(BlockType::from_gguf(12), Some(BlockType::Q4K));
    assert_eq!(BlockType::from_gguf(99), None);
}

#[test]
fn a_partial_block_has_no_length() {
    assert_eq!(BlockType::Q4K.byte_len(512), Some(288));
    assert_eq!(BlockType::Q4K.byte_len(500), None);
    assert_eq!(BlockType::F32.byte_len(usize::MAX), None);
}

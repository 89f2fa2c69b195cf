//! Stored numbers that are not finite, or not in the element type of the program.

use thane_blocks::BlockType;
use thane_mil::data::Bytes;
use thane_mil::types::DType;
use thane_models::checkpoint::{Tensor, TensorType};
use thane_models::{ModelError, StoredWeight, check_numbers};

fn weight(ty: TensorType, shape: &[usize], bytes: Vec<u8>) -> StoredWeight {
    let tensor = Tensor {
        name: "w".to_owned(),
        ty,
        shape: shape.to_vec(),
        bytes: Bytes::new(bytes),
        scaled: None,
    };
    StoredWeight {
        tensor,
        divisor: 1.0,
        float: DType::Fp32,
    }
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn faults(weight: StoredWeight) -> Option<String> {
    match check_numbers(&[weight]) {
        Err(ModelError::Numbers { faults, .. }) => Some(faults.join("\n")),
        other => other.err().map(|e| panic!("{e}")),
    }
}

#[test]
fn the_first_number_that_is_not_finite_is_named() {
    // The number is after the first piece that is read.
    let (rows, columns) = (700, 501);
    let values = |odd: f32| {
        (0..rows * columns).map(move |i| if i == 300_611 { odd } else { (i as f32).sin() })
    };
    for (odd, expected) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let found = faults(weight(
            TensorType::F32,
            &[rows, columns],
            floats(values(odd)),
        ))
        .unwrap();
        assert_eq!(
            found,
            format!("`w` is {expected} at [600, 11], which is not finite")
        );
    }
    assert_eq!(
        faults(weight(
            TensorType::F32,
            &[rows, columns],
            floats(values(f32::MAX))
        )),
        None
    );
}

#[test]
fn what_fp16_cannot_hold_is_named() {
    let of = |value: f32, divisor: f32| {
        let weight = weight(
            TensorType::F32,
            &[2, 3],
            floats([0.0, 1.0, 2.0, 3.0, value, 5.0].into_iter()),
        );
        faults(StoredWeight {
            divisor,
            float: DType::Fp16,
            ..weight
        })
    };
    assert_eq!(
        of(1e6, 1.0).unwrap(),
        "`w` is 1e6 at [1, 1], which overflows fp16 (at most 65504)"
    );
    assert_eq!(
        of(-2e6, 16.0).unwrap(),
        "`w` is -2e6 at [1, 1], which overflows fp16 even divided by 16"
    );
    assert_eq!((of(1e6, 16.0), of(65_519.0, 1.0)), (None, None));
    assert!(of(65_520.0, 1.0).is_some());
}

#[test]
fn halves_and_their_scales_are_read_by_type() {
    let half = |bits: u16| bits.to_le_bytes();
    let stored = [half(0x3c00), half(0x7bff), half(0x7c00)].concat();
    assert!(
        faults(weight(TensorType::F16, &[3], stored))
            .unwrap()
            .contains("is inf at [2]")
    );
    let stored = [half(0x7f7f), half(0x7fc0)].concat();
    assert!(
        faults(weight(TensorType::BF16, &[2], stored))
            .unwrap()
            .contains("is NaN at [1]")
    );
    // A block whose scale is finite, then a block whose scale is infinite.
    let block = |scale: u16| [&half(scale)[..], &[0x99; 16]].concat();
    let found = faults(weight(
        TensorType::Block(BlockType::Q4_0),
        &[2, 32],
        [block(0x3c00), block(0x7c00)].concat(),
    ))
    .unwrap();
    assert!(found.contains("`w` is inf at [1, 0]"), "{found}");
    // The upper bound of the first block overflows fp16 but its numbers do not; numbers of the
    // last block do.
    let blocks = [
        block(0x7bff),
        block(0x3c00),
        [&half(0x7bff)[..], &[0xff; 16]].concat(),
    ]
    .concat();
    let weight = StoredWeight {
        float: DType::Fp16,
        ..weight(TensorType::Block(BlockType::Q4_0), &[3, 32], blocks)
    };
    assert_eq!(
        faults(weight).unwrap(),
        "`w` is 4.58528e5 at [2, 0], which overflows fp16 (at most 65504)"
    );
}

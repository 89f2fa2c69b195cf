//! The weight file of a package.

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::package::BlobPlan;
use thane_mil::types::{DType, TensorType};

/// Expected bytes from `_BlobStorageWriter` of coremltools 9: ten fp32, five fp16, five uint3.
#[test]
fn the_file_equals_that_of_coremltools() {
    let floats: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let Literal::Tensor(ty, data) = Literal::f32s(&floats) else {
        unreachable!()
    };
    let mut plan = BlobPlan::default();
    assert_eq!(plan.place(&ty, &data), 64);
    let halves = Data::owned(
        [0u16, 1, 2, 3, 4]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
    );
    assert_eq!(
        plan.place(&TensorType::new(DType::Fp16, [5usize]), &halves),
        192
    );
    let codes = TensorType::new(DType::Uint3, [5usize]);
    assert_eq!(plan.place(&codes, &Data::owned(vec![0x88, 0x46])), 320);
    assert_eq!(
        plan.place(&codes, &Data::owned(vec![0x88, 0x46])),
        320,
        "equal constants are stored once"
    );
    let mut file = Vec::new();
    plan.write(&mut file).unwrap();
    assert_eq!(file.len(), 386);
    assert_eq!(file[..8], [3, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(
        file[64..104],
        *b"\xef\xbe\xad\xde\x02\0\0\0\x28\0\0\0\0\0\0\0\x80\0\0\0\0\0\0\0\0\
           \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    );
    assert_eq!(
        file[320..352],
        *b"\xef\xbe\xad\xde\x0c\0\0\0\x02\0\0\0\0\0\0\0\x80\x01\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
    );
    assert_eq!(file[384..], [0x88, 0x46]);
}

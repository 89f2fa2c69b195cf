//! Literals and their numbers.

use thane_mil::literal::Literal;

#[test]
fn numbers_round_trip() {
    assert_eq!(Literal::i32s(&[3, -7]).to_ints(), Some(vec![3, -7]));
    assert_eq!(
        Literal::f32s(&[0.5, -7.25]).to_floats(),
        Some(vec![0.5, -7.25])
    );
    assert_eq!(Literal::bools(&[true, false]).to_ints(), Some(vec![1, 0]));
    assert_eq!(Literal::f32(1.5).to_ints(), None);
}

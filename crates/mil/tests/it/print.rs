//! Constants as text.

use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::Program;
use thane_mil::text::{Blobs, print};
use thane_mil::types::{DType, TensorType};

/// The elements of a constant in the text of a program.
fn elements(dtype: DType, n: usize, bytes: Vec<u8>) -> String {
    let mut f = FunctionBuilder::new("main", Opset::CoreMl8);
    let literal = Literal::Tensor(TensorType::new(dtype, [n]), Data::owned(bytes));
    let c = f.constant("c", literal).unwrap();
    let program = Program::new(vec![f.finish(&[("c", c)])]);
    let text = print(&program, &mut Blobs::default());
    let (_, value) = text.split_once("([").unwrap_or_else(|| panic!("{text}"));
    value.split_once("])").unwrap().0.to_owned()
}

#[test]
fn floats_print_as_c_does() {
    // Made with printf("%a") of glibc 2.36.
    for (v, text) in [
        (0.5, "0x1p-1"),
        (-1e4, "-0x1.388p+13"),
        (0.1, "0x1.999999999999ap-4"),
        (f64::from(0.1f32), "0x1.99999ap-4"),
        (3.0, "0x1.8p+1"),
        (-0.0, "-0x0p+0"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(elements(DType::Fp64, 1, v.to_le_bytes().to_vec()), text);
    }
    let least = 5e-324f64.to_le_bytes().to_vec();
    assert_eq!(elements(DType::Fp64, 1, least), "0x1p-1074");
}

#[test]
fn small_elements_are_unpacked_from_the_low_bits() {
    assert_eq!(elements(DType::Int4, 2, vec![0xf7]), "7, -1");
    assert_eq!(elements(DType::Uint3, 3, vec![0b1101_0001, 0b1]), "1, 2, 7");
}

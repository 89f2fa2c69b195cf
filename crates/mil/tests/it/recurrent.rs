//! Types of recurrent ops.

use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::Arg;
use thane_mil::types::{DType, Dim, TensorType, Type};

/// Sequence length and batch may be known only at run time; the results have the same symbols
/// as the input.
#[test]
fn length_and_batch_may_be_symbols() {
    let mut b = FunctionBuilder::new("main", Opset::CoreMl8);
    let (seq, batch) = (b.symbol(), b.symbol());
    let x = b.input(
        "x",
        TensorType::new(DType::Fp32, [seq, batch, Dim::Known(2)]),
    );
    let h = b.input("h", TensorType::new(DType::Fp32, [batch, Dim::Known(1)]));
    let matrix = |n: usize, m: usize| {
        let bytes = (0..n * m).flat_map(|i| (i as f32).to_le_bytes()).collect();
        Arg::Literal(Literal::Tensor(
            TensorType::new(DType::Fp32, [n, m]),
            Data::owned(bytes),
        ))
    };
    for (keeps, steps) in [(true, seq), (false, Dim::Known(1))] {
        let args = [
            ("x", Arg::Value(x)),
            ("initial_h", Arg::Value(h)),
            ("weight_ih", matrix(3, 2)),
            ("weight_hh", matrix(3, 1)),
            ("output_sequence", Arg::Literal(Literal::bool(keeps))),
        ];
        let results = b.op_results("gru", "y", args).unwrap();
        let ty = |shape: &[Dim]| Type::Tensor(TensorType::new(DType::Fp32, shape.iter().copied()));
        let found: Vec<Type> = results
            .iter()
            .map(|r| b.function().value(*r).ty.clone())
            .collect();
        assert_eq!(
            found,
            [
                ty(&[steps, batch, Dim::Known(1)]),
                ty(&[batch, Dim::Known(1)])
            ]
        );
    }
}

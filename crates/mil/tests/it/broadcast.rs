//! Shapes of ops on two operands.

use thane_mil::opset::{ArgType, Infer, Known, TypeError, find};
use thane_mil::types::{DType, Dim, Symbol, TensorType, Type};

/// The shape of a sum; new symbols are numbered from 20 on.
fn sum(x: &[Dim], y: &[Dim]) -> Result<Vec<Dim>, TypeError> {
    let ty = |shape: &[Dim]| Type::Tensor(TensorType::new(DType::Fp32, shape.iter().copied()));
    let (x, y) = (ty(x), ty(y));
    let args = [&x, &y].map(|ty| Some(ArgType::One(ty, Known::No)));
    let mut next = 20;
    let results = Infer::new(find("add").unwrap(), &args, &mut next).run()?;
    Ok(results[0].tensor().unwrap().shape.to_vec())
}

/// Either of two unknown sizes may be 1, so the result has a size of its own.
#[test]
fn two_symbols_broadcast_to_a_new_one() {
    let [a, b] = [7, 8].map(|s| Dim::Symbol(Symbol(s)));
    assert_eq!(sum(&[a, b], &[b, b]), Ok(vec![Dim::Symbol(Symbol(20)), b]));
    assert_eq!(
        sum(&[a, a, a], &[Dim::Known(1), Dim::Known(5)]),
        Ok(vec![a, a, Dim::Known(5)])
    );
}

#[test]
fn shapes_broadcast_as_numpy_does() {
    let k = |s: &[usize]| s.iter().map(|&n| Dim::Known(n)).collect::<Vec<_>>();
    assert_eq!(sum(&k(&[3, 1, 5]), &k(&[4, 5])), Ok(k(&[3, 4, 5])));
    assert_eq!(sum(&k(&[]), &k(&[2])), Ok(k(&[2])));
    assert!(sum(&k(&[3, 5]), &k(&[4, 5])).is_err());
    let s = Dim::Symbol(Symbol(7));
    assert_eq!(
        sum(&[s, Dim::Known(5)], &k(&[1, 5])),
        Ok(vec![s, Dim::Known(5)])
    );
}

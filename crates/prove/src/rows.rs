//! Rows of one form that are longer than those of the other.

use std::borrow::Cow;

use thane_mil::program::Function;
use thane_mil::types::{DType, TensorType};

/// The shape of an input, output or state of a function, where it is known.
fn declared(f: &Function, name: &str) -> Option<(DType, Vec<usize>)> {
    let body = f.body();
    let value = body
        .inputs
        .iter()
        .chain(&body.outputs)
        .find(|v| f.value(**v).name == name)?;
    let ty: &TensorType = f.value(*value).ty.tensor_or_state()?;
    Some((ty.dtype, ty.known_shape()?))
}

/// An input in the rows that a function takes; what is behind the end of the given ones is NaN, or
/// no number to go by.
pub fn filled<'a>(
    f: &Function,
    name: &str,
    shape: &'a [usize],
    bytes: &'a [u8],
) -> (Cow<'a, [usize]>, Cow<'a, [u8]>) {
    let as_given = (Cow::Borrowed(shape), Cow::Borrowed(bytes));
    let Some((dtype, due)) = declared(f, name).filter(|(_, due)| is_longer(due, shape)) else {
        return as_given;
    };
    let (old, new) = (shape[shape.len() - 1], due[due.len() - 1]);
    let width = dtype.bits() / 8;
    // 0xff in each byte: NaN of any width, -1 of integers.
    let filler = if dtype == DType::Bool { 1 } else { 0xff };
    let mut wide = Vec::with_capacity(due.iter().product::<usize>() * width);
    for row in bytes.chunks_exact((old * width).max(1)) {
        wide.extend_from_slice(row);
        wide.extend(std::iter::repeat_n(filler, (new - old) * width));
    }
    (Cow::Owned(due), Cow::Owned(wide))
}

/// The numbers of a result of this shape as far as the rows of the first form go.
pub fn cut(first: &Function, name: &str, shape: &[usize], numbers: Vec<f64>) -> Vec<f64> {
    let Some((_, due)) = declared(first, name).filter(|(_, due)| is_longer(shape, due)) else {
        return numbers;
    };
    let (old, new) = (due[due.len() - 1], shape[shape.len() - 1]);
    numbers
        .chunks_exact(new)
        .flat_map(|row| row[..old].iter().copied())
        .collect()
}

/// Whether all but the last axis are the same, and that is longer.
fn is_longer(a: &[usize], b: &[usize]) -> bool {
    let (Some((x, a)), Some((y, b))) = (a.split_last(), b.split_last()) else {
        return false;
    };
    a == b && x > y && *y > 0
}

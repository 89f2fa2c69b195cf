//! Cuts of the constants that a compressed weight is computed from.

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::types::{DType, TensorType};

use super::NO_BORDER;
use crate::weights::{Constant, move_bits};

/// A shape as the constant that older opsets store it in.
pub fn shape_literal(shape: &[usize]) -> Literal {
    let lengths = shape
        .iter()
        .flat_map(|n| u32::try_from(*n).unwrap_or(u32::MAX).to_le_bytes());
    Literal::Tensor(
        TensorType::new(DType::Uint32, [shape.len()]),
        Data::owned(lengths.collect()),
    )
}

/// The type of codes of so many bits.
pub fn code_type(n_bits: u32) -> Option<DType> {
    [
        DType::Uint1,
        DType::Uint2,
        DType::Uint4,
        DType::Uint6,
        DType::Uint8,
    ]
    .into_iter()
    .find(|t| t.bits() == n_bits as usize)
}

/// The bytes of packed codes as a vector.
pub fn bytes(codes: Constant) -> Constant {
    Constant {
        dtype: DType::Uint8,
        shape: vec![codes.data.byte_len()],
        data: codes.data,
    }
}

/// The rows of a part that belong to `len` of `n` elements of an axis.
pub fn rows_of(
    part: &Constant,
    axis: usize,
    n: usize,
    begin: usize,
    len: usize,
) -> Result<Constant, &'static str> {
    let block = n / part.shape[axis].max(1);
    match part.shape[axis] {
        1 => Ok(part.clone()),
        _ if begin.is_multiple_of(block) && len.is_multiple_of(block) => {
            Ok(part.slice(axis, begin / block, len / block))
        }
        _ => Err(NO_BORDER),
    }
}

/// The elements that a mask keeps within a part of a tensor.
pub fn kept(
    elements: &Constant,
    mask: &Constant,
    shape: &[usize],
    (axis, begin, len): (usize, usize, usize),
) -> Option<Constant> {
    let (bits, stored, width) = (
        mask.data.to_vec(),
        elements.data.to_vec(),
        elements.dtype.bits(),
    );
    let inner: usize = shape[axis + 1..].iter().product();
    let is_set = |i: usize| bits[i / 8] >> (i % 8) & 1 == 1;
    let n: usize = shape.iter().product();
    let set = (0..n).filter(|i| is_set(*i)).enumerate();
    let within: Vec<usize> = set
        .filter(|(_, i)| (begin..begin + len).contains(&(i / inner % shape[axis])))
        .map(|(k, _)| k)
        .collect();
    let mut out = vec![0; (within.len() * width).div_ceil(8)];
    for (to, from) in within.iter().enumerate() {
        if 8 * stored.len() < (from + 1) * width {
            return None;
        }
        move_bits(&stored, from * width, width, &mut out, to * width);
    }
    Some(Constant {
        dtype: elements.dtype,
        shape: vec![within.len()],
        data: Data::owned(out),
    })
}

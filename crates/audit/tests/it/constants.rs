//! Constants of cases, computed where they are read: a name says what they are filled with.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use thane_mil::data::{Data, Packed, Source};
use thane_mil::literal::f64_to_f16;
use thane_mil::types::{DType, TensorType};

/// A constant that is computed where it is read.
struct Pattern {
    ty: TensorType,
    number: fn(u64, usize, &TensorType) -> f32,
    seed: u64,
    /// All of it, if it is small and was read: proofs read it many times.
    kept: OnceLock<Vec<u8>>,
}

/// Bytes up to which a constant is kept once it was read.
const MOST_KEPT: usize = 16 << 20;

impl Pattern {
    fn bytes(&self, numbers: Range<usize>) -> Vec<u8> {
        let numbers = numbers.map(|at| (self.number)(self.seed, at, &self.ty));
        match self.ty.dtype {
            DType::Fp16 => numbers
                .flat_map(|n| f64_to_f16(n.into()).to_le_bytes())
                .collect(),
            DType::Fp32 => numbers.flat_map(f32::to_le_bytes).collect(),
            _ => numbers.map(|n| u8::from(n == 0.0)).collect(),
        }
    }
}

impl Source for Pattern {
    fn byte_len(&self) -> usize {
        self.ty.byte_len().unwrap()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let width = self.ty.dtype.bits() / 8;
        if self.byte_len() <= MOST_KEPT {
            let all = || self.bytes(0..self.byte_len() / width);
            out.copy_from_slice(&self.kept.get_or_init(all)[offset..][..out.len()]);
            return;
        }
        let (first, last) = (offset / width, (offset + out.len()).div_ceil(width));
        out.copy_from_slice(&self.bytes(first..last)[offset - first * width..][..out.len()]);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// Numbers from -0.1 to 0.1 in no order; sums over thousands of them stay within fp16.
fn noise(seed: u64, at: usize, _: &TensorType) -> f32 {
    let mixed = (at as u64 + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) % 2001) as f32 * 1e-4 - 0.1
}

fn causal(_: u64, at: usize, ty: &TensorType) -> f32 {
    let n = ty.known_shape().unwrap().pop().unwrap();
    if at % n > at / n % n {
        f32::NEG_INFINITY
    } else {
        0.0
    }
}

/// Codes without a pattern; bits behind the last are 0.
fn codes(seed: u64, ty: &TensorType) -> Data {
    let n_bits = ty.n_elements().unwrap() * ty.dtype.bits();
    let byte = |at: usize| {
        ((at as u64 + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
    };
    let mut bytes: Vec<u8> = (0..n_bits.div_ceil(8)).map(byte).collect();
    if let (Some(last), true) = (bytes.last_mut(), !n_bits.is_multiple_of(8)) {
        *last &= (1 << (n_bits % 8)) - 1;
    }
    Data::owned(bytes)
}

/// A mask of every third bit, the first set.
fn thirds(ty: &TensorType) -> Data {
    let n_bits = ty.n_elements().unwrap() * ty.dtype.bits();
    let bit = |i: usize| u8::from(i < n_bits && i.is_multiple_of(3));
    Data::owned(
        (0..n_bits.div_ceil(8))
            .map(|at| (0..8).map(|i| bit(8 * at + i) << i).sum())
            .collect(),
    )
}

pub fn constant(name: &str, seed: u64, ty: &TensorType) -> Option<Data> {
    let number = match name {
        "noise" => noise,
        "causal" => causal,
        "minus_inf" => |_, _, _: &TensorType| f32::NEG_INFINITY,
        "codes" => return Some(codes(seed, ty)),
        "thirds" => return Some(thirds(ty)),
        _ => return None,
    };
    Some(Data::Source(Arc::new(Pattern {
        ty: ty.clone(),
        number,
        seed,
        kept: OnceLock::new(),
    })))
}

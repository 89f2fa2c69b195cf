//! Checks that stored weights are finite in the element type of the program. The scan reads each
//! byte once, in pieces that do not stay in memory.

use thane_mil::types::DType;

use crate::checkpoint::{Tensor, TensorType};
use crate::error::ModelError;

/// Largest number of bytes that is read at once.
const PIECE: usize = 1 << 20;
/// The smallest number that rounds to infinity in fp16.
const FP16_END: f32 = 65_520.0;
/// Maximum number of tensors that an error lists.
const MAX_LISTED: usize = 8;

/// A tensor of the checkpoint that a constant of the program was made from.
#[derive(Clone, Debug)]
pub struct StoredWeight {
    /// The tensor as stored.
    pub tensor: Tensor,
    /// The smallest divisor of all constants that were made from the tensor.
    pub divisor: f32,
    /// The element type of the program: fp32 or fp16.
    pub float: DType,
}

/// Rejects numbers that are not finite or that overflow in the element type of the program. The
/// error names the first such number of each tensor. With `max_bytes`, only vectors of at most that
/// size are read.
pub fn check(weights: &[StoredWeight], max_bytes: Option<usize>) -> Result<(), ModelError> {
    let is_read = |w: &&StoredWeight| {
        max_bytes.is_none_or(|n| w.tensor.shape.len() < 2 && w.tensor.bytes.len() <= n)
    };
    let found: Vec<(String, bool)> = weights.iter().filter(is_read).filter_map(fault).collect();
    if found.is_empty() {
        return Ok(());
    }
    let overflow = found.iter().any(|(_, is_finite)| *is_finite);
    let mut faults: Vec<String> = found.into_iter().map(|(fault, _)| fault).collect();
    let n_more = faults.len().saturating_sub(MAX_LISTED);
    faults.truncate(MAX_LISTED);
    if n_more > 0 {
        faults.push(format!("... and {n_more} more tensors"));
    }
    Err(ModelError::Numbers { faults, overflow })
}

/// Describes the first number that is not accepted, and says whether that number is finite.
fn fault(weight: &StoredWeight) -> Option<(String, bool)> {
    let StoredWeight {
        tensor,
        divisor,
        float,
    } = weight;
    let end = if *float == DType::Fp16 {
        FP16_END * divisor
    } else {
        f32::INFINITY
    };
    let (at, value) = first_beyond(tensor, end)?;
    let (name, index) = (&tensor.name, index(&tensor.shape, at));
    let text = match value.is_finite() {
        true if *divisor != 1.0 => {
            format!(
                "`{name}` is {value:e} at {index:?}, which overflows fp16 even divided by {divisor}"
            )
        }
        true => format!("`{name}` is {value:e} at {index:?}, which overflows fp16 (at most 65504)"),
        false => format!("`{name}` is {value} at {index:?}, which is not finite"),
    };
    Some((text, value.is_finite()))
}

/// The indices of element `at` in row-major order.
fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = Vec::with_capacity(shape.len());
    for len in shape.iter().rev() {
        indices.push(at % len.max(&1));
        at /= len.max(&1);
    }
    indices.reverse();
    indices
}

/// The index and the value of the first element whose magnitude is not below `end`.
fn first_beyond(tensor: &Tensor, end: f32) -> Option<(usize, f32)> {
    if let Some(scaled) = &tensor.scaled {
        let ([row, column], value) = scaled.first_beyond(end)?;
        return Some((row * scaled.shape[1] + column, value));
    }
    let (ty, bytes) = (tensor.ty, &tensor.bytes);
    let block = ty.block_bytes();
    let mut piece = vec![0; (PIECE / block * block).min(bytes.len())];
    for start in (0..bytes.len()).step_by(piece.len().max(1)) {
        let piece_len = piece.len().min(bytes.len() - start);
        let piece = &mut piece[..piece_len];
        if !bytes.read(start, piece) {
            return None;
        }
        let Some(block_idx) = block_beyond(ty, piece, end) else {
            continue;
        };
        let first = (start / block + block_idx) * ty.block_len();
        let Some(numbers) = numbers(tensor, first) else {
            continue;
        };
        if let Some(i) = numbers.iter().position(|v| is_beyond(*v, end)) {
            return Some((first + i, numbers[i]));
        }
        // Only the upper bound of the block was too large: decode the remaining blocks one by one.
        if let Some(found) = one_by_one(tensor, first + ty.block_len(), end) {
            return Some(found);
        }
        return None;
    }
    None
}

/// Like [`first_beyond`], but decodes every block, beginning with the block of element `first`.
fn one_by_one(tensor: &Tensor, first: usize, end: f32) -> Option<(usize, f32)> {
    (first..tensor.element_count())
        .step_by(tensor.ty.block_len())
        .find_map(|first| {
            let numbers = numbers(tensor, first)?;
            let i = numbers.iter().position(|v| is_beyond(*v, end))?;
            Some((first + i, numbers[i]))
        })
}

fn is_beyond(value: f32, end: f32) -> bool {
    value.is_nan() || value.abs() >= end
}

/// The numbers of the block that begins with element `first`.
fn numbers(tensor: &Tensor, first: usize) -> Option<Vec<f32>> {
    let ty = tensor.ty.block_type()?;
    let start = first / ty.block_len() * ty.block_bytes();
    let block = tensor.bytes.slice(start..start + ty.block_bytes())?;
    let mut numbers = vec![0.0; ty.block_len()];
    ty.decode(block.as_slice(), &mut numbers);
    Some(numbers)
}

/// The first block that may hold a magnitude that is not below `end`.
fn block_beyond(ty: TensorType, bytes: &[u8], end: f32) -> Option<usize> {
    const MAGNITUDE: u32 = 0x7fff_ffff;
    match ty {
        TensorType::F32 => bytes
            .as_chunks()
            .0
            .iter()
            .position(|b| u32::from_le_bytes(*b) & MAGNITUDE >= end.to_bits()),
        TensorType::BF16 => {
            let wide = |b: &[u8; 2]| u32::from(u16::from_le_bytes(*b)) << 16;
            bytes
                .as_chunks()
                .0
                .iter()
                .position(|b| wide(b) & MAGNITUDE >= end.to_bits())
        }
        // Every finite fp16 number fits fp16, and a divisor only makes it smaller.
        TensorType::F16 => bytes
            .as_chunks()
            .0
            .iter()
            .position(|b| u16::from_le_bytes(*b) & 0x7fff >= 0x7c00),
        _ => {
            let ty = ty.block_type()?;
            let mut blocks = bytes.chunks_exact(ty.block_bytes());
            blocks.position(|block| is_beyond(ty.magnitude_bound(block), end))
        }
    }
}

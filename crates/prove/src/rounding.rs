//! Numbers as the modes of a walk keep them.

use thane_mil::evaluate::{Evaluate, HostTensor};

/// The least fp16 that the engine does not take for 0.
const LEAST: f32 = 6.103_515_6e-5;
/// A rounding of f32 to either side, in units of the number.
const NUDGE: f32 = 1.0 / (1 << 23) as f32;

/// In fp16 as the engine keeps it, and whether a finite number was beyond that.
pub fn halved<E: Evaluate>(backend: &E, tensor: E::Tensor) -> (E::Tensor, bool) {
    let rounded = tensor.f32s().zip(backend.rounded_to_fp16(&tensor));
    let Some((numbers, mut halves)) = rounded else {
        return (tensor, false);
    };
    let is_beyond = numbers
        .iter()
        .zip(&halves)
        .any(|(x, half)| x.is_finite() && !half.is_finite());
    for half in &mut halves {
        *half = if half.abs() < LEAST { 0.0 } else { *half };
    }
    (
        HostTensor::of_f32s(tensor.shape().to_vec(), halves),
        is_beyond,
    )
}

/// Each number a little to one side or the other, without a pattern.
pub fn nudged<T: HostTensor>(tensor: T, seed: u64) -> T {
    let Some(numbers) = tensor.f32s() else {
        return tensor;
    };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let moved = numbers.iter().map(|x| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let is_up = state >> 63 == 0;
        let moved = x * if is_up { 1.0 + NUDGE } else { 1.0 - NUDGE };
        // The smallest numbers have fewer digits.
        if moved != *x || *x == 0.0 || !x.is_finite() {
            return moved;
        }
        if is_up { x.next_up() } else { x.next_down() }
    });
    T::of_f32s(tensor.shape().to_vec(), moved.collect())
}

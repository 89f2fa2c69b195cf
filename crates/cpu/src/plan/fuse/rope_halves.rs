//! Rotary embeddings as Hugging Face writes them, with cosines and sines for every element.

use thane_kernels::rope::{Angles, rope_halves as rotate};

use super::*;
use crate::ops::broadcast_strides;

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new(
        "rope_halves",
        pattern!(add{mul(one, other), mul{turned @ concat(mul(b, #minus), a), sin}}),
        rope_halves,
    ),
    // Programs for the Neural Engine have the sign in their sines.
    Fusion::new(
        "rope_halves",
        pattern!(add{mul(one, other), mul{turned @ concat(b, a), sin}}),
        rope_halves,
    ),
];

/// `x cos + (-b, a) sin`, where `(a, b)` are the halves of the last axis of x, and cosines and
/// sines are of that length and repeated along other axes.
#[derive(Debug)]
struct RopeHalves {
    x: ValueId,
    /// Cosines and sines.
    angles: [ValueId; 2],
    /// Whether the first half of each row of sines has the sign: `x cos + (b, a) sin`.
    has_signed_sines: bool,
}

/// The halves `(a, b)` of x are those of a split or two slices.
fn rope_halves(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    let [one_of, other, sin, a, b] = found.values(["one", "other", "sin", "a", "b"])?;
    joined_last(p, found.op("turned")?)?;
    let has_signed_sines = found.bound("minus").is_none();
    if !has_signed_sines {
        (constant(p, &found, "minus")?.f32s()? == [-1.0]).then_some(())?;
    }
    let (x, parting, [n_a, n_b]) = parted(p, [a, b])?;
    found.ops.extend(parting);
    let cos = match x {
        x if x == one_of => other,
        x if x == other => one_of,
        _ => return None,
    };
    let is_row = n_a == n_b && is_float32(p, x) && [cos, sin].iter().all(|v| repeats_to(p, *v, x));
    let angles = [cos, sin];
    let rope = RopeHalves {
        x,
        angles,
        has_signed_sines,
    };
    is_row.then(|| one(found, rope))?
}

/// Whether x has the shape that it has with these angles, which are as long as its rows.
fn repeats_to(p: &Planner<'_>, angles: ValueId, x: ValueId) -> bool {
    let dims = |v: ValueId| p.f.value(v).ty.tensor().map(|t| t.shape.clone());
    let (Some(own), Some(all)) = (dims(angles), dims(x)) else {
        return false;
    };
    let Some(pad) = all.len().checked_sub(own.len()) else {
        return false;
    };
    let last = all.last().and_then(|n| n.known());
    let fits = own.iter().zip(&all[pad..]);
    last.is_some_and(|n| n > 0 && n % 2 == 0)
        && own.last() == all.last()
        && fits.fold(true, |fits, (a, n)| {
            fits && (a == n || a.known() == Some(1))
        })
}

impl Kernel for RopeHalves {
    fn facts(&self) -> Facts<'_> {
        Facts::new("rope", [self.x].into_iter().chain(self.angles))
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let shape = frame.get(self.x)?.shape.clone();
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let [cos, sin] = self.angles.map(|v| frame.get(v));
        let (cos, sin) = (cos?, sin?);
        let [Some(cos_strides), Some(sin_strides)] =
            [cos, sin].map(|angles| repeated_strides(&angles.shape, &shape))
        else {
            return Err(format!(
                "the angles {:?} and {:?} do not fit {shape:?}",
                cos.shape, sin.shape
            ));
        };
        let turned;
        let sin = match self.has_signed_sines {
            true => {
                turned = turned_sines(sin)?;
                &turned
            }
            false => sin,
        };
        let angles = |values, strides| -> Result<Angles<'_>, Fault> {
            let values = floats(values)?;
            Ok(Angles { values, strides })
        };
        let angles = [angles(cos, &cos_strides)?, angles(sin, &sin_strides)?];
        let (last, outer) = shape.split_last().ok_or("x has no axes")?;
        let x = floats(frame.get(self.x)?)?;
        rotate(frame.context, x, (outer, *last), angles, &mut out[..n]);
        Ok(vec![Tensor::fp32(shape, out)])
    }
}

/// Sines with the other sign in the first half of each row.
fn turned_sines(sines: &Tensor) -> Result<Tensor, Fault> {
    let mut values = floats(sines)?.to_vec();
    let row_len = sines.shape.last().copied().unwrap_or(1);
    for row in values.chunks_mut(row_len.max(1)) {
        let (first, _) = row.split_at_mut(row_len / 2);
        first.iter_mut().for_each(|sine| *sine = -*sine);
    }
    Ok(Tensor::fp32(sines.shape.clone(), values.into()))
}

/// The strides of rows of `own` along the outer axes of `shape`, 0 where they are repeated; none
/// where a row has another length or is not there.
fn repeated_strides(own: &[usize], shape: &[usize]) -> Option<Vec<usize>> {
    let pad = shape.len().checked_sub(own.len())?;
    let fits = own
        .iter()
        .zip(&shape[pad..])
        .all(|(a, n)| *a == *n || *a == 1);
    let is_row = own.last() == shape.last() && shape.last()?.is_multiple_of(2);
    let strides = broadcast_strides(own, shape.len());
    (fits && is_row).then(|| strides[..shape.len() - 1].to_vec())
}

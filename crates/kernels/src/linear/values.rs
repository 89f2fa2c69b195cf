//! The values of weights, in f32.

use super::tasks::run_row_parts;
use super::weight::Weight;
use crate::Context;
use crate::quant::BlockType;
use crate::quant::dequantize::dequantize;
use crate::simd::{Kernel, Simd};
use crate::threads::SharedMut;

/// The values of some rows of `weight`, as for an embedding: `out` [indices.len(), n_cols].
///
/// # Panics
/// If the weight is not well formed, an index is not below `n_rows` or `out` has another size.
pub fn dequantize_rows_gather(ctx: &Context, weight: &Weight, indices: &[usize], out: &mut [f32]) {
    let rows = weight.checked();
    assert_eq!(
        Some(out.len()),
        indices.len().checked_mul(weight.n_cols),
        "values of {} rows",
        indices.len()
    );
    if let Some(bad) = indices.iter().find(|row_idx| **row_idx >= weight.n_rows) {
        panic!("row {bad} of a weight of {} rows", weight.n_rows);
    }
    let out = SharedMut::new(out);
    run_row_parts(ctx.pool(), indices.len(), 1, |start, len| {
        for i in start..start + len {
            // SAFETY: each row belongs to one part.
            let out = unsafe { out.slice(i * weight.n_cols, weight.n_cols) };
            ctx.isa().run(Dequantize {
                ty: weight.ty,
                bytes: rows.get(indices[i]),
                out,
            });
        }
    });
}

struct Dequantize<'a> {
    ty: BlockType,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Dequantize<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        dequantize_simd(simd, self.ty, self.bytes, self.out);
    }
}

/// Dequantizes whole blocks to the same values as the scalar form: it is the scalar form, but for
/// the 16-bit types, whose conversions the compiler does not know.
#[inline(always)]
pub(super) fn dequantize_simd<S: Simd>(simd: S, ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    let (vectors, rest) = match ty {
        BlockType::F16 | BlockType::Bf16 => out.as_chunks_mut::<16>(),
        _ => (&mut [][..], out),
    };
    let (vector_bytes, rest_bytes) = bytes.split_at(vectors.len() * 32);
    for (bytes, out) in vector_bytes.as_chunks::<32>().0.iter().zip(vectors) {
        simd.store(
            if ty == BlockType::F16 {
                simd.load_f16(bytes)
            } else {
                simd.load_bf16(bytes)
            },
            out,
        );
    }
    dequantize(ty, rest_bytes, rest);
}

//! Products of one stored weight: by values, by codes, or in bf16.

#[cfg(target_arch = "x86_64")]
use super::bf16::{self, bf16_products};
use super::choose::{Path, Precision};
use super::codes::Codes;
use super::compressed;
use super::halves;
use super::operand::Operand;
use super::output::Output;
use super::q8::{self, Q8Activations, q8_scratch_len, quantize_q8};
use super::source::Source;
use super::weight::Weight;
use super::{dense, panel, parts, rows};
use crate::Context;

/// f32s of scratch that [`multiply`] needs.
pub(super) fn scratch_len(
    ctx: &Context,
    weight: &Weight,
    precision: Precision,
    n_tokens: usize,
) -> usize {
    match Operand::Stored(*weight).path(ctx.isa(), precision, n_tokens) {
        Path::F32Panels => dense::scratch_len(ctx, Source::Blocks(*weight), n_tokens),
        #[cfg(target_arch = "x86_64")]
        Path::Bf16Rows | Path::Bf16Panels => bf16::scratch_len(ctx, weight, n_tokens),
        Path::CodeRows => q8_scratch_len(n_tokens, weight.n_cols),
        Path::CodePanels | Path::CodeParts => {
            let worker_len = parts::worker_len(ctx.isa(), weight.ty, weight.n_cols);
            ctx.pool().n_threads() * worker_len + q8_scratch_len(n_tokens, weight.n_cols)
        }
        _ => 0,
    }
}

/// The product of one stored weight by itself.
///
/// Products of codes are integer products with activations quantized to 8 bits, and scales in f32.
/// A block of activations that holds an infinity or NaN makes all of its token's outputs NaN. With
/// AVX-512 the codes of more than two tokens' weights are first fitted to 8 bits, of which 256
/// columns of a row share a scale: to nearest, but for a thirty-second of a code.
///
/// # Panics
/// If the scratch is shorter than [`scratch_len`].
pub(super) fn multiply(
    ctx: &Context,
    weight: &Weight,
    precision: Precision,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    match Operand::Stored(*weight).path(ctx.isa(), precision, n_tokens) {
        Path::F32Rows => rows::linear_f32(ctx, Source::Blocks(*weight), x, n_tokens, out),
        Path::F32Panels => {
            dense::linear_f32(ctx, Source::Blocks(*weight), x, n_tokens, out, scratch);
        }
        #[cfg(target_arch = "x86_64")]
        Path::Bf16Rows | Path::Bf16Panels => {
            let simd = bf16_products(ctx, weight.ty).expect("the path is that of such a machine");
            bf16::linear(ctx, simd, weight, x, n_tokens, out, scratch);
        }
        _ => {
            let len = q8_scratch_len(n_tokens, weight.n_cols);
            let (activations, scratch) = scratch.split_at_mut(len);
            let x = quantize_q8(ctx, x, n_tokens, weight.n_cols, activations);
            multiply_codes(ctx, weight, &x, out, scratch);
        }
    }
}

/// f32s of scratch that [`multiply_unpacked`] needs.
pub(super) fn unpacked_scratch_len(ctx: &Context, weight: &Operand, n_tokens: usize) -> usize {
    match (weight.path(ctx.isa(), Precision::Exact, n_tokens), weight) {
        (Path::F32Panels, Operand::Compressed(weight)) => {
            dense::scratch_len(ctx, Source::Compressed(*weight), n_tokens)
        }
        (Path::F32Panels, Operand::Halves(weight)) => {
            dense::scratch_len(ctx, Source::Halves(*weight), n_tokens)
        }
        _ => 0,
    }
}

/// The product of one weight by itself whose values are unpacked, but that is not stored as blocks:
/// compressed, or in 16-bit floats in panels.
///
/// # Panics
/// If the scratch is shorter than [`unpacked_scratch_len`].
pub(super) fn multiply_unpacked(
    ctx: &Context,
    weight: &Operand,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    let path = weight.path(ctx.isa(), Precision::Exact, n_tokens);
    let source = match *weight {
        Operand::Compressed(weight) => Source::Compressed(weight),
        Operand::Halves(weight) => Source::Halves(weight),
        _ => return,
    };
    match source {
        _ if path == Path::F32Panels => dense::linear_f32(ctx, source, x, n_tokens, out, scratch),
        Source::Halves(weight) => halves::linear_few(ctx, weight, x, n_tokens, out),
        Source::Compressed(weight) if weight.is_ordered() => {
            compressed::linear_few(ctx, weight, x, n_tokens, out);
        }
        _ => rows::linear_f32(ctx, source, x, n_tokens, out),
    }
}

/// The product of a weight's codes with activations, as these are laid out.
fn multiply_codes(
    ctx: &Context,
    weight: &Weight,
    x: &Q8Activations,
    out: &Output,
    scratch: &mut [f32],
) {
    match x.form() {
        q8::Form::Lanes => rows::linear_q8(ctx, weight.ty, weight.rows(), x, out),
        q8::Form::Blocks => panel::linear_q8(ctx, weight.ty, weight.rows(), x, out, scratch),
        q8::Form::Tiles => {
            let to = parts::Target { out, gate: None };
            parts::multiply(ctx, &[Codes::Stored(*weight)], x, to, scratch);
        }
    }
}

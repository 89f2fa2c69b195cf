//! Products of the same activations with several weights, and what becomes of them.

use super::choose::{Path, Precision};
use super::codes::{self, joint};
use super::int8::{self, int8_scratch_len, quantize_int8};
use super::operand::{Operand, Product};
use super::parts::Gate;
use super::{packed, stored};
use crate::Context;
use crate::activation::{Unary, gated, unary_in_place};

/// What becomes of products.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    /// Nothing.
    None,
    /// Each output goes through this.
    Activated(Unary),
    /// The outputs of the only product go through `op` and are multiplied with those of another
    /// product of as many rows.
    Gated {
        /// What the outputs go through.
        op: Unary,
        /// The weight of the other product.
        up: Operand<'a>,
        /// A number for each output of the other product.
        bias: Option<&'a [f32]>,
    },
}

/// f32s of scratch that [`linear`] needs.
pub fn linear_scratch_len(
    ctx: &Context,
    precision: Precision,
    products: &[Product],
    n_tokens: usize,
    epilogue: Epilogue,
) -> usize {
    let alone = |product: &Product| one_scratch_len(ctx, precision, product.weight, n_tokens);
    let len = products.iter().map(alone).max().unwrap_or(0);
    let (Epilogue::Gated { up, .. }, Some(gate)) = (epilogue, products.first()) else {
        return len;
    };
    let more = match in_one_go(ctx, precision, gate, up, n_tokens) {
        Some(_) => ctx.pool().n_threads() * codes::gate_scratch_len(n_tokens, up.n_cols()),
        None => n_tokens * up.n_rows(),
    };
    len.max(one_scratch_len(ctx, precision, up, n_tokens)) + more
}

fn one_scratch_len(ctx: &Context, precision: Precision, weight: Operand, n_tokens: usize) -> usize {
    match (joint(precision, weight, n_tokens), weight) {
        (Some(codes), _) => codes::scratch_len(ctx, codes, n_tokens),
        (None, Operand::Stored(weight)) => stored::scratch_len(ctx, &weight, precision, n_tokens),
        (None, Operand::Panels(packed)) => packed::scratch_len(&packed, n_tokens),
        (None, Operand::Int8(int8)) => int8_scratch_len(n_tokens, int8.n_cols),
        (None, Operand::Compressed(_) | Operand::Halves(_)) => {
            stored::unpacked_scratch_len(ctx, &weight, n_tokens)
        }
        (None, Operand::Codes(_) | Operand::Tables(_)) => 0,
    }
}

/// The codes of a gated product that is computed in one go.
fn in_one_go<'a>(
    ctx: &Context,
    precision: Precision,
    gate: &Product<'a>,
    up: Operand<'a>,
    n_tokens: usize,
) -> Option<[codes::Codes<'a>; 2]> {
    let weights = [
        joint(precision, gate.weight, n_tokens)?,
        joint(precision, up, n_tokens)?,
    ];
    codes::is_gated_in_parts(ctx.isa(), weights, n_tokens).then_some(weights)
}

/// Products of `x` [n_tokens, n_cols] with several weights. Codes of all weights are multiplied
/// together, so that activations are quantized once and threads are asked once. Gives the path of
/// the first product.
///
/// # Panics
/// If a size does not fit, or the scratch is shorter than [`linear_scratch_len`].
pub fn linear<'a>(
    ctx: &Context,
    precision: Precision,
    products: &mut [Product<'a>],
    x: &[f32],
    n_tokens: usize,
    epilogue: Epilogue<'a>,
    scratch: &mut [f32],
) -> Option<Path> {
    let first = products.first()?;
    let n_cols = first.weight.n_cols();
    assert!(
        products
            .iter()
            .all(|product| product.weight.n_cols() == n_cols),
        "weights of as many columns"
    );
    assert_eq!(
        Some(x.len()),
        n_tokens.checked_mul(n_cols),
        "inputs of {n_tokens} tokens"
    );
    let op = match epilogue {
        Epilogue::None => None,
        Epilogue::Activated(op) => Some(op),
        Epilogue::Gated { op, up, bias } => {
            let gate = products.first_mut()?;
            return Some(multiply_gated(
                ctx,
                precision,
                gate,
                (op, up, bias),
                (x, n_tokens),
                scratch,
            ));
        }
    };
    Some(multiply(ctx, precision, products, x, n_tokens, op, scratch))
}

/// The products, and what `op` gives of them.
fn multiply(
    ctx: &Context,
    precision: Precision,
    products: &mut [Product],
    x: &[f32],
    n_tokens: usize,
    op: Option<Unary>,
    scratch: &mut [f32],
) -> Path {
    let is_joint = |product: &Product| joint(precision, product.weight, n_tokens).is_some();
    let is_int8 = |product: &Product| matches!(product.weight, Operand::Int8(_));
    // The others do it themselves, while outputs are in the first cache.
    for product in products.iter_mut() {
        if matches!(product.weight, Operand::Int8(_) | Operand::Panels(_)) {
            product.out.set_then(ctx, op);
        }
    }
    let mut path = products[0].weight.path(ctx.isa(), precision, n_tokens);
    if products.iter().any(is_joint) {
        let in_parts = codes::multiply(ctx, precision, products, x, n_tokens, scratch);
        if in_parts && is_joint(&products[0]) {
            path = Path::CodeParts;
        }
    }
    if products.iter().any(is_int8) {
        let n_cols = products[0].weight.n_cols();
        let x = quantize_int8(ctx, x, n_tokens, n_cols, scratch);
        for product in products.iter() {
            if let Operand::Int8(int8) = product.weight {
                int8::multiply(ctx, &int8, &x, &product.out);
            }
        }
    }
    for product in products.iter_mut() {
        let out = &product.out;
        match product.weight {
            Operand::Stored(weight) if !is_joint(product) => {
                stored::multiply(ctx, &weight, precision, x, n_tokens, out, scratch);
            }
            Operand::Compressed(_) | Operand::Halves(_) => {
                stored::multiply_unpacked(ctx, &product.weight, x, n_tokens, out, scratch);
            }
            Operand::Panels(packed) => packed::linear(ctx, &packed, x, n_tokens, out, scratch),
            _ => {}
        }
        let is_due = !matches!(product.weight, Operand::Int8(_) | Operand::Panels(_));
        if let Some(op) = op.filter(|_| is_due) {
            unary_in_place(ctx, op, product.out.values());
        }
    }
    path
}

fn multiply_gated<'a>(
    ctx: &Context,
    precision: Precision,
    gate: &mut Product<'a>,
    (op, up, bias): (Unary, Operand<'a>, Option<&'a [f32]>),
    (x, n_tokens): (&[f32], usize),
    scratch: &mut [f32],
) -> Path {
    assert_eq!(
        (gate.weight.n_rows(), gate.weight.n_cols()),
        (up.n_rows(), up.n_cols()),
        "rows and columns of both"
    );
    if let Some(weights) = in_one_go(ctx, precision, gate, up, n_tokens) {
        let gate_bias = std::mem::replace(&mut gate.out.start.bias, bias);
        assert!(
            bias.is_none_or(|bias| bias.len() == up.n_rows()),
            "one bias per row"
        );
        let through = Gate {
            op,
            bias: gate_bias,
        };
        codes::multiply_gated(ctx, weights, through, x, n_tokens, &gate.out, scratch);
        return Path::CodeParts;
    }
    let (factors, scratch) = scratch.split_at_mut(n_tokens * up.n_rows());
    let (weight, start) = (gate.weight, gate.out.start);
    let mut both = [
        Product::new(weight, n_tokens, start, gate.out.values()),
        Product::new(up, n_tokens, bias.into(), &mut *factors),
    ];
    let path = multiply(ctx, precision, &mut both, x, n_tokens, None, scratch);
    gated(ctx, op, gate.out.values(), factors);
    path
}

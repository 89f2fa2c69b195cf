//! Products of codes: those of one x together, and gated ones.

use super::{Codes, tile};
use crate::linear::choose::{self, MAX_TILED_TOKENS, Path, Precision, has_parts};
use crate::linear::operand::{Operand, Product};
use crate::linear::output::Output;
use crate::linear::panel::{self, MultiplyTask, Target};
use crate::linear::parts;
use crate::linear::q8::{self, q8_scratch_len};
use crate::linear::tables;
use crate::linear::tasks::run_row_parts;
use crate::simd::LANES;
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// The path of codes among others that do not go in parts with them.
fn path(isa: Isa, weight: Codes, n_tokens: usize) -> Path {
    Operand::from(weight).path(isa, Precision::Fast, n_tokens)
}

/// The codes of a weight that are multiplied together with those of others: packed ones, and, where
/// activations may be rounded, stored ones for many tokens.
pub(in crate::linear) fn joint(
    precision: Precision,
    weight: Operand<'_>,
    n_tokens: usize,
) -> Option<Codes<'_>> {
    let is_joint = |codes: &Codes| match codes {
        Codes::Packed(_) | Codes::Tables(_) => true,
        Codes::Stored(_) => precision == Precision::Fast && n_tokens > MAX_TILED_TOKENS,
    };
    weight.codes().filter(is_joint)
}

impl<'a> Product<'a> {
    /// The matrix, where it is packed and its panels are multiplied as they are.
    fn tiled(&self, isa: Isa, n_tokens: usize) -> Option<Codes<'a>> {
        let is_tiled = |codes: &Codes| {
            !matches!(codes, Codes::Stored(_)) && path(isa, *codes, n_tokens) == Path::CodeTiles
        };
        self.weight.codes().filter(is_tiled)
    }

    pub(super) fn target(&self, panel_idx: usize) -> Target<'_> {
        let first_row = panel_idx * LANES;
        Target {
            out: &self.out,
            first_row,
        }
    }
}

/// f32s of scratch that [`multiply`] needs for a matrix; for several, the most of theirs.
pub(in crate::linear) fn scratch_len(ctx: &Context, weight: Codes, n_tokens: usize) -> usize {
    let isa = ctx.isa();
    // In parts with others, if not by itself.
    let is_tiled = path(isa, weight, n_tokens) == Path::CodeTiles
        && (n_tokens <= MAX_TILED_TOKENS || !has_parts(isa));
    let worker_len = if is_tiled {
        0
    } else {
        parts::worker_len(isa, weight.ty(), weight.n_cols())
    };
    q8_scratch_len(n_tokens, weight.n_cols()) + ctx.pool().n_threads() * worker_len
}

/// The products of all [joint codes](joint) among some products of the same
/// activations; codes are fitted for more than eight tokens, and not those of a vocabulary. The
/// activations are quantized once, and threads divide the rows of all packed matrices among them,
/// or of one after another for many tokens. Gives whether they went in parts.
///
/// # Panics
/// If a size does not fit or the scratch is too short.
pub(in crate::linear) fn multiply(
    ctx: &Context,
    precision: Precision,
    products: &[Product],
    x: &[f32],
    n_tokens: usize,
    scratch: &mut [f32],
) -> bool {
    let isa = ctx.isa();
    let all = || {
        products
            .iter()
            .filter_map(|product| Some((product, joint(precision, product.weight, n_tokens)?)))
    };
    let Some(n_cols) = all().next().map(|(_, codes)| codes.n_cols()) else {
        return false;
    };
    assert!(
        all().all(|(_, codes)| codes.n_cols() == n_cols),
        "matrices of as many columns"
    );
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(n_tokens, n_cols));
    let paths = all().map(|(_, codes)| path(isa, codes, n_tokens));
    let in_parts = choose::in_parts(paths, n_tokens);
    let layout = if in_parts {
        q8::Form::Tiles
    } else {
        q8::Form::Blocks
    };
    let x = q8::quantize(ctx, x, n_tokens, n_cols, activations, layout);
    if in_parts {
        for (product, codes) in all() {
            let to = parts::Target {
                out: &product.out,
                gate: None,
            };
            parts::multiply(ctx, &[codes], &x, to, &mut *scratch);
        }
        return true;
    }
    let of_tiles = || {
        products
            .iter()
            .filter_map(|product| Some((product, product.tiled(isa, n_tokens)?)))
    };
    run_row_parts(
        ctx.pool(),
        of_tiles().map(|(_, codes)| codes.n_panels()).sum(),
        1,
        |start, len| {
            let mut first = 0;
            for (product, codes) in of_tiles() {
                let panels = first..first + codes.n_panels();
                for panel_idx in start.max(panels.start)..(start + len).min(panels.end) {
                    tile(isa, codes, panel_idx - first, &x, product);
                }
                first = panels.end;
            }
        },
    );
    for (product, codes) in all() {
        match codes {
            Codes::Packed(_) | Codes::Tables(_) if product.tiled(isa, n_tokens).is_some() => {}
            Codes::Packed(_) | Codes::Tables(_) => unpacked(ctx, codes, product, &x, scratch),
            Codes::Stored(weight) => {
                panel::linear_q8(ctx, weight.ty, weight.rows(), &x, &product.out, scratch)
            }
        }
    }
    false
}

/// The product of a panel as it is.
fn tile(isa: Isa, codes: Codes, panel_idx: usize, x: &q8::Q8Activations, product: &Product) {
    let target = product.target(panel_idx);
    match codes {
        Codes::Packed(packed) => isa.run(tile::PanelTask {
            ty: packed.ty,
            panel: packed.panel(panel_idx),
            x,
            target,
        }),
        Codes::Tables(weight) => isa.run(tables::TileTask {
            weight,
            panel_idx,
            x,
            target,
        }),
        Codes::Stored(_) => {}
    }
}

/// Panels are unpacked first.
fn unpacked(
    ctx: &Context,
    codes: Codes,
    product: &Product,
    x: &q8::Q8Activations,
    scratch: &mut [f32],
) {
    let worker_len = panel::scratch_len(codes.n_cols());
    let scratch = SharedMut::new(scratch);
    ctx.pool()
        .run_indexed(codes.n_panels(), |worker_idx, panel_idx| {
            // SAFETY: no two tasks run at once with the same worker index.
            let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
            let panel = codes.fill(ctx, panel_idx * LANES, x.n_steps(), scratch);
            ctx.isa().run(MultiplyTask {
                ty: codes.ty(),
                panel,
                x,
                target: product.target(panel_idx),
            });
        });
}

/// Whether a gated product goes in parts in one go: else it is two products.
pub(in crate::linear) fn is_gated_in_parts(
    isa: Isa,
    [gate, up]: [Codes; 2],
    n_tokens: usize,
) -> bool {
    let paths = [gate, up].map(|codes| path(isa, codes, n_tokens));
    gate.ty() == up.ty() && choose::in_parts(paths.into_iter(), n_tokens)
}

/// f32s of scratch that [`multiply_gated`] needs for each thread beside that of a product.
pub(in crate::linear) fn gate_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    parts::gate_scratch_len(n_tokens, n_cols)
}

/// `op(x gate^T) * (x up^T)` in one go, where it [goes in parts](is_gated_in_parts); `out` has the
/// bias of `up`.
pub(in crate::linear) fn multiply_gated(
    ctx: &Context,
    weights: [Codes; 2],
    gate: parts::Gate,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    let [n_rows, n_cols] = [weights[1].n_rows(), weights[1].n_cols()];
    assert!(
        gate.bias.is_none_or(|bias| bias.len() == n_rows),
        "one bias per row"
    );
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(n_tokens, n_cols));
    let x = q8::quantize(ctx, x, n_tokens, n_cols, activations, q8::Form::Tiles);
    let to = parts::Target {
        out,
        gate: Some(gate),
    };
    parts::multiply(ctx, &weights, &x, to, scratch);
}

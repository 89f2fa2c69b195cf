//! Computes attention over a long sequence in tiles of queries.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 2, 1536, 8]> q, tensor<fp16, [1, 2, 1536, 8]> k, tensor<fp16, [1, 2, 1536, 8]> v) {
//!     tensor<fp16, [1, 2, 1536, 8]> y = scaled_dot_product_attention(query = q, key = k, value = v);
//! } -> (y);
//! ```
//!
//! becomes three attentions of 512 queries each, and a `concat`. Written out as a `matmul`,
//! elementwise ops, a `softmax` and another `matmul`, each of them is done for each tile, with
//! masks cut to its rows.

use std::collections::HashMap;

use thane_mil::edit::New;
use thane_mil::program::{Op, OpId, ValueId};

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, ints};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "tile_attention",
    rules: &["ANE128", "ANE129", "ANE130"],
    what: "attention in tiles of queries",
    numbers: Numbers::Exact,
    run,
};

/// Rows of a tile (the rules and their sources), and most tiles.
const ROWS: usize = 512;
const MAX_TILES: usize = 64;

/// Ops that may stand between the scores and the product with the values: each row by itself.
const BETWEEN: &[&str] = &[
    "mul", "add", "sub", "real_div", "select", "cast", "tanh", "softmax",
];

fn run(view: &View<'_>, id: OpId) -> Answer {
    match view.op(id).def.name {
        "scaled_dot_product_attention" => fused(view, id),
        "matmul" => written_out(view, id),
        _ => Err("its scores are not made by matmul or scaled_dot_product_attention"),
    }
}

fn tiles(n_rows: usize) -> Vec<(usize, usize)> {
    let len = ROWS.max(n_rows.div_ceil(MAX_TILES));
    (0..n_rows)
        .step_by(len)
        .map(|at| (at, len.min(n_rows - at)))
        .collect()
}

fn fused(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let (query, _, shape) = operand(view, id, "query")?;
    let axis = shape
        .len()
        .checked_sub(2)
        .ok_or("its queries are a vector")?;
    let mask = op
        .value_arg("attn_mask")
        .map(|m| view.known_shape(m).map(|s| (m, s)));
    let mask = mask
        .map(|m| m.ok_or("the shape of its mask is not fixed"))
        .transpose()?;
    let rank = result_shape(view, id)?.len();
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut parts = Vec::new();
    for (begin, len) in tiles(shape[axis]) {
        let mut others = vec![(
            "query",
            new.slice_axis(New::Value(query), &shape, axis, begin, len),
        )];
        if let Some((mask, mask_shape)) = &mask {
            let tile = rows(&mut new, *mask, mask_shape, shape[axis], (begin, len));
            others.push(("attn_mask", tile));
        }
        parts.push(new.again(op, &others));
    }
    let y = new.concat(parts, rank - 2);
    new.instead(y)
}

/// The rows of a tile of what is broadcast over scores of `n_rows`.
fn rows(
    new: &mut Rewrite<'_>,
    value: ValueId,
    shape: &[usize],
    n_rows: usize,
    (begin, len): (usize, usize),
) -> New {
    match shape.len().checked_sub(2) {
        Some(axis) if shape[axis] == n_rows && n_rows > 1 => {
            new.slice_axis(New::Value(value), shape, axis, begin, len)
        }
        _ => New::Value(value),
    }
}

/// The ops from the scores to the product with the values, each the only user of the one before.
fn chain(view: &View<'_>, scores: OpId) -> Result<Vec<OpId>, &'static str> {
    let mut chain = vec![scores];
    let mut softmax = false;
    // Ten: scale, softcap of three ops, mask, casts, softmax.
    while chain.len() < 12 {
        let last = *chain.last().ok_or("there is no op")?;
        let [result] = view.op(last).results[..] else {
            return Err("an op on the way has several results");
        };
        let [next] = view.users(result)[..] else {
            return Err("something else uses the scores");
        };
        if view.is_output(result) {
            return Err("the scores are an output");
        }
        chain.push(next);
        let kind = view.op(next).def.name;
        if kind == "matmul" {
            let first = view.op(next).value_arg("x") == Some(result)
                && int(view, next, "transpose_x") != Some(1);
            return if softmax && first {
                Ok(chain)
            } else {
                Err("the scores are not what the last product sums over")
            };
        }
        if !BETWEEN.contains(&kind) {
            return Err(
                "an op between the scores and the product with the values is not done row by row",
            );
        }
        if kind == "softmax" {
            let rank = result_shape(view, next)?.len() as i64;
            let axis = ints(view, next, "axis").map_or(-1, |a| a[0]);
            softmax = true;
            if axis != -1 && axis != rank - 1 {
                return Err("its softmax is not over the last axis");
            }
        }
    }
    Err("the way from the scores to the product with the values is too long")
}

fn written_out(view: &View<'_>, id: OpId) -> Answer {
    let chain = chain(view, id)?;
    let out = result_shape(view, id)?;
    let n_rows = out[out.len() - 2];
    let last = chain[chain.len() - 1];
    let axis = result_shape(view, last)?.len() - 2;
    let (query, _, query_shape) = operand(view, id, "x")?;
    let back = if int(view, id, "transpose_x") == Some(1) {
        1
    } else {
        2
    };
    let query_axis = query_shape
        .len()
        .checked_sub(back)
        .ok_or("its queries are a vector")?;
    // New ops stand before the last op of the chain, where all that they use is there.
    let mut new = Rewrite::new(view, last, FIX.name);
    let mut parts = Vec::new();
    for tile in tiles(n_rows) {
        let mut made = HashMap::new();
        let x = new.slice_axis(New::Value(query), &query_shape, query_axis, tile.0, tile.1);
        made.insert(id, new.again(view.op(id), &[("x", x)]));
        for pair in chain.windows(2) {
            let others = operands(
                view,
                &mut new,
                view.op(pair[1]),
                (pair[0], made[&pair[0]]),
                (n_rows, tile),
            )?;
            made.insert(pair[1], new.again(view.op(pair[1]), &others));
        }
        parts.push(made[&last]);
    }
    let y = new.concat(parts, axis);
    new.instead(y)
}

/// The operands of an op of the chain for a tile: what the op before made for it, and rows of what
/// is broadcast.
fn operands(
    view: &View<'_>,
    new: &mut Rewrite<'_>,
    op: &Op,
    (before, made): (OpId, New),
    (n_rows, tile): (usize, (usize, usize)),
) -> Result<Vec<(&'static str, New)>, &'static str> {
    let result = view.op(before).results[0];
    let mut others = Vec::new();
    for param in op.def.params {
        let Some(value) = op.value_arg(param.name) else {
            continue;
        };
        if value == result {
            others.push((param.name, made));
        } else if op.def.name != "matmul" && !param.constant {
            let shape = view
                .known_shape(value)
                .ok_or("the shape of a mask is not fixed")?;
            others.push((param.name, rows(new, value, &shape, n_rows, tile)));
        }
    }
    Ok(others)
}

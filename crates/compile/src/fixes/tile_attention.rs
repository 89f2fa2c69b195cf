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

use thane_mil::program::Op as MilOp;

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "tile_attention",
    rules: &["ANE128", "ANE129", "ANE130"],
    what: "attention in tiles of queries",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([matmul, scaled_dot_product_attention]()),
        "its scores are not made by matmul or scaled_dot_product_attention",
    ),
    write,
};

const ATTENTION: &str = "scaled_dot_product_attention";

/// Rows of a tile (the rules and their sources), and most tiles.
const ROWS: usize = 512;
const MAX_TILES: usize = 64;

/// Ops that may stand between the scores and the product with the values: each row by itself.
const BETWEEN: &[&str] = &[
    "mul", "add", "sub", "real_div", "select", "cast", "tanh", "softmax",
];

fn write(new: &Rewrite<'_>) -> Answer {
    // Attention in one op is a chain of that op.
    let (ops, queries) = match new.kind(new.root()) {
        ATTENTION => (vec![new.root()], "query"),
        _ => (chain(new, new.root())?, "x"),
    };
    let (first, last) = (new.root(), ops[ops.len() - 1]);
    let rows_of = |op| -> Result<(usize, usize), &'static str> {
        let shape = result_shape(new.graph, op)?;
        let axis = shape.len().checked_sub(2).ok_or("its result is a vector")?;
        Ok((axis, shape[axis]))
    };
    let ((_, n_rows), (axis, _)) = (rows_of(first)?, rows_of(last)?);
    let (query, shape) = new.operand(first, queries)?;
    let from_end = 2 - usize::from(new.flag(first, "transpose_x"));
    let query_axis = shape.len().checked_sub(from_end);
    let query_axis = query_axis.ok_or("its queries are a vector")?;
    // New ops stand before the last op of the chain, where all that they use is there.
    new.before(last);
    let mut parts = Vec::new();
    for tile in tiles(n_rows) {
        let part = query.slice_axis(&shape, query_axis, tile.begin, tile.len);
        let mut before = Before {
            value: new.graph.op(first).value_arg(queries),
            made: part,
            only: Some(queries),
        };
        for id in &ops {
            let op = new.graph.op(*id);
            before = Before {
                made: new.again(op, &operands(new, op, &before, &tile)?),
                value: op.results.first().copied(),
                only: None,
            };
        }
        parts.push(before.made);
    }
    let y = new.concat(&parts, axis);
    let [result] = new.graph.op(last).results[..] else {
        return Err("it has several results");
    };
    new.replace(result, y);
    new.remove(last);
    Ok(new.finish())
}

/// Rows of the scores that are computed together.
struct Tile {
    begin: usize,
    len: usize,
    n_rows: usize,
}

/// What the op before made of a tile.
struct Before<'w> {
    /// What it stands for.
    value: Option<ValueId>,
    made: Value<'w>,
    /// The one parameter for which it does.
    only: Option<&'static str>,
}

fn tiles(n_rows: usize) -> impl Iterator<Item = Tile> {
    let most = ROWS.max(n_rows.div_ceil(MAX_TILES));
    (0..n_rows).step_by(most).map(move |begin| Tile {
        begin,
        len: most.min(n_rows - begin),
        n_rows,
    })
}

/// The ops from the scores to the product with the values, each the only user of the one before.
fn chain(new: &Rewrite<'_>, scores: OpId) -> Result<Vec<OpId>, &'static str> {
    let graph = new.graph;
    let mut chain = vec![scores];
    let mut softmax = false;
    // Ten: scale, softcap of three ops, mask, casts, softmax.
    while chain.len() < 12 {
        let last = *chain.last().ok_or("there is no op")?;
        let [result] = graph.op(last).results[..] else {
            return Err("an op on the way has several results");
        };
        let [next] = graph.users(result)[..] else {
            return Err("something else uses the scores");
        };
        if graph.is_output(result) {
            return Err("the scores are an output");
        }
        chain.push(next);
        let kind = graph.op(next).def.name;
        if kind == "matmul" {
            let first =
                graph.op(next).value_arg("x") == Some(result) && !new.flag(next, "transpose_x");
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
            let rank = result_shape(graph, next)?.len() as i64;
            let axis = ints(graph, next, "axis").map_or(-1, |a| a[0]);
            softmax = true;
            if axis != -1 && axis != rank - 1 {
                return Err("its softmax is not over the last axis");
            }
        }
    }
    Err("the way from the scores to the product with the values is too long")
}

/// The operands of an op of the chain for a tile: what stands for the value before it, and the rows
/// of what is broadcast over scores. Other operands of products stay as they are.
fn operands<'w>(
    new: &'w Rewrite<'w>,
    op: &MilOp,
    before: &Before<'w>,
    tile: &Tile,
) -> Result<Vec<(&'static str, Value<'w>)>, &'static str> {
    let mut others = Vec::new();
    for param in op.def.params {
        let Some(own) = op.value_arg(param.name) else {
            continue;
        };
        let is_broadcast = match op.def.name {
            "matmul" => false,
            ATTENTION => param.name == "attn_mask",
            _ => !param.constant,
        };
        if Some(own) == before.value && before.only.is_none_or(|only| only == param.name) {
            others.push((param.name, before.made));
        } else if is_broadcast {
            let shape = new.graph.known_shape(own);
            let shape = shape.ok_or("the shape of a mask is not fixed")?;
            let axis = shape.len().checked_sub(2);
            let axis = axis.filter(|axis| shape[*axis] == tile.n_rows && tile.n_rows > 1);
            let rows = axis.map(|axis| new.of(own).slice_axis(&shape, axis, tile.begin, tile.len));
            others.push((param.name, rows.unwrap_or(new.of(own))));
        }
    }
    Ok(others)
}

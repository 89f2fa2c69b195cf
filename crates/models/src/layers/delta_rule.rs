//! The steps of a delta net's memory, token by token.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use crate::graph::{Graph, Layout, ValueResult};

/// What a step of the memory reads, one row for each token.
#[derive(Clone, Copy)]
pub struct Rows {
    /// [tokens, heads, 1, key elements]
    pub query: ValueId,
    /// [tokens, heads, 1, key elements]
    pub key: ValueId,
    /// [tokens, heads, 1, value elements]
    pub value: ValueId,
    /// [tokens, heads, 1, 1]
    pub decay: ValueId,
    /// [tokens, heads, 1, 1]
    pub beta: ValueId,
}

/// The memory after one token, and what the token reads.
pub fn step(g: &mut Graph, memory: ValueId, rows: Rows) -> Result<(ValueId, ValueId), BuildError> {
    let product = |g: &mut Graph, x, y| g.op("matmul", "product", [("x", x), ("y", y)]);
    let faded = g.mul(memory, rows.decay)?;
    let known = product(g, rows.key, faded)?; // [1, heads, 1, value elements]
    let new = g.sub(rows.value, known)?;
    let new = g.mul(new, rows.beta)?;
    let written = outer_product(g, rows.key, new)?; // [1, heads, key elements, value elements]
    let memory = g.add(faded, written)?;
    let output = product(g, rows.query, memory)?;
    Ok((memory, output))
}

/// The products of all elements of `x` with all of `y`, both [1, heads, 1, elements].
fn outer_product(g: &mut Graph, x: ValueId, y: ValueId) -> ValueResult {
    if g.spelling().layout == Layout::Channels {
        let yes = g.bool(true)?;
        return g.op(
            "matmul",
            "written",
            [("x", x), ("y", y), ("transpose_x", yes)],
        );
    }
    let column = g.transpose(x, &[0, 1, 3, 2])?;
    g.mul(column, y)
}

/// The memory after `n` tokens, and what each token reads, with ops of its own for each token.
pub fn unrolled(
    g: &mut Graph,
    mut memory: ValueId,
    rows: Rows,
    n: i32,
) -> Result<(ValueId, ValueId), BuildError> {
    if n == 1 {
        return step(g, memory, rows);
    }
    let mut parted = |x| g.split(x, n, 0);
    let (query, key, value) = (parted(rows.query)?, parted(rows.key)?, parted(rows.value)?);
    let (decay, beta) = (parted(rows.decay)?, parted(rows.beta)?);
    let mut outputs = Vec::new();
    for i in 0..query.len() {
        let own = Rows {
            query: query[i],
            key: key[i],
            value: value[i],
            decay: decay[i],
            beta: beta[i],
        };
        let output;
        (memory, output) = step(g, memory, own)?;
        outputs.push(output);
    }
    Ok((memory, g.join("concat", &outputs, 0)?))
}

/// The memories of sequences [1, sequences * heads, key elements, value elements] after a token
/// each, and what each token reads.
pub fn side_by_side(
    g: &mut Graph,
    memory: ValueId,
    rows: Rows,
) -> Result<(ValueId, ValueId), BuildError> {
    let shape_of = |g: &Graph, x: ValueId| [0, 1, 2, 3].map(|axis| g.len_along(x, axis) as i32);
    let given = shape_of(g, rows.value); // [sequences, heads, 1, value elements]
    let mut as_heads = |x: ValueId| {
        let [n, heads, one, size] = shape_of(g, x);
        g.reshape(x, &[1, n * heads, one, size])
    };
    let rows = Rows {
        query: as_heads(rows.query)?,
        key: as_heads(rows.key)?,
        value: as_heads(rows.value)?,
        decay: as_heads(rows.decay)?,
        beta: as_heads(rows.beta)?,
    };
    let (memory, output) = step(g, memory, rows)?;
    Ok((memory, g.reshape(output, &given)?))
}

/// The memory after all tokens, and what each token reads, by a loop over the tokens.
pub fn loop_over_tokens(
    g: &mut Graph,
    memory: ValueId,
    rows: Rows,
) -> Result<(ValueId, ValueId), BuildError> {
    let shape = g.op("shape", "shape", [("x", rows.value)])?;
    let (zero, one, axis) = (g.ints(&[0])?, g.ints(&[1])?, g.int(0)?);
    let args = [("x", shape), ("begin", zero), ("end", one)];
    let n_tokens = g.op("slice_by_index", "n_tokens", args)?;
    let mode = g.string("update")?;
    // A nested block uses constants of the function, and has none of its own.
    g.ints(&[0, 1, 3, 2])?;
    // The rows of the values are replaced by the outputs.
    let initial = [zero, memory, rows.value];
    let more = |g: &mut Graph, vars: &[ValueId]| {
        let more = g.op("less", "more", [("x", vars[0]), ("y", n_tokens)])?;
        Ok(vec![g.squeeze(more, &[0])?])
    };
    let body = |g: &mut Graph, vars: &[ValueId]| {
        let row = |g: &mut Graph, x: ValueId| {
            let args = [("x", x), ("indices", vars[0]), ("axis", axis)];
            g.op("gather", "row", args)
        };
        let own = Rows {
            query: row(g, rows.query)?,
            key: row(g, rows.key)?,
            value: row(g, rows.value)?,
            decay: row(g, rows.decay)?,
            beta: row(g, rows.beta)?,
        };
        let (memory, output) = step(g, vars[1], own)?;
        let args = [
            ("data", vars[2]),
            ("indices", vars[0]),
            ("updates", output),
            ("axis", axis),
            ("mode", mode),
        ];
        let outputs = g.op("scatter", "outputs", args)?;
        Ok(vec![g.add(vars[0], one)?, memory, outputs])
    };
    let results = g.while_loop("tokens", &initial, more, body)?;
    Ok((results[1], results[2]))
}

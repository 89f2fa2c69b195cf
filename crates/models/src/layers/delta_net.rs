//! The gated delta net: attention whose memory has one size, whatever the length of the text.
//!
//! Each value head has a memory S of key elements by value elements. A token lets S fade, reads
//! what S holds for its key, and writes the difference to its value:
//!
//! ```text
//! S = decay * S;  S = S + key^T (beta * (value - key S));  output = query S
//! ```
//!
//! A memory holds all tokens so far together, so that a caller cannot go back to an earlier token:
//! it begins at position 0 again, where a decay of 0 empties the memory.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use super::norm::RmsNorm;
use super::short_conv::depthwise;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// Added to the sum of squares of a query or key before the root. Source: `l2norm` of
/// modeling_qwen3_5.py (transformers 5.24).
const SQUARES_EPSILON: f32 = 1e-6;

/// The sizes and options of a gated delta net.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    /// Elements of a token's hidden state.
    pub hidden: usize,
    /// Number of tokens that the convolution depends on: the token and those before it.
    pub taps: usize,
    /// Number of query heads, and of key heads.
    pub n_key_heads: usize,
    /// Number of value heads, and of memories.
    pub n_value_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// The norm of each head of the output.
    pub norm: RmsNorm,
    /// Whether the tensors are laid out as llama.cpp's converter writes them: the value head i
    /// belongs to the key head i modulo the number of key heads, instead of i divided by the value
    /// heads of each key head, and `A_log` holds `-exp(A_log)`.
    pub is_ggml_layout: bool,
}

/// The inputs of a layer's delta net besides the hidden state.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs {
    /// The last products before the convolution, [1, taps - 1, channels].
    conv: ValueId,
    /// The memories, [1, value heads, key elements, value elements].
    memory: ValueId,
    /// 0 if the call begins at position 0, 1 if not; [1] fp32.
    continues: ValueId,
    /// 0 for a token at position 0, 1 for others; [tokens] fp32.
    follows: ValueId,
    /// Element type of the states.
    dtype: DType,
    /// Whether the call has exactly one token.
    one_token: bool,
    /// Whether only the output of the last token is needed.
    pub last: bool,
}

/// What a step of the memory reads, one row for each token.
#[derive(Clone, Copy)]
struct Rows {
    query: ValueId, // [tokens, heads, 1, key elements]
    key: ValueId,   // [tokens, heads, 1, key elements]
    value: ValueId, // [tokens, heads, 1, value elements]
    decay: ValueId, // [tokens, heads, 1, 1]
    beta: ValueId,  // [tokens, heads, 1, 1]
}

impl DeltaNet {
    /// Elements of a token that the convolution mixes: queries, keys and values.
    fn channels(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim
    }

    /// Elements of the states of a layer.
    pub fn state_elements(&self) -> usize {
        (self.taps - 1) * self.channels() + self.n_value_heads * self.key_dim * self.value_dim
    }

    /// Declares the states of layer `layer`. `positions` are those of the tokens, [tokens] fp32,
    /// and `position` is the first of them, int32 [1].
    pub fn inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        (position, positions): (ValueId, ValueId),
        (one_token, last): (bool, bool),
        dtype: DType,
    ) -> Result<DeltaInputs, BuildError> {
        let state = |g: &mut Graph, name: &str, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape.iter().copied());
            g.input(&format!("recurrent_{name}_{layer}"), Type::State(ty))
        };
        let conv = state(g, "conv", &[1, self.taps - 1, self.channels()]);
        let shape = [1, self.n_value_heads, self.key_dim, self.value_dim];
        let memory = state(g, "memory", &shape);
        let (zero, start) = (g.ints(&[0])?, g.float(0.0)?);
        let continues = g.op("greater", "continues", [("x", position), ("y", zero)])?;
        let follows = g.op("greater", "follows", [("x", positions), ("y", start)])?;
        Ok(DeltaInputs {
            conv,
            memory,
            continues: g.cast(continues, DType::Fp32)?,
            follows: g.cast(follows, DType::Fp32)?,
            dtype,
            one_token,
            last,
        })
    }

    /// The delta net of `hidden` [1, tokens, hidden], with its projections.
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        hidden: ValueId,
        inputs: DeltaInputs,
    ) -> ValueResult {
        g.at_module(module);
        let project = |g: &mut Graph, name: &str, x: ValueId, rows: usize| {
            let weight = w.get(&format!("{module}.{name}"), "weight", &[rows, self.hidden]);
            g.linear(name, x, &weight, None)
        };
        let (heads, values) = (self.n_value_heads, self.n_value_heads * self.value_dim);
        let mixed = project(g, "in_proj_qkv", hidden, self.channels())?;
        let [b, a] = ["in_proj_b", "in_proj_a"].map(|name| project(g, name, hidden, heads));
        let (b, a) = (b?, a?);
        let mixed = self.convolve(g, w, module, mixed, inputs)?; // [1, tokens, channels]
        let rows = self.rows(g, w, module, [mixed, b, a], &inputs)?;
        let output = self.remember(g, rows, inputs)?; // [tokens, heads, 1, value elements]
        let (output, hidden) = if inputs.last {
            (g.last(output, 0)?, g.last(hidden, 1)?)
        } else {
            (output, hidden)
        };
        let z = project(g, "in_proj_z", hidden, values)?;
        let (heads, size) = (heads as i32, self.value_dim as i32);
        let z = g.reshape(z, &[-1, heads, 1, size])?;
        g.at_module(&format!("{module}.norm"));
        let weight = w.get(&format!("{module}.norm"), "weight", &[self.value_dim]);
        let normed = self.norm.apply_along(g, output, &weight, -1)?;
        let open = g.op("silu", "open", [("x", z)])?;
        let gated = g.mul(open, normed)?;
        let gated = g.reshape(gated, &[1, -1, values as i32])?;
        g.at_module(module);
        let weight = w.get(
            &format!("{module}.out_proj"),
            "weight",
            &[self.hidden, values],
        );
        g.linear_to_residual("out_proj", gated, &weight, None)
    }

    /// `silu(convolution of x [1, tokens, channels])`, with the products of the tokens before.
    fn convolve(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        inputs: DeltaInputs,
    ) -> ValueResult {
        let past = g.op("read_state", "past", [("input", inputs.conv)])?;
        let past = g.cast(past, DType::Fp32)?;
        let past = g.mul(past, inputs.continues)?;
        let window = g.join("concat", &[past, x], 1)?; // [1, taps - 1 + tokens, channels]
        let kept = self.last_products(g, window)?;
        let kept = g.cast(kept, inputs.dtype)?;
        let args = [("state", inputs.conv), ("value", kept)];
        g.op("coreml_update_state", "stored", args)?;
        let columns = g.transpose(window, &[0, 2, 1])?;
        let conv = format!("{module}.conv1d");
        let mixed = depthwise(g, w, &conv, columns, [self.channels(), self.taps])?;
        let active = g.op("silu", "active", [("x", mixed)])?;
        g.transpose(active, &[0, 2, 1])
    }

    /// The last rows of the window, which the next call needs.
    fn last_products(&self, g: &mut Graph, window: ValueId) -> ValueResult {
        let before = -i32::try_from(self.taps - 1).unwrap_or(i32::MAX);
        let (begin, end) = (g.ints(&[0, before, 0])?, g.ints(&[0, 0, 0])?);
        let (all_but_tokens, all) = (g.bools(&[true, false, true])?, g.bools(&[true; 3])?);
        let args = [
            ("x", window),
            ("begin", begin),
            ("end", end),
            ("begin_mask", all_but_tokens),
            ("end_mask", all),
        ];
        let kept = g.op("slice_by_index", "kept", args)?;
        // The number of rows is known, which the slice of a window of any length does not say.
        g.reshape(kept, &[1, -before, self.channels() as i32])
    }

    /// Queries, keys, values, decays and betas of all heads.
    fn rows(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        [mixed, b, a]: [ValueId; 3],
        inputs: &DeltaInputs,
    ) -> Result<Rows, BuildError> {
        // A known size allows kernels for products of equal batches.
        let n = if inputs.one_token { 1 } else { -1 };
        let (keys, values) = (
            (self.n_key_heads * self.key_dim) as i32,
            (self.n_value_heads * self.value_dim) as i32,
        );
        let parts = g.split_sizes(mixed, &[keys, keys, values], -1)?;
        let heads = self.n_value_heads as i32;
        // The queries are scaled by 1 / sqrt(key elements) too.
        let size = self.key_dim as f32;
        let query = self.normalized(g, (parts[0], n), 1.0 / size)?;
        let key = self.normalized(g, (parts[1], n), size.sqrt().recip())?;
        let value = g.reshape(parts[2], &[n, heads, 1, self.value_dim as i32])?;
        let beta = g.op("sigmoid", "beta", [("x", b)])?;
        let beta = g.reshape(beta, &[n, heads, 1, 1])?;
        let part = |name: &str| w.get(module, name, &[self.n_value_heads]);
        let (bias, log) = (g.weight(&part("dt_bias"))?, g.weight(&part("A_log"))?);
        let a = g.add(a, bias)?;
        let rate = g.op("softplus", "rate", [("x", a)])?;
        let speed = if self.is_ggml_layout {
            log
        } else {
            let speed = g.op("exp", "speed", [("x", log)])?;
            g.scale(speed, -1.0)?
        };
        let fading = g.mul(rate, speed)?; // [1, tokens, heads]
        let decay = g.op("exp", "decay", [("x", fading)])?;
        let decay = g.reshape(decay, &[n, heads, 1, 1])?;
        let follows = g.reshape(inputs.follows, &[n, 1, 1, 1])?;
        Ok(Rows {
            query,
            key,
            value,
            decay: g.mul(decay, follows)?,
            beta,
        })
    }

    /// The heads of `x` [1, tokens, heads * size] of `n` tokens, -1 for any number, each times
    /// `factor / root mean square` and repeated for the value heads that it serves: [tokens, value
    /// heads, 1, size].
    fn normalized(&self, g: &mut Graph, (x, n): (ValueId, i32), factor: f32) -> ValueResult {
        let (heads, size) = (self.n_key_heads as i32, self.key_dim as i32);
        let x = g.reshape(x, &[n, heads, 1, size])?;
        let norm = RmsNorm {
            epsilon: SQUARES_EPSILON / size as f32,
            plus_one: false,
        };
        let normed = norm.without_weight(g, x, -1)?;
        let factors = g.floats(&vec![factor; self.key_dim], &[self.key_dim])?;
        let scaled = g.mul(normed, factors)?;
        let group = (self.n_value_heads / self.n_key_heads) as i32;
        if group == 1 {
            return Ok(scaled);
        }
        if self.is_ggml_layout {
            let reps = g.ints(&[1, group, 1, 1])?;
            return g.op("tile", "repeated", [("x", scaled), ("reps", reps)]);
        }
        let reps = g.ints(&[1, 1, group, 1])?;
        let repeated = g.op("tile", "repeated", [("x", scaled), ("reps", reps)])?;
        g.reshape(repeated, &[n, heads * group, 1, size])
    }

    /// Updates the memories token by token, and returns what each token reads.
    fn remember(&self, g: &mut Graph, rows: Rows, inputs: DeltaInputs) -> ValueResult {
        let memory = g.op("read_state", "memory", [("input", inputs.memory)])?;
        let memory = g.cast(memory, DType::Fp32)?;
        let (memory, output) = if inputs.one_token {
            step(g, memory, rows)?
        } else {
            steps(g, memory, rows)?
        };
        let memory = g.cast(memory, inputs.dtype)?;
        let args = [("state", inputs.memory), ("value", memory)];
        g.op("coreml_update_state", "stored", args)?;
        Ok(output)
    }
}

/// The memory after one token, and what the token reads.
fn step(g: &mut Graph, memory: ValueId, rows: Rows) -> Result<(ValueId, ValueId), BuildError> {
    let product = |g: &mut Graph, x, y| g.op("matmul", "product", [("x", x), ("y", y)]);
    let faded = g.mul(memory, rows.decay)?;
    let known = product(g, rows.key, faded)?; // [1, heads, 1, value elements]
    let new = g.sub(rows.value, known)?;
    let new = g.mul(new, rows.beta)?;
    let column = g.transpose(rows.key, &[0, 1, 3, 2])?;
    let written = g.mul(column, new)?; // [1, heads, key elements, value elements]
    let memory = g.add(faded, written)?;
    let output = product(g, rows.query, memory)?;
    Ok((memory, output))
}

/// The memory after all tokens, and what each token reads, by a loop over the tokens.
fn steps(g: &mut Graph, memory: ValueId, rows: Rows) -> Result<(ValueId, ValueId), BuildError> {
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

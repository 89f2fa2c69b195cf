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
//!
//! In functions of fixed length the caller empties it. There the program is fp16, and hosts may
//! take subnormal numbers, those below 6.1e-5, as 0: memories are kept [`VALUE_SCALE`] times as
//! large, and the norm of the output takes the factor back. silu, sigmoid and softplus, which hosts
//! may read from inexact tables, are written with tanh and as relu(x) + log(1 + exp(-|x|)).
//! `docs/numerics.md` has who measured it, and where.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use super::activation::{half_sigmoid, half_silu, stable_softplus};
use super::delta_rule::{Rows, loop_over_tokens, side_by_side, step, unrolled};
use super::norm::RmsNorm;
use super::recent::{Memory, Recent};
use super::short_conv::depthwise;
use crate::graph::{Graph, Layout, Matrix, ValueResult};
use crate::weights::Weights;

/// Added to the sum of squares of a query or key before the root. Source: `l2norm` of
/// modeling_qwen3_5.py (transformers 5.24).
const SQUARES_EPSILON: f32 = 1e-6;

/// Factor of values, and so of memories, in functions of fixed length: a power of two.
const VALUE_SCALE: f32 = 64.0;

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
pub struct DeltaInputs<'a> {
    past: Past<'a>,
    /// Number of tokens, if all calls have the same.
    n_tokens: Option<usize>,
    /// Whether only the output of the last token is needed.
    pub last: bool,
}

/// What is remembered of the tokens before the call.
#[derive(Clone, Copy, Debug)]
enum Past<'a> {
    /// States of the layer, in the row layout.
    States(States),
    /// In functions of fixed length: the last products before the convolution, [1, 1, taps - 1,
    /// channels], and the memories, [1, value heads, key elements, value elements].
    Recent([Recent<'a>; 2]),
}

/// The states of a layer, and whether they hold something.
///
/// States of Core ML are fp16, so each has two parts along its first axis: the values, and what
/// their rounding lost. What a token reads is a sum that cancels, and a norm makes it large again:
/// with the second part logits are five times as exact (docs/numerics.md). fp32 states have one
/// part.
#[derive(Clone, Copy, Debug)]
struct States {
    /// The last products before the convolution, [parts, taps - 1, channels].
    conv: ValueId,
    /// The memories, [parts, value heads, key elements, value elements].
    memory: ValueId,
    /// 0 if the call begins at position 0, 1 if not; [1] fp32.
    continues: ValueId,
    /// 0 for a token at position 0, 1 for others; [tokens] fp32.
    follows: ValueId,
    /// Element type of the states.
    dtype: DType,
}

impl States {
    /// What a state holds, in fp32.
    fn read(&self, g: &mut Graph, state: ValueId, name: &str) -> ValueResult {
        let kept = g.op("read_state", name, [("input", state)])?;
        let kept = g.cast(kept, DType::Fp32)?;
        if self.dtype != DType::Fp16 {
            return Ok(kept);
        }
        let [rounded, lost] = g.halves(kept, 0)?;
        g.add(rounded, lost)
    }

    /// Keeps fp32 values in a state.
    fn write(&self, g: &mut Graph, state: ValueId, value: ValueId) -> Result<(), BuildError> {
        let mut kept = g.cast(value, self.dtype)?;
        if self.dtype == DType::Fp16 {
            let rounded = g.cast(kept, DType::Fp32)?;
            let lost = g.sub(value, rounded)?;
            let lost = g.cast(lost, self.dtype)?;
            kept = g.join("concat", &[kept, lost], 0)?;
        }
        g.store("stored", state, kept)?;
        Ok(())
    }
}

impl<'a> DeltaInputs<'a> {
    /// The inputs in a function of `n_tokens` tokens, of which `recent` are the parts.
    pub fn recent(recent: [Recent<'a>; 2], n_tokens: usize) -> Self {
        Self {
            past: Past::Recent(recent),
            n_tokens: Some(n_tokens),
            last: false,
        }
    }

    /// Number of tokens as a dimension of a reshape, -1 if it differs from call to call.
    fn n_rows(&self) -> i32 {
        self.n_tokens.map_or(-1, |n| n as i32)
    }
}

impl DeltaNet {
    /// Elements of a token that the convolution mixes: queries, keys and values.
    fn channels(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim
    }

    /// What a layer remembers in functions of fixed length.
    pub fn parts(&self) -> [Memory; 2] {
        let part = |name, shape| Memory { name, shape };
        let memory = [1, self.n_value_heads, self.key_dim, self.value_dim];
        [
            part("recurrent_conv", [1, 1, self.taps - 1, self.channels()]),
            part("recurrent_memory", memory),
        ]
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
    ) -> Result<DeltaInputs<'static>, BuildError> {
        let state = |g: &mut Graph, name: &str, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape.iter().copied());
            g.input(&format!("recurrent_{name}_{layer}"), Type::State(ty))
        };
        let n_parts = if dtype == DType::Fp16 { 2 } else { 1 };
        let conv = state(g, "conv", &[n_parts, self.taps - 1, self.channels()]);
        let shape = [n_parts, self.n_value_heads, self.key_dim, self.value_dim];
        let memory = state(g, "memory", &shape);
        let (zero, start) = (g.ints(&[0])?, g.float(0.0)?);
        let continues = g.op("greater", "continues", [("x", position), ("y", zero)])?;
        let follows = g.op("greater", "follows", [("x", positions), ("y", start)])?;
        let past = Past::States(States {
            conv,
            memory,
            continues: g.cast(continues, DType::Fp32)?,
            follows: g.cast(follows, DType::Fp32)?,
            dtype,
        });
        Ok(DeltaInputs {
            past,
            n_tokens: one_token.then_some(1),
            last,
        })
    }

    /// The delta net of `hidden`, with its projections, in the layout of the graph.
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        hidden: ValueId,
        inputs: DeltaInputs<'_>,
    ) -> ValueResult {
        g.at_module(module);
        let matrix = |name: &str, rows: usize| {
            w.get(&format!("{module}.{name}"), "weight", &[rows, self.hidden])
        };
        let values = self.n_value_heads * self.value_dim;
        let qkv = matrix("in_proj_qkv", self.channels());
        let mixed = g.linear("in_proj_qkv", hidden, &qkv, None)?;
        let gates = self.gates(g, w, module, hidden)?;
        let mixed = self.convolve(g, w, module, mixed, inputs)?;
        let rows = self.rows(g, w, module, (mixed, gates), &inputs)?;
        let output = self.remember(g, rows, inputs)?; // [tokens, heads, 1, value elements]
        let (output, hidden) = if inputs.last {
            (g.last(output, 0)?, g.last(hidden, 1)?)
        } else {
            (output, hidden)
        };
        let z = matrix("in_proj_z", values);
        let open = if is_fixed(g) {
            let half = Matrix {
                divisor: 2.0,
                ..Matrix::new(z, None)
            };
            let half = g.joined_product("in_proj_z", hidden, &[half])?;
            half_silu(g, half)?
        } else {
            let z = g.linear("in_proj_z", hidden, &z, None)?;
            g.op("silu", "open", [("x", z)])?
        };
        let open = as_rows(g, open)?;
        let (heads, size) = (self.n_value_heads as i32, self.value_dim as i32);
        let open = g.reshape(open, &[-1, heads, 1, size])?;
        g.at_module(&format!("{module}.norm"));
        let weight = w.get(&format!("{module}.norm"), "weight", &[self.value_dim]);
        let norm = self.norm.for_divided_stream(self.output_scale(g).recip());
        let normed = norm.apply_along(g, output, &weight, -1)?;
        let gated = g.mul(open, normed)?;
        g.at_module(module);
        let gated = from_rows(g, gated, values as i32)?;
        let weight = w.get(
            &format!("{module}.out_proj"),
            "weight",
            &[self.hidden, values],
        );
        g.linear_to_residual("out_proj", gated, &weight, None)
    }

    /// Factor of what a token reads.
    fn output_scale(&self, g: &Graph) -> f32 {
        if is_fixed(g) {
            VALUE_SCALE * (self.key_dim as f32).sqrt()
        } else {
            1.0
        }
    }

    /// Projections to betas, before the sigmoid, and to rates of fading, as rows. In functions of
    /// fixed length, the former are halved and the bias is added to the latter.
    fn gates(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        hidden: ValueId,
    ) -> Result<[ValueId; 2], BuildError> {
        let heads = self.n_value_heads;
        let matrix = |name: &str| {
            let module = format!("{module}.{name}");
            w.get(&module, "weight", &[heads, self.hidden])
        };
        let (b, a) = (matrix("in_proj_b"), matrix("in_proj_a"));
        if !is_fixed(g) {
            let b = g.linear("in_proj_b", hidden, &b, None)?;
            return Ok([b, g.linear("in_proj_a", hidden, &a, None)?]);
        }
        let half = Matrix {
            divisor: 2.0,
            ..Matrix::new(b, None)
        };
        let bias = w.get(module, "dt_bias", &[heads]);
        let parts = [half, Matrix::new(a, Some(bias))];
        let both = g.joined_product("in_proj_ba", hidden, &parts)?;
        let both = as_rows(g, both)?;
        g.halves(both, -1)
    }

    /// `silu(convolution of x)` as rows, with the products of the tokens before.
    fn convolve(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        inputs: DeltaInputs<'_>,
    ) -> ValueResult {
        let conv = format!("{module}.conv1d");
        let sizes = [self.channels(), self.taps];
        let states = match inputs.past {
            Past::States(states) => states,
            Past::Recent([recent, _]) => {
                let window = recent.window(g, x)?;
                let half = depthwise(g, w, &conv, window, (sizes, 2.0))?;
                let active = half_silu(g, half)?;
                return as_rows(g, active);
            }
        };
        let past = states.read(g, states.conv, "past")?;
        let past = g.mul(past, states.continues)?;
        let window = g.join("concat", &[past, x], 1)?; // [1, taps - 1 + tokens, channels]
        let kept = self.last_products(g, window)?;
        states.write(g, states.conv, kept)?;
        let columns = g.transpose(window, &[0, 2, 1])?;
        let mixed = depthwise(g, w, &conv, columns, (sizes, 1.0))?;
        let active = g.op("silu", "active", [("x", mixed)])?;
        g.transpose(active, &[0, 2, 1])
    }

    /// The last rows of the window, which the next call needs.
    fn last_products(&self, g: &mut Graph, window: ValueId) -> ValueResult {
        let before = -i32::try_from(self.taps - 1).unwrap_or(i32::MAX);
        let (begin, end) = (g.ints(&[0, before, 0])?, g.ints(&[0, 0, 0])?);
        let (all_but_tokens, all) = (g.bools(&[true, false, true])?, g.bools(&[true; 3])?);
        let kept = g.slice("kept", window, [begin, end], [all_but_tokens, all])?;
        // The number of rows is known, which the slice of a window of any length does not say.
        g.reshape(kept, &[1, -before, self.channels() as i32])
    }

    /// Queries, keys, values, decays and betas of all heads.
    fn rows(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        (mixed, [b, a]): (ValueId, [ValueId; 2]),
        inputs: &DeltaInputs<'_>,
    ) -> Result<Rows, BuildError> {
        // A known size allows kernels for products of equal batches.
        let n = inputs.n_rows();
        let heads = self.n_value_heads as i32;
        let (query, key, value) = self.queries_keys_values(g, mixed, n)?;
        let beta = if is_fixed(g) {
            half_sigmoid(g, b)?
        } else {
            g.op("sigmoid", "beta", [("x", b)])?
        };
        let beta = g.reshape(beta, &[n, heads, 1, 1])?;
        let fading = self.fading(g, w, module, a)?; // [.., tokens, heads]
        let decay = g.op("exp", "decay", [("x", fading)])?;
        let mut decay = g.reshape(decay, &[n, heads, 1, 1])?;
        if let Past::States(states) = inputs.past {
            let follows = g.reshape(states.follows, &[n, 1, 1, 1])?;
            decay = g.mul(decay, follows)?;
        }
        Ok(Rows {
            query,
            key,
            value,
            decay,
            beta,
        })
    }

    /// Queries, keys and values of all heads, from what the convolution gives for `n` tokens.
    fn queries_keys_values(
        &self,
        g: &mut Graph,
        mixed: ValueId,
        n: i32,
    ) -> Result<(ValueId, ValueId, ValueId), BuildError> {
        let (keys, values) = (
            (self.n_key_heads * self.key_dim) as i32,
            (self.n_value_heads * self.value_dim) as i32,
        );
        let heads = [n, self.n_value_heads as i32, 1, self.value_dim as i32];
        let size = self.key_dim as f32;
        let unit = size.sqrt().recip();
        if is_fixed(g) {
            // Queries keep the length of keys: the norm of the output undoes a factor.
            let parts = g.split_sizes(mixed, &[2 * keys, values], -1)?;
            let both = self.normalized(g, (parts[0], n), 2 * self.n_key_heads, unit)?;
            let [query, key] = g.halves(both, 1)?;
            let (query, key) = (self.repeated(g, query, n)?, self.repeated(g, key, n)?);
            let value = g.reshape(parts[1], &heads)?;
            return Ok((query, key, g.scale(value, VALUE_SCALE)?));
        }
        let parts = g.split_sizes(mixed, &[keys, keys, values], -1)?;
        // The queries are scaled by 1 / sqrt(key elements) too.
        let query = self.normalized(g, (parts[0], n), self.n_key_heads, 1.0 / size)?;
        let query = self.repeated(g, query, n)?;
        let key = self.normalized(g, (parts[1], n), self.n_key_heads, unit)?;
        let key = self.repeated(g, key, n)?;
        Ok((query, key, g.reshape(parts[2], &heads)?))
    }

    /// The logarithms of the decays, from the projections that [`Self::gates`] gives.
    fn fading(&self, g: &mut Graph, w: &Weights<'_>, module: &str, a: ValueId) -> ValueResult {
        let part = |name: &str| w.get(module, name, &[self.n_value_heads]);
        if is_fixed(g) {
            g.note_use(&part("A_log"), 1.0);
            let stored = w.floats(module, "A_log", self.n_value_heads);
            // A fault is reported by `Weights::finish`.
            let mut speed = stored.unwrap_or_else(|| vec![0.0; self.n_value_heads]);
            if !self.is_ggml_layout {
                speed.iter_mut().for_each(|log| *log = -log.exp());
            }
            let speed = g.floats(&speed, &[self.n_value_heads])?;
            let rate = stable_softplus(g, a)?;
            return g.mul(rate, speed);
        }
        let (bias, log) = (g.weight(&part("dt_bias"))?, g.weight(&part("A_log"))?);
        let a = g.add(a, bias)?;
        let rate = g.op("softplus", "rate", [("x", a)])?;
        let speed = if self.is_ggml_layout {
            log
        } else {
            let speed = g.op("exp", "speed", [("x", log)])?;
            g.scale(speed, -1.0)?
        };
        g.mul(rate, speed)
    }

    /// The `heads` heads of `x` [.., tokens, heads * size] of `n` tokens, -1 for any number, each
    /// times `factor / root mean square`: [tokens, heads, 1, size].
    fn normalized(
        &self,
        g: &mut Graph,
        (x, n): (ValueId, i32),
        heads: usize,
        factor: f32,
    ) -> ValueResult {
        let x = g.reshape(x, &[n, heads as i32, 1, self.key_dim as i32])?;
        let norm = RmsNorm {
            epsilon: SQUARES_EPSILON / self.key_dim as f32,
            plus_one: false,
        };
        let (normed, rest) = norm.up_to_factor(g, x, -1)?;
        let factors = g.floats(&vec![factor * rest; self.key_dim], &[self.key_dim])?;
        g.mul(normed, factors)
    }

    /// Key heads [tokens, key heads, 1, size] repeated for the value heads that each serves:
    /// [tokens, value heads, 1, size].
    fn repeated(&self, g: &mut Graph, x: ValueId, n: i32) -> ValueResult {
        let group = (self.n_value_heads / self.n_key_heads) as i32;
        if group == 1 {
            return Ok(x);
        }
        if self.is_ggml_layout {
            let reps = g.ints(&[1, group, 1, 1])?;
            return g.op("tile", "repeated", [("x", x), ("reps", reps)]);
        }
        let reps = g.ints(&[1, 1, group, 1])?;
        let repeated = g.op("tile", "repeated", [("x", x), ("reps", reps)])?;
        let (heads, size) = (self.n_value_heads as i32, self.key_dim as i32);
        g.reshape(repeated, &[n, heads, 1, size])
    }

    /// Updates the memories token by token, and returns what each token reads.
    fn remember(&self, g: &mut Graph, rows: Rows, inputs: DeltaInputs<'_>) -> ValueResult {
        let states = match inputs.past {
            Past::States(states) => states,
            Past::Recent([_, recent]) => {
                let (memory, output) = if recent.in_lanes {
                    side_by_side(g, recent.past, rows)?
                } else {
                    unrolled(g, recent.past, rows, inputs.n_rows())?
                };
                recent.keep(memory);
                return Ok(output);
            }
        };
        let memory = states.read(g, states.memory, "memory")?;
        let (memory, output) = if inputs.n_tokens.is_some() {
            step(g, memory, rows)?
        } else {
            loop_over_tokens(g, memory, rows)?
        };
        states.write(g, states.memory, memory)?;
        Ok(output)
    }
}

/// Whether this is a function of fixed length.
fn is_fixed(g: &Graph) -> bool {
    g.spelling().layout == Layout::Channels
}

/// `x` with the features last: [1, tokens, features] as it is, and [1, features, 1, tokens] as [1,
/// 1, tokens, features].
fn as_rows(g: &mut Graph, x: ValueId) -> ValueResult {
    if is_fixed(g) {
        g.transpose(x, &[0, 2, 3, 1])
    } else {
        Ok(x)
    }
}

/// `x` [tokens, heads, 1, size], with so many features in all, in the layout of the graph.
fn from_rows(g: &mut Graph, x: ValueId, features: i32) -> ValueResult {
    if !is_fixed(g) {
        return g.reshape(x, &[1, -1, features]);
    }
    let rows = g.reshape(x, &[1, 1, -1, features])?;
    g.transpose(rows, &[0, 3, 1, 2])
}

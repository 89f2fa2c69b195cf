//! The gated short convolution of LFM2.

use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// The sizes and options of a short convolution.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv {
    /// Elements of a token's hidden state.
    pub hidden: usize,
    /// Number of tokens that an output depends on: the token and those before it.
    pub taps: usize,
    /// Whether the projections and the convolution have biases.
    pub bias: bool,
}

/// The inputs of a layer's convolution besides the hidden state.
#[derive(Clone, Copy, Debug)]
pub struct ConvInputs {
    /// The products of all tokens so far, [1, 1, taps - 1 + context, hidden]. They are kept by
    /// position, as keys and values are, so that a caller can go back to an earlier token. The
    /// first rows stand for the tokens before the text and stay zero.
    pub state: ValueId,
    /// Element type of the state.
    pub dtype: DType,
    /// Begin of the rows to write, int32 [4].
    pub begin: ValueId,
    /// End of the rows to write, int32 [4].
    pub end: ValueId,
    /// Begin of the rows to read, int32 [4].
    pub first: ValueId,
    /// Whether only the output of the last token is needed.
    pub last: bool,
}

impl ShortConv {
    /// Declares the state of layer `layer`, for a context of so many tokens.
    pub fn state(&self, g: &mut Graph, layer: usize, context: usize, dtype: DType) -> ValueId {
        let shape = [1, 1, self.taps - 1 + context, self.hidden];
        let ty = Type::State(TensorType::new(dtype, shape));
        g.input(&format!("conv_cache_{layer}"), ty)
    }

    /// `out_proj(C * conv(B * x))`, where B, C and x are projections of `hidden` [1, tokens,
    /// hidden].
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        hidden: ValueId,
        inputs: ConvInputs,
    ) -> ValueResult {
        let size = self.hidden;
        let part = |name: &str, rows: usize| {
            let module = format!("{module}.{name}");
            let bias = self.bias.then(|| w.get(&module, "bias", &[rows]));
            (w.get(&module, "weight", &[rows, size]), bias)
        };
        g.at_module(module);
        let (weight, bias) = part("in_proj", 3 * size);
        let all = g.linear("in_proj", hidden, &weight, bias.as_ref())?;
        let parts = g.split(all, 3, -1)?;
        let (b, c, x) = (parts[0], parts[1], parts[2]);
        let product = g.mul(b, x)?;
        let window = remember(g, product, inputs)?; // [1, 1, taps - 1 + tokens, hidden]
        let window = g.squeeze(window, &[1])?;
        let columns = g.transpose(window, &[0, 2, 1])?;
        let mixed = self.convolve(g, w, module, columns)?; // [1, hidden, tokens]
        let mixed = g.transpose(mixed, &[0, 2, 1])?;
        let (mixed, c) = if inputs.last {
            (g.last(mixed, 1)?, g.last(c, 1)?)
        } else {
            (mixed, c)
        };
        let gated = g.mul(c, mixed)?;
        let (weight, bias) = part("out_proj", size);
        g.linear_to_residual("out_proj", gated, &weight, bias.as_ref())
    }

    /// The convolution with its bias, without padding.
    fn convolve(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        let module = format!("{module}.conv");
        let mixed = depthwise(g, w, &module, x, [self.hidden, self.taps])?;
        if !self.bias {
            return Ok(mixed);
        }
        let bias = g.vector(&w.get(&module, "bias", &[self.hidden]), 2)?;
        g.add(mixed, bias)
    }
}

/// The convolution of each channel of `x` [1, channels, tokens] by itself, without padding.
pub fn depthwise(
    g: &mut Graph,
    w: &Weights<'_>,
    module: &str,
    x: ValueId,
    [channels, taps]: [usize; 2],
) -> ValueResult {
    let shape = [channels, 1, taps];
    // GGUF leaves out the dimension of 1.
    let flat = w.shape_of(module, "weight").is_some_and(|s| s.len() == 2);
    let weight = if flat {
        let mut weight = w.get(module, "weight", &[channels, taps]);
        weight.shape = shape.to_vec();
        weight
    } else {
        w.get(module, "weight", &shape)
    };
    let weight = g.weight(&weight)?;
    let (ones, zeros) = (g.ints(&[1])?, g.ints(&[0, 0])?);
    let groups = g.int(channels as i32)?;
    let valid = g.string("valid")?;
    let args = [
        ("x", x),
        ("weight", weight),
        ("strides", ones),
        ("pad_type", valid),
        ("pad", zeros),
        ("dilations", ones),
        ("groups", groups),
    ];
    g.op("conv", "conv", args)
}

/// Writes the products of the call's tokens [1, tokens, hidden] to the state, and returns them with
/// those of the tokens before.
fn remember(g: &mut Graph, product: ValueId, inputs: ConvInputs) -> ValueResult {
    let update = g.cast(product, inputs.dtype)?;
    let update = g.expand_dims(update, &[1])?;
    let but_tokens = g.bools(&[true, true, false, true])?;
    let old = g.op("read_state", "past", [("input", inputs.state)])?;
    let args = [
        ("x", old),
        ("update", update),
        ("begin", inputs.begin),
        ("end", inputs.end),
        ("begin_mask", but_tokens),
        ("end_mask", but_tokens),
    ];
    let updated = g.op("slice_update", "updated", args)?;
    let stored = g.op(
        "coreml_update_state",
        "stored",
        [("state", inputs.state), ("value", updated)],
    )?;
    let args = [
        ("x", stored),
        ("begin", inputs.first),
        ("end", inputs.end),
        ("begin_mask", but_tokens),
        ("end_mask", but_tokens),
    ];
    let window = g.op("slice_by_index", "window", args)?;
    g.cast(window, DType::Fp32)
}

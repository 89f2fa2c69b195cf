//! The gated short convolution of LFM2.

use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use super::recent::{Memory, Recent};
use crate::graph::{Graph, Layout, ValueResult};
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
pub struct ConvInputs<'a> {
    /// The tokens before the call.
    pub past: ConvPast<'a>,
    /// Whether only the output of the last token is needed.
    pub last: bool,
}

/// The products of the tokens before the call.
#[derive(Clone, Copy, Debug)]
pub enum ConvPast<'a> {
    /// Those of all tokens so far, in the row layout.
    All(ByPosition),
    /// Those of the last tokens, in functions of fixed length; `None` if an output depends on its
    /// own token only.
    Recent(Option<Recent<'a>>),
}

/// Products that are kept by position, as keys and values are, so that a caller can go back to an
/// earlier token.
#[derive(Clone, Copy, Debug)]
pub struct ByPosition {
    /// [1, 1, taps - 1 + context, hidden]. The first rows stand for the tokens before the text and
    /// stay zero.
    pub state: ValueId,
    /// Element type of the state.
    pub dtype: DType,
    /// Begin of the rows to write, int32 [4].
    pub begin: ValueId,
    /// End of the rows to write, int32 [4].
    pub end: ValueId,
    /// Begin of the rows to read, int32 [4].
    pub first: ValueId,
}

impl ShortConv {
    /// Declares the state of layer `layer`, for a context of so many tokens.
    pub fn state(&self, g: &mut Graph, layer: usize, context: usize, dtype: DType) -> ValueId {
        let shape = [1, 1, self.taps - 1 + context, self.hidden];
        let ty = Type::State(TensorType::new(dtype, shape));
        g.input(&format!("conv_cache_{layer}"), ty)
    }

    /// What a layer remembers in functions of fixed length.
    pub fn parts(&self) -> Vec<Memory> {
        let n = self.taps - 1;
        let part = Memory {
            name: "conv_cache",
            shape: [1, 1, n, self.hidden],
        };
        (n > 0).then_some(part).into_iter().collect()
    }

    /// `out_proj(C * conv(B * x))`, where B, C and x are projections of `hidden`, in the layout of
    /// the graph.
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        hidden: ValueId,
        inputs: ConvInputs<'_>,
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
        let features = g.features();
        let parts = g.split(all, 3, features)?;
        let (b, c, x) = (parts[0], parts[1], parts[2]);
        let product = g.mul(b, x)?;
        let mixed = match inputs.past {
            ConvPast::All(rows) => {
                let window = remember(g, product, rows)?; // [1, 1, taps - 1 + tokens, hidden]
                let window = g.squeeze(window, &[1])?;
                let columns = g.transpose(window, &[0, 2, 1])?;
                let mixed = self.convolve(g, w, module, columns)?; // [1, hidden, tokens]
                g.transpose(mixed, &[0, 2, 1])?
            }
            ConvPast::Recent(recent) => {
                let window = match recent {
                    None => product,
                    Some(recent) => recent.window(g, product)?,
                };
                self.convolve(g, w, module, window)?
            }
        };
        let (mixed, c) = if inputs.last {
            (g.last(mixed, 1)?, g.last(c, 1)?)
        } else {
            (mixed, c)
        };
        let gated = g.mul(c, mixed)?;
        let (weight, bias) = part("out_proj", size);
        g.linear_to_residual("out_proj", gated, &weight, bias.as_ref())
    }

    /// The convolution of columns with its bias, without padding.
    fn convolve(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        let module = format!("{module}.conv");
        let mixed = depthwise(g, w, &module, x, ([self.hidden, self.taps], 1.0))?;
        if !self.bias {
            return Ok(mixed);
        }
        let rank = g.rank_from(mixed, 1);
        let bias = g.vector(&w.get(&module, "bias", &[self.hidden]), rank)?;
        g.add(mixed, bias)
    }
}

/// The convolution of each channel of `x` by itself, without padding, divided by `divisor`: [1,
/// channels, tokens], in the channel layout [1, channels, 1, tokens], or windows of `taps` tokens
/// each of several sequences [1, channels, taps, sequences].
pub fn depthwise(
    g: &mut Graph,
    w: &Weights<'_>,
    module: &str,
    x: ValueId,
    ([channels, taps], divisor): ([usize; 2], f32),
) -> ValueResult {
    // GGUF leaves out the dimension of 1.
    let flat = w.shape_of(module, "weight").is_some_and(|s| s.len() == 2);
    let stored = [channels, 1, taps];
    let stored = if flat { &[channels, taps] } else { &stored[..] };
    let mut weight = w.get(module, "weight", stored);
    let is_wide = g.spelling().layout == Layout::Channels;
    weight.shape = if is_wide {
        let height = g.len_along(x, 2);
        vec![channels, 1, height, taps / height.max(1)]
    } else {
        vec![channels, 1, taps]
    };
    let weight = g.divided_weight(&weight, divisor)?;
    g.conv("conv", (x, weight), channels, None)
}

/// Writes the products of the call's tokens [1, tokens, hidden] to the state, and returns them with
/// those of the tokens before.
fn remember(g: &mut Graph, product: ValueId, inputs: ByPosition) -> ValueResult {
    let update = g.cast(product, inputs.dtype)?;
    let update = g.expand_dims(update, &[1])?;
    let but_tokens = g.bools(&[true, true, false, true])?;
    let old = g.op("read_state", "past", [("input", inputs.state)])?;
    let updated = g.slice_update(old, update, [inputs.begin, inputs.end], but_tokens)?;
    let stored = g.store("stored", inputs.state, updated)?;
    let ends = [inputs.first, inputs.end];
    let window = g.slice("window", stored, ends, [but_tokens; 2])?;
    g.cast(window, DType::Fp32)
}

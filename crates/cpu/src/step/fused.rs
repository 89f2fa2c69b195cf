//! Steps that stand for several ops, computed by a kernel at once.

use thane_kernels::activation::Unary;
use thane_kernels::rope::RopeStyle;
use thane_kernels::spatial::Pooling;
use thane_mil::opset::window::Windows;
use thane_mil::program::{Function, ValueId};

use crate::ops::Fault;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// What a kernel computes in place of several ops.
#[derive(Debug)]
pub enum Fused {
    /// `x @ weight^T + bias` of each; the planner brings those of one x together.
    Linear {
        x: ValueId,
        products: Vec<Product>,
        then: Then,
    },
    /// The `k` greatest outputs of a product without a bias in each row, in falling order, and
    /// their indices.
    TopLinear {
        x: ValueId,
        product: Product,
        k: usize,
    },
    /// [`Self::Linear`] of one fp16 x.
    HalfLinear {
        x: ValueId,
        weight: Matrix,
        bias: Option<Tensor>,
    },
    /// Rows of a weight.
    Gather { indices: ValueId, weight: Matrix },
    /// `x / sqrt(mean(x^2) + epsilon) * weight` along the last axis.
    RmsNorm {
        x: ValueId,
        weight: Tensor,
        epsilon: f32,
    },
    /// As `RmsNorm`, where epsilon is of the square of the largest magnitude of a row, or of
    /// `least` if that is larger.
    BoundedNorm {
        x: ValueId,
        weight: Tensor,
        epsilon: f32,
        least: f32,
    },
    /// Pairs of x rotated.
    Rope {
        x: ValueId,
        cos: ValueId,
        sin: ValueId,
        style: RopeStyle,
    },
    /// Pairs of x [.., tokens, heads, head_dim] rotated, the even and odd elements of each head or
    /// its halves; they become its halves.
    RopeRows {
        x: ValueId,
        cos: ValueId,
        sin: ValueId,
        is_interleaved: bool,
    },
    /// `x cos + (-b, a) sin`, where `(a, b)` are the halves of the last axis of x, and cosines and
    /// sines are of that length and repeated along other axes.
    RopeHalves {
        x: ValueId,
        cos: ValueId,
        sin: ValueId,
    },
    /// `op(gate) * up`.
    Gated {
        gate: ValueId,
        up: ValueId,
        op: Unary,
    },
    /// A state [1, heads, context, head_dim] written from `begin[2]` on.
    Append {
        state: usize,
        update: ValueId,
        begin: ValueId,
        end: ValueId,
    },
    /// Attention over keys and values of this call; whether what is given, and the result, are
    /// [batch, tokens, heads, head_dim].
    Attend {
        query: ValueId,
        key: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
        /// Factor of the scores; one over the root of `head_dim` where there is none.
        scale: Option<f32>,
        by_row: [bool; 2],
        /// Where keys and values lie in `key` and `value`, which are fp16 and hold more.
        parts: Option<[Part; 2]>,
    },
    /// `softmax(x)` along the last axis.
    Softmax { x: ValueId },
    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias` along the last `n_axes`, as if they
    /// were one.
    LayerNorm {
        x: ValueId,
        n_axes: usize,
        weight: Option<Tensor>,
        bias: Option<Tensor>,
        epsilon: f32,
    },
    /// `(x - mean) / sqrt(variance + epsilon)` of groups, along the axes from the first of `ends`
    /// to the second and from the third on.
    GroupNorm {
        x: ValueId,
        ends: [usize; 3],
        epsilon: f32,
    },
    /// The sum of the experts that each token chose, each times a factor.
    Experts(Box<Experts>),
    /// A convolution of each channel [batch, channels, places] by itself: sums over its taps
    /// [channels, 1, taps].
    Depthwise { x: ValueId, taps: Tensor },
    /// Tokens that read and write memories one after another.
    DeltaRule(Box<DeltaRule>),
    /// `x y`, or `x y^T`, of matrices that are computed.
    MatMul {
        x: ValueId,
        y: ValueId,
        transpose_y: bool,
    },
    /// A convolution whose kernel is one place.
    Pointwise {
        x: ValueId,
        weight: Matrix,
        bias: Option<Tensor>,
    },
    /// Attention over the first `end[2]` entries of two states.
    Attention { query: ValueId, cached: Cached },
    /// The same with all that lies between products and it.
    RowsAttention(Box<RowsAttention>),
    /// Attention over what states hold and what this call adds.
    PastAttention(Box<PastAttention>),
    /// A part of a state replaced.
    StateUpdate(Box<StateUpdate>),
    /// A convolution of x [batch, .., channels].
    Conv(Box<Conv>),
    /// A recurrent layer.
    Recurrent(Box<Recurrent>),
    /// A pool of x [batch, .., channels].
    Pool {
        x: ValueId,
        windows: Windows,
        pooling: Pooling,
    },
}

/// A recurrent layer of x [steps, batch, elements].
#[derive(Debug)]
pub struct Recurrent {
    pub x: ValueId,
    /// The first hidden state, and that of the cell where there is one.
    pub states: Vec<Source>,
    pub kind: CellKind,
    /// One for each direction.
    pub cells: Vec<Cell>,
    /// Whether the results of steps stand where their inputs do, rather than in the order of the
    /// steps.
    pub is_in_place: bool,
    pub output_sequence: bool,
}

/// What a recurrent layer computes in a step.
#[derive(Debug, Clone, Copy)]
pub enum CellKind {
    /// Gates: input, forget, output, cell.
    Lstm,
    /// Gates: reset, output, update; whether the state is reset after its product.
    Gru { resets_after: bool },
}

/// The weights of one direction of a recurrent layer: products with the input and with the state.
#[derive(Debug)]
pub struct Cell {
    pub input: Matrix,
    pub state: Matrix,
    pub input_bias: Option<Tensor>,
    pub state_bias: Option<Tensor>,
    pub is_reverse: bool,
}

/// A value at run time, or part of the program.
#[derive(Debug)]
pub enum Source {
    Value(ValueId),
    Constant(Tensor),
}

/// A convolution of x [batch, .., channels].
#[derive(Debug)]
pub struct Conv {
    pub x: ValueId,
    pub kernels: Kernels,
    /// Window elements of a kernel.
    pub n_taps: usize,
    pub bias: Option<Tensor>,
    pub windows: Windows,
    /// Sizes of the axes of the image in the result, where they are known.
    pub output: Vec<Option<usize>>,
    /// Channels of the result.
    pub c_out: usize,
    pub then: Then,
}

/// The weights of a convolution.
#[derive(Debug)]
pub enum Kernels {
    /// As the op has them, until weights are packed.
    Stored {
        weight: ValueId,
        groups: usize,
        is_transposed: bool,
    },
    /// [out, taps * in] of each group.
    Groups(Vec<Matrix>),
    /// [taps, channels], where each channel has a kernel of its own.
    ByChannel(Tensor),
    /// [taps * out, in] of a transposed convolution.
    Spread(Matrix),
}

/// Elements [batch, heads, keys, head_dim] that lie together in a value.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    pub value: ValueId,
    /// The first element.
    pub first: usize,
    pub shape: [usize; 4],
}

/// Where keys or values of earlier tokens are.
#[derive(Debug, Clone, Copy)]
pub enum Kept {
    /// In a state.
    State(usize),
    /// In a value, which the caller gave.
    Value(ValueId),
}

/// A part of a state or value that lies together: keys or values.
#[derive(Debug)]
pub struct Past {
    pub kept: Kept,
    /// Its first element.
    pub first: usize,
    /// Heads, keys, and elements of a key.
    pub shape: [usize; 3],
}

/// Attention of queries [1, heads, rows, head_dim] over keys and values of before, and those
/// [1, heads, tokens, head_dim] of this call behind them.
#[derive(Debug)]
pub struct PastAttention {
    pub query: ValueId,
    /// Keys and values.
    pub past: [Past; 2],
    pub key: ValueId,
    pub value: ValueId,
    /// [1, 1, tokens, keys]: the rows of a head are so many times all tokens.
    pub mask: ValueId,
}

/// `slice_update` of what a state holds.
#[derive(Debug)]
pub struct StateUpdate {
    pub state: usize,
    /// What the state held, as it was read.
    pub old: ValueId,
    pub update: ValueId,
    /// Whether `update` is fp32 and the state fp16.
    pub narrows: bool,
    pub begin: ValueId,
    pub end: ValueId,
    /// `begin_mask`, `end_mask` and `squeeze_mask`.
    pub masks: [Option<Tensor>; 3],
    /// Whether what is stored is a value that something reads.
    pub is_used: bool,
}

/// Heads among rows [1, tokens, heads * head_dim], and what becomes of each before it attends or is
/// kept.
#[derive(Debug)]
pub struct Heads {
    pub x: ValueId,
    /// The weight and the epsilon of an RMS norm.
    pub norm: Option<(Tensor, f32)>,
    /// Cosines and sines, and the pairs that they rotate.
    pub angles: Option<([ValueId; 2], RopeStyle)>,
}

/// Attention of rows [1, tokens, heads * head_dim]: keys and values are written to states from
/// `begin[2]` on, and queries attend over the first `end[2]` entries of these.
#[derive(Debug)]
pub struct RowsAttention {
    pub query: Heads,
    pub key: Heads,
    pub value: ValueId,
    /// Heads of the queries.
    pub n_heads: usize,
    pub begin: ValueId,
    pub cached: Cached,
}

/// Feed-forward layers `down @ (op(gate @ x) * (up @ x))` of which each row of x uses some.
#[derive(Debug)]
pub struct Experts {
    /// [.., hidden].
    pub x: ValueId,
    /// The experts of each row, [.., used].
    pub indices: ValueId,
    /// Their factors, [.., used].
    pub factors: ValueId,
    /// The gates of all experts, then their ups, then their downs.
    pub products: Vec<Product>,
    pub n_experts: usize,
    pub op: Unary,
}

impl Experts {
    /// Elements of a row.
    pub fn hidden(&self) -> usize {
        self.products[0].weight.stored.n_cols
    }

    /// Gate, up and down of an expert.
    pub fn of(&self, idx: usize) -> [&Product; 3] {
        [0, 1, 2].map(|part| &self.products[part * self.n_experts + idx])
    }
}

/// For each of the first tokens: `S = decay * S; S = S + key^T (beta * (value - key S))`, and then
/// `query S` as its row of the outputs.
#[derive(Debug)]
pub struct DeltaRule {
    /// [tokens, heads, 1, k].
    pub query: ValueId,
    /// [tokens, heads, 1, k].
    pub key: ValueId,
    /// [tokens, heads, 1, v].
    pub value: ValueId,
    /// [tokens, heads, 1, 1].
    pub decay: ValueId,
    /// [tokens, heads, 1, 1].
    pub beta: ValueId,
    /// S, [1, heads, k, v].
    pub memory: ValueId,
    /// What the outputs are where no token gives any, [tokens, heads, 1, v].
    pub outputs: ValueId,
    /// Number of tokens, int32 [1].
    pub n_tokens: ValueId,
}

/// What becomes of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Each is a result.
    Results,
    /// `op(the first) * the second`.
    Gated(Unary),
    /// The only one is added to this.
    Added(ValueId),
    /// `op(the only one)`.
    Activated(Unary),
}

/// A matrix that something is multiplied with, and what is added.
#[derive(Debug)]
pub struct Product {
    pub weight: Matrix,
    pub bias: Option<Tensor>,
}

impl Product {
    /// The shape of the product with an x of this shape.
    pub fn shape(&self, x: &[usize]) -> Result<Vec<usize>, Fault> {
        match x.split_last() {
            Some((last, outer)) if *last == self.weight.stored.n_cols => {
                Ok([outer, &[self.weight.stored.n_rows]].concat())
            }
            _ => Err(format!(
                "the last dimension is not the {} columns of the weight",
                self.weight.stored.n_cols
            )),
        }
    }

    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_ref().and_then(Tensor::f32s)
    }
}

impl Fused {
    /// Whether it writes a state.
    pub fn writes_states(&self) -> bool {
        matches!(
            self,
            Fused::Append { .. } | Fused::RowsAttention(_) | Fused::StateUpdate(_)
        )
    }

    /// Its products with constant matrices of an fp32 x.
    pub fn products(&self) -> &[Product] {
        match self {
            Fused::Linear { products, .. } => products,
            Fused::TopLinear { product, .. } => std::slice::from_ref(product),
            Fused::Experts(experts) => &experts.products,
            _ => &[],
        }
    }

    /// Rows of the x of its [products](Self::products), where they are known.
    pub fn n_rows(&self, f: &Function) -> Option<usize> {
        let x = match self {
            Fused::Linear { x, .. } | Fused::TopLinear { x, .. } => *x,
            Fused::Experts(experts) => experts.x,
            _ => return None,
        };
        let (_, rows) = f.value(x).ty.tensor()?.shape.split_last()?;
        rows.iter().map(|dim| dim.known()).product()
    }

    /// [`Self::products`], to change the form of their matrices.
    pub fn products_mut(&mut self) -> &mut [Product] {
        match self {
            Fused::Linear { products, .. } => products,
            Fused::TopLinear { product, .. } => std::slice::from_mut(product),
            Fused::Experts(experts) => &mut experts.products,
            _ => &mut [],
        }
    }

    /// The run-time values that it reads.
    pub fn operands(&self) -> Vec<ValueId> {
        match *self {
            Fused::Linear {
                x,
                then: Then::Added(to),
                ..
            } => vec![x, to],
            Fused::Linear { x, .. }
            | Fused::TopLinear { x, .. }
            | Fused::RmsNorm { x, .. }
            | Fused::BoundedNorm { x, .. }
            | Fused::Softmax { x }
            | Fused::Depthwise { x, .. }
            | Fused::LayerNorm { x, .. }
            | Fused::GroupNorm { x, .. }
            | Fused::HalfLinear { x, .. }
            | Fused::Pointwise { x, .. } => vec![x],
            Fused::Attend {
                query,
                key,
                value,
                mask,
                ..
            } => [Some(query), Some(key), Some(value), mask]
                .into_iter()
                .flatten()
                .collect(),
            Fused::MatMul { x, y, .. } => vec![x, y],
            Fused::DeltaRule(ref rule) => vec![
                rule.query,
                rule.key,
                rule.value,
                rule.decay,
                rule.beta,
                rule.memory,
                rule.outputs,
                rule.n_tokens,
            ],
            Fused::Experts(ref experts) => vec![experts.x, experts.indices, experts.factors],
            Fused::Gather { indices, .. } => vec![indices],
            Fused::Rope { x, cos, sin, .. }
            | Fused::RopeRows { x, cos, sin, .. }
            | Fused::RopeHalves { x, cos, sin } => vec![x, cos, sin],
            Fused::Gated { gate, up, .. } => vec![gate, up],
            Fused::Append {
                update, begin, end, ..
            } => vec![update, begin, end],
            Fused::Attention { query, cached } => {
                [query, cached.end].into_iter().chain(cached.mask).collect()
            }
            Fused::RowsAttention(ref rows) => rows.operands().collect(),
            Fused::PastAttention(ref a) => {
                let given = a.past.iter().filter_map(|past| match past.kept {
                    Kept::Value(value) => Some(value),
                    Kept::State(_) => None,
                });
                given.chain([a.query, a.key, a.value, a.mask]).collect()
            }
            Fused::Conv(ref conv) => vec![conv.x],
            Fused::Pool { x, .. } => vec![x],
            Fused::Recurrent(ref layer) => {
                let states = layer.states.iter().filter_map(|s| match s {
                    Source::Value(v) => Some(*v),
                    Source::Constant(_) => None,
                });
                states.chain([layer.x]).collect()
            }
            Fused::StateUpdate(ref u) => vec![u.old, u.update, u.begin, u.end],
        }
    }
}

impl RowsAttention {
    /// The run-time values that it reads.
    fn operands(&self) -> impl Iterator<Item = ValueId> {
        let rows = [self.query.x, self.key.x, self.value];
        rows.into_iter().chain(self.positions())
    }

    /// Those of them that are no rows.
    pub fn positions(&self) -> impl Iterator<Item = ValueId> {
        let angles = [&self.query, &self.key]
            .into_iter()
            .filter_map(|heads| heads.angles)
            .flat_map(|(angles, _)| angles);
        angles
            .chain([self.begin, self.cached.end])
            .chain(self.cached.mask)
    }
}

/// What attention over a cache reads: two states, what is added to the scores, and where the cache
/// ends.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    /// The states of keys and of values.
    pub states: [usize; 2],
    /// [rows, keys], where there is one.
    pub mask: Option<ValueId>,
    /// Its third entry is the number of keys.
    pub end: ValueId,
    /// Factor of the scores.
    pub scale: f32,
}

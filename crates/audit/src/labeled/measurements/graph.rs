//! Builds functions for measurements: products with every weight format, and the ops around them.

use std::collections::HashMap;

use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, ValueId};
use thane_mil::types::{DType, TensorType};

/// How weights are stored, as far as measurements tell them apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// As fp16.
    Fp16,
    /// Codes of 4 or 8 bits with a scale an output channel.
    Codes(DType),
    /// int4 with a scale for each 32 inputs.
    Blocks,
    /// Palettes of these indices; the second says whether each output channel has a table.
    Palette(DType, bool),
    /// This part is zero and left out.
    Sparse(f64),
    /// int8, and so are activations.
    Int8,
}

impl Weights {
    /// Bits of a weight.
    pub fn bits(self) -> f64 {
        match self {
            Self::Fp16 => 16.0,
            Self::Codes(dtype) | Self::Palette(dtype, _) => dtype.bits() as f64,
            Self::Blocks => 4.0,
            Self::Sparse(part) => 1.0 + 16.0 * (1.0 - part),
            Self::Int8 => 8.0,
        }
    }
}

/// Why a function cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// An op does not take its arguments.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A constant is larger than what a measurement can have had.
    #[error("a constant of {0:?} is too large")]
    TooLarge(Vec<usize>),
}

type Made = Result<ValueId, GraphError>;

/// Bytes that a constant may have here: more than any that was measured.
const MOST_BYTES: u64 = 1 << 33;

/// A function in the making.
pub struct Graph {
    builder: FunctionBuilder,
    weights: Weights,
    /// Weights by shape, where they are to be shared.
    shared: Option<HashMap<Vec<usize>, ValueId>>,
}

impl Graph {
    /// A function without ops, whose weights are stored in some way.
    pub fn new(weights: Weights) -> Self {
        Self {
            builder: FunctionBuilder::new("main", Opset::CoreMl8),
            weights,
            shared: None,
        }
    }

    /// Store the weights of the products that follow in some way.
    pub fn set_weights(&mut self, weights: Weights) {
        self.weights = weights;
    }

    /// Let weights of one shape be one constant.
    pub fn share_weights(&mut self) {
        self.shared = Some(HashMap::new());
    }

    /// Add an input.
    pub fn input(&mut self, shape: &[usize]) -> ValueId {
        self.builder
            .input("x", TensorType::new(DType::Fp16, shape.iter().copied()))
    }

    /// Lengths of the axes of a value.
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        let ty = self.builder.function().value(value).ty.tensor();
        ty.and_then(TensorType::known_shape).unwrap_or_default()
    }

    /// Add an op of some values by parameter, and of constant parameters.
    pub fn with<const N: usize, const M: usize>(
        &mut self,
        op: &str,
        values: [(&'static str, ValueId); N],
        constants: [(&'static str, Literal); M],
    ) -> Made {
        let values = values.map(|(name, value)| (name, Arg::Value(value)));
        let constants = constants.map(|(name, literal)| (name, Arg::Literal(literal)));
        let args = values.into_iter().chain(constants).collect();
        let results = self.builder.op_with_blocks(op, op, args, Vec::new())?;
        Ok(results[0])
    }

    /// Add an op of `x`.
    pub fn unary(&mut self, op: &str, x: ValueId) -> Made {
        self.with(op, [("x", x)], [])
    }

    /// Add an op of `x` and `y`.
    pub fn binary(&mut self, op: &str, x: ValueId, y: ValueId) -> Made {
        self.with(op, [("x", x), ("y", y)], [])
    }

    /// Add a reduction over axes that stay.
    pub fn reduce(&mut self, op: &str, x: ValueId, axes: &[i32]) -> Made {
        let (axes, keep) = (Literal::i32s(axes), Literal::bool(true));
        self.with(op, [("x", x)], [("axes", axes), ("keep_dims", keep)])
    }

    /// Add softmax over the last axis.
    pub fn softmax(&mut self, x: ValueId) -> Made {
        self.with("softmax", [("x", x)], [("axis", Literal::i32(-1))])
    }

    /// Give a value another shape.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Made {
        self.with("reshape", [("x", x)], [("shape", i32s(shape))])
    }

    /// Channels `from` to `to` of x [b, c, h, w].
    pub fn channels(&mut self, x: ValueId, from: usize, to: usize) -> Made {
        let mut size = self.shape(x);
        if let Some(channels) = size.get_mut(1) {
            *channels = to - from;
        }
        let (begin, size) = (i32s(&[0, from, 0, 0]), i32s(&size));
        self.with(
            "slice_by_size",
            [("x", x)],
            [("begin", begin), ("size", size)],
        )
    }

    /// Exchange axes.
    pub fn transpose(&mut self, x: ValueId, perm: &[i32]) -> Made {
        self.with("transpose", [("x", x)], [("perm", Literal::i32s(perm))])
    }

    /// Multiply two activations as matrices.
    pub fn matmul(&mut self, x: ValueId, y: ValueId, transpose_y: bool) -> Made {
        let flag = Literal::bool(transpose_y);
        self.with("matmul", [("x", x), ("y", y)], [("transpose_y", flag)])
    }

    /// A convolution of x [b, c, h, w] that keeps its spatial axes.
    pub fn conv(
        &mut self,
        x: ValueId,
        outputs: usize,
        kernel: (usize, usize),
        groups: usize,
    ) -> Made {
        self.convolution(x, outputs, kernel, (groups, 1))
    }

    /// A convolution of x [b, c, h, w] with a square kernel and a stride.
    pub fn strided(&mut self, x: ValueId, outputs: usize, kernel: usize, stride: i32) -> Made {
        self.convolution(x, outputs, (kernel, kernel), (1, stride))
    }

    /// A convolution of so many parts of the channels each, which are added up.
    pub fn conv_in_parts(
        &mut self,
        x: ValueId,
        outputs: usize,
        kernel: (usize, usize),
        parts: usize,
    ) -> Made {
        if parts < 2 {
            return self.conv(x, outputs, kernel, 1);
        }
        let channels = self.shape(x).get(1).copied().unwrap_or(1);
        let part = |g: &mut Self, at: usize| {
            let (from, to) = (channels * at / parts, channels * (at + 1) / parts);
            let piece = g.channels(x, from, to)?;
            g.conv(piece, outputs, kernel, 1)
        };
        let mut sum = part(self, 0)?;
        for at in 1..parts {
            let y = part(self, at)?;
            sum = self.binary("add", sum, y)?;
        }
        Ok(sum)
    }

    fn convolution(
        &mut self,
        x: ValueId,
        outputs: usize,
        kernel: (usize, usize),
        (groups, stride): (usize, i32),
    ) -> Made {
        let channels = self.shape(x).get(1).copied().unwrap_or(1);
        let x = self.quantized(x)?;
        let weight = self.weight(&[outputs, channels / groups.max(1), kernel.0, kernel.1])?;
        let constants = [
            ("pad_type", Literal::string("same")),
            ("strides", Literal::i32s(&[stride, stride])),
            ("groups", Literal::i32(to_i32(groups))),
        ];
        self.with("conv", [("x", x), ("weight", weight)], constants)
    }

    /// `linear` of x [.., in].
    pub fn linear(&mut self, x: ValueId, outputs: usize) -> Made {
        let inputs = self.shape(x).last().copied().unwrap_or(1);
        let x = self.quantized(x)?;
        let weight = self.weight(&[outputs, inputs])?;
        self.with("linear", [("x", x), ("weight", weight)], [])
    }

    /// `matmul` of x [.., in] with a constant [in, out].
    pub fn product(&mut self, x: ValueId, outputs: usize) -> Made {
        let inputs = self.shape(x).last().copied().unwrap_or(1);
        let weight = self.weight(&[inputs, outputs])?;
        self.matmul(x, weight, false)
    }

    /// The norm that language models have: x over the root of the mean of its squares, along an
    /// axis.
    pub fn rms_norm(&mut self, x: ValueId, axis: i32) -> Made {
        let square = self.unary("square", x)?;
        let mean = self.reduce("reduce_mean", square, &[axis])?;
        let root = self.unary("rsqrt", mean)?;
        self.binary("mul", x, root)
    }

    /// Activations as int8, where weights are.
    fn quantized(&mut self, x: ValueId) -> Made {
        if self.weights != Weights::Int8 {
            return Ok(x);
        }
        let one = TensorType::scalar(DType::Fp16);
        let scale = ("scale", Literal::Tensor(one, Data::owned(vec![0, 0x3c])));
        let dtype = ("output_dtype", Literal::string("int8"));
        let codes = self.with("quantize", [("input", x)], [scale.clone(), dtype])?;
        self.with("dequantize", [("input", codes)], [scale])
    }

    fn weight(&mut self, shape: &[usize]) -> Made {
        if let Some(known) = self.shared.as_ref().and_then(|s| s.get(shape)) {
            return Ok(*known);
        }
        let value = self.fresh_weight(shape)?;
        if let Some(shared) = &mut self.shared {
            shared.insert(shape.to_vec(), value);
        }
        Ok(value)
    }

    fn fresh_weight(&mut self, shape: &[usize]) -> Made {
        let mut scales = vec![1; shape.len()];
        match self.weights {
            Weights::Fp16 => {
                let literal = self.zeros(DType::Fp16, shape)?;
                Ok(self.builder.constant("w", literal)?)
            }
            Weights::Codes(dtype) => {
                scales[0] = shape[0];
                self.codes(dtype, shape, &scales)
            }
            Weights::Blocks => {
                scales[0] = shape[0];
                scales[1] = if shape[1].is_multiple_of(32) {
                    shape[1] / 32
                } else {
                    shape[1]
                };
                self.codes(DType::Int4, shape, &scales)
            }
            Weights::Int8 => self.codes(DType::Int8, shape, &scales),
            Weights::Palette(dtype, by_channel) => {
                scales[0] = if by_channel { shape[0] } else { 1 };
                scales.extend([1 << dtype.bits(), 1]);
                let (indices, lut) = (self.zeros(dtype, shape)?, self.zeros(DType::Fp16, &scales)?);
                let constants = [("indices", indices), ("lut", lut)];
                self.with("constexpr_lut_to_dense", [], constants)
            }
            Weights::Sparse(part) => self.sparse(shape, part),
        }
    }

    fn codes(&mut self, dtype: DType, shape: &[usize], scales: &[usize]) -> Made {
        let (data, scale) = (self.zeros(dtype, shape)?, self.zeros(DType::Fp16, scales)?);
        let constants = [("data", data), ("scale", scale)];
        self.with("constexpr_blockwise_shift_scale", [], constants)
    }

    fn sparse(&mut self, shape: &[usize], part: f64) -> Made {
        let n = product(shape)
            .filter(|n| (*n as u64) < MOST_BYTES / 16)
            .ok_or_else(|| GraphError::TooLarge(shape.to_vec()))?;
        let kept = ((n as f64 * (1.0 - part)).round() as usize).min(n);
        let mut mask = vec![0u8; n.div_ceil(8)];
        mask[..kept / 8].fill(0xff);
        if !kept.is_multiple_of(8) {
            mask[kept / 8] = (1u8 << (kept % 8)) - 1;
        }
        let ty = TensorType::new(DType::Uint1, shape.iter().copied());
        let mask = Literal::Tensor(ty, Data::owned(mask));
        let data = self.zeros(DType::Fp16, &[kept])?;
        let constants = [("nonzero_data", data), ("mask", mask)];
        self.with("constexpr_sparse_to_dense", [], constants)
    }

    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Literal, GraphError> {
        let bytes = product(shape)
            .and_then(|n| dtype.byte_len(n))
            .filter(|n| (*n as u64) < MOST_BYTES);
        let bytes = bytes.ok_or_else(|| GraphError::TooLarge(shape.to_vec()))?;
        let ty = TensorType::new(dtype, shape.iter().copied());
        Ok(Literal::Tensor(ty, Data::zeros(bytes)))
    }

    /// Hand the function over.
    pub fn finish(self, outputs: &[ValueId]) -> Function {
        let outputs: Vec<(&str, ValueId)> = outputs.iter().map(|v| ("y", *v)).collect();
        self.builder.finish(&outputs)
    }
}

fn to_i32(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn i32s(numbers: &[usize]) -> Literal {
    Literal::i32s(&numbers.iter().map(|n| to_i32(*n)).collect::<Vec<_>>())
}

fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

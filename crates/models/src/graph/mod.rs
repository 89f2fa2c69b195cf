//! Builds one function of a program. Layers are written with the methods of [`Graph`].
mod constants;
mod joined;
mod ops;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::data::Data;
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, ValueId};
use thane_mil::types::{DType, Dim, TensorType, Type};

pub use constants::{Constants, dense};
pub use joined::Matrix;

/// How layers of a program are spelled: layout, element type, and how norms are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spelling {
    /// Which axis holds the features.
    pub layout: Layout,
    /// Element type of weights and results: fp32 or fp16.
    pub float: DType,
    /// How root mean square norms are computed.
    pub norm: NormForm,
}

impl Spelling {
    /// The portable reference: fp32, features last.
    pub const PORTABLE: Self = Self {
        layout: Layout::Rows,
        float: DType::Fp32,
        norm: NormForm::Native,
    };

    /// Whether the program is of the form that [`AneDecoder`](crate::AneDecoder) and
    /// [`AneEncoder`](crate::AneEncoder) ask for.
    pub fn is_for_ane(&self) -> bool {
        self.float == DType::Fp16 || self.layout == Layout::Channels
    }
}

/// Which axis holds the features of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// [batch, tokens, features]; linear layers are `linear` ops.
    Rows,
    /// [1, features, 1, tokens]; linear layers are 1x1 convolutions.
    Channels,
}

/// How a root mean square norm `x / sqrt(mean(x^2) + epsilon)` is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormForm {
    /// As written: mean of squares, `rsqrt`, product.
    Native,
    /// `layer_norm` of x concatenated with -x: the mean is 0, and the squares never leave the op.
    Cat,
    /// As written, after dividing x by its largest magnitude, so that no square overflows fp16.
    Scaled,
}

/// A value of the graph, or why the op is not legal.
pub type ValueResult = Result<ValueId, BuildError>;

/// The constants that all functions of one program share.
pub type SharedConstants = Rc<RefCell<Constants>>;

/// A function under construction. Constants with equal values are created once.
///
/// Op names in a program start with the module set by [`Graph::at`].
pub struct Graph {
    builder: FunctionBuilder,
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), ValueId>,
    strings: HashMap<&'static str, ValueId>,
    weights: HashMap<(String, usize, u32), ValueId>,
    shared: SharedConstants,
    place: String,
    spelling: Spelling,
    residual_divisor: f32,
    small: Option<ValueId>,
}

impl Graph {
    /// An empty function `name` of the program that has the constants `shared`.
    pub fn new(name: &str, shared: SharedConstants, spelling: Spelling) -> Self {
        Self {
            builder: FunctionBuilder::new(name, Opset::CoreMl8),
            constants: HashMap::new(),
            strings: HashMap::new(),
            weights: HashMap::new(),
            shared,
            place: String::new(),
            spelling,
            residual_divisor: 1.0,
            small: None,
        }
    }

    /// How layers of the function are spelled.
    pub fn spelling(&self) -> Spelling {
        self.spelling
    }

    /// Sets the divisor of the residual stream, which keeps the stream within the range of fp16.
    /// The weights that write to the stream are divided by it.
    pub fn divide_residual(&mut self, divisor: f32) {
        self.residual_divisor = divisor;
    }

    /// The divisor of the residual stream.
    pub fn residual_divisor(&self) -> f32 {
        self.residual_divisor
    }

    /// Notes that the elements of `x` may be so small that fp16 loses their squares: embeddings of
    /// some models are 0.02 on average.
    pub fn set_small(&mut self, x: ValueId) {
        self.small = Some(x);
    }

    /// Whether [`Self::set_small`] named `x`.
    pub fn is_small(&self, x: ValueId) -> bool {
        self.small == Some(x)
    }

    /// The axis of the features in the layout of this graph.
    pub fn features(&self) -> i32 {
        if self.spelling.layout == Layout::Rows {
            -1
        } else {
            1
        }
    }

    /// Sets the checkpoint module, such as `model.norm`, that the next ops compute.
    pub fn at_module(&mut self, module: &str) {
        module.clone_into(&mut self.place);
        self.builder.set_place(module);
    }

    /// A new symbolic dimension, whose size each call determines.
    pub fn symbol(&mut self) -> Dim {
        self.builder.symbol()
    }

    /// Declares an input of the function.
    pub fn input(&mut self, name: &str, ty: impl Into<Type>) -> ValueId {
        self.builder.input(name, ty)
    }

    /// Declares the output and returns the function.
    pub fn finish(self, output: &str, value: ValueId) -> Function {
        self.builder.finish(&[(output, value)])
    }

    /// Declares several outputs and returns the function.
    pub fn finish_all(self, outputs: &[(&str, ValueId)]) -> Function {
        self.builder.finish(outputs)
    }

    /// The dimensions of a tensor.
    pub fn shape(&self, value: ValueId) -> &[Dim] {
        self.builder
            .function()
            .value(value)
            .ty
            .tensor_or_state()
            .map_or(&[], |t| &t.shape)
    }

    /// Number of elements of `x` along `axis`, which may count from the end; 1 if only the call
    /// knows.
    pub fn len_along(&self, x: ValueId, axis: i32) -> usize {
        let shape = self.shape(x);
        let at = shape.len().wrapping_sub(self.rank_from(x, axis));
        shape.get(at).and_then(|dim| dim.known()).unwrap_or(1)
    }

    /// Adds an op with one result. Its name is the current module followed by `name`.
    pub fn op<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, ValueId); N],
    ) -> ValueResult {
        self.op_with(
            op,
            name,
            args.map(|(param, value)| (param, Arg::Value(value))),
        )
    }

    /// Like [`Self::op`], with arguments of any kind.
    pub fn op_with<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, Arg); N],
    ) -> ValueResult {
        let name = self.name(name);
        self.builder.op(op, &name, args)
    }

    /// The name of an op in the current module.
    fn name(&self, name: &str) -> String {
        let place = self.place.trim_start_matches("model.").replace('.', "_");
        if place.is_empty() {
            name.to_owned()
        } else {
            format!("{place}_{name}")
        }
    }

    /// A constant; equal tensors are created once.
    fn literal(&mut self, literal: Literal) -> ValueResult {
        let Literal::Tensor(ty, data) = &literal else {
            return self.builder.constant("const", literal);
        };
        let key = (
            ty.dtype,
            ty.known_shape().unwrap_or_default(),
            data.to_vec(),
        );
        if let Some(value) = self.constants.get(&key) {
            return Ok(*value);
        }
        let value = self.builder.constant("const", literal)?;
        self.constants.insert(key, value);
        Ok(value)
    }

    /// An int32 vector.
    pub fn ints(&mut self, v: &[i32]) -> ValueResult {
        self.literal(Literal::i32s(v))
    }

    /// An int32 scalar.
    pub fn int(&mut self, v: i32) -> ValueResult {
        self.literal(Literal::i32(v))
    }

    /// A scalar in the element type of the form.
    pub fn float(&mut self, v: f32) -> ValueResult {
        let ty = TensorType::scalar(self.spelling.float);
        self.literal(Literal::Tensor(ty, Data::owned(self.bytes_of(&[v]))))
    }

    /// A tensor in the element type of the form.
    pub fn floats(&mut self, v: &[f32], shape: &[usize]) -> ValueResult {
        let ty = TensorType::new(self.spelling.float, shape.iter().copied());
        self.literal(Literal::Tensor(ty, Data::owned(self.bytes_of(v))))
    }

    /// Numbers as bytes of the element type of the form.
    pub fn bytes_of(&self, v: &[f32]) -> Vec<u8> {
        match self.spelling.float {
            DType::Fp16 => v
                .iter()
                .flat_map(|v| f64_to_f16((*v).into()).to_le_bytes())
                .collect(),
            _ => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    /// A vector of booleans.
    pub fn bools(&mut self, v: &[bool]) -> ValueResult {
        self.literal(Literal::bools(v))
    }

    /// A scalar boolean.
    pub fn bool(&mut self, v: bool) -> ValueResult {
        self.literal(Literal::bool(v))
    }

    /// A string.
    pub fn string(&mut self, v: &'static str) -> ValueResult {
        if let Some(value) = self.strings.get(v) {
            return Ok(*value);
        }
        let value = self.builder.constant("const", Literal::string(v))?;
        self.strings.insert(v, value);
        Ok(value)
    }
}

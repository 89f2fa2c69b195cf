//! A function in the making, with the words that layers are written in.
mod constants;
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

/// How the words of layers are spelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Form {
    /// Where features lie.
    pub layout: Layout,
    /// Element type of weights and of what is computed: fp32 or fp16.
    pub float: DType,
    /// How root mean square norms are spelled.
    pub norm: NormForm,
}

impl Form {
    /// The reference: fp32, features last.
    pub const PORTABLE: Self = Self {
        layout: Layout::Rows,
        float: DType::Fp32,
        norm: NormForm::Native,
    };
}

/// Where the features of a token lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// [batch, tokens, features]; products are `linear`.
    Rows,
    /// [1, features, 1, tokens], as the Neural Engine has them; products are 1x1 convolutions.
    Channels,
}

/// How a root mean square norm is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormForm {
    /// A mean of squares, a root and products.
    Native,
    /// `layer_norm` of x beside -x, whose mean is 0: the squares never leave the op.
    Cat,
    /// As native, of x over its largest element: no square overflows fp16.
    Scaled,
}

/// A value of the graph, or why it cannot be made.
pub type Made = Result<ValueId, BuildError>;

/// What the functions of one program share.
pub type Shared = Rc<RefCell<Constants>>;

/// A function in the making; constants that are equal are made once.
pub struct Graph {
    builder: FunctionBuilder,
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), ValueId>,
    strings: HashMap<&'static str, ValueId>,
    weights: HashMap<(String, usize, u32), ValueId>,
    shared: Shared,
    place: String,
    form: Form,
    residual_divisor: f32,
}
impl Graph {
    /// An empty function of the program that has these constants.
    pub fn in_form(name: &str, shared: Shared, form: Form) -> Self {
        Self {
            builder: FunctionBuilder::new(name, Opset::CoreMl8),
            constants: HashMap::new(),
            strings: HashMap::new(),
            weights: HashMap::new(),
            shared,
            place: String::new(),
            form,
            residual_divisor: 1.0,
        }
    }

    /// How words are spelled here.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Divide what is added to the residual stream, so that fp16 can hold it: the weights that make
    /// it are.
    pub fn divide_residual(&mut self, divisor: f32) {
        self.residual_divisor = divisor;
    }

    /// What the residual stream is divided by.
    pub fn residual_divisor(&self) -> f32 {
        self.residual_divisor
    }

    /// The axis of the features of [batch, tokens, features] or [1, features, 1, tokens].
    pub fn features(&self) -> i32 {
        if self.form.layout == Layout::Rows {
            -1
        } else {
            1
        }
    }

    /// Say which module of the checkpoint the ops from here on compute.
    pub fn at(&mut self, place: &str) {
        place.clone_into(&mut self.place);
        self.builder.set_place(place);
    }

    /// A dimension that each call binds.
    pub fn symbol(&mut self) -> Dim {
        self.builder.symbol()
    }

    /// A function input.
    pub fn input(&mut self, name: &str, ty: impl Into<Type>) -> ValueId {
        self.builder.input(name, ty)
    }

    /// Declare the output and hand the function over.
    pub fn finish(self, output: &str, value: ValueId) -> Function {
        self.builder.finish(&[(output, value)])
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

    /// An op with one result, named after the place and `name`.
    pub fn op<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, ValueId); N],
    ) -> Made {
        self.op_with(
            op,
            name,
            args.map(|(param, value)| (param, Arg::Value(value))),
        )
    }

    /// As [`Self::op`], with arguments of any kind.
    pub fn op_with<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, Arg); N],
    ) -> Made {
        let name = self.name(name);
        self.builder.op(op, &name, args)
    }

    fn name(&self, name: &str) -> String {
        let place = self.place.trim_start_matches("model.").replace('.', "_");
        if place.is_empty() {
            name.to_owned()
        } else {
            format!("{place}_{name}")
        }
    }

    fn literal(&mut self, literal: Literal) -> Made {
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
    pub fn ints(&mut self, v: &[i32]) -> Made {
        self.literal(Literal::i32s(v))
    }

    /// An int32 scalar.
    pub fn int(&mut self, v: i32) -> Made {
        self.literal(Literal::i32(v))
    }

    /// A scalar of the form's element type.
    pub fn float(&mut self, v: f32) -> Made {
        let ty = TensorType::scalar(self.form.float);
        self.literal(Literal::Tensor(ty, Data::owned(self.bytes_of(&[v]))))
    }

    /// A tensor of the form's element type.
    pub fn floats(&mut self, v: &[f32], shape: &[usize]) -> Made {
        let ty = TensorType::new(self.form.float, shape.iter().copied());
        self.literal(Literal::Tensor(ty, Data::owned(self.bytes_of(v))))
    }

    fn bytes_of(&self, v: &[f32]) -> Vec<u8> {
        match self.form.float {
            DType::Fp16 => v
                .iter()
                .flat_map(|v| f64_to_f16((*v).into()).to_le_bytes())
                .collect(),
            _ => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    /// A vector of truth values.
    pub fn bools(&mut self, v: &[bool]) -> Made {
        self.literal(Literal::bools(v))
    }

    /// A truth value.
    pub fn bool(&mut self, v: bool) -> Made {
        self.literal(Literal::bool(v))
    }

    /// A string.
    pub fn string(&mut self, v: &'static str) -> Made {
        if let Some(value) = self.strings.get(v) {
            return Ok(*value);
        }
        let value = self.builder.constant("const", Literal::string(v))?;
        self.strings.insert(v, value);
        Ok(value)
    }
}

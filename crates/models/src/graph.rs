//! A function in the making, with the words that layers are written in.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, ValueId};
use thane_mil::types::{DType, Dim, TensorType, Type};

use crate::checkpoint::{Tensor, TensorType as StoredType};
use crate::quant;
use crate::weights::zeros;

/// A value of the graph, or why it cannot be made.
pub type Made = Result<ValueId, BuildError>;

/// The derived constants of the functions of one program, by tensor and part: functions share them, so that a package
/// stores each once.
pub type Derived = Rc<RefCell<HashMap<String, Data>>>;

/// A function in the making; constants that are equal are made once.
pub struct Graph {
    builder: FunctionBuilder,
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), ValueId>,
    strings: HashMap<&'static str, ValueId>,
    weights: HashMap<String, ValueId>,
    derived: Derived,
    place: String,
}

impl Graph {
    /// An empty function of the program that has these derived constants.
    pub fn new(name: &str, derived: Derived) -> Self {
        Self {
            builder: FunctionBuilder::new(name, Opset::CoreMl8),
            constants: HashMap::new(),
            strings: HashMap::new(),
            weights: HashMap::new(),
            derived,
            place: String::new(),
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
        self.builder.function().value(value).ty.tensor_or_state().map_or(&[], |t| &t.shape)
    }

    /// An op with one result, named after the place and `name`.
    pub fn op<const N: usize>(&mut self, op: &str, name: &str, args: [(&'static str, ValueId); N]) -> Made {
        self.op_with(op, name, args.map(|(param, value)| (param, Arg::Value(value))))
    }

    /// As [`Self::op`], with arguments of any kind.
    pub fn op_with<const N: usize>(&mut self, op: &str, name: &str, args: [(&'static str, Arg); N]) -> Made {
        let name = self.name(name);
        self.builder.op(op, &name, args)
    }

    fn name(&self, name: &str) -> String {
        let place = self.place.trim_start_matches("model.").replace('.', "_");
        if place.is_empty() { name.to_owned() } else { format!("{place}_{name}") }
    }

    fn literal(&mut self, literal: Literal) -> Made {
        let Literal::Tensor(ty, data) = &literal else { return self.builder.constant("const", literal) };
        let key = (ty.dtype, ty.known_shape().unwrap_or_default(), data.to_vec());
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

    /// An fp32 scalar.
    pub fn float(&mut self, v: f32) -> Made {
        self.literal(Literal::f32(v))
    }

    /// An fp32 vector.
    pub fn floats(&mut self, v: &[f32]) -> Made {
        self.literal(Literal::f32s(v))
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

    /// An fp32 constant with the numbers of a checkpoint tensor, quantised if it is.
    pub fn weight(&mut self, tensor: &Tensor) -> Made {
        if let Some(value) = self.weights.get(&tensor.name) {
            return Ok(*value);
        }
        let value = match quant::layout(tensor.ty) {
            Some(layout) if tensor.shape.len() == 2 => self.quantised(tensor, layout)?,
            _ if is_half(tensor) => self.half(tensor)?,
            _ => {
                let ty = TensorType::new(DType::Fp32, tensor.shape.iter().copied());
                self.builder.constant(&tensor.name, Literal::Tensor(ty, self.derive(&tensor.name, dense(tensor))))?
            }
        };
        self.weights.insert(tensor.name.clone(), value);
        Ok(value)
    }

    /// fp16 numbers as they are stored, and what widens them.
    fn half(&mut self, tensor: &Tensor) -> Made {
        let ty = TensorType::new(DType::Fp16, tensor.shape.iter().copied());
        let literal = Literal::Tensor(ty, Data::Bytes(tensor.bytes.clone()));
        let stored = self.builder.constant(&format!("{}_fp16", tensor.name), literal)?;
        let dtype = self.string("fp32")?;
        let args = [("source_val", Arg::Value(stored)), ("output_dtype", Arg::Value(dtype))];
        self.builder.op("constexpr_cast", &tensor.name, args)
    }

    /// The constant of that name which another function made already, else `data`.
    fn derive(&self, name: &str, data: Data) -> Data {
        self.derived.borrow_mut().entry(name.to_owned()).or_insert(data).clone()
    }

    fn quantised(&mut self, tensor: &Tensor, layout: quant::Layout) -> Made {
        let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
        let groups = TensorType::new(DType::Fp32, [rows, cols / layout.group]);
        let parts = quant::parts(tensor.ty, layout, &tensor.bytes);
        let part = |suffix: &str| format!("{}_{suffix}", tensor.name);
        let codes = self.derive(&part("codes"), parts.codes);
        let codes = Literal::Tensor(TensorType::new(layout.codes, [rows, cols]), codes);
        let mut data = self.builder.constant(&part("codes"), codes)?;
        if layout.has_table {
            let entries = quant::IQ4_TABLE.map(i8::cast_unsigned).to_vec();
            let ty = TensorType::new(DType::Int8, [1usize, 1, quant::IQ4_TABLE.len(), 1]);
            let lut = self.literal(Literal::Tensor(ty, Data::owned(entries)))?;
            let args = [("indices", Arg::Value(data)), ("lut", Arg::Value(lut))];
            data = self.builder.op("constexpr_lut_to_dense", &part("levels"), args)?;
        }
        let scales = self.derive(&part("scale"), parts.scales);
        let scale = self.builder.constant(&part("scale"), Literal::Tensor(groups.clone(), scales))?;
        let (data, scale) = (("data", Arg::Value(data)), ("scale", Arg::Value(scale)));
        let op = "constexpr_blockwise_shift_scale";
        match parts.offsets {
            None => self.builder.op(op, &tensor.name, [data, scale]),
            Some(offsets) => {
                let offsets = self.derive(&part("offset"), offsets);
                let offset = self.builder.constant(&part("offset"), Literal::Tensor(groups, offsets))?;
                self.builder.op(op, &tensor.name, [data, scale, ("offset", Arg::Value(offset))])
            }
        }
    }

    /// `x @ weight^T + bias`.
    pub fn linear(&mut self, name: &str, x: ValueId, weight: &Tensor, bias: Option<&Tensor>) -> Made {
        let weight = self.weight(weight)?;
        match bias {
            None => self.op("linear", name, [("x", x), ("weight", weight)]),
            Some(bias) => {
                let bias = self.weight(bias)?;
                self.op("linear", name, [("x", x), ("weight", weight), ("bias", bias)])
            }
        }
    }

    /// `x + y`.
    pub fn add(&mut self, x: ValueId, y: ValueId) -> Made {
        self.op("add", "add", [("x", x), ("y", y)])
    }

    /// `x - y`.
    pub fn sub(&mut self, x: ValueId, y: ValueId) -> Made {
        self.op("sub", "sub", [("x", x), ("y", y)])
    }

    /// `x * y`.
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> Made {
        self.op("mul", "mul", [("x", x), ("y", y)])
    }

    /// `x * factor`.
    pub fn scale(&mut self, x: ValueId, factor: f32) -> Made {
        let factor = self.float(factor)?;
        self.mul(x, factor)
    }

    /// `x` in another shape; -1 is what is left over.
    pub fn reshape(&mut self, x: ValueId, shape: &[i32]) -> Made {
        let shape = self.ints(shape)?;
        self.op("reshape", "reshape", [("x", x), ("shape", shape)])
    }

    /// `x` with its axes in another order.
    pub fn transpose(&mut self, x: ValueId, perm: &[i32]) -> Made {
        let perm = self.ints(perm)?;
        self.op("transpose", "transpose", [("x", x), ("perm", perm)])
    }

    /// `x` with dimensions of 1 at `axes`.
    pub fn expand_dims(&mut self, x: ValueId, axes: &[i32]) -> Made {
        let axes = self.ints(axes)?;
        self.op("expand_dims", "expand_dims", [("x", x), ("axes", axes)])
    }

    /// `x` without the dimensions `axes`.
    pub fn squeeze(&mut self, x: ValueId, axes: &[i32]) -> Made {
        let axes = self.ints(axes)?;
        self.op("squeeze", "squeeze", [("x", x), ("axes", axes)])
    }

    /// The two halves of `x` along `axis`.
    pub fn halves(&mut self, x: ValueId, axis: i32) -> Result<[ValueId; 2], BuildError> {
        let (n, axis) = (self.int(2)?, self.int(axis)?);
        let name = self.name("split");
        let args = [("x", Arg::Value(x)), ("num_splits", Arg::Value(n)), ("axis", Arg::Value(axis))];
        let halves = self.builder.op_results("split", &name, args)?;
        Ok([halves[0], halves[1]])
    }

    /// `values` joined along `axis`, by `concat` or `stack`.
    pub fn join(&mut self, op: &str, values: &[ValueId], axis: i32) -> Made {
        let axis = self.int(axis)?;
        self.op_with(op, op, [("values", Arg::Values(values.to_vec())), ("axis", Arg::Value(axis))])
    }

    /// `x` as another element type; itself, where it is of that type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Made {
        if self.builder.function().value(x).ty.tensor().is_some_and(|t| t.dtype == dtype) {
            return Ok(x);
        }
        let dtype = self.string(dtype.name())?;
        self.op("cast", "cast", [("x", x), ("dtype", dtype)])
    }
}

/// Whether a tensor is whole, in fp16.
fn is_half(tensor: &Tensor) -> bool {
    let n = tensor.shape.iter().try_fold(2usize, |n, d| n.checked_mul(*d));
    tensor.ty == StoredType::F16 && n == Some(tensor.bytes.len())
}

/// The bytes of a tensor as fp32.
fn dense(tensor: &Tensor) -> Data {
    let byte_len = tensor.shape.iter().try_fold(4usize, |n, d| n.checked_mul(*d)).unwrap_or(usize::MAX);
    match quant::widened(tensor.ty, &tensor.bytes) {
        Some(data) => data,
        None if tensor.bytes.len() == byte_len => Data::Bytes(tensor.bytes.clone()),
        None => zeros(byte_len),
    }
}

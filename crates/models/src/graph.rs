//! A function in the making, with the words that layers are written in.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::data::Data;
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, ValueId};
use thane_mil::types::{DType, Dim, TensorType, Type};

use crate::checkpoint::{Tensor, TensorType as StoredType};
use crate::numbers::StoredWeight;
use crate::quant;

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

/// The constants of a program that come from tensors.
#[derive(Debug, Default)]
pub struct Constants {
    /// Those that are derived, by tensor and part, so that a package stores each once.
    derived: HashMap<String, Data>,
    /// The tensors, by their names.
    used: BTreeMap<String, StoredWeight>,
}

impl Constants {
    /// The tensors that became constants.
    pub fn stored(&self) -> Vec<StoredWeight> {
        self.used.values().cloned().collect()
    }
}

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

    /// A constant with the numbers of a checkpoint tensor, in the form's element type, quantised if
    /// it is.
    pub fn weight(&mut self, tensor: &Tensor) -> Made {
        self.weight_of_rank(tensor, tensor.shape.len(), 1.0)
    }

    /// A vector of features, with dimensions of 1 behind it up to `rank`.
    pub fn vector(&mut self, tensor: &Tensor, rank: usize) -> Made {
        self.weight_of_rank(tensor, rank, 1.0)
    }

    /// As [`Self::weight`], with dimensions of 1 behind its own up to `rank`, and all numbers over
    /// `divisor`.
    fn weight_of_rank(&mut self, tensor: &Tensor, rank: usize, divisor: f32) -> Made {
        let key = (tensor.name.clone(), rank, divisor.to_bits());
        if let Some(value) = self.weights.get(&key) {
            return Ok(*value);
        }
        self.note_use(tensor, divisor);
        let ones = rank.saturating_sub(tensor.shape.len());
        let as_stored = self.form.float == DType::Fp32 && ones == 0 && divisor == 1.0;
        let value = match quant::parts(tensor.ty, &tensor.bytes) {
            Some(parts) if as_stored && tensor.shape.len() == 2 => self.quantized(tensor, parts)?,
            _ if as_stored && is_half(tensor) => self.half(tensor)?,
            _ => {
                let shape = tensor
                    .shape
                    .iter()
                    .copied()
                    .chain(std::iter::repeat_n(1, ones));
                let ty = TensorType::new(self.form.float, shape);
                let data = self.numbers(tensor, divisor);
                self.builder
                    .constant(&tensor.name, Literal::Tensor(ty, data))?
            }
        };
        self.weights.insert(key, value);
        Ok(value)
    }

    fn note_use(&self, tensor: &Tensor, divisor: f32) {
        let first = || StoredWeight {
            tensor: tensor.clone(),
            divisor,
            float: self.form.float,
        };
        let mut shared = self.shared.borrow_mut();
        let weight = shared.used.entry(tensor.name.clone()).or_insert_with(first);
        weight.divisor = weight.divisor.min(divisor);
    }

    /// The numbers over `divisor`, in the form's element type.
    fn numbers(&self, tensor: &Tensor, divisor: f32) -> Data {
        match self.form.float {
            DType::Fp16 if is_half(tensor) && divisor == 1.0 => Data::Bytes(tensor.bytes.clone()),
            DType::Fp32 if divisor == 1.0 => self.derive(&tensor.name, dense(tensor)),
            float => {
                let data = quant::divided(dense(tensor), divisor, float);
                self.derive(&format!("{}/{divisor}", tensor.name), data)
            }
        }
    }

    /// fp16 numbers as they are stored, and what widens them.
    fn half(&mut self, tensor: &Tensor) -> Made {
        let ty = TensorType::new(DType::Fp16, tensor.shape.iter().copied());
        let literal = Literal::Tensor(ty, Data::Bytes(tensor.bytes.clone()));
        let stored = self
            .builder
            .constant(&format!("{}_fp16", tensor.name), literal)?;
        let dtype = self.string("fp32")?;
        let args = [
            ("source_val", Arg::Value(stored)),
            ("output_dtype", Arg::Value(dtype)),
        ];
        self.builder.op("constexpr_cast", &tensor.name, args)
    }

    /// The constant of that name which another function made already, else `data`.
    fn derive(&self, name: &str, data: Data) -> Data {
        self.shared
            .borrow_mut()
            .derived
            .entry(name.to_owned())
            .or_insert(data)
            .clone()
    }

    fn quantized(&mut self, tensor: &Tensor, parts: quant::Parts) -> Made {
        let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
        let groups = TensorType::new(DType::Fp32, [rows, cols / parts.group_len]);
        let part = |suffix: &str| format!("{}_{suffix}", tensor.name);
        let codes = self.derive(&part("codes"), parts.codes);
        let codes = Literal::Tensor(TensorType::new(parts.code_type, [rows, cols]), codes);
        let mut data = self.builder.constant(&part("codes"), codes)?;
        if let Some(table) = parts.table {
            let entries = table.map(i8::cast_unsigned).to_vec();
            let ty = TensorType::new(DType::Int8, [1usize, 1, table.len(), 1]);
            let lut = self.literal(Literal::Tensor(ty, Data::owned(entries)))?;
            let args = [("indices", Arg::Value(data)), ("lut", Arg::Value(lut))];
            data = self
                .builder
                .op("constexpr_lut_to_dense", &part("levels"), args)?;
        }
        let scales = self.derive(&part("scale"), parts.scales);
        let scale = self
            .builder
            .constant(&part("scale"), Literal::Tensor(groups.clone(), scales))?;
        let (data, scale) = (("data", Arg::Value(data)), ("scale", Arg::Value(scale)));
        let op = "constexpr_blockwise_shift_scale";
        match parts.offsets {
            None => self.builder.op(op, &tensor.name, [data, scale]),
            Some(offsets) => {
                let offsets = self.derive(&part("offset"), offsets);
                let offset = self
                    .builder
                    .constant(&part("offset"), Literal::Tensor(groups, offsets))?;
                self.builder.op(
                    op,
                    &tensor.name,
                    [data, scale, ("offset", Arg::Value(offset))],
                )
            }
        }
    }

    /// `x @ weight^T + bias`, along the features.
    pub fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Made {
        self.product(name, x, weight, bias, 1.0)
    }

    /// As [`Self::linear`], of x with its features last whatever the layout is.
    pub fn rows_linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Made {
        let bias = bias.map(|b| self.weight(b)).transpose()?;
        let weight = self.weight(weight)?;
        self.linear_of(name, x, weight, bias)
    }

    fn linear_of(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> Made {
        match bias {
            None => self.op("linear", name, [("x", x), ("weight", weight)]),
            Some(bias) => self.op(
                "linear",
                name,
                [("x", x), ("weight", weight), ("bias", bias)],
            ),
        }
    }

    /// As [`Self::linear`], for a product that is added to the residual stream.
    pub fn linear_to_residual(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Made {
        self.product(name, x, weight, bias, self.residual_divisor)
    }

    fn product(
        &mut self,
        name: &str,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
        divisor: f32,
    ) -> Made {
        let bias = bias
            .map(|b| self.weight_of_rank(b, 1, divisor))
            .transpose()?;
        if self.form.layout == Layout::Rows {
            let weight = self.weight_of_rank(weight, 2, divisor)?;
            return self.linear_of(name, x, weight, bias);
        }
        let weight = self.weight_of_rank(weight, 4, divisor)?; // [out, in, 1, 1]
        let (ones, zeros, group) = (self.ints(&[1, 1])?, self.ints(&[0; 4])?, self.int(1)?);
        let valid = self.string("valid")?;
        let args = [
            ("x", x),
            ("weight", weight),
            ("strides", ones),
            ("pad_type", valid),
            ("pad", zeros),
            ("dilations", ones),
            ("groups", group),
        ];
        match bias {
            None => self.op("conv", name, args),
            Some(bias) => {
                let [x, weight, strides, kind, pad, dilations, groups] = args;
                self.op(
                    "conv",
                    name,
                    [
                        x,
                        weight,
                        strides,
                        kind,
                        pad,
                        dilations,
                        groups,
                        ("bias", bias),
                    ],
                )
            }
        }
    }

    /// Rows of a table, [batch, tokens, features], over the residual divisor.
    pub fn rows_to_residual(&mut self, table: &Tensor, indices: ValueId) -> Made {
        let table = self.weight_of_rank(table, 2, self.residual_divisor)?;
        self.gather(table, indices)
    }

    /// Rows of a table.
    pub fn gather(&mut self, table: ValueId, indices: ValueId) -> Made {
        let axis = self.int(0)?;
        self.op(
            "gather",
            "rows",
            [("x", table), ("indices", indices), ("axis", axis)],
        )
    }

    /// `x` reduced along `axis`, which stays as a dimension of 1.
    pub fn reduce(&mut self, op: &str, x: ValueId, axis: i32) -> Made {
        let (axes, keep) = (self.ints(&[axis])?, self.bool(true)?);
        self.op(op, op, [("x", x), ("axes", axes), ("keep_dims", keep)])
    }

    /// Axes of `x` from `axis` on.
    pub fn rank_from(&self, x: ValueId, axis: i32) -> usize {
        let rank = self.shape(x).len();
        usize::try_from(axis).map_or(axis.unsigned_abs() as usize, |at| rank - at)
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

    /// The last of `x` along `axis`, which stays.
    pub fn last(&mut self, x: ValueId, axis: usize) -> Made {
        let rank = self.shape(x).len();
        let is_axis = |i: usize| i == axis;
        let begin: Vec<i32> = (0..rank).map(|i| -i32::from(is_axis(i))).collect();
        let all_but_axis: Vec<bool> = (0..rank).map(|i| !is_axis(i)).collect();
        let (begin, end) = (self.ints(&begin)?, self.ints(&vec![0; rank])?);
        let (begin_mask, end_mask) = (self.bools(&all_but_axis)?, self.bools(&vec![true; rank])?);
        let args = [
            ("x", x),
            ("begin", begin),
            ("end", end),
            ("begin_mask", begin_mask),
            ("end_mask", end_mask),
        ];
        self.op("slice_by_index", "last", args)
    }

    /// The two halves of `x` along `axis`.
    pub fn halves(&mut self, x: ValueId, axis: i32) -> Result<[ValueId; 2], BuildError> {
        let halves = self.split(x, 2, axis)?;
        Ok([halves[0], halves[1]])
    }

    /// The `n` equal parts of `x` along `axis`.
    pub fn split(&mut self, x: ValueId, n: i32, axis: i32) -> Result<Vec<ValueId>, BuildError> {
        let (n, axis) = (self.int(n)?, self.int(axis)?);
        let name = self.name("split");
        let args = [
            ("x", Arg::Value(x)),
            ("num_splits", Arg::Value(n)),
            ("axis", Arg::Value(axis)),
        ];
        self.builder.op_results("split", &name, args)
    }

    /// `values` joined along `axis`, by `concat` or `stack`.
    pub fn join(&mut self, op: &str, values: &[ValueId], axis: i32) -> Made {
        let axis = self.int(axis)?;
        self.op_with(
            op,
            op,
            [
                ("values", Arg::Values(values.to_vec())),
                ("axis", Arg::Value(axis)),
            ],
        )
    }

    /// `x` as another element type; itself, where it is of that type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Made {
        if self
            .builder
            .function()
            .value(x)
            .ty
            .tensor()
            .is_some_and(|t| t.dtype == dtype)
        {
            return Ok(x);
        }
        let dtype = self.string(dtype.name())?;
        self.op("cast", "cast", [("x", x), ("dtype", dtype)])
    }
}

/// Whether a tensor is whole, in fp16.
fn is_half(tensor: &Tensor) -> bool {
    let n = tensor
        .shape
        .iter()
        .try_fold(2usize, |n, d| n.checked_mul(*d));
    tensor.ty == StoredType::F16 && n == Some(tensor.bytes.len())
}

/// The bytes of a tensor as fp32.
pub fn dense(tensor: &Tensor) -> Data {
    let byte_len = tensor
        .shape
        .iter()
        .try_fold(4usize, |n, d| n.checked_mul(*d))
        .unwrap_or(usize::MAX);
    match quant::widened(tensor.ty, &tensor.bytes)
        .or_else(|| quant::dequantized(tensor.ty, &tensor.bytes))
    {
        Some(data) if data.byte_len() == byte_len => data,
        None if tensor.bytes.len() == byte_len => Data::Bytes(tensor.bytes.clone()),
        _ => Data::zeros(byte_len),
    }
}

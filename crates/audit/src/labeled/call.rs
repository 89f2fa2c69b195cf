//! Builds a program that calls one op as a description says, with default arguments where it says
//! nothing.
//!
//! The opset defines which parameters an op has; default arguments follow from their names and
//! kinds.

use std::sync::Arc;

use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::data::{Data, Packed, Source};
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::{Accepts, Opset, Param, find_in};
use thane_mil::program::{Arg, Definition, OpId, Program, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::argument::{Argument, OpCall};
use super::defaults;
use super::notation::Notation;

/// Weights of more elements than this are a mistake of the description.
const MAX_WEIGHT: usize = 1 << 31;
/// So are other constants of more than this, which inference reads.
const MAX_ELEMENTS: usize = 1 << 20;

/// Why no program can be made.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no such op.
    #[error("the opset has no op `{0}`")]
    NoOp(String),
    /// A parameter must be bound and nothing says to what.
    #[error("op `{op}`: nothing says what `{param}` is")]
    Unknown {
        /// The op.
        op: &'static str,
        /// Its parameter.
        param: &'static str,
    },
    /// The arguments do not fit.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// A program and the op of it that is described.
pub struct Called {
    /// The program: one function.
    pub program: Program,
    /// The op.
    pub op: OpId,
}

/// Make a program that calls an op as described.
pub fn call(op: &str, notation: &Notation) -> Result<Called, CallError> {
    let def = find_in(op, Opset::CoreMl8).ok_or_else(|| CallError::NoOp(op.to_owned()))?;
    let builder = FunctionBuilder::new("main", Opset::CoreMl8);
    let x = defaults::first_shape(def.name, notation);
    let dtype = defaults::element_type(def, notation);
    let call = OpCall {
        def,
        notation,
        x,
        dtype,
    };
    Caller { builder, call }.run()
}

type Made = Result<ValueId, CallError>;

/// The function that an op is being called in.
struct Caller<'a> {
    builder: FunctionBuilder,
    call: OpCall<'a>,
}

impl Caller<'_> {
    fn run(mut self) -> Result<Called, CallError> {
        let mut args = Vec::new();
        for param in self.call.def.params {
            if let Some(arg) = self.argument(param)? {
                args.push((param.name, arg));
            }
        }
        let blocks = match self.call.def.name {
            "cond" => vec![self.block(None), self.block(None)],
            "while_loop" => vec![
                self.block(Some(DType::Bool)),
                self.block(Some(self.call.dtype)),
            ],
            _ => Vec::new(),
        };
        let results = self
            .builder
            .op_with_blocks(self.call.def.name, "result", args, blocks)?;
        self.finish(results)
    }

    fn argument(&mut self, param: &'static Param) -> Result<Option<Arg>, CallError> {
        let unknown = || CallError::Unknown {
            op: self.call.def.name,
            param: param.name,
        };
        let argument = defaults::argument(&self.call, param).ok_or_else(unknown)?;
        Ok(Some(match argument {
            Argument::Left if param.required => return Err(unknown()),
            Argument::Left => return Ok(None),
            Argument::Input(DType::Bool, shape) => Arg::Value(self.truth(&shape)?),
            Argument::Input(dtype, shape) => Arg::Value(self.input(param.name, dtype, &shape)?),
            Argument::Inputs(shapes) => {
                let values: Result<_, _> = shapes
                    .iter()
                    .map(|s| self.input(param.name, self.call.dtype, s))
                    .collect();
                Arg::Values(values?)
            }
            Argument::Filled(dtype, shape, number) => {
                Arg::Value(self.filled(param.name, dtype, &shape, number)?)
            }
            Argument::Is(literal) if param.accepts == Accepts::Tensors => {
                Arg::Values(vec![self.builder.constant(param.name, literal)?])
            }
            Argument::Is(literal) => Arg::Value(self.builder.constant(param.name, literal)?),
        }))
    }

    fn op<const N: usize>(
        &mut self,
        op: &str,
        name: &str,
        args: [(&'static str, ValueId); N],
    ) -> Made {
        let args = args.map(|(name, value)| (name, Arg::Value(value)));
        Ok(self.builder.op(op, name, args)?)
    }

    /// A tensor of the call; what Core ML cannot pass is cast or made from what it can.
    fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Made {
        let ty = |dtype| TensorType::new(dtype, shape.iter().copied());
        let mut params = self.call.def.params.iter();
        match params.find(|p| p.name == name).map(|p| p.accepts) {
            Some(Accepts::State) => {
                return Ok(self.builder.input(name, Type::State(ty(dtype))));
            }
            Some(Accepts::List) => {
                let size = self.builder.constant("size", Literal::i32(4))?;
                let args = [("elem_shape", Arg::Values(vec![size]))];
                return Ok(self.builder.op("make_list", "list", args)?);
            }
            _ => {}
        }
        if shape.is_empty() {
            let vector = self.builder.input(name, TensorType::new(dtype, [1usize]));
            return self.op("squeeze", "scalar", [("x", vector)]);
        }
        if dtype == DType::Int8 || dtype == DType::Uint8 {
            return self.quantized(name, dtype, shape);
        }
        let is_wide = self.call.notation.says(&["io", "o"]);
        let edge = if is_wide { DType::Fp32 } else { dtype };
        let input = self.builder.input(name, ty(edge));
        if edge == dtype {
            Ok(input)
        } else {
            self.cast(input, dtype)
        }
    }

    fn cast(&mut self, value: ValueId, dtype: DType) -> Made {
        let name = Literal::string(dtype.name());
        let name = self.builder.constant("dtype", name)?;
        self.op("cast", "cast", [("x", value), ("dtype", name)])
    }

    /// 8-bit numbers as programs have them: quantized fp16.
    fn quantized(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Made {
        let ty = TensorType::new(DType::Fp16, shape.iter().copied());
        let input = self.builder.input(name, ty);
        let scale = self.filled("scale", DType::Fp16, &[], 0.125)?;
        let to = Literal::string(dtype.name());
        let to = self.builder.constant("output_dtype", to)?;
        let args = [("input", input), ("scale", scale), ("output_dtype", to)];
        self.op("quantize", "quantized", args)
    }

    /// Truth values are compared from numbers: no call passes them.
    fn truth(&mut self, shape: &[usize]) -> Made {
        let axes = shape.iter().copied().chain(shape.is_empty().then_some(1));
        let ty = TensorType::new(DType::Fp16, axes);
        let x = self.builder.input("compared", ty);
        let zero = self.filled("zero", DType::Fp16, &[], 0.0)?;
        let greater = self.op("greater", "truth", [("x", x), ("y", zero)])?;
        if shape.is_empty() {
            return self.op("squeeze", "scalar", [("x", greater)]);
        }
        Ok(greater)
    }

    fn filled(&mut self, name: &str, dtype: DType, shape: &[usize], number: f64) -> Made {
        let ty = TensorType::new(dtype, shape.iter().copied());
        let most = if matches!(name, "weight" | "weight_ih" | "weight_hh" | "x" | "y") {
            MAX_WEIGHT
        } else {
            MAX_ELEMENTS
        };
        let n = ty.n_elements().filter(|n| *n <= most);
        let element = element(dtype, number).zip(n);
        let (element, n) = element.ok_or(CallError::Unknown {
            op: self.call.def.name,
            param: "weight",
        })?;
        let data = Data::Source(Arc::new(Repeated { element, n }));
        Ok(self.builder.constant(name, Literal::Tensor(ty, data))?)
    }

    /// A block that gives a truth value, or what it takes, or a tensor of the call.
    fn block(&mut self, gives: Option<DType>) -> thane_mil::program::BlockId {
        let ty = Type::Tensor(TensorType::new(
            self.call.dtype,
            self.call.x.iter().copied(),
        ));
        let inputs = gives.map(|_| ("taken", ty));
        let taken = self.builder.begin_block(inputs.as_slice());
        let value = match (gives, taken.first()) {
            (Some(DType::Bool), _) => self.builder.constant("go", Literal::bool(false)).ok(),
            (Some(_), taken) => taken.copied(),
            _ => self
                .filled("one", self.call.dtype, &self.call.x.clone(), 1.0)
                .ok(),
        };
        self.builder.end_block(value.as_slice())
    }

    /// Let the results leave the program as Core ML can give them out.
    fn finish(mut self, results: Vec<ValueId>) -> Result<Called, CallError> {
        let mut outputs = Vec::new();
        for result in &results {
            let ty = self.builder.function().value(*result).ty.clone();
            let out = match ty.tensor().map(|t| t.dtype) {
                Some(DType::Bool) => self.cast(*result, DType::Fp16)?,
                Some(DType::Int8 | DType::Uint8)
                    if !self.call.notation.says(&["output"]) && self.call.def.name != "cast" =>
                {
                    self.dequantized(*result)?
                }
                Some(_) if self.call.notation.says(&["io", "o"]) => {
                    self.cast(*result, DType::Fp32)?
                }
                _ => *result,
            };
            outputs.push(("y", out));
        }
        let Some(Definition::Result(op, _)) = results
            .first()
            .map(|r| self.builder.function().value(*r).definition)
        else {
            return Err(CallError::Unknown {
                op: self.call.def.name,
                param: "result",
            });
        };
        let function = self.builder.finish(&outputs);
        Ok(Called {
            program: Program::new(vec![function]),
            op,
        })
    }

    fn dequantized(&mut self, value: ValueId) -> Made {
        let scale = self.filled("scale", DType::Fp16, &[], 0.125)?;
        self.op("dequantize", "back", [("input", value), ("scale", scale)])
    }
}

/// A constant of one number.
struct Repeated {
    element: Vec<u8>,
    n: usize,
}

impl Source for Repeated {
    fn byte_len(&self) -> usize {
        self.element.len() * self.n
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let element = self
            .element
            .iter()
            .cycle()
            .skip(offset % self.element.len());
        out.iter_mut()
            .zip(element)
            .for_each(|(to, from)| *to = *from);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// The bytes of a number.
fn element(dtype: DType, number: f64) -> Option<Vec<u8>> {
    let whole = number as i64;
    Some(match dtype {
        DType::Fp16 => f64_to_f16(number).to_le_bytes().to_vec(),
        DType::Fp32 => (number as f32).to_le_bytes().to_vec(),
        DType::Int32 => i32::try_from(whole).ok()?.to_le_bytes().to_vec(),
        DType::Uint32 => u32::try_from(whole).ok()?.to_le_bytes().to_vec(),
        DType::Int16 => i16::try_from(whole).ok()?.to_le_bytes().to_vec(),
        DType::Uint16 => u16::try_from(whole).ok()?.to_le_bytes().to_vec(),
        DType::Int8 => i8::try_from(whole).ok()?.to_le_bytes().to_vec(),
        DType::Uint8 => u8::try_from(whole).ok()?.to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(number != 0.0)],
        _ => return None,
    })
}

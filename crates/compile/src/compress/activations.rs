//! 8-bit activations: `quantize` and `dequantize` before products, as coremltools'
//! `linear_quantize_activations` writes them.
//!
//! ```text
//! y = conv(x = x, weight = w);
//! ```
//!
//! becomes
//!
//! ```text
//! x_quantized = quantize(input = x, scale = s, output_dtype = "int8");
//! x_dequantized = dequantize(input = x_quantized, scale = s);
//! y = conv(x = x_dequantized, weight = w);
//! ```
//!
//! The scale is that of the tensor, `s = range / 127`, and there is no zero point. Products in one
//! block that take the same value with the same scale share the two ops.

use std::collections::{HashMap, HashSet};

use thane_mil::data::Data;
use thane_mil::edit::{New, NewArg, Patch};
use thane_mil::graph::Graph;
use thane_mil::literal::Literal;
use thane_mil::opset::{self, OpDef};
use thane_mil::program::{Arg, Function, OpId, Origin, Program, ValueId};
use thane_mil::types::DType;

use super::importance::{Importance, product};
use super::sites::Found;
use super::write::NAME;
use crate::rewrite::{bytes_of, same};
use crate::weights::Constant;

/// The largest code: the least is not its negative less one, as in coremltools' symmetric mode.
const LARGEST_CODE: f32 = 127.0;
/// The least scale: fp16 has no normal number below.
const LEAST_SCALE: f32 = 1.0 / 16_384.0;
/// The largest scale that fp16 holds.
const LARGEST_SCALE: f32 = 65_504.0;

/// A product whose activations become 8-bit integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantized {
    /// The product.
    pub op: OpId,
    /// The greatest magnitude that is kept.
    pub range: f32,
}

/// The products whose activations are quantized, as they are found.
pub struct Activations<'a> {
    program: &'a Program,
    /// Knows the ranges; `None` if activations stay floating point.
    importance: Option<&'a dyn Importance>,
    /// By function.
    pub quantized: Vec<Vec<Quantized>>,
    /// Products of which nothing is known.
    pub n_unknown: usize,
}

impl<'a> Activations<'a> {
    /// None yet.
    pub fn new(program: &'a Program, importance: Option<&'a dyn Importance>) -> Self {
        Self {
            program,
            importance,
            quantized: vec![Vec::new(); program.functions().len()],
            n_unknown: 0,
        }
    }

    /// The products of a weight.
    pub fn add(&mut self, function: usize, weight: &Found) {
        let Some(importance) = self.importance else {
            return;
        };
        let f = &self.program.functions()[function];
        for op in weight.users.iter().filter(|op| is_quantizable(f, **op)) {
            match product(f, weight.value, *op).and_then(|product| importance.range(&product)) {
                Some(range) => self.quantized[function].push(Quantized { op: *op, range }),
                None => self.n_unknown += 1,
            }
        }
    }
}

/// True if the activations of a product can be quantized: coremltools quantizes those of such ops,
/// unless they are constants.
pub fn is_quantizable(f: &Function, op: OpId) -> bool {
    let op = f.op(op);
    let is_constant = |x| f.definer(x).is_some_and(|op| op.def.is_constexpr());
    let is_product = matches!(op.def.name, "conv" | "linear");
    is_product && op.value_arg("x").is_some_and(|x| !is_constant(x))
}

/// Quantizes what these products of a function take.
pub fn patch(graph: &Graph<'_>, products: &[Quantized]) -> Result<Patch, String> {
    let mut writer = Writer {
        graph,
        patch: Patch::new(),
        top: graph.f.body().ops.iter().copied().collect(),
        known: HashMap::new(),
    };
    for product in products {
        writer.quantize(product)?;
    }
    Ok(writer.patch)
}

struct Writer<'a> {
    graph: &'a Graph<'a>,
    patch: Patch,
    /// Ops that no loop is around: what they make, all ops behind them can use.
    top: HashSet<OpId>,
    /// Values that are quantized already, by value and scale.
    known: HashMap<(ValueId, u32), New>,
}

impl Writer<'_> {
    fn def(&self, kind: &str) -> Result<&'static OpDef, String> {
        let opset = self.graph.f.opset;
        opset::find_in(kind, opset).ok_or_else(|| format!("{} has no {kind}", opset.name()))
    }

    fn quantize(&mut self, product: &Quantized) -> Result<(), String> {
        let op = self.graph.op(product.op);
        let (Some(x), [result]) = (op.value_arg("x"), &op.results[..]) else {
            return Err("it is no product of an activation".to_owned());
        };
        let scale = (product.range / LARGEST_CODE).clamp(LEAST_SCALE, LARGEST_SCALE);
        let key = (x, scale.to_bits());
        let is_top = self.top.contains(&product.op);
        let quantized = match self.known.get(&key).filter(|_| is_top) {
            Some(known) => *known,
            None => self.pair(product.op, x, scale)?,
        };
        if is_top {
            self.known.insert(key, quantized);
        }
        let args = op.def.params.iter().zip(&op.args);
        let args = args.filter_map(|(param, arg)| {
            let arg = same(arg.as_ref()?);
            let is_x = param.name == "x";
            Some((param.name, if is_x { NewArg::One(quantized) } else { arg }))
        });
        let name = self.graph.name(*result).to_owned();
        let args = args.collect();
        let origin = op.origin.clone();
        let new = self.patch.insert(product.op, op.def, args, name, origin);
        self.patch.replace(*result, new);
        self.patch.remove(product.op);
        Ok(())
    }

    /// The two ops before a product.
    fn pair(&mut self, at: OpId, x: ValueId, scale: f32) -> Result<New, String> {
        let dtype = self.graph.dtype(x).unwrap_or(DType::Fp16);
        let scale = Constant {
            dtype,
            shape: Vec::new(),
            data: Data::owned(bytes_of(dtype, std::iter::once(scale))),
        };
        let literal = |literal| NewArg::Same(Arg::Literal(literal));
        let scale = || ("scale", literal(scale.clone().literal()));
        let name = self.graph.name(x).to_owned();
        let origin = Origin {
            place: self.graph.op(at).origin.place.clone(),
            pass: Some(NAME),
        };
        let output = ("output_dtype", literal(Literal::string("int8")));
        let args = vec![("input", NewArg::One(New::Value(x))), scale(), output];
        let def = self.def("quantize")?;
        let patch = &mut self.patch;
        let codes = patch.insert(at, def, args, format!("{name}_quantized"), origin.clone());
        let args = vec![("input", NewArg::One(codes)), scale()];
        let def = self.def("dequantize")?;
        let name = format!("{name}_dequantized");
        Ok(self.patch.insert(at, def, args, name, origin))
    }
}

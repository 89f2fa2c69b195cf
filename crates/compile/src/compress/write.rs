//! Writes a compressed constant as ops, and the scales of its channels behind the products that use
//! it.

use std::sync::Arc;

use thane_mil::data::Data;
use thane_mil::edit::{NewArg, Patch};
use thane_mil::graph::Graph;
use thane_mil::literal::Literal;
use thane_mil::opset::{self, OpDef, Opset};
use thane_mil::pattern::Match;
use thane_mil::program::{Arg, OpId};
use thane_mil::types::{DType, TensorType};

use super::job::Job;
use super::sites::{Found, scale_shape};
use super::{Blocks, Codes, Encoding, Part, Scale};
use crate::compressed::parts::{bytes, shape_literal};
use crate::rewrite::{NamedArg, Rewrite, Value};
use crate::weights::Constant;

/// The name of what writes, which the origin of each new op has: passes and fixes can tell that a
/// `mul` holds the scales of a compressed weight.
pub const NAME: &str = "compress";

/// What stands in the place of a constant.
pub fn patch(
    graph: &Graph<'_>,
    found: &Found,
    scale: Scale,
    job: &Arc<Job>,
) -> Result<Patch, String> {
    let encoding = job.encoding();
    let new = Rewrite::new(graph, Match::of(graph.f, found.op), NAME);
    let writer = Writer {
        new: &new,
        found,
        encoding,
        // Jobs do not see axes of length 1 behind the others.
        parts: encoding.parts(&found.matrix, found.constant.dtype, job.has_scales()),
        job,
    };
    let weight = writer.weight(scale)?;
    if scale == Scale::Behind {
        for user in &found.users {
            writer.scaled(*user, weight)?;
        }
    } else {
        new.replace(found.value, weight);
    }
    new.remove(found.op);
    Ok(new.finish())
}

struct Writer<'a> {
    new: &'a Rewrite<'a>,
    found: &'a Found,
    encoding: Encoding,
    parts: Vec<Part>,
    job: &'a Arc<Job>,
}

impl<'a> Writer<'a> {
    fn opset(&self) -> Opset {
        self.new.graph.f.opset
    }

    fn def(&self, kind: &str) -> Result<&'static OpDef, String> {
        let opset = self.opset();
        opset::find_in(kind, opset).ok_or_else(|| format!("{} has no {kind}", opset.name()))
    }

    /// A part of the job.
    fn part(&self, k: usize) -> Constant {
        let part = &self.parts[k];
        Constant {
            dtype: part.dtype,
            shape: part.shape.clone(),
            data: self.job.data(k),
        }
    }

    /// The parts by their names, as values.
    fn args(&self) -> Vec<NamedArg> {
        let n = self.parts.len() - usize::from(self.job.has_scales());
        let args = self.parts[..n].iter().enumerate().map(|(k, part)| {
            let value = self.new.literal(self.part(k).literal());
            (part.name, NewArg::One(value.new))
        });
        args.collect()
    }

    /// The scales of channels, which are the last part.
    fn scales(&self) -> Constant {
        self.part(self.parts.len() - 1)
    }

    /// The ops that compute the weight.
    fn weight(&self, scale: Scale) -> Result<Value<'a>, String> {
        if self.opset() < Opset::CoreMl8 {
            return self.packed();
        }
        let float = self.found.constant.dtype;
        let is_sparse = self.encoding.sparsity.is_some();
        let define = |kind: &str, args| Ok(self.new.define(self.def(kind)?, args, float));
        let mut args = self.args();
        let dense = match self.encoding.codes {
            None => define("constexpr_sparse_to_dense", args),
            Some(Codes::Palette(..)) if !is_sparse => define("constexpr_lut_to_dense", args),
            Some(Codes::Vectors { .. }) => {
                let axis = self.new.int(self.found.matrix.axis as i32);
                args.push(("vector_axis", NewArg::One(axis.new)));
                define("constexpr_lut_to_dense", args)
            }
            Some(Codes::Integers(..)) if !is_sparse => {
                define("constexpr_blockwise_shift_scale", args)
            }
            Some(codes) => {
                let kind = match codes {
                    Codes::Integers(..) => "constexpr_sparse_blockwise_shift_scale",
                    _ => "constexpr_lut_to_sparse",
                };
                let sparse = define(kind, args)?;
                let args = vec![
                    ("nonzero_data", NewArg::One(sparse.result(1).new)),
                    ("mask", NewArg::One(sparse.result(0).new)),
                ];
                define("constexpr_sparse_to_dense", args)
            }
        }?;
        if scale != Scale::Inside {
            return Ok(dense);
        }
        let scales = self.new.literal(self.scales().literal());
        let args = vec![
            ("data", NewArg::One(dense.new)),
            ("scale", NewArg::One(scales.new)),
        ];
        define("constexpr_blockwise_shift_scale", args)
    }

    /// The op of systems before iOS 18, which holds its parts as attributes.
    fn packed(&self) -> Result<Value<'a>, String> {
        let float = self.found.constant.dtype;
        let literal = |constant: Constant| NewArg::Same(Arg::Literal(constant.literal()));
        let vector = |k: usize| {
            let part = self.part(k);
            let n = part.shape.iter().product();
            part.reshaped(vec![n])
        };
        let shape = || NewArg::Same(Arg::Literal(shape_literal(&self.found.matrix.shape)));
        let (kind, args) = match self.encoding.codes {
            None => (
                "constexpr_sparse_to_dense",
                vec![
                    ("nonzero_data", literal(self.part(1))),
                    ("mask", literal(bytes(self.part(0)))),
                    ("shape", shape()),
                ],
            ),
            Some(Codes::Palette(..)) => (
                "constexpr_lut_to_dense",
                vec![
                    ("indices", literal(bytes(self.part(0)))),
                    ("lut", literal(vector(1))),
                    ("shape", shape()),
                ],
            ),
            Some(Codes::Integers(_, blocks)) => {
                let scale = match blocks {
                    Blocks::Tensor => self.part(1).reshaped(Vec::new()),
                    _ => vector(1),
                };
                let zero = Literal::Tensor(TensorType::scalar(DType::Int8), Data::owned(vec![0]));
                let axis = Literal::i32(self.found.matrix.axis as i32);
                (
                    "constexpr_affine_dequantize",
                    vec![
                        ("quantized_data", literal(self.part(0))),
                        ("zero_point", NewArg::Same(Arg::Literal(zero))),
                        ("scale", literal(scale)),
                        ("axis", NewArg::Same(Arg::Literal(axis))),
                    ],
                )
            }
            Some(Codes::Vectors { .. }) => return Err("vectors need iOS 18".to_owned()),
        };
        Ok(self.new.define(self.def(kind)?, args, float))
    }

    /// Writes a product anew with the compressed weight, its channels scaled behind it, and its
    /// bias behind that.
    fn scaled(&self, user: OpId, weight: Value<'a>) -> Result<(), String> {
        let (new, graph) = (self.new, self.new.graph);
        let op = graph.op(user);
        let channels = self.found.matrix.channels();
        let shape = scale_shape(graph, op, channels).ok_or("its result has no axis of channels")?;
        let result = *op.results.first().ok_or("it has no result")?;
        let weight_name = ["weight", "x", "y"]
            .into_iter()
            .find(|name| op.value_arg(name) == Some(self.found.value))
            .ok_or("the weight is another argument")?;
        new.before(user);
        let product = new.again_without(op, &[(weight_name, weight)], "bias");
        let scales = self.like(self.scales().reshaped(shape.clone()), product.dtype);
        let args = vec![
            ("x", NewArg::One(product.new)),
            ("y", NewArg::One(scales.new)),
        ];
        let name = format!("{}_channel_scale", graph.name(result));
        let mut value = new.named(self.def("mul")?, args, product.dtype, name);
        if let Some(bias) = Constant::of(graph, op, "bias") {
            value = value + self.like(bias.reshaped(shape), product.dtype);
        }
        new.replace(result, value);
        new.remove(user);
        Ok(())
    }

    /// A constant in the element type of what it is combined with.
    fn like(&self, constant: Constant, dtype: DType) -> Value<'a> {
        let constant = match constant.dtype == dtype {
            true => constant,
            false => constant.map(dtype, |x| x),
        };
        self.new.literal(constant.literal())
    }
}

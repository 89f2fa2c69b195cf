//! Weights as fixes cut them: plain constants, and constants computed from codes, scales and
//! palettes.
//!
//! A weight is the op that computes it and the parts that the op computes it from, each with how
//! its elements belong to those of the weight. A part of a compressed weight is compressed in the
//! same way, from parts of its parts. Two ops in a row may compute it: tables and then scales of
//! channels, or kept elements and then the dense tensor. A cut that does not fall on the border of
//! a block of scales or of a palette is refused.

pub(crate) mod parts;

use parts::{bytes, code_type, kept, rows_of, shape_literal};
use thane_mil::edit::NewArg;
use thane_mil::graph::{Graph, wrap};
use thane_mil::literal::Literal;
use thane_mil::opset::OpDef;
use thane_mil::program::{Arg, Op};
use thane_mil::types::DType;

use crate::rewrite::{NamedArg, Rewrite, Value};
use crate::weights::Constant;

/// A constant operand of a product.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// The op that computes it; a plain constant has none.
    def: Option<&'static OpDef>,
    parts: Vec<Component>,
    /// What the op multiplies by scales, where another op computes that.
    inner: Option<Box<Weight>>,
    /// The op that computes the kept elements of a sparse weight, which has the parts.
    sparse: Option<&'static OpDef>,
    /// The parameter that names an axis, and that axis.
    axis: Option<(&'static str, usize)>,
    /// Whether the op is told the shape.
    states_shape: bool,
    /// An argument that stays as it is.
    other: Option<(&'static str, Literal)>,
}

/// What a weight is computed from.
#[derive(Clone, Debug)]
struct Component {
    name: &'static str,
    constant: Constant,
    spread: Spread,
    /// Whether it is written as a vector of bytes.
    is_packed: bool,
}

/// How the elements of a part belong to those of the weight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spread {
    /// One for each.
    Each,
    /// One for a block, along each axis; along the axis that is named, entries lie.
    Blocks,
    /// A number, or one for each element of the axis that is named.
    Along,
    /// All for each.
    All,
    /// One for each that the mask keeps, which is the next part.
    Kept,
}

const NO_CONSTANT: &str = "its weight is no constant";
const ODD: &str = "its weight is compressed twice, or in a form that is not cut";
const NO_BORDER: &str = "its weight is compressed in blocks, and the cut falls within one";

impl Weight {
    /// What the parameter of an op is bound to.
    pub fn of(graph: &Graph<'_>, op: &Op, name: &str) -> Result<Self, &'static str> {
        if let Some(plain) = Constant::of(graph, op, name) {
            let shape = plain.shape.clone();
            let parts = vec![Component::new("val", plain, Spread::Each)];
            return Ok(Self::new(shape, None, parts));
        }
        let value = op.value_arg(name).ok_or(NO_CONSTANT)?;
        let made = graph
            .f
            .definer(value)
            .filter(|op| op.def.name.starts_with("constexpr_"))
            .ok_or(NO_CONSTANT)?;
        let shape = graph.known_shape(value).ok_or(NO_CONSTANT)?;
        Self::computed(graph, made, shape).ok_or(ODD)
    }

    fn new(shape: Vec<usize>, def: Option<&'static OpDef>, parts: Vec<Component>) -> Self {
        Self {
            shape,
            def,
            parts,
            inner: None,
            sparse: None,
            axis: None,
            states_shape: false,
            other: None,
        }
    }

    /// The weight of this shape that an op computes; `None` for a form that cannot be cut.
    fn computed(graph: &Graph<'_>, op: &Op, shape: Vec<usize>) -> Option<Self> {
        let part = |name, spread| {
            let constant = Constant::stated(graph, op, name)?;
            Some(Component::new(name, constant, spread))
        };
        let axis = |name| {
            let literal = graph.f.literal_arg(op, name);
            let axis = literal.and_then(|l| l.to_ints()?.first().copied());
            wrap(axis.unwrap_or(0), shape.len()).map(|axis| (name, axis))
        };
        let packed = op.def.attributes;
        let new = |parts| Self::new(shape.clone(), Some(op.def), parts);
        Some(match op.def.name {
            "constexpr_blockwise_shift_scale" => {
                let inner = maker(graph, op, "data");
                let inner = inner.map(|inner| Self::computed(graph, inner, shape.clone()));
                let mut parts = vec![part("scale", Spread::Blocks)?];
                if inner.is_none() {
                    parts.insert(0, part("data", Spread::Each)?);
                }
                if op.arg("offset").is_some() {
                    parts.push(part("offset", Spread::Blocks)?);
                }
                let inner = inner.map_or(Some(None), |made| made.map(Box::new).map(Some));
                Self {
                    inner: inner?,
                    ..new(parts)
                }
            }
            "constexpr_sparse_to_dense" if maker(graph, op, "nonzero_data").is_some() => {
                Self::of_sparse_codes(graph, op, shape.clone())?
            }
            "constexpr_lut_to_dense" if packed => {
                let lut = part("lut", Spread::All)?;
                let n_entries = lut.constant.shape.iter().product::<usize>();
                let indices = part("indices", Spread::Each)?;
                let indices = indices.unpacked(code_type(n_entries.checked_ilog2()?)?, &shape);
                Self {
                    states_shape: true,
                    ..new(vec![indices, lut])
                }
            }
            "constexpr_lut_to_dense" => {
                let lut = part("lut", Spread::Blocks)?;
                let has_vectors = *lut.constant.shape.last()? > 1;
                let vector = axis("vector_axis").filter(|_| has_vectors);
                if has_vectors && vector.is_none() {
                    return None;
                }
                Self {
                    axis: vector,
                    ..new(vec![part("indices", Spread::Blocks)?, lut])
                }
            }
            "constexpr_affine_dequantize" => Self {
                axis: Some(axis("axis")?),
                ..new(vec![
                    part("quantized_data", Spread::Each)?,
                    part("zero_point", Spread::Along)?,
                    part("scale", Spread::Along)?,
                ])
            },
            "constexpr_cast" => Self {
                other: Some((
                    "output_dtype",
                    graph.f.literal_arg(op, "output_dtype")?.clone(),
                )),
                ..new(vec![part("source_val", Spread::Each)?])
            },
            "constexpr_sparse_to_dense" => {
                let elements = part("nonzero_data", Spread::Kept)?;
                let mut mask = part("mask", Spread::Each)?.unpacked(DType::Uint1, &shape);
                mask.is_packed = packed;
                Self {
                    states_shape: packed,
                    ..new(vec![elements, mask])
                }
            }
            _ => return None,
        })
    }

    /// The weight whose kept elements are codes.
    fn of_sparse_codes(graph: &Graph<'_>, op: &Op, shape: Vec<usize>) -> Option<Self> {
        let sparse = maker(graph, op, "nonzero_data")?;
        let part = |name, spread| {
            let constant = Constant::stated(graph, sparse, name)?;
            Some(Component::new(name, constant, spread))
        };
        let parts = match sparse.def.name {
            "constexpr_lut_to_sparse" if sparse.arg("vector_axis").is_none() => vec![
                part("indices_nonzero_data", Spread::Kept)?,
                part("indices_mask", Spread::Each)?,
                part("lut", Spread::Blocks)?,
            ],
            "constexpr_sparse_blockwise_shift_scale" if sparse.arg("offset").is_none() => vec![
                part("nonzero_data", Spread::Kept)?,
                part("data_mask", Spread::Each)?,
                part("scale", Spread::Blocks)?,
            ],
            _ => return None,
        };
        Some(Self {
            sparse: Some(sparse.def),
            ..Self::new(shape, Some(op.def), parts)
        })
    }

    /// `len` elements of an axis from `begin` on.
    pub fn slice(&self, axis: usize, begin: usize, len: usize) -> Result<Self, &'static str> {
        let mut cut = self.clone();
        cut.shape[axis] = len;
        let n = self.shape[axis];
        if let Some(inner) = &self.inner {
            cut.inner = Some(Box::new(inner.slice(axis, begin, len)?));
        }
        let is_named = self.axis.is_some_and(|(_, own)| own == axis);
        for (k, part) in cut.parts.iter_mut().enumerate() {
            let whole = &part.constant;
            part.constant = match part.spread {
                Spread::Each => whole.slice(axis, begin, len),
                // Entries of several numbers along the axis are not cut.
                Spread::Blocks if is_named && k == 0 && whole.shape[axis] == 1 && len != n => {
                    return Err(NO_BORDER);
                }
                Spread::Blocks => rows_of(whole, axis, n, begin, len)?,
                Spread::Along if is_named && whole.shape.len() == 1 => whole.slice(0, begin, len),
                Spread::Along | Spread::All => continue,
                Spread::Kept => {
                    let mask = &self.parts[k + 1].constant;
                    kept(whole, mask, &self.shape, (axis, begin, len)).ok_or(ODD)?
                }
            };
        }
        Ok(cut)
    }

    /// Without axes of length 1 before the last two, and with `n_ones` of them behind.
    pub fn matrix(mut self, n_ones: usize) -> Result<Self, &'static str> {
        let before = self.shape.len().checked_sub(2);
        let before = before.ok_or("its weight is no matrix")?;
        if self.shape[..before].iter().any(|n| *n != 1) {
            return Err("there is a matrix for each batch");
        }
        let names_axis = |part: &Component| match part.spread {
            Spread::Along => !part.constant.shape.is_empty(),
            spread => spread == Spread::Blocks,
        };
        if let Some((_, axis)) = &mut self.axis {
            if *axis < before && self.parts.iter().any(names_axis) {
                return Err(ODD);
            }
            *axis = axis.saturating_sub(before);
        }
        let reshaped = |shape: &mut Vec<usize>| {
            shape.drain(..before);
            shape.splice(2..2, std::iter::repeat_n(1, n_ones));
        };
        reshaped(&mut self.shape);
        if let Some(inner) = self.inner.take() {
            self.inner = Some(Box::new(inner.matrix(n_ones)?));
        }
        self.has_axes()
            .for_each(|part| reshaped(&mut part.constant.shape));
        Ok(self)
    }

    /// The parts that have the axes of the weight.
    fn has_axes(&mut self) -> impl Iterator<Item = &mut Component> {
        let has = |part: &&mut Component| matches!(part.spread, Spread::Each | Spread::Blocks);
        self.parts.iter_mut().filter(has)
    }

    /// A matrix with rows and columns exchanged.
    pub fn transposed(mut self) -> Result<Self, &'static str> {
        if self.parts.iter().any(|part| part.spread == Spread::Kept) {
            return Err("its weight is sparse, and would have to be transposed");
        }
        if let Some(inner) = self.inner.take() {
            self.inner = Some(Box::new(inner.transposed()?));
        }
        self.has_axes()
            .for_each(|part| part.constant = part.constant.clone().transposed());
        if let Some((_, axis)) = &mut self.axis {
            *axis = 1 - *axis;
        }
        self.shape.swap(0, 1);
        Ok(self)
    }

    /// Write the constants of the weight and the op that computes it from them.
    pub fn write<'w>(mut self, new: &'w Rewrite<'w>) -> Value<'w> {
        if let (Some(dense), Some(sparse)) = (self.def, self.sparse.take()) {
            let kept = Self {
                def: Some(sparse),
                ..self
            };
            let kept = kept.write(new);
            let args = vec![
                ("nonzero_data", NewArg::One(kept.result(1).new)),
                ("mask", NewArg::One(kept.result(0).new)),
            ];
            return new.define(dense, args, DType::Fp16);
        }
        let inner = self.inner.take().map(|inner| inner.write(new));
        let mut args = self
            .parts
            .into_iter()
            .map(|part| (part.name, part.literal()));
        let Some(def) = self.def else {
            let (_, literal) = args.next().expect("a plain weight has its constant");
            return new.literal(literal);
        };
        let mut args: Vec<_> = args.collect();
        let axis = self
            .axis
            .map(|(name, axis)| (name, Literal::i32(axis as i32)));
        let shape = self
            .states_shape
            .then(|| ("shape", shape_literal(&self.shape)));
        args.extend(axis.into_iter().chain(shape).chain(self.other));
        let bound = args.into_iter().map(|(name, literal)| -> NamedArg {
            // Before iOS 18 such an op holds its parts as attributes.
            let arg = if def.attributes {
                NewArg::Same(Arg::Literal(literal))
            } else {
                NewArg::One(new.literal(literal).new)
            };
            (name, arg)
        });
        let data = inner.map(|inner| ("data", NewArg::One(inner.new)));
        let bound = data.into_iter().chain(bound).collect();
        new.define(def, bound, DType::Fp16)
    }
}

/// The op that computes a parameter of a compressed weight, if one does.
fn maker<'a>(graph: &Graph<'a>, op: &Op, name: &str) -> Option<&'a Op> {
    let maker = graph.maker(op.value_arg(name)?)?;
    let maker = graph.op(maker);
    maker.def.name.starts_with("constexpr_").then_some(maker)
}

impl Component {
    fn new(name: &'static str, constant: Constant, spread: Spread) -> Self {
        Self {
            name,
            constant,
            spread,
            is_packed: false,
        }
    }

    /// Bytes as the codes that are packed in them.
    fn unpacked(mut self, dtype: DType, shape: &[usize]) -> Self {
        self.constant.dtype = dtype;
        self.constant.shape = shape.to_vec();
        self.is_packed = true;
        self
    }

    fn literal(self) -> Literal {
        if self.is_packed {
            bytes(self.constant).literal()
        } else {
            self.constant.literal()
        }
    }
}

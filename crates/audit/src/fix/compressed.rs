//! Weights as fixes cut them: plain constants, and constants computed from codes, scales and
//! palettes.
//!
//! A part of a compressed weight is compressed in the same way, from parts of its codes, scales
//! and palettes. A cut that does not fall on the border of a block of scales or of a palette is
//! refused.

mod parts;

use parts::{bytes, code_type, kept, rows_of, shape_literal};
use thane_mil::edit::{New, NewArg};
use thane_mil::literal::Literal;
use thane_mil::opset::OpDef;
use thane_mil::program::{Arg, Op};
use thane_mil::types::DType;

use super::rewrite::{NamedArg, Rewrite};
use super::weights::Constant;
use crate::rules::query::wrap;
use crate::view::View;

/// A constant operand of a product.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Plain(Constant),
    /// `constexpr_blockwise_shift_scale`.
    Blocks {
        def: &'static OpDef,
        data: Constant,
        scale: Constant,
        offset: Option<Constant>,
    },
    /// `constexpr_lut_to_dense` with a type for its codes; `vector` is the axis along which entries
    /// of several lie.
    Palette {
        def: &'static OpDef,
        indices: Constant,
        lut: Constant,
        vector: Option<usize>,
    },
    /// The same with codes packed in bytes, here a constant of so many bits.
    PackedPalette {
        def: &'static OpDef,
        indices: Constant,
        lut: Constant,
    },
    /// `constexpr_affine_dequantize`.
    Affine {
        def: &'static OpDef,
        data: Constant,
        zero: Constant,
        scale: Constant,
        axis: usize,
    },
    /// `constexpr_cast`.
    Cast {
        def: &'static OpDef,
        source: Constant,
        dtype: Literal,
    },
    /// `constexpr_sparse_to_dense` of either kind; the mask has a bit an element.
    Sparse {
        def: &'static OpDef,
        elements: Constant,
        mask: Constant,
    },
}

const NO_CONSTANT: &str = "its weight is no constant";
const ODD: &str = "its weight is compressed twice, or in a form that is not cut";
const NO_BORDER: &str = "its weight is compressed in blocks, and the cut falls within one";

impl Weight {
    /// What the parameter of an op is bound to.
    pub fn of(view: &View<'_>, op: &Op, name: &str) -> Result<Self, &'static str> {
        if let Some(plain) = Constant::of(view, op, name) {
            return Ok(Self {
                shape: plain.shape.clone(),
                form: Form::Plain(plain),
            });
        }
        let value = op.value_arg(name).ok_or(NO_CONSTANT)?;
        let made = view
            .f
            .definer(value)
            .filter(|op| op.def.name.starts_with("constexpr_"))
            .ok_or(NO_CONSTANT)?;
        let shape = view.known_shape(value).ok_or(NO_CONSTANT)?;
        let form = Form::of(view, made, &shape).ok_or(ODD)?;
        Ok(Self { shape, form })
    }

    /// `len` elements of an axis from `begin` on.
    pub fn slice(&self, axis: usize, begin: usize, len: usize) -> Result<Self, &'static str> {
        let mut shape = self.shape.clone();
        shape[axis] = len;
        let n = self.shape[axis];
        let whole = |part: &Constant| part.slice(axis, begin, len);
        // A vector along the axis that a form names.
        let along = |part: &Constant, own: usize| {
            if own == axis && part.shape.len() == 1 {
                part.slice(0, begin, len)
            } else {
                part.clone()
            }
        };
        // A part with one row for several elements of the axis.
        let rows = |part: &Constant| rows_of(part, axis, n, begin, len);
        let form = match &self.form {
            Form::Plain(c) => Form::Plain(whole(c)),
            Form::Blocks {
                def,
                data,
                scale,
                offset,
            } => Form::Blocks {
                def,
                data: whole(data),
                scale: rows(scale)?,
                offset: offset.as_ref().map(rows).transpose()?,
            },
            Form::Palette {
                def,
                indices,
                lut,
                vector,
            } => {
                if *vector == Some(axis) && indices.shape[axis] == 1 && len != n {
                    return Err(NO_BORDER);
                }
                Form::Palette {
                    def,
                    indices: rows(indices)?,
                    lut: rows(lut)?,
                    vector: *vector,
                }
            }
            Form::PackedPalette { def, indices, lut } => Form::PackedPalette {
                def,
                indices: whole(indices),
                lut: lut.clone(),
            },
            Form::Affine {
                def,
                data,
                zero,
                scale,
                axis: own,
            } => Form::Affine {
                def,
                data: whole(data),
                zero: along(zero, *own),
                scale: along(scale, *own),
                axis: *own,
            },
            Form::Cast { def, source, dtype } => Form::Cast {
                def,
                source: whole(source),
                dtype: dtype.clone(),
            },
            Form::Sparse {
                def,
                elements,
                mask,
            } => {
                let (elements, mask) =
                    kept(elements, mask, &self.shape, (axis, begin, len)).ok_or(ODD)?;
                Form::Sparse {
                    def,
                    elements,
                    mask,
                }
            }
        };
        Ok(Self { shape, form })
    }

    /// Without axes of length 1 before the last two, and with `n_ones` of them behind.
    pub fn matrix(self, n_ones: usize) -> Result<Self, &'static str> {
        let before = self
            .shape
            .len()
            .checked_sub(2)
            .ok_or("its weight is no matrix")?;
        if self.shape[..before].iter().any(|n| *n != 1) {
            return Err("there is a matrix for each batch");
        }
        if self.form.names_axis_before(before) {
            return Err(ODD);
        }
        let reshaped = |mut c: Constant| {
            c.shape.drain(..before);
            c.shape.splice(2..2, std::iter::repeat_n(1, n_ones));
            c
        };
        let form = match self.form {
            Form::Plain(c) => Form::Plain(reshaped(c)),
            Form::Blocks {
                def,
                data,
                scale,
                offset,
            } => Form::Blocks {
                def,
                data: reshaped(data),
                scale: reshaped(scale),
                offset: offset.map(reshaped),
            },
            Form::Palette {
                def,
                indices,
                lut,
                vector,
            } => Form::Palette {
                def,
                indices: reshaped(indices),
                lut: reshaped(lut),
                vector: vector.map(|axis| axis - before),
            },
            Form::PackedPalette { def, indices, lut } => Form::PackedPalette {
                def,
                indices: reshaped(indices),
                lut,
            },
            Form::Affine {
                def,
                data,
                zero,
                scale,
                axis,
            } => Form::Affine {
                def,
                data: reshaped(data),
                zero,
                scale,
                axis: axis.saturating_sub(before),
            },
            Form::Cast { def, source, dtype } => Form::Cast {
                def,
                source: reshaped(source),
                dtype,
            },
            Form::Sparse {
                def,
                elements,
                mask,
            } => Form::Sparse {
                def,
                elements,
                mask: reshaped(mask),
            },
        };
        let mut shape = self.shape[before..].to_vec();
        shape.extend(std::iter::repeat_n(1, n_ones));
        Ok(Self { shape, form })
    }

    /// A matrix with rows and columns exchanged.
    pub fn transposed(self) -> Result<Self, &'static str> {
        let form = match self.form {
            Form::Plain(c) => Form::Plain(c.transposed()),
            Form::Blocks {
                def,
                data,
                scale,
                offset,
            } => Form::Blocks {
                def,
                data: data.transposed(),
                scale: scale.transposed(),
                offset: offset.map(Constant::transposed),
            },
            Form::Palette {
                def,
                indices,
                lut,
                vector,
            } => Form::Palette {
                def,
                indices: indices.transposed(),
                lut: lut.transposed(),
                vector: vector.map(|axis| 1 - axis),
            },
            Form::PackedPalette { def, indices, lut } => Form::PackedPalette {
                def,
                indices: indices.transposed(),
                lut,
            },
            Form::Affine {
                def,
                data,
                zero,
                scale,
                axis,
            } => Form::Affine {
                def,
                data: data.transposed(),
                zero,
                scale,
                axis: 1 - axis,
            },
            Form::Cast { def, source, dtype } => Form::Cast {
                def,
                source: source.transposed(),
                dtype,
            },
            Form::Sparse { .. } => {
                return Err("its weight is sparse, and would have to be transposed");
            }
        };
        Ok(Self {
            shape: vec![self.shape[1], self.shape[0]],
            form,
        })
    }

    /// Write the constants of the weight and the op that computes it from them.
    pub fn write(self, new: &mut Rewrite<'_>) -> New {
        let (def, args) = match self.form.args(&self.shape) {
            Written::Plain(literal) => return new.literal(literal),
            Written::Computed(def, args) => (def, args),
        };
        let bound = args.into_iter().map(|(name, literal)| -> NamedArg {
            // Before iOS 18 such an op holds its parts as attributes.
            let arg = if def.attributes {
                NewArg::Same(Arg::Literal(literal))
            } else {
                NewArg::One(new.literal(literal))
            };
            (name, arg)
        });
        let bound = bound.collect();
        new.defined(def, bound)
    }
}

/// How a weight is written.
enum Written {
    /// As a constant.
    Plain(Literal),
    /// By an op and its arguments by name.
    Computed(&'static OpDef, Vec<(&'static str, Literal)>),
}

impl Form {
    /// Whether the form names an axis before `first`, which a matrix does not have.
    fn names_axis_before(&self, first: usize) -> bool {
        match self {
            Self::Palette { vector, .. } => vector.is_some_and(|axis| axis < first),
            Self::Affine {
                axis, zero, scale, ..
            } => *axis < first && zero.shape.len() + scale.shape.len() > 0,
            _ => false,
        }
    }

    /// What a weight of this shape is written as.
    fn args(self, shape: &[usize]) -> Written {
        let axis = |axis: usize| Literal::i32(axis as i32);
        let (def, args) = match self {
            Self::Plain(c) => return Written::Plain(c.literal()),
            Self::Blocks {
                def,
                data,
                scale,
                offset,
            } => {
                let mut args = vec![("data", data.literal()), ("scale", scale.literal())];
                args.extend(offset.map(|o| ("offset", o.literal())));
                (def, args)
            }
            Self::Palette {
                def,
                indices,
                lut,
                vector,
            } => {
                let mut args = vec![("indices", indices.literal()), ("lut", lut.literal())];
                args.extend(vector.map(|v| ("vector_axis", axis(v))));
                (def, args)
            }
            Self::PackedPalette { def, indices, lut } => {
                let indices = bytes(indices).literal();
                let lut = lut.literal();
                let shape = shape_literal(shape);
                (
                    def,
                    vec![("indices", indices), ("lut", lut), ("shape", shape)],
                )
            }
            Self::Affine {
                def,
                data,
                zero,
                scale,
                axis: own,
            } => {
                let args = vec![
                    ("quantized_data", data.literal()),
                    ("zero_point", zero.literal()),
                    ("scale", scale.literal()),
                    ("axis", axis(own)),
                ];
                (def, args)
            }
            Self::Cast { def, source, dtype } => {
                let source = source.literal();
                (def, vec![("source_val", source), ("output_dtype", dtype)])
            }
            Self::Sparse {
                def,
                elements,
                mask,
            } => {
                let elements = elements.literal();
                let (mask, shape) = if def.attributes {
                    (bytes(mask), Some(("shape", shape_literal(shape))))
                } else {
                    (mask, None)
                };
                let mut args = vec![("nonzero_data", elements), ("mask", mask.literal())];
                args.extend(shape);
                (def, args)
            }
        };
        Written::Computed(def, args)
    }

    /// The form that an op computes a weight of this shape from; `None` for a form that cannot be
    /// cut.
    fn of(view: &View<'_>, op: &Op, shape: &[usize]) -> Option<Self> {
        let (def, part) = (op.def, |name: &str| Constant::stated(view, op, name));
        let axis = |name: &str, rank: usize| {
            wrap(
                view.f
                    .literal_arg(op, name)
                    .and_then(|l| l.to_ints()?.first().copied())
                    .unwrap_or(0),
                rank,
            )
        };
        Some(match def.name {
            "constexpr_blockwise_shift_scale" => {
                let offset = match op.arg("offset") {
                    None => None,
                    Some(_) => Some(part("offset")?),
                };
                Self::Blocks {
                    def,
                    data: part("data")?,
                    scale: part("scale")?,
                    offset,
                }
            }
            "constexpr_lut_to_dense" => {
                let vector = axis("vector_axis", shape.len());
                Self::palette(def, part("indices")?, part("lut")?, vector, shape)?
            }
            "constexpr_affine_dequantize" => {
                let (data, zero, scale) =
                    (part("quantized_data")?, part("zero_point")?, part("scale")?);
                Self::Affine {
                    def,
                    data,
                    zero,
                    scale,
                    axis: axis("axis", shape.len())?,
                }
            }
            "constexpr_cast" => Self::Cast {
                def,
                source: part("source_val")?,
                dtype: view.f.literal_arg(op, "output_dtype")?.clone(),
            },
            "constexpr_sparse_to_dense" => {
                let mask = Constant {
                    dtype: DType::Uint1,
                    shape: shape.to_vec(),
                    ..part("mask")?
                };
                Self::Sparse {
                    def,
                    elements: part("nonzero_data")?,
                    mask,
                }
            }
            _ => return None,
        })
    }

    /// A palette; `vector` is the axis that the op names for entries of several numbers.
    fn palette(
        def: &'static OpDef,
        indices: Constant,
        lut: Constant,
        vector: Option<usize>,
        shape: &[usize],
    ) -> Option<Self> {
        if def.attributes {
            let indices = Constant {
                dtype: code_type(lut.shape.iter().product::<usize>().checked_ilog2()?)?,
                shape: shape.to_vec(),
                ..indices
            };
            return Some(Self::PackedPalette { def, indices, lut });
        }
        let has_vectors = *lut.shape.last()? > 1;
        if has_vectors && vector.is_none() {
            return None;
        }
        Some(Self::Palette {
            def,
            indices,
            lut,
            vector: vector.filter(|_| has_vectors),
        })
    }
}

//! The form of each weight of a program, by how many rows it is multiplied with.

use thane_kernels::{BlockType, Context};
use thane_mil::program::{Function, ValueId};

use super::{Folds, Matrix};
use crate::Numerics;
use crate::ops::Fault;
use crate::tensor::Tensor;

/// A matrix that something is multiplied with, and what is added.
#[derive(Debug)]
pub struct Product {
    pub weight: Matrix,
    pub bias: Option<Tensor>,
}

impl Product {
    /// The shape of the product with an x of this shape.
    pub fn shape(&self, x: &[usize]) -> Result<Vec<usize>, Fault> {
        match x.split_last() {
            Some((last, outer)) if *last == self.weight.stored.n_cols => {
                Ok([outer, &[self.weight.stored.n_rows]].concat())
            }
            _ => Err(format!(
                "the last dimension is not the {} columns of the weight",
                self.weight.stored.n_cols
            )),
        }
    }

    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_ref().and_then(Tensor::f32s)
    }
}

/// What brings the weights of a function to the form that its numbers ask for.
pub struct Suit<'a> {
    pub context: &'a Context,
    pub folds: &'a Folds,
    pub f: &'a Function,
    pub numerics: Numerics,
    /// The tensor behind a value that follows from constants alone.
    pub constant: &'a mut dyn FnMut(ValueId) -> Option<Tensor>,
}

impl Suit<'_> {
    /// Brings a matrix of products to the form that suits how few rows it is multiplied with.
    pub fn suit(&self, weight: &mut Matrix) -> Result<(), Fault> {
        let (folds, context) = (self.folds, self.context);
        let has_few_rows = folds.least_rows(weight) <= most_few_rows(weight);
        *weight = match self.numerics {
            Numerics::Ane(_) => return Ok(()),
            // The reference reads the values of rows, as they are rounded.
            Numerics::F32 if weight.codes().is_some() => return Ok(()),
            _ if weight.codes().is_some() => {
                let matrix = match has_few_rows {
                    true => folds.pack_codes_when_used(weight.clone()),
                    false => weight.clone(),
                };
                folds.order_codes(context, matrix)
            }
            Numerics::Int8 if !weight.stored.has_codes() => folds.round(context, weight.clone())?,
            _ if has_few_rows => folds.pack_when_used(context, weight.clone()),
            _ if weight.stored.ty == BlockType::F16 => folds.pack_wide(context, weight.clone()),
            // The reference does not round to bf16.
            Numerics::F32 if weight.stored.ty != BlockType::F32 => return Ok(()),
            _ => folds.pack(context, weight.clone()),
        };
        Ok(())
    }

    /// The elements of a constant, in fp32.
    pub fn dense(&mut self, value: ValueId) -> Option<Vec<f32>> {
        let op = self.f.definer(value)?;
        let literal = match op.def.name {
            "const" => self.f.constant(value),
            "constexpr_cast" => self.f.literal_arg(op, "source_val"),
            _ => None,
        };
        match literal.and_then(|l| l.to_floats()) {
            Some(values) => Some(values),
            None => Some((self.constant)(value)?.f32s()?.to_vec()),
        }
    }

    /// The matrix as products of many rows read it.
    pub fn packed(&self, weight: &Matrix) -> Matrix {
        match weight.stored.ty {
            BlockType::F16 => self.folds.pack_wide(self.context, weight.clone()),
            BlockType::F32 => self.folds.pack(self.context, weight.clone()),
            // The reference does not round to bf16.
            _ => weight.clone(),
        }
    }
}

/// Rows up to which a product reads a weight fastest as it is stored, or packed as such: it waits
/// for memory, and panels of fp32 are twice as much as fp16. From SmolLM2 (1536 x 576, AMD EPYC of
/// family 26, one thread), microseconds in fp16 and as fp32: 59 and 131 for one row, 123 and 114
/// for 4, 165 and 151 for 8, 255 and 173 for 16. fp32 as it is stored has to be transposed for more
/// than two rows.
fn most_few_rows(weight: &Matrix) -> usize {
    match weight.stored.ty {
        BlockType::F32 if weight.codes().is_none() => 2,
        _ => 8,
    }
}

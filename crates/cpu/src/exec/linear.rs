//! Running products with constant matrices, in the form that each matrix has.

use std::sync::Arc;

use thane_kernels::activation::Unary;
use thane_kernels::linear::{
    Epilogue, Precision, Product as Multiplied, linear, linear_scratch_len,
};
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use super::step::Step;
use crate::Numerics;
use crate::ops::Fault;
use crate::tensor::{Buffer, Floats, Tensor, floats};
use crate::weight::{Demand, Product};

/// Rows, of one frame, up to which a product packs a quantized matrix that it may pack. Prompts of
/// more read it as it is stored, so that the first token need not wait for the packing of all
/// matrices.
const MOST_PACKING_TOKENS: usize = 8;
/// Rows from which on a product of values takes longer than packing their matrix as blocks and
/// multiplying these (SmolLM2 in Q4_1 from a package, AMD EPYC of family 26, two threads: the first
/// token behind a prompt of 30 after 303 ms without and 352 ms with packing, of 400 after 697 and
/// 494 ms).
const LEAST_UNPACKING_TOKENS: usize = 128;

impl Frame<'_> {
    /// `op(x gate^T) * (x up^T)` of so many tokens, which counts as so many products with each
    /// matrix for it to be packed.
    pub fn gated(
        &mut self,
        x: &Tensor,
        (n_tokens, demand): (usize, Demand),
        [gate, up]: [&Product; 2],
        op: Unary,
    ) -> Result<Tensor, Fault> {
        let shape = up.shape(&x.shape)?;
        // Gates and what they are for are most of a model: they count twice, so that its matrices
        // are packed in the second decode step, before most of them were read.
        let demand = demand.twice();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let (weight, start) = (
            gate.weight.operand(self.context, demand),
            gate.bias().into(),
        );
        let mut product = [Multiplied::new(weight, n_tokens, start, &mut out[..n])];
        let epilogue = Epilogue::Gated {
            op,
            up: up.weight.operand(self.context, demand),
            bias: up.bias(),
        };
        self.multiply(&mut product, (floats(x)?, n_tokens), epilogue)?;
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// Products of `x` [n_tokens, n_cols] with several weights.
    pub fn multiply<'w>(
        &mut self,
        products: &mut [Multiplied<'w>],
        (x, n_tokens): (&[f32], usize),
        epilogue: Epilogue<'w>,
    ) -> Result<(), Fault> {
        let precision = self.precision();
        let len = linear_scratch_len(self.context, precision, products, n_tokens, epilogue);
        let mut scratch = self.pool.take(len)?;
        self.path = linear(
            self.context,
            precision,
            products,
            x,
            n_tokens,
            epilogue,
            &mut scratch,
        );
        self.pool.give_f32(scratch);
        Ok(())
    }

    /// How exact products are.
    pub fn precision(&self) -> Precision {
        match self.numerics {
            Numerics::F32 | Numerics::Ane(_) => Precision::Exact,
            Numerics::Fast | Numerics::Int8 => Precision::Fast,
        }
    }

    /// What a product of so many rows asks of a matrix that may be packed.
    pub fn demand(&self, n_tokens: usize) -> Demand {
        match n_tokens {
            _ if !self.numerics.is_fast() => Demand::Stored,
            _ if n_tokens <= MOST_PACKING_TOKENS * self.n_frames => Demand::Few(1),
            ..LEAST_UNPACKING_TOKENS => Demand::Some,
            _ => Demand::Many,
        }
    }

    /// The numbers of a value for this step to change: those of its slot when the step is its last
    /// user, else a copy.
    pub fn take_floats(
        &mut self,
        step: &Step,
        value: ValueId,
        shape: &[usize],
    ) -> Result<(Floats, usize), Fault> {
        let given = self.take(step, value)?;
        let n = given.len();
        match Arc::try_unwrap(given.data) {
            Ok(Buffer::F32(own)) => Ok((own, n)),
            Ok(_) => Err("a product is added to other numbers than fp32".to_owned()),
            Err(data) => {
                let (mut copy, _) = self.pool.take_checked(shape)?;
                copy[..n].copy_from_slice(floats(&Tensor { data, ..given })?);
                Ok((copy, n))
            }
        }
    }
}

/// [rows, cols] as [cols, rows].
pub fn turn(x: &[f32], [n_rows, n_cols]: [usize; 2], out: &mut [f32]) {
    // Tiles of a cache line each way: else every element touches a line of its own.
    const TILE: usize = 16;
    for row in (0..n_rows).step_by(TILE) {
        for col in (0..n_cols).step_by(TILE) {
            for r in row..(row + TILE).min(n_rows) {
                for c in col..(col + TILE).min(n_cols) {
                    out[c * n_rows + r] = x[r * n_cols + c];
                }
            }
        }
    }
}

//! Running products with constant matrices: those of one x together, in the form that each matrix
//! has, and what becomes of them.

use std::sync::Arc;

use thane_kernels::activation::{Unary, gated, unary_in_place};
use thane_kernels::linear::{
    Epilogue, Precision, Product as Multiplied, Start, linear, linear_codes_best,
    linear_codes_best_scratch_len, linear_scratch_len,
};
use thane_mil::opset;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::Numerics;
use crate::ane;
use crate::evaluate::evaluate;
use crate::ops::sort::greatest;
use crate::ops::{self, Fault, Value};
use crate::step::{Product, Step, Then};
use crate::tensor::{Buffer, Floats, Tensor, floats};
use crate::weight::Demand;

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
    /// The products of x with each matrix, those together that are in one form, and what becomes of
    /// them.
    pub fn linear(
        &mut self,
        step: &Step,
        x_id: ValueId,
        products: &[Product],
        then: Then,
    ) -> Result<Vec<Tensor>, Fault> {
        let x = self.get(x_id)?.clone();
        let n_tokens = x
            .shape
            .split_last()
            .map_or(0, |(_, outer)| outer.iter().product());
        if let (Then::Gated(op), [gate, up]) = (then, products)
            && !matches!(self.numerics, Numerics::Ane(_))
        {
            let count = (n_tokens, self.demand(n_tokens));
            return Ok(vec![self.gated(&x, count, [gate, up], op)?]);
        }
        if let (Then::Added(to), [product]) = (then, products)
            && self.get(to)?.shape != product.shape(&x.shape)?
        {
            let add = opset::find("add")
                .zip(ops::find("add"))
                .ok_or("there is no `add`")?;
            let sum = [
                vec![self.get(to)?.clone()],
                self.linear(step, x_id, products, Then::Results)?,
            ]
            .concat();
            let sum = sum.into_iter().map(|t| Some(Value::Tensor(t))).collect();
            return evaluate(self.context, add.0, add.1, sum, self.pool);
        }
        let mut results = Vec::with_capacity(products.len());
        for product in products {
            let shape = product.shape(&x.shape)?;
            let (out, n) = match then {
                Then::Added(to) => self.take_floats(step, to, &shape)?,
                Then::Results | Then::Gated(_) | Then::Activated(_) => {
                    self.pool.take_checked(&shape)?
                }
            };
            results.push((shape, out, n));
        }
        let accumulates = matches!(then, Then::Added(_));
        let demand = self.demand(n_tokens);
        let outputs = products.iter().zip(&mut results);
        let outputs = outputs.map(|(product, (_, y, n))| {
            let start = Start {
                bias: product.bias(),
                accumulates,
            };
            (product, start, &mut y[..*n])
        });
        if let Numerics::Ane(effects) = self.numerics {
            for (product, start, y) in outputs {
                let (w, x) = (product.weight.weight(), floats(&x)?);
                self.tally += ane::stored_linear(self.context, &w, x, start.bias, effects, y);
            }
            if let (Then::Activated(op), [(_, y, n)]) = (then, results.as_mut_slice()) {
                unary_in_place(self.context, op, &mut y[..*n]);
            }
        } else {
            let mut outputs: Vec<Multiplied> = outputs
                .map(|(product, start, y)| {
                    let operand = product.weight.operand(self.context, demand);
                    Multiplied::new(operand, n_tokens, start, y)
                })
                .collect();
            let epilogue = match then {
                Then::Activated(op) => Epilogue::Activated(op),
                Then::Results | Then::Added(_) | Then::Gated(_) => Epilogue::None,
            };
            self.multiply(&mut outputs, (floats(&x)?, n_tokens), epilogue)?;
        }
        if let (Then::Gated(op), [(_, gate, n), (_, up, _)]) = (then, results.as_mut_slice()) {
            gated(self.context, op, &mut gate[..*n], &up[..*n]);
            results
                .pop()
                .into_iter()
                .for_each(|(_, up, _)| self.pool.give_f32(up));
        }
        let tensor = |(shape, out, _)| Tensor::new(DType::Fp32, shape, Buffer::F32(out));
        Ok(results.into_iter().map(tensor).collect())
    }

    /// The `k` greatest elements of each row of `x weight^T`, in falling order, and their indices.
    pub fn top_linear(
        &mut self,
        x_id: ValueId,
        product: &Product,
        k: usize,
    ) -> Result<Vec<Tensor>, Fault> {
        let x = self.get(x_id)?.clone();
        let mut shape = product.shape(&x.shape)?;
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let row_len = product.weight.stored.n_rows;
        let n_tokens = n / row_len.max(1);
        if n_tokens != 1 || !self.screened(&x, product, k, &mut out[..n])? {
            let operand = product.weight.operand(self.context, self.demand(n_tokens));
            let mut outputs = [Multiplied::new(
                operand,
                n_tokens,
                Start::NONE,
                &mut out[..n],
            )];
            self.multiply(&mut outputs, (floats(&x)?, n_tokens), Epilogue::None)?;
        }
        if let Some(last) = shape.last_mut() {
            *last = k;
        }
        let mut values = self.pool.tensor(DType::Fp32, shape.clone())?;
        let mut indices = self.pool.tensor(DType::Int32, shape)?;
        let (Some(Buffer::F32(v)), Some(Buffer::I32(i))) = (
            Arc::get_mut(&mut values.data),
            Arc::get_mut(&mut indices.data),
        ) else {
            return Err("a fresh buffer is shared".to_owned());
        };
        let tops = v
            .chunks_exact_mut(k.max(1))
            .zip(i.chunks_exact_mut(k.max(1)));
        for (row, (values, indices)) in out[..n].chunks_exact(row_len.max(1)).zip(tops) {
            let top = greatest(row, k);
            for ((value, index), at) in values.iter_mut().zip(indices).zip(top) {
                (*value, *index) = (row[at], at as i32);
            }
        }
        self.pool.give_f32(out);
        Ok(vec![values, indices])
    }

    /// Computes the product of one row of x so that its `k` greatest elements are right, with minus
    /// infinity for others that are ruled out. Whether the matrix allows that.
    fn screened(
        &mut self,
        x: &Tensor,
        product: &Product,
        k: usize,
        out: &mut [f32],
    ) -> Result<bool, Fault> {
        if !self.numerics.is_fast() {
            return Ok(false);
        }
        let Some((codes, screening)) = product.weight.screened(self.context) else {
            return Ok(false);
        };
        let mut scratch = self.pool.take(linear_codes_best_scratch_len(&codes, k))?;
        let read = linear_codes_best(self.context, &codes, k, floats(x)?, out, &mut scratch);
        self.pool.give_f32(scratch);
        let n_bytes = codes.bytes.len();
        screening.tell(read < n_bytes - n_bytes / 16);
        self.unread = Some(n_bytes as f64 - read as f64);
        Ok(true)
    }

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
    fn take_floats(
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

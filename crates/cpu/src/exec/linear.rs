//! Running products with constant matrices: those of one x together, in the form that each matrix
//! has, and what becomes of them.

use std::sync::Arc;

use thane_kernels::activation::{Unary, gated, unary_in_place};
use thane_kernels::linear::{
    Codes, CodesProduct, GatedCodes, Start, int8_scratch_len, linear_codes, linear_codes_best,
    linear_codes_best_scratch_len, linear_codes_gated, linear_codes_gated_scratch_len,
    linear_codes_scratch_len, linear_f32, linear_f32_scratch_len, linear_fast,
    linear_fast_scratch_len, linear_int8, linear_packed, linear_packed_scratch_len, quantize_int8,
};
use thane_mil::opset;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::Numerics;
use crate::ane;
use crate::evaluate::evaluate;
use crate::ops::{self, Fault, Value};
use crate::step::{Product, Step, Then};
use crate::tensor::{Buffer, Floats, Tensor, floats};

/// Rows, of one frame, up to which a product packs a quantised matrix that it may pack. Prompts of
/// more read it as it is stored, so that the first token need not wait for the packing of all
/// matrices.
const MOST_PACKING_TOKENS: usize = 8;

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
        if let (Then::Results, [product], 1) = (then, products, n_tokens)
            && let Some(greatest) = self.greatest(step, &x, product)?
        {
            return Ok(vec![greatest]);
        }
        let packs = self
            .numerics
            .is_fast()
            .then_some(n_tokens <= MOST_PACKING_TOKENS * self.n_frames);
        if let (Then::Gated(op), [gate, up], Some(packs)) = (then, products, packs)
            && let Some(weights) = self
                .codes(gate, packs, n_tokens)
                .zip(self.codes(up, packs, n_tokens))
        {
            let gated = GatedCodes {
                weights: weights.into(),
                biases: [gate.bias(), up.bias()],
                op,
            };
            let shape = up.shape(&x.shape)?;
            let (mut out, n) = self.pool.take_checked(&shape)?;
            let mut scratch = self.pool.take(linear_codes_gated_scratch_len(
                self.context,
                &gated,
                n_tokens,
            ))?;
            linear_codes_gated(
                self.context,
                &gated,
                floats(&x)?,
                n_tokens,
                &mut out[..n],
                &mut scratch,
            );
            self.pool.give_f32(scratch);
            return Ok(vec![Tensor::new(DType::Fp32, shape, Buffer::F32(out))]);
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
        let op = if let Then::Activated(op) = then {
            Some(op)
        } else {
            None
        };
        let (mut coded, mut rounded, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (product, (_, out, n)) in products.iter().zip(&mut results) {
            let (y, start) = (
                &mut out[..*n],
                Start {
                    bias: product.bias(),
                    accumulates,
                },
            );
            if let Some(codes) = packs.and_then(|packs| self.codes(product, packs, n_tokens)) {
                coded.push((codes, CodesProduct::new(codes, n_tokens, start, y)));
            } else if let Some(int8) = product.weight.int8() {
                rounded.push((int8, start, y));
            } else {
                others.push((product, start, y));
            }
        }
        let (x, n_cols) = (floats(&x)?, x.shape.last().copied().unwrap_or(0));
        let is_coded = !coded.is_empty();
        if is_coded {
            let len = |codes: Codes<'_>| linear_codes_scratch_len(self.context, codes, n_tokens);
            let mut scratch = self.pool.take(
                coded
                    .iter()
                    .map(|(codes, _)| len(*codes))
                    .max()
                    .unwrap_or(0),
            )?;
            let mut coded: Vec<CodesProduct> =
                coded.into_iter().map(|(_, product)| product).collect();
            linear_codes(self.context, &mut coded, x, n_tokens, &mut scratch);
            self.pool.give_f32(scratch);
        }
        if !rounded.is_empty() {
            let mut scratch = self.pool.take(int8_scratch_len(n_tokens, n_cols))?;
            let x = quantize_int8(self.context, x, n_tokens, n_cols, &mut scratch);
            rounded
                .into_iter()
                .for_each(|(int8, start, y)| linear_int8(self.context, &int8, &x, start, op, y));
            self.pool.give_f32(scratch);
        }
        for (product, start, y) in others {
            self.product(product, packs, start, op, (x, n_tokens), y)?;
        }
        if let (Some(op), true, [(_, y, n)]) = (op, is_coded, results.as_mut_slice()) {
            unary_in_place(self.context, op, &mut y[..*n]);
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

    /// The product of one row of x, of which the greatest outputs are wanted alone and others can
    /// be ruled out.
    fn greatest(
        &mut self,
        step: &Step,
        x: &Tensor,
        product: &Product,
    ) -> Result<Option<Tensor>, Fault> {
        let is_result = |value: &ValueId| {
            step.results
                .first()
                .is_some_and(|defined| defined.id == *value)
        };
        let n = self
            .greatest
            .iter()
            .find(|(value, _)| is_result(value))
            .map(|(_, n)| *n);
        let Some(n) = n.filter(|_| self.numerics.is_fast() && product.bias().is_none()) else {
            return Ok(None);
        };
        let Some((codes, screening)) = product.weight.screened(self.context) else {
            return Ok(None);
        };
        let shape = product.shape(&x.shape)?;
        let (mut out, len) = self.pool.take_checked(&shape)?;
        let mut scratch = self.pool.take(linear_codes_best_scratch_len(&codes, n))?;
        let read = linear_codes_best(
            self.context,
            &codes,
            n,
            floats(x)?,
            &mut out[..len],
            &mut scratch,
        );
        self.pool.give_f32(scratch);
        let n_bytes = codes.bytes.len();
        screening.tell(read < n_bytes - n_bytes / 16);
        self.unread = Some(n_bytes as f64 - read as f64);
        Ok(Some(Tensor::new(DType::Fp32, shape, Buffer::F32(out))))
    }

    /// A quantised matrix in the form that so many tokens are multiplied with together; none where
    /// that is done with each by itself.
    fn codes<'p>(&self, product: &'p Product, packs: bool, n_tokens: usize) -> Option<Codes<'p>> {
        let weight = &product.weight;
        match weight.codes(self.context, packs) {
            Some(packed) => Some(Codes::Packed(packed)),
            None if !weight.has_codes() || n_tokens <= MOST_PACKING_TOKENS => None,
            None => Some(Codes::Stored(weight.weight())),
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

    /// The product of x [n_tokens, columns] with one matrix, and what `op` gives of it.
    fn product(
        &mut self,
        product: &Product,
        packs: Option<bool>,
        start: Start<'_>,
        op: Option<Unary>,
        (x, n_tokens): (&[f32], usize),
        y: &mut [f32],
    ) -> Result<(), Fault> {
        let weight = &product.weight;
        let w = packs.map_or(weight.weight(), |packs| weight.moved(self.context, packs));
        if let Some(packed) = weight.packed() {
            let mut scratch = self
                .pool
                .take(linear_packed_scratch_len(&packed, n_tokens))?;
            linear_packed(
                self.context,
                &packed,
                x,
                n_tokens,
                start,
                op,
                y,
                &mut scratch,
            );
            self.pool.give_f32(scratch);
            return Ok(());
        }
        let scratch_len = match self.numerics {
            Numerics::F32 => linear_f32_scratch_len(self.context, &w, n_tokens),
            Numerics::Fast | Numerics::Int8 => linear_fast_scratch_len(self.context, &w, n_tokens),
            Numerics::Ane(_) => 0,
        };
        let mut scratch = self.pool.take(scratch_len)?;
        match self.numerics {
            Numerics::F32 => linear_f32(self.context, &w, x, n_tokens, start, y, &mut scratch),
            Numerics::Fast | Numerics::Int8 => {
                linear_fast(self.context, &w, x, n_tokens, start, y, &mut scratch)
            }
            Numerics::Ane(effects) => {
                self.tally += ane::stored_linear(self.context, &w, x, start.bias, effects, y)
            }
        }
        self.pool.give_f32(scratch);
        if let Some(op) = op {
            unary_in_place(self.context, op, y);
        }
        Ok(())
    }
}

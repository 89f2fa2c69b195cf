//! The `k` greatest outputs of a product without a bias in each row, in falling order, and their
//! indices.

use std::sync::Arc;

use thane_kernels::linear::{
    Epilogue, Product as Multiplied, Start, linear_codes_best, linear_codes_best_scratch_len,
};

use super::linear::product;
use super::*;
use crate::ops::sort::greatest;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "top_linear",
    pattern!(topk(made @ linear())),
    top_linear,
)];

#[derive(Debug)]
struct TopLinear {
    x: ValueId,
    product: Product,
    k: usize,
}

/// `topk(linear(x, weight))` along the last axis, the greatest first, with int32 indices.
fn top_linear(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (f, op) = (p.f, p.f.op(found.root));
    let &[values, indices] = op.results.as_slice() else {
        return None;
    };
    let is_int32 = f.value(indices).ty.tensor()?.dtype == DType::Int32;
    if !is_along_last(p, op, values)? || !is_all(p, op, "ascending", 0) || !is_int32 {
        return None;
    }
    let k = f.value(values).ty.tensor()?.shape.last()?.known()?;
    let product = product(p, found.maker("made")?);
    let (x, product) = product.filter(|(_, product)| product.bias.is_none())?;
    one(found, TopLinear { x, product, k })
}

impl Kernel for TopLinear {
    fn facts(&self) -> Facts<'_> {
        Facts::new("linear, top k", [self.x])
            .batched(vec![self.x], None, true)
            .multiplying(std::slice::from_ref(&self.product))
    }

    fn products_mut(&mut self) -> &mut [Product] {
        std::slice::from_mut(&mut self.product)
    }

    fn shapes(&self, x: &[usize]) -> Result<Vec<Vec<usize>>, Fault> {
        let outer = x.split_last().map_or(x, |(_, outer)| outer);
        Ok(vec![[outer, &[self.k]].concat(); 2])
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (product, k) = (&self.product, self.k);
        let x = frame.get(self.x)?.clone();
        let (mut out, n) = frame.pool.take_checked(&product.shape(&x.shape)?)?;
        let row_len = product.weight.stored.n_rows;
        let n_tokens = n / row_len.max(1);
        if n_tokens != 1 || !self.screened(frame, &x, &mut out[..n])? {
            let demand = frame.demand(n_tokens);
            let operand = product.weight.operand(frame.context, demand);
            let y = &mut out[..n];
            let mut outputs = [Multiplied::new(operand, n_tokens, Start::NONE, y)];
            frame.multiply(&mut outputs, (floats(&x)?, n_tokens), Epilogue::None)?;
        }
        let shape = self.shapes(&x.shape)?.remove(0);
        let mut values = frame.pool.tensor(DType::Fp32, shape.clone())?;
        let mut indices = frame.pool.tensor(DType::Int32, shape)?;
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
        frame.pool.give_f32(out);
        Ok(vec![values, indices])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        frame.product_work(frame.n_elements(self.x), &self.product.weight)
    }
}

impl TopLinear {
    /// Computes the product of one row of x so that its `k` greatest elements are right, with minus
    /// infinity for others that are ruled out. Whether the matrix allows that.
    fn screened(&self, frame: &mut Frame<'_>, x: &Tensor, out: &mut [f32]) -> Result<bool, Fault> {
        if !frame.numerics.is_fast() {
            return Ok(false);
        }
        let Some((codes, screening)) = self.product.weight.screened(frame.context) else {
            return Ok(false);
        };
        let k = self.k;
        let mut scratch = frame.pool.take(linear_codes_best_scratch_len(&codes, k))?;
        let read = linear_codes_best(frame.context, &codes, k, floats(x)?, out, &mut scratch);
        frame.pool.give_f32(scratch);
        let n_bytes = codes.bytes.len();
        screening.tell(read < n_bytes - n_bytes / 16);
        frame.unread = Some(n_bytes as f64 - read as f64);
        Ok(true)
    }
}

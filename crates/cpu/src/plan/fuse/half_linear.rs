//! `x @ weight^T + bias` of fp16 values.

use thane_kernels::linear::{Epilogue, Product};

use super::{
    DType, Demand, Facts, Fault, Found, Frame, Fusion, Kernel, Match, Matrix, Planner, Step, Suit,
    Tensor, ValueId, Work, constant_arg, floats, is_of, one, pattern,
};
use crate::Numerics;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "half_linear",
    pattern!(linear(x, weight)),
    half_linear,
)];

#[derive(Debug)]
struct HalfLinear {
    x: ValueId,
    weight: Matrix,
    bias: Option<Tensor>,
}

fn half_linear(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let x = found.value("x").filter(|x| is_of(p, *x, DType::Fp16))?;
    let weight = Matrix::pointwise(p.f, found.value("weight")?, p.folds)?;
    let bias = constant_arg(p, p.f.op(found.root), "bias")?;
    one(found, HalfLinear { x, weight, bias })
}

impl Kernel for HalfLinear {
    fn facts(&self) -> Facts<'_> {
        Facts::new("linear of fp16", [self.x])
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let weight = &self.weight;
        let x = frame.get(self.x)?.clone();
        let x = frame.pool.widened(&x)?;
        let mut shape = x.shape.clone();
        let last = shape.pop().filter(|last| *last == weight.stored.n_cols);
        last.ok_or_else(|| {
            format!(
                "the last dimension is not the {} columns of the weight",
                weight.stored.n_cols
            )
        })?;
        let n_rows = shape.iter().product();
        shape.push(weight.stored.n_rows);
        let x = floats(&x)?;
        let bias = self.bias.as_ref().map(|bias| frame.pool.widened(bias));
        let bias = bias.transpose()?;
        let bias = bias.as_ref().and_then(Tensor::f32s);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let operand = weight.operand(frame.context, Demand::Stored);
        let mut products = [Product::new(operand, n_rows, bias.into(), &mut out[..n])];
        frame.multiply(&mut products, (x, n_rows), Epilogue::None)?;
        let result = Tensor::fp32(shape, out);
        Ok(vec![frame.pool.narrowed(result, DType::Fp16)?])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        frame.product_work(frame.n_elements(self.x), &self.weight)
    }

    fn suit(&mut self, suit: &mut Suit<'_>) -> Result<(), Fault> {
        if suit.numerics == Numerics::Int8 {
            self.weight = suit.folds.round(suit.context, self.weight.clone())?;
        }
        Ok(())
    }
}

//! A convolution whose kernel is one place, which goes over every place of x once.

use thane_kernels::linear::{Epilogue, Product};

use super::{
    DType, Demand, Facts, Fault, Found, Frame, Fusion, Kernel, Match, Matrix, Planner, Step,
    Tensor, ValueId, Work, constant_arg, floats, is_all, one, pattern,
};
use crate::exec::turn;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "pointwise",
    pattern!(conv(x, weight)),
    pointwise,
)];

#[derive(Debug)]
struct Pointwise {
    x: ValueId,
    weight: Matrix,
    bias: Option<Tensor>,
}

fn pointwise(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (f, op) = (p.f, p.f.op(found.root));
    let [x, weight] = found.values(["x", "weight"])?;
    let kernel = &f.value(weight).ty.tensor()?.shape;
    let is_plain = [("strides", 1), ("pad", 0), ("groups", 1)];
    let is_plain = is_plain.iter().all(|(name, n)| is_all(p, op, name, *n));
    let is_one_place = kernel.len() > 2 && kernel[2..].iter().all(|d| d.known() == Some(1));
    let floats = matches!(f.value(x).ty.tensor()?.dtype, DType::Fp32 | DType::Fp16);
    if !is_plain || !is_one_place || !floats {
        return None;
    }
    let weight = Matrix::pointwise(f, weight, p.folds)?;
    let bias = constant_arg(p, op, "bias")?;
    one(found, Pointwise { x, weight, bias })
}

impl Kernel for Pointwise {
    fn facts(&self) -> Facts<'_> {
        Facts::new("1x1 convolution", [self.x])
    }

    /// x [batch, channels, .., places] times a matrix; fp16 values are widened before and rounded
    /// after, as the plain op does it.
    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (x, weight) = (frame.get(self.x)?.clone(), &self.weight);
        let (dtype, mut shape) = (x.dtype, x.shape.clone());
        let (n_in, n_out) = (weight.stored.n_cols, weight.stored.n_rows);
        if shape.len() < 3 || shape[1] != n_in {
            return Err(format!(
                "{shape:?} has not the {n_in} channels of the weight"
            ));
        }
        let n_places: usize = shape[2..].iter().product();
        shape[1] = n_out;
        let x = frame.pool.widened(&x)?;
        let x = floats(&x)?;
        let bias = self.bias.as_ref().map(|bias| frame.pool.widened(bias));
        let bias = bias.transpose()?;
        let bias = bias.as_ref().and_then(Tensor::f32s);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let operand = weight.operand(frame.context, Demand::Stored);
        let (mut rows, mut product) = (
            frame.pool.take(n_in * n_places)?,
            frame.pool.take(n_places * n_out)?,
        );
        for (x, out) in x
            .chunks((n_in * n_places).max(1))
            .zip(out[..n].chunks_mut((n_out * n_places).max(1)))
        {
            turn(x, [n_in, n_places], &mut rows);
            let y = &mut product[..n_places * n_out];
            let mut products = [Product::new(operand, n_places, bias.into(), y)];
            let rows = &rows[..n_in * n_places];
            frame.multiply(&mut products, (rows, n_places), Epilogue::None)?;
            turn(&product[..n_places * n_out], [n_places, n_out], out);
        }
        frame.pool.give_f32(product);
        frame.pool.give_f32(rows);
        let result = Tensor::fp32(shape, out);
        Ok(vec![frame.pool.narrowed(result, dtype)?])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        frame.product_work(frame.n_elements(self.x), &self.weight)
    }
}

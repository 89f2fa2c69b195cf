//! Products with a matrix that go over every place of x once, of fp16 values too: a convolution
//! whose kernel is one place, and `linear` of fp16.

use thane_kernels::linear::{Epilogue, Product};

use super::*;
use crate::Numerics;
use crate::exec::turn;

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new("half_linear", pattern!(linear(x, weight)), |p, found| {
        let is_half = is_of(p, found.value("x")?, DType::Fp16);
        is_half.then(|| made(p, found, Channels::Last))?
    }),
    Fusion::new("pointwise", pattern!(conv(x, weight)), pointwise),
];

#[derive(Debug)]
struct Pointwise {
    x: ValueId,
    weight: Matrix,
    bias: Option<Tensor>,
    channels: Channels,
}

/// Which axis is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Channels {
    /// The last, of `linear`.
    Last,
    /// The second, of `conv`.
    Second,
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
    made(p, found, Channels::Second)
}

fn made(p: &mut Planner<'_>, found: Match<'_>, channels: Channels) -> Option<Vec<Found>> {
    let [x, weight] = found.values(["x", "weight"])?;
    let pointwise = Pointwise {
        x,
        weight: Matrix::pointwise(p.f, weight, p.folds)?,
        bias: constant_arg(p, p.op(found.root), "bias")?,
        channels,
    };
    one(found, pointwise)
}

impl Kernel for Pointwise {
    fn facts(&self) -> Facts<'_> {
        let name = match self.channels {
            Channels::Last => "linear of fp16",
            Channels::Second => "1x1 convolution",
        };
        Facts::new(name, [self.x])
    }

    /// fp16 values are widened before and rounded after, as the plain op does it.
    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (x, weight) = (frame.get(self.x)?.clone(), &self.weight);
        let (dtype, mut shape) = (x.dtype, x.shape.clone());
        let (n_in, n_out) = (weight.stored.n_cols, weight.stored.n_rows);
        let (axis, least) = match self.channels {
            Channels::Last => (shape.len().saturating_sub(1), 1),
            Channels::Second => (1, 3),
        };
        if shape.len() < least || shape[axis] != n_in {
            return Err(format!(
                "{shape:?} has not the {n_in} channels of the weight"
            ));
        }
        shape[axis] = n_out;
        let x = frame.pool.widened(&x)?;
        let x = floats(&x)?;
        let bias = self.bias.as_ref().map(|bias| frame.pool.widened(bias));
        let bias = bias.transpose()?;
        let bias = bias.as_ref().and_then(Tensor::f32s);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let operand = weight.operand(frame.context, Demand::Stored);
        if self.channels == Channels::Last {
            let n_rows = n / n_out.max(1);
            let mut products = [Product::new(operand, n_rows, bias.into(), &mut out[..n])];
            frame.multiply(&mut products, (x, n_rows), Epilogue::None)?;
        } else {
            let n_places: usize = shape[2..].iter().product();
            let mut rows = frame.pool.take(n_in * n_places)?;
            let mut product = frame.pool.take(n_places * n_out)?;
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
        }
        let result = Tensor::fp32(shape, out);
        Ok(vec![frame.pool.narrowed(result, dtype)?])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        frame.product_work(frame.n_elements(self.x), &self.weight)
    }

    fn suit(&mut self, suit: &mut Suit<'_>) -> Result<(), Fault> {
        if self.channels == Channels::Last && suit.numerics == Numerics::Int8 {
            self.weight = suit.folds.round(suit.context, self.weight.clone())?;
        }
        Ok(())
    }
}

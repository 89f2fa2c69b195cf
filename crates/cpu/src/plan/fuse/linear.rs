//! Products with constant matrices: those of one x together, and what becomes of them.

use thane_kernels::activation::Unary;
use thane_kernels::linear::{Epilogue, Product as Multiplied, Start};
use thane_mil::opset;

use super::gated::{GATES, gated};
use super::*;
use crate::Numerics;
use crate::ane;
use crate::evaluate::evaluate;
use crate::ops::{self, Value};

pub(super) const FUSIONS: &[Fusion] = &[
    Fusion::new("linear", pattern!(made @ linear()), linear),
    Fusion::new(
        "gated_linear",
        pattern!(mul(active @ (GATES)(gate @ linear(x)), up @ linear(x))),
        gated_linear,
    ),
    Fusion::new("residual", pattern!(add(x, y)), residual),
    Fusion::new(
        "activated_linear",
        pattern!((ACTIVATIONS)(made @ linear())),
        linear,
    ),
];

/// `x @ weight^T + bias` of each product; the planner brings those of one x together.
#[derive(Debug)]
struct Linear {
    x: ValueId,
    products: Vec<Product>,
    then: Then,
}

/// What becomes of products.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// Each is a result.
    Results,
    /// `op(the first) * the second`.
    Gated(Unary),
    /// The only one is added to this.
    Added(ValueId),
    /// `op(the only one)`.
    Activated(Unary),
}

/// `linear(x)`, alone or as `gelu(linear(x))` and the like.
fn linear(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let then = activated(p, found.root)?.map_or(Then::Results, Then::Activated);
    let (x, product) = product(p, found.maker("made")?)?;
    let products = vec![product];
    one(found, Linear { x, products, then })
}

/// What a `linear` with a constant weight multiplies.
pub(super) fn product(p: &mut Planner<'_>, linear: OpId) -> Option<(ValueId, Product)> {
    let op = p.f.op(linear);
    let x = op.value_arg("x").filter(|x| is_float32(p, *x))?;
    let weight = weight(p, op.value_arg("weight")?)?;
    let bias = constant_arg(p, op, "bias")?;
    let holds = bias.as_ref().is_none_or(|b| b.f32s().is_some());
    holds.then_some((x, Product { weight, bias }))
}

/// `mul(silu(linear(x, gate)), linear(x, up))`, or with `gelu`.
fn gated_linear(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (gate, up, op) = gated(p, &found)?;
    if gate == up {
        return None;
    }
    let (x, gate) = product(p, found.maker("gate")?)?;
    let (_, up) = product(p, found.maker("up")?)?;
    let (products, then) = (vec![gate, up], Then::Gated(op));
    one(found, Linear { x, products, then })
}

/// `add(x, linear(y))`, either way round, where known sizes agree: those that are not known are
/// looked at when it runs.
fn residual(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let [x, y] = found.values(["x", "y"])?;
    [(x, y), (y, x)].into_iter().find_map(|(to, made)| {
        let id = pattern!(linear()).made(p, made)?.root;
        let (x, product) = product(p, id)?;
        let fits = is_float32(p, to)
            && to != made
            && to != x
            && dims(p, to) == dims(p, made)
            && p.is_closed(found.root, &[id]);
        let (products, then) = (vec![product], Then::Added(to));
        let mut found = found.clone();
        found.ops.push(id);
        fits.then(|| one(found, Linear { x, products, then }))?
    })
}

impl Kernel for Linear {
    fn facts(&self) -> Facts<'_> {
        let (name, to) = match self.then {
            Then::Results => ("linear", None),
            Then::Gated(_) => ("gated linear", None),
            Then::Added(to) => ("linear, added", Some(to)),
            Then::Activated(_) => ("linear, activated", None),
        };
        Facts::new(name, [self.x].into_iter().chain(to))
            .batched(vec![self.x], to, true)
            .multiplying(&self.products)
    }

    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        let x = frame.get(self.x)?.clone();
        match (self.then, self.products.as_slice()) {
            (Then::Gated(op), [gate, up]) => {
                let n_tokens = n_rows(&x);
                let count = (n_tokens, frame.demand(n_tokens));
                Ok(vec![frame.gated(&x, count, [gate, up], op)?])
            }
            (Then::Added(to), [product]) if frame.get(to)?.shape != product.shape(&x.shape)? => {
                let add = opset::find("add").zip(ops::find("add"));
                let (def, eval) = add.ok_or("there is no `add`")?;
                let made = self.multiply(frame, step, &x, Then::Results)?;
                let sum = [vec![frame.get(to)?.clone()], made].concat();
                let sum = sum.into_iter().map(|t| Some(Value::Tensor(t))).collect();
                evaluate(frame.context, def, eval, sum, frame.pool)
            }
            (then, _) => self.multiply(frame, step, &x, then),
        }
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        frame.products_work(&self.products, self.x)
    }

    fn shapes(&self, x: &[usize]) -> Result<Vec<Vec<usize>>, Fault> {
        self.products
            .iter()
            .map(|product| product.shape(x))
            .collect()
    }

    fn products_mut(&mut self) -> &mut [Product] {
        &mut self.products
    }

    fn joinable(&mut self) -> Option<(ValueId, &mut Vec<Product>)> {
        matches!(self.then, Then::Results).then_some((self.x, &mut self.products))
    }
}

impl Linear {
    /// The products, those together that are in one form.
    fn multiply(
        &self,
        frame: &mut Frame<'_>,
        step: &Step,
        x: &Tensor,
        then: Then,
    ) -> Result<Vec<Tensor>, Fault> {
        let n_tokens = n_rows(x);
        let mut results = Vec::with_capacity(self.products.len());
        for product in &self.products {
            let shape = product.shape(&x.shape)?;
            let (out, n) = match then {
                Then::Added(to) => frame.take_floats(step, to, &shape)?,
                _ => frame.pool.take_checked(&shape)?,
            };
            results.push((shape, out, n));
        }
        let outputs = self.products.iter().zip(&mut results);
        let outputs = outputs.map(|(product, (_, y, n))| {
            let start = Start {
                bias: product.bias(),
                accumulates: matches!(then, Then::Added(_)),
            };
            (product, start, &mut y[..*n])
        });
        if let Numerics::Ane(effects) = frame.numerics {
            for (product, start, y) in outputs {
                let (w, x) = (product.weight.weight(), floats(x)?);
                frame.tally += ane::stored_linear(frame.context, &w, x, start.bias, effects, y);
            }
        } else {
            let demand = frame.demand(n_tokens);
            let outputs = outputs.map(|(product, start, y)| {
                let operand = product.weight.operand(frame.context, demand);
                Multiplied::new(operand, n_tokens, start, y)
            });
            let mut outputs: Vec<Multiplied> = outputs.collect();
            let epilogue = match then {
                Then::Activated(op) => Epilogue::Activated(op),
                _ => Epilogue::None,
            };
            frame.multiply(&mut outputs, (floats(x)?, n_tokens), epilogue)?;
        }
        let tensor = |(shape, out, _)| Tensor::fp32(shape, out);
        Ok(results.into_iter().map(tensor).collect())
    }
}

/// The rows of x.
fn n_rows(x: &Tensor) -> usize {
    let (_, outer) = x.shape.split_last().unwrap_or((&0, &[0]));
    outer.iter().product()
}

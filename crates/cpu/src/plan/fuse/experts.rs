//! The mixture of experts: each multiplies the rows of the tokens that chose it.

use std::ops::Add;

use thane_kernels::activation::Unary;
use thane_kernels::linear::{Epilogue, Product as Multiplied, Start};

use super::*;
use crate::ops::gather::row;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "experts",
    pattern!(reduce_sum(mul(down, weighted @ expand_dims(factors)))),
    experts,
)];

/// Feed-forward layers `down @ (op(gate @ x) * (up @ x))` of which each row of x uses some.
#[derive(Debug)]
struct Experts {
    /// [.., hidden].
    x: ValueId,
    /// The experts of each row, [.., used].
    indices: ValueId,
    /// Their factors, [.., used].
    factors: ValueId,
    /// The gates of all experts, then their ups, then their downs.
    products: Vec<Product>,
    n_experts: usize,
    op: Unary,
}

/// The experts that tokens chose, in rising order: the expert, and the place of the choice among
/// those of all tokens.
type Choices = Vec<(usize, usize)>;

/// `reduce_sum(mul(down @ (op(gate @ x) * (up @ x)), factors), [2, 4])`, where `gate`, `up` and
/// `down` are gathered by the same indices from stacks of constants.
fn experts(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    let f = p.f;
    let sum = f.op(found.root);
    if ints(p, sum, "axes")? != [2, 4] || !is_all(p, sum, "keep_dims", 0) {
        return None;
    }
    let down = chosen(p, found.value("down")?)?;
    let gated = pattern!(mul(active, up)).made(p, down.column)?;
    let active_id = p.maker(gated.value("active")?)?;
    let (gate, op) = activation(p, active_id)?;
    let (gate, up) = (chosen(p, gate)?, chosen(p, gated.value("up")?)?);
    let column = pattern!(expand_dims(x)).made(p, gate.column)?;
    let (x, indices, factors) = (column.value("x")?, down.indices, found.value("factors")?);
    let agree = up.column == gate.column
        && gate.indices == indices
        && up.indices == indices
        && ints(p, found.op("weighted")?, "axes")? == [3, 4]
        && ints(p, f.op(column.root), "axes")? == [2, 4];
    if !agree || !is_float32(p, x) || !fit(p, x, indices, factors) {
        return None;
    }
    found.ops.extend([gated.root, active_id, column.root]);
    for part in [&gate, &up, &down] {
        found.ops.extend(&part.covers);
    }
    let products = [gate, up, down].map(|part| products(p, part.stack));
    let [gates, ups, downs] = products;
    let (gates, ups, downs) = (gates?, ups?, downs?);
    let hidden = f.value(x).ty.tensor()?.shape.last()?.known()?;
    let inner = gates.first()?.weight.stored.n_rows;
    let all = |products: &[Product], shape: [usize; 2]| {
        let is = |Product { weight, .. }: &Product| {
            [weight.stored.n_rows, weight.stored.n_cols] == shape
        };
        products.iter().all(is)
    };
    let sizes = all(&gates, [inner, hidden]) && all(&ups, [inner, hidden]);
    if !sizes || !all(&downs, [hidden, inner]) {
        return None;
    }
    let n_experts = gates.len();
    let experts = Experts {
        x,
        indices,
        factors,
        products: gates.into_iter().chain(ups).chain(downs).collect(),
        n_experts,
        op,
    };
    one(found, experts)
}

/// A product of a column with matrices of a stack.
struct Chosen<'a> {
    column: ValueId,
    indices: ValueId,
    /// The matrices.
    stack: &'a [ValueId],
    covers: Vec<OpId>,
}

/// `matmul(gather(stack(constants), indices), column)`.
fn chosen<'a>(p: &Planner<'a>, value: ValueId) -> Option<Chosen<'a>> {
    let found = pattern!(matmul(rows @ gather(all @ stack(), indices), column)).made(p, value)?;
    let (product, stack) = (p.f.op(found.root), found.op("all")?);
    let is_first = takes_rows(p, found.op("rows")?);
    let Arg::Values(values) = stack.arg("values")? else {
        return None;
    };
    let is_plain = transposed(p, product)? == [false; 2] && ints(p, stack, "axis")? == [0];
    (is_plain && is_first).then_some(Chosen {
        column: found.value("column")?,
        indices: found.value("indices")?,
        stack: values,
        covers: found.ops,
    })
}

/// Whether x is [batch, tokens, hidden], and indices and factors are [batch, tokens, used].
fn fit(p: &Planner<'_>, x: ValueId, indices: ValueId, factors: ValueId) -> bool {
    let shape = |v: ValueId| p.f.value(v).ty.tensor().map(|t| t.shape.as_slice());
    let (Some(x), Some(indices), Some(factors)) = (shape(x), shape(indices), shape(factors)) else {
        return false;
    };
    x.len() == 3 && indices.len() == 3 && indices == factors && x[..2] == indices[..2]
}

/// The matrices of a stack.
fn products(p: &mut Planner<'_>, stack: &[ValueId]) -> Option<Vec<Product>> {
    let product = |weight: Matrix| Product { weight, bias: None };
    stack.iter().map(|v| matrix(p, *v).map(product)).collect()
}

impl Kernel for Experts {
    fn facts(&self) -> Facts<'_> {
        let reads = [self.x, self.indices, self.factors];
        Facts::new("experts", reads)
            .batched(reads.to_vec(), None, true)
            .multiplying(&self.products)
    }

    fn products_mut(&mut self) -> &mut [Product] {
        &mut self.products
    }

    /// The sum of the chosen experts of each row of x, each times its factor. The sum of a row has
    /// the same order whatever other rows there are.
    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let x = frame.get(self.x)?.clone();
        let factors = frame.get(self.factors)?.clone();
        let choices = self.choices(frame)?;
        let n_tokens = x.len() / self.hidden().max(1);
        let n_used = choices.len() / n_tokens.max(1);
        if factors.len() != choices.len() || n_used * n_tokens != choices.len() {
            return Err(format!(
                "there are {} factors and {} indices of experts for {n_tokens} tokens",
                factors.len(),
                choices.len()
            ));
        }
        let demand = frame.demand(n_tokens);
        let (mut out, n) = frame.pool.take_checked(&x.shape)?;
        out[..n].fill(0.0);
        for group in choices.chunk_by(|a, b| a.0 == b.0) {
            let own = self.expert(frame, group, (&x, n_used), demand)?;
            add_rows(
                &mut out[..n],
                floats(&own)?,
                floats(&factors)?,
                (group, n_used),
            );
            frame.pool.give(own);
        }
        Ok(vec![Tensor::fp32(x.shape, out)])
    }

    /// The products of the experts that are chosen.
    fn work(&self, frame: &Frame<'_>) -> Work {
        let choices = self.choices(frame).unwrap_or_default();
        let products = choices.chunk_by(|a, b| a.0 == b.0).flat_map(|group| {
            let n_rows = group.len() as f64;
            self.of(group[0].0).map(|product| (n_rows, &product.weight))
        });
        products
            .map(|(n, weight)| frame.product_work(n * weight.stored.n_cols as f64, weight))
            .fold(Work::default(), Add::add)
    }
}

impl Experts {
    /// Elements of a row.
    fn hidden(&self) -> usize {
        self.products[0].weight.stored.n_cols
    }

    /// Gate, up and down of an expert.
    fn of(&self, idx: usize) -> [&Product; 3] {
        [0, 1, 2].map(|part| &self.products[part * self.n_experts + idx])
    }

    /// Which experts the tokens chose.
    fn choices(&self, frame: &Frame<'_>) -> Result<Choices, Fault> {
        let indices = frame.get(self.indices)?;
        let ids = indices
            .to_ints()
            .ok_or("the indices of experts are no integers")?;
        let expert = |id| row(id, self.n_experts);
        let mut choices = (ids.into_iter().map(expert).zip(0..))
            .map(|(expert, at)| Ok((expert?, at)))
            .collect::<Result<Choices, Fault>>()?;
        choices.sort_unstable();
        Ok(choices)
    }

    /// What an expert gives for the tokens that chose it, [tokens, hidden].
    fn expert(
        &self,
        frame: &mut Frame<'_>,
        group: &[(usize, usize)],
        (x, n_used): (&Tensor, usize),
        demand: Demand,
    ) -> Result<Tensor, Fault> {
        let (hidden, n_rows) = (self.hidden(), group.len());
        let shape = vec![n_rows, hidden];
        let (mut rows, n) = frame.pool.take_checked(&shape)?;
        let x = floats(x)?;
        for (row, (_, at)) in rows[..n].chunks_exact_mut(hidden).zip(group) {
            row.copy_from_slice(&x[at / n_used * hidden..][..hidden]);
        }
        let rows = Tensor::fp32(shape.clone(), rows);
        let [gate, up, down] = self.of(group[0].0);
        let inner = frame.gated(&rows, (n_rows, demand), [gate, up], self.op)?;
        frame.pool.give(rows);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let operand = down.weight.operand(frame.context, demand);
        let mut product = [Multiplied::new(operand, n_rows, Start::NONE, &mut out[..n])];
        frame.multiply(&mut product, (floats(&inner)?, n_rows), Epilogue::None)?;
        frame.pool.give(inner);
        Ok(Tensor::fp32(shape, out))
    }
}

/// Adds rows, each times its factor, to those of the tokens that chose them.
fn add_rows(
    out: &mut [f32],
    rows: &[f32],
    factors: &[f32],
    (group, n_used): (&[(usize, usize)], usize),
) {
    let hidden = rows.len() / group.len();
    for (row, (_, at)) in rows.chunks_exact(hidden).zip(group) {
        let (sum, factor) = (&mut out[at / n_used * hidden..][..hidden], factors[*at]);
        sum.iter_mut()
            .zip(row)
            .for_each(|(sum, v)| *sum += factor * v);
    }
}

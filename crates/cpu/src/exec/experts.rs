//! Running a mixture of experts: each expert multiplies the rows of the tokens that chose it.

use thane_kernels::linear::{Epilogue, Product as Multiplied, Start};
use thane_mil::types::DType;

use super::Frame;
use crate::ops::Fault;
use crate::ops::gather::row;
use crate::step::Experts;
use crate::tensor::{Buffer, Tensor, floats};
use crate::weight::Demand;

/// The experts that tokens chose, in rising order: the expert, and the place of the choice among
/// those of all tokens.
pub type Choices = Vec<(usize, usize)>;

impl Frame<'_> {
    /// The sum of the chosen experts of each row of x, each times its factor. The sum of a row has
    /// the same order whatever other rows there are.
    pub fn experts(&mut self, experts: &Experts) -> Result<Tensor, Fault> {
        let x = self.get(experts.x)?.clone();
        let factors = self.get(experts.factors)?.clone();
        let choices = self.choices(experts)?;
        let n_tokens = x.len() / experts.hidden().max(1);
        let n_used = choices.len() / n_tokens.max(1);
        if factors.len() != choices.len() || n_used * n_tokens != choices.len() {
            return Err(format!(
                "there are {} factors and {} indices of experts for {n_tokens} tokens",
                factors.len(),
                choices.len()
            ));
        }
        let demand = self.demand(n_tokens);
        let (mut out, n) = self.pool.take_checked(&x.shape)?;
        out[..n].fill(0.0);
        for group in choices.chunk_by(|a, b| a.0 == b.0) {
            let own = self.expert(experts, group, (&x, n_used), demand)?;
            add_rows(
                &mut out[..n],
                floats(&own)?,
                floats(&factors)?,
                (group, n_used),
            );
            self.pool.give(own);
        }
        Ok(Tensor::new(DType::Fp32, x.shape, Buffer::F32(out)))
    }

    /// Which experts the tokens chose.
    pub fn choices(&self, experts: &Experts) -> Result<Choices, Fault> {
        let indices = self.get(experts.indices)?;
        let ids = indices
            .to_ints()
            .ok_or("the indices of experts are no integers")?;
        let expert = |id| row(id, experts.n_experts);
        let mut choices = (ids.into_iter().map(expert).zip(0..))
            .map(|(expert, at)| Ok((expert?, at)))
            .collect::<Result<Choices, Fault>>()?;
        choices.sort_unstable();
        Ok(choices)
    }

    /// What an expert gives for the tokens that chose it, [tokens, hidden].
    fn expert(
        &mut self,
        experts: &Experts,
        group: &[(usize, usize)],
        (x, n_used): (&Tensor, usize),
        demand: Demand,
    ) -> Result<Tensor, Fault> {
        let (hidden, n_rows) = (experts.hidden(), group.len());
        let shape = vec![n_rows, hidden];
        let (mut rows, n) = self.pool.take_checked(&shape)?;
        let x = floats(x)?;
        for (row, (_, at)) in rows[..n].chunks_exact_mut(hidden).zip(group) {
            row.copy_from_slice(&x[at / n_used * hidden..][..hidden]);
        }
        let rows = Tensor::new(DType::Fp32, shape.clone(), Buffer::F32(rows));
        let [gate, up, down] = experts.of(group[0].0);
        let inner = self.gated(&rows, (n_rows, demand), [gate, up], experts.op)?;
        self.pool.give(rows);
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let operand = down.weight.operand(self.context, demand);
        let mut product = [Multiplied::new(operand, n_rows, Start::NONE, &mut out[..n])];
        self.multiply(&mut product, (floats(&inner)?, n_rows), Epilogue::None)?;
        self.pool.give(inner);
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
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

//! `softmax` along the last axis.

use thane_kernels::softmax::softmax;

use super::*;

pub(super) const FUSIONS: &[Fusion] =
    &[Fusion::new("softmax", pattern!(softmax(x)), |p, found| {
        let x = found.value("x").filter(|x| is_float32(p, *x))?;
        let is_last = is_along_last(p, p.op(found.root), x)?;
        is_last.then(|| one(found, Softmax { x }))?
    })];

#[derive(Debug)]
struct Softmax {
    x: ValueId,
}

impl Kernel for Softmax {
    fn facts(&self) -> Facts<'_> {
        Facts::new("softmax", [self.x]).by_row(self.x)
    }

    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        let mut rows = frame.take(step, self.x)?;
        let n_cols = rows.shape.last().copied().unwrap_or(1);
        softmax(frame.context, floats_mut(&mut rows, frame.pool)?, n_cols);
        Ok(vec![rows])
    }
}

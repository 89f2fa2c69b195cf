//! Rows of a weight.

use thane_kernels::Weight;
use thane_kernels::linear::{decompress_rows, dequantize_rows_gather};

use super::*;
use crate::Numerics;
use crate::ane;
use crate::ops::gather::row;

pub(super) const FUSIONS: &[Fusion] =
    &[Fusion::new("gather", pattern!(gather(x, indices)), gather)];

#[derive(Debug)]
struct Gather {
    indices: ValueId,
    weight: Matrix,
}

fn gather(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let [x, indices] = found.values(["x", "indices"])?;
    // Rows of a table [rows, columns, 1, ..] have the ones too.
    if !takes_rows(p, p.op(found.root)) || p.f.value(x).ty.tensor()?.rank() != 2 {
        return None;
    }
    let weight = weight(p, x)?;
    one(found, Gather { indices, weight })
}

impl Kernel for Gather {
    fn facts(&self) -> Facts<'_> {
        Facts::new("gather of rows", [self.indices]).batched(vec![self.indices], None, true)
    }

    fn shapes(&self, indices: &[usize]) -> Result<Vec<Vec<usize>>, Fault> {
        Ok(vec![[indices, &[self.weight.stored.n_cols]].concat()])
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (context, weight) = (frame.context, &self.weight);
        let indices = frame.get(self.indices)?;
        let ids = indices
            .to_ints()
            .ok_or("`indices` does not hold integers")?;
        let ids = ids.into_iter().map(|id| row(id, weight.stored.n_rows));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        let shape = [indices.shape.as_slice(), &[weight.stored.n_cols]].concat();
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        if let Some(codes) = weight.codes() {
            decompress_rows(context, &codes, &ids, &mut out[..n]);
        } else if weight.stored.bytes.is_released() {
            self.copied(frame, &ids, &mut out[..n])?;
        } else {
            dequantize_rows_gather(context, &weight.weight(), &ids, &mut out[..n]);
        }
        if let Numerics::Ane(effects) = frame.numerics {
            ane::round_constants(context, &mut out[..n], effects);
        }
        Ok(vec![Tensor::fp32(shape, out)])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        let Gather { indices, weight } = self;
        let row_bytes = weight.n_bytes() as f64 / weight.stored.n_rows.max(1) as f64;
        Work {
            read: frame.n_elements(*indices) * row_bytes,
            ..Work::default()
        }
    }
}

impl Gather {
    /// The values of some rows, which are read from their file: a map would bring in what lies
    /// around each, up to 2 MiB.
    fn copied(&self, frame: &mut Frame<'_>, ids: &[usize], out: &mut [f32]) -> Result<(), Fault> {
        let stored = &self.weight.stored;
        let row_bytes = stored.bytes.len() / stored.n_rows.max(1);
        let mut rows = frame.pool.take(out.len())?;
        let bytes = &mut bytemuck::cast_slice_mut(&mut rows)[..ids.len() * row_bytes];
        let pool = frame.context.pool();
        pool.run_chunks(&mut *bytes, row_bytes.max(1), |i, row| {
            // Each id is below the number of rows.
            let _ = stored.bytes.read(ids[i] * row_bytes, row);
        });
        let copied = Weight {
            ty: stored.ty,
            bytes,
            n_rows: ids.len(),
            n_cols: stored.n_cols,
        };
        let all = Vec::from_iter(0..ids.len());
        dequantize_rows_gather(frame.context, &copied, &all, out);
        frame.pool.give_f32(rows);
        Ok(())
    }
}

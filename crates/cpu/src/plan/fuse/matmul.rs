//! `x y`, or `x y^T`, of matrices that are computed, with equal batch axes.

use thane_kernels::linear::{Epilogue, Precision, Product, Start, linear, linear_scratch_len};
use thane_kernels::{BlockType, Weight};

use super::*;
use crate::exec::turn;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new("matmul", pattern!(matmul(x, y)), matmul)];

#[derive(Debug)]
struct MatMul {
    x: ValueId,
    y: ValueId,
    transpose_y: bool,
}

fn matmul(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let f = p.f;
    let [x, y] = found.values(["x", "y"])?;
    let (a, b) = (f.value(x).ty.tensor()?, f.value(y).ty.tensor()?);
    let same_batch =
        a.rank() == b.rank() && a.rank() >= 2 && a.shape[..a.rank() - 2] == b.shape[..b.rank() - 2];
    let floats = a.dtype == b.dtype && matches!(a.dtype, DType::Fp32 | DType::Fp16);
    let [transpose_x, transpose_y] = transposed(p, p.op(found.root))?;
    if transpose_x || !same_batch || !floats {
        return None;
    }
    one(found, MatMul { x, y, transpose_y })
}

impl Kernel for MatMul {
    fn facts(&self) -> Facts<'_> {
        Facts::new("matmul", [self.x, self.y])
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let (x, y) = (frame.get(self.x)?.clone(), frame.get(self.y)?.clone());
        let dtype = x.dtype;
        let (x, y) = (frame.pool.widened(&x)?, frame.pool.widened(&y)?);
        let (Some((&k, outer)), Some((y_sizes, y_batch))) = (
            x.shape.split_last(),
            y.shape.split_last_chunk::<2>().map(|(b, s)| (s, b)),
        ) else {
            return Err("a factor has no axes".to_owned());
        };
        let (n, y_k) = if self.transpose_y {
            (y_sizes[0], y_sizes[1])
        } else {
            (y_sizes[1], y_sizes[0])
        };
        let Some((&m, batch)) = outer.split_last() else {
            return Err("`x` is a vector".to_owned());
        };
        if y_k != k || batch != y_batch {
            return Err(format!("{:?} and {:?} do not fit", x.shape, y.shape));
        }
        let shape = [batch, &[m, n]].concat();
        let (mut out, len) = frame.pool.take_checked(&shape)?;
        let (x, y) = (floats(&x)?, floats(&y)?);
        let mut turned = if self.transpose_y {
            Floats::default()
        } else {
            frame.pool.take(k * n)?
        };
        for (i, out) in out[..len].chunks_mut((m * n).max(1)).enumerate() {
            let (x, y) = (&x[i * m * k..][..m * k], &y[i * n * k..][..n * k]);
            if k == 0 || !self.transpose_y && m == 1 {
                out.fill(0.0);
                for (x, y) in x.iter().zip(y.chunks(n)) {
                    out.iter_mut().zip(y).for_each(|(out, y)| *out += x * y);
                }
                continue;
            }
            let rows = if self.transpose_y {
                y
            } else {
                turn(y, [k, n], &mut turned);
                &turned[..k * n]
            };
            let weight = Weight {
                ty: BlockType::F32,
                bytes: bytemuck::cast_slice(rows),
                n_rows: n,
                n_cols: k,
            };
            let products = &mut [Product::new(weight, m, Start::NONE, out)];
            let (context, exact, none) = (frame.context, Precision::Exact, Epilogue::None);
            let n_scratch = linear_scratch_len(context, exact, products, m, none);
            let mut scratch = frame.pool.take(n_scratch)?;
            linear(context, exact, products, x, m, none, &mut scratch);
            frame.pool.give_f32(scratch);
        }
        let result = Tensor::fp32(shape, out);
        Ok(vec![frame.pool.narrowed(result, dtype)?])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        let y = frame.shape(self.y);
        let rows = y.len().checked_sub(if self.transpose_y { 2 } else { 1 });
        let n_rows = rows.and_then(|at| y.get(at)).map_or(0.0, |n| *n as f64);
        Work::flops(2.0 * frame.n_elements(self.x) * n_rows)
    }
}

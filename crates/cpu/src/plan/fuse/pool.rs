//! A pool of x [batch, .., channels].

use thane_kernels::spatial::{Pooling, pool as compute};
use thane_mil::opset::window::Windows;

use super::windows::{result_shape, turned, window, windows};
use super::*;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "pool_rows",
    pattern!(rows @ transpose(made @ [max_pool, avg_pool](turned @ transpose(x)))),
    pool_rows,
)];

#[derive(Debug)]
struct Pool {
    x: ValueId,
    windows: Windows,
    pooling: Pooling,
}

fn pool_rows(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (op, x) = turned(p, &found)?;
    let kernel = ints(p, op, "kernel_sizes")?;
    let kernel: Vec<usize> = kernel
        .iter()
        .map(|n| usize::try_from(*n).ok().filter(|n| *n > 0))
        .collect::<Option<_>>()?;
    let is_set = |name: &str| {
        p.f.literal_arg(op, name)
            .is_some_and(|l| l.to_ints() == Some(vec![1]))
    };
    let windows = windows(p, op, kernel.clone())?;
    // With less padding than elements of the window, each window has elements.
    let pads = ints(p, op, "pad").unwrap_or_default();
    let is_filled = pads
        .chunks(2)
        .zip(&kernel)
        .all(|(pads, n)| pads.iter().all(|pad| *pad < *n as i64));
    if is_set("ceil_mode") || !is_filled {
        return None;
    }
    let pooling = match op.def.name {
        "max_pool" => Pooling::Max,
        _ if is_set("exclude_padding_from_average") => Pooling::Mean,
        _ => Pooling::MeanWithPadding,
    };
    let pool = Pool {
        x,
        windows,
        pooling,
    };
    one(found, pool)
}

impl Kernel for Pool {
    fn facts(&self) -> Facts<'_> {
        Facts::new("pool", [self.x])
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let x = frame.get(self.x)?.clone();
        let window = window(&x.shape, &self.windows)?;
        let shape = result_shape(&x.shape, &window, window.channels);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let (pooling, y) = (self.pooling, &mut out[..n]);
        compute(frame.context, &window, pooling, floats(&x)?, y);
        Ok(vec![Tensor::fp32(shape, out)])
    }
}

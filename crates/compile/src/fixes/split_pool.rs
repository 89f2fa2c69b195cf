//! Takes maxima over large windows in several steps.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 64, 20, 20]> x) {
//!     tensor<fp16, [1, 64, 20, 20]> y = max_pool(x = x, kernel_sizes = tensor<int32, [2]>([13, 13]), strides = tensor<int32, [2]>([1, 1]), pad_type = string("same"));
//! } -> (y);
//! ```
//!
//! becomes two `max_pool` over windows of 7 by 7, each padded by 3: the maximum of 7 maxima that
//! overlap is that of all 13. The strides are those of the last step.

use thane_mil::literal::Literal;

use super::split_kernel::padding;
use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_pool",
    rules: &["ANE034", "ANE035"],
    what: "maxima over a large window as maxima of maxima",
    numbers: Numbers::Exact,
    pattern: Else(&pattern!(max_pool()), "it is no max_pool"),
    write,
};

/// Widest and highest window of a step (the rules and their sources).
const WIDEST: usize = 8;
const HIGHEST: usize = 31;

fn write(new: &Rewrite<'_>) -> Answer {
    let id = new.root();
    let (mut y, shape) = new.operand(id, "x")?;
    let out = new.result_shape()?;
    if new.flag(id, "ceil_mode") {
        return Err("its last windows stand out of x");
    }
    let sizes = |name: &str| {
        let sizes = ints(new.graph, id, name).unwrap_or_else(|| vec![1; shape.len() - 2]);
        let sizes = sizes
            .into_iter()
            .map(|n| usize::try_from(n).ok().filter(|n| *n > 0));
        sizes
            .collect::<Option<Vec<_>>>()
            .ok_or("a window or stride of it is empty")
    };
    let (window, strides) = (sizes("kernel_sizes")?, sizes("strides")?);
    let pad = padding(new, &window, &strides, &shape[2..], &out[2..])?;
    let n_axes = window.len();
    let steps = |(i, len): (usize, &usize)| {
        let most = if i + 1 == n_axes { WIDEST } else { HIGHEST };
        (len - 1).div_ceil(most - 1)
    };
    let n = window.iter().enumerate().map(steps).max().unwrap_or(0);
    if n < 2 {
        return Err("its window is small");
    }
    let mut done = vec![0; pad.len()];
    for step in 0..n {
        let part = |len: &usize| (len - 1) * (step + 1) / n - (len - 1) * step / n + 1;
        let part: Vec<usize> = window.iter().map(part).collect();
        // No window of a step is all padding.
        let own = |k: usize| (pad[k] * (step + 1) / n - done[k]).min(part[k / 2] - 1);
        let own: Vec<usize> = (0..pad.len()).map(own).collect();
        done.iter_mut()
            .zip(&own)
            .for_each(|(done, own)| *done += own);
        let is_last = step + 1 == n;
        let strides = if is_last {
            strides.clone()
        } else {
            vec![1; n_axes]
        };
        let others = [
            ("x", y),
            ("kernel_sizes", new.ints(&part)),
            ("strides", new.ints(&strides)),
            ("pad_type", new.literal(Literal::string("custom"))),
            ("pad", new.ints(&own)),
        ];
        y = new.again(new.graph.op(id), &others);
    }
    if done != pad {
        return Err("a window of it is all padding");
    }
    new.instead(y)
}

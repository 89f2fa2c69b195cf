//! Softmax of rows.

use crate::Context;
use crate::math::{self, Each};
use crate::simd::{Kernel, Simd};

/// Elements below which a call is not worth handing to other threads.
const MIN_TASK_LEN: usize = 8_192;

/// `x = exp(x - max) / sum`, for each row of `n_cols`, in place. A row that is all `-inf` or has a
/// NaN or `+inf` becomes NaN, as the formula has it.
///
/// # Panics
/// If `x` is not whole rows.
pub fn softmax(ctx: &Context, x: &mut [f32], n_cols: usize) {
    if x.is_empty() {
        return;
    }
    assert!(
        x.len().is_multiple_of(n_cols),
        "{} elements are not rows of {n_cols}",
        x.len()
    );
    let task_len = MIN_TASK_LEN.div_ceil(n_cols) * n_cols;
    ctx.pool().run_chunks(x, task_len, |_, x| {
        for row in x.chunks_exact_mut(n_cols) {
            ctx.isa().run(SoftmaxRow { row });
        }
    });
}

struct SoftmaxRow<'a> {
    row: &'a mut [f32],
}

impl Kernel for SoftmaxRow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let max = max(simd, self.row);
        let (vectors, rest) = self.row.as_chunks_mut::<16>();
        let max = simd.splat(max);
        let mut sums = simd.splat(0.0);
        for vector in vectors {
            let e = math::exp_negative(Each(simd), [simd.sub(simd.load(vector), max)])[0];
            simd.store(e, vector);
            sums = simd.add(sums, e);
        }
        // exp(-inf) adds nothing.
        let mut last = [f32::NEG_INFINITY; 16];
        last[..rest.len()].copy_from_slice(rest);
        if !rest.is_empty() {
            let e = math::exp_negative(Each(simd), [simd.sub(simd.load(&last), max)])[0];
            simd.store(e, &mut last);
            sums = simd.add(sums, e);
            rest.copy_from_slice(&last[..rest.len()]);
        }
        let sum = simd.sum(sums);
        self.row.iter_mut().for_each(|value| *value /= sum);
    }
}

/// The largest of some values; of NaN no notice is taken.
#[inline(always)]
pub(crate) fn max<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (vectors, rest) = x.as_chunks::<16>();
    let mut max = simd.splat(f32::NEG_INFINITY);
    for vector in vectors {
        max = simd.max(simd.load(vector), max);
    }
    rest.iter()
        .fold(simd.max_lane(max), |max, x| if *x > max { *x } else { max })
}

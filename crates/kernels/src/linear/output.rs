//! Where products go, and what becomes of them there.

use std::ops::Range;

use crate::activation::Unary;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// What a product is added to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start<'a> {
    /// A number for each output of a token.
    pub bias: Option<&'a [f32]>,
    /// The outputs as they are.
    pub accumulates: bool,
}

impl<'a> Start<'a> {
    /// Nothing is added.
    pub const NONE: Self = Start {
        bias: None,
        accumulates: false,
    };

    /// A number for each output of a token.
    pub fn bias(bias: &'a [f32]) -> Self {
        Self {
            bias: Some(bias),
            accumulates: false,
        }
    }
}

impl<'a> From<Option<&'a [f32]>> for Start<'a> {
    fn from(bias: Option<&'a [f32]>) -> Self {
        Self {
            bias,
            accumulates: false,
        }
    }
}

/// Where a product goes: `y` [n_tokens, n_rows], written by several tasks.
#[derive(Debug)]
pub(super) struct Output<'a> {
    y: SharedMut<'a, f32>,
    pub(super) start: Start<'a>,
    pub(super) n_rows: usize,
    /// What becomes of an output that is whole.
    then: Option<(Unary, Isa)>,
}

/// Which columns of a matrix a sum is of.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(n_rows: usize, n_tokens: usize, start: Start<'a>, y: &'a mut [f32]) -> Self {
        assert_eq!(
            Some(y.len()),
            n_tokens.checked_mul(n_rows),
            "outputs of {n_tokens} tokens and {n_rows} rows"
        );
        assert!(
            start.bias.is_none_or(|bias| bias.len() == n_rows),
            "one bias per row"
        );
        Self {
            y: SharedMut::new(y),
            start,
            n_rows,
            then: None,
        }
    }

    /// What a sum is added to, given the output as it is.
    #[inline(always)]
    pub(super) fn start(&self, row_idx: usize, y: f32) -> f32 {
        let bias = self.start.bias.map_or(0.0, |bias| bias[row_idx]);
        if self.start.accumulates {
            y + bias
        } else {
            bias
        }
    }

    /// Has each output become what `op` gives of it, by products that can.
    pub(super) fn set_then(&mut self, ctx: &Context, op: Option<Unary>) {
        self.then = op.map(|op| (op, ctx.isa()));
    }

    /// What becomes of some outputs that are whole: while they are in the first cache.
    #[inline(always)]
    pub(super) fn finish(&self, first_token: usize, n_tokens: usize, first_row: usize) {
        if let Some((op, isa)) = self.then {
            let end = first_token + n_tokens;
            for start in (first_token..end).step_by(FINISH_TOKENS) {
                Finish {
                    op,
                    out: self,
                    first_row,
                    tokens: start..end.min(start + FINISH_TOKENS),
                }
                .run_on(isa);
            }
        }
    }

    /// Where the sums of a panel go, from a token on: of the first columns, or of others.
    #[inline(always)]
    pub(super) fn panel(
        &self,
        first_token: usize,
        first_row: usize,
        is_first: bool,
    ) -> PanelSums<'_> {
        let n_rows = (self.n_rows - first_row).min(LANES);
        let bias = self
            .start
            .bias
            .filter(|_| is_first)
            .map(|bias| &bias[first_row..][..n_rows]);
        let start = Start {
            bias,
            accumulates: self.start.accumulates || !is_first,
        };
        PanelSums {
            all: &self.y,
            first: first_token * self.n_rows + first_row,
            stride: self.n_rows,
            n_rows,
            start,
        }
    }

    /// All of them.
    pub(super) fn values(&mut self) -> &mut [f32] {
        self.y.all()
    }

    /// Outputs of one token, from `row_idx` on.
    ///
    /// # Safety
    /// No other task has any of these outputs.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(super) unsafe fn part(&self, token_idx: usize, row_idx: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.y.slice(token_idx * self.n_rows + row_idx, len) }
    }
}

/// 16 rows, or as many as there are, of some tokens.
pub(super) struct PanelSums<'a> {
    pub(super) all: &'a SharedMut<'a, f32>,
    /// The first of the first token.
    pub(super) first: usize,
    /// From token to token.
    pub(super) stride: usize,
    pub(super) n_rows: usize,
    /// What is added to; its bias is of these rows.
    pub(super) start: Start<'a>,
}

impl PanelSums<'_> {
    /// Those of a token.
    ///
    /// # Safety
    /// Nobody else has any of them.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(super) unsafe fn of(&self, token_idx: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe {
            self.all
                .slice(self.first + token_idx * self.stride, self.n_rows)
        }
    }

    /// Asks for those of some tokens.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, n_tokens: usize) {
        for token_idx in 0..n_tokens {
            // Of rows that begin within a line there are two.
            simd.prefetch(self.all.address(self.first + token_idx * self.stride));
            simd.prefetch(
                self.all
                    .address(self.first + token_idx * self.stride + self.n_rows - 1),
            );
        }
    }

    /// Stores the sums of as many tokens as there are, added to what they start with.
    ///
    /// # Safety
    /// Nobody else has any of them.
    #[inline(always)]
    pub(super) unsafe fn add<S: Simd, const N: usize>(
        &self,
        simd: S,
        sums: [S::F; N],
        n_tokens: usize,
    ) {
        if self.n_rows == LANES && n_tokens >= N {
            let bias = self.start.bias.and_then(|bias| bias.first_chunk());
            let bias = bias.map_or(simd.splat(0.0), |bias| simd.load(bias));
            for n in 0..N {
                // SAFETY: the caller's promise.
                let y = unsafe { self.all.slice(self.first + n * self.stride, LANES) };
                let y = y.first_chunk_mut().expect("16 rows");
                let before = if self.start.accumulates {
                    simd.add(simd.load(y), bias)
                } else {
                    bias
                };
                simd.store(simd.add(before, sums[n]), y);
            }
            return;
        }
        for n in 0..N {
            if n < n_tokens {
                let mut lanes = [0.0; LANES];
                simd.store(sums[n], &mut lanes);
                // SAFETY: the caller's promise.
                self.start.add_few(&lanes, unsafe { self.of(n) });
            }
        }
    }
}

/// Tokens of a [`Finish`], at most: at once, as none of them waits for another.
const FINISH_TOKENS: usize = 6;

/// Outputs of a few tokens become what `op` gives of them.
///
/// Small: what is large is copied by vectors, which wait for what was just written in parts.
struct Finish<'a> {
    op: Unary,
    out: &'a Output<'a>,
    first_row: usize,
    tokens: Range<usize>,
}

impl Finish<'_> {
    /// Never inlined: inlined into each tile, every activation was compiled for every instruction
    /// set, which took most of this crate's build time.
    #[inline(never)]
    fn run_on(self, isa: Isa) {
        isa.run(self);
    }
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            op,
            out,
            first_row,
            tokens,
        } = self;
        let sums = out.panel(tokens.start, first_row, false);
        let mut values = [simd.splat(0.0); FINISH_TOKENS];
        for i in 0..FINISH_TOKENS {
            if i < tokens.len() {
                // SAFETY: they belong, for these tokens, to this task alone.
                values[i] = simd.load(&filled_up(unsafe { sums.of(i) }));
            }
        }
        let values = op.of_each(simd, values);
        for i in 0..FINISH_TOKENS {
            if i < tokens.len() {
                // SAFETY: as above.
                store(simd, values[i], unsafe { sums.of(i) });
            }
        }
    }
}

/// Stores 16 values, or as many as there are.
#[inline(always)]
pub(super) fn store<S: Simd>(simd: S, values: S::F, to: &mut [f32]) {
    if let Some(to) = to.first_chunk_mut() {
        return simd.store(values, to);
    }
    let mut lanes = [0.0; LANES];
    simd.store(values, &mut lanes);
    to.copy_from_slice(&lanes[..to.len()]);
}

/// 16 values; zeros where there are none.
#[inline(always)]
pub(super) fn filled_up(values: &[f32]) -> [f32; LANES] {
    values.first_chunk().copied().unwrap_or_else(|| {
        let mut lanes = [0.0; LANES];
        lanes[..values.len()].copy_from_slice(values);
        lanes
    })
}

impl Start<'_> {
    /// Stores some sums, added to what they start with.
    #[cold]
    fn add_few(&self, sums: &[f32; LANES], y: &mut [f32]) {
        for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
            let bias = self.bias.map_or(0.0, |bias| bias[i]);
            *y = sum + if self.accumulates { *y + bias } else { bias };
        }
    }
}

//! Rotary position embedding.

use crate::Context;
use crate::simd::{Kernel, Simd};
use crate::threads::SharedMut;

/// Which two elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `i` and `i + rotary_dim / 2` (GPT-NeoX, Hugging Face Llama).
    Half,
    /// `2 i` and `2 i + 1` (the original Llama, GGUF's "norm").
    Interleaved,
}

/// Where the heads are: element `i` of head `h` of token `t` is at
/// `h * head_stride + t * token_stride + i`.
#[derive(Debug, Clone, Copy)]
pub struct RopeShape {
    /// Heads.
    pub n_heads: usize,
    /// Tokens.
    pub n_tokens: usize,
    /// Leading elements of each head that are rotated: even. The others are left as they are.
    pub rotary_dim: usize,
    /// Elements from a head to the next.
    pub head_stride: usize,
    /// Elements from a token to the next.
    pub token_stride: usize,
}

/// Rotates the heads of `x` in place, by the angles whose cosines and sines are `cos` and `sin`
/// [n_tokens, rotary_dim / 2]: `(a, b)` becomes `(a cos - b sin, b cos + a sin)`.
///
/// # Panics
/// If `rotary_dim` is odd, `x` is too short, `cos` or `sin` has another length, or the strides let
/// heads overlap.
pub fn rope(
    ctx: &Context,
    x: &mut [f32],
    shape: RopeShape,
    cos: &[f32],
    sin: &[f32],
    style: RopeStyle,
) {
    let RopeShape {
        n_heads,
        n_tokens,
        rotary_dim,
        head_stride,
        token_stride,
    } = shape;
    assert!(
        rotary_dim.is_multiple_of(2),
        "rotary dimension {rotary_dim} is odd"
    );
    let half = rotary_dim / 2;
    assert_eq!(cos.len(), n_tokens * half, "cosines of {n_tokens} tokens");
    assert_eq!(sin.len(), n_tokens * half, "sines of {n_tokens} tokens");
    if n_heads == 0 || n_tokens == 0 {
        return;
    }
    let head_len = (n_tokens - 1) * token_stride + rotary_dim;
    assert!(
        (n_heads - 1) * head_stride + head_len <= x.len(),
        "{n_heads} heads of {n_tokens} tokens in {} elements",
        x.len()
    );
    assert_apart(shape);
    let x = SharedMut::new(x);
    let rotate = |h: usize, t: usize| {
        // SAFETY: each head of each token is taken once, and no two of them overlap.
        let head = unsafe { x.slice(h * head_stride + t * token_stride, rotary_dim) };
        ctx.isa().run(Rotate {
            head,
            cos: &cos[t * half..][..half],
            sin: &sin[t * half..][..half],
            style,
        });
    };
    let n_in_task = (MIN_TASK_LEN / rotary_dim.max(1)).clamp(1, n_heads * n_tokens);
    ctx.pool()
        .run((n_heads * n_tokens).div_ceil(n_in_task), |task_idx| {
            for i in task_idx * n_in_task..((task_idx + 1) * n_in_task).min(n_heads * n_tokens) {
                rotate(i / n_tokens, i % n_tokens);
            }
        });
}

/// Elements below which a call is not worth handing to other threads.
const MIN_TASK_LEN: usize = 16_384;

/// Asserts that no element belongs to two heads: one of the strides spans all that the other steps
/// over.
fn assert_apart(shape: RopeShape) {
    let RopeShape {
        n_heads,
        n_tokens,
        rotary_dim,
        head_stride,
        token_stride,
    } = shape;
    let tokens_in_heads = (n_tokens == 1 || token_stride >= rotary_dim)
        && head_stride >= (n_tokens - 1) * token_stride + rotary_dim;
    let heads_in_tokens = (n_heads == 1 || head_stride >= rotary_dim)
        && token_stride >= (n_heads - 1) * head_stride + rotary_dim;
    assert!(
        tokens_in_heads
            || heads_in_tokens
            || n_heads == 1 && (n_tokens == 1 || token_stride >= rotary_dim)
            || n_tokens == 1 && head_stride >= rotary_dim,
        "heads overlap: {shape:?}"
    );
}

/// Cosines or sines of rows of heads: those of a row begin at the sum of the row's indices, each
/// times its stride; a stride of 0 repeats them.
#[derive(Debug, Clone, Copy)]
pub struct Angles<'a> {
    /// All of them.
    pub values: &'a [f32],
    /// One for each axis of the rows.
    pub strides: &'a [usize],
}

/// The halves of each row of x [.., head_dim] rotated by angles of their own:
/// `out = x cos + (-b, a) sin`, where `(a, b)` are the halves of x. That is how Hugging Face writes
/// rotary embeddings.
///
/// # Panics
/// If a row has an odd length, `x` or `out` are not the rows of `outer`, or an angle is missing.
pub fn rope_halves(
    ctx: &Context,
    x: &[f32],
    (outer, head_dim): (&[usize], usize),
    [cos, sin]: [Angles<'_>; 2],
    out: &mut [f32],
) {
    assert!(
        head_dim.is_multiple_of(2),
        "head dimension {head_dim} is odd"
    );
    let n_rows: usize = outer.iter().product();
    assert_eq!(x.len(), n_rows * head_dim, "rows of {head_dim}");
    assert_eq!(out.len(), x.len(), "one output per input");
    if x.is_empty() {
        return;
    }
    let start = |strides: &[usize], row: usize| {
        let axes = outer.iter().zip(strides).rev();
        let sum = |(row, at): (usize, usize), (n, stride): (&usize, &usize)| {
            (row / n, at + row % n * stride)
        };
        axes.fold((row, 0), sum).1
    };
    let n_in_task = (MIN_TASK_LEN / head_dim).clamp(1, n_rows);
    ctx.pool()
        .run_chunks(out, n_in_task * head_dim, |task_idx, out| {
            for (i, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let row = task_idx * n_in_task + i;
                let [cos, sin] = [cos, sin]
                    .map(|angles| &angles.values[start(angles.strides, row)..][..head_dim]);
                let x = &x[row * head_dim..][..head_dim];
                ctx.isa().run(RotateHalves { x, cos, sin, out });
            }
        });
}

struct RotateHalves<'a> {
    x: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for RotateHalves<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let half = self.x.len() / 2;
        let (a, b) = self.x.split_at(half);
        let (left, right) = self.out.split_at_mut(half);
        let left = left.iter_mut().zip(self.cos).zip(self.sin);
        for (((out, cos), sin), (a, b)) in left.zip(a.iter().zip(b)) {
            *out = a * cos - b * sin;
        }
        let right = right
            .iter_mut()
            .zip(&self.cos[half..])
            .zip(&self.sin[half..]);
        for (((out, cos), sin), (a, b)) in right.zip(a.iter().zip(b)) {
            *out = b * cos + a * sin;
        }
    }
}

struct Rotate<'a> {
    head: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    style: RopeStyle,
}

impl Kernel for Rotate<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (cos, sin) = (self.cos, self.sin);
        match self.style {
            RopeStyle::Half => {
                let (a, b) = self.head.split_at_mut(cos.len());
                for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
            RopeStyle::Interleaved => {
                for (([a, b], cos), sin) in self
                    .head
                    .as_chunks_mut::<2>()
                    .0
                    .iter_mut()
                    .zip(cos)
                    .zip(sin)
                {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}

//! Functions of one value, on slices.

use crate::Context;
use crate::math::{self, Each};
use crate::simd::{Isa, Kernel, Simd};

/// A function of one value. The bounds are against f64, in units of the last place of the f32
/// result (ULP), subnormal results excepted; the tests hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    /// e to the x: 1.5 ULP.
    Exp,
    /// `1 / (1 + exp(-x))`: 3 ULP.
    Sigmoid,
    /// `x * sigmoid(x)`: 3.5 ULP.
    Silu,
    /// Hyperbolic tangent: 2.5 ULP.
    Tanh,
    /// The error function: 1.3e-7 absolute, 2.5 ULP for |x| below 1.
    Erf,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: relative error 1e-6 + 6e-7 |u|, u
    /// the argument of tanh.
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`: 1.5e-7 |x| absolute.
    GeluErf,
    /// `max(x, 0)`, NaN for NaN.
    Relu,
    /// `min(max(x, 0), 6)`, NaN for NaN.
    Relu6,
}

impl Unary {
    /// Of a vector.
    #[inline(always)]
    pub(crate) fn of<S: Simd>(self, simd: S, v: S::F) -> S::F {
        self.of_each(simd, [v])[0]
    }

    /// Of each vector.
    #[inline(always)]
    pub(crate) fn of_each<S: Simd, const N: usize>(self, simd: S, vectors: [S::F; N]) -> [S::F; N] {
        if const { S::IS_IN_REGISTERS } {
            self.inlined(simd, vectors)
        } else {
            vectors.map(|v| self.out_of_line(simd, v))
        }
    }

    #[inline(never)]
    fn out_of_line<S: Simd>(self, simd: S, v: S::F) -> S::F {
        self.inlined(simd, [v])[0]
    }

    #[inline(always)]
    fn inlined<S: Simd, const N: usize>(self, simd: S, vectors: [S::F; N]) -> [S::F; N] {
        let simd = Each(simd);
        match self {
            Self::Exp => math::exp(simd, vectors),
            Self::Sigmoid => math::sigmoid(simd, vectors),
            Self::Silu => math::silu(simd, vectors),
            Self::Tanh => math::tanh(simd, vectors),
            Self::Erf => math::erf(simd, vectors),
            Self::GeluTanh => math::gelu_tanh(simd, vectors),
            Self::GeluErf => math::gelu_erf(simd, vectors),
            Self::Relu => math::relu(simd, vectors),
            Self::Relu6 => math::relu6(simd, vectors),
        }
    }
}

/// Values that a task takes: half of a first-level cache in and out.
const CHUNK_LEN: usize = 4096;

/// `out = op(x)`.
///
/// # Panics
/// If the lengths differ.
pub fn unary(ctx: &Context, op: Unary, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one output per input");
    ctx.pool().run_chunks(out, CHUNK_LEN, |chunk_idx, out| {
        ctx.isa().run(Apply {
            op,
            x: Some(&x[chunk_idx * CHUNK_LEN..][..out.len()]),
            factors: None,
            out,
        });
    });
}

/// `x = op(x)`.
pub fn unary_in_place(ctx: &Context, op: Unary, x: &mut [f32]) {
    ctx.pool()
        .run_chunks(x, CHUNK_LEN, |_, x| apply(ctx.isa(), op, x));
}

/// `gate = op(gate) * up`: the gated half of a feed-forward layer.
///
/// # Panics
/// If the lengths differ.
pub fn gated(ctx: &Context, op: Unary, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "a gate for each input");
    ctx.pool().run_chunks(gate, CHUNK_LEN, |chunk_idx, out| {
        let factors = Some(&up[chunk_idx * CHUNK_LEN..][..out.len()]);
        ctx.isa().run(Apply {
            op,
            x: None,
            factors,
            out,
        });
    });
}

/// As [`unary_in_place`], on this thread.
pub(crate) fn apply(isa: Isa, op: Unary, x: &mut [f32]) {
    isa.run(Apply {
        op,
        x: None,
        factors: None,
        out: x,
    });
}

struct Apply<'a> {
    op: Unary,
    /// As many as `out`; `out` itself where there are none.
    x: Option<&'a [f32]>,
    /// What the results are multiplied with.
    factors: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            op,
            x,
            factors,
            out,
        } = self;
        let (vectors, rest) = out.as_chunks_mut::<16>();
        let (x, factors) = (
            x.map(|x| x.as_chunks::<16>()),
            factors.map(|x| x.as_chunks::<16>()),
        );
        let (inputs, scales) = (x.map(|(x, _)| x), factors.map(|(factors, _)| factors));
        // Several at once, as none of them waits for another.
        const AT_ONCE: usize = 4;
        let n_whole = vectors.len() / AT_ONCE * AT_ONCE;
        for start in (0..n_whole).step_by(AT_ONCE) {
            apply_to::<S, AT_ONCE>(simd, op, start, inputs, scales, vectors);
        }
        for start in n_whole..vectors.len() {
            apply_to::<S, 1>(simd, op, start, inputs, scales, vectors);
        }
        if !rest.is_empty() {
            // Filled up with zeros.
            let mut last = [0.0; 16];
            last[..rest.len()].copy_from_slice(x.map_or(&*rest, |(_, x)| x));
            simd.store(op.of(simd, simd.load(&last)), &mut last);
            for (i, (rest, last)) in rest.iter_mut().zip(last).enumerate() {
                *rest = last * factors.map_or(1.0, |(_, factors)| factors[i]);
            }
        }
    }
}

/// Of `N` vectors from `start` on.
#[inline(always)]
fn apply_to<S: Simd, const N: usize>(
    simd: S,
    op: Unary,
    start: usize,
    inputs: Option<&[[f32; 16]]>,
    factors: Option<&[[f32; 16]]>,
    out: &mut [[f32; 16]],
) {
    let mut values = [simd.splat(0.0); N];
    for i in 0..N {
        values[i] = simd.load(&inputs.unwrap_or(out)[start + i]);
    }
    let values = op.of_each(simd, values);
    for i in 0..N {
        let value = match factors {
            Some(factors) => simd.mul(values[i], simd.load(&factors[start + i])),
            None => values[i],
        };
        simd.store(value, &mut out[start + i]);
    }
}

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

fn apply(isa: Isa, op: Unary, x: &mut [f32]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::instruction_sets;

    /// Inputs over the whole range of bits, all that f16 has, and the ends of the interesting
    /// intervals dense.
    fn inputs() -> Vec<f32> {
        let mut inputs: Vec<f32> = (0..=u32::MAX / 100_003)
            .map(|i| f32::from_bits(i * 100_003))
            .filter(|x| x.is_finite())
            .collect();
        inputs.extend((-110_000..=110_000).map(|i| i as f32 / 1000.0));
        inputs.extend(
            (0..=u16::MAX)
                .map(crate::f16::f16_to_f32)
                .filter(|x| x.is_finite()),
        );
        inputs.extend([
            0.0,
            -0.0,
            1e-45,
            -1e-45,
            0.64,
            1.0,
            -1.0,
            4.0,
            88.7228,
            88.7229,
            -87.3365,
            -103.97,
            -104.0,
            f32::MAX,
            f32::MIN,
        ]);
        inputs
    }

    fn exact(op: Unary, x: f32) -> f64 {
        let x = f64::from(x);
        match op {
            Unary::Exp => x.exp(),
            Unary::Sigmoid => sigmoid(x),
            Unary::Silu => x * sigmoid(x),
            Unary::Tanh => x.tanh(),
            Unary::Erf => erf(x),
            Unary::GeluTanh => x * sigmoid(2.0 * gelu_argument(x)),
            Unary::GeluErf => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Unary::Relu => x.max(0.0),
            Unary::Relu6 => x.clamp(0.0, 6.0),
        }
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn gelu_argument(x: f64) -> f64 {
        (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
    }

    /// The Taylor series below 3, the continued fraction of the complement above.
    fn erf(x: f64) -> f64 {
        let size = x.abs();
        if size < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..80 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let fraction = (1..60)
            .rev()
            .fold(size, |tail, k| size + f64::from(k) / 2.0 / tail);
        (1.0 - (-size * size).exp() / std::f64::consts::PI.sqrt() / fraction).copysign(x)
    }

    /// What the doc of each function promises.
    fn bound(op: Unary, x: f32, exact: f64) -> f64 {
        // The distance to the next f32, that of the smallest normal number below it.
        let ulp = f64::from((exact.abs() as f32).max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
        let size = f64::from(x.abs());
        match op {
            Unary::Exp => 1.5 * ulp,
            Unary::Sigmoid => 3.0 * ulp,
            // A subnormal sigmoid is rounded to its own last place before it is multiplied.
            Unary::Silu => {
                3.5 * ulp + f64::from(f32::MIN_POSITIVE) * f64::from(f32::EPSILON) * size
            }
            Unary::Tanh => 2.5 * ulp,
            Unary::Erf => {
                if size < 1.0 {
                    2.5 * ulp
                } else {
                    1.3e-7
                }
            }
            Unary::GeluTanh => {
                exact.abs() * (1e-6 + 6e-7 * gelu_argument(size))
                    + f64::from(f32::MIN_POSITIVE) * size.max(1.0)
            }
            Unary::GeluErf => {
                1.5e-7 * size + f64::from(f32::MIN_POSITIVE) * f64::from(f32::EPSILON)
            }
            Unary::Relu | Unary::Relu6 => 0.0,
        }
    }

    const ALL: [Unary; 9] = [
        Unary::Relu6,
        Unary::Exp,
        Unary::Sigmoid,
        Unary::Silu,
        Unary::Tanh,
        Unary::Erf,
        Unary::GeluTanh,
        Unary::GeluErf,
        Unary::Relu,
    ];

    #[test]
    fn functions_keep_their_bounds() {
        let inputs = inputs();
        for isa in instruction_sets() {
            let ctx = Context::with_isa(2, isa);
            for op in ALL {
                let mut out = vec![f32::NAN; inputs.len()];
                unary(&ctx, op, &inputs, &mut out);
                for (x, y) in inputs.iter().zip(&out) {
                    let exact = exact(op, *x);
                    if exact.abs() > f64::from(f32::MAX) {
                        assert!(
                            y.is_infinite(),
                            "{op:?}({x}) = {y}, not {exact}, {}",
                            isa.name()
                        );
                        continue;
                    }
                    let (error, bound) = ((f64::from(*y) - exact).abs(), bound(op, *x, exact));
                    assert!(
                        error <= bound,
                        "{op:?}({x}) = {y}, not {exact}: {error} above {bound}, {}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn special_values() {
        for isa in instruction_sets() {
            let ctx = Context::with_isa(1, isa);
            for (op, at_infinity, at_minus_infinity) in [
                (Unary::Exp, f32::INFINITY, 0.0),
                (Unary::Sigmoid, 1.0, 0.0),
                (Unary::Tanh, 1.0, -1.0),
                (Unary::Erf, 1.0, -1.0),
                (Unary::Relu, f32::INFINITY, 0.0),
            ] {
                let mut x = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
                unary_in_place(&ctx, op, &mut x);
                assert_eq!(
                    x[..2],
                    [at_infinity, at_minus_infinity],
                    "{op:?} {}",
                    isa.name()
                );
                assert!(x[2].is_nan(), "{op:?} {}", isa.name());
            }
        }
    }

    #[test]
    fn every_length_and_the_gate() {
        let x: Vec<f32> = (0..5000).map(|i| (i % 37) as f32 / 7.0 - 2.0).collect();
        for isa in instruction_sets() {
            for n_threads in [1, 3] {
                let ctx = Context::with_isa(n_threads, isa);
                let mut whole = x.clone();
                unary_in_place(&ctx, Unary::Silu, &mut whole);
                for len in [0, 1, 15, 16, 17, 4095, 4097, 5000] {
                    let mut out = x[..len].to_vec();
                    gated(&ctx, Unary::Silu, &mut out, &x[..len]);
                    for i in 0..len {
                        assert_eq!(out[i], whole[i] * x[i], "{i} of {len}");
                    }
                }
            }
        }
    }
}

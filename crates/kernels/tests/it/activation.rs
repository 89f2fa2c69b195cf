//! Activations against f64, within the bounds of their docs.

use thane_kernels::Context;
use thane_kernels::activation::{Unary, gated, unary, unary_in_place};
use thane_kernels::f16::f16_to_f32;

use crate::testing::instruction_sets;

/// Inputs over the whole range of bits, all that f16 has, and the ends of the interesting
/// intervals dense.
fn inputs() -> Vec<f32> {
    let mut inputs: Vec<f32> = (0..=u32::MAX / 100_003)
        .map(|i| f32::from_bits(i * 100_003))
        .filter(|x| x.is_finite())
        .collect();
    inputs.extend((-110_000..=110_000).map(|i| i as f32 / 1000.0));
    inputs.extend((0..=u16::MAX).map(f16_to_f32).filter(|x| x.is_finite()));
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
        Unary::Silu => 3.5 * ulp + f64::from(f32::MIN_POSITIVE) * f64::from(f32::EPSILON) * size,
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
        Unary::GeluErf => 1.5e-7 * size + f64::from(f32::MIN_POSITIVE) * f64::from(f32::EPSILON),
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

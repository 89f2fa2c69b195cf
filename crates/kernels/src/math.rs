//! Elementary functions of vectors.
//!
//! The bounds are those of `tests/it/activation.rs`.

use crate::Isa;
use crate::simd::{Kernel, LANES, Simd};

/// The operations of [`Simd`] on `N` vectors each. A function is some 20 operations that wait for
/// each other: of vectors one behind the other they fill the places that the machine has for those
/// that wait, so that it is idle half of the time.
#[derive(Clone, Copy)]
pub(crate) struct Each<S, const N: usize>(pub(crate) S);

macro_rules! each {
    ($($name:ident($first:ident: $of:ident $(, $more:ident: $kind:ident)*) -> $to:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $first: [S::$of; N] $(, $more: [S::$kind; N])*) -> [S::$to; N] {
            let mut results = [self.0.$name($first[0] $(, $more[0])*); N];
            for i in 1..N {
                results[i] = self.0.$name($first[i] $(, $more[i])*);
            }
            results
        }
    )*};
}

impl<S: Simd, const N: usize> Each<S, N> {
    each! {
        add(a: F, b: F) -> F;
        sub(a: F, b: F) -> F;
        mul(a: F, b: F) -> F;
        div(a: F, b: F) -> F;
        fma(a: F, b: F, c: F) -> F;
        min(a: F, b: F) -> F;
        max(a: F, b: F) -> F;
        abs(a: F) -> F;
        copysign(a: F, sign: F) -> F;
        select_lt(a: F, b: F, yes: F, no: F) -> F;
        to_int(a: F) -> I;
        half_int(a: I) -> I;
        sub_int(a: I, b: I) -> I;
        int_values(a: I) -> F;
        pow2(a: I) -> F;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [S::F; N] {
        [self.0.splat(value); N]
    }
}

/// The polynomial with these coefficients, the highest power first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(
    simd: Each<S, N>,
    x: [S::F; N],
    coefficients: &[f32],
) -> [S::F; N] {
    let mut sum = simd.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = simd.fma(sum, x, simd.splat(*coefficient));
    }
    sum
}

/// The integer n that is nearest to x / ln 2, and e to the rest of x, less 1.
#[inline(always)]
fn reduce<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> ([S::I; N], [S::F; N]) {
    // ln 2 in two parts: the first has 9 bits, so that its product with an exponent is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    // 1 / k! from 7 to 2: the next term, r^8 / 8! for |r| <= ln 2 / 2, is below 2^-27.
    const TAYLOR: [f32; 6] = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let n = simd.to_int(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let n_value = simd.int_values(n);
    let r = simd.fma(
        n_value,
        simd.splat(-LN2_LOW),
        simd.fma(n_value, simd.splat(-LN2_HIGH), x),
    );
    (n, simd.fma(polynomial(simd, r, &TAYLOR), simd.mul(r, r), r))
}

/// e to the x: infinity above 88.73, 0 below -103.98, subnormals between as they are.
#[inline(always)]
pub(crate) fn exp<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // Bounds beyond which the result is infinity and 0; they leave NaN as it is.
    let x = simd.max(simd.splat(-104.0), simd.min(simd.splat(89.0), x));
    let (n, rest) = reduce(simd, x);
    // 2^n in two factors, because n may be beyond the exponents of normal numbers.
    let half = simd.half_int(n);
    let other = simd.sub_int(n, half);
    simd.mul(
        simd.mul(simd.add(rest, simd.splat(1.0)), simd.pow2(half)),
        simd.pow2(other),
    )
}

/// e to the x for x of 0 and less: 0 where that is no normal number, below -87.68.
#[inline(always)]
pub(crate) fn exp_negative<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // The nearest n is -127 there, for which `pow2` is 0.
    let (n, rest) = reduce(simd, simd.max(simd.splat(-88.0), x));
    let power = simd.pow2(n);
    simd.fma(power, rest, power)
}

/// 2 to the x for x of 0 and less, to 2 ULP where that is a normal number: 0 below -126.5.
#[inline(always)]
pub(crate) fn exp2_negative<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // 2^x for |x| <= 1/2, 1 at 0: minimax fit of degree 5 with the first two terms as they are,
    // relative error 1.05e-7.
    const FIT: [f32; 6] = [
        1.330_060_5e-3,
        9.669_691e-3,
        5.550_558_5e-2,
        0.240_222_83,
        std::f32::consts::LN_2,
        1.0,
    ];
    // The nearest integer is -127 below, for which `pow2` is 0.
    let x = simd.max(simd.splat(-127.0), x);
    let n = simd.to_int(x);
    let rest = simd.sub(x, simd.int_values(n));
    simd.mul(polynomial(simd, rest, &FIT), simd.pow2(n))
}

/// 1 / (1 + exp(-x)), from exp(-|x|) so that neither tail loses precision.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    let e = exp(simd, simd.sub(simd.splat(0.0), simd.abs(x)));
    let one = simd.splat(1.0);
    simd.div(simd.select_lt(x, simd.splat(0.0), e, one), simd.add(one, e))
}

#[inline(always)]
pub(crate) fn silu<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    simd.mul(x, sigmoid(simd, x))
}

#[inline(always)]
pub(crate) fn tanh<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // (tanh(x) / x - 1) / x^2 in x^2 up to 0.64^2: minimax fit of degree 4, error 5.4e-9 of tanh.
    const SMALL: [f32; 5] = [
        -0.005_603_91,
        0.020_551_71,
        -0.053_714_1,
        0.133_311_53,
        -0.333_332_72,
    ];
    let size = simd.abs(x);
    let square = simd.mul(x, x);
    let small = simd.fma(simd.mul(polynomial(simd, square, &SMALL), square), x, x);
    let e = exp(simd, simd.add(size, size));
    let one = simd.splat(1.0);
    let large = simd.sub(one, simd.div(simd.splat(2.0), simd.add(e, one)));
    simd.select_lt(size, simd.splat(0.64), small, simd.copysign(large, x))
}

#[inline(always)]
pub(crate) fn erf<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // erf(x) / x in x^2 up to 1: minimax fit of degree 6, error 1.2e-9.
    const SMALL: [f32; 7] = [
        7.889_12e-5,
        -8.020_841_5e-4,
        5.189_535_5e-3,
        -2.685_444_6e-2,
        0.112_836,
        -0.376_126_27,
        std::f32::consts::FRAC_2_SQRT_PI,
    ];
    // ln(1 - erf(x)) in x - 1 for 1..4: minimax fit of degree 6, error 1.1e-9 of erf. At 4 erf is 1
    // to within 1.6e-8.
    const LARGE: [f32; 7] = [
        1.863_800_9e-4,
        -1.829_386_3e-3,
        9.895_464e-3,
        -4.150_35e-2,
        -0.843_117_6,
        -2.638_966_8,
        -1.849_605_6,
    ];
    let size = simd.abs(x);
    let small = simd.mul(x, polynomial(simd, simd.mul(x, x), &SMALL));
    let bounded = simd.min(simd.splat(4.0), size);
    let complement = exp_negative(
        simd,
        polynomial(simd, simd.sub(bounded, simd.splat(1.0)), &LARGE),
    );
    let large = simd.copysign(simd.sub(simd.splat(1.0), complement), x);
    simd.select_lt(size, simd.splat(1.0), small, large)
}

/// x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), which does not cancel for negative x.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // sqrt(8 / pi) = sqrt(2) * 2 / sqrt(pi)
    const TWO_SQRT: f32 = (std::f64::consts::SQRT_2 * std::f64::consts::FRAC_2_SQRT_PI) as f32;
    let cubic = simd.fma(simd.mul(simd.mul(x, x), simd.splat(0.044_715)), x, x);
    simd.mul(x, sigmoid(simd, simd.mul(cubic, simd.splat(TWO_SQRT))))
}

/// x * (1 + erf(x / sqrt(2))) / 2 as max(x, 0) - |x| * (1 - erf(|x| / sqrt(2))) / 2, which does not
/// cancel for negative x.
#[inline(always)]
pub(crate) fn gelu_erf<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    // log2((1 - erf(x / sqrt(2))) / 2) for 0..7: minimax fit of degree 8, error 1.5e-8 of erf.
    const FIT: [f32; 9] = [
        -2.772_065_5e-6,
        3.862_094_3e-5,
        -1.825_485_7e-4,
        -1.458_677_7e-4,
        7.075_468_5e-3,
        -5.250_502_8e-2,
        -0.459_204_9,
        -1.151_105_8,
        -1.0,
    ];
    // From 7 on the fit goes down faster than what it fits, and at 14 to where 2 to it is 0. NaN
    // stays.
    let size = simd.min(simd.splat(14.0), simd.abs(x));
    let half = exp2_negative(simd, polynomial(simd, size, &FIT));
    simd.sub(simd.max(simd.splat(0.0), x), simd.mul(size, half))
}

#[inline(always)]
pub(crate) fn relu6<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    simd.min(simd.splat(6.0), simd.max(simd.splat(0.0), x))
}

#[inline(always)]
pub(crate) fn relu<S: Simd, const N: usize>(simd: Each<S, N>, x: [S::F; N]) -> [S::F; N] {
    simd.max(simd.splat(0.0), x)
}

/// [`exp2_negative`] of some values and of their doubles, for its test.
pub fn powers_of_two(isa: Isa, x: &[f32; LANES]) -> [[f32; LANES]; 2] {
    struct Powers<'a>(&'a [f32; LANES]);
    impl Kernel for Powers<'_> {
        type Output = [[f32; LANES]; 2];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let x = simd.load(self.0);
            let powers = exp2_negative(Each(simd), [x, simd.add(x, x)]);
            let mut out = [[0.0; LANES]; 2];
            simd.store(powers[0], &mut out[0]);
            simd.store(powers[1], &mut out[1]);
            out
        }
    }
    isa.run(Powers(x))
}

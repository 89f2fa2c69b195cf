//! Sums of products in fixed point: each product is rounded to units of 2^-16 before it is added,
//! half a unit away from zero.

use crate::Isa;
use crate::simd::{Kernel, LANES, Simd};

/// Units in 1.
const UNITS: f32 = 65536.0;
/// The least normal f16.
const LEAST_NORMAL: f32 = 1.0 / 16384.0;

/// What products sum up to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UnitSum {
    /// Units; right where `size` is below 2^31.
    pub units: f64,
    /// The sizes of all products, in units, good to a few digits.
    pub size: f64,
}

/// The sums of the products of `w` with each row of `x` [sums, w.len()]. Operands are f16 numbers,
/// up to twice the largest. A product counts as zero where the powers of two in its operands, at
/// least that of the least normal f16 each, have a product below `least`.
///
/// # Panics
/// If a size does not fit.
pub fn unit_sums(isa: Isa, w: &[f32], x: &[f32], least: f32, sums: &mut [UnitSum]) {
    assert_eq!(
        Some(x.len()),
        w.len().checked_mul(sums.len()),
        "a row of x for each sum"
    );
    isa.run(Sums { w, x, least, sums });
}

struct Sums<'a> {
    w: &'a [f32],
    x: &'a [f32],
    least: f32,
    sums: &'a mut [UnitSum],
}

impl Kernel for Sums<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { w, x, least, sums } = self;
        let mut done = 0;
        if S::HAS_MANY_REGISTERS {
            while sums.len() - done >= 4 {
                tile::<S, 4>(simd, w, &x[done * w.len()..], least, &mut sums[done..]);
                done += 4;
            }
        }
        while done < sums.len() {
            tile::<S, 1>(simd, w, &x[done * w.len()..], least, &mut sums[done..]);
            done += 1;
        }
    }
}

/// The sums of `N` rows of x.
#[inline(always)]
fn tile<S: Simd, const N: usize>(simd: S, w: &[f32], x: &[f32], least: f32, sums: &mut [UnitSum]) {
    let least = simd.splat(least);
    let mut units = [simd.zero_int(); N];
    let mut sizes = [simd.splat(0.0); N];
    let (w_vectors, w_rest) = w.as_chunks::<LANES>();
    let mut x_of = [&[][..]; N];
    let mut x_rest = [[0.0; LANES]; N];
    for n in 0..N {
        let (vectors, rest) = x[n * w.len()..][..w.len()].as_chunks::<LANES>();
        x_of[n] = &vectors[..w_vectors.len()];
        x_rest[n][..rest.len()].copy_from_slice(rest);
    }
    for (i, w) in w_vectors.iter().enumerate() {
        let w = simd.load(w);
        let mut x = [w; N];
        for n in 0..N {
            x[n] = simd.load(&x_of[n][i]);
        }
        add::<S, N>(simd, w, x, least, &mut units, &mut sizes);
    }
    if !w_rest.is_empty() {
        let mut last = [0.0; LANES];
        last[..w_rest.len()].copy_from_slice(w_rest);
        let w = simd.load(&last);
        let mut x = [w; N];
        for n in 0..N {
            x[n] = simd.load(&x_rest[n]);
        }
        add::<S, N>(simd, w, x, least, &mut units, &mut sizes);
    }
    for n in 0..N {
        let mut lanes = [0; LANES];
        simd.store_int(units[n], &mut lanes);
        // They were subtracted.
        let units = lanes.iter().map(|v| -f64::from(*v)).sum::<f64>();
        let mut lanes = [0.0; LANES];
        simd.store(sizes[n], &mut lanes);
        let size = lanes.iter().map(|v| f64::from(*v)).sum();
        sums[n] = UnitSum { units, size };
    }
}

/// Adds 16 products to the sums of each of `N` rows.
#[inline(always)]
fn add<S: Simd, const N: usize>(
    simd: S,
    w: S::F,
    x: [S::F; N],
    least: S::F,
    units: &mut [S::I; N],
    sizes: &mut [S::F; N],
) {
    let (zero, half) = (simd.splat(0.0), simd.splat(0.5));
    let least_normal = simd.splat(LEAST_NORMAL);
    let w_power = simd.max(simd.power(w), least_normal);
    // Exact, as the product of 11 bits and 11 bits is, and its sum with a half up to the last place
    // that counts.
    let w = simd.mul(w, simd.splat(UNITS));
    for n in 0..N {
        let power = simd.mul(simd.max(simd.power(x[n]), least_normal), w_power);
        let product = simd.select_lt(power, least, zero, simd.mul(x[n], w));
        let rounded = simd.to_int_toward_zero(simd.add(product, simd.copysign(half, product)));
        units[n] = simd.sub_int(units[n], rounded);
        sizes[n] = simd.add(sizes[n], simd.abs(product));
    }
}

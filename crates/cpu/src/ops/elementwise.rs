//! Element-wise arithmetic, comparison and choice.

use thane_kernels::activation::{Unary, unary};
use thane_kernels::f16::{f16_to_f32, f16_to_f32_slice, f32_to_f16, f32_to_f16_slice};
use thane_mil::types::DType;

use super::{Call, Eval, Fault, SHARED_LEN, broadcast_strides, f32_out, shared_rows};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("add", |c, o| {
        arithmetic(c, o, |x, y| x + y, i32::wrapping_add)
    }),
    ("sub", |c, o| {
        arithmetic(c, o, |x, y| x - y, i32::wrapping_sub)
    }),
    ("mul", |c, o| {
        arithmetic(c, o, |x, y| x * y, i32::wrapping_mul)
    }),
    ("real_div", |c, o| {
        arithmetic(
            c,
            o,
            |x, y| x / y,
            |x, y| if y == 0 { 0 } else { x.wrapping_div(y) },
        )
    }),
    ("floor_div", |c, o| {
        arithmetic(c, o, floor_quotient, floor_div)
    }),
    ("mod", |c, o| {
        arithmetic(c, o, modulo, |x, y| {
            x.wrapping_sub(floor_div(x, y).wrapping_mul(y))
        })
    }),
    ("pow", |c, o| {
        arithmetic(c, o, f32::powf, |x, y| {
            x.wrapping_pow(u32::try_from(y).unwrap_or(0))
        })
    }),
    // Not a number on either side gives not a number.
    ("maximum", |c, o| {
        arithmetic(
            c,
            o,
            |x, y| if x > y || x.is_nan() { x } else { y },
            i32::max,
        )
    }),
    ("minimum", |c, o| {
        arithmetic(
            c,
            o,
            |x, y| if x < y || x.is_nan() { x } else { y },
            i32::min,
        )
    }),
    ("equal", |c, o| compare(c, o, |x, y| x == y, |x, y| x == y)),
    ("not_equal", |c, o| {
        compare(c, o, |x, y| x != y, |x, y| x != y)
    }),
    ("less", |c, o| compare(c, o, |x, y| x < y, |x, y| x < y)),
    ("less_equal", |c, o| {
        compare(c, o, |x, y| x <= y, |x, y| x <= y)
    }),
    ("greater", |c, o| compare(c, o, |x, y| x > y, |x, y| x > y)),
    ("greater_equal", |c, o| {
        compare(c, o, |x, y| x >= y, |x, y| x >= y)
    }),
    ("logical_and", |c, o| {
        logical(c, o, |x, y| u8::from(x != 0 && y != 0))
    }),
    ("logical_or", |c, o| {
        logical(c, o, |x, y| u8::from(x != 0 || y != 0))
    }),
    ("logical_xor", |c, o| {
        logical(c, o, |x, y| u8::from((x != 0) != (y != 0)))
    }),
    ("logical_not", logical_not),
    ("abs", |c, o| map(c, o, f32::abs, i32::wrapping_abs)),
    ("square", |c, o| map(c, o, |x| x * x, |x| x.wrapping_mul(x))),
    ("sign", |c, o| map(c, o, sign, i32::signum)),
    // Integers are truncated towards zero.
    ("exp2", |c, o| {
        map(c, o, |x| wide(x, f64::exp2), |x| f64::from(x).exp2() as i32)
    }),
    ("acos", |c, o| map_f32(c, o, |x| wide(x, f64::acos))),
    ("asin", |c, o| map_f32(c, o, |x| wide(x, f64::asin))),
    ("atan", |c, o| map_f32(c, o, |x| wide(x, f64::atan))),
    ("atanh", |c, o| map_f32(c, o, |x| wide(x, f64::atanh))),
    ("cosh", |c, o| map_f32(c, o, |x| wide(x, f64::cosh))),
    ("sinh", |c, o| map_f32(c, o, |x| wide(x, f64::sinh))),
    ("tan", |c, o| map_f32(c, o, |x| wide(x, f64::tan))),
    ("cos", |c, o| map_f32(c, o, f32::cos)),
    ("sin", |c, o| map_f32(c, o, f32::sin)),
    ("ceil", |c, o| map_f32(c, o, |x| -floor(-x))),
    ("floor", |c, o| map_f32(c, o, floor)),
    ("round", |c, o| map_f32(c, o, round_ties_even)),
    ("sqrt", |c, o| map_f32(c, o, f32::sqrt)),
    ("erf", |c, o| kernel(c, o, Unary::Erf)),
    ("exp", |c, o| kernel(c, o, Unary::Exp)),
    ("identity", identity),
    // Defaults of epsilon: coremltools, 1e-4 for inverse, 1e-45 for log, 1e-12 for rsqrt.
    ("inverse", |c, o| with_epsilon(c, o, 1e-4, |x| 1.0 / x)),
    ("log", |c, o| with_epsilon(c, o, 1e-45, f32::ln)),
    ("rsqrt", |c, o| {
        with_epsilon(c, o, 1e-12, |x| 1.0 / x.sqrt())
    }),
    ("clip", clip),
    ("threshold", threshold),
    ("cast", cast),
    ("select", select),
];

/// The quotient rounded down; 0 by 0, as numpy has it.
fn floor_div(x: i32, y: i32) -> i32 {
    if y == 0 {
        return 0;
    }
    let q = x.wrapping_div(y);
    if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) {
        q - 1
    } else {
        q
    }
}

/// The remainder with the sign of the divisor; exact but for the last addition.
fn modulo(x: f32, y: f32) -> f32 {
    let r = x % y;
    if r != 0.0 && (r < 0.0) != (y < 0.0) {
        r + y
    } else {
        r
    }
}

/// The exact quotient rounded down: `(x / y).floor()` is 1 too much where `x / y` is rounded up to
/// an integer.
fn floor_quotient(x: f32, y: f32) -> f32 {
    if y == 0.0 {
        return x / y;
    }
    let r = x % y;
    let q = ((x - r) / y).round();
    if r != 0.0 && (r < 0.0) != (y < 0.0) {
        q - 1.0
    } else {
        q
    }
}

/// [`f32::round_ties_even`], which calls a function for each element where x86-64 has no
/// instruction for it: sums with a number whose neighbors are 1 apart are rounded so.
pub(super) fn round_ties_even(x: f32) -> f32 {
    const ONE_APART: f32 = (1 << 23) as f32;
    let to = ONE_APART.copysign(x);
    let rounded = ((x + to) - to).copysign(x);
    if x.abs() < ONE_APART { rounded } else { x }
}

/// [`f32::floor`], without a call for each element, as [`round_ties_even`].
fn floor(x: f32) -> f32 {
    let rounded = round_ties_even(x);
    let floor = if rounded > x { rounded - 1.0 } else { rounded };
    floor.copysign(x)
}

/// A function of f64, whose result f32 can hold to the last place.
fn wide(x: f32, f: impl Fn(f64) -> f64) -> f32 {
    f(f64::from(x)) as f32
}

/// -1, 0 or 1; what is not a number stays.
fn sign(x: f32) -> f32 {
    if x == 0.0 || x.is_nan() {
        x
    } else {
        x.signum()
    }
}

fn zip<T: Copy + Sync, U: Copy + Send>(
    call: &Call<'_>,
    x: (&Tensor, &[T]),
    y: (&Tensor, &[T]),
    out: &mut [U],
    f: impl Fn(T, T) -> U + Sync,
) {
    let shape = call.shape(0);
    let (a, b) = (
        broadcast_strides(&x.0.shape, shape.len()),
        broadcast_strides(&y.0.shape, shape.len()),
    );
    let n: usize = shape.iter().product();
    let (x, y, out) = (x.1, y.1, &mut out[..n]);
    shared_rows(
        call.context,
        &shape,
        [&a, &b],
        out,
        |out, [i, j], [s, t]| {
            let n = out.len();
            match (s, t) {
                (1, 1) => out
                    .iter_mut()
                    .zip(&x[i..i + n])
                    .zip(&y[j..j + n])
                    .for_each(|((o, x), y)| *o = f(*x, *y)),
                (1, 0) => {
                    let y = y[j];
                    out.iter_mut()
                        .zip(&x[i..i + n])
                        .for_each(|(o, x)| *o = f(*x, y));
                }
                (0, 1) => {
                    let x = x[i];
                    out.iter_mut()
                        .zip(&y[j..j + n])
                        .for_each(|(o, y)| *o = f(x, *y));
                }
                _ => out
                    .iter_mut()
                    .enumerate()
                    .for_each(|(k, o)| *o = f(x[i + k * s], y[j + k * t])),
            }
        },
    );
}

fn arithmetic(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(f32, f32) -> f32 + Sync,
    g: impl Fn(i32, i32) -> i32 + Sync,
) -> Result<(), Fault> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    match (&*x.data, &*y.data, &mut out[0]) {
        (Buffer::F32(a), Buffer::F32(b), Buffer::F32(o)) => zip(call, (x, a), (y, b), o, f),
        (Buffer::I32(a), Buffer::I32(b), Buffer::I32(o)) => zip(call, (x, a), (y, b), o, g),
        _ => return Err(call.undefined(&[x.dtype, y.dtype])),
    }
    Ok(())
}

fn compare(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(f32, f32) -> bool + Sync,
    g: impl Fn(i32, i32) -> bool + Sync,
) -> Result<(), Fault> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    match (&*x.data, &*y.data, &mut out[0]) {
        (Buffer::F32(a), Buffer::F32(b), Buffer::Bool(o)) => {
            zip(call, (x, a), (y, b), o, |p, q| u8::from(f(p, q)))
        }
        (Buffer::I32(a), Buffer::I32(b), Buffer::Bool(o)) => {
            zip(call, (x, a), (y, b), o, |p, q| u8::from(g(p, q)))
        }
        _ => return Err(call.undefined(&[x.dtype, y.dtype])),
    }
    Ok(())
}

fn logical(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(u8, u8) -> u8 + Sync,
) -> Result<(), Fault> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    match (&*x.data, &*y.data, &mut out[0]) {
        (Buffer::Bool(a), Buffer::Bool(b), Buffer::Bool(o)) => zip(call, (x, a), (y, b), o, f),
        _ => return Err(call.undefined(&[x.dtype, y.dtype])),
    }
    Ok(())
}

fn logical_not(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    match (&*x.data, &mut out[0]) {
        (Buffer::Bool(a), Buffer::Bool(o)) => o
            .iter_mut()
            .zip(&**a)
            .for_each(|(o, a)| *o = u8::from(*a == 0)),
        _ => return Err(call.undefined(&[x.dtype])),
    }
    Ok(())
}

fn map(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(f32) -> f32 + Sync,
    g: impl Fn(i32) -> i32,
) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    match (&*x.data, &mut out[0]) {
        (Buffer::F32(_), Buffer::F32(_)) => map_f32(call, out, f)?,
        (Buffer::I32(a), Buffer::I32(o)) => o.iter_mut().zip(&**a).for_each(|(o, a)| *o = g(*a)),
        _ => return Err(call.undefined(&[x.dtype])),
    }
    Ok(())
}

/// Each element by itself, shared by the threads.
pub(super) fn map_f32(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(f32) -> f32 + Sync,
) -> Result<(), Fault> {
    let x = call.f32s("x")?;
    let out = f32_out(&mut out[0], x.len())?;
    let pool = call.context.pool();
    pool.run_chunks(out, SHARED_LEN, |i, out| {
        let x = &x[i * SHARED_LEN..];
        out.iter_mut().zip(x).for_each(|(o, x)| *o = f(*x));
    });
    Ok(())
}

fn kernel(call: &Call<'_>, out: &mut [Buffer], op: Unary) -> Result<(), Fault> {
    let x = call.f32s("x")?;
    unary(call.context, op, x, f32_out(&mut out[0], x.len())?);
    Ok(())
}

fn with_epsilon(
    call: &Call<'_>,
    out: &mut [Buffer],
    default: f32,
    f: impl Fn(f32) -> f32 + Sync,
) -> Result<(), Fault> {
    // The default is of the type of x: 1e-12 is 0 in fp16.
    let default = if call.results[0].dtype == DType::Fp16 {
        f16_to_f32(f32_to_f16(default))
    } else {
        default
    };
    let epsilon = call.f32_or("epsilon", default)?;
    map_f32(call, out, |x| f(x + epsilon))
}

fn clip(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (alpha, beta) = (
        call.f32_or("alpha", f32::MIN)?,
        call.f32_or("beta", f32::MAX)?,
    );
    map_f32(call, out, |x| {
        let x = if x < alpha { alpha } else { x };
        if x > beta { beta } else { x }
    })
}

fn threshold(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let alpha = call.tensor("alpha")?;
    let least = alpha
        .f32s()
        .and_then(|v| v.first().copied())
        .unwrap_or(f32::MIN);
    let least_int = alpha
        .i32s()
        .and_then(|v| v.first().copied())
        .unwrap_or(i32::MIN);
    map(
        call,
        out,
        |x| if x < least { least } else { x },
        |x| x.max(least_int),
    )
}

fn identity(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    copy(&mut out[0], x)
}

fn copy(out: &mut Buffer, x: &Tensor) -> Result<(), Fault> {
    if out.copy_from(0, &x.data, 0, x.len()) {
        Ok(())
    } else {
        Err(format!("{} cannot be copied here", x.dtype))
    }
}

/// Floats are truncated towards zero and saturate, integers keep their low bits; anything but zero
/// is true.
fn cast(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    fn fill<T>(x: &Tensor, out: &mut [T], from: impl Fn(f64) -> T) -> Result<(), Fault> {
        let out = out
            .get_mut(..x.len())
            .ok_or("the result is shorter than `x`")?;
        x.each(|i, v| out[i] = from(v));
        Ok(())
    }
    let x = call.tensor("x")?;
    let (isa, n) = (call.context.isa(), x.len());
    match (&*x.data, &mut out[0]) {
        (Buffer::F16(x), Buffer::F32(o)) if o.len() >= n => {
            f16_to_f32_slice(isa, &x[..n], &mut o[..n]);
            return Ok(());
        }
        (Buffer::F32(x), Buffer::F16(o)) if o.len() >= n => {
            f32_to_f16_slice(isa, &x[..n], &mut o[..n]);
            return Ok(());
        }
        (Buffer::F32(x), Buffer::F32(o)) if o.len() >= n => {
            o[..n].copy_from_slice(&x[..n]);
            return Ok(());
        }
        _ => {}
    }
    match &mut out[0] {
        Buffer::F32(o) => fill(x, o, |v| v as f32),
        Buffer::F16(o) => fill(x, o, |v| f32_to_f16(v as f32)),
        Buffer::I32(o) => fill(x, o, |v| v as i32),
        Buffer::U32(o) if x.dtype.is_float() => fill(x, o, |v| v as u32),
        Buffer::I16(o) if x.dtype.is_float() => fill(x, o, |v| v as i16),
        Buffer::U16(o) if x.dtype.is_float() => fill(x, o, |v| v as u16),
        Buffer::I8(o) if x.dtype.is_float() => fill(x, o, |v| v as i8),
        Buffer::U8(o) if x.dtype.is_float() => fill(x, o, |v| v as u8),
        Buffer::U32(o) => fill(x, o, |v| v as i64 as u32),
        Buffer::I16(o) => fill(x, o, |v| v as i64 as i16),
        Buffer::U16(o) => fill(x, o, |v| v as i64 as u16),
        Buffer::I8(o) => fill(x, o, |v| v as i64 as i8),
        Buffer::U8(o) => fill(x, o, |v| v as i64 as u8),
        Buffer::Bool(o) => fill(x, o, |v| u8::from(v != 0.0)),
    }
}

fn select(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    fn pick<T: Copy + Send + Sync>(
        call: &Call<'_>,
        cond: (&Tensor, &[u8]),
        a: (&Tensor, &[T]),
        b: (&Tensor, &[T]),
        out: &mut [T],
    ) {
        let shape = call.shape(0);
        let [c, s, t] = [cond.0, a.0, b.0].map(|x| broadcast_strides(&x.shape, shape.len()));
        let out = &mut out[..shape.iter().product()];
        let moves = [&c[..], &s, &t];
        shared_rows(call.context, &shape, moves, out, |out, starts, steps| {
            let (n, [h, i, j]) = (out.len(), starts);
            let flags = || cond.1[h..h + n].iter();
            let outs = out.iter_mut();
            match steps {
                [1, 1, 1] => outs
                    .zip(flags())
                    .zip(a.1[i..i + n].iter().zip(&b.1[j..j + n]))
                    .for_each(|((o, c), (a, b))| *o = if *c != 0 { *a } else { *b }),
                [1, 1, 0] => outs
                    .zip(flags())
                    .zip(&a.1[i..i + n])
                    .for_each(|((o, c), a)| *o = if *c != 0 { *a } else { b.1[j] }),
                [1, 0, 1] => outs
                    .zip(flags())
                    .zip(&b.1[j..j + n])
                    .for_each(|((o, c), b)| *o = if *c != 0 { a.1[i] } else { *b }),
                [u, v, w] => outs.enumerate().for_each(|(k, o)| {
                    let from = (a.1, i + k * v);
                    let or = (b.1, j + k * w);
                    let (values, at) = if cond.1[h + k * u] != 0 { from } else { or };
                    *o = values[at];
                }),
            }
        });
    }
    let (cond, a, b) = (call.tensor("cond")?, call.tensor("a")?, call.tensor("b")?);
    let Buffer::Bool(flags) = &*cond.data else {
        return Err("`cond` does not hold bool".to_owned());
    };
    let cond = (cond, &**flags);
    match (&*a.data, &*b.data, &mut out[0]) {
        (Buffer::F32(x), Buffer::F32(y), Buffer::F32(o)) => pick(call, cond, (a, x), (b, y), o),
        (Buffer::I32(x), Buffer::I32(y), Buffer::I32(o)) => pick(call, cond, (a, x), (b, y), o),
        (Buffer::Bool(x), Buffer::Bool(y), Buffer::Bool(o)) => pick(call, cond, (a, x), (b, y), o),
        _ => return Err(call.undefined(&[a.dtype, b.dtype])),
    }
    Ok(())
}

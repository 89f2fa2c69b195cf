//! Values for the inputs of a program: from `.npy` files, or pseudo-random ones from a seed.

use std::path::{Path, PathBuf};

use anyhow::Context;
use thane_mil::budget::Budget;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::{DType, TensorType};

use crate::npy::{self, Array};

/// A value `name=value` of a flag that can be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    pub name: String,
    pub value: T,
}

/// Parses a tolerance: a finite number of 0 or more.
pub fn at_least_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|v: &f64| v.is_finite() && *v >= 0.0);
    number.ok_or_else(|| "expected a number of 0 or more, such as 1e-3".to_owned())
}

/// Parses `name=path`.
pub fn named_path(text: &str) -> Result<Named<PathBuf>, String> {
    split(text).map(|(name, path)| Named {
        name: name.to_owned(),
        value: PathBuf::from(path),
    })
}

/// Parses `name=2x3x4`.
pub fn named_shape(text: &str) -> Result<Named<Vec<usize>>, String> {
    let (name, dims) = split(text)?;
    let value = dims.split('x').map(|d| {
        d.parse()
            .map_err(|_| format!("`{dims}` is no shape such as 1x16"))
    });
    Ok(Named {
        name: name.to_owned(),
        value: value.collect::<Result<_, _>>()?,
    })
}

fn split(text: &str) -> Result<(&str, &str), String> {
    text.split_once('=')
        .filter(|(n, v)| !n.is_empty() && !v.is_empty())
        .ok_or_else(|| format!("`{text}` has no `=`"))
}

/// Reads the elements of a file, converted to the type of an input.
pub fn from_file(path: &Path, ty: &TensorType, budget: &Budget) -> anyhow::Result<Array> {
    read(path, ty, budget).with_context(|| path.display().to_string())
}

fn read(path: &Path, ty: &TensorType, budget: &Budget) -> anyhow::Result<Array> {
    let opened = npy::open(path)?;
    let (shape, dtype) = (&opened.shape, opened.dtype);
    let mut dims = shape.iter().zip(&ty.shape);
    let fits = shape.len() == ty.rank() && dims.all(|(n, d)| d.known().is_none_or(|d| d == *n));
    anyhow::ensure!(fits, "expected {ty}, found {shape:?} of {dtype}");
    let array = opened.read(budget)?;
    if array.dtype == ty.dtype {
        return Ok(array);
    }
    let n_bytes = ty.dtype.byte_len(array.shape.iter().product());
    let what = || format!("an array {:?} of {}", array.shape, ty.dtype);
    let held = budget.reserve(n_bytes.context("its size is not known")?, what)?;
    let bytes = converted(&array, ty.dtype).with_context(|| {
        format!(
            "expected elements of {}, found {}, which do not all fit: convert them with numpy's \
             astype",
            ty.dtype, array.dtype
        )
    })?;
    Ok(Array {
        dtype: ty.dtype,
        shape: array.shape,
        bytes,
        held: Some(held),
    })
}

/// Converts elements to another type. Floats are rounded, since most numpy arrays are float64, but
/// no finite one becomes infinite; integers must fit, and become floats where numpy's safe casting
/// lets them.
fn converted(array: &Array, to: DType) -> Option<Vec<u8>> {
    let from = array.dtype;
    if from.is_float() && !to.is_float() || to.is_float() && !becomes_float(from, to) {
        return None;
    }
    let n = array.shape.iter().product();
    let mut out = Vec::with_capacity(to.byte_len(n)?);
    for at in 0..n {
        if to.is_float() {
            let number = match from.is_float() {
                true => float(array, at)?,
                // At most 16 bits.
                false => int(array, at)? as f64,
            };
            if number.is_finite() && !rounded(to, number)?.is_finite() {
                return None;
            }
            put_float(&mut out, to, number)?;
        } else {
            put_int(&mut out, to, int(array, at)?)?;
        }
    }
    Some(out)
}

/// Whether elements become floats of a type: floats by rounding, others if the type has all of
/// their values.
fn becomes_float(from: DType, to: DType) -> bool {
    match from {
        DType::Bool | DType::Int8 | DType::Uint8 => true,
        DType::Int16 | DType::Uint16 => to != DType::Fp16,
        _ => from.is_float(),
    }
}

fn element<const N: usize>(array: &Array, at: usize) -> Option<[u8; N]> {
    array.bytes.get(at * N..(at + 1) * N)?.try_into().ok()
}

fn float(array: &Array, at: usize) -> Option<f64> {
    Some(match array.dtype {
        DType::Fp16 => f64::from(f16_to_f32(u16::from_le_bytes(element(array, at)?))),
        DType::Fp32 => f64::from(f32::from_le_bytes(element(array, at)?)),
        DType::Fp64 => f64::from_le_bytes(element(array, at)?),
        _ => return None,
    })
}

fn int(array: &Array, at: usize) -> Option<i64> {
    Some(match array.dtype {
        DType::Int8 => i64::from(i8::from_le_bytes(element(array, at)?)),
        DType::Int16 => i64::from(i16::from_le_bytes(element(array, at)?)),
        DType::Int32 => i64::from(i32::from_le_bytes(element(array, at)?)),
        DType::Int64 => i64::from_le_bytes(element(array, at)?),
        DType::Bool | DType::Uint8 => i64::from(u8::from_le_bytes(element(array, at)?)),
        DType::Uint16 => i64::from(u16::from_le_bytes(element(array, at)?)),
        DType::Uint32 => i64::from(u32::from_le_bytes(element(array, at)?)),
        DType::Uint64 => i64::try_from(u64::from_le_bytes(element(array, at)?)).ok()?,
        _ => return None,
    })
}

/// Appends a float, rounded to this type; `None` if the type is no float.
pub fn put_float(out: &mut Vec<u8>, to: DType, v: f64) -> Option<()> {
    match to {
        DType::Fp16 => out.extend(f64_to_f16(v).to_le_bytes()),
        DType::Fp32 => out.extend((v as f32).to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// A number as a float of this type; `None` if the type is no float.
fn rounded(to: DType, v: f64) -> Option<f32> {
    match to {
        DType::Fp16 => Some(f16_to_f32(f64_to_f16(v))),
        DType::Fp32 => Some(v as f32),
        _ => None,
    }
}

fn put_int(out: &mut Vec<u8>, to: DType, v: i64) -> Option<()> {
    match to {
        DType::Int8 => out.extend(i8::try_from(v).ok()?.to_le_bytes()),
        DType::Int16 => out.extend(i16::try_from(v).ok()?.to_le_bytes()),
        DType::Int32 => out.extend(i32::try_from(v).ok()?.to_le_bytes()),
        DType::Uint8 => out.extend(u8::try_from(v).ok()?.to_le_bytes()),
        DType::Uint16 => out.extend(u16::try_from(v).ok()?.to_le_bytes()),
        DType::Uint32 => out.extend(u32::try_from(v).ok()?.to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// A pseudo-random input of this shape; see [`random`].
pub fn made_up(
    seed: u64,
    name: &str,
    ty: &TensorType,
    shape: Vec<usize>,
    budget: &Budget,
) -> anyhow::Result<Array> {
    let no_such = || format!("no values of {ty} can be made up; give them in a file");
    let n = shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .and_then(|n| ty.dtype.byte_len(n));
    let held = budget.reserve(n.with_context(no_such)?, || {
        format!("an array {shape:?} of {}", ty.dtype)
    })?;
    let bytes = random(seed, name, ty.dtype, &shape).with_context(no_such)?;
    Ok(Array {
        dtype: ty.dtype,
        shape,
        bytes,
        held: Some(held),
    })
}

/// An input whose elements are known.
pub fn known(ty: &TensorType, bytes: Vec<u8>, budget: &Budget) -> anyhow::Result<Array> {
    let held = budget.reserve(bytes.len(), || format!("an array {ty}"))?;
    Ok(Array {
        dtype: ty.dtype,
        shape: ty.known_shape().context("its size is not known")?,
        bytes,
        held: Some(held),
    })
}

/// The range of pseudo-random elements of this type.
pub fn range(dtype: DType) -> [i8; 2] {
    if dtype.is_float() { [-1, 1] } else { [0, 1] }
}

/// Pseudo-random elements: floats from -1 to 1; integers and booleans 0 or 1, which are valid
/// indices of any axis of length 2.
///
/// The same seed and name give the same elements on every machine.
pub fn random(seed: u64, name: &str, dtype: DType, shape: &[usize]) -> Option<Vec<u8>> {
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let mut state = name.bytes().fold(seed, |s, b| mix(s ^ u64::from(b)));
    let mut out = Vec::with_capacity(dtype.byte_len(n)?);
    for _ in 0..n {
        state = state.wrapping_add(STEP);
        let bits = mix(state);
        match dtype {
            // 53 bits, the precision of a double, give a uniform distribution from 0 to 1.
            DType::Fp16 | DType::Fp32 => {
                let number = (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
                put_float(&mut out, dtype, number)?;
            }
            DType::Bool => out.push((bits & 1) as u8),
            _ => put_int(&mut out, dtype, (bits & 1) as i64)?,
        }
    }
    Some(out)
}

/// 2^64 divided by the golden ratio: the increment of splitmix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of splitmix64 (Steele, Lea, Flood 2014).
fn mix(v: u64) -> u64 {
    let v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ (v >> 31)
}

/// The shape of an input for a call: the one that was asked for, or else the declared one with
/// `other` for each open dimension.
pub fn shape(
    ty: &TensorType,
    asked: Option<&[usize]>,
    default: Option<&[usize]>,
) -> Option<Vec<usize>> {
    let Some(dims) = asked.or(default) else {
        return ty.known_shape();
    };
    ty.fits(dims).then(|| dims.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_converted_where_nothing_is_lost_but_digits() {
        let array = |dtype, bytes: Vec<u8>| Array {
            dtype,
            shape: vec![2],
            bytes,
            held: None,
        };
        let doubles = array(DType::Fp64, [0.1f64, -2.0].map(f64::to_le_bytes).concat());
        let singles = [0.1f32, -2.0].map(f32::to_le_bytes).concat();
        assert_eq!(converted(&doubles, DType::Fp32), Some(singles));
        assert_eq!(converted(&doubles, DType::Int32), None);
        // The largest numbers that do not round to infinity, and the smallest that do.
        for (to, fits, beyond) in [
            (DType::Fp16, 65_519.9, 65_520.0),
            (DType::Fp32, 3.402_823_5e38, 3.402_823_6e38),
        ] {
            let pair = |v: f64| array(DType::Fp64, [v, -1.0].map(f64::to_le_bytes).concat());
            for sign in [1.0, -1.0] {
                assert!(converted(&pair(sign * fits), to).is_some(), "{to}");
                assert_eq!(converted(&pair(sign * beyond), to), None, "{to}");
                assert!(converted(&pair(sign * f64::INFINITY), to).is_some(), "{to}");
            }
            assert!(converted(&pair(f64::NAN), to).is_some(), "{to}");
        }
        let longs = array(DType::Int64, [7i64, -300].map(i64::to_le_bytes).concat());
        assert_eq!(
            converted(&longs, DType::Int32),
            Some([7i32, -300].map(i32::to_le_bytes).concat())
        );
        assert_eq!(converted(&longs, DType::Int8), None, "-300 is no int8");
        assert_eq!(converted(&longs, DType::Fp32), None, "numpy: not safe");
        let bytes = array(DType::Uint8, vec![0, 255]);
        let halves = [0u16, 0x5bf8].map(u16::to_le_bytes).concat();
        assert_eq!(converted(&bytes, DType::Fp16), Some(halves));
        let ints = [0i32, 255].map(i32::to_le_bytes).concat();
        assert_eq!(converted(&bytes, DType::Int32), Some(ints));
        assert_eq!(converted(&bytes, DType::Bool), None);
        let truths = array(DType::Bool, vec![0, 1]);
        let ones = [0i32, 1].map(i32::to_le_bytes).concat();
        assert_eq!(converted(&truths, DType::Int32), Some(ones));
        let shorts = array(DType::Int16, [7i16, -3].map(i16::to_le_bytes).concat());
        assert_eq!(converted(&shorts, DType::Fp16), None, "numpy: not safe");
        let floats = [7f32, -3.0].map(f32::to_le_bytes).concat();
        assert_eq!(converted(&shorts, DType::Fp32), Some(floats));
    }

    #[test]
    fn made_up_elements_follow_from_seed_and_name() {
        let floats = |seed, name| random(seed, name, DType::Fp32, &[3, 100]).unwrap();
        assert_eq!(floats(1, "x"), floats(1, "x"));
        assert!(floats(1, "x") != floats(2, "x") && floats(1, "x") != floats(1, "y"));
        let values: Vec<f32> = floats(3, "x")
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        assert!(values.iter().all(|v| (-1.0..=1.0).contains(v)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.1, "{mean}");
        assert_eq!(random(0, "x", DType::Fp32, &[usize::MAX, 9]), None);
    }

    #[test]
    fn flags_name_their_input() {
        assert_eq!(
            named_shape("x=1x16"),
            Ok(Named {
                name: "x".to_owned(),
                value: vec![1, 16]
            })
        );
        assert!(
            named_shape("x=1,16").is_err() && named_path("x").is_err() && named_path("=a").is_err()
        );
    }
}

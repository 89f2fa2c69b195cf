//! The filter `round`, which is `round`, `math.ceil` or `math.floor` of Python.

use super::super::args::Args;
use super::super::meter::{Error, Result};
use super::super::value::Value;

/// A float rounded to more decimals than this stays as it is, and to a greater power of ten is 0.
const MOST_DECIMALS: i64 = 400;

/// A number rounded to a number of decimals. As in Python, an integer stays one unless it is
/// rounded up or down, and a precision of none makes an integer.
pub(super) fn round(value: &Value, args: &mut Args) -> Result<Value> {
    let precision = match args.take("precision") {
        None => Some(0),
        Some(Value::None) => None,
        Some(given) => Some(given.as_int().ok_or_else(|| {
            Error::new(format!(
                "round: expected an integer as precision, found {}",
                given.type_name()
            ))
        })?),
    };
    let method = args.take("method");
    let method = method.as_ref().map(|method| method.as_text("round"));
    let method = method.transpose()?.map_or("common", |m| m.as_str());
    let up_or_down = match method {
        "common" => None,
        "ceil" => Some(f64::ceil as fn(f64) -> f64),
        "floor" => Some(f64::floor as fn(f64) -> f64),
        _ => {
            return Err(Error::new(
                "round: expected common, ceil or floor as method",
            ));
        }
    };
    let x = value.as_float().ok_or_else(|| {
        Error::new(format!(
            "round: expected a number, found {}",
            value.type_name()
        ))
    })?;
    match (up_or_down, precision, value.as_int()) {
        (Some(to_whole), Some(precision), int) => {
            Ok(Value::Float(scaled(x, precision, int.is_some(), to_whole)?))
        }
        (Some(_), None, _) => Err(Error::new("round: expected an integer as precision")),
        (None, precision, Some(int)) => Ok(Value::Int(nearest_int(int, precision.unwrap_or(0))?)),
        (None, None, None) => whole(x.round_ties_even()).map(Value::Int),
        (None, Some(precision), None) => Ok(Value::Float(nearest(x, precision))),
    }
}

/// `to_whole(x * 10^precision) / 10^precision`.
fn scaled(x: f64, precision: i64, is_int: bool, to_whole: fn(f64) -> f64) -> Result<f64> {
    // Decimals of an integer are zeros.
    if is_int && precision >= 0 {
        return Ok(x);
    }
    let precision = precision.clamp(-MOST_DECIMALS, MOST_DECIMALS) as i32;
    let scale = 10f64.powi(precision);
    let found = to_whole(x * scale) / scale;
    match found.is_finite() {
        true => Ok(found),
        false => Err(Error::new("round: the result is no finite number")),
    }
}

/// The float nearest to a multiple of `10^-precision`; of two multiples that are as near, the even
/// one.
fn nearest(x: f64, precision: i64) -> f64 {
    if !x.is_finite() || precision > MOST_DECIMALS {
        return x;
    }
    match usize::try_from(precision) {
        // The decimal that is nearest to the exact value, as Python has it.
        Ok(decimals) => format!("{x:.decimals$}").parse().unwrap_or(x),
        Err(_) => {
            let scale = 10f64.powi(precision.max(-MOST_DECIMALS).unsigned_abs() as i32);
            let multiple = (x / scale).round_ties_even();
            if multiple == 0.0 {
                0f64.copysign(x)
            } else {
                multiple * scale
            }
        }
    }
}

/// The multiple of `10^-precision` that is nearest to an integer.
fn nearest_int(int: i64, precision: i64) -> Result<i64> {
    if precision >= 0 {
        return Ok(int);
    }
    // No multiple other than 0 has 64 bits.
    let Some(scale) = u32::try_from(precision.unsigned_abs())
        .ok()
        .filter(|n| *n <= 20)
        .map(|n| 10i128.pow(n))
    else {
        return Ok(0);
    };
    let int = i128::from(int);
    let (below, rest) = (int.div_euclid(scale), int.rem_euclid(scale));
    let is_up = rest * 2 > scale || (rest * 2 == scale && below % 2 != 0);
    i64::try_from((below + i128::from(is_up)) * scale)
        .map_err(|_| Error::new("round: the result does not fit 64 bits"))
}

/// A float without decimals as an integer.
fn whole(x: f64) -> Result<i64> {
    match x.is_finite() && x.abs() < 9e18 {
        true => Ok(x as i64),
        false => Err(Error::new("round: the result does not fit 64 bits")),
    }
}

//! Slices: reading and replacing parts of a tensor.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_transformation.py`, `iOS17/tensor_transformation.py`,
//! `iOS18/tensor_transformation.py`.

use super::*;
use crate::types::{DType, TensorType};

const fn slice(x: &'static [DType], bounds: &'static [DType]) -> [Param; 7] {
    [
        tensor("x", x),
        tensor("begin", bounds),
        tensor("end", bounds),
        constant("stride", bounds).optional(),
        constant("begin_mask", BOOL).optional(),
        constant("end_mask", BOOL).optional(),
        constant("squeeze_mask", BOOL).optional(),
    ]
}

const SLICE_5: &[Param] = &slice(BASIC, INT32);
const SLICE: &[Param] = &slice(ANY, SHAPE_INT);
const UPDATE: &[Param] = &[
    SLICE[0],
    tensor("update", ANY),
    SLICE[1],
    SLICE[2],
    SLICE[3],
    SLICE[4],
    SLICE[5],
    SLICE[6],
];
const AXIS: Param = constant("axis", INT32);
const SIZE: Param = constant("size", INT32);
const STRIDE: Param = constant("stride", INT32).optional();

pub(super) static OPS: &[OpDef] = &[
    // y = x[begin:end:stride]. `begin_mask` and `end_mask` ignore a bound; `squeeze_mask` takes one
    // index and drops the axis.
    OpDef::new(
        "slice_by_index",
        OpKind::Copy,
        Opset::CoreMl5,
        SLICE_5,
        slice_by_index,
    ),
    OpDef::new(
        "slice_by_index",
        OpKind::Copy,
        Opset::CoreMl7,
        SLICE,
        slice_by_index,
    ),
    // y = x[begin:begin + size]; a size of -1 extends to the end.
    OpDef::new(
        "slice_by_size",
        OpKind::Copy,
        Opset::CoreMl5,
        &[
            tensor("x", BASIC),
            tensor("begin", INT32),
            tensor("size", INT32),
        ],
        slice_by_size,
    ),
    OpDef::new(
        "slice_by_size",
        OpKind::Copy,
        Opset::CoreMl7,
        &[
            tensor("x", ANY),
            tensor("begin", SHAPE_INT),
            tensor("size", SHAPE_INT),
        ],
        slice_by_size,
    ),
    // y = x with x[begin:end:stride] replaced by `update`.
    OpDef::new(
        "slice_update",
        OpKind::Copy,
        Opset::CoreMl8,
        UPDATE,
        slice_update,
    ),
    // y[.., w, i, ..] = x[.., w * stride + i, ..] along `axis`: all windows of `size` elements at
    // distance `stride` (default 1).
    OpDef::new(
        "sliding_windows",
        OpKind::Copy,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), AXIS, SIZE, STRIDE],
        sliding_windows,
    ),
    OpDef::new(
        "sliding_windows",
        OpKind::Copy,
        Opset::CoreMl7,
        &[tensor("x", ANY), AXIS, SIZE, STRIDE],
        sliding_windows,
    ),
];

fn slice_by_index(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let shape = sliced_shape(i, x)?;
    tensor_result(x.dtype, shape)
}

fn slice_update(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, update) = (i.ty("x")?, i.ty("update")?);
    let shape = sliced_shape(i, x)?;
    let part = TensorType {
        dtype: x.dtype,
        shape,
    };
    if !part.compatible(update) || update.rank() == 0 {
        return Err(TypeError::new(format_args!(
            "`update`: expected the slice {part} of {x}, found {update}"
        )));
    }
    tensor_result(x.dtype, x.shape.clone())
}

fn sliced_shape(i: &mut Infer<'_>, x: &TensorType) -> Result<Vec<Dim>, TypeError> {
    let n = x.rank();
    let flags = |name: &str| -> Result<Vec<i64>, TypeError> {
        let flags = if i.has(name) {
            i.constant_ints(name)?
        } else {
            vec![0; n]
        };
        if flags.len() == n {
            Ok(flags)
        } else {
            Err(TypeError::new(format_args!(
                "`{name}`: expected {n} entries"
            )))
        }
    };
    let (begin_mask, end_mask, squeeze) = (
        flags("begin_mask")?,
        flags("end_mask")?,
        flags("squeeze_mask")?,
    );
    let stride = if i.has("stride") {
        i.constant_ints("stride")?
    } else {
        vec![1; n]
    };
    let (begin, end) = (i.ints("begin"), i.ints("end"));
    let fits = |v: &Option<Vec<i64>>| v.as_ref().is_none_or(|v| v.len() == n);
    if stride.len() != n || stride.contains(&0) || !fits(&begin) || !fits(&end) {
        return Err(TypeError::new(format_args!(
            "expected `begin`, `end` and nonzero `stride` with {n} entries each"
        )));
    }
    let mut shape = Vec::with_capacity(n);
    for a in 0..n {
        if squeeze[a] != 0 {
            continue;
        }
        let b = if begin_mask[a] != 0 {
            Some(None)
        } else {
            begin.as_ref().map(|v| Some(v[a]))
        };
        let e = if end_mask[a] != 0 {
            Some(None)
        } else {
            end.as_ref().map(|v| Some(v[a]))
        };
        shape.push(match (x.shape[a], b, e) {
            (d, Some(None), Some(None)) if stride[a] == 1 => d,
            (Dim::Known(size), Some(b), Some(e)) => {
                Dim::Known(slice_range(size, b, e, stride[a])?.len())
            }
            // The last element, whatever the size.
            (_, Some(Some(-1)), Some(None)) if stride[a] > 0 => Dim::Known(1),
            // The first element.
            (_, Some(Some(0)), Some(None)) if stride[a] < 0 => Dim::Known(1),
            _ => i.fresh_symbol(),
        });
    }
    Ok(shape)
}

fn slice_by_size(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, n) = (i.ty("x")?, i.ty("x")?.rank());
    for name in ["begin", "size"] {
        let ty = i.ty(name)?;
        if ty.rank() != 1 || !ty.shape[0].compatible(Dim::Known(n)) {
            return Err(TypeError::new(format_args!(
                "`{name}`: expected {n} entries, found {ty}"
            )));
        }
    }
    let (begin, size) = (i.ints("begin"), i.ints("size"));
    let mut shape = Vec::with_capacity(n);
    for (a, dim) in x.shape.iter().enumerate() {
        let first = begin.as_ref().and_then(|v| v.get(a)).copied();
        let size = size.as_ref().and_then(|v| v.get(a)).copied();
        shape.push(match (first, size, *dim) {
            (_, None, _) => i.fresh_symbol(),
            (Some(first), Some(size), Dim::Known(n)) => {
                Dim::Known(size_range(n, first, size)?.len())
            }
            (Some(0), Some(-1), symbol) => symbol,
            (_, Some(size), _) => match usize::try_from(size) {
                Ok(n) => Dim::Known(n),
                Err(_) if size == -1 => i.fresh_symbol(),
                Err(_) => {
                    return Err(TypeError::new(format_args!(
                        "`size`: expected -1 or more along axis {a}, found {size}"
                    )));
                }
            },
        });
    }
    tensor_result(x.dtype, shape)
}

/// The `size` indices from `begin` on along an axis of length `n`. A negative `begin` counts from
/// the end; a `size` of -1 extends to the end.
pub fn size_range(n: usize, begin: i64, size: i64) -> Result<SliceRange, TypeError> {
    let outside = || {
        TypeError::new(format_args!(
            "expected a range within an axis of {n} elements, found begin {begin} and size {size}"
        ))
    };
    let wrapped = if begin < 0 {
        begin.saturating_add_unsigned(n as u64)
    } else {
        begin
    };
    let start = usize::try_from(wrapped)
        .ok()
        .filter(|s| *s <= n)
        .ok_or_else(outside)?;
    let count = if size == -1 {
        Some(n - start)
    } else {
        usize::try_from(size).ok()
    };
    let count = count
        .filter(|count| *count <= n - start)
        .ok_or_else(outside)?;
    Ok(SliceRange {
        start,
        step: 1,
        n: count,
    })
}

fn sliding_windows(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let at = axis(i.int_or("axis", 0)?, x.rank())?;
    let positive = |v: i64| usize::try_from(v).ok().filter(|v| *v > 0);
    let (size, stride) = (
        positive(i.int_or("size", 0)?),
        positive(i.int_or("stride", 1)?),
    );
    let (Some(size), Some(stride)) = (size, stride) else {
        return Err(TypeError(
            "expected positive `size` and `stride`".to_owned(),
        ));
    };
    let mut shape = x.shape.clone();
    shape[at] = match shape[at] {
        Dim::Known(n) if n < size => {
            return Err(TypeError::new(format_args!(
                "`size`: expected at most the length of axis {at} of {x}, found {size}"
            )));
        }
        Dim::Known(n) => Dim::Known((n - size) / stride + 1),
        Dim::Symbol(_) => i.fresh_symbol(),
    };
    shape.insert(at + 1, Dim::Known(size));
    tensor_result(x.dtype, shape)
}

/// The indices that a slice selects along an axis, as start, step and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceRange {
    /// First index.
    pub start: usize,
    /// Distance from one index to the next.
    pub step: i64,
    n: usize,
}

impl SliceRange {
    /// Number of indices.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there are no indices.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Whether these are all indices of an axis of `size` elements, in order.
    pub fn is_whole(&self, size: usize) -> bool {
        self.start == 0 && self.step == 1 && self.n == size
    }

    /// The index at position `k`, which is below [`Self::len`].
    pub fn get(&self, k: usize) -> usize {
        (self.start as i64 + k as i64 * self.step) as usize
    }

    /// The indices.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.n).map(move |k| self.get(k))
    }
}

/// The indices of `begin:end:stride` along an axis of length `size`. `None` ignores a bound;
/// negative bounds count from the end.
///
/// Bounds beyond the axis are clamped to it, as in Python and coremltools.
pub fn slice_range(
    size: usize,
    begin: Option<i64>,
    end: Option<i64>,
    stride: i64,
) -> Result<SliceRange, TypeError> {
    let n = i64::try_from(size)
        .map_err(|_| TypeError::new(format_args!("an axis of {size} elements is too long")))?;
    if stride == 0 {
        return Err(TypeError(
            "`stride`: expected a nonzero number, found 0".to_owned(),
        ));
    }
    let (low, high) = if stride > 0 { (0, n) } else { (-1, n - 1) };
    let bound = |v: i64| (if v < 0 { v.saturating_add(n) } else { v }).clamp(low, high);
    let (first, last) = if stride > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (begin.map_or(first, bound), end.map_or(last, bound));
    let span = if stride > 0 {
        stop - start
    } else {
        start - stop
    };
    let count = u64::try_from(span)
        .unwrap_or(0)
        .div_ceil(stride.unsigned_abs());
    Ok(SliceRange {
        start: usize::try_from(start).unwrap_or(0),
        step: stride,
        n: usize::try_from(count).unwrap_or(0),
    })
}

/// The indices that a `slice_by_index` or a `slice_update` takes along each axis of x, of `shape`;
/// of an axis that is dropped, one. `ints` returns the numbers of a parameter, or `None` where it
/// is not bound.
pub fn slice_ranges(
    shape: &[usize],
    ints: impl Fn(&str) -> Option<Vec<i64>>,
) -> Result<Vec<SliceRange>, TypeError> {
    let n = shape.len();
    let of_each = |name: &str, default: Option<i64>| {
        let given = ints(name).or_else(|| Some(vec![default?; n]));
        let given = given.ok_or_else(|| TypeError::new(format_args!("`{name}` is not known")))?;
        match given.len() == n {
            true => Ok(given),
            false => Err(TypeError::new(format_args!(
                "`{name}`: expected {n} entries"
            ))),
        }
    };
    let (begin, end) = (of_each("begin", None)?, of_each("end", None)?);
    let [no_begin, no_end, squeeze] =
        ["begin_mask", "end_mask", "squeeze_mask"].map(|mask| of_each(mask, Some(0)));
    let (no_begin, no_end, squeeze) = (no_begin?, no_end?, squeeze?);
    let stride = of_each("stride", Some(1))?;
    let range = |(a, &size): (usize, &usize)| {
        let begin = (no_begin[a] == 0).then_some(begin[a]);
        if squeeze[a] == 0 {
            let end = (no_end[a] == 0).then_some(end[a]);
            return slice_range(size, begin, end, stride[a]);
        }
        size_range(size, begin.unwrap_or(0), 1)
    };
    shape.iter().enumerate().map(range).collect()
}

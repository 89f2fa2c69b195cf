//! Shapes: reshaping, slicing.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_operation.py`, `iOS15/tensor_transformation.py`,
//! `iOS18/tensor_transformation.py`.

use super::{
    ANY, BASIC, BOOL, Dim, INT32, Infer, OpDef, Opset, Param, Type, TypeError, axis, constant, distinct, one, tensor,
};
use crate::types::{DType, TensorType};

const SHAPE_INT: &[DType] = &[DType::Int32, DType::Int16, DType::Int8];
const SLICE: &[Param] = &[
    tensor("x", ANY),
    tensor("begin", SHAPE_INT),
    tensor("end", SHAPE_INT),
    constant("stride", SHAPE_INT).optional(),
    constant("begin_mask", BOOL).optional(),
    constant("end_mask", BOOL).optional(),
    constant("squeeze_mask", BOOL).optional(),
];
const UPDATE: &[Param] = &[SLICE[0], tensor("update", ANY), SLICE[1], SLICE[2], SLICE[3], SLICE[4], SLICE[5], SLICE[6]];

pub(super) static OPS: &[OpDef] = &[
    // y = x as a matrix: the axes before `axis` (default 1), and the others.
    OpDef::new("flatten2d", Opset::CoreMl5, &[tensor("x", BASIC), constant("axis", INT32).optional()], flatten2d),
    // y has a dimension of 1 more at each of `axes`, counted in y.
    OpDef::new("expand_dims", Opset::CoreMl5, &[tensor("x", ANY), constant("axes", INT32)], expand_dims),
    // y lacks those of the dimensions `axes` (default: all) that are 1.
    OpDef::new("squeeze", Opset::CoreMl5, &[tensor("x", ANY), constant("axes", INT32).optional()], squeeze),
    // y holds the elements of x in order; one dimension may be -1, and 0 is that of x, counted from the last.
    OpDef::new("reshape", Opset::CoreMl5, &[tensor("x", ANY), tensor("shape", SHAPE_INT)], reshape),
    // y[i[perm[0]], ..] = x[i[0], ..].
    OpDef::new("transpose", Opset::CoreMl5, &[tensor("x", ANY), constant("perm", INT32)], transpose),
    // y = the shape of x.
    OpDef::new("shape", Opset::CoreMl5, &[tensor("x", BASIC)], shape),
    // y = x[begin:end:stride]; a mask neglects begin or end, or takes one index and drops the axis.
    OpDef::new("slice_by_index", Opset::CoreMl5, SLICE, slice_by_index),
    // y = x with x[begin:end:stride] replaced by `update`.
    OpDef::new("slice_update", Opset::CoreMl8, UPDATE, slice_update),
];

fn flatten2d(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    // As a slice: the axis may be that behind the last.
    let at = match i.int_or("axis", 1)? {
        at if at == x.rank() as i64 => x.rank(),
        at => axis(at, x.rank())?,
    };
    let (rows, cols) = (product(i, &x.shape[..at]), product(i, &x.shape[at..]));
    one(x.dtype, vec![rows, cols])
}

fn product(i: &mut Infer<'_>, dims: &[Dim]) -> Dim {
    let open: Vec<Dim> = dims.iter().copied().filter(|d| *d != Dim::Known(1)).collect();
    match (open.as_slice(), open.iter().map(|d| d.known()).collect::<Option<Vec<_>>>()) {
        (_, Some(sizes)) => Dim::Known(sizes.into_iter().fold(1, usize::saturating_mul)),
        ([symbol], None) => *symbol,
        _ => i.fresh(),
    }
}

fn expand_dims(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let axes = i.constant_ints("axes")?;
    let rank = x.rank() + axes.len();
    let mut axes = axes.into_iter().map(|a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    distinct(&axes)?;
    let mut shape = x.shape.clone();
    axes.into_iter().for_each(|a| shape.insert(a, Dim::Known(1)));
    one(x.dtype, shape)
}

fn squeeze(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let axes = if i.has("axes") {
        i.constant_ints("axes")?.into_iter().map(|a| axis(a, x.rank())).collect::<Result<Vec<_>, _>>()?
    } else {
        (0..x.rank()).collect()
    };
    if let Some(a) = axes.iter().find(|a| x.shape[**a].known().is_none()) {
        return Err(TypeError(format!("the size of axis {a} of {x} is not known: the rank would follow from it")));
    }
    let goes = |a: usize, d: Dim| d == Dim::Known(1) && axes.contains(&a);
    let kept = x.shape.iter().enumerate().filter(|(a, d)| !goes(*a, **d)).map(|(_, d)| *d).collect();
    one(x.dtype, kept)
}

fn reshape(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let Some(wanted) = i.ints("shape") else {
        let rank = match i.ty("shape")?.shape.as_slice() {
            [Dim::Known(n)] => *n,
            _ => return Err(TypeError("the length of `shape` must be known".to_owned())),
        };
        let shape = (0..rank.min(64)).map(|_| i.fresh()).collect();
        return one(x.dtype, shape);
    };
    let misfit = || TypeError(format!("{x} cannot be reshaped to {wanted:?}"));
    if wanted.iter().filter(|n| **n == -1).count() > 1 || wanted.iter().any(|n| *n < -1) {
        return Err(misfit());
    }
    let rank = wanted.len();
    let inherited = |at: usize| (at + x.rank()).checked_sub(rank).map_or(Dim::Known(1), |j| x.shape[j]);
    let dim = |(at, n): (usize, &i64)| match usize::try_from(*n) {
        Ok(0) => Some(inherited(at)),
        Ok(n) => Some(Dim::Known(n)),
        Err(_) => None,
    };
    let target: Vec<Option<Dim>> = wanted.iter().enumerate().map(dim).collect();
    let rest = remainder(i, x, &target).ok_or_else(misfit)?;
    one(x.dtype, target.into_iter().map(|d| d.unwrap_or(rest)).collect())
}

/// What the open dimension of `target` stands for; `None` when the elements of x do not fit.
fn remainder(i: &mut Infer<'_>, x: &TensorType, target: &[Option<Dim>]) -> Option<Dim> {
    let product =
        |dims: &mut dyn Iterator<Item = Dim>| dims.filter_map(Dim::known).try_fold(1usize, usize::checked_mul);
    let has_rest = target.contains(&None);
    let (given, wanted) = (product(&mut x.shape.iter().copied())?, product(&mut target.iter().flatten().copied())?);
    // A symbol on both sides cancels out.
    let mut symbols: Vec<Dim> = x.shape.iter().copied().filter(|d| d.known().is_none()).collect();
    for d in target.iter().flatten() {
        if let Some(at) = symbols.iter().position(|s| s == d) {
            symbols.swap_remove(at);
        }
    }
    match symbols.as_slice() {
        [] => {
            let fits = if has_rest { wanted > 0 && given % wanted == 0 } else { given == wanted };
            fits.then(|| Dim::Known(given.checked_div(wanted).unwrap_or(0)))
        }
        [symbol] if given == wanted => Some(*symbol),
        _ => Some(i.fresh()),
    }
}

fn transpose(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let perm = i.constant_ints("perm")?.into_iter().map(|a| axis(a, x.rank())).collect::<Result<Vec<_>, _>>()?;
    let mut seen = perm.clone();
    seen.sort_unstable();
    if !seen.iter().copied().eq(0..x.rank()) {
        return Err(TypeError(format!("`perm` {perm:?} is no permutation of the axes of {x}")));
    }
    one(x.dtype, perm.iter().map(|a| x.shape[*a]).collect())
}

fn shape(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let rank = i.ty("x")?.rank();
    one(DType::Int32, vec![Dim::Known(rank)])
}

fn slice_by_index(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let shape = sliced_shape(i, x)?;
    one(x.dtype, shape)
}

fn slice_update(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, update) = (i.ty("x")?, i.ty("update")?);
    let shape = sliced_shape(i, x)?;
    let part = TensorType { dtype: x.dtype, shape };
    if !part.compatible(update) || update.rank() == 0 {
        return Err(TypeError(format!("`update` is {update}, the slice of {x} is {part}")));
    }
    one(x.dtype, x.shape.clone())
}

fn sliced_shape(i: &mut Infer<'_>, x: &TensorType) -> Result<Vec<Dim>, TypeError> {
    let n = x.rank();
    let flags = |name: &str| -> Result<Vec<i64>, TypeError> {
        let flags = if i.has(name) { i.constant_ints(name)? } else { vec![0; n] };
        if flags.len() == n { Ok(flags) } else { Err(TypeError(format!("`{name}` needs {n} entries"))) }
    };
    let (begin_mask, end_mask, squeeze) = (flags("begin_mask")?, flags("end_mask")?, flags("squeeze_mask")?);
    let stride = if i.has("stride") { i.constant_ints("stride")? } else { vec![1; n] };
    let (begin, end) = (i.ints("begin"), i.ints("end"));
    let fits = |v: &Option<Vec<i64>>| v.as_ref().is_none_or(|v| v.len() == n);
    if stride.len() != n || stride.contains(&0) || !fits(&begin) || !fits(&end) {
        return Err(TypeError(format!("`begin`, `end` and `stride` need {n} entries each, and no stride of 0")));
    }
    let mut shape = Vec::with_capacity(n);
    for a in 0..n {
        if squeeze[a] != 0 {
            continue;
        }
        let b = if begin_mask[a] != 0 { Some(None) } else { begin.as_ref().map(|v| Some(v[a])) };
        let e = if end_mask[a] != 0 { Some(None) } else { end.as_ref().map(|v| Some(v[a])) };
        shape.push(match (x.shape[a], b, e) {
            (d, Some(None), Some(None)) if stride[a] == 1 => d,
            (Dim::Known(size), Some(b), Some(e)) => Dim::Known(slice_range(size, b, e, stride[a])?.len()),
            // Only the last element, whatever the size.
            (_, Some(Some(-1)), Some(None)) if stride[a] > 0 => Dim::Known(1),
            // Only the first.
            (_, Some(Some(0)), Some(None)) if stride[a] < 0 => Dim::Known(1),
            _ => i.fresh(),
        });
    }
    Ok(shape)
}

/// The indices that a slice takes along an axis of `size`, as start, step and count.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
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

/// The range of `begin:end:stride` along an axis of `size`; `None` neglects an end, negative ends count from the back.
///
/// Ends beyond the axis mean its end, as in Python and in coremltools.
pub fn slice_range(size: usize, begin: Option<i64>, end: Option<i64>, stride: i64) -> Result<SliceRange, TypeError> {
    let n = i64::try_from(size).map_err(|_| TypeError(format!("axis of {size} is too long")))?;
    if stride == 0 {
        return Err(TypeError("`stride` is 0".to_owned()));
    }
    let (low, high) = if stride > 0 { (0, n) } else { (-1, n - 1) };
    let bound = |v: i64| (if v < 0 { v.saturating_add(n) } else { v }).clamp(low, high);
    let (first, last) = if stride > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (begin.map_or(first, bound), end.map_or(last, bound));
    let span = if stride > 0 { stop - start } else { start - stop };
    let count = u64::try_from(span).unwrap_or(0).div_ceil(stride.unsigned_abs());
    Ok(SliceRange { start: usize::try_from(start).unwrap_or(0), step: stride, n: usize::try_from(count).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_take_what_python_takes() {
        let take = |size, b, e, s| slice_range(size, b, e, s).map(|r| r.indices().collect::<Vec<_>>());
        assert_eq!(take(7, Some(1), Some(6), 2), Ok(vec![1, 3, 5]));
        assert_eq!(take(7, Some(-3), None, 1), Ok(vec![4, 5, 6]));
        assert_eq!(take(7, None, Some(-4), 1), Ok(vec![0, 1, 2]));
        assert_eq!(take(5, None, None, -2), Ok(vec![4, 2, 0]));
        assert_eq!(take(5, Some(3), Some(3), 1), Ok(vec![]));
        assert_eq!(take(5, Some(3), Some(9), 1), Ok(vec![3, 4]));
        assert_eq!(take(5, Some(-9), Some(2), 1), Ok(vec![0, 1]));
        assert_eq!(take(5, Some(9), Some(-9), -2), Ok(vec![4, 2, 0]));
        assert_eq!(take(5, Some(-1), Some(-1), -1), Ok(vec![]));
        assert_eq!(take(0, None, None, -1), Ok(vec![]));
        assert_eq!(take(5, Some(i64::MIN), Some(i64::MAX), i64::MAX), Ok(vec![0]));
        assert!(take(5, None, None, 0).is_err());
    }
}

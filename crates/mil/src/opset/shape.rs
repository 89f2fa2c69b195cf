//! Ops that change the shape but not the elements.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_operation.py`, `iOS15/tensor_transformation.py`,
//! `iOS16/tensor_transformation.py`, `iOS17/tensor_transformation.py`.

use super::OpKind::{Reshape, Shape, View};
use super::slice::slice_range;
use super::*;
use crate::types::{DType, TensorType};

const REFS: Param = values("ref_tensors", false);
const BEGINS: Param = values("begins", true);
const ENDS: Param = values("ends", true);
const END_MASKS: Param = values("end_masks", true);

const fn values(name: &'static str, constant: bool) -> Param {
    Param {
        name,
        accepts: Accepts::Tensors,
        required: true,
        constant,
    }
}

pub(super) static OPS: &[OpDef] = &[
    // y = x as a matrix: rows are the axes before `axis` (default 1), columns the other axes.
    OpDef::new(
        "flatten2d",
        View,
        Opset::CoreMl5,
        &[tensor("x", BASIC), constant("axis", INT32).optional()],
        flatten2d,
    ),
    // y = x with a new dimension of 1 at each of `axes`, counted in y.
    OpDef::new(
        "expand_dims",
        View,
        Opset::CoreMl5,
        &[tensor("x", BASIC), constant("axes", INT32)],
        expand_dims,
    ),
    OpDef::new(
        "expand_dims",
        View,
        Opset::CoreMl7,
        &[tensor("x", ANY), constant("axes", INT32)],
        expand_dims,
    ),
    // y = x without the dimensions among `axes` (default: all) that are 1.
    OpDef::new(
        "squeeze",
        View,
        Opset::CoreMl5,
        &[tensor("x", BASIC), constant("axes", INT32).optional()],
        squeeze,
    ),
    OpDef::new(
        "squeeze",
        View,
        Opset::CoreMl7,
        &[tensor("x", ANY), constant("axes", INT32).optional()],
        squeeze,
    ),
    // y = the elements of x in order, in the shape `shape`. One size may be -1 (inferred); a size
    // of 0 copies the dimension of x, counted from the last axis.
    OpDef::new(
        "reshape",
        Reshape,
        Opset::CoreMl5,
        &[tensor("x", BASIC), tensor("shape", INT32)],
        reshape,
    ),
    OpDef::new(
        "reshape",
        Reshape,
        Opset::CoreMl7,
        &[tensor("x", ANY), tensor("shape", SHAPE_INT)],
        reshape,
    ),
    // y = the elements of x in a shape that joins axes of `ref_tensors`: of each tensor the axes
    // from `begins` to `ends`, or to the last if `end_masks`.
    OpDef::new(
        "reshape_like",
        Reshape,
        Opset::CoreMl6,
        &[tensor("x", BASIC), REFS, BEGINS, ENDS, END_MASKS],
        reshape_like,
    ),
    OpDef::new(
        "reshape_like",
        Reshape,
        Opset::CoreMl7,
        &[tensor("x", ANY), REFS, BEGINS, ENDS, END_MASKS],
        reshape_like,
    ),
    // y = the shape of x.
    OpDef::new("shape", Shape, Opset::CoreMl5, &[tensor("x", BASIC)], shape).exact(),
];

fn flatten2d(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    // As in a slice, the axis may equal the rank.
    let at = match i.int_or("axis", 1)? {
        at if at == x.rank() as i64 => x.rank(),
        at => axis(at, x.rank())?,
    };
    let (rows, cols) = (product(i, &x.shape[..at]), product(i, &x.shape[at..]));
    tensor_result(x.dtype, vec![rows, cols])
}

/// The product of dimensions; a new symbol if it is unknown.
fn product(i: &mut Infer<'_>, dims: &[Dim]) -> Dim {
    let open: Vec<Dim> = dims
        .iter()
        .copied()
        .filter(|d| *d != Dim::Known(1))
        .collect();
    match (
        open.as_slice(),
        open.iter().map(|d| d.known()).collect::<Option<Vec<_>>>(),
    ) {
        (_, Some(sizes)) => Dim::Known(sizes.into_iter().fold(1, usize::saturating_mul)),
        ([symbol], None) => *symbol,
        _ => i.fresh_symbol(),
    }
}

fn expand_dims(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let axes = i.constant_ints("axes")?;
    let rank = x.rank() + axes.len();
    let mut axes = axes
        .into_iter()
        .map(|a| axis(a, rank))
        .collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    require_distinct(&axes)?;
    let mut shape = x.shape.clone();
    axes.into_iter()
        .for_each(|a| shape.insert(a, Dim::Known(1)));
    tensor_result(x.dtype, shape)
}

fn squeeze(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let axes = if i.has("axes") {
        i.constant_ints("axes")?
            .into_iter()
            .map(|a| axis(a, x.rank()))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        (0..x.rank()).collect()
    };
    if let Some(a) = axes.iter().find(|a| x.shape[**a].known().is_none()) {
        return Err(TypeError::new(format_args!(
            "`axes`: expected axes of known size, found axis {a} of {x}"
        )));
    }
    let goes = |a: usize, d: Dim| d == Dim::Known(1) && axes.contains(&a);
    let kept = x
        .shape
        .iter()
        .enumerate()
        .filter(|(a, d)| !goes(*a, **d))
        .map(|(_, d)| *d)
        .collect();
    tensor_result(x.dtype, kept)
}

fn reshape(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let Some(wanted) = i.ints("shape") else {
        let rank = match i.ty("shape")?.shape.as_slice() {
            [Dim::Known(n)] => *n,
            _ => {
                return Err(TypeError(
                    "`shape`: expected a vector of known length".to_owned(),
                ));
            }
        };
        let shape = (0..rank.min(64)).map(|_| i.fresh_symbol()).collect();
        return tensor_result(x.dtype, shape);
    };
    let misfit = || TypeError::new(format_args!("cannot reshape {x} to {wanted:?}"));
    if wanted.iter().filter(|n| **n == -1).count() > 1 || wanted.iter().any(|n| *n < -1) {
        return Err(misfit());
    }
    let rank = wanted.len();
    if i.def.since < Opset::CoreMl7 && rank != x.rank() && wanted.contains(&0) {
        return Err(TypeError::new(format_args!(
            "`shape`: a 0 in a shape of another rank than {x} requires opset ios17, found \
             {wanted:?}"
        )));
    }
    let inherited = |at: usize| {
        (at + x.rank())
            .checked_sub(rank)
            .map_or(Dim::Known(1), |j| x.shape[j])
    };
    let dim = |(at, n): (usize, &i64)| match usize::try_from(*n) {
        Ok(0) => Some(inherited(at)),
        Ok(n) => Some(Dim::Known(n)),
        Err(_) => None,
    };
    let target: Vec<Option<Dim>> = wanted.iter().enumerate().map(dim).collect();
    let rest = remainder(i, x, &target).ok_or_else(misfit)?;
    tensor_result(
        x.dtype,
        target.into_iter().map(|d| d.unwrap_or(rest)).collect(),
    )
}

/// The size of the open dimension of `target`; `None` if the elements of x do not fill the shape.
fn remainder(i: &mut Infer<'_>, x: &TensorType, target: &[Option<Dim>]) -> Option<Dim> {
    let product = |dims: &mut dyn Iterator<Item = Dim>| {
        dims.filter_map(Dim::known)
            .try_fold(1usize, usize::checked_mul)
    };
    let has_rest = target.contains(&None);
    let (given, wanted) = (
        product(&mut x.shape.iter().copied())?,
        product(&mut target.iter().flatten().copied())?,
    );
    // A symbol in both shapes cancels out.
    let mut symbols: Vec<Dim> = x
        .shape
        .iter()
        .copied()
        .filter(|d| d.known().is_none())
        .collect();
    for d in target.iter().flatten() {
        if let Some(at) = symbols.iter().position(|s| s == d) {
            symbols.swap_remove(at);
        }
    }
    match symbols.as_slice() {
        [] => {
            let fits = if has_rest {
                wanted > 0 && given % wanted == 0
            } else {
                given == wanted
            };
            fits.then(|| Dim::Known(given.checked_div(wanted).unwrap_or(0)))
        }
        [symbol] if given == wanted => Some(*symbol),
        _ => Some(i.fresh_symbol()),
    }
}

fn reshape_like(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, refs) = (i.ty("x")?, i.tuple("ref_tensors")?);
    let (begins, ends) = (
        i.scalar_values("begins", DType::Int32)?,
        i.scalar_values("ends", DType::Int32)?,
    );
    let masks = i.scalar_values("end_masks", DType::Bool)?;
    if [begins.len(), ends.len(), masks.len()]
        .iter()
        .any(|n| *n != refs.len())
    {
        return Err(TypeError::new(format_args!(
            "expected `begins`, `ends` and `end_masks` for each of the {} `ref_tensors`",
            refs.len()
        )));
    }
    let mut shape = Vec::new();
    for (r, reference) in refs.iter().enumerate() {
        let end = (masks[r] == 0).then(|| ends[r]);
        let axes = slice_range(reference.rank(), Some(begins[r]), end, 1)?;
        shape.extend(axes.indices().map(|a| reference.shape[a]));
    }
    let y = TensorType {
        dtype: x.dtype,
        shape,
    };
    // coremltools requires the result shape to be known.
    match (
        x.known_shape().is_some().then(|| x.n_elements()),
        y.n_elements(),
    ) {
        (_, None) => Err(TypeError::new(format_args!(
            "expected a result of known size, found {y}"
        ))),
        (Some(given), wanted) if given != wanted => {
            Err(TypeError::new(format_args!("cannot reshape {x} to {y}")))
        }
        _ => Ok(vec![Type::Tensor(y)]),
    }
}

fn shape(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let rank = i.ty("x")?.rank();
    tensor_result(DType::Int32, vec![Dim::Known(rank)])
}

//! Ops on lists of tensors. Source: coremltools `ops/defs/iOS15/control_flow.py`.

use super::OpKind::List;
use super::*;
use super::{constant, tensor, tensor_result};
use crate::literal::Literal;
use crate::types::{DType, TensorType};

const LS: Param = Param {
    name: "ls",
    accepts: Accepts::List,
    required: true,
    constant: false,
};
const ELEM_SHAPE: Param = Param {
    name: "elem_shape",
    accepts: Accepts::Tensors,
    required: true,
    constant: false,
};
/// Maximum rank of a list element. With the axis that counts elements, it reaches the maximum rank
/// of a tensor.
const MAX_DIMS: usize = 4;

pub(super) static OPS: &[OpDef] = &[
    // y = a list of `init_length` (default 1) zero tensors. With `dynamic_length` (the default),
    // the list grows when it is written beyond its end. A string in `elem_shape` names an unknown
    // size, which the first written element determines.
    OpDef::new(
        "make_list",
        List,
        Opset::CoreMl5,
        &[
            tensor("init_length", INT32).optional(),
            constant("dynamic_length", BOOL).optional(),
            ELEM_SHAPE,
            constant("dtype", STRING).optional(),
        ],
        make,
    ),
    // y = the number of elements.
    OpDef::new("list_length", List, Opset::CoreMl5, &[LS], |i| {
        list(i)?;
        tensor_result(DType::Int32, Vec::new())
    }),
    // y = ls with `value` at `index`.
    OpDef::new(
        "list_write",
        List,
        Opset::CoreMl5,
        &[LS, tensor("index", INT32), tensor("value", BASIC)],
        write,
    ),
    // y = ls[index].
    OpDef::new(
        "list_read",
        List,
        Opset::CoreMl5,
        &[LS, tensor("index", INT32)],
        |i| {
            require_scalar(i, "index")?;
            Ok(vec![Type::Tensor(list(i)?.1.clone())])
        },
    ),
    // y[k] = ls[indices[k]].
    OpDef::new(
        "list_gather",
        List,
        Opset::CoreMl5,
        &[LS, tensor("indices", INT32)],
        gather,
    ),
    // y = ls with value[k] at indices[k].
    OpDef::new(
        "list_scatter",
        List,
        Opset::CoreMl5,
        &[LS, tensor("indices", INT32), tensor("value", BASIC)],
        scatter,
    ),
];

fn make(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let dtype = match i.has("dtype").then(|| i.string("dtype")).transpose()? {
        None => DType::Fp32,
        Some(name) => DType::from_name(name)
            .filter(|d| BASIC.contains(d))
            .ok_or_else(|| {
                TypeError::new(format_args!(
                    "`dtype`: expected bool, fp16, fp32 or int32, found `{name}`"
                ))
            })?,
    };
    let Some(ArgType::Many(sizes)) = i.arg("elem_shape") else {
        return Err(TypeError("`elem_shape`: expected a tuple".to_owned()));
    };
    if sizes.len() > MAX_DIMS {
        return Err(TypeError::new(format_args!(
            "`elem_shape`: expected rank {MAX_DIMS} or less, found rank {}",
            sizes.len()
        )));
    }
    let mut shape = Vec::with_capacity(sizes.len());
    for (ty, known) in sizes {
        let size = match known {
            Known::Literal(Literal::String(_)) => Some(i.fresh_symbol()),
            Known::Literal(l) => match l.to_ints().as_deref() {
                Some([n]) => usize::try_from(*n).ok().map(Dim::Known),
                _ => None,
            },
            _ => None,
        };
        let wrong = || {
            TypeError::new(format_args!(
                "`elem_shape`: expected constant sizes or strings, found {ty}"
            ))
        };
        shape.push(size.ok_or_else(wrong)?);
    }
    if i.has("init_length") {
        require_scalar(i, "init_length")?;
    }
    let len = match (
        i.bool_or("dynamic_length", true)?,
        i.ints("init_length").as_deref(),
    ) {
        (true, _) => None,
        (false, Some([n])) => Some(usize::try_from(*n).map_err(|_| {
            TypeError::new(format_args!("`init_length`: expected 0 or more, found {n}"))
        })?),
        (false, None) if !i.has("init_length") => Some(1),
        (false, _) => {
            return Err(TypeError(
                "`init_length`: expected a constant for a list of fixed length".to_owned(),
            ));
        }
    };
    Ok(vec![Type::List(
        Box::new(Type::Tensor(TensorType { dtype, shape })),
        len,
    )])
}

/// The type of `ls` and the type of its elements.
fn list<'a>(i: &Infer<'a>) -> Result<(&'a Type, &'a TensorType), TypeError> {
    match i.arg("ls") {
        Some(ArgType::One(ty @ Type::List(element, _), _)) => match element.tensor() {
            Some(element) => Ok((ty, element)),
            None => Err(TypeError::new(format_args!(
                "`ls`: expected a list of tensors, found {ty}"
            ))),
        },
        _ => Err(TypeError("`ls`: expected a list".to_owned())),
    }
}

fn require_scalar(i: &Infer<'_>, name: &str) -> Result<(), TypeError> {
    match i.ty(name)?.rank() {
        0 => Ok(()),
        _ => Err(TypeError::new(format_args!(
            "`{name}`: expected a scalar, found {}",
            i.ty(name)?
        ))),
    }
}

fn write(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    require_scalar(i, "index")?;
    let (ty, element) = list(i)?;
    let value = i.ty("value")?;
    if value.compatible(element) {
        return Ok(vec![ty.clone()]);
    }
    Err(TypeError::new(format_args!(
        "`value`: expected the element type {element} of `ls`, found {value}"
    )))
}

fn gather(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (_, element) = list(i)?;
    let mut shape = vec![n_indices(i)?];
    shape.extend(&element.shape);
    tensor_result(element.dtype, shape)
}

/// The length of `indices`.
fn n_indices(i: &Infer<'_>) -> Result<Dim, TypeError> {
    match i.ty("indices")?.shape[..] {
        [n] => Ok(n),
        _ => Err(TypeError::new(format_args!(
            "`indices`: expected a vector, found {}",
            i.ty("indices")?
        ))),
    }
}

fn scatter(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let ((ty, element), value, n) = (list(i)?, i.ty("value")?, n_indices(i)?);
    let fits = value.shape.split_first().is_some_and(|(first, rest)| {
        first.compatible(n)
            && TensorType {
                dtype: value.dtype,
                shape: rest.to_vec(),
            }
            .compatible(element)
    });
    if fits {
        return Ok(vec![ty.clone()]);
    }
    Err(TypeError::new(format_args!(
        "`value`: expected {n} elements of type {element}, found {value}"
    )))
}

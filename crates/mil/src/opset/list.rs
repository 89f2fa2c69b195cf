//! Lists of tensors. Source: coremltools `ops/defs/iOS15/control_flow.py`.

use super::{
    Accepts, ArgType, BASIC, BOOL, Dim, INT32, Infer, Known, OpDef, Opset, Param, STRING, Type,
    TypeError,
};
use super::{constant, one, tensor};
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
/// Of an element: with the axis that counts elements it is the rank of a tensor.
const MOST_DIMS: usize = 4;

pub(super) static OPS: &[OpDef] = &[
    // A list of `init_length` (default 1) zeros; one of dynamic length (default true) grows as it
    // is written. A string in `elem_shape` names a size that is not known: the first element that
    // is written has it.
    OpDef::new(
        "make_list",
        Opset::CoreMl5,
        &[
            tensor("init_length", INT32).optional(),
            constant("dynamic_length", BOOL).optional(),
            ELEM_SHAPE,
            constant("dtype", STRING).optional(),
        ],
        make,
    ),
    // y = how many elements there are.
    OpDef::new("list_length", Opset::CoreMl5, &[LS], |i| {
        list(i)?;
        one(DType::Int32, Vec::new())
    }),
    // y = ls with `value` at `index`.
    OpDef::new(
        "list_write",
        Opset::CoreMl5,
        &[LS, tensor("index", INT32), tensor("value", BASIC)],
        write,
    ),
    // y = ls[index].
    OpDef::new(
        "list_read",
        Opset::CoreMl5,
        &[LS, tensor("index", INT32)],
        |i| {
            scalar(i, "index")?;
            Ok(vec![Type::Tensor(list(i)?.1.clone())])
        },
    ),
    // y[k] = ls[indices[k]].
    OpDef::new(
        "list_gather",
        Opset::CoreMl5,
        &[LS, tensor("indices", INT32)],
        gather,
    ),
    // y = ls with value[k] at indices[k].
    OpDef::new(
        "list_scatter",
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
                TypeError(format!(
                    "`dtype` is `{name}`, it can be bool, fp16, fp32 or int32"
                ))
            })?,
    };
    let Some(ArgType::Many(sizes)) = i.arg("elem_shape") else {
        return Err(TypeError("`elem_shape` must be a tuple".to_owned()));
    };
    if sizes.len() > MOST_DIMS {
        return Err(TypeError(format!(
            "`elem_shape` has {} dimensions, {MOST_DIMS} are the most",
            sizes.len()
        )));
    }
    let mut shape = Vec::with_capacity(sizes.len());
    for (ty, known) in sizes {
        let size = match known {
            Known::Literal(Literal::String(_)) => Some(i.fresh()),
            Known::Literal(l) => match l.to_ints().as_deref() {
                Some([n]) => usize::try_from(*n).ok().map(Dim::Known),
                _ => None,
            },
            _ => None,
        };
        let wrong = || {
            TypeError(format!(
                "`elem_shape` holds {ty}: constant sizes and strings are needed"
            ))
        };
        shape.push(size.ok_or_else(wrong)?);
    }
    if i.has("init_length") {
        scalar(i, "init_length")?;
    }
    let len = match (
        i.bool_or("dynamic_length", true)?,
        i.ints("init_length").as_deref(),
    ) {
        (true, _) => None,
        (false, Some([n])) => {
            Some(usize::try_from(*n).map_err(|_| TypeError(format!("`init_length` is {n}")))?)
        }
        (false, None) if !i.has("init_length") => Some(1),
        (false, _) => {
            return Err(TypeError(
                "the length of a list that does not grow must be constant".to_owned(),
            ));
        }
    };
    Ok(vec![Type::List(
        Box::new(Type::Tensor(TensorType { dtype, shape })),
        len,
    )])
}

/// The type of `ls`, and that of its elements.
fn list<'a>(i: &Infer<'a>) -> Result<(&'a Type, &'a TensorType), TypeError> {
    match i.arg("ls") {
        Some(ArgType::One(ty @ Type::List(element, _), _)) => match element.tensor() {
            Some(element) => Ok((ty, element)),
            None => Err(TypeError(format!(
                "`ls` is {ty}: a list of tensors is needed"
            ))),
        },
        _ => Err(TypeError("`ls` must be a list".to_owned())),
    }
}

fn scalar(i: &Infer<'_>, name: &str) -> Result<(), TypeError> {
    match i.ty(name)?.rank() {
        0 => Ok(()),
        _ => Err(TypeError(format!(
            "`{name}` is {}: a scalar is needed",
            i.ty(name)?
        ))),
    }
}

fn write(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    scalar(i, "index")?;
    let (ty, element) = list(i)?;
    let value = i.ty("value")?;
    if value.compatible(element) {
        return Ok(vec![ty.clone()]);
    }
    Err(TypeError(format!(
        "`value` is {value}, the elements of `ls` are {element}"
    )))
}

fn gather(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (_, element) = list(i)?;
    let mut shape = vec![count(i)?];
    shape.extend(&element.shape);
    one(element.dtype, shape)
}

/// How many `indices` there are.
fn count(i: &Infer<'_>) -> Result<Dim, TypeError> {
    match i.ty("indices")?.shape[..] {
        [n] => Ok(n),
        _ => Err(TypeError(format!(
            "`indices` is {}: a vector is needed",
            i.ty("indices")?
        ))),
    }
}

fn scatter(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let ((ty, element), value, n) = (list(i)?, i.ty("value")?, count(i)?);
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
    Err(TypeError(format!(
        "`value` is {value}, `indices` {n} elements, the elements of `ls` are {element}"
    )))
}

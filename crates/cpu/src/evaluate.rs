//! Computing one op by its plain function: types, buffers for its results, the call.

use std::borrow::Cow;
use std::sync::Arc;

use thane_kernels::Context;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::{ArgType, Infer, Known, OpDef};
use thane_mil::types::{DType, TensorType, Type};

use crate::ops::{self, Call, Eval, Fault, Value};
use crate::tensor::{Buffer, Pool, Tensor};

/// Compute one op by its plain function: infer the result types, widen fp16, call, round to fp16.
pub fn evaluate(
    context: &Context,
    def: &'static OpDef,
    eval: Eval,
    args: Vec<Option<Value>>,
    pool: &mut Pool,
) -> Result<Vec<Tensor>, Fault> {
    let types = infer(def, &args)?;
    evaluate_as((context, def, eval), &types, args, pool)
}

/// As [`evaluate`], with results of these types.
pub fn evaluate_as(
    (context, def, eval): (&Context, &'static OpDef, Eval),
    types: &[TensorType],
    mut args: Vec<Option<Value>>,
    pool: &mut Pool,
) -> Result<Vec<Tensor>, Fault> {
    // These say themselves what is rounded, and when.
    let rounds = def.name == "cast" || def.is_constexpr();
    if !rounds {
        for tensor in args.iter_mut().flatten().flat_map(tensors_mut) {
            *tensor = pool.widened(tensor)?;
        }
    }
    let results = compute(
        (context, def),
        types,
        &args,
        pool,
        rounds,
        &mut |call, out| eval(call, out),
    )?;
    for arg in args.into_iter().flatten() {
        match arg {
            Value::Tensor(t) => pool.give(t),
            Value::Tensors(ts) => ts.into_iter().for_each(|t| pool.give(t)),
            Value::Literal(_) => {}
        }
    }
    let rounded = results.into_iter().zip(types);
    rounded
        .map(|(tensor, ty)| {
            if rounds {
                Ok(tensor)
            } else {
                pool.narrowed(tensor, ty.dtype)
            }
        })
        .collect()
}

/// The tensors of an argument.
pub fn tensors_mut(arg: &mut Value) -> &mut [Tensor] {
    match arg {
        Value::Tensor(t) => std::slice::from_mut(t),
        Value::Tensors(ts) => ts,
        Value::Literal(_) => &mut [],
    }
}

/// Computes the results of an op, as [`Eval`] does.
pub type Evaluate<'a> = dyn FnMut(&Call<'_>, &mut [Buffer]) -> Result<(), Fault> + 'a;

/// Compute one op into fresh tensors of these types; `keeps_halves` says whether those of fp16 are,
/// or are fp32 still.
pub fn compute(
    (context, def): (&Context, &'static OpDef),
    types: &[TensorType],
    args: &[Option<Value>],
    pool: &mut Pool,
    keeps_halves: bool,
    eval: &mut Evaluate<'_>,
) -> Result<Vec<Tensor>, Fault> {
    let mut types = Cow::Borrowed(types);
    if types.iter().any(|t| t.known_shape().is_none()) {
        types = Cow::Owned(sized(&Call {
            context,
            def,
            args,
            results: &types,
        })?);
    }
    let working = ops::working_bytes(def.name, args, &types);
    let _working = (working > 0)
        .then(|| pool.reserve(working, || "what it computes with".to_owned()))
        .transpose()?;
    let mut out = Vec::with_capacity(types.len());
    for ty in types.iter() {
        let shape = ty
            .known_shape()
            .ok_or_else(|| format!("the size of {ty} is not known"))?;
        let dtype = if ty.dtype == DType::Fp16 && !keeps_halves {
            DType::Fp32
        } else {
            ty.dtype
        };
        out.push(pool.tensor(dtype, shape)?);
    }
    let (mut tensors, mut buffers) = (Vec::new(), Vec::new());
    for mut tensor in out {
        let data = std::mem::replace(&mut tensor.data, Arc::new(Buffer::Bool(Vec::new().into())));
        buffers.push(Arc::try_unwrap(data).map_err(|_| "a fresh buffer is shared".to_owned())?);
        tensors.push(tensor);
    }
    eval(
        &Call {
            context,
            def,
            args,
            results: &types,
        },
        &mut buffers,
    )?;
    let finished = tensors
        .into_iter()
        .zip(buffers)
        .map(|(mut tensor, buffer)| {
            tensor.data = Arc::new(buffer);
            tensor
        });
    Ok(finished.collect())
}

/// The types of what an op gives for these arguments.
pub fn infer(def: &'static OpDef, args: &[Option<Value>]) -> Result<Vec<TensorType>, Fault> {
    let ty = |t: &Tensor| Type::Tensor(TensorType::new(t.dtype, t.shape.iter().copied()));
    let types: Vec<Vec<Type>> = args
        .iter()
        .map(|arg| match arg {
            Some(Value::Tensor(t)) => vec![ty(t)],
            Some(Value::Tensors(ts)) => ts.iter().map(ty).collect(),
            Some(Value::Literal(l)) => vec![l.ty()],
            None => Vec::new(),
        })
        .collect();
    let literals: Vec<Vec<Option<Literal>>> = args
        .iter()
        .map(|arg| {
            arg.iter()
                .flat_map(Value::tensors)
                .map(small_literal)
                .collect()
        })
        .collect();
    let infos: Vec<Option<ArgType<'_>>> = args
        .iter()
        .zip(&types)
        .zip(&literals)
        .map(|((arg, types), literals)| match arg {
            Some(Value::Tensor(t)) => Some(ArgType::One(&types[0], known(t, literals[0].as_ref()))),
            Some(Value::Tensors(ts)) => {
                let items = ts.iter().zip(types).zip(literals);
                Some(ArgType::Many(
                    items
                        .map(|((t, ty), literal)| (ty, known(t, literal.as_ref())))
                        .collect(),
                ))
            }
            Some(Value::Literal(l)) => Some(ArgType::One(&types[0], Known::Literal(l))),
            None => None,
        })
        .collect();
    let mut next_symbol = 0;
    let results = Infer::new(def, &infos, &mut next_symbol)
        .run()
        .map_err(|e| e.0)?;
    results
        .into_iter()
        .map(|t| {
            t.tensor()
                .cloned()
                .ok_or_else(|| "a result is no tensor".to_owned())
        })
        .collect()
}

fn known<'a>(t: &'a Tensor, literal: Option<&'a Literal>) -> Known<'a> {
    match (t.i32s(), literal) {
        (Some(v), _) => Known::Ints(v),
        (None, Some(l)) => Known::Literal(l),
        (None, None) => Known::No,
    }
}

/// What shapes may follow from beside int32: truth values, narrow integers, and the one number of a
/// scalar.
fn small_literal(t: &Tensor) -> Option<Literal> {
    let is_held_as_is = matches!(
        t.dtype,
        DType::Bool | DType::Int8 | DType::Uint8 | DType::Int16 | DType::Uint16 | DType::Uint32
    );
    let is_scalar = t.dtype.is_float() && t.shape.is_empty();
    if t.len() > 64 || !is_held_as_is && !is_scalar {
        return None;
    }
    let bytes = t.data.bytes().get(..t.dtype.byte_len(t.len())?)?;
    Some(Literal::Tensor(
        TensorType::new(t.dtype, t.shape.iter().copied()),
        Data::owned(bytes.to_vec()),
    ))
}

/// The result types of an op whose sizes follow from its data.
fn sized(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let unknown = || {
        call.results
            .iter()
            .map(|t| format!("the size of {t} is not known"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let sizes = ops::find_sizes(call.def.name).ok_or_else(unknown)?;
    let shapes = sizes(call)?;
    Ok(call
        .results
        .iter()
        .zip(shapes)
        .map(|(t, shape)| TensorType::new(t.dtype, shape))
        .collect())
}

/// The shape under which a reshaping op, or a transposition, gives the elements of its first
/// argument in their order; none where it moves them.
pub fn view_shape(
    def: &'static OpDef,
    args: &[Option<Value>],
    pool: &Pool,
) -> Result<Option<Vec<usize>>, Fault> {
    let Some(Some(Value::Tensor(x))) = args.first() else {
        return Err("`x` is missing".to_owned());
    };
    if def.name == "transpose" && !moves_nothing(x, args) {
        return Ok(None);
    }
    let shape = infer(def, args)?[0]
        .known_shape()
        .ok_or("the shape is not known")?;
    pool.check(x.dtype, &shape)?;
    Ok(Some(shape))
}

/// Whether only axes of size 1 change their place.
fn moves_nothing(x: &Tensor, args: &[Option<Value>]) -> bool {
    let Some(Some(Value::Tensor(perm))) = args.get(1) else {
        return false;
    };
    let rank = x.shape.len() as i64;
    let axes = perm
        .to_ints()
        .unwrap_or_default()
        .into_iter()
        .map(|p| (if p < 0 { p + rank } else { p }) as usize);
    let moving: Vec<usize> = axes
        .filter(|a| x.shape.get(*a).is_some_and(|n| *n != 1))
        .collect();
    moving.is_sorted()
}

//! The numbers of the Apple Neural Engine, op by op: fp16 after each op, and products that end in
//! its accumulator.
//!
//! What the engine does is in [`Effects`], a switch each, with its source. What is not modeled:
//! which ops the engine runs at all (every op is taken to), its tables for tanh, exp, gelu and
//! their like (these are computed exactly and rounded), products of int8 by int8, transposed
//! convolution (rounded after, summed as elsewhere), and the order of sums.
//!
//! [`compare()`] runs a function in f32 and so, side by side, and says where they part. Start at
//! [`Effects`].

mod accumulator;
mod compare;
mod conv;
mod effects;
pub(crate) mod half;
mod product;
mod tables;

use std::sync::Arc;

pub use compare::{Cause, CompareError, Finding, OpReport, Options, Report, compare, layer_of};
pub use effects::{Basis, Effect, Effects, UnknownEffect};
pub use half::Tally;
pub(crate) use half::{constant, entering, round_constants};
pub(crate) use product::stored_linear;
use thane_kernels::Context;
use thane_mil::loops::Loops;
use thane_mil::types::{DType, TensorType};

use crate::evaluate::{self, tensors_mut};
use crate::ops::{Call, Fault, Value};
use crate::plain::{Item, Operand, Plain};
use crate::tensor::{Buffer, Pool, Tensor};

/// Computes the fp32 results of an op on operands as they are, fp16 or fp32; results are rounded.
type Eval = fn(&Call<'_>, &mut [Buffer], Effects, &mut Tally) -> Result<(), Fault>;

/// Ops that end in the accumulator.
static PRODUCTS: &[(&str, Eval)] = &[
    ("conv", conv::conv),
    ("linear", product::linear),
    ("matmul", product::matmul),
    ("scaled_dot_product_attention", product::attention),
];

/// The op of that name by the accumulator.
fn find(name: &str) -> Option<Eval> {
    PRODUCTS
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, eval)| *eval)
}

/// Compute one op by its plain function, or its sums by the accumulator, and round its results.
pub(crate) fn evaluate(
    context: &Context,
    plain: &Plain,
    mut args: Vec<Option<Value>>,
    effects: Effects,
    (pool, loops): (&mut Pool, &mut Loops),
    tally: &mut Tally,
) -> Result<Vec<Tensor>, Fault> {
    let def = plain.def;
    enter_constants(context, plain, &mut args, effects, pool)?;
    let types = evaluate::infer(def, &args)?;
    loops.op(def, &args, &types)?;
    // What only moves stays as it is in fp16, specials too.
    if def.kind.moves() {
        let moved = evaluate::compute((context, def), &types, &args, pool, true, &mut |c, o| {
            (plain.eval)(c, o)
        })?;
        return if effects.slice_saturation {
            saturate(context, plain, &args, &types, moved, pool)
        } else {
            Ok(moved)
        };
    }
    let is_float = |ty: &TensorType| matches!(ty.dtype, DType::Fp16 | DType::Fp32);
    if def.name == "cast" {
        return match (&args[0], &types[..]) {
            (Some(Value::Tensor(x)), [ty]) if is_float(ty) => {
                Ok(vec![cast(x, ty.dtype, effects, tally, pool)?])
            }
            _ => evaluate::evaluate(context, def, plain.eval, args, pool),
        };
    }
    // Products of integers are not the engine's.
    let operands = def
        .params
        .iter()
        .zip(&args)
        .filter(|(p, _)| ["x", "y", "weight", "bias"].contains(&p.name));
    let floats =
        types.iter().all(is_float) && operands.filter_map(|(_, a)| a.as_ref()).all(is_number);
    let results =
        match find(def.name).filter(|_| floats) {
            Some(eval) => {
                // The mask alone is read by the plain function's own code.
                let mask = def.param_index("attn_mask").and_then(|i| args.get_mut(i));
                mask.into_iter()
                    .flatten()
                    .try_for_each(|mask| compute_with(mask, effects, pool))?;
                evaluate::compute(
                    (context, def),
                    &types,
                    &args,
                    pool,
                    false,
                    &mut |call, out| eval(call, out, effects, tally),
                )?
            }
            None => {
                args.iter_mut()
                    .flatten()
                    .try_for_each(|arg| compute_with(arg, effects, pool))?;
                let table = tables::find(def.name, effects);
                evaluate::compute((context, def), &types, &args, pool, false, &mut |c, o| {
                    match table {
                        Some(table) => tables::apply(c, o, table),
                        None => (plain.eval)(c, o),
                    }
                })?
            }
        };
    let rounded = results.into_iter().zip(&types).map(|(mut tensor, ty)| {
        let n = tensor.len();
        if let Some(Buffer::F32(v)) = Arc::get_mut(&mut tensor.data) {
            half::round_results(&mut v[..n], effects, tally);
        }
        pool.narrowed(tensor, ty.dtype)
    });
    rounded.collect()
}

/// Whether an argument that is a tensor holds floating-point numbers.
fn is_number(arg: &Value) -> bool {
    !matches!(arg, Value::Tensor(t) if !t.dtype.is_float())
}

fn enter_constants(
    context: &Context,
    plain: &Plain,
    args: &mut [Option<Value>],
    effects: Effects,
    pool: &mut Pool,
) -> Result<(), Fault> {
    for (operand, arg) in plain.args.iter().zip(args) {
        match (operand, arg) {
            (Some(Operand::Constant(_)), Some(Value::Tensor(t))) => {
                *t = constant(context, t, effects, pool)?
            }
            (Some(Operand::Values(items)), Some(Value::Tensors(ts))) => {
                let constants = items
                    .iter()
                    .zip(ts)
                    .filter(|(item, _)| matches!(item, Item::Constant(_)));
                for (_, t) in constants {
                    *t = constant(context, t, effects, pool)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Widen fp16, and make of specials what ops compute with.
fn compute_with(arg: &mut Value, effects: Effects, pool: &mut Pool) -> Result<(), Fault> {
    for tensor in tensors_mut(arg) {
        *tensor = pool.widened(tensor)?;
        let n = tensor.len();
        let has_specials = tensor
            .f32s()
            .is_some_and(|v| v.iter().any(|v| !v.is_finite()));
        if has_specials && let Buffer::F32(v) = pool.own(tensor)? {
            v[..n]
                .iter_mut()
                .for_each(|v| *v = half::operand(*v, effects));
        }
    }
    Ok(())
}

fn cast(
    x: &Tensor,
    dtype: DType,
    effects: Effects,
    tally: &mut Tally,
    pool: &mut Pool,
) -> Result<Tensor, Fault> {
    let (mut values, _) = pool.take_checked(&x.shape)?;
    x.each(|i, v| values[i] = half::result(v, effects, tally));
    pool.narrowed(
        Tensor::new(DType::Fp32, x.shape.clone(), Buffer::F32(values)),
        dtype,
    )
}

/// What slices off the last axis make of large numbers: they pass in units of 1/16 of fp16's own.
fn saturate(
    context: &Context,
    plain: &Plain,
    args: &[Option<Value>],
    types: &[TensorType],
    mut moved: Vec<Tensor>,
    pool: &mut Pool,
) -> Result<Vec<Tensor>, Fault> {
    const MOST: f32 = 65504.0 / 16.0;
    let call = Call {
        context,
        def: plain.def,
        args,
        results: types,
    };
    let last = |name: &str| call.ints(name).and_then(|v| v.last().copied()).unwrap_or(0);
    let is_offset =
        plain.def.name == "slice_by_index" && last("begin_mask") == 0 && last("begin") != 0;
    for tensor in moved.iter_mut().filter(|_| is_offset) {
        let mut wide = pool.widened(tensor)?;
        let n = wide.len();
        if let Buffer::F32(values) = pool.own(&mut wide)? {
            let large = values[..n].iter_mut().filter(|v| v.abs() > MOST);
            large.for_each(|v| *v = f32::INFINITY.copysign(*v));
            *tensor = pool.narrowed(wide, tensor.dtype)?;
        }
    }
    Ok(moved)
}

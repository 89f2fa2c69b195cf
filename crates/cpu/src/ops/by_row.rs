//! Which plain functions take elements in rows, from which the compiler makes vectors, and which
//! take them one by one, each by its index.
//!
//! What is not listed counts as one by one, so that an op is listed only after somebody has looked.

use thane_kernels::Context;
use thane_mil::opset::OpDef;

use super::{Call, Value};
use crate::tensor::Tensor;

/// When an op goes by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Elements of any type are moved as they lie, or mixed with those around them.
    Moved,
    /// As `Moved`, where more than one element follows the axis that the op names: it moves runs
    /// of that many.
    RunsBehindAxis,
    /// As `Moved`, where its parts have more than one element from the axis on.
    RunsFromAxis,
    /// It computes with floats.
    Floats,
    /// It reads and gives floats.
    CastOfFloats,
    /// Whatever it computes with.
    Any,
}

/// The ops that go by rows.
pub static BY_ROW: &[(&str, When)] = &[
    ("band_part", When::Moved),
    ("depth_to_space", When::Moved),
    ("dequantize", When::Moved),
    ("expand_dims", When::Moved),
    ("fill", When::Moved),
    ("fill_like", When::Moved),
    ("flatten2d", When::Moved),
    ("identity", When::Moved),
    ("pad", When::Moved),
    ("pixel_shuffle", When::Moved),
    ("pixel_unshuffle", When::Moved),
    ("quantize", When::Moved),
    ("reduce_argmax", When::Moved),
    ("reduce_argmin", When::Moved),
    ("reshape", When::Moved),
    ("reshape_like", When::Moved),
    ("resize", When::Moved),
    ("resize_bilinear", When::Moved),
    ("resize_nearest_neighbor", When::Moved),
    ("reverse", When::Moved),
    ("slice_by_index", When::Moved),
    ("slice_by_size", When::Moved),
    ("slice_update", When::Moved),
    ("sliding_windows", When::Moved),
    ("space_to_depth", When::Moved),
    ("squeeze", When::Moved),
    ("tile", When::Moved),
    ("transpose", When::Moved),
    ("upsample_bilinear", When::Moved),
    ("upsample_nearest_neighbor", When::Moved),
    ("gather", When::RunsBehindAxis),
    ("scatter", When::RunsBehindAxis),
    ("concat", When::RunsFromAxis),
    ("split", When::RunsFromAxis),
    ("stack", When::RunsFromAxis),
    ("cast", When::CastOfFloats),
    ("add", When::Any),
    ("equal", When::Any),
    ("greater", When::Any),
    ("greater_equal", When::Any),
    ("less", When::Any),
    ("less_equal", When::Any),
    ("logical_and", When::Any),
    ("logical_not", When::Any),
    ("logical_or", When::Any),
    ("logical_xor", When::Any),
    ("maximum", When::Any),
    ("minimum", When::Any),
    ("mul", When::Any),
    ("not_equal", When::Any),
    ("select", When::Any),
    ("sub", When::Any),
    ("abs", When::Floats),
    ("batch_norm", When::Floats),
    ("ceil", When::Floats),
    ("clamped_relu", When::Floats),
    ("clip", When::Floats),
    ("erf", When::Floats),
    ("exp", When::Floats),
    ("floor", When::Floats),
    ("gelu", When::Floats),
    ("instance_norm", When::Floats),
    ("inverse", When::Floats),
    ("l2_norm", When::Floats),
    ("layer_norm", When::Floats),
    ("leaky_relu", When::Floats),
    ("linear_activation", When::Floats),
    ("local_response_norm", When::Floats),
    ("prelu", When::Floats),
    ("real_div", When::Floats),
    ("reduce_l1_norm", When::Floats),
    ("reduce_l2_norm", When::Floats),
    ("reduce_log_sum", When::Floats),
    ("reduce_max", When::Floats),
    ("reduce_mean", When::Floats),
    ("reduce_min", When::Floats),
    ("reduce_prod", When::Floats),
    ("reduce_sum", When::Floats),
    ("reduce_sum_square", When::Floats),
    ("relu", When::Floats),
    ("relu6", When::Floats),
    ("round", When::Floats),
    ("rsqrt", When::Floats),
    ("sigmoid", When::Floats),
    ("sigmoid_hard", When::Floats),
    ("sign", When::Floats),
    ("silu", When::Floats),
    ("softsign", When::Floats),
    ("sqrt", When::Floats),
    ("square", When::Floats),
    ("tanh", When::Floats),
    ("threshold", When::Floats),
    ("thresholded_relu", When::Floats),
];

/// Whether the plain function of an op takes elements of these arguments in rows.
pub fn goes_by_row(context: &Context, def: &'static OpDef, args: &[Option<Value>]) -> bool {
    let Some((_, when)) = BY_ROW.iter().find(|(name, _)| *name == def.name) else {
        return false;
    };
    let call = Call {
        context,
        def,
        args,
        results: &[],
    };
    let is_float = |name: &str| call.opt_tensor(name).is_none_or(|t| t.dtype.is_float());
    match when {
        When::Moved | When::Any => true,
        When::RunsBehindAxis | When::RunsFromAxis => {
            runs(&call, *when == When::RunsFromAxis).unwrap_or(false)
        }
        When::Floats => is_float("x"),
        When::CastOfFloats => {
            is_float("x") && call.string("dtype").is_some_and(|to| to.starts_with("fp"))
        }
    }
}

/// Whether the types of the results follow from the types of the arguments at run time, whatever
/// their elements are.
pub fn follow_from_types(name: &str) -> bool {
    let computes = |when| matches!(when, When::Any | When::Floats | When::CastOfFloats);
    let mut rows = BY_ROW.iter();
    name == "concat" || rows.any(|(other, when)| *other == name && computes(*when))
}

/// Whether the op moves runs of several elements, or a single run.
fn runs(call: &Call<'_>, with_axis: bool) -> Option<bool> {
    let name = if call.def.name == "scatter" {
        "data"
    } else {
        "x"
    };
    let first = call.opt_tensor(name);
    let all = match first {
        Some(one) => std::slice::from_ref(one),
        None => call.tensors("values").ok()?,
    };
    let is_run = |t: &Tensor| {
        let axis = call.axis("axis", 0, t.shape.len().max(1)).ok()?;
        let (outer, inner) = t.shape.split_at_checked(axis + usize::from(!with_axis))?;
        let is_one = with_axis && outer.iter().product::<usize>() <= 1;
        Some(is_one || inner.iter().product::<usize>() > 1)
    };
    Some(all.iter().all(|t| is_run(t).unwrap_or(false)))
}

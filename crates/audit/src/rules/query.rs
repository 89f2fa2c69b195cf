//! Queries that rules share: parameters of an op by value, its run-time tensors, the product that
//! it computes.
//!
//! Nothing here allocates by the size of a tensor. Sizes are `f64` where they are multiplied:
//! nothing overflows.

pub use thane_mil::graph::{float, int, ints, scalar, small, users, wrap};
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op, OpId, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use crate::view::View;
use crate::weight::{Encoding, Stored};

/// The name of an op's kind.
pub fn kind(view: &View<'_>, op: OpId) -> &'static str {
    view.op(op).def.name
}

/// Whether an op is of one of these kinds.
pub fn is_any(view: &View<'_>, op: OpId, kinds: &[&str]) -> bool {
    kinds.contains(&kind(view, op))
}

/// The tensors that an op takes at run time, with the names of the parameters: no constants, and
/// nothing that follows from constants alone.
pub fn operands<'a>(
    view: &'a View<'_>,
    op: OpId,
) -> impl Iterator<Item = (&'static str, ValueId)> + 'a {
    let op = view.op(op);
    let params = op.def.params.iter().zip(&op.args);
    params
        .flat_map(|(p, arg)| {
            arg.iter()
                .flat_map(|a| a.values())
                .map(move |v| (p.name, *v))
        })
        .filter(|(_, v)| !view.is_fixed(*v))
}

/// The types of what an op takes at run time and of what it gives.
pub fn tensors<'a>(
    view: &'a View<'_>,
    op: OpId,
) -> impl Iterator<Item = (ValueId, &'a TensorType)> + 'a {
    let values = operands(view, op)
        .map(|(_, v)| v)
        .chain(view.op(op).results.iter().copied());
    values.filter_map(|v| tensor(view, v).map(|t| (v, t)))
}

/// The type of a tensor.
pub fn tensor<'a>(view: &'a View<'_>, value: ValueId) -> Option<&'a TensorType> {
    view.f.value(value).ty.tensor()
}

/// The type of a parameter, written in place or not.
pub fn param_type(view: &View<'_>, op: OpId, name: &str) -> Option<TensorType> {
    match view.op(op).arg(name)? {
        Arg::Value(v) => tensor(view, *v).cloned(),
        Arg::Literal(l) => match l.ty() {
            Type::Tensor(t) => Some(t),
            _ => None,
        },
        Arg::Values(_) => None,
    }
}

/// The lengths of the axes of a parameter, if all are known.
pub fn param_shape(view: &View<'_>, op: OpId, name: &str) -> Option<Vec<usize>> {
    param_type(view, op, name)?.known_shape()
}

/// The lengths of the axes of an op's first result, if all are known.
pub fn result_shape(view: &View<'_>, op: OpId) -> Option<Vec<usize>> {
    view.known_shape(*view.op(op).results.first()?)
}

/// Whether a parameter is bound to something that only a call knows.
pub fn is_runtime(view: &View<'_>, op: OpId, name: &str) -> bool {
    view.op(op)
        .arg(name)
        .is_some_and(|a| a.values().iter().any(|v| !view.is_fixed(*v)))
}

/// Whether a parameter is bound to something that the program states, compressed or not.
pub fn is_weight(view: &View<'_>, op: OpId, name: &str) -> bool {
    match view.op(op).arg(name) {
        Some(Arg::Literal(_)) => true,
        Some(Arg::Value(v)) => view.is_constant(*v),
        _ => false,
    }
}

/// The op that makes what a parameter is bound to.
pub fn producer<'a>(view: &View<'a>, op: OpId, name: &str) -> Option<&'a Op> {
    view.f.definer(view.op(op).value_arg(name)?)
}

/// The ops that make what an op uses; of the first 8 values, so that many are not walked for each
/// op.
pub fn producers<'a>(view: &View<'a>, op: &'a Op) -> impl Iterator<Item = &'a Op> {
    let f = view.f;
    op.uses().take(8).filter_map(move |value| f.definer(value))
}

/// Whether what an op gives goes, by way of fewer than `most` ops of some kinds, where `there`
/// says: to an op, as a value.
pub fn reaches(
    view: &View<'_>,
    op: OpId,
    (most, between): (usize, &[&str]),
    there: &dyn Fn(OpId, ValueId) -> bool,
) -> bool {
    let mut at = op;
    for _ in 0..most {
        let Some(result) = view.op(at).results.first().copied() else {
            return false;
        };
        if users(view, at).any(|u| there(u, result)) {
            return true;
        }
        let Some(next) = users(view, at).find(|u| is_any(view, *u, between)) else {
            return false;
        };
        at = next;
    }
    false
}

/// The numbers among the arguments of an op, written in place or not.
pub fn scalars<'a>(view: &'a View<'_>, op: &'a Op) -> impl Iterator<Item = f32> + 'a {
    let number = |literal: &Literal| match literal.to_floats()?.as_slice() {
        [v] => Some(*v),
        _ => None,
    };
    op.args.iter().flatten().filter_map(move |arg| match arg {
        Arg::Value(v) => scalar(view, *v),
        Arg::Literal(l @ Literal::Tensor(_, data)) if data.byte_len() <= 4 => number(l),
        _ => None,
    })
}

/// The product of lengths.
pub fn product(lengths: &[usize]) -> f64 {
    lengths.iter().map(|n| *n as f64).product()
}

/// Bytes of a tensor, packed, if its lengths are known.
pub fn bytes(ty: &TensorType) -> Option<f64> {
    Some(product(&ty.known_shape()?) * ty.dtype.bits() as f64 / 8.0)
}

/// A product of matrices that an op computes with weights or between activations.
pub struct Product {
    /// Inputs that are summed over for one output.
    pub k: f64,
    /// Output channels.
    pub n_outputs: f64,
    /// Columns: everything that is computed once for each position.
    pub columns: f64,
    /// How the weights are stored; nothing where both sides are activations.
    pub weights: Option<Stored>,
}

impl Product {
    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        2.0 * self.k * self.n_outputs * self.columns
    }

    /// Bytes of the weights as stored.
    pub fn weight_bytes(&self) -> f64 {
        self.weights
            .map_or(0.0, |w| self.k * self.n_outputs * w.bits / 8.0)
    }
}

/// The product that a `conv`, `conv_transpose`, `linear`, `matmul` or attention computes, if its
/// lengths are known.
pub fn product_of(view: &View<'_>, op: OpId) -> Option<Product> {
    const PRODUCTS: [&str; 5] = [
        "conv",
        "conv_transpose",
        "linear",
        "matmul",
        "scaled_dot_product_attention",
    ];
    let out = is_any(view, op, &PRODUCTS).then(|| result_shape(view, op))??;
    let shape = |name: &str| param_shape(view, op, name);
    let places = |dims: &[usize]| Some(*dims.first()? as f64 * product(dims.get(2..)?));
    let rows = |dims: &[usize]| Some(product(dims.split_last()?.1));
    let mut weights = ["weight"; 2];
    let (k, n_outputs, columns) = match kind(view, op) {
        "conv" => {
            let w = shape("weight")?;
            (product(w.get(1..)?), *w.first()? as f64, places(&out)?)
        }
        "conv_transpose" => {
            let (w, x) = (shape("weight")?, shape("x")?);
            (*w.first()? as f64, product(w.get(1..)?), places(&x)?)
        }
        "linear" => {
            let [n_outputs, k] = shape("weight")?[..] else {
                return None;
            };
            (k as f64, n_outputs as f64, rows(&out)?)
        }
        "matmul" => {
            weights = ["y", "x"];
            let k = contraction(view, op)?;
            (k as f64, *out.last()? as f64, rows(&out)?)
        }
        _ => {
            let (q, k) = (shape("query")?, shape("key")?);
            let n_keys = *k.get(k.len().checked_sub(2)?)?;
            (2.0 * *q.last()? as f64, n_keys as f64, rows(&q)?)
        }
    };
    Some(Product {
        k,
        n_outputs,
        columns,
        weights: weights.iter().find_map(|name| stored(view, op, name)),
    })
}

/// The axis that a `matmul` sums over.
pub fn contraction(view: &View<'_>, op: OpId) -> Option<usize> {
    let ty = param_type(view, op, "x")?;
    let transposed = int(view, op, "transpose_x") == Some(1);
    let at = if transposed && ty.rank() > 1 {
        ty.rank() - 2
    } else {
        ty.rank().checked_sub(1)?
    };
    ty.shape.get(at)?.known()
}

/// How a weight is stored, if it is one.
pub fn stored(view: &View<'_>, op: OpId, name: &str) -> Option<Stored> {
    if !is_weight(view, op, name) {
        return None;
    }
    match view.op(op).arg(name)? {
        Arg::Value(v) => Some(Stored::of(view.f, *v)),
        // fp32 reaches the engine as fp16.
        _ => Some(Stored {
            encoding: Encoding::Dense,
            bits: param_type(view, op, name)?.dtype.bits().min(16) as f64,
        }),
    }
}

/// Whether a type is one that the engine computes in.
pub fn is_half(dtype: DType) -> bool {
    dtype == DType::Fp16
}

/// Whether all results of an op are of a type that the engine computes in.
pub fn gives_half(view: &View<'_>, op: OpId) -> bool {
    let mut results = view.op(op).results.iter();
    results.all(|r| view.dtype(*r).is_some_and(is_half))
}

/// Whether an op gives what a state holds.
pub fn gives_state(name: &str) -> bool {
    matches!(name, "read_state" | "coreml_update_state")
}

/// The name of an op's first result, or of its kind if it has none.
pub fn label<'a>(view: &'a View<'_>, op: OpId) -> &'a str {
    view.op(op)
        .results
        .first()
        .map_or(view.op(op).def.name, |r| view.name(*r))
}

/// Bytes, in the unit that they are best read in.
pub fn show_bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.0} kB", n / 1e3),
    }
}

//! Products of matrices and attention.
//!
//! Source: coremltools `ops/defs/iOS15/linear.py`, `iOS17/linear.py`, `iOS18/transformers.py`.

use super::{
    Accepts, BOOL, Dim, FLOAT, Infer, Known, NUMBER, OpDef, Opset, Param, STRING, Type, TypeError,
    broadcast, constant, one, tensor,
};
use crate::types::DType;

const MASK: &[DType] = &[DType::Bool, DType::Fp16, DType::Fp32];

const LINEAR: &[Param] = &[
    tensor("x", NUMBER),
    constant("weight", NUMBER),
    constant("bias", NUMBER).optional(),
];
const MATMUL: &[Param] = &[
    tensor("x", NUMBER),
    tensor("y", NUMBER),
    constant("transpose_x", BOOL).optional(),
    constant("transpose_y", BOOL).optional(),
];
const VALUES: Param = Param {
    name: "values",
    accepts: Accepts::Tensors,
    required: true,
    constant: false,
};

pub(super) static OPS: &[OpDef] = &[
    // y = x @ weight^T + bias; x [.., in], weight [out, in], bias [out]. From iOS 17 on, weight and
    // bias may be of another element type than x and y.
    OpDef::new("linear", Opset::CoreMl5, LINEAR, linear_alike),
    OpDef::new("linear", Opset::CoreMl7, LINEAR, linear),
    // y = x @ y over the last two axes, the others broadcast; a vector x times a matrix y is a
    // vector. From iOS 17 on, a constant may be of another element type than the other operand,
    // which is that of the result.
    OpDef::new("matmul", Opset::CoreMl5, MATMUL, matmul_alike),
    OpDef::new("matmul", Opset::CoreMl7, MATMUL, matmul),
    // `nchw,nwhr->nchr` or `chw,whr->chr`, with any letters: for each h, x @ y; n and h broadcast.
    OpDef::new(
        "einsum",
        Opset::CoreMl5,
        &[VALUES, constant("equation", STRING)],
        einsum,
    ),
    // y = softmax(query @ key^T / sqrt(E) + attn_mask) @ value; query [.., L, E], key [.., S, E],
    // value [.., S, EV].
    OpDef::new(
        "scaled_dot_product_attention",
        Opset::CoreMl8,
        &[
            tensor("query", FLOAT),
            tensor("key", FLOAT),
            tensor("value", FLOAT),
            tensor("attn_mask", MASK).optional(),
        ],
        attention,
    ),
];

fn linear_alike(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "weight", "bias"])?;
    linear(i)
}

fn linear(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    if i.has("bias") {
        i.alike(&["weight", "bias"])?;
    }
    let (x, w) = (i.ty("x")?, i.ty("weight")?);
    let mut shape = x.shape.clone();
    let (Some(last), [out, input]) = (shape.last_mut(), w.shape.as_slice()) else {
        return Err(TypeError(format!(
            "`x` is {x}, `weight` is {w}: [.., in] and [out, in] are needed"
        )));
    };
    if !last.compatible(*input) {
        return Err(TypeError(format!(
            "`x` is {x}, `weight` is {w}: the last dimensions differ"
        )));
    }
    if i.has("bias") && !matches!(i.ty("bias")?.shape.as_slice(), [n] if n.compatible(*out)) {
        return Err(TypeError(format!(
            "`bias` is {}, `weight` is {w}: [out] is needed",
            i.ty("bias")?
        )));
    }
    *last = *out;
    one(x.dtype, shape)
}

fn matmul_alike(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "y"])?;
    let shape = product(i)?;
    one(i.ty("x")?.dtype, shape)
}

fn matmul(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, y) = (i.ty("x")?.dtype, i.ty("y")?.dtype);
    let is_constant = |name| matches!(i.arg(name), Some(super::ArgType::One(_, Known::Literal(_))));
    let dtype = match (is_constant("x"), is_constant("y")) {
        _ if x == y => x,
        (false, true) => x,
        (true, false) => y,
        _ => {
            let reason = "one of them must be constant, or the element types equal";
            return Err(TypeError(format!("`x` is {x} and `y` is {y}: {reason}")));
        }
    };
    one(dtype, product(i)?)
}

/// The shape of a product of matrices.
fn product(i: &mut Infer<'_>) -> Result<Vec<Dim>, TypeError> {
    let (x, y) = (i.ty("x")?, i.ty("y")?);
    let (mut a, mut b) = (x.shape.clone(), y.shape.clone());
    let is_vector = a.len() == 1 && b.len() == 2 && !i.bool_or("transpose_x", false)?;
    if is_vector {
        a.insert(0, Dim::Known(1));
    }
    if a.len() < 2 || b.len() < 2 {
        return Err(TypeError(format!(
            "`x` is {x}, `y` is {y}: at least two dimensions are needed"
        )));
    }
    if i.bool_or("transpose_x", false)? {
        let n = a.len();
        a.swap(n - 1, n - 2);
    }
    if i.bool_or("transpose_y", false)? {
        let n = b.len();
        b.swap(n - 1, n - 2);
    }
    let (k, m) = (a[a.len() - 1], a[a.len() - 2]);
    if !k.compatible(b[b.len() - 2]) {
        return Err(TypeError(format!(
            "`x` is {x}, `y` is {y}: the inner dimensions differ"
        )));
    }
    let mut shape = i.broadcast(&a[..a.len() - 2], &b[..b.len() - 2])?;
    shape.extend((!is_vector).then_some(m));
    shape.push(b[b.len() - 1]);
    Ok(shape)
}

fn einsum(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let values = i.many("values")?;
    let [x, y] = values.as_slice() else {
        return Err(TypeError(format!(
            "`values` has {} values, two are needed",
            values.len()
        )));
    };
    let equation = i.string("equation")?;
    let rank = match numbered(equation).as_deref() {
        Some("012,213->013") => 3,
        Some("0123,0324->0124") => 4,
        _ => {
            let forms = "`nchw,nwhr->nchr` or `chw,whr->chr`";
            return Err(TypeError(format!(
                "`equation` is `{equation}`: it must be of the form {forms}"
            )));
        }
    };
    if x.dtype != y.dtype || x.rank() != rank || y.rank() != rank {
        return Err(TypeError(format!(
            "`values` are {x} and {y}: one element type and rank {rank} are needed"
        )));
    }
    let [c, h, w] = [rank - 3, rank - 2, rank - 1];
    if !x.shape[w].compatible(y.shape[c]) {
        return Err(TypeError(format!(
            "`values` are {x} and {y}: the inner dimensions differ"
        )));
    }
    let mut shape = x.shape.clone();
    for axis in (0..rank - 3).chain([h]) {
        shape[axis] = i.broadcast(&x.shape[axis..=axis], &y.shape[axis..=axis])?[0];
    }
    shape[w] = y.shape[w];
    one(x.dtype, shape)
}

/// An equation with its letters replaced by numbers in the order of their first use; `None` beyond
/// ten letters.
fn numbered(equation: &str) -> Option<String> {
    let mut letters = Vec::new();
    let mut out = String::new();
    for c in equation.chars() {
        if matches!(c, ',' | '-' | '>') {
            out.push(c);
            continue;
        }
        let at = letters
            .iter()
            .position(|l| *l == c)
            .unwrap_or(letters.len());
        if at == letters.len() {
            letters.push(c);
        }
        out.push(char::from_digit(u32::try_from(at).ok()?, 10)?);
    }
    Some(out)
}

fn attention(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (q, k, v) = (i.ty("query")?, i.ty("key")?, i.ty("value")?);
    let n = q.rank();
    let misfit = || {
        TypeError(format!(
            "`query` is {q}, `key` is {k}, `value` is {v}: [.., L, E], [.., S, E], [.., S, EV]"
        ))
    };
    let agree = |a: &[Dim], b: &[Dim]| a.iter().zip(b).all(|(a, b)| a.compatible(*b));
    if n < 3 || k.rank() != n || v.rank() != n || q.dtype != k.dtype || q.dtype != v.dtype {
        return Err(misfit());
    }
    if !agree(&q.shape[..n - 2], &k.shape[..n - 2])
        || !agree(&k.shape[..n - 1], &v.shape[..n - 1])
        || !q.shape[n - 1].compatible(k.shape[n - 1])
    {
        return Err(misfit());
    }
    if i.has("attn_mask") {
        let mask = i.ty("attn_mask")?;
        if mask.dtype != DType::Bool && mask.dtype != q.dtype {
            return Err(TypeError(format!(
                "`attn_mask` is {mask}, `query` is {q}: bool or the same element type"
            )));
        }
        let mut scores = q.shape.clone();
        scores[n - 1] = k.shape[n - 2];
        // The mask is repeated, never the scores, and not along the keys.
        if !broadcast(&mask.shape, &scores).is_ok_and(|s| s.len() == n && agree(&s, &scores))
            || !mask
                .shape
                .last()
                .is_some_and(|s| s.compatible(k.shape[n - 2]))
        {
            return Err(TypeError(format!(
                "`attn_mask` is {mask}: it does not broadcast to {}",
                super::show(&scores)
            )));
        }
    }
    let mut shape = q.shape.clone();
    shape[n - 1] = v.shape[n - 1];
    one(q.dtype, shape)
}

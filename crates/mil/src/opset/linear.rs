//! Matrix products and attention.
//!
//! Source: coremltools `ops/defs/iOS15/linear.py`, `iOS17/linear.py`, `iOS18/transformers.py`.

use super::OpKind::{Attention, Product};
use super::*;
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
    // bias may have another element type than x and y.
    OpDef::new("linear", Product, Opset::CoreMl5, LINEAR, linear_like_x),
    OpDef::new("linear", Product, Opset::CoreMl7, LINEAR, linear),
    // result = x @ y over the last two axes; the other axes broadcast. A vector x times a matrix y
    // is a vector. From iOS 17 on, a constant operand may have another element type than the other
    // operand, which determines the type of the result.
    OpDef::new("matmul", Product, Opset::CoreMl5, MATMUL, matmul_like_x),
    OpDef::new("matmul", Product, Opset::CoreMl7, MATMUL, matmul),
    // `nchw,nwhr->nchr` or `chw,whr->chr`, with any letters: a matrix product of x and y for each
    // h. n and h broadcast.
    OpDef::new(
        "einsum",
        Product,
        Opset::CoreMl5,
        &[VALUES, constant("equation", STRING)],
        einsum,
    ),
    // y = softmax(query @ key^T / sqrt(E) + attn_mask) @ value; query [.., L, E], key [.., S, E],
    // value [.., S, EV].
    OpDef::new(
        "scaled_dot_product_attention",
        Attention,
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

fn linear_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "weight", "bias"])?;
    linear(i)
}

fn linear(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    if i.has("bias") {
        i.require_same_dtype(&["weight", "bias"])?;
    }
    let (x, w) = (i.ty("x")?, i.ty("weight")?);
    let mut shape = x.shape.clone();
    let (Some(last), [out, input]) = (shape.last_mut(), w.shape.as_slice()) else {
        return Err(TypeError::new(format_args!(
            "expected `x` [.., in] and `weight` [out, in], found {x} and {w}"
        )));
    };
    if !last.compatible(*input) {
        return Err(TypeError::new(format_args!(
            "`weight`: expected the last dimension of `x` {x} as its last, found {w}"
        )));
    }
    if i.has("bias") && !matches!(i.ty("bias")?.shape.as_slice(), [n] if n.compatible(*out)) {
        return Err(TypeError::new(format_args!(
            "`bias`: expected [out] for `weight` {w}, found {}",
            i.ty("bias")?
        )));
    }
    *last = *out;
    tensor_result(x.dtype, shape)
}

fn matmul_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "y"])?;
    let shape = product(i)?;
    tensor_result(i.ty("x")?.dtype, shape)
}

fn matmul(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, y) = (i.ty("x")?.dtype, i.ty("y")?.dtype);
    let is_constant = |name| matches!(i.arg(name), Some(ArgType::One(_, Known::Literal(_))));
    let dtype = match (is_constant("x"), is_constant("y")) {
        _ if x == y => x,
        (false, true) => x,
        (true, false) => y,
        _ => {
            return Err(TypeError::new(format_args!(
                "expected equal element types or one constant operand, found `x` {x} and `y` {y}"
            )));
        }
    };
    tensor_result(dtype, product(i)?)
}

/// The shape of a matrix product.
fn product(i: &mut Infer<'_>) -> Result<Vec<Dim>, TypeError> {
    let (x, y) = (i.ty("x")?, i.ty("y")?);
    let (mut a, mut b) = (x.shape.clone(), y.shape.clone());
    let is_vector = a.len() == 1 && b.len() == 2 && !i.bool_or("transpose_x", false)?;
    if is_vector {
        a.insert(0, Dim::Known(1));
    }
    if a.len() < 2 || b.len() < 2 {
        return Err(TypeError::new(format_args!(
            "expected operands of rank 2 or more, found `x` {x} and `y` {y}"
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
        return Err(TypeError::new(format_args!(
            "expected equal inner dimensions, found `x` {x} and `y` {y}"
        )));
    }
    let mut shape = i.broadcast(&a[..a.len() - 2], &b[..b.len() - 2])?;
    shape.extend((!is_vector).then_some(m));
    shape.push(b[b.len() - 1]);
    Ok(shape)
}

fn einsum(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let values = i.tuple("values")?;
    let [x, y] = values.as_slice() else {
        return Err(TypeError::new(format_args!(
            "`values`: expected two values, found {}",
            values.len()
        )));
    };
    let equation = i.string("equation")?;
    let rank = match numbered(equation).as_deref() {
        Some("012,213->013") => 3,
        Some("0123,0324->0124") => 4,
        _ => {
            return Err(TypeError::new(format_args!(
                "`equation`: expected the form `nchw,nwhr->nchr` or `chw,whr->chr`, found \
                 `{equation}`"
            )));
        }
    };
    if x.dtype != y.dtype || x.rank() != rank || y.rank() != rank {
        return Err(TypeError::new(format_args!(
            "`values`: expected one element type and rank {rank}, found {x} and {y}"
        )));
    }
    let [c, h, w] = [rank - 3, rank - 2, rank - 1];
    if !x.shape[w].compatible(y.shape[c]) {
        return Err(TypeError::new(format_args!(
            "`values`: expected equal inner dimensions, found {x} and {y}"
        )));
    }
    let mut shape = x.shape.clone();
    for axis in (0..rank - 3).chain([h]) {
        shape[axis] = i.broadcast(&x.shape[axis..=axis], &y.shape[axis..=axis])?[0];
    }
    shape[w] = y.shape[w];
    tensor_result(x.dtype, shape)
}

/// The equation with its letters replaced by digits in the order of first use; `None` if it has
/// more than ten letters.
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
        TypeError::new(format_args!(
            "expected `query` [.., L, E], `key` [.., S, E] and `value` [.., S, EV] of one type, \
             found {q}, {k} and {v}"
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
            return Err(TypeError::new(format_args!(
                "`attn_mask`: expected bool or the element type of `query` {q}, found {mask}"
            )));
        }
        let mut scores = q.shape.clone();
        scores[n - 1] = k.shape[n - 2];
        // The mask broadcasts to the scores, never the scores to the mask, and its last axis must
        // match the keys.
        if !broadcast(&mask.shape, &scores).is_ok_and(|s| s.len() == n && agree(&s, &scores))
            || !mask
                .shape
                .last()
                .is_some_and(|s| s.compatible(k.shape[n - 2]))
        {
            return Err(TypeError::new(format_args!(
                "`attn_mask`: {mask} does not broadcast to {}",
                show_shape(&scores)
            )));
        }
    }
    let mut shape = q.shape.clone();
    shape[n - 1] = v.shape[n - 1];
    tensor_result(q.dtype, shape)
}

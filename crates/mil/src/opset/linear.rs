//! Products of matrices and attention.
//!
//! Source: coremltools `ops/defs/iOS15/linear.py`, `iOS18/transformers.py`.

use super::{BOOL, Dim, FLOAT, Infer, NUMBER, OpDef, Opset, Type, TypeError, broadcast, constant, one, tensor};
use crate::types::DType;

const MASK: &[DType] = &[DType::Bool, DType::Fp16, DType::Fp32];

pub(super) static OPS: &[OpDef] = &[
    // y = x @ weight^T + bias; x [.., in], weight [out, in], bias [out].
    OpDef::new(
        "linear",
        Opset::CoreMl5,
        &[tensor("x", NUMBER), constant("weight", NUMBER), constant("bias", NUMBER).optional()],
        linear,
    ),
    // y = x @ y over the last two axes, the others broadcast; a vector x times a matrix y is a vector.
    OpDef::new(
        "matmul",
        Opset::CoreMl5,
        &[
            tensor("x", NUMBER),
            tensor("y", NUMBER),
            constant("transpose_x", BOOL).optional(),
            constant("transpose_y", BOOL).optional(),
        ],
        matmul,
    ),
    // y = softmax(query @ key^T / sqrt(E) + attn_mask) @ value; query [.., L, E], key [.., S, E], value [.., S, EV].
    OpDef::new(
        "scaled_dot_product_attention",
        Opset::CoreMl8,
        &[tensor("query", FLOAT), tensor("key", FLOAT), tensor("value", FLOAT), tensor("attn_mask", MASK).optional()],
        attention,
    ),
];

fn linear(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, w) = (i.ty("x")?, i.ty("weight")?);
    let mut shape = x.shape.clone();
    let (Some(last), [out, input]) = (shape.last_mut(), w.shape.as_slice()) else {
        return Err(TypeError(format!("`x` is {x}, `weight` is {w}: [.., in] and [out, in] are needed")));
    };
    if !last.compatible(*input) {
        return Err(TypeError(format!("`x` is {x}, `weight` is {w}: the last dimensions differ")));
    }
    if i.has("bias") && !matches!(i.ty("bias")?.shape.as_slice(), [n] if n.compatible(*out)) {
        return Err(TypeError(format!("`bias` is {}, `weight` is {w}: [out] is needed", i.ty("bias")?)));
    }
    *last = *out;
    one(x.dtype, shape)
}

fn matmul(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, y) = (i.ty("x")?, i.ty("y")?);
    let (mut a, mut b) = (x.shape.clone(), y.shape.clone());
    let is_vector = a.len() == 1 && b.len() == 2 && !i.bool_or("transpose_x", false)?;
    if is_vector {
        a.insert(0, Dim::Known(1));
    }
    if a.len() < 2 || b.len() < 2 {
        return Err(TypeError(format!("`x` is {x}, `y` is {y}: at least two dimensions are needed")));
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
        return Err(TypeError(format!("`x` is {x}, `y` is {y}: the inner dimensions differ")));
    }
    let mut shape = broadcast(&a[..a.len() - 2], &b[..b.len() - 2])?;
    shape.extend((!is_vector).then_some(m));
    shape.push(b[b.len() - 1]);
    one(x.dtype, shape)
}

fn attention(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (q, k, v) = (i.ty("query")?, i.ty("key")?, i.ty("value")?);
    let n = q.rank();
    let misfit =
        || TypeError(format!("`query` is {q}, `key` is {k}, `value` is {v}: [.., L, E], [.., S, E], [.., S, EV]"));
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
            return Err(TypeError(format!("`attn_mask` is {mask}, `query` is {q}: bool or the same element type")));
        }
        let mut scores = q.shape.clone();
        scores[n - 1] = k.shape[n - 2];
        // The mask is repeated, never the scores, and not along the keys.
        if !broadcast(&mask.shape, &scores).is_ok_and(|s| s.len() == n && agree(&s, &scores))
            || !mask.shape.last().is_some_and(|s| s.compatible(k.shape[n - 2]))
        {
            return Err(TypeError(format!("`attn_mask` is {mask}: it does not broadcast to {}", super::show(&scores))));
        }
    }
    let mut shape = q.shape.clone();
    shape[n - 1] = v.shape[n - 1];
    one(q.dtype, shape)
}

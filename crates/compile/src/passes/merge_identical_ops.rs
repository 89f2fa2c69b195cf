//! Computes once what is computed twice: the same op over the same arguments.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [4]> x) {
//!     fp32 two = const()[val = fp32(0x1p+1)];
//!     tensor<fp32, [4]> a = mul(x = x, y = two);
//!     fp32 two_again = const()[val = fp32(0x1p+1)];
//!     tensor<fp32, [4]> b = mul(x = x, y = two_again);
//!     tensor<fp32, [4]> y = add(x = a, y = b);
//! } -> (y);
//! ```
//!
//! becomes
//!
//! ```text
//! func f<ios18>(tensor<fp32, [4]> x) {
//!     fp32 two = const()[val = fp32(0x1p+1)];
//!     tensor<fp32, [4]> a = mul(x = x, y = two);
//!     tensor<fp32, [4]> y = add(x = a, y = a);
//! } -> (y);
//! ```
//!
//! Ops that read or write a state are never merged, since what a state holds changes between them.
//! Constants of more than [`MAX_COMPARED_BYTES`] are one only where they are the same stored bytes.

use std::collections::HashMap;
use std::sync::Arc;

use thane_mil::data::Data;
use thane_mil::graph::touches_state;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::TensorType;

use crate::graph::Aliases;
use crate::pass::{Pass, Site};

/// The pass.
pub const PASS: Pass = Pass {
    name: "merge_identical_ops",
    run,
};

/// Shapes, axes, scalars and short tables are less; a weight is more, and no page of a checkpoint
/// is read for it.
pub const MAX_COMPARED_BYTES: usize = 256;

/// What makes two ops the same.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    op: &'static str,
    args: Vec<Bound<'a>>,
}

#[derive(PartialEq, Eq, Hash)]
enum Bound<'a> {
    Nothing,
    Value(ValueId),
    Values(Vec<ValueId>),
    Text(&'a str),
    /// Compared by content.
    Small(&'a TensorType, Vec<u8>),
    /// Compared by where the bytes are.
    Stored(&'a TensorType, usize),
    /// Compared by what derives the bytes.
    Derived(&'a TensorType, usize),
}

fn run(f: &Function) -> Vec<Site> {
    let mut aliases = Aliases::new(f);
    let mut seen: HashMap<Key<'_>, &Op> = HashMap::with_capacity(f.body().ops.len());
    let mut sites = Vec::new();
    for &id in &f.body().ops {
        let op = f.op(id);
        let Some(key) = key(f, id, &aliases) else {
            continue;
        };
        match seen.get(&key) {
            None => {
                seen.insert(key, op);
            }
            Some(first) => sites.push(Site {
                op: id,
                outcome: aliases.replace(id, op, &first.results),
            }),
        }
    }
    sites
}

fn key<'a>(f: &'a Function, id: OpId, aliases: &Aliases<'_>) -> Option<Key<'a>> {
    let op = f.op(id);
    // Two draws of random numbers are two.
    let is_pure =
        !touches_state(f, id) && op.blocks.is_empty() && !op.def.name.starts_with("random_");
    if !is_pure || op.results.is_empty() {
        return None;
    }
    let args = op.args.iter().map(|arg| match arg {
        None => Some(Bound::Nothing),
        Some(Arg::Value(v)) => Some(Bound::Value(aliases.resolve(*v))),
        Some(Arg::Values(vs)) => Some(Bound::Values(
            vs.iter().map(|v| aliases.resolve(*v)).collect(),
        )),
        Some(Arg::Literal(literal)) => bound(literal),
    });
    Some(Key {
        op: op.def.name,
        args: args.collect::<Option<_>>()?,
    })
}

fn bound(literal: &Literal) -> Option<Bound<'_>> {
    match literal {
        Literal::String(s) => Some(Bound::Text(s)),
        Literal::Tensor(ty, data @ Data::Bytes(bytes)) => {
            Some(if data.byte_len() <= MAX_COMPARED_BYTES {
                Bound::Small(ty, bytes.as_slice().to_vec())
            } else {
                // The type has the length.
                Bound::Stored(ty, bytes.as_slice().as_ptr().addr())
            })
        }
        Literal::Tensor(ty, Data::Source(source)) => {
            Some(Bound::Derived(ty, Arc::as_ptr(source).addr()))
        }
        // Lists, tuples and dictionaries are attributes; no op that runs takes one.
        Literal::List(..) | Literal::Tuple(_) | Literal::Dict(..) => None,
    }
}

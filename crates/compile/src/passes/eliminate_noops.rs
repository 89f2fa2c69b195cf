//! Removes ops that give back what they are given, bit for bit.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [2, 3]> x) {
//!     tensor<fp32, [2, 3]> a = identity(x = x);
//!     tensor<int32, [2]> perm = const()[val = tensor<int32, [2]>([0, 1])];
//!     tensor<fp32, [2, 3]> b = transpose(x = a, perm = perm);
//!     tensor<int32, [2]> shape = const()[val = tensor<int32, [2]>([2, 3])];
//!     tensor<fp32, [2, 3]> c = reshape(x = b, shape = shape);
//!     fp32 one = const()[val = fp32(0x1p+0)];
//!     tensor<fp32, [2, 3]> d = mul(x = one, y = c);
//!     tensor<fp32, [2, 3]> y = exp(x = d);
//! } -> (y);
//! ```
//!
//! becomes, with the constants left to `eliminate_dead_code`,
//!
//! ```text
//! func f<ios18>(tensor<fp32, [2, 3]> x) {
//!     tensor<int32, [2]> perm = const()[val = tensor<int32, [2]>([0, 1])];
//!     tensor<int32, [2]> shape = const()[val = tensor<int32, [2]>([2, 3])];
//!     fp32 one = const()[val = fp32(0x1p+0)];
//!     tensor<fp32, [2, 3]> y = exp(x = x);
//! } -> (y);
//! ```
//!
//! Also `cast` to the type that it has, `add` of -0.0 (or integer 0), `sub` of +0.0, and `real_div`
//! by 1.0. An `identity` that is an output stays where other ops read what it copies, because
//! programs that are called without Core ML need the copy. Adding +0.0 is not a no-op, because +0.0
//! turns -0.0 into +0.0; neither is subtracting -0.0. A shape with a symbol is left alone, because
//! the pass cannot prove it equal.

use thane_mil::graph::{Graph, ints, wrap};
use thane_mil::pattern;
use thane_mil::pattern::Match;
use thane_mil::pattern::Pattern::{self, Number, OneOf};
use thane_mil::program::{Function, ValueId};

use crate::graph::Aliases;
use crate::pass::{Outcome, Pass, Site};

/// The pass.
pub const PASS: Pass = Pass {
    name: "eliminate_noops",
    run,
};

const PATTERN: Pattern = OneOf(&[
    pattern!([identity, cast, reshape, transpose](x)),
    pattern!(add{x, (ZERO)}),
    pattern!(sub(x, (ZERO))),
    pattern!(mul{x, (ONE)}),
    pattern!(real_div(x, (ONE))),
]);
const ZERO: Pattern = Number("zero", |n| n == 0.0);
const ONE: Pattern = Number("one", |n| n == 1.0);

/// ANE153 of the audit.
const COPY: &str = "it gives a copy of what other ops read, which is needed without Core ML";
const SIGNED_ZERO: &str = "a zero of this sign changes the sign of a zero that it is added to";

fn run(f: &Function) -> Vec<Site> {
    let graph = Graph::new(f);
    let mut aliases = Aliases::new(f);
    let mut sites = Vec::new();
    for &id in &f.body().ops {
        let Ok(Some(found)) = PATTERN.find(&graph, id) else {
            continue;
        };
        let Some(x) = given_back(&graph, &found) else {
            continue;
        };
        let op = f.op(id);
        let outcome = if has_other_sign(&graph, &found, x) {
            Outcome::Refused(SIGNED_ZERO)
        } else if op.def.name == "identity" && aliases.is_shared_output(op, x) {
            Outcome::Refused(COPY)
        } else {
            aliases.replace(id, op, &[x])
        };
        sites.push(Site { op: id, outcome });
    }
    sites
}

/// What an op gives back, up to the sign of zeros.
fn given_back(graph: &Graph<'_>, found: &Match<'_>) -> Option<ValueId> {
    let (op, x) = (graph.op(found.root), found.value("x")?);
    let tensor = |value: ValueId| graph.f.value(value).ty.tensor();
    let (before, after) = (tensor(x), tensor(*op.results.first()?));
    let gives_back = match op.def.name {
        "identity" => true,
        "cast" => before?.dtype == after?.dtype,
        "reshape" => before?.known_shape()? == after?.known_shape()?,
        "transpose" => {
            let perm = ints(graph, found.root, "perm")?.into_iter();
            let rank = before?.rank();
            perm.map(|p| wrap(p, rank)).eq((0..rank).map(Some))
        }
        _ => before?.rank() == after?.rank(),
    };
    gives_back.then_some(x)
}

/// Whether an op adds a zero to numbers of floating point that changes the sign of one of them.
fn has_other_sign(graph: &Graph<'_>, found: &Match<'_>, x: ValueId) -> bool {
    let is_float = graph.dtype(x).is_some_and(|dtype| dtype.is_float());
    let adds = graph.op(found.root).def.name == "add";
    let zero = found.number("zero").filter(|_| is_float);
    zero.is_some_and(|zero| zero.is_sign_negative() != adds)
}

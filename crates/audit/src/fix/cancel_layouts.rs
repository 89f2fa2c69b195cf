//! Removes layout changes that undo each other, with elementwise ops of one operand between them.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3]> x) {
//!     tensor<fp16, [3, 2]> a = transpose(x = x, perm = tensor<int32, [2]>([1, 0]));
//!     tensor<fp16, [3, 2]> b = exp(x = a);
//!     tensor<fp16, [2, 3]> y = transpose(x = b, perm = tensor<int32, [2]>([1, 0]));
//! } -> (y);
//! ```
//!
//! becomes `exp(x)`. Reshapes that end in the shape where they began, and casts of fp16 to fp32 and
//! back, go in the same way, bit for bit; two transposes that do not cancel become one.

use thane_compile::graph::count_uses;
use thane_compile::{Outcome, Pass, Site};
use thane_mil::edit::{New, Patch};
use thane_mil::opset::OpKind;
use thane_mil::program::{Definition, Function, Op, OpId, Origin, ValueId};
use thane_mil::types::{DType, TensorType};

/// The pass.
pub const PASS: Pass = Pass {
    name: "cancel_layouts",
    run,
};

/// Ops between two rearrangements.
const FURTHEST: usize = 16;

fn run(f: &Function) -> Vec<Site> {
    let n_uses = count_uses(f);
    let mut is_touched = vec![false; f.n_values()];
    let mut sites = Vec::new();
    for &id in &f.body().ops {
        let Some(found) = find(f, id, &n_uses) else {
            continue;
        };
        // Sites of one answer must not share ops: what is left is found in the next round.
        if found.values.iter().any(|v| is_touched[v.index()]) {
            continue;
        }
        found
            .values
            .iter()
            .for_each(|v| is_touched[v.index()] = true);
        sites.push(Site {
            op: id,
            outcome: found.outcome,
        });
    }
    sites
}

struct Found {
    outcome: Outcome,
    /// The results of the ops concerned, and what they begin from.
    values: Vec<ValueId>,
}

fn find(f: &Function, id: OpId, n_uses: &[u32]) -> Option<Found> {
    let last = f.op(id);
    if !matches!(last.def.name, "transpose" | "reshape" | "cast") {
        return None;
    }
    let mut between = Vec::new();
    let mut value = last.value_arg("x")?;
    let first = loop {
        let Definition::Result(op, _) = f.value(value).definition else {
            return None;
        };
        let made = f.op(op);
        if made.def.name == last.def.name {
            break made;
        }
        let passes =
            last.def.name != "cast" && made.def.kind == OpKind::Unary && made.results.len() == 1;
        if !passes || between.len() == FURTHEST || n_uses[value.index()] != 1 {
            return None;
        }
        between.push(op);
        value = made.value_arg("x")?;
    };
    let source = first.value_arg("x")?;
    let result = *last.results.first()?;
    if f.body().outputs.contains(&result) && between.is_empty() && !makes_op(f, first, last) {
        return None;
    }
    let mut values: Vec<ValueId> = between.iter().map(|op| f.op(*op).results[0]).collect();
    values.extend([source, result, first.results[0]]);
    let writer = Writer {
        f,
        id,
        source,
        result,
        between,
    };
    let outcome = if cancels(f, first, last)? {
        writer.canceled()?
    } else {
        writer.merged(first, last)?
    };
    Some(Found { outcome, values })
}

/// Whether what replaces two rearrangements is an op, so that it can take an output's name.
fn makes_op(f: &Function, first: &Op, last: &Op) -> bool {
    cancels(f, first, last) == Some(false)
}

fn ty(f: &Function, value: ValueId) -> Option<&TensorType> {
    f.value(value).ty.tensor()
}

/// Whether the second undoes the first.
fn cancels(f: &Function, first: &Op, last: &Op) -> Option<bool> {
    let (source, middle, result) = (
        ty(f, first.value_arg("x")?)?,
        ty(f, *first.results.first()?)?,
        ty(f, *last.results.first()?)?,
    );
    Some(match last.def.name {
        "transpose" => composed(f, first, last)?.into_iter().eq(0..source.rank()),
        "reshape" => source.known_shape()? == result.known_shape()?,
        // Widening is exact; the other way digits are lost.
        _ => {
            source.dtype == result.dtype
                && source.dtype == DType::Fp16
                && middle.dtype == DType::Fp32
        }
    })
}

/// The order of axes that two transposes come to.
fn composed(f: &Function, first: &Op, last: &Op) -> Option<Vec<usize>> {
    let perm = |op: &Op| -> Option<Vec<usize>> {
        let perm = f.literal_arg(op, "perm")?.to_ints()?;
        let rank = perm.len() as i64;
        perm.into_iter()
            .map(|p| usize::try_from(if p < 0 { p + rank } else { p }).ok())
            .collect()
    };
    let (a, b) = (perm(first)?, perm(last)?);
    b.into_iter().map(|axis| a.get(axis).copied()).collect()
}

struct Writer<'a> {
    f: &'a Function,
    id: OpId,
    source: ValueId,
    result: ValueId,
    /// From the last to the first.
    between: Vec<OpId>,
}

impl Writer<'_> {
    fn origin(&self, op: OpId) -> Origin {
        Origin {
            pass: Some(PASS.name),
            ..self.f.op(op).origin.clone()
        }
    }

    /// The ops between over what the first rearrangement was given.
    fn canceled(self) -> Option<Outcome> {
        let mut patch = Patch::new();
        let mut value = New::Value(self.source);
        for op in self.between.iter().rev() {
            let made = self.f.op(*op);
            let args = made
                .def
                .params
                .iter()
                .zip(&made.args)
                .filter_map(|(param, arg)| {
                    let arg = super::rewrite::same(arg.as_ref()?);
                    Some(if param.name == "x" {
                        super::rewrite::one("x", value)
                    } else {
                        (param.name, arg)
                    })
                });
            let args = args.collect();
            let name = format!("{}_{}", self.f.value(self.result).name, made.def.name);
            value = patch.insert(self.id, made.def, args, name, self.origin(*op));
        }
        patch.replace(self.result, value);
        patch.remove(self.id);
        Some(Outcome::Applied(patch))
    }

    /// One rearrangement for two in a row.
    fn merged(self, first: &Op, last: &Op) -> Option<Outcome> {
        let alone = self.between.is_empty() && first.results.len() == 1 && last.def.name != "cast";
        if !alone {
            return None;
        }
        let mut patch = Patch::new();
        let args = match last.def.name {
            "reshape" => {
                let shape = super::rewrite::same_arg(last, "shape")?;
                // 0 stands for the length that the operand has there, which is another now.
                let plain = self
                    .f
                    .literal_arg(last, "shape")?
                    .to_ints()?
                    .iter()
                    .all(|n| *n > 0);
                plain.then(|| {
                    vec![
                        super::rewrite::one("x", New::Value(self.source)),
                        ("shape", shape),
                    ]
                })?
            }
            _ => {
                let perm: Vec<i32> = composed(self.f, first, last)?
                    .into_iter()
                    .map(|p| p as i32)
                    .collect();
                let literal =
                    thane_mil::program::Arg::Literal(thane_mil::literal::Literal::i32s(&perm));
                let def = thane_mil::opset::find_in("const", self.f.opset)?;
                let args = vec![("val", thane_mil::edit::NewArg::Same(literal))];
                let perm = patch.insert(self.id, def, args, "perm", self.origin(self.id));
                vec![
                    super::rewrite::one("x", New::Value(self.source)),
                    super::rewrite::one("perm", perm),
                ]
            }
        };
        let name = format!("{}_{}", self.f.value(self.result).name, last.def.name);
        let made = patch.insert(self.id, last.def, args, name, self.origin(self.id));
        patch.replace(self.result, made);
        patch.remove(self.id);
        Some(Outcome::Applied(patch))
    }
}

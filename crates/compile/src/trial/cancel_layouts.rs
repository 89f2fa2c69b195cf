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

use thane_mil::edit::NewArg;
use thane_mil::graph::{Graph, ints, wrap};
use thane_mil::literal::Literal;
use thane_mil::opset::{OpKind, find_in};
use thane_mil::pattern::Match;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, TensorType};

use crate::pass::{Outcome, Pass, Site};
use crate::rewrite::{Answer, Rewrite};

/// The pass.
pub const PASS: Pass = Pass {
    name: "cancel_layouts",
    run,
};

/// Ops between two rearrangements.
const FURTHEST: usize = 16;

fn run(f: &Function) -> Vec<Site> {
    let graph = Graph::new(f);
    let mut is_touched = vec![false; f.n_values()];
    let mut sites = Vec::new();
    for &id in &f.body().ops {
        let Some(found) = Rearranged::of(&graph, id) else {
            continue;
        };
        let Some(Ok(patch)) = found.write() else {
            continue;
        };
        // Sites of one answer must not share ops: what is left is found in the next round.
        let values: Vec<usize> = found.values().map(ValueId::index).collect();
        if values.iter().any(|v| is_touched[*v]) {
            continue;
        }
        values.into_iter().for_each(|v| is_touched[v] = true);
        let outcome = Outcome::Applied(patch);
        sites.push(Site { op: id, outcome });
    }
    sites
}

/// Two rearrangements of one kind.
struct Rearranged<'a> {
    graph: &'a Graph<'a>,
    id: OpId,
    first: &'a Op,
    last: &'a Op,
    /// What is rearranged first, and what comes out in the end.
    source: ValueId,
    result: ValueId,
    /// From the last to the first.
    between: Vec<OpId>,
}

impl<'a> Rearranged<'a> {
    fn of(graph: &'a Graph<'a>, id: OpId) -> Option<Self> {
        let last = graph.op(id);
        if !matches!(last.def.name, "transpose" | "reshape" | "cast") {
            return None;
        }
        let mut between = Vec::new();
        let mut value = last.value_arg("x")?;
        let first = loop {
            let op = graph.maker(value)?;
            let made = graph.op(op);
            if made.def.name == last.def.name {
                break made;
            }
            let passes = last.def.name != "cast"
                && made.def.kind == OpKind::Unary
                && made.results.len() == 1;
            if !passes || between.len() == FURTHEST || !graph.is_used_once(value) {
                return None;
            }
            between.push(op);
            value = made.value_arg("x")?;
        };
        Some(Self {
            graph,
            id,
            first,
            last,
            source: first.value_arg("x")?,
            result: *last.results.first()?,
            between,
        })
    }

    /// The results of the ops concerned, and what they begin from.
    fn values(&self) -> impl Iterator<Item = ValueId> {
        let between = self.between.iter().map(|op| self.graph.op(*op).results[0]);
        between.chain([self.source, self.result, self.first.results[0]])
    }

    fn ty(&self, value: ValueId) -> Option<&TensorType> {
        self.graph.f.value(value).ty.tensor()
    }

    /// Whether the second undoes the first.
    fn cancels(&self) -> Option<bool> {
        let (source, middle, result) = (
            self.ty(self.source)?,
            self.ty(*self.first.results.first()?)?,
            self.ty(self.result)?,
        );
        Some(match self.last.def.name {
            "transpose" => self.composed()?.into_iter().eq(0..source.rank()),
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
    fn composed(&self) -> Option<Vec<usize>> {
        let perm = |op: &Op| -> Option<Vec<usize>> {
            let perm = self.graph.f.literal_arg(op, "perm")?.to_ints()?;
            let rank = perm.len();
            perm.into_iter().map(|p| wrap(p, rank)).collect()
        };
        let (a, b) = (perm(self.first)?, perm(self.last)?);
        b.into_iter().map(|axis| a.get(axis).copied()).collect()
    }

    fn write(&self) -> Option<Answer> {
        let cancels = self.cancels();
        // What is no op cannot take an output's name.
        let is_output = self.graph.is_output(self.result) && self.between.is_empty();
        if is_output && cancels != Some(false) {
            return None;
        }
        let new = Rewrite::new(self.graph, Match::of(self.graph.f, self.id), PASS.name);
        if cancels? {
            // The ops between over what the first rearrangement was given.
            let mut value = new.of(self.source);
            for op in self.between.iter().rev() {
                new.come_from(*op);
                value = new.again(self.graph.op(*op), &[("x", value)]);
            }
            return Some(new.instead(value));
        }
        let alone = self.between.is_empty() && self.first.results.len() == 1;
        let mut others = vec![("x", new.of(self.source))];
        match self.last.def.name {
            _ if !alone => return None,
            // 0 stands for the length that the operand has there, which is another now.
            "reshape" => {
                let shape = ints(self.graph, self.id, "shape")?;
                shape.iter().all(|n| *n > 0).then_some(())?;
            }
            "transpose" => {
                let perm: Vec<i32> = self.composed()?.into_iter().map(|p| p as i32).collect();
                let perm = NewArg::Same(Arg::Literal(Literal::i32s(&perm)));
                let def = find_in("const", self.graph.f.opset)?;
                let args = vec![("val", perm)];
                others.push((
                    "perm",
                    new.named(def, args, DType::Int32, "perm".to_owned()),
                ));
            }
            _ => return None,
        }
        Some(new.instead(new.again(self.last, &others)))
    }
}

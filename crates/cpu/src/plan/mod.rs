//! A function as a list of steps: what is computed, in which order, and when each value is used
//! last.
//!
//! Planning folds what is constant, recognizes patterns that a kernel computes at once
//! ([`fuse`]), and finds the last use of each value, so that its buffer is reused. Sizes are
//! not part of a plan: lengths change from call to call.

pub mod fuse;
mod lower;
pub mod rewrite;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use fuse::Fusion;
use thane_kernels::Context;
use thane_mil::backend::Limits;
use thane_mil::graph::{Graph, folded};
use thane_mil::literal::Literal;
use thane_mil::loops::Loops;
use thane_mil::opset::OpDef;
use thane_mil::program::{BlockId, Definition, Function, Op, OpId, ValueId};
use thane_mil::types::{TensorType, Type};

use crate::Numerics;
use crate::declared::{Defined, check_declared};
use crate::evaluate::{evaluate_as, infer};
use crate::exec::{Branch, Kernel, Kind, Plan, Step, in_slots, operands};
use crate::list;
use crate::ops::{self, Fault, Value};
use crate::plain::{Item, Operand};
use crate::tensor::{Pool, Tensor};
use crate::weight::{Folds, Suit};

/// Why a function cannot be planned: the op and the reason.
pub type PlanError = (Option<OpId>, String);

/// A function with kernels for these fusions, and weights in the form that suits these numbers.
///
/// All functions of a program are planned so before any is [finished](Planner::plan), because the
/// form of a weight depends on all products with it.
pub fn plan<'a>(
    context: &'a Context,
    function: &'a Function,
    folds: &'a Folds,
    most_bytes: usize,
    fusions: &[Fusion],
    numerics: Numerics,
) -> Planner<'a> {
    let mut planner = Planner::new(context, function, folds, most_bytes);
    // The engine's numbers are those of each op.
    planner.codes = match numerics {
        Numerics::Ane(_) => ReadCodes::Never,
        Numerics::F32 => ReadCodes::WhereExact,
        Numerics::Fast | Numerics::Int8 => ReadCodes::Always,
    };
    planner.fuse(fusions);
    planner.count_rows();
    planner
}

/// The tensor behind a value that follows from constants alone.
pub fn constant(
    context: &Context,
    f: &Function,
    value: ValueId,
    folds: &Folds,
    most_bytes: usize,
) -> Result<Tensor, Fault> {
    let mut planner = Planner::new(context, f, folds, most_bytes);
    let tensor = planner.constant(value);
    tensor.ok_or_else(|| match planner.unfolded(value).1 {
        reason if reason.is_empty() => format!("`{}` is no tensor", f.value(value).name),
        reason => reason,
    })
}

/// Whether products read the codes of compressed weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReadCodes {
    /// Weights are decompressed when the program is loaded.
    Never,
    /// Where they give the program's values bit for bit.
    WhereExact,
    /// Wherever there are codes.
    Always,
}

/// The state of planning, which patterns look at too.
pub struct Planner<'a> {
    context: &'a Context,
    /// The function.
    pub f: &'a Function,
    graph: Graph<'a>,
    /// Whether each value follows from constants alone.
    is_constant: Vec<bool>,
    /// Constants as they were computed, or why they could not be.
    constants: HashMap<ValueId, Result<Tensor, Fault>>,
    /// Those of other functions.
    pub folds: &'a Folds,
    /// Whether products read codes as they are stored.
    pub codes: ReadCodes,
    /// What one tensor may take.
    most_bytes: usize,
    states: Vec<(ValueId, String, TensorType)>,
    fused: HashMap<OpId, Box<dyn Kernel>>,
    /// What computes the ops that do not run.
    covered: HashMap<OpId, OpId>,
    /// Results of ops that are computed with another, by that.
    joined: HashMap<OpId, Vec<ValueId>>,
}

impl<'a> Deref for Planner<'a> {
    type Target = Graph<'a>;

    fn deref(&self) -> &Graph<'a> {
        &self.graph
    }
}

impl<'a> Planner<'a> {
    fn new(context: &'a Context, f: &'a Function, folds: &'a Folds, most_bytes: usize) -> Self {
        let inputs = f.body().inputs.iter();
        let states = inputs.filter_map(|&v| match &f.value(v).ty {
            Type::State(t) => Some((v, f.value(v).name.clone(), t.clone())),
            _ => None,
        });
        Self {
            context,
            f,
            graph: Graph::new(f),
            is_constant: folded(f, is_plain),
            constants: HashMap::new(),
            folds,
            codes: ReadCodes::Never,
            most_bytes,
            states: states.collect(),
            fused: HashMap::new(),
            covered: HashMap::new(),
            joined: HashMap::new(),
        }
    }

    /// The position of a state input in [`Plan::states`].
    pub fn state(&self, value: ValueId) -> Option<usize> {
        self.states.iter().position(|(v, ..)| *v == value)
    }

    /// The type of what a state holds.
    pub fn state_type(&self, state: usize) -> &TensorType {
        &self.states[state].2
    }

    /// Whether a value follows from constants alone.
    fn is_constant(&self, value: ValueId) -> bool {
        self.is_constant[value.index()]
    }

    fn is_foldable(&self, op: &Op) -> bool {
        is_plain(op) && op.uses().all(|v| self.is_constant(v))
    }

    /// The tensor behind a value that follows from constants alone.
    pub fn constant(&mut self, value: ValueId) -> Option<Tensor> {
        // A list of what is to be folded first instead of recursion: chains of constants may be of
        // any length.
        let mut pending = vec![value];
        while let Some(&next) = pending.last() {
            if !self.is_constant(next) || self.constants.contains_key(&next) {
                pending.pop();
                continue;
            }
            let uses = self
                .f
                .definer(next)
                .map_or(Vec::new(), |op| op.uses().collect());
            let n_pending = pending.len();
            pending.extend(uses.into_iter().filter(|v| !self.constants.contains_key(v)));
            if pending.len() == n_pending {
                let (f, folds) = (self.f, self.folds);
                let folded = folds.get(f, next, || self.fold(next));
                self.constants.insert(next, folded);
            }
        }
        self.constants.get(&value)?.as_ref().ok().cloned()
    }

    /// Compute a constant whose arguments are computed.
    fn fold(&mut self, value: ValueId) -> Result<Tensor, Fault> {
        let f = self.f;
        let Definition::Result(id, index) = f.value(value).definition else {
            return Err("an input is no constant".to_owned());
        };
        let op = f.op(id);
        if op.def.is_const() {
            let literal = f.constant(value).ok_or("`val` is missing")?;
            return self
                .literal(literal)?
                .ok_or_else(|| format!("{} cannot be held here", f.value(value).ty));
        }
        let plain = self.plain(id).map_err(|(_, reason)| reason)?;
        let constant = |item| match item {
            Item::Constant(tensor) => Some(tensor),
            Item::Value(_) => None,
        };
        let args = plain.args.into_iter().map(|arg| match arg? {
            Operand::Constant(value) => Some(value),
            Operand::Values(items) => {
                let tensors = items.into_iter().filter_map(constant).collect();
                Some(Value::Tensors(tensors))
            }
            Operand::Value(_) => None,
        });
        let args: Vec<Option<Value>> = args.collect();
        let types = infer(plain.def, &args)?;
        // The error names the op that needs the constant.
        let counted = Loops::within(Limits::default()).op(plain.def, &args, &types);
        counted.map_err(|e| format!("{} `{}`: {e}", plain.def.name, f.value(value).name))?;
        let op = (self.context, plain.def, plain.eval);
        let compute = |pool: &mut Pool| evaluate_as(op, &types, args, pool);
        let results = self.folds.within(self.most_bytes, compute)?;
        let tensor = results
            .into_iter()
            .nth(index)
            .ok_or("the op has no such result")?;
        check_declared(f, value, tensor.dtype, &tensor.shape)?;
        Ok(tensor)
    }

    /// A literal as a tensor; none where it is not held as one.
    pub fn literal(&self, literal: &Literal) -> Result<Option<Tensor>, Fault> {
        self.folds
            .within(self.most_bytes, |pool| pool.literal(literal))
    }

    /// The error for a constant that something needs and that cannot be computed.
    fn unfolded(&self, value: ValueId) -> PlanError {
        let reason = self
            .constants
            .get(&value)
            .and_then(|c| c.as_ref().err().cloned())
            .unwrap_or_default();
        (self.maker(value), reason)
    }

    fn fuse(&mut self, fusions: &[Fusion]) {
        for &id in &self.f.body().ops {
            let group = fuse::find(self, id, fusions);
            let free = |found: &fuse::Found| {
                // What ends later takes in what ended before, with all that this stands for.
                let is_gone = |op: OpId| {
                    self.covered
                        .get(&op)
                        .is_some_and(|root| *root != found.root && !found.covers.contains(root))
                };
                let taken = found.covers.iter().any(|op| is_gone(*op));
                // Kernels read values that are computed: what is constant is folded, what is
                // covered is computed no more.
                let is_computed = |v: &ValueId| {
                    let by = self
                        .maker(*v)
                        .filter(|op| is_gone(*op) || found.covers.contains(op));
                    by.is_none() && !self.is_constant(*v)
                };
                !taken && found.kernel.facts().reads.iter().all(is_computed)
            };
            // All or none: attention reads where the others of its group write.
            if group.iter().all(free) {
                for found in group {
                    for op in found.covers {
                        self.fused.remove(&op);
                        self.covered.insert(op, found.root);
                    }
                    self.fused.insert(found.root, found.kernel);
                }
            }
        }
    }

    /// Whether nothing outside of `covers` and `root` uses a result of `covers`.
    pub fn is_closed(&self, root: OpId, covers: &[OpId]) -> bool {
        let is_inside = |user: &OpId| *user == root || covers.contains(user);
        let inner = covers.iter().filter(|op| **op != root);
        let mut results = inner.flat_map(|op| &self.f.op(*op).results);
        results.all(|r| !self.is_output(*r) && self.users(*r).iter().all(is_inside))
    }

    /// Notes with how many rows the function multiplies each weight.
    fn count_rows(&self) {
        // A function with states is called for one token after another, where calls may have any
        // number.
        let flexible = if self.states.is_empty() {
            usize::MAX
        } else {
            1
        };
        for kernel in self.fused.values() {
            let facts = kernel.facts();
            let n_rows = || {
                let x = self.f.value(*facts.reads.first()?).ty.tensor()?;
                let (_, rows) = x.shape.split_last()?;
                rows.iter()
                    .map(|dim| dim.known())
                    .product::<Option<usize>>()
            };
            for product in facts.products {
                let n_rows = n_rows().unwrap_or(flexible);
                self.folds.count_rows(&product.weight, n_rows);
            }
        }
    }

    /// Brings weights to the form that suits these numbers.
    fn suit_weights(&mut self, numerics: Numerics) -> Result<(), PlanError> {
        let (f, folds, context) = (self.f, self.folds, self.context);
        for &id in &f.body().ops {
            let Some(mut kernel) = self.fused.remove(&id) else {
                continue;
            };
            let mut suit = Suit {
                context,
                folds,
                f,
                numerics,
                constant: &mut |value| self.constant(value),
            };
            let suited = kernel.suit(&mut suit);
            suited.map_err(|reason| (Some(id), reason))?;
            self.fused.insert(id, kernel);
        }
        Ok(())
    }

    /// Has the products of one x computed at the first of them: it is quantized once, and threads
    /// are asked once.
    fn join_linears(&mut self) {
        let mut first_of = HashMap::new();
        for &id in &self.f.body().ops {
            let Some((x, joining)) = self.fused.get_mut(&id).and_then(|k| k.joinable()) else {
                continue;
            };
            let first = *first_of.entry(x).or_insert(id);
            if first == id {
                continue;
            }
            let joining = std::mem::take(joining);
            if let Some((_, products)) = self.fused.get_mut(&first).and_then(|k| k.joinable()) {
                products.extend(joining);
            }
            self.fused.remove(&id);
            self.covered.insert(id, first);
            let joined = self.joined.entry(first).or_default();
            joined.extend(&self.f.op(id).results);
        }
    }

    /// The steps of the function, with weights in the form that suits these numbers.
    pub fn plan(mut self, numerics: Numerics) -> Result<Plan, PlanError> {
        self.suit_weights(numerics)?;
        // The engine's numbers are counted for each op.
        if !matches!(numerics, Numerics::Ane(_)) {
            self.join_linears();
        }
        let f = self.f;
        let steps = self.steps(Function::BODY)?;
        let inputs = f.body().inputs.iter();
        let inputs = inputs.filter_map(|&v| match &f.value(v).ty {
            Type::Tensor(t) => Some((f.value(v).name.clone(), v, t.clone())),
            _ => None,
        });
        let inputs = inputs.collect();
        self.check_outputs()?;
        let mut kept = f.body().outputs.clone();
        in_slots(&steps, &mut kept);
        let mut constants = Vec::new();
        kept.retain(|v| self.is_constant(*v));
        for v in kept {
            let tensor = self.constant(v).ok_or_else(|| self.unfolded(v))?;
            constants.push((v, tensor));
        }
        let states = self.states.into_iter();
        Ok(Plan {
            function: f.clone(),
            inputs,
            states: states.map(|(_, name, ty)| (name, ty)).collect(),
            state_idx: Vec::new(),
            steps,
            constants,
        })
    }

    /// Narrow integers are held a byte each, which is not how their bytes are given.
    fn check_outputs(&self) -> Result<(), PlanError> {
        let narrow = |v: ValueId| {
            let ty = self.f.value(v).ty.tensor();
            ty.filter(|t| (1..8).contains(&t.dtype.bits()))
        };
        let mut outputs = self.f.body().outputs.iter();
        match outputs.find_map(|v| Some((*v, narrow(*v)?))) {
            Some((v, ty)) => Err((
                self.maker(v),
                format!("its result {ty} is an output: its elements are no bytes"),
            )),
            None => Ok(()),
        }
    }

    fn steps(&mut self, block: BlockId) -> Result<Vec<Step>, PlanError> {
        let f = self.f;
        let mut steps = Vec::new();
        for &id in &f.block(block).ops {
            let op = f.op(id);
            if self.covered.contains_key(&id) || self.is_foldable(op) {
                continue;
            }
            let (kind, results) = match self.fused.remove(&id) {
                Some(kernel) => {
                    let joined = self.joined.remove(&id).unwrap_or_default();
                    let results = match kernel.facts().gives {
                        true => [op.results.as_slice(), &joined].concat(),
                        false => Vec::new(),
                    };
                    (Kind::Fused(kernel), results)
                }
                None => (self.kind(id)?, op.results.clone()),
            };
            let results = results.into_iter().map(|id| Defined::new(f, id)).collect();
            steps.push(Step {
                kind,
                op: id,
                results,
                last_uses: Vec::new(),
            });
        }
        self.find_last_uses(block, &mut steps);
        Ok(steps)
    }

    /// A nested block may run many times, so it drops only what it makes itself.
    fn find_last_uses(&self, block: BlockId, steps: &mut [Step]) {
        let mut own: HashSet<ValueId> = self.f.block(block).inputs.iter().copied().collect();
        own.extend(steps.iter().flat_map(|s| s.results.iter().map(|r| r.id)));
        let mut seen: HashSet<ValueId> = self.f.block(block).outputs.iter().copied().collect();
        for step in steps.iter_mut().rev() {
            let mut used = operands(&step.kind);
            // A result that nothing uses is dropped as soon as it is made.
            let results = step.results.iter().map(|r| r.id);
            used.extend(results.filter(|r| self.users(*r).is_empty()));
            for value in used {
                let is_kept = block != Function::BODY && !own.contains(&value);
                if !is_kept && seen.insert(value) {
                    step.last_uses.push(value);
                }
            }
        }
    }

    fn branches(&mut self, op: &Op) -> Result<[Branch; 2], PlanError> {
        let mut branch = |block: BlockId| {
            let steps = self.steps(block)?;
            let block = self.f.block(block);
            Ok(Branch {
                inputs: block.inputs.clone(),
                steps,
                outputs: block.outputs.clone(),
            })
        };
        match op.blocks[..] {
            [first, second] => Ok([branch(first)?, branch(second)?]),
            _ => Err((None, format!("`{}` does not run two blocks", op.def.name))),
        }
    }
}

/// Whether an op gives the same at each call with the same arguments, and is no more than its
/// arguments.
fn is_plain(op: &Op) -> bool {
    op.def.is_const() || ops::find(op.def.name).is_some() && !ops::random::is_random(op.def)
}

/// Whether the backend runs an op.
pub fn runs(def: &OpDef) -> bool {
    /// Those that [`Planner::kind`] has beside plain functions and lists.
    const OWN: [&str; 6] = [
        "classify",
        "cond",
        "coreml_update_state",
        "read_state",
        "while_loop",
        "write_state",
    ];
    def.is_const()
        || OWN.contains(&def.name)
        || list::runs(def.name)
        || ops::find(def.name).is_some()
}

//! What a plan is made of: steps, and the [`Kernel`]s that compute several ops at once. Planning
//! makes it and running reads it.

use std::fmt::Debug;

use thane_mil::program::{Function, OpId, ValueId};
use thane_mil::types::TensorType;

use super::{Frame, Rows};
use crate::declared::Defined;
use crate::list;
use crate::ops::Fault;
use crate::ops::random::is_random;
use crate::plain::{Plain, values};
use crate::profile::Work;
use crate::tensor::Tensor;
use crate::weight::{Product, Suit};

/// Computes several ops at once; it holds what planning found of them. One file of `plan/fuse` has
/// what it matches, what it runs, what that costs, and what becomes of its weights and its rows.
pub trait Kernel: Debug + Send + Sync {
    /// What others need to know of it.
    fn facts(&self) -> Facts<'_>;

    /// Its results.
    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault>;

    /// What it computes, and reads of constants, states among them.
    fn work(&self, _: &Frame<'_>) -> Work {
        Work::default()
    }

    /// The shape of each result where the first value that is [batched](Batching) has this shape.
    fn shapes(&self, x: &[usize]) -> Result<Vec<Vec<usize>>, Fault> {
        Ok(vec![x.to_vec()])
    }

    /// [`Facts::products`], to change the form of their matrices.
    fn products_mut(&mut self) -> &mut [Product] {
        &mut []
    }

    /// Brings its weights to the form that they are read in.
    fn suit(&mut self, suit: &mut Suit<'_>) -> Result<(), Fault> {
        let mut products = self.products_mut().iter_mut();
        products.try_for_each(|product| suit.suit(&mut product.weight))
    }

    /// What it multiplies, and its products, where it may compute those of other kernels too.
    fn joinable(&mut self) -> Option<(ValueId, &mut Vec<Product>)> {
        None
    }
}

/// What others need to know of a kernel.
pub struct Facts<'a> {
    /// What the profile calls it.
    pub name: &'static str,
    /// The run-time values that it reads.
    pub reads: Vec<ValueId>,
    /// How it takes the rows of several frames.
    pub batching: Batching<'a>,
    /// Its products with constant matrices, of the first value that it reads.
    pub products: &'a [Product],
    /// Whether it writes a state.
    pub writes_states: bool,
    /// Whether it gives results: nothing holds what was written to a state.
    pub gives: bool,
    /// What it writes into something that otherwise stays as it is.
    pub in_place: Option<ValueId>,
}

impl<'a> Facts<'a> {
    /// A kernel that gives results, without weights, of one frame.
    pub fn new(name: &'static str, reads: impl IntoIterator<Item = ValueId>) -> Self {
        Self {
            name,
            reads: reads.into_iter().collect(),
            batching: Batching::Apart,
            products: &[],
            writes_states: false,
            gives: true,
            in_place: None,
        }
    }

    /// Whose rows of x are each treated by itself.
    pub fn by_row(self, x: ValueId) -> Self {
        self.batched(vec![x], None, false)
    }

    /// [`Batching::Rows`].
    pub fn batched(mut self, joined: Vec<ValueId>, like: Option<ValueId>, always: bool) -> Self {
        self.batching = Batching::Rows {
            joined,
            like,
            always,
        };
        self
    }

    /// With these products with constant matrices.
    pub fn multiplying(self, products: &'a [Product]) -> Self {
        Self { products, ..self }
    }
}

/// How the rows of several frames are computed.
pub enum Batching<'a> {
    /// Frame after frame.
    Apart,
    /// All at once.
    Rows {
        /// These lie behind each other for it. Results follow from the shape of the first.
        joined: Vec<ValueId>,
        /// This too, which every frame gives the shape of the first result.
        like: Option<ValueId>,
        /// Whether that pays where none of them is joined yet.
        always: bool,
    },
    /// All that are joined, with each frame's own caches.
    Parts(&'a dyn Parts),
}

/// What each frame computes of rows that are joined.
pub trait Parts: Sync {
    /// Queries and keys, whose rows it changes, and values.
    fn rows(&self) -> [ValueId; 3];

    /// What else it reads, which each frame has by itself.
    fn own(&self) -> Vec<ValueId>;

    /// Computes the rows of a frame.
    fn run_part(&self, frame: &mut Frame<'_>, rows: Rows<'_>) -> Result<(), Fault>;

    /// What that takes with so many elements of queries.
    fn part_work(&self, frame: &Frame<'_>, query_len: f64) -> Work;
}

/// What one step computes. Operands are values of the function.
#[derive(Debug)]
pub enum Kind {
    /// A plain op function.
    Plain(Plain),
    /// The elements as they are, in another shape.
    View(Plain),
    /// `x + y`, in place of x where nothing else needs it.
    Add(Plain, ValueId, ValueId),
    /// What a state holds.
    Read(usize),
    /// Set a state; the result is what was written.
    Write(usize, ValueId),
    /// A kernel in place of several ops.
    Fused(Box<dyn Kernel>),
    /// One branch or the other.
    Cond(ValueId, [Branch; 2]),
    /// While the first branch gives true of the variables, what the second makes of them.
    Loop(Vec<ValueId>, [Branch; 2]),
    /// The greatest of that many probabilities, and the probabilities.
    Classify(ValueId, usize),
    /// An op on a list.
    List(list::Step),
}

/// A nested block.
#[derive(Debug)]
pub struct Branch {
    /// What it is given.
    pub inputs: Vec<ValueId>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// What it gives.
    pub outputs: Vec<ValueId>,
}

/// One step.
#[derive(Debug)]
pub struct Step {
    /// What it computes.
    pub kind: Kind,
    /// The op that it stands for, to name in errors.
    pub op: OpId,
    /// The values that it defines.
    pub results: Vec<Defined>,
    /// Values that no later step uses.
    pub last_uses: Vec<ValueId>,
}

/// A function ready to run.
#[derive(Debug)]
pub struct Plan {
    /// The function, for names and types.
    pub function: Function,
    /// Tensor inputs.
    pub inputs: Vec<(String, ValueId, TensorType)>,
    /// States by the index that steps name them with.
    pub states: Vec<(String, TensorType)>,
    /// Where they are among those of all plans.
    pub state_idx: Vec<usize>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Constants that are outputs, or written to a state.
    pub constants: Vec<(ValueId, Tensor)>,
}

impl Plan {
    /// The steps up to the last that may write a state, or draws a random number, of which those
    /// of later calls depend.
    pub fn steps_for_states(&self) -> &[Step] {
        let matters = |step: &Step| match &step.kind {
            Kind::Write(..) | Kind::Cond(..) | Kind::Loop(..) => true,
            Kind::Fused(fused) => fused.facts().writes_states,
            Kind::Plain(_)
            | Kind::View(_)
            | Kind::Add(..)
            | Kind::Read(_)
            | Kind::Classify(..)
            | Kind::List(_) => is_random(self.function.op(step.op).def),
        };
        let n = self.steps.iter().rposition(matters).map_or(0, |at| at + 1);
        &self.steps[..n]
    }
}

/// The run-time values that a step reads.
pub fn operands(kind: &Kind) -> Vec<ValueId> {
    match kind {
        Kind::Plain(plain) | Kind::View(plain) | Kind::Add(plain, ..) => values(&plain.args),
        Kind::List(list) => values(&list.args),
        Kind::Read(_) => Vec::new(),
        Kind::Write(_, value) | Kind::Classify(value, _) => vec![*value],
        Kind::Fused(fused) => fused.facts().reads,
        Kind::Cond(pred, branches) => branches.iter().flat_map(captured).chain([*pred]).collect(),
        Kind::Loop(vars, branches) => branches
            .iter()
            .flat_map(captured)
            .chain(vars.iter().copied())
            .collect(),
    }
}

/// The run-time values that a branch reads, its own included.
fn captured(branch: &Branch) -> Vec<ValueId> {
    branch
        .steps
        .iter()
        .flat_map(|s| operands(&s.kind))
        .chain(branch.outputs.iter().copied())
        .collect()
}

/// The values that steps take from their slots whether they are constant or not.
pub fn in_slots(steps: &[Step], out: &mut Vec<ValueId>) {
    for step in steps {
        let branches = match &step.kind {
            Kind::Write(_, value) | Kind::Classify(value, _) => {
                out.push(*value);
                continue;
            }
            Kind::Cond(pred, branches) => {
                out.push(*pred);
                branches
            }
            Kind::Loop(vars, branches) => {
                out.extend(vars);
                branches
            }
            _ => continue,
        };
        for branch in branches {
            out.extend(&branch.outputs);
            in_slots(&branch.steps, out);
        }
    }
}

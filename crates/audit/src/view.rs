//! A function prepared for rules and estimates: types, users, constants and sizes, each computed
//! once.

use std::ops::Deref;

use thane_mil::graph::{Graph, folded};
use thane_mil::opset::OpKind;
use thane_mil::program::{Function, Op, Program, ValueId};

use crate::lengths::{Inputs, Sizes};
use crate::target::Target;

/// A function in its program, and the target that it is judged for.
pub struct View<'a> {
    /// The program.
    pub program: &'a Program,
    /// The target.
    pub target: &'a Target,
    /// The function.
    graph: Graph<'a>,
    /// By [`ValueId::index`].
    is_fixed: Vec<bool>,
    /// Sizes of the priced call, where the program leaves sizes open.
    sizes: Option<Sizes>,
}

impl<'a> View<'a> {
    /// Look through a function. Prices are of a call whose open axes are
    /// [`ASSUMED`](crate::lengths::ASSUMED) long.
    pub fn new(program: &'a Program, f: &'a Function, target: &'a Target) -> Self {
        Self::of_call(program, f, target, &Inputs::new())
    }

    /// As [`Self::new`], with the sizes of inputs in the call that is priced.
    pub fn of_call(
        program: &'a Program,
        f: &'a Function,
        target: &'a Target,
        inputs: &Inputs,
    ) -> Self {
        Self {
            program,
            target,
            graph: Graph::new(f),
            is_fixed: folded(f, is_same_in_every_call),
            sizes: Sizes::new(f, inputs),
        }
    }

    /// Whether a value is the same in every call: a constant, or what follows from constants alone.
    pub fn is_fixed(&self, value: ValueId) -> bool {
        self.is_fixed[value.index()]
    }

    /// Lengths of the axes of a tensor or state in the priced call; `None` for other values.
    pub fn priced_shape(&self, value: ValueId) -> Vec<usize> {
        match &self.sizes {
            Some(sizes) => sizes.of(value).to_vec(),
            None => self
                .f
                .value(value)
                .ty
                .tensor_or_state()
                .and_then(|t| t.known_shape())
                .unwrap_or_default(),
        }
    }

    /// Elements, if all lengths are known.
    pub fn n_elements(&self, value: ValueId) -> Option<usize> {
        self.known_shape(value)?
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))
    }
}

impl<'a> Deref for View<'a> {
    type Target = Graph<'a>;

    fn deref(&self) -> &Graph<'a> {
        &self.graph
    }
}

/// Whether an op gives the same for the same arguments.
fn is_same_in_every_call(op: &Op) -> bool {
    op.blocks.is_empty() && !matches!(op.def.kind, OpKind::Random | OpKind::State)
}

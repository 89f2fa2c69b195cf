//! A function prepared for rules and estimates: types, users, constants and sizes, each computed
//! once.

use thane_mil::opset::Accepts;
use thane_mil::program::{Definition, Function, Op, OpId, Program, ValueId};
use thane_mil::types::DType;

use crate::lengths::{Inputs, Sizes};
use crate::target::Target;

/// A function in its program, and the target that it is judged for.
pub struct View<'a> {
    /// The program.
    pub program: &'a Program,
    /// The function.
    pub f: &'a Function,
    /// The target.
    pub target: &'a Target,
    /// By [`ValueId::index`].
    is_constant: Vec<bool>,
    /// By [`ValueId::index`].
    is_fixed: Vec<bool>,
    /// By [`ValueId::index`].
    is_output: Vec<bool>,
    /// By [`ValueId::index`].
    users: Vec<Vec<OpId>>,
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
        let mut is_constant = vec![false; f.n_values()];
        let mut is_fixed = vec![false; f.n_values()];
        let mut is_output = vec![false; f.n_values()];
        f.body()
            .outputs
            .iter()
            .for_each(|v| is_output[v.index()] = true);
        let mut users = vec![Vec::new(); f.n_values()];
        for id in f.all_ops() {
            let op = f.op(id);
            op.uses().for_each(|v| users[v.index()].push(id));
            let constant = op.def.name == "const" || op.def.name.starts_with("constexpr_");
            op.results
                .iter()
                .for_each(|r| is_constant[r.index()] = constant);
            let fixed = constant
                || op.blocks.is_empty() && !is_impure(op) && op.uses().all(|v| is_fixed[v.index()]);
            op.results.iter().for_each(|r| is_fixed[r.index()] = fixed);
        }
        let sizes = Sizes::new(f, inputs);
        Self {
            program,
            f,
            target,
            is_constant,
            is_fixed,
            is_output,
            users,
            sizes,
        }
    }

    /// The op of an id.
    pub fn op(&self, id: OpId) -> &'a Op {
        self.f.op(id)
    }

    /// Whether a value is a constant, compressed ones included.
    pub fn is_constant(&self, value: ValueId) -> bool {
        self.is_constant[value.index()]
    }

    /// Whether a value is the same in every call: a constant, or what follows from constants alone.
    pub fn is_fixed(&self, value: ValueId) -> bool {
        self.is_fixed[value.index()]
    }

    /// The ops that use a value.
    pub fn users(&self, value: ValueId) -> &[OpId] {
        &self.users[value.index()]
    }

    /// Lengths of the axes of a tensor, `None` where one is not known.
    pub fn shape(&self, value: ValueId) -> Option<Vec<Option<usize>>> {
        Some(
            self.f
                .value(value)
                .ty
                .tensor()?
                .shape
                .iter()
                .map(|d| d.known())
                .collect(),
        )
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

    /// Lengths of the axes, if all are known.
    pub fn known_shape(&self, value: ValueId) -> Option<Vec<usize>> {
        self.shape(value)?.into_iter().collect()
    }

    /// Elements, if all lengths are known.
    pub fn n_elements(&self, value: ValueId) -> Option<usize> {
        self.known_shape(value)?
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))
    }

    /// Element type of a tensor.
    pub fn dtype(&self, value: ValueId) -> Option<DType> {
        self.f.value(value).ty.tensor().map(|t| t.dtype)
    }

    /// Whether a value is an input of the function.
    pub fn is_input(&self, value: ValueId) -> bool {
        matches!(self.f.value(value).definition, Definition::Input(_))
    }

    /// Whether a value is an output of the function.
    pub fn is_output(&self, value: ValueId) -> bool {
        self.is_output[value.index()]
    }
}

/// Whether an op can give other results for the same arguments.
fn is_impure(op: &Op) -> bool {
    op.def.name.starts_with("random_") || op.def.params.iter().any(|p| p.accepts == Accepts::State)
}

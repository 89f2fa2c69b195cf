//! What it means to run a program: traits that hide which machine does it.
//!
//! A [`Backend`] loads a whole program, never single ops. An [`Executable`] is what it made of it
//! and can be shared; an [`Instance`] is one running copy with its own buffers and its own state. A
//! [`Batch`] is several of them that run together.

use std::collections::HashSet;
use std::sync::Arc;

use crate::budget::OverBudget;
use crate::data::Truncated;
use crate::program::{OpId, Program};
use crate::types::DType;

/// A machine that can run programs.
pub trait Backend: Send + Sync {
    /// Name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// Prepare a program that [`valid::check`](crate::valid::check) accepts.
    fn load(&self, program: &Program) -> Result<Arc<dyn Executable>, LoadError>;
}

/// A program prepared for one machine.
pub trait Executable: Send + Sync {
    /// A running copy with fresh state.
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError>;

    /// `n` running copies that can run together: one after another, where the machine has no better
    /// way.
    fn instantiate_batch(&self, n: usize) -> Result<Box<dyn Batch>, RunError> {
        let instances = (0..n)
            .map(|_| self.instantiate())
            .collect::<Result<_, _>>()?;
        Ok(Box::new(OneByOne(instances)))
    }

    /// The device that runs each op of `function`, where the machine tells.
    fn placement(&self, _function: &str) -> Option<Vec<(OpId, String)>> {
        None
    }
}

/// One running copy of a program.
pub trait Instance: Send {
    /// The buffer of the input `name`, which is given this shape for the next run; its content
    /// stays until rewritten.
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError>;

    /// Run a function over the inputs that were filled.
    fn run(&mut self, function: &str) -> Result<(), RunError>;

    /// From now on, want no more of the output `name` than its `n` greatest elements, where a row
    /// is all of it, or want all again. Others may then be minus infinity; a backend that gains
    /// nothing by it gives them all.
    fn want_greatest(&mut self, _name: &str, _n: Option<usize>) {}

    /// An output of the last run.
    fn output(&self, name: &str) -> Result<View<'_>, RunError>;

    /// What the state `name` holds.
    fn state(&self, name: &str) -> Result<View<'_>, RunError>;

    /// The elements of the state `name`, to be written; [`Self::state`] has their type and shape.
    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError>;

    /// Set every state to zero.
    fn reset(&mut self);
}

/// Running copies of a program, by number: each has its own inputs, outputs and state, and lengths
/// of its own.
pub trait Batch: Send {
    /// How many there are.
    fn n_instances(&self) -> usize;

    /// One of them, to be asked for its outputs and states.
    fn instance(&self, idx: usize) -> Result<&dyn Instance, RunError>;

    /// One of them, to be filled, reset, or run by itself.
    fn instance_mut(&mut self, idx: usize) -> Result<&mut dyn Instance, RunError>;

    /// Run a function of each of these over the inputs that it was filled with, each named once.
    /// The outputs are those that each would give alone, but for the order in which numbers are
    /// added up. After an error, outputs of none are to be relied on, nor what the call was to
    /// write to the states.
    fn run(&mut self, function: &str, which: &[usize]) -> Result<(), RunError>;
}

/// Instances of a machine that runs one at a time.
struct OneByOne(Vec<Box<dyn Instance>>);

impl Batch for OneByOne {
    fn n_instances(&self) -> usize {
        self.0.len()
    }

    fn instance(&self, idx: usize) -> Result<&dyn Instance, RunError> {
        let n = self.0.len();
        self.0
            .get(idx)
            .map(AsRef::as_ref)
            .ok_or(RunError::NoInstance { idx, n })
    }

    fn instance_mut(&mut self, idx: usize) -> Result<&mut dyn Instance, RunError> {
        let n = self.0.len();
        match self.0.get_mut(idx) {
            Some(instance) => Ok(instance.as_mut()),
            None => Err(RunError::NoInstance { idx, n }),
        }
    }

    fn run(&mut self, function: &str, which: &[usize]) -> Result<(), RunError> {
        check_each_once(which, self.0.len())?;
        which
            .iter()
            .try_for_each(|idx| self.instance_mut(*idx)?.run(function))
    }
}

/// Refuse numbers of a batch of `n` that name none of it, or one twice: for implementations of
/// [`Batch::run`].
pub fn check_each_once(which: &[usize], n: usize) -> Result<(), RunError> {
    let mut seen = HashSet::new();
    match which.iter().find(|idx| **idx >= n || !seen.insert(**idx)) {
        Some(idx) if *idx < n => Err(RunError::Twice(*idx)),
        Some(idx) => Err(RunError::NoInstance { idx: *idx, n }),
        None => Ok(()),
    }
}

/// A tensor that a backend lends; row-major, in the byte order of the machine.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

/// Why a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The backend cannot run this op.
    #[error("{function}: op `{op}` (from `{place}`): {reason}")]
    Op {
        /// Function name.
        function: String,
        /// Op name.
        op: String,
        /// Where in the checkpoint it comes from.
        place: String,
        /// Why not.
        reason: String,
    },
    /// A file that the program is mapped from is not whole any more.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// What the program holds does not fit in memory.
    #[error("{place} does not fit in memory")]
    OverBudget {
        /// Function and op.
        place: String,
        /// What needed how much.
        source: OverBudget,
    },
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no function of this name.
    #[error("the program has no function `{0}`")]
    NoFunction(String),
    /// There is no input of this name, or it was not filled.
    #[error("no input `{0}` was given")]
    NoInput(String),
    /// There is no output of this name.
    #[error("the last run gave no output `{0}`")]
    NoOutput(String),
    /// There is no state of this name.
    #[error("the program has no state `{0}`")]
    NoState(String),
    /// Functions have inputs of this name and of several element types, and this shape fits more
    /// than one.
    #[error(
        "input `{name}` of shape {given:?} can be {expected}: give the inputs of the functions different names, or load \
         one function alone"
    )]
    Ambiguous {
        /// Input name.
        name: String,
        /// The declared types that fit.
        expected: String,
        /// Shape given.
        given: Vec<usize>,
    },
    /// The shape given does not fit the declared type.
    #[error("input `{name}` is {expected}, {given:?} was given")]
    Shape {
        /// Input name.
        name: String,
        /// Declared type.
        expected: String,
        /// Shape given.
        given: Vec<usize>,
    },
    /// There is no instance of this number in the batch.
    #[error("there is no sequence {idx} in a batch of {n}, whose numbers begin at 0")]
    NoInstance {
        /// The number.
        idx: usize,
        /// How many there are.
        n: usize,
    },
    /// An instance of a batch is to run twice in one call.
    #[error("sequence {0} is named twice in one step: run its tokens in one call, or in two steps")]
    Twice(usize),
    /// The states of a batch take more than they may.
    #[error(
        "the states of {n} sequences take {bytes} bytes, {most} are allowed: ask for fewer sequences or a shorter context"
    )]
    Memory {
        /// How many instances.
        n: usize,
        /// What all of them take, once they are full.
        bytes: usize,
        /// What they may take.
        most: usize,
    },
    /// A state, an input or what an op computes does not fit in memory.
    #[error("{place} does not fit in memory")]
    OverBudget {
        /// State or input, or function and op.
        place: String,
        /// What needed how much.
        source: OverBudget,
    },
    /// An op failed on these values.
    #[error("{function}: op `{op}` that makes `{result}` (from `{place}`): {reason}")]
    Op {
        /// Function name.
        function: String,
        /// Op name.
        op: String,
        /// Name of its first result.
        result: String,
        /// Where in the checkpoint it comes from.
        place: String,
        /// What went wrong.
        reason: String,
    },
}

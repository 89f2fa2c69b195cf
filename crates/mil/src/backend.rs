//! What it means to run a program: three traits that hide which machine does it.
//!
//! A [`Backend`] loads a whole program, never single ops. An [`Executable`] is what it made of it and can be shared; an
//! [`Instance`] is one running copy with its own buffers and its own state.

use std::sync::Arc;

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

    /// The device that runs each op of `function`, where the machine tells.
    fn placement(&self, _function: &str) -> Option<Vec<(OpId, String)>> {
        None
    }
}

/// One running copy of a program.
pub trait Instance: Send {
    /// The buffer of the input `name`, which is given this shape for the next run; its content stays until rewritten.
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError>;

    /// Run a function over the inputs that were filled.
    fn run(&mut self, function: &str) -> Result<(), RunError>;

    /// An output of the last run.
    fn output(&self, name: &str) -> Result<View<'_>, RunError>;

    /// What the state `name` holds.
    fn state(&self, name: &str) -> Result<View<'_>, RunError>;

    /// The elements of the state `name`, to be written; [`Self::state`] has their type and shape.
    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError>;

    /// Set every state to zero.
    fn reset(&mut self);
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
    /// Functions have inputs of this name and of several element types, and this shape fits more than one.
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

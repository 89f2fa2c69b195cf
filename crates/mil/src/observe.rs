//! The interface between code that needs the numbers of a program and code that can run it.
//!
//! What chooses a form by its numbers, such as calibration and the compression of weights, needs
//! the activations that enter an op, its weight, and what leaves it. A backend implements
//! [`Observe`], and that code depends on this module alone.
//!
//! Nothing is collected. The caller names ops of a function and is called back after each call of
//! one of them, with access to its tensors; what the caller does not keep is reused.

use std::ops::ControlFlow;

use crate::backend::{LoadError, RunError, View};
use crate::evaluate::HostTensor;
use crate::program::{Function, OpId, ValueId};

/// What one run of a function is given.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// All inputs by name.
    pub inputs: &'a [(&'a str, View<'a>)],
    /// States by name that are set before the run. The others are zero in the first run, and in
    /// later ones what the run before left.
    pub states: &'a [(&'a str, View<'a>)],
}

/// One call of an op, while its operands are still held.
pub struct OpCall<'a, T> {
    /// The position of the run in the list that was given.
    pub run: usize,
    /// The op, in the function that was given.
    pub op: OpId,
    /// Gives operands and results; see [`Self::value`].
    pub values: &'a dyn Fn(ValueId) -> Result<T, String>,
}

impl<T: HostTensor> OpCall<'_, T> {
    /// An operand or a result of the op, by its value in the function: row-major, of the shape of
    /// this call and the declared element type. A constant, such as a weight, is the tensor that
    /// the op computes with, decompressed if it is stored compressed. A state is what it held
    /// before the op. Only what is asked for is copied or decompressed, and activations are shared
    /// with the run rather than copied; a tensor that is kept stays as it is.
    ///
    /// # Errors
    ///
    /// In words, if the value is neither an operand nor a result of the op, or is a literal that is
    /// no tensor, or if there is no memory for a constant.
    pub fn value(&self, value: ValueId) -> Result<T, String> {
        (self.values)(value)
    }
}

/// Whether an op, by its id in the function, is observed. A backend may ask at each call.
pub type Asks<'a> = dyn Fn(OpId) -> bool + Sync + 'a;

/// What is called after each call of an op. `Break` ends the observation without an error; an error
/// says in words why the caller cannot go on.
pub type Visit<'a, T> = dyn FnMut(&OpCall<'_, T>) -> Result<ControlFlow<()>, String> + Send + 'a;

/// Why an observation failed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The backend cannot load the function.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An input or a state does not fit, an op failed, or the caller could not go on: then
    /// [`RunError::Op`] names the op whose call was handed over, with the caller's reason.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Runs a function and hands over what enters and leaves its ops.
pub trait Observe {
    /// How operands and results are held. Clones share the elements.
    type Tensor: HostTensor;

    /// Runs `function` once for each of `runs`, in order, and calls `visit` after each call of an
    /// op for which `asks` is true.
    ///
    /// The function runs op by op, as it stands: ids are those of `function`. Ops in nested blocks
    /// are handed over in each round, before the op that holds the block. An op that follows from
    /// constants alone is not called; its result is a constant.
    ///
    /// Returns whether all runs came to their end, or `visit` ended them.
    ///
    /// # Errors
    ///
    /// [`ObserveError`], at the first fault.
    fn observe(
        &self,
        function: &Function,
        runs: &[Given<'_>],
        asks: &Asks<'_>,
        visit: &mut Visit<'_, Self::Tensor>,
    ) -> Result<ControlFlow<()>, ObserveError>;
}

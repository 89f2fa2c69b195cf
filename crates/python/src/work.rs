//! Errors, interrupts and forks, as Python has them.

use std::cell::RefCell;
use std::error::Error;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use thane_runtime::RuntimeError;

use crate::ThaneError;

/// An error of the library as an exception, with the message of each cause: `ValueError` for an
/// argument that cannot be, and `ThaneError` for the rest.
pub fn raise(error: impl Error + 'static) -> PyErr {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    let error: &(dyn Error + 'static) = &error;
    match error.downcast_ref().is_some_and(is_of_argument) {
        true => PyValueError::new_err(message),
        false => ThaneError::new_err(message),
    }
}

/// Whether an argument of a call is what is wrong, whatever the model.
fn is_of_argument(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Sample(_)
            | RuntimeError::OneGrammar
            | RuntimeError::Grammar(_)
            | RuntimeError::Json { .. }
            | RuntimeError::UnknownPrompt { .. }
    )
}

/// The process that loaded a model. Its threads do not exist in a process that was forked from it.
#[derive(Clone, Copy, Debug)]
pub struct Process(u32);

impl Process {
    /// This process.
    pub fn current() -> Self {
        Self(std::process::id())
    }

    /// Refuses work in a process that was forked after the model was loaded.
    pub fn check(self) -> PyResult<()> {
        if self.0 == std::process::id() {
            return Ok(());
        }
        Err(ThaneError::new_err(format!(
            "the model was loaded by process {}, of which this one ({}) is a fork without its \
             threads: load the model after the fork, in the worker, or start workers by spawn",
            self.0,
            std::process::id()
        )))
    }
}

/// Signals that arrive while the interpreter's lock is released.
#[derive(Default)]
pub struct Signals(RefCell<Option<PyErr>>);

impl Signals {
    /// Whether a handler of a signal raised an exception, such as `KeyboardInterrupt`.
    pub fn have_raised(&self) -> bool {
        if self.0.borrow().is_none() {
            let raised = Python::attach(|py| py.check_signals().err());
            *self.0.borrow_mut() = raised;
        }
        self.0.borrow().is_some()
    }

    /// Keeps an exception that ends the work.
    pub fn keep(&self, error: PyErr) {
        self.0.borrow_mut().get_or_insert(error);
    }

    /// The result of the work, or the exception that ended it.
    pub fn end<T>(self, result: PyResult<T>) -> PyResult<T> {
        self.0.into_inner().map_or(result, Err)
    }
}

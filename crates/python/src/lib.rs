//! The extension module `thane._thane`: models, tokenizers and packages for Python.
//!
//! It is a thin layer over `thane-runtime`. The Python package `thane` beside it has what callers
//! see: names, defaults, types. Verbs that write files are run by the program, which lies in the
//! wheel, so that they answer as it does.
//!
//! The interpreter's lock is released while a model computes. Errors are [`ThaneError`] with the
//! program's words. Work ends at Ctrl-C where the main thread waits for it.

mod embedder;
mod generator;
mod model;
mod package;
mod reranker;
mod tokenizer;
mod work;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    thane,
    ThaneError,
    PyException,
    "An error with its cause and what to do."
);

#[pymodule]
mod _thane {
    #[pymodule_export]
    use super::ThaneError;
    #[pymodule_export]
    use crate::embedder::Embedder;
    #[pymodule_export]
    use crate::generator::Generator;
    #[pymodule_export]
    use crate::package::Package;
    #[pymodule_export]
    use crate::reranker::Reranker;
    #[pymodule_export]
    use crate::tokenizer::Tokenizer;
}

//! Opens models by name, path or package.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use thane_cpu::Cpu;
use thane_hub::{Hub, Places};
use thane_runtime::{Model, local_cpu};

use crate::work::raise;

/// The backend of a model.
pub fn backend(numerics: &str, threads: Option<usize>, memory: Option<usize>) -> PyResult<Cpu> {
    let cpu = local_cpu(numerics, threads, memory);
    cpu.map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Opens a model, which is downloaded first if it is none of the cache.
pub fn open(name: &str, cache: Option<PathBuf>) -> PyResult<Model> {
    let places = Places::from_variables(cache, |name| std::env::var_os(name));
    Model::open(name, &Hub::new(places), &()).map_err(raise)
}

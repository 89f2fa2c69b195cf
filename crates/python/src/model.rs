//! Opens models by name, path or package.

use std::num::NonZero;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_hub::{Hub, Places};
use thane_mil::budget::Budget;
use thane_runtime::Model;

use crate::work::raise;

/// What computes a model.
pub struct Backend(pub Cpu);

impl Backend {
    /// The CPU with these numerics, a number of threads (as many as there are cores by default),
    /// and a limit of memory in bytes for what models take beside their files.
    pub fn new(numerics: &str, threads: Option<usize>, memory: Option<usize>) -> PyResult<Self> {
        let numerics = match numerics {
            "fast" => Numerics::Fast,
            "f32" => Numerics::F32,
            "int8" => Numerics::Int8,
            "ane" => Numerics::Ane(Effects::default()),
            other => {
                return Err(PyValueError::new_err(format!(
                    "numerics: expected 'fast', 'f32', 'int8' or 'ane', found '{other}'"
                )));
            }
        };
        let threads = match threads {
            Some(n @ 1..=1024) => n,
            Some(n) => {
                return Err(PyValueError::new_err(format!(
                    "threads: expected 1 to 1024, found {n}"
                )));
            }
            None => std::thread::available_parallelism().map_or(1, NonZero::get),
        };
        let mut cpu = Cpu::new(numerics, threads);
        if let Some(limit) = memory {
            cpu = cpu.with_budget(&Budget::new(limit));
        }
        Ok(Self(cpu))
    }
}

/// Opens a model, which is downloaded first if it is none of the cache.
pub fn open(name: &str, cache: Option<PathBuf>) -> PyResult<Model> {
    let places = Places::from_variables(cache, |name| std::env::var_os(name));
    Model::open(name, &Hub::new(places), &()).map_err(raise)
}

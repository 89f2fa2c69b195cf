//! `thane.Package`: what a Core ML package holds, and calls of its functions.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thane_cpu::Cpu;
use thane_mil::backend::{Backend, Instance, Limits, View};
use thane_mil::literal::Literal;
use thane_mil::package;
use thane_mil::program::{Function, Program};
use thane_mil::types::{TensorType, Type};

use crate::model::backend;
use crate::work::{Signals, raise};

/// A Core ML package.
#[pyclass(module = "thane", frozen)]
pub struct Package(package::Package);

/// Name, element type and dimensions, of which those that a caller chooses are None.
type Feature = (String, &'static str, Vec<Option<usize>>);

/// Name, element type, dimensions and bytes.
type Array<'py> = (String, &'static str, Vec<usize>, Bound<'py, PyBytes>);

#[pymethods]
impl Package {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| package::Package::open(&path));
        opened.map(Self).map_err(raise)
    }

    /// Names of functions.
    #[getter]
    fn functions(&self) -> Vec<&str> {
        let functions = self.0.program.functions().iter();
        functions.map(|f| f.name.as_str()).collect()
    }

    /// The function that Core ML calls unless it is told another.
    #[getter]
    fn default_function(&self) -> &str {
        &self.0.default_function
    }

    /// The opset of a function.
    fn opset(&self, function: &str) -> PyResult<&'static str> {
        Ok(self.function(function)?.opset.name())
    }

    /// Inputs, outputs and states of a function.
    fn features(&self, function: &str) -> PyResult<(Vec<Feature>, Vec<Feature>, Vec<Feature>)> {
        let f = self.function(function)?;
        let values = |ids: &[_]| ids.iter().map(|id| f.value(*id)).collect::<Vec<_>>();
        let (mut inputs, mut states) = (Vec::new(), Vec::new());
        for value in values(&f.body().inputs) {
            match &value.ty {
                Type::Tensor(ty) => inputs.push(feature(&value.name, ty)),
                Type::State(ty) => states.push(feature(&value.name, ty)),
                _ => {}
            }
        }
        let outputs = values(&f.body().outputs);
        let outputs = outputs
            .into_iter()
            .filter_map(|value| Some(feature(&value.name, value.ty.tensor()?)));
        Ok((inputs, outputs.collect(), states))
    }

    /// The kind of each op of a function with the names of its results, nested ops included.
    fn ops(&self, function: &str) -> PyResult<Vec<(&'static str, Vec<String>)>> {
        let f = self.function(function)?;
        let ops = f.all_ops().into_iter().map(|id| {
            let op = f.op(id);
            let results = op.results.iter().map(|id| f.value(*id).name.clone());
            (op.def.name, results.collect())
        });
        Ok(ops.collect())
    }

    /// A constant of a function.
    fn constant<'py>(&self, py: Python<'py>, function: &str, name: &str) -> PyResult<Array<'py>> {
        let f = self.function(function)?;
        let found = f.all_ops().into_iter().find_map(|id| {
            let mut results = f.op(id).results.iter();
            let id = results.find(|id| f.value(**id).name == name)?;
            match f.constant(*id)? {
                Literal::Tensor(ty, data) => Some((ty, data)),
                _ => None,
            }
        });
        let (ty, data) = found.ok_or_else(|| {
            PyValueError::new_err(format!(
                "function `{function}` has no constant tensor `{name}`"
            ))
        })?;
        let bytes = py.detach(|| data.to_vec());
        let shape = ty.known_shape().unwrap_or_default();
        let bytes = PyBytes::new(py, &bytes);
        Ok((name.to_owned(), ty.dtype.name(), shape, bytes))
    }

    /// Calls a function once, from states of zeros unless they are given. Returns its outputs, and
    /// its states after the call.
    #[pyo3(signature = (function, inputs, states, *, numerics="f32", threads=None, memory=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        function: &str,
        inputs: Vec<(String, Vec<usize>, Vec<u8>)>,
        states: Vec<(String, Vec<usize>, Vec<u8>)>,
        numerics: &str,
        threads: Option<usize>,
        memory: Option<usize>,
    ) -> PyResult<(Vec<Array<'py>>, Vec<Array<'py>>)> {
        let backend = backend(numerics, threads, memory)?;
        let f = self.function(function)?;
        let instance = py.detach(|| {
            let signals = Signals::default();
            let ran = run(f, &backend, &inputs, &states, &signals);
            signals.end(ran)
        })?;
        let body = f.body();
        let array = |view: View<'_>, name: &str| {
            let bytes = PyBytes::new(py, view.bytes);
            (
                name.to_owned(),
                view.dtype.name(),
                view.shape.to_vec(),
                bytes,
            )
        };
        let outputs = body.outputs.iter().map(|id| {
            let name = &f.value(*id).name;
            Ok(array(instance.output(name).map_err(raise)?, name))
        });
        let outputs = outputs.collect::<PyResult<_>>()?;
        let states = body.inputs.iter().map(|id| f.value(*id));
        let states = states.filter(|value| matches!(value.ty, Type::State(_)));
        let states = states.map(|value| {
            let name = &value.name;
            Ok(array(instance.state(name).map_err(raise)?, name))
        });
        Ok((outputs, states.collect::<PyResult<_>>()?))
    }
}

impl Package {
    fn function(&self, name: &str) -> PyResult<&Function> {
        self.0.program.function(name).ok_or_else(|| {
            PyValueError::new_err(format!(
                "the package has no function `{name}`, but {}",
                self.functions().join(", ")
            ))
        })
    }
}

fn feature(name: &str, ty: &TensorType) -> Feature {
    let shape = ty.shape.iter().map(|dim| dim.known()).collect();
    (name.to_owned(), ty.dtype.name(), shape)
}

/// An instance that has run the function.
fn run(
    f: &Function,
    backend: &Cpu,
    inputs: &[(String, Vec<usize>, Vec<u8>)],
    states: &[(String, Vec<usize>, Vec<u8>)],
    signals: &Signals,
) -> PyResult<Box<dyn Instance>> {
    let alone = Program::new(vec![f.clone()]);
    Limits::default().check_states(&alone).map_err(raise)?;
    let executable = backend.load(&alone).map_err(raise)?;
    let mut instance = executable.instantiate().map_err(raise)?;
    let fill = |to: &mut [u8], name: &str, from: &[u8]| {
        if to.len() == from.len() {
            to.copy_from_slice(from);
            return Ok(());
        }
        let (expected, found) = (to.len(), from.len());
        Err(PyValueError::new_err(format!(
            "`{name}`: expected {expected} bytes, found {found}"
        )))
    };
    for (name, shape, bytes) in inputs {
        let to = instance.input(name, shape).map_err(raise)?;
        fill(to, name, bytes)?;
    }
    for (name, shape, bytes) in states {
        let expected = instance.state(name).map_err(raise)?.shape.to_vec();
        if *shape != expected {
            return Err(PyValueError::new_err(format!(
                "`{name}`: expected a state of the shape {expected:?}, found {shape:?}"
            )));
        }
        fill(instance.state_mut(name).map_err(raise)?, name, bytes)?;
    }
    instance
        .run_until(&f.name, &|| signals.have_raised())
        .map_err(raise)?;
    Ok(instance)
}

//! `thane.Reranker`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use thane_engine::embed::Watch;
use thane_runtime::{RerankOptions, sort_ranked};

use crate::model::{backend, open};
use crate::work::{Process, Signals, raise};

/// A running reranker.
#[pyclass(module = "thane", frozen)]
pub struct Reranker {
    model: Mutex<thane_runtime::Reranker>,
    process: Process,
}

#[pymethods]
impl Reranker {
    #[new]
    #[pyo3(signature = (model, *, max_tokens=None, numerics="fast", threads=None, memory=None,
        cache=None))]
    fn new(
        py: Python<'_>,
        model: &str,
        max_tokens: Option<usize>,
        numerics: &str,
        threads: Option<usize>,
        memory: Option<usize>,
        cache: Option<PathBuf>,
    ) -> PyResult<Self> {
        let backend = backend(numerics, threads, memory)?;
        let options = RerankOptions {
            max_tokens,
            ..RerankOptions::default()
        };
        let model = py.detach(|| {
            let model = open(model, cache)?;
            model.reranker(&options, &backend, &()).map_err(raise)
        })?;
        Ok(Self {
            model: Mutex::new(model),
            process: Process::current(),
        })
    }

    /// The index, score and logit of each text, best first.
    fn rank(
        &self,
        py: Python<'_>,
        query: &str,
        texts: Vec<String>,
    ) -> PyResult<Vec<(usize, f32, f32)>> {
        self.process.check()?;
        py.detach(|| {
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            let signals = Signals::default();
            let ranked = rank(&mut model, query, &texts, &signals);
            signals.end(ranked)
        })
    }

    /// Most tokens of a query and a text.
    #[getter]
    fn max_tokens(&self) -> usize {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.max_tokens()
    }
}

fn rank(
    model: &mut thane_runtime::Reranker,
    query: &str,
    texts: &[String],
    signals: &Signals,
) -> PyResult<Vec<(usize, f32, f32)>> {
    let is_stopped = || signals.have_raised();
    let query = model.query(query, &is_stopped).map_err(raise)?;
    let cut = model.cut();
    let pairs = texts
        .iter()
        .map(|text| {
            model
                .tokenize(&query, text, cut, &is_stopped)
                .map_err(raise)
        })
        .collect::<PyResult<Vec<_>>>()?;
    let mut watch = Watch {
        interrupted: &is_stopped,
        progress: &mut |_| {},
    };
    let scored = model.score(&pairs, &mut watch).map_err(raise)?;
    let mut ranked = scored.unwrap_or_default();
    sort_ranked(&mut ranked);
    let rows = ranked.iter().map(|row| (row.index, row.score, row.logit));
    Ok(rows.collect())
}

//! `thane.Embedder`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use thane_engine::embed::output::{Format, Kept, shorten};
use thane_engine::embed::{Sequence, Watch};
use thane_runtime::{EmbedOptions, Encoding, Prompt, RuntimeError, Tokens, kept_by_default};

use crate::model::{backend, open};
use crate::work::{Process, Signals, raise};

/// A running embedding model.
#[pyclass(module = "thane", frozen)]
pub struct Embedder {
    model: Mutex<thane_runtime::Embedder>,
    process: Process,
}

/// Texts, how they are read, and how their vectors are kept.
struct Request<'a> {
    texts: &'a [String],
    prompt_name: Option<&'a str>,
    prompt: Option<String>,
    truncate: bool,
    truncate_dim: Option<usize>,
    normalize: bool,
}

#[pymethods]
impl Embedder {
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
        let options = EmbedOptions {
            max_tokens,
            more: vec![Encoding::Chunks],
            ..EmbedOptions::default()
        };
        let model = py.detach(|| {
            let model = open(model, cache)?;
            model
                .embedding_model(&options, &backend, &())
                .map_err(raise)
        })?;
        Ok(Self {
            model: Mutex::new(model),
            process: Process::current(),
        })
    }

    /// Rows of float32, and their length.
    #[pyo3(signature = (texts, *, prompt_name=None, prompt=None, truncate=true,
        truncate_dim=None, normalize=false))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
        prompt_name: Option<&str>,
        prompt: Option<String>,
        truncate: bool,
        truncate_dim: Option<usize>,
        normalize: bool,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let request = Request {
            texts: &texts,
            prompt_name,
            prompt,
            truncate,
            truncate_dim,
            normalize,
        };
        let (rows, dim) = self.with(py, |model, signals| embed(model, &request, signals))?;
        PyArray1::from_vec(py, rows).reshape([texts.len(), dim])
    }

    /// Rows of float32 of the chunks of one document, each of which sees the others.
    #[pyo3(signature = (chunks))]
    fn encode_chunks<'py>(
        &self,
        py: Python<'py>,
        chunks: Vec<String>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let rows = self.with(py, |model, _| model.embed_chunks(&chunks).map_err(raise))?;
        let dim = rows.first().map_or(0, Vec::len);
        PyArray1::from_vec(py, rows.concat()).reshape([chunks.len(), dim])
    }

    /// Rows of float32 in a format of `thane embed --format`, as bytes. Bits are packed as the
    /// command packs them for the model, unless `packing` says otherwise.
    fn stored<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray2<'py, f32>,
        format: &str,
        packing: Option<&str>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let usual = Format::usual(self.lock().info.quantize).1;
        let format = parse_format(format, packing, usual)?;
        let rows = rows.as_array();
        let [n_rows, dim] = [rows.nrows(), rows.ncols()];
        let mut bytes = Vec::with_capacity(n_rows * format.stored_bytes(dim));
        for row in rows.rows() {
            format.write(&row.to_vec(), &mut bytes);
        }
        PyArray1::from_vec(py, bytes).reshape([n_rows, format.stored_bytes(dim)])
    }

    /// Elements of a vector by default.
    #[getter]
    fn dimension(&self) -> usize {
        kept_by_default(&self.lock().info).dim
    }

    /// Most tokens of a text.
    #[getter]
    fn max_tokens(&self) -> usize {
        self.lock().max_tokens()
    }

    /// Prompts by name.
    #[getter]
    fn prompts(&self) -> Vec<(String, String)> {
        let prompts = &self.lock().info.prompts;
        let pairs = prompts
            .iter()
            .map(|(name, text)| (name.clone(), text.clone()));
        pairs.collect()
    }

    /// The name of the similarity that the model was trained for.
    #[getter]
    fn similarity_fn_name(&self) -> Option<String> {
        self.lock().info.similarity.clone()
    }

    /// The ids of a text, with the tokens around it.
    fn tokenize(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        self.with(py, |model, _| model.text().encode(text).map_err(raise))
    }
}

impl Embedder {
    fn lock(&self) -> std::sync::MutexGuard<'_, thane_runtime::Embedder> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with the model while other threads of Python run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut thane_runtime::Embedder, &Signals) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        self.process.check()?;
        py.detach(|| {
            let signals = Signals::default();
            let result = work(&mut self.lock(), &signals);
            signals.end(result)
        })
    }
}

/// Rows of vectors, and the elements of one.
fn embed(
    model: &mut thane_runtime::Embedder,
    request: &Request,
    signals: &Signals,
) -> PyResult<(Vec<f32>, usize)> {
    let kept = kept(model, request)?;
    let sequences = sequences(model, request, signals)?;
    let mut watch = Watch {
        interrupted: &|| signals.have_raised(),
        progress: &mut |_| {},
    };
    let rows = model.engine.texts(&sequences, &mut watch);
    let rows = rows.map_err(RuntimeError::from).map_err(raise)?;
    let rows = shorten(rows.unwrap_or_default(), model.engine.dim(), kept);
    Ok((rows, kept.dim))
}

/// The elements of a vector that the caller keeps.
fn kept(model: &thane_runtime::Embedder, request: &Request) -> PyResult<Kept> {
    let mut kept = kept_by_default(&model.info);
    if let Some(dim) = request.truncate_dim {
        let most = model.engine.dim();
        if !(1..=most).contains(&dim) {
            return Err(PyValueError::new_err(format!(
                "truncate_dim: expected 1 to {most}, found {dim}"
            )));
        }
        kept.dim = dim;
    }
    kept.normalize = request.normalize;
    Ok(kept)
}

/// The tokens of the texts behind the prompt.
fn sequences(
    model: &thane_runtime::Embedder,
    request: &Request,
    signals: &Signals,
) -> PyResult<Vec<Sequence>> {
    let prompt = match &request.prompt {
        Some(text) => text.clone(),
        None => {
            let chosen = Prompt::choose(request.prompt_name, &model.info);
            chosen.map_err(raise)?.text
        }
    };
    let prefix = model.text().prefix(prompt, model.max_tokens());
    let prefix = prefix.map_err(raise)?;
    let mut sequences = Vec::with_capacity(request.texts.len());
    for text in request.texts {
        let tokens = model.tokenize(&prefix, text, request.truncate);
        if let (Tokens::Text(sequence), _) = tokens.map_err(raise)? {
            sequences.push(sequence);
        }
        if sequences.len().is_multiple_of(256) && signals.have_raised() {
            break;
        }
    }
    Ok(sequences)
}

/// A format of `thane embed --format` and `--packing`, or the usual one of bits.
fn parse_format(kind: &str, packing: Option<&str>, usual: &str) -> PyResult<Format> {
    let fits = |format: &&Format| {
        let is_packed = match (packing, format.packing()) {
            (None, found) => found.is_none_or(|found| found == usual),
            (asked, found) => asked == found,
        };
        format.kind() == kind && is_packed
    };
    let mut found = Format::ALL.iter().filter(fits);
    let format = found.next().copied();
    format.ok_or_else(|| {
        let known = Format::ALL.iter().map(|format| match format.packing() {
            Some(packing) => format!("{} with packing {packing}", format.kind()),
            None => format.kind().to_owned(),
        });
        let known: Vec<String> = known.collect();
        let packing =
            packing.map_or_else(String::new, |packing| format!(" with packing {packing}"));
        PyValueError::new_err(format!(
            "precision: expected {}, found {kind}{packing}",
            known.join(", ")
        ))
    })
}

//! `thane.Tokenizer`.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use thane_engine::text;
use thane_engine::text::EncodeOptions;
use thane_mil::budget::Budget;
use thane_runtime::LanguageOptions;

use crate::model::open;
use crate::work::raise;

/// The tokenizer of a model.
#[pyclass(module = "thane", frozen)]
pub struct Tokenizer(Arc<text::Tokenizer>);

#[pymethods]
impl Tokenizer {
    #[new]
    #[pyo3(signature = (model, *, cache=None))]
    fn new(py: Python<'_>, model: &str, cache: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| {
            let model = open(model, cache)?;
            let options = LanguageOptions::default();
            let model = model.language_model(&options, &()).map_err(raise)?;
            let language = model.language(&Budget::unlimited()).map_err(raise)?;
            Ok(Self(language.tokenizer))
        })
    }

    /// The ids of a text.
    #[pyo3(signature = (text, *, add_special_tokens=true, parse_special_tokens=true))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special_tokens: bool,
        parse_special_tokens: bool,
    ) -> PyResult<Vec<u32>> {
        let options = EncodeOptions {
            add_special: add_special_tokens,
            parse_special: parse_special_tokens,
        };
        py.detach(|| self.0.encode(text, options)).map_err(raise)
    }

    /// The text of ids.
    #[pyo3(signature = (ids, *, skip_special_tokens=true))]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> String {
        py.detach(|| self.0.decode(&ids, skip_special_tokens))
    }

    /// Number of tokens.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.n_vocab()
    }
}

//! `thane.Generator`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::prelude::*;
use thane_runtime::{AnswerOptions, LanguageOptions, Question, RuntimeError, Sampling, Turns};

use crate::model::{backend, open};
use crate::work::{Process, Signals, raise};

/// A running language model.
#[pyclass(module = "thane", frozen)]
pub struct Generator {
    model: Turns<thane_runtime::Generator>,
    context: usize,
    has_template: bool,
    process: Process,
}

/// An answer: its text, its tokens, why it ended, and the tokens of its prompt that were computed.
type Answer = (String, Vec<u32>, &'static str, usize);

#[pymethods]
impl Generator {
    #[new]
    #[pyo3(signature = (model, *, context=None, numerics="fast", threads=None, memory=None,
        cache=None))]
    fn new(
        py: Python<'_>,
        model: &str,
        context: Option<usize>,
        numerics: &str,
        threads: Option<usize>,
        memory: Option<usize>,
        cache: Option<PathBuf>,
    ) -> PyResult<Self> {
        let backend = backend(numerics, threads, memory)?;
        py.detach(|| {
            let model = open(model, cache)?;
            let options = LanguageOptions {
                context,
                ..LanguageOptions::default()
            };
            let language = model.language_model(&options, &()).map_err(raise)?;
            let recommended = language.recommended_sampling().map_err(raise)?;
            let sampling = Sampling::default().choose(&recommended, true);
            let model = language.start(&backend, sampling.options, true);
            let mut model = model.map_err(raise)?;
            let has_template = model.prompts.use_template().is_ok();
            Ok(Self {
                context: model.context(),
                model: Turns::new(model),
                has_template,
                process: Process::current(),
            })
        })
    }

    /// Generates an answer to messages (JSON), or continues a text. `on_text` gets each piece of
    /// text and ends the answer with False. Options are JSON too.
    #[pyo3(signature = (messages, prompt, options, on_text=None))]
    fn generate(
        &self,
        py: Python<'_>,
        messages: Option<&str>,
        prompt: Option<&str>,
        options: &str,
        on_text: Option<Py<PyAny>>,
    ) -> PyResult<Answer> {
        self.process.check()?;
        let options = AnswerOptions::parse(options).map_err(raise)?;
        let question = match prompt {
            Some(prompt) => Question::Text(prompt),
            None => Question::Messages(messages.unwrap_or("[]")),
        };
        py.detach(|| {
            let signals = Signals::default();
            let turn = self.model.take(&|| signals.have_raised()).map_err(raise)?;
            let Some(mut model) = turn else {
                return signals.end(Err(raise(RuntimeError::AskedWithin)));
            };
            let tokens = options.encode(&mut model, question).map_err(raise);
            let result =
                tokens.and_then(|tokens| answer(&mut model, &tokens, on_text.as_ref(), &signals));
            signals.end(result)
        })
    }

    /// Tokens that the KV cache can hold.
    #[getter]
    fn context(&self) -> usize {
        self.context
    }

    /// Whether the model has a chat template.
    #[getter]
    fn has_template(&self) -> bool {
        self.has_template
    }
}

/// Generates, and hands the pieces of text to Python.
fn answer(
    model: &mut thane_runtime::Generator,
    tokens: &[u32],
    on_text: Option<&Py<PyAny>>,
    signals: &Signals,
) -> PyResult<Answer> {
    let mut tell = |text: &str| {
        let Some(on_text) = on_text else {
            return ControlFlow::Continue(());
        };
        let goes_on = Python::attach(|py| on_text.call1(py, (text,))?.extract::<bool>(py));
        match goes_on {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                signals.keep(error);
                ControlFlow::Break(())
            }
        }
    };
    let answer = model.generate(tokens, &|| signals.have_raised(), &mut tell);
    let answer = answer.map_err(|error: RuntimeError| raise(error))?;
    let reason = answer.finish_reason.name();
    Ok((
        answer.text,
        answer.tokens,
        reason,
        answer.timings.prefill_tokens,
    ))
}

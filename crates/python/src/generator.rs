//! `thane.Generator`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use serde_json::Value;
use thane_runtime::{GrammarSource, LanguageOptions, Message, RuntimeError, Sampling};

use crate::ThaneError;
use crate::model::{Backend, open};
use crate::work::{Process, Signals, raise};

/// A running language model.
#[pyclass(module = "thane", frozen)]
pub struct Generator {
    model: Mutex<thane_runtime::Generator>,
    recommended: thane_runtime::Recommended,
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
        let backend = Backend::new(numerics, threads, memory)?;
        py.detach(|| {
            let model = open(model, cache)?;
            let options = LanguageOptions {
                context,
                ..LanguageOptions::default()
            };
            let language = model.language_model(&options, &()).map_err(raise)?;
            let recommended = language.recommended_sampling().map_err(raise)?;
            let sampling = Sampling::default().choose(&recommended, true);
            let model = language.start(&backend.0, sampling.options, true);
            let mut model = model.map_err(raise)?;
            let has_template = model.prompts.use_template().is_ok();
            Ok(Self {
                model: Mutex::new(model),
                recommended,
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
        let options: Options = Options::parse(options)?;
        py.detach(|| {
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            let signals = Signals::default();
            let result = self
                .prepare(&mut model, &options)
                .and_then(|()| self.prompt(&model, messages, prompt, &options))
                .and_then(|tokens| answer(&mut model, &tokens, on_text.as_ref(), &signals));
            signals.end(result)
        })
    }

    /// Tokens that the KV cache can hold.
    #[getter]
    fn context(&self) -> usize {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.context()
    }

    /// Whether the model has a chat template.
    #[getter]
    fn has_template(&self) -> bool {
        self.has_template
    }
}

/// What a caller wants of an answer.
struct Options {
    sampling: Sampling,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    grammar: Option<GrammarSource>,
    tools: Vec<Value>,
}

impl Options {
    fn parse(text: &str) -> PyResult<Self> {
        let bad = |e: serde_json::Error| ThaneError::new_err(format!("options: {e}"));
        let mut value: Value = serde_json::from_str(text).map_err(bad)?;
        let mut take = |key: &str| {
            let value = value.get_mut(key).map(Value::take);
            value.filter(|value| !value.is_null())
        };
        let grammar = match (take("schema"), take("regex"), take("lark")) {
            (Some(schema), None, None) => Some(GrammarSource::JsonSchema(schema)),
            (None, Some(Value::String(regex)), None) => Some(GrammarSource::Regex(regex)),
            (None, None, Some(Value::String(lark))) => Some(GrammarSource::Lark(lark)),
            (None, None, None) => None,
            _ => {
                return Err(ThaneError::new_err(
                    "expected one of schema, regex and grammar",
                ));
            }
        };
        let float = |value: Option<Value>| value.and_then(|v| v.as_f64()).map(|x| x as f32);
        let count = |value: Option<Value>| value.and_then(|v| v.as_u64()).map(|n| n as usize);
        Ok(Self {
            sampling: Sampling {
                temperature: float(take("temperature")),
                top_k: count(take("top_k")),
                top_p: float(take("top_p")),
                min_p: float(take("min_p")),
                repetition_penalty: float(take("repetition_penalty")),
                seed: take("seed").and_then(|v| v.as_u64()).unwrap_or_default(),
                ..Sampling::default()
            },
            max_tokens: count(take("max_tokens")),
            stop: strings(take("stop")),
            grammar,
            tools: match take("tools") {
                Some(Value::Array(tools)) => tools,
                _ => Vec::new(),
            },
        })
    }
}

fn strings(value: Option<Value>) -> Vec<String> {
    let Some(Value::Array(items)) = value else {
        return Vec::new();
    };
    let texts = items.into_iter().filter_map(|item| match item {
        Value::String(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

impl Generator {
    fn prepare(&self, model: &mut thane_runtime::Generator, options: &Options) -> PyResult<()> {
        let sampling = options.sampling.choose(&self.recommended, true);
        model.set_sampling(sampling.options).map_err(raise)?;
        model.max_tokens = options.max_tokens;
        model.stop.clone_from(&options.stop);
        match &options.grammar {
            None => model.clear_grammar(),
            Some(grammar) => model.set_grammar(grammar, &|| false).map_err(raise)?,
        }
        Ok(())
    }

    fn prompt(
        &self,
        model: &thane_runtime::Generator,
        messages: Option<&str>,
        prompt: Option<&str>,
        options: &Options,
    ) -> PyResult<Vec<u32>> {
        if let Some(prompt) = prompt {
            return model.prompts.encode_prompt(prompt).map_err(raise);
        }
        let messages = messages.unwrap_or("[]");
        let bad = |e: serde_json::Error| ThaneError::new_err(format!("messages: {e}"));
        let mut messages: Vec<Message> = serde_json::from_str(messages).map_err(bad)?;
        if options.tools.is_empty() {
            let conversation = model.encode_conversation(&mut messages);
            return Ok(conversation.map_err(raise)?.tokens);
        }
        let given = thane_runtime::TemplateInput {
            tools: options.tools.clone(),
            variables: model.prompts.variables.clone(),
        };
        let rendered = model.prompts.render(&messages, &given, &|| false);
        let rendered = rendered.map_err(raise)?;
        let tokens = model.prompts.encode_rendered(&rendered, &|| false);
        tokens.map_err(raise)
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

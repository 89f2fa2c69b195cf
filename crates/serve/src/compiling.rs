//! Compiles the grammars of a model's answers on threads of their own, so that nobody who asks for
//! something else waits for a grammar that takes long.

use std::sync::Arc;

use axum::http::StatusCode;
use thane_engine::choose::Grammar;
use thane_runtime::{GrammarSource, PromptEncoder, RuntimeError};
use tokio::sync::{Semaphore, oneshot};

use crate::error::{ApiError, error_chain};
use crate::places::Places;

/// Grammars that are compiled at once.
const THREADS: usize = 2;

/// Grammars that are compiled, or wait for that. Each holds a place in the queue of the model.
const PLACES: usize = 8;

/// The form of an answer, and the field that asked for it.
pub(crate) struct Form {
    pub source: GrammarSource,
    pub field: &'static str,
}

/// The threads that compile grammars of one model.
pub(crate) struct Compilers {
    places: Places,
    free: Arc<Semaphore>,
}

impl Compilers {
    pub fn new() -> Self {
        Self {
            places: Places::new(PLACES, "compilations of grammars"),
            free: Arc::new(Semaphore::new(THREADS)),
        }
    }

    /// Compiles a grammar, or takes one that was compiled before. If the caller is dropped,
    /// compiling ends.
    pub async fn compile(
        &self,
        prompts: &Arc<PromptEncoder>,
        form: Form,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        if let Some(kept) = prompts.grammars.take_kept(&form.source) {
            return Ok(kept);
        }
        let place = self.places.take()?;
        let failed = |_| ApiError::failed("the grammar could not be compiled");
        let free = Arc::clone(&self.free).acquire_owned().await;
        let (free, prompts) = (free.map_err(failed)?, Arc::clone(prompts));
        let (reply, compiled) = oneshot::channel();
        let compile = move || {
            let _held = (place, free);
            let compiled = compile(&prompts, &form, &|| reply.is_closed());
            let _ = reply.send(compiled);
        };
        let thread = std::thread::Builder::new().name("grammar".to_owned());
        let started = thread.spawn(compile);
        started.map_err(|e| ApiError::failed(format!("the grammar: {e}")))?;
        let failed = |_| ApiError::failed("the grammar could not be compiled");
        compiled.await.map_err(failed)?
    }
}

fn compile(
    prompts: &PromptEncoder,
    form: &Form,
    is_gone: &dyn Fn() -> bool,
) -> Result<Arc<dyn Grammar>, ApiError> {
    let error = match prompts.grammars.compile(&form.source, is_gone) {
        Ok(compiled) => return Ok(compiled),
        Err(error) => error,
    };
    let refused = |field: &str, error: &RuntimeError| {
        ApiError::field(field, format!("`{field}`: {}", error_chain(error)))
    };
    match (&form.source, error) {
        // Which of both is at fault.
        (GrammarSource::Either { form: one, .. }, error @ RuntimeError::Grammar(_)) => {
            let alone = prompts.grammars.compile(one, is_gone);
            Err(alone.map_or_else(
                |error| refused(form.field, &error),
                |_| refused("tools", &error),
            ))
        }
        (_, error @ RuntimeError::Grammar(_)) => Err(refused(form.field, &error)),
        (_, error @ RuntimeError::Budget(_)) => {
            let said = error_chain(&error);
            let full = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, said);
            Err(full.with_param(form.field).retry_after(1))
        }
        (_, error) => Err(ApiError::failed(error_chain(&error)).with_param(form.field)),
    }
}

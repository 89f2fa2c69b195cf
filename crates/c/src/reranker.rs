//! `thane_reranker` of the header.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use thane_runtime::RerankOptions;

use crate::options::{Options, open};
use crate::text::{array, text, texts};
use crate::{Fault, Status, answered};

/// A reranker.
pub struct Reranker(Mutex<thane_runtime::Reranker>);

/// Opens a reranker.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_reranker_open(
    model: *const c_char,
    options: *const Options,
    out: *mut *mut Reranker,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (opened, out) = unsafe { (open(model, options)?, out.as_mut()) };
        let out = out.ok_or_else(|| Fault::new("out: expected a place, found NULL"))?;
        let options = RerankOptions {
            max_tokens: opened.tokens,
            ..RerankOptions::default()
        };
        let model = opened.model.reranker(&options, &opened.cpu, &())?;
        *out = Box::into_raw(Box::new(Reranker(Mutex::new(model))));
        Ok(Status::Ok)
    })
}

/// Frees a model; null is allowed.
///
/// # Safety
/// `model` is null, or was opened by this library and not closed; no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_reranker_close(model: *mut Reranker) {
    if !model.is_null() {
        // SAFETY: it came from `thane_reranker_open`, as the caller promises.
        drop(unsafe { Box::from_raw(model) });
    }
}

/// Scores texts for a query.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_reranker_score(
    model: *mut Reranker,
    query: *const c_char,
    texts_in: *const *const c_char,
    n: usize,
    scores: *mut f32,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (model, query, given, scores) = unsafe {
            (
                model.as_ref(),
                text("query", query)?,
                texts(texts_in, n)?,
                array("scores", scores, n)?,
            )
        };
        let model = model.ok_or_else(|| Fault::new("model: expected one, found NULL"))?;
        let mut model = model.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ranked in model.rank(query, &given)? {
            scores[ranked.index] = ranked.score;
        }
        Ok(Status::Ok)
    })
}

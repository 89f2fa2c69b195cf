//! `thane_embedder` of the header.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use thane_engine::embed::output::shorten;
use thane_engine::embed::{Sequence, Watch};
use thane_runtime::{EmbedOptions, Prompt, RuntimeError, Tokens, kept_by_default};

use crate::options::{Options, open};
use crate::text::{array, opt_text, texts};
use crate::{Fault, Status, answered};

/// An embedding model.
pub struct Embedder {
    model: Mutex<thane_runtime::Embedder>,
    dimension: usize,
}

/// Opens an embedding model.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_embedder_open(
    model: *const c_char,
    options: *const Options,
    out: *mut *mut Embedder,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (opened, out) = unsafe { (open(model, options)?, out.as_mut()) };
        let out = out.ok_or_else(|| Fault::new("out: expected a place, found NULL"))?;
        let options = EmbedOptions {
            max_tokens: opened.tokens,
            ..EmbedOptions::default()
        };
        let model = opened.model.embedding_model(&options, &opened.cpu, &())?;
        let dimension = kept_by_default(&model.info).dim;
        *out = Box::into_raw(Box::new(Embedder {
            model: Mutex::new(model),
            dimension,
        }));
        Ok(Status::Ok)
    })
}

/// Frees a model; null is allowed.
///
/// # Safety
/// `model` is null, or was opened by this library and not closed; no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_embedder_close(model: *mut Embedder) {
    if !model.is_null() {
        // SAFETY: it came from `thane_embedder_open`, as the caller promises.
        drop(unsafe { Box::from_raw(model) });
    }
}

/// Elements of a vector; 0 for null.
///
/// # Safety
/// `model` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_embedder_dimension(model: *const Embedder) -> usize {
    // SAFETY: as the caller promises.
    unsafe { model.as_ref() }.map_or(0, |model| model.dimension)
}

/// Embeds texts.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_embedder_embed(
    model: *mut Embedder,
    texts_in: *const *const c_char,
    n: usize,
    prompt_name: *const c_char,
    out: *mut f32,
    out_len: usize,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (model, given, prompt_name, out) = unsafe {
            (
                model.as_ref(),
                texts(texts_in, n)?,
                opt_text("prompt_name", prompt_name)?,
                array("out", out, out_len)?,
            )
        };
        let model = model.ok_or_else(|| Fault::new("model: expected one, found NULL"))?;
        let expected = model.dimension.checked_mul(n);
        if expected != Some(out_len) {
            let dim = model.dimension;
            let message = format!("out_len: expected {n} x {dim}, found {out_len}");
            return Err(Fault::new(message));
        }
        let mut running = model.model.lock().unwrap_or_else(PoisonError::into_inner);
        out.copy_from_slice(&embed(&mut running, &given, prompt_name)?);
        Ok(Status::Ok)
    })
}

/// Rows of vectors of texts that are cut where they are too long.
fn embed(
    model: &mut thane_runtime::Embedder,
    texts: &[&str],
    prompt_name: Option<&str>,
) -> Result<Vec<f32>, RuntimeError> {
    let prompt = Prompt::choose(prompt_name, &model.info)?.text;
    let prefix = model.text().prefix(prompt, model.max_tokens())?;
    let sequence = |text: &&str| match model.tokenize(&prefix, text, true)? {
        (Tokens::Text(sequence), _) => Ok(sequence),
        (Tokens::Chunks(_), _) => unreachable!("a text has no chunks"),
    };
    let sequences = texts.iter().map(sequence);
    let sequences = sequences.collect::<Result<Vec<Sequence>, RuntimeError>>()?;
    let mut watch = Watch {
        interrupted: &|| false,
        progress: &mut |_| {},
    };
    let rows = model.engine.texts(&sequences, &mut watch)?;
    let kept = kept_by_default(&model.info);
    Ok(shorten(rows.unwrap_or_default(), model.engine.dim(), kept))
}

//! `thane_generator` of the header.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use thane_engine::generate::FinishReason;
use thane_runtime::{AnswerOptions, LanguageOptions, Question, Sampling, Turns};

use crate::options::{Options, open};
use crate::text::{opt_text, text};
use crate::{Fault, Status, answered, owned_text};

/// A language model.
pub struct Generator {
    model: Turns<thane_runtime::Generator>,
    /// Set by a cancel: ends the running answer.
    is_cancelled: AtomicBool,
}

/// `thane_on_text` of the header.
type OnText = Option<unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> c_int>;

/// Opens a language model.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_generator_open(
    model: *const c_char,
    options: *const Options,
    out: *mut *mut Generator,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (opened, out) = unsafe { (open(model, options)?, out.as_mut()) };
        let out = out.ok_or_else(|| Fault::new("out: expected a place, found NULL"))?;
        let options = LanguageOptions {
            context: opened.tokens,
            ..LanguageOptions::default()
        };
        let language = opened.model.language_model(&options, &())?;
        let sampling = Sampling::default().choose(&language.recommended_sampling()?, true);
        let mut model = language.start(&opened.cpu, sampling.options, true)?;
        // A model without a template continues texts.
        let _ = model.prompts.use_template();
        *out = Box::into_raw(Box::new(Generator {
            model: Turns::new(model),
            is_cancelled: AtomicBool::new(false),
        }));
        Ok(Status::Ok)
    })
}

/// Frees a model; null is allowed.
///
/// # Safety
/// `model` is null, or was opened by this library and not closed; no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_generator_close(model: *mut Generator) {
    if !model.is_null() {
        // SAFETY: it came from `thane_generator_open`, as the caller promises.
        drop(unsafe { Box::from_raw(model) });
    }
}

/// Ends the answer that runs.
///
/// # Safety
/// `model` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_generator_cancel(model: *const Generator) {
    // SAFETY: as the caller promises.
    if let Some(model) = unsafe { model.as_ref() } {
        model.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// Answers messages.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_generator_answer(
    model: *mut Generator,
    messages: *const c_char,
    options: *const c_char,
    on_text: OnText,
    user: *mut c_void,
    answer: *mut *mut c_char,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (messages, to) = unsafe { (text("messages", messages)?, Caller { on_text, user }) };
        // SAFETY: as the caller promises.
        unsafe { run(model, Question::Messages(messages), options, &to, answer) }
    })
}

/// Continues a text.
///
/// # Safety
/// Arguments are as `include/thane.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_generator_complete(
    model: *mut Generator,
    prompt: *const c_char,
    options: *const c_char,
    on_text: OnText,
    user: *mut c_void,
    answer: *mut *mut c_char,
    error: *mut *mut c_char,
) -> Status {
    answered(error, || {
        // SAFETY: as the caller promises.
        let (prompt, to) = unsafe { (text("prompt", prompt)?, Caller { on_text, user }) };
        // SAFETY: as the caller promises.
        unsafe { run(model, Question::Text(prompt), options, &to, answer) }
    })
}

/// Who gets the pieces of text.
struct Caller {
    on_text: OnText,
    user: *mut c_void,
}

impl Caller {
    /// Hands a piece on; the caller may end the answer.
    fn tell(&self, piece: &str) -> ControlFlow<()> {
        let Some(on_text) = self.on_text else {
            return ControlFlow::Continue(());
        };
        let bytes = piece.bytes().filter(|byte| *byte != 0).collect::<Vec<u8>>();
        let len = bytes.len();
        let Ok(text) = CString::new(bytes) else {
            return ControlFlow::Continue(());
        };
        // SAFETY: the text ends with a zero byte and lives during the call.
        match unsafe { on_text(text.as_ptr(), len, self.user) } {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// # Safety
/// Arguments are as `include/thane.h` says.
unsafe fn run(
    model: *mut Generator,
    question: Question<'_>,
    options: *const c_char,
    to: &Caller,
    answer: *mut *mut c_char,
) -> Result<Status, Fault> {
    // SAFETY: as the caller promises.
    let (model, options, out) = unsafe {
        (
            model.as_ref(),
            opt_text("options", options)?,
            answer.as_mut(),
        )
    };
    let model = model.ok_or_else(|| Fault::new("model: expected one, found NULL"))?;
    let options = AnswerOptions::parse(options.unwrap_or_default())?;
    let Some(mut running) = model.model.take(&|| false)? else {
        return Err(Fault::new("model: it is in use"));
    };
    // Only the answer that runs is cancelled.
    model.is_cancelled.store(false, Ordering::Relaxed);
    let tokens = options.encode(&mut running, question)?;
    let is_cancelled = || model.is_cancelled.load(Ordering::Relaxed);
    let made = running.generate(&tokens, &is_cancelled, &mut |piece| to.tell(piece))?;
    if let Some(out) = out {
        let json = json!({
            "text": made.text,
            "tokens": made.tokens,
            "finish_reason": made.finish_reason.name(),
            "prompt_tokens": made.timings.prefill_tokens,
        });
        *out = owned_text(&json.to_string());
    }
    Ok(match made.finish_reason {
        FinishReason::Interrupted => Status::Cancelled,
        _ => Status::Ok,
    })
}

//! The C interface: `include/thane.h` says what each function does.
//!
//! It is a thin layer over `thane-runtime`. Start reading at [`answered`], through which every call
//! goes: it catches panics, and turns results into a status and a message.
//!
//! # Safety
//! A caller keeps the promises of the header: pointers are null or valid, texts end with a zero
//! byte, arrays have the length that is given, and a model is not used after it was closed.
#![allow(unsafe_code)]

mod embedder;
mod generator;
mod options;
mod reranker;
mod text;

use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use thane_runtime::RuntimeError;

/// `THANE_ABI` of the header.
const ABI: u32 = 1;

/// `thane_status` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call did what it is for.
    Ok,
    /// The message says why not.
    Error,
    /// The caller ended the answer.
    Cancelled,
    /// A fault of Thane itself.
    Panic,
}

/// Why a call fails, in words.
pub(crate) struct Fault(String);

impl Fault {
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl From<RuntimeError> for Fault {
    /// The message with that of each cause that it does not repeat.
    fn from(error: RuntimeError) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self(message)
    }
}

/// Does the work of a call. `error` is set where the work fails.
pub(crate) fn answered(
    error: *mut *mut c_char,
    work: impl FnOnce() -> Result<Status, Fault>,
) -> Status {
    let (status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(status)) => return status,
        Ok(Err(Fault(message))) => (Status::Error, message),
        Err(_) => {
            let message = "a fault of Thane itself: please report it, with what the call was given";
            (Status::Panic, message.to_owned())
        }
    };
    if !error.is_null() {
        // SAFETY: the caller's pointer is valid where it is not null.
        unsafe { *error = owned_text(&message) };
    }
    status
}

/// A text that the caller frees. A zero byte inside, which C cannot have, is left out.
pub(crate) fn owned_text(text: &str) -> *mut c_char {
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<u8>>();
    CString::new(bytes).map_or(std::ptr::null_mut(), CString::into_raw)
}

/// The version.
#[unsafe(no_mangle)]
pub extern "C" fn thane_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The number of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn thane_abi() -> u32 {
    ABI
}

/// Frees a text of this library.
///
/// # Safety
/// `text` is null, or was returned by this library and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thane_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it came from `owned_text`, as the caller promises.
        drop(unsafe { CString::from_raw(text) });
    }
}

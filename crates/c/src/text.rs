//! Texts and arrays of the caller.

use std::ffi::{CStr, c_char};

use crate::Fault;

/// A text of the caller.
///
/// # Safety
/// `text` is null or ends with a zero byte, and lives as long as the result is used.
pub unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Fault> {
    // SAFETY: as the caller of this function promises.
    let text = unsafe { opt_text(name, text) }?;
    text.ok_or_else(|| Fault::new(format!("{name}: expected a text, found NULL")))
}

/// A text of the caller that may be null.
///
/// # Safety
/// As of [`text`].
pub unsafe fn opt_text<'a>(name: &str, text: *const c_char) -> Result<Option<&'a str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller of this function promises.
    let text = unsafe { CStr::from_ptr(text) };
    let fault = |e| Fault::new(format!("{name}: expected UTF-8, found other bytes: {e}"));
    text.to_str().map(Some).map_err(fault)
}

/// Texts of the caller.
///
/// # Safety
/// `texts` has `n` texts as of [`text`], or `n` is 0.
pub unsafe fn texts<'a>(texts: *const *const c_char, n: usize) -> Result<Vec<&'a str>, Fault> {
    if n == 0 {
        return Ok(Vec::new());
    }
    if texts.is_null() {
        return Err(Fault::new("texts: expected an array, found NULL"));
    }
    if n > isize::MAX as usize / size_of::<*const c_char>() {
        return Err(Fault::new(format!("texts: expected fewer, found {n}")));
    }
    // SAFETY: as the caller of this function promises.
    let pointers = unsafe { std::slice::from_raw_parts(texts, n) };
    let text = |(idx, pointer): (usize, &*const c_char)| {
        // SAFETY: as the caller of this function promises.
        unsafe { text(&format!("texts[{idx}]"), *pointer) }
    };
    pointers.iter().enumerate().map(text).collect()
}

/// An array of the caller that is written to, of `n` elements.
///
/// # Safety
/// `out` has room for `n` elements, or is null, and nothing else uses it meanwhile.
pub unsafe fn array<'a>(name: &str, out: *mut f32, n: usize) -> Result<&'a mut [f32], Fault> {
    if n == 0 {
        return Ok(&mut []);
    }
    if out.is_null() {
        return Err(Fault::new(format!("{name}: expected an array, found NULL")));
    }
    if n > isize::MAX as usize / size_of::<f32>() {
        return Err(Fault::new(format!(
            "{name}: expected fewer elements, found {n}"
        )));
    }
    // SAFETY: as the caller of this function promises.
    Ok(unsafe { std::slice::from_raw_parts_mut(out, n) })
}

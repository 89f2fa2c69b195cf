//! The interface to JavaScript: `thane_answer` is exported, and calls `thane.read` and
//! `thane.write`. All memory is this module's own: the host copies bytes in and out while it is
//! called, so nothing has to be allocated or freed from outside. A page makes an instance for each
//! question and drops it with its memory.
//!
//! # Safety
//! The host keeps what `page/core.js` does: `read` writes exactly `len` bytes from `to` on, and
//! `write` reads exactly `len` bytes from `from` on, each before it returns or throws.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::host::Host;

/// The number of the question, beside those of files.
const QUESTION: u32 = u32::MAX;

/// What `write` is given.
enum Text {
    /// The answer as JSON.
    Json = 0,
    /// The report as a page.
    Page = 1,
    /// Why there is no answer.
    Error = 2,
    /// What is being done.
    Phase = 3,
    /// A fault of this program, after which the instance is of no use.
    Panic = 4,
}

#[link(wasm_import_module = "thane")]
unsafe extern "C" {
    /// Copies `len` bytes of a file from `offset` on to `to`.
    fn read(file: u32, offset: u32, to: *mut u8, len: u32);
    /// Takes a text of `len` bytes.
    fn write(kind: u32, from: *const u8, len: u32);
}

struct JavaScript;

impl Host for JavaScript {
    fn read(&self, file: usize, offset: usize, out: &mut [u8]) {
        fill(file as u32, offset as u32, out);
    }

    fn hear(&self, phase: &str) {
        say(Text::Phase, phase);
    }
}

fn fill(file: u32, offset: u32, out: &mut [u8]) {
    // SAFETY: the pointer and the length are those of `out`, which is borrowed until the host has
    // written its bytes; lengths and offsets of wasm32 fit in 32 bits.
    unsafe { read(file, offset, out.as_mut_ptr(), out.len() as u32) }
}

fn say(kind: Text, text: &str) {
    // SAFETY: the pointer and the length are those of `text`, which is borrowed until the host has
    // copied it.
    unsafe { write(kind as u32, text.as_ptr(), text.len() as u32) }
}

/// Reads a question of `len` bytes from the host, and writes its answer or an error there.
// SAFETY: no other function of this program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn thane_answer(len: u32) {
    std::panic::set_hook(Box::new(|fault| say(Text::Panic, &fault.to_string())));
    let mut question = vec![0; len as usize];
    fill(QUESTION, 0, &mut question);
    let host: Arc<dyn Host> = Arc::new(JavaScript);
    match crate::answer(&question, &host) {
        Ok(answer) => {
            if let Some(page) = &answer.page {
                say(Text::Page, page);
            }
            say(Text::Json, &answer.json);
        }
        Err(error) => say(Text::Error, &error),
    }
}

//! How a model is opened.

use std::ffi::c_char;
use std::path::PathBuf;

use thane_cpu::Cpu;
use thane_hub::{Hub, Places};
use thane_runtime::{Model, local_cpu};

use crate::Fault;
use crate::text::{opt_text, text};

/// `thane_options` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    numerics: *const c_char,
    cache: *const c_char,
    threads: u32,
    tokens: u32,
    memory: u64,
}

/// A model that is not started yet.
pub struct Opened {
    pub model: Model,
    pub cpu: Cpu,
    /// Tokens of a context or a text, where the caller says.
    pub tokens: Option<usize>,
}

/// Opens a model.
///
/// # Safety
/// `model` is a text, `options` null or valid, with texts in it.
pub unsafe fn open(model: *const c_char, options: *const Options) -> Result<Opened, Fault> {
    let none = Options {
        numerics: std::ptr::null(),
        cache: std::ptr::null(),
        threads: 0,
        tokens: 0,
        memory: 0,
    };
    // SAFETY: as the caller of this function promises.
    let options = unsafe { options.as_ref() }.copied().unwrap_or(none);
    // SAFETY: as the caller of this function promises.
    let (name, numerics, cache) = unsafe {
        (
            text("model", model)?,
            opt_text("numerics", options.numerics)?,
            opt_text("cache", options.cache)?,
        )
    };
    let given = |n: u64| usize::try_from(n).ok().filter(|n| *n > 0);
    let threads = given(options.threads.into());
    let cpu = local_cpu(numerics.unwrap_or("fast"), threads, given(options.memory))?;
    let cache = cache.map(PathBuf::from);
    let places = Places::from_variables(cache, |name| std::env::var_os(name));
    Ok(Opened {
        model: Model::open(name, &Hub::new(places), &())?,
        cpu,
        tokens: given(options.tokens.into()),
    })
}

//! This machine's CPU as a backend, from what bindings to other languages are given.

use std::num::NonZero;

use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_mil::budget::Budget;

use crate::error::RuntimeError;

/// Most threads of a backend.
const MOST_THREADS: usize = 1024;

/// The CPU with numerics by name (`fast`, `f32`, `int8`, `ane`), a number of threads (as many as
/// there are cores by default), and a limit in bytes of what models take beside their files.
pub fn local_cpu(
    numerics: &str,
    threads: Option<usize>,
    memory: Option<usize>,
) -> Result<Cpu, RuntimeError> {
    let known = [
        ("fast", Numerics::Fast),
        ("f32", Numerics::F32),
        ("int8", Numerics::Int8),
        ("ane", Numerics::Ane(Effects::default())),
    ];
    let found = known.into_iter().find(|(name, _)| *name == numerics);
    let (_, numerics) = found.ok_or_else(|| RuntimeError::Numerics {
        found: numerics.to_owned(),
    })?;
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.unwrap_or_else(cores);
    if !(1..=MOST_THREADS).contains(&threads) {
        return Err(RuntimeError::Threads { found: threads });
    }
    let cpu = Cpu::new(numerics, threads);
    Ok(match memory {
        Some(limit) => cpu.with_budget(&Budget::new(limit)),
        None => cpu,
    })
}

//! Runs the passes of the compiler over a program, and chooses its opset.

use std::path::Path;

use thane_compile::Options;
use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::package::{Package, check};
use thane_mil::program::{Function, Program};
use thane_mil::types::Type;
use thane_mil::valid::Violation;

use crate::error::{OpsetError, RuntimeError};
use crate::main_function::with_main;
use crate::observer::Observer;

/// Broken rules that an error lists.
const MOST_VIOLATIONS: usize = 8;

/// Runs the passes over the program of the model at `path`.
pub fn compile(
    program: Program,
    path: &Path,
    observer: &dyn Observer,
) -> Result<Program, RuntimeError> {
    program.check_files()?;
    let (program, _) = thane_compile::run(program, &Options::default()).map_err(|source| {
        RuntimeError::Compile {
            path: path.to_owned(),
            source,
        }
    })?;
    let functions = program.functions();
    let n_ops: usize = functions.iter().map(|f| f.all_ops().len()).sum();
    observer.detail(&format!(
        "the program: {}, {}",
        counted(functions.len(), "function"),
        counted(n_ops, "op")
    ));
    Ok(program)
}

/// The program in an opset; `None` for the lowest in which a package can hold the program. Several
/// functions exist since iOS 18; the only one is written as `main`, whatever its name is here.
pub fn in_opset(program: &Program, asked: Option<Opset>) -> Result<Program, RuntimeError> {
    let lowest = match program.functions() {
        [_] => {
            let mut opsets = Opset::ALL.iter().copied();
            opsets.find(|opset| alone_in_opset(program, *opset).is_ok())
        }
        _ => Some(Opset::CoreMl8),
    };
    let opset = asked.or(lowest).unwrap_or(Opset::CoreMl8);
    let lowered = match program.functions() {
        [_, other, ..] if opset < Opset::CoreMl8 => Err(vec![several_functions(other)]),
        [_] => alone_in_opset(program, opset),
        _ => lower::with_opset(program, opset),
    };
    lowered.map_err(|violations| {
        let shown = violations.iter().take(MOST_VIOLATIONS);
        RuntimeError::Opset(Box::new(OpsetError {
            opset: opset.name(),
            lowest: lowest.map(Opset::name),
            violations: shown.map(ToString::to_string).collect(),
            n_more: violations.len().saturating_sub(MOST_VIOLATIONS),
            has_states: has_states(program),
        }))
    })
}

/// The program of one function in an opset, if a package can hold the program there.
fn alone_in_opset(program: &Program, opset: Opset) -> Result<Program, Vec<Violation>> {
    let lowered = lower::with_opset(program, opset)?;
    check(&Package::new(with_main(&lowered)))?;
    Ok(lowered)
}

fn several_functions(second: &Function) -> Violation {
    Violation {
        function: second.name.clone(),
        place: "function".to_owned(),
        message: "several functions require opset ios18".to_owned(),
    }
}

/// Whether a function keeps state between calls.
pub fn has_states(program: &Program) -> bool {
    let is_state = |f: &Function| {
        f.body()
            .inputs
            .iter()
            .any(|v| matches!(f.value(*v).ty, Type::State(_)))
    };
    program.functions().iter().any(is_state)
}

/// `1 layer`, `2 layers`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
